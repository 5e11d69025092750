"""``spark.read.format("rocketmq")``: one look at the queues when the query is planned, then its
tasks. Must not know about streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from turbopump.errors import ConfigError
from turbopump.spark import reading
from turbopump.spark.cluster import PLANNING_PATIENCE_S, Cluster
from turbopump.spark.offsets import Offsets
from turbopump.spark.options import ReadOptions
from turbopump.spark.plain_errors import plain_errors

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads from ``startingOffsets`` (default earliest) up to ``endingOffsets`` (default latest,
    seen once at planning)."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        if options.offsets_per_trigger_max is not None:
            _log.warning(
                "maxOffsetsPerTrigger does nothing in a batch read, which reads up to endingOffsets"
            )

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster(options.name_servers, patience=PLANNING_PATIENCE_S) as cluster:
            queues = reading.all_queues(cluster, options.topics)
            begins = reading.starting_offsets(cluster, queues, options, "earliest")
            ends = reading.ending_offsets(cluster, queues, options)
        self._check_order(begins, ends)
        return reading.tasks(begins, ends, options)

    def _check_order(self, begins: Offsets, ends: Offsets) -> None:
        """Raises ConfigError where both ends of the range were given, in the wrong order."""
        options = self._options
        start, end = options.starting_timestamp_ms, options.ending_timestamp_ms
        if start is not None and end is not None and start > end:
            raise ConfigError(f"startingTimestamp {start} is later than endingTimestamp {end}")
        if isinstance(options.starting, dict) and isinstance(options.ending, dict):
            for queue in sorted(options.starting.keys() & options.ending.keys()):
                if start is None and end is None and begins[queue] > ends[queue]:
                    raise ConfigError(
                        f"startingOffsets {begins[queue]} of {queue} lies beyond its "
                        f"endingOffsets {ends[queue]}"
                    )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, reading.RangesPartition)
        return reading.read_ranges(partition.ranges, self._options)
