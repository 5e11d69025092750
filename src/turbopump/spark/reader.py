"""``spark.read.format("rocketmq")``: one look at the queues when the query is planned, then its
tasks. Must not know about streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from turbopump.spark.cluster import PLANNING_PATIENCE_S, Cluster
from turbopump.spark.options import ReadOptions
from turbopump.spark.ranges import ranges_between, split
from turbopump.spark.reading import RangesPartition, all_queues, place, read_ranges


class BatchReader(DataSourceReader):
    """Reads from ``startingOffsets`` (default earliest) up to ``endingOffsets`` (default latest,
    seen once at planning)."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster(options.name_servers, patience=PLANNING_PATIENCE_S) as cluster:
            queues = all_queues(cluster, options.topics)
            begins = place(
                cluster, queues, options.starting or "earliest", options.starting_timestamp_ms
            )
            ends = place(cluster, queues, options.ending or "latest", options.ending_timestamp_ms)
        return [
            RangesPartition(ranges)
            for ranges in split(ranges_between(begins, ends), options.partitions_max)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options)
