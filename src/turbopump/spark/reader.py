"""``spark.read.format("rocketmq")``: one look at the queues when the query is planned, then its
tasks. Must not know about streams."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from turbopump.message.message import MessageQueue
from turbopump.spark import planning, pushdown, reading
from turbopump.spark.cluster import PLANNING_PATIENCE_S, Cluster
from turbopump.spark.offsets import Offsets
from turbopump.spark.options import ReadOptions, options_of_mode
from turbopump.spark.plain_errors import plain_errors

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads from ``startingOffsets`` (default earliest) up to ``endingOffsets`` (default latest,
    seen once at planning)."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = pushdown.NOTHING_PUSHED
        for name in options_of_mode(options, "stream"):
            _log.warning("%s does nothing in a batch read, which reads up to endingOffsets", name)

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        options, pushed = self._options, self._pushed
        begin, end = options.begin("earliest"), options.end()
        with reading.connected(options, patience=PLANNING_PATIENCE_S) as cluster:
            queues = planning.queues_wanted(cluster, options)
            planning.check_named(queues, begin)
            planning.check_named(queues, end)
            planning.check_begins_before_end(queues, begin, end)
            queues = [queue for queue in queues if pushed.takes(queue)]
            if options.broker_offline == "skip":
                queues = planning.reachable(cluster, queues)
            begins = planning.offsets_at(cluster, queues, begin, options)
            ends = planning.offsets_at(cluster, queues, end, options)
            begins, ends = pushed.narrowed(cluster, begins, ends)
            tags = self._tags_to_ask_for(cluster, begins, ends)
        return planning.tasks(begins, ends, options, tags)

    def _tags_to_ask_for(
        self, cluster: Cluster, begins: Offsets, ends: Offsets
    ) -> frozenset[str] | None:
        """The tags that Spark wants, if brokers can be asked for them: not where there is another
        filter already, nor where they would leave out too much."""
        tags = self._pushed.tags
        if tags is None or self._options.sql_filter is not None:
            return None
        one_each: dict[tuple[str, str], MessageQueue] = {}
        for queue in ends:
            if begins[queue] < ends[queue]:
                one_each[queue.topic, queue.broker_name] = queue
        if any(map(cluster.may_hold_inner_batches, one_each.values())):
            return None
        return tags

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read_partition(partition, self._options)


class PushingBatchReader(BatchReader):
    """The same for sessions in which Spark pushes filters down: PySpark refuses this method in all
    others."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._pushed, left = pushdown.push(filters)
        return left
