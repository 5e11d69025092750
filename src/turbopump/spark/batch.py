"""Batch reads of RocketMQ topics: plans for ``spark.read.format("rocketmq")``.

This module plans a read, applies Spark's filters to the plan, and divides it into tasks. The
offsets of all queues are looked up once, when the query is planned. Spark's filters limit the
messages that are read. Streams are unknown here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from turbopump.message.message import MessageQueue
from turbopump.spark import planning, reading
from turbopump.spark.cluster import PLANNING_PATIENCE_S, Cluster
from turbopump.spark.offsets import Offsets, ranges_between
from turbopump.spark.options import ReadOptions, options_of_mode
from turbopump.spark.plain_errors import plain_errors
from turbopump.spark.pushed_filters import NOTHING_PUSHED, push

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Spark reader of a batch query on RocketMQ topics.

    The query reads from ``startingOffsets`` (default ``earliest``) up to ``endingOffsets`` (default
    ``latest``). Both are looked up once, when Spark plans the query.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = NOTHING_PUSHED
        for name in options_of_mode(options, "stream"):
            _log.warning(
                "option %s has no effect in a batch read, which ends at endingOffsets", name
            )

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        pushed = self._pushed
        begin = options.begin("earliest")
        end = options.end()
        with reading.connected(options, patience=PLANNING_PATIENCE_S) as cluster:
            queues = planning.queues_wanted(cluster, options)
            planning.check_named(queues, begin)
            planning.check_named(queues, end)
            planning.check_begins_before_end(queues, begin, end)
            of_all = len(queues)
            queues = [queue for queue in queues if pushed.may_match(queue)]
            if options.broker_offline == "skip":
                queues = planning.reachable_queues(cluster, queues)
            begins = planning.offsets_at(cluster, queues, begin, options)
            ends = planning.offsets_at(cluster, queues, end, options)
            whole = sum(piece.count for piece in ranges_between(begins, ends))
            begins, ends = pushed.limit_ranges(cluster, begins, ends)
            tags = self._tags_to_ask_for(cluster, begins, ends)
        if pushed != NOTHING_PUSHED:
            left = sum(piece.count for piece in ranges_between(begins, ends))
            text = "filters that Spark pushed: %d of %d queues, %d of their %d offsets%s"
            asked = f", tags {' || '.join(sorted(tags))}" if tags else ""
            _log.info(text, len(queues), of_all, left, whole, asked)
        return planning.tasks(begins, ends, options, tags)

    def _tags_to_ask_for(
        self, cluster: Cluster, begins: Offsets, ends: Offsets
    ) -> frozenset[str] | None:
        """Return the tags for the brokers' tag filter, or None if brokers must not filter.

        The tags come from Spark's filters. Brokers must not filter by tags if the query has an SQL
        filter, or if a topic may store inner batches. (An inner batch has no tag of its own.)
        """
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
    """Spark reader of a batch query, with support for Spark's filters.

    PySpark refuses a reader with ``pushFilters`` unless the session allows pushed filters. Other
    sessions therefore use ``BatchReader``.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._pushed, left = push(filters)
        return left
