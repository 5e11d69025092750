"""What batch and stream readers share: places to begin and end at, tasks, and the reading of one
task.

The one rule: the planner decides with a ``Cluster``; a task needs nothing but its ranges and
options, and keeps nothing. It must not know Spark's classes beyond ``InputPartition``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from turbopump.errors import ConfigError
from turbopump.message.message_queue import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.decode import decode
from turbopump.spark.offsets import EARLIEST, LATEST, Offsets
from turbopump.spark.options import Place, ReadOptions
from turbopump.spark.plain_errors import hidden_traceback
from turbopump.spark.pull import DataLossError, read_range
from turbopump.spark.ranges import OffsetRange

_log = logging.getLogger(__name__)


class RangesPartition(InputPartition):
    """One Spark task: some ranges of queues, read one after the other. It may have none: PySpark
    puts a partition of its own in place of an empty list."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def all_queues(cluster: Cluster, topics: Iterable[str]) -> list[MessageQueue]:
    return [queue for topic in topics for queue in cluster.queues(topic)]


def place(
    cluster: Cluster, queues: Iterable[MessageQueue], wanted: Place, timestamp_ms: int | None
) -> Offsets:
    """An offset for each queue. A time goes before offsets; queues that the given offsets leave out
    begin at their earliest.

    Raises ConfigError if the given offsets name a queue that is not there.
    """
    queues = list(queues)
    if timestamp_ms is not None:
        return {queue: cluster.offset_at(queue, timestamp_ms) for queue in queues}
    if isinstance(wanted, str):
        ends = {"earliest": cluster.offset_min, "latest": cluster.offset_max}
        return {queue: ends[wanted](queue) for queue in queues}
    absent = sorted(set(wanted) - set(queues))
    if absent:
        raise ConfigError(
            f"the given offsets name {', '.join(map(str, absent))}, but there are only "
            f"{', '.join(map(str, queues))}"
        )
    symbols = {EARLIEST: cluster.offset_min, LATEST: cluster.offset_max}
    found: Offsets = {}
    for queue in queues:
        offset = wanted.get(queue, EARLIEST)
        found[queue] = symbols[offset](queue) if offset in symbols else offset
    return found


def within_queues(
    cluster: Cluster, offsets: Offsets, wanted: Place, *, option: str, fail_on_data_loss: bool
) -> Offsets:
    """``offsets`` as they are, if none of those that ``option`` gave as numbers lies beyond the end
    of its queue.

    Raises DataLossError for one that does; where ``fail_on_data_loss`` is false it becomes the
    queue's end, with a warning.
    """
    if isinstance(wanted, str):
        return offsets
    found = dict(offsets)
    for queue in sorted(queue for queue, offset in wanted.items() if offset >= 0):
        end = cluster.offset_max(queue)
        if offsets[queue] <= end:
            continue
        text = f"{option} says {offsets[queue]} for {queue}, which ends at {end}"
        if fail_on_data_loss:
            raise DataLossError(
                f"{text}: the topic or broker was made anew, or lost its end. Give an offset that "
                "the queue has, or set the option failOnDataLoss to false to take its end instead"
            )
        _log.warning("%s; its end is taken, as failOnDataLoss is false", text)
        found[queue] = end
    return found


def read_ranges(ranges: Iterable[OffsetRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of these ranges as record batches of ``options.columns``."""
    with hidden_traceback(), Cluster(options.name_servers) as cluster:
        for wanted in ranges:
            chunks = read_range(
                cluster,
                wanted,
                pull_batch_size=options.pull_batch_size,
                pull_timeout_ms=options.pull_timeout_ms,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for chunk in chunks:
                yield from decode(
                    chunk,
                    wanted.queue.broker_name,
                    options.columns,
                    queue_offsets=range(wanted.begin, wanted.end),
                )
