"""What batch and stream readers share: offsets to begin and end at, tasks, and the reading of one
task.

The one rule: the planner decides with a ``Cluster``; a task needs nothing but its ranges and
options, and keeps nothing. It must not know Spark's classes beyond ``InputPartition``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from turbopump.errors import ClientError, ConfigError
from turbopump.message.batch import is_wrapped, unwrapped
from turbopump.message.message import MessageQueue
from turbopump.message.pulled import DamagedEntry, good_entries, good_positions
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.spark.cluster import Cluster
from turbopump.spark.decode import decode
from turbopump.spark.offsets import EARLIEST, LATEST, OffsetRange, Offsets, ranges_between, split
from turbopump.spark.options import ReadOptions, WantedOffsets
from turbopump.spark.plain_errors import hidden_traceback

_log = logging.getLogger(__name__)


class RangesPartition(InputPartition):
    """One Spark task: some ranges of queues, read one after the other. It may have none: PySpark
    puts a partition of its own in place of an empty list."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def all_queues(cluster: Cluster, topics: Iterable[str]) -> list[MessageQueue]:
    return [queue for topic in topics for queue in cluster.queues(topic)]


def offsets_wanted(
    cluster: Cluster, queues: list[MessageQueue], wanted: WantedOffsets, timestamp_ms: int | None
) -> Offsets:
    """An offset for each queue. A time goes before offsets; queues that the given offsets leave out
    begin at their earliest.

    Raises ConfigError if the given offsets name a queue that is not there.
    """
    if timestamp_ms is not None:
        return {queue: cluster.offset_at(queue, timestamp_ms) for queue in queues}
    if isinstance(wanted, str):
        wanted = dict.fromkeys(queues, EARLIEST if wanted == "earliest" else LATEST)
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


def starting_offsets(
    cluster: Cluster, queues: list[MessageQueue], options: ReadOptions, default: WantedOffsets
) -> Offsets:
    """Where a read begins; errors as ``offsets_wanted`` and ``within_queues``."""
    wanted, time = options.starting or default, options.starting_timestamp_ms
    found = offsets_wanted(cluster, queues, wanted, time)
    return within_queues(cluster, found, wanted, time, "startingOffsets", options)


def ending_offsets(cluster: Cluster, queues: list[MessageQueue], options: ReadOptions) -> Offsets:
    """Where a batch read ends; errors as ``offsets_wanted`` and ``within_queues``."""
    wanted, time = options.ending or "latest", options.ending_timestamp_ms
    found = offsets_wanted(cluster, queues, wanted, time)
    return within_queues(cluster, found, wanted, time, "endingOffsets", options)


def within_queues(
    cluster: Cluster,
    offsets: Offsets,
    wanted: WantedOffsets,
    timestamp_ms: int | None,
    option: str,
    options: ReadOptions,
) -> Offsets:
    """``offsets`` as they are, if none of those that ``option`` gave as numbers lies beyond the end
    of its queue.

    Raises DataLossError for one that does; without ``fail_on_data_loss`` it becomes the queue's
    end, with a warning.
    """
    if isinstance(wanted, str) or timestamp_ms is not None:
        return offsets
    found = dict(offsets)
    for queue in sorted(queue for queue, offset in wanted.items() if offset >= 0):
        end = cluster.offset_max(queue)
        if offsets[queue] > end:
            _lose(
                options.fail_on_data_loss,
                f"{option} says {offsets[queue]} for {queue}, which ends at {end}",
                ": the topic or broker was made anew, or lost its end. Give an offset that the "
                "queue has, or set the option failOnDataLoss to false to take its end instead",
                "its end is taken",
            )
            found[queue] = end
    return found


def tasks(begins: Offsets, ends: Offsets, options: ReadOptions) -> list[RangesPartition]:
    """What lies between two sets of offsets, divided into tasks, at least one."""
    parts = split(ranges_between(begins, ends), options.partitions_max)
    return [RangesPartition(ranges) for ranges in parts or [[]]]


def read_ranges(ranges: Iterable[OffsetRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of these ranges as record batches of ``options.columns``."""
    with hidden_traceback(), Cluster(options.name_servers) as cluster:
        for wanted in ranges:
            offsets = range(wanted.begin, wanted.end)
            for chunk in read_range(cluster, wanted, options):
                yield from decode(
                    chunk, wanted.queue.broker_name, options.columns, queue_offsets=offsets
                )


# Reading exactly the messages of an offset range, as raw stored bytes in chunks. The one
# rule: the same range gives the same messages whenever it is read, or it says that it cannot:
# each is checked (its CRC), and each offset of the range must be there.
CHUNK_ROWS_MAX: Final = 10_000
CHUNK_SIZE_MAX: Final = 4 << 20
"""A chunk is handed on once it has this many messages or bytes: large enough to make vectors pay,
small enough for the JVM."""

PULLS_MAX: Final = 16
PULLED_ROWS_MAX: Final = 2048
"""So many pulls, or messages, are asked for at once."""


class DataLossError(ClientError):
    """Messages of an asked range are no longer (or not) in the broker, or are damaged."""


def read_range(cluster: Cluster, wanted: OffsetRange, options: ReadOptions) -> Iterator[bytearray]:
    """The stored messages from ``wanted.begin`` up to ``wanted.end``, back to back. The last chunk
    may hold a few beyond the end.

    The end is expected to have been seen already; a broker that does not show it within
    ``pull_timeout_ms`` counts as loss. Messages that are gone raise DataLossError, or are skipped
    with a warning where ``fail_on_data_loss`` is false.
    """
    chunk, rows, offset = bytearray(), 0, wanted.begin
    step, depth, fail = options.pull_batch_size, 1, options.fail_on_data_loss
    while offset < wanted.end:
        # A broker gives few messages per pull (Apache's 32), but it says which come next: so one
        # pull finds out how many, and then several go out together, each for as many. Those behind
        # one that falls short do not join on, and are asked again.
        begins = range(offset, wanted.end, step)[:depth]
        asked = [(begin, min(step, wanted.end - begin)) for begin in begins]
        answers = cluster.start_pull(wanted.queue, asked, hold_ms=options.pull_timeout_ms)
        if len(chunk) >= CHUNK_SIZE_MAX or rows >= CHUNK_ROWS_MAX:
            yield chunk  # it is decoded while the broker answers
            chunk, rows = bytearray(), 0
        for begin, answer in zip(begins, answers(), strict=True):
            if begin != offset:
                break
            reply = answer.header(PullMessageReply)
            if answer.code == ResponseCode.SUCCESS and reply.next_begin_offset > offset:
                chunk += _whole(wanted, offset, reply.next_begin_offset, answer.body, fail)
                offset = reply.next_begin_offset
            else:
                offset = _after_gap(wanted, offset, reply, fail)
            given = offset - begin
        rows += offset - begins[0]
        if (
            len(chunk) >= CHUNK_SIZE_MAX or rows >= CHUNK_ROWS_MAX
        ) and step < options.pull_batch_size:
            step, depth = options.pull_batch_size, 1  # it may give more by now
        elif offset < begins[-1] + step and depth > 1:
            step, depth = min(given, step), depth // 2
        else:
            step = min(given, step)
            depth = max(1, min(PULLS_MAX, PULLED_ROWS_MAX // step))
    if chunk:
        yield chunk


def _whole(wanted: OffsetRange, begin: int, end: int, body: bytes, fail: bool) -> bytes:
    """The good messages of an answer that should hold those from ``begin`` to ``end``; what else
    should be there is loss."""
    positions, good_end = good_positions(body)
    if good_end == len(body) and len(positions) == 8 * (end - begin):
        return body
    damaged: list[DamagedEntry] = []
    entries = list(good_entries(body, damaged.append))
    wrapped = any(is_wrapped(entry[39]) for entry in entries)
    if not damaged and not wrapped and len(entries) == end - begin:
        return body
    there = {int.from_bytes(one[20:28]) for entry in entries for one in unwrapped(entry)}
    missing = [offset for offset in range(begin, min(end, wanted.end)) if offset not in there]
    if missing:
        cause = damaged[0].fault if damaged else "the broker has passed them over: its log says why"
        _lose(
            fail,
            f"{wanted.queue}: damaged in the broker's store: offsets "
            f"{', '.join(map(str, missing))} ({cause})",
            ". Set the option failOnDataLoss to false to go on without them",
            "skipped",
        )
    return b"".join(entries)


def _after_gap(wanted: OffsetRange, offset: int, reply: PullMessageReply, fail: bool) -> int:
    """Where to go on when there is nothing at an offset: 19 nothing yet, 20 all of it removed, 21
    outside the queue."""
    go_on = max(reply.next_begin_offset, reply.min_offset)
    if go_on <= offset:
        go_on = wanted.end
    _lose(
        fail,
        f"{wanted.queue}: messages {offset} to {min(go_on, wanted.end) - 1} of the asked "
        f"{wanted.begin} to {wanted.end - 1} are not there: "
        f"the queue now holds {reply.min_offset} to {reply.max_offset - 1}",
        ". They were deleted (retention), or the topic or broker was made anew. Set the option "
        "failOnDataLoss to false to go on without them, or give startingOffsets that exist (and "
        "a new checkpoint)",
        "skipped",
    )
    return go_on


def _lose(fail: bool, what: str, advice: str, instead: str) -> None:
    if fail:
        raise DataLossError(f"{what}{advice}")
    _log.warning("%s; %s, as failOnDataLoss is false", what, instead)
