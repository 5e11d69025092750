"""Work of one reading task: yielding the rows in given ranges of queues.

A task needs only its ranges and options, and leaves only open connections behind. Spark's classes
are unknown here, except for ``InputPartition``.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from turbopump.errors import DataLossError, ResponseError, RouteNotFoundError, StoredMessageError
from turbopump.message.batch import Unpacking, inner_count, is_wrapped
from turbopump.message.codec import decode_entry
from turbopump.message.entry import FLAG_BITS_AT, queue_offset_of
from turbopump.message.pulled import DamagedEntry, good_positions, pulled_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.spark.arrow_arrays import text_array
from turbopump.spark.cluster import EVERY_MESSAGE, READING_PATIENCE_S, Cluster, PullFilter
from turbopump.spark.decode import decode
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import BODY_FAULT, ReadOptions
from turbopump.spark.plain_errors import hidden_traceback

_log = logging.getLogger(__name__)


class RangesPartition(InputPartition):
    """Input of one Spark task: ranges of queues, to be read one after the other.

    The list may be empty, because PySpark replaces an empty list of partitions by one of its own.
    ``tags`` are the tags in Spark's filters, in addition to the option; None means all.
    """

    def __init__(self, ranges: list[OffsetRange], tags: frozenset[str] | None = None) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.tags = tags


def connected(
    options: ReadOptions,
    *,
    patience: float = READING_PATIENCE_S,
    broker_patience: float | None = None,
) -> Cluster:
    """Return a client for the cluster that the options name.

    ``patience`` and ``broker_patience`` have the meaning of the arguments of ``Cluster``.
    """
    return Cluster(
        options.name_servers,
        patience=patience,
        broker_patience=broker_patience,
        credentials=options.credentials,
        tls=options.tls,
    )


KEPT_S: Final = 30.0
"""Seconds for which connections stay open between tasks. Brokers and name servers close idle
connections after two minutes."""
_kept_clusters: dict[Hashable, tuple[Cluster, float]] = {}


@contextmanager
def connected_in_task(options: ReadOptions, *, kept: bool) -> Iterator[Cluster]:
    """Open a client of the cluster for one task, in the manner of ``connected``.

    With ``kept``, the connections stay open for the next task of this process. They are closed if
    this task fails or ends early. The next task asks for routes again.
    """
    # workers are forked
    key = os.getpid(), options.name_servers, options.credentials, options.tls
    cluster, until = _kept_clusters.pop(key, (None, 0.0))
    if cluster is not None and time.monotonic() > until:
        cluster.close()
        cluster = None
    cluster = cluster or connected(options)
    cluster.forget_routes()
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    if kept:
        _kept_clusters[key] = cluster, time.monotonic() + KEPT_S
    else:
        cluster.close()


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one Spark task as record batches. The options select the columns.

    If brokers filter by the tags in Spark's filters, there may be a few other rows. Spark removes
    these rows.
    """
    assert isinstance(partition, RangesPartition)
    keep_what_is_loaded()
    tags = frozenset(options.tags)
    if partition.tags is not None:
        tags = (tags or partition.tags) & partition.tags
        if not tags:
            return iter(())
    return read_ranges(partition.ranges, options, tags)


def keep_what_is_loaded() -> None:
    """Exclude the loaded modules from garbage collection.

    Spark's Python worker collects garbage after each task. With all modules, this takes 30 ms, as
    long as reading 20,000 messages.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


def read_ranges(
    ranges: Iterable[OffsetRange], options: ReadOptions, tags: frozenset[str] = frozenset()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in these ranges of queues as record batches. The options select the columns.

    With ``tags``, only rows with one of these tags are read. Otherwise only rows that match the SQL
    filter are read, if the options have one.
    """
    wanted = EVERY_MESSAGE
    columns = options.columns
    says_fault = "body" in columns and BODY_FAULT not in columns
    if says_fault:
        columns = (*columns, BODY_FAULT)
    if tags:
        wanted = PullFilter(" || ".join(sorted(tags)))
        if "tags" not in columns:
            columns = (*columns, "tags")
    elif options.sql_filter is not None:
        wanted = PullFilter(options.sql_filter, "SQL92")
    is_task = TaskContext.get() is not None
    with hidden_traceback(), connected_in_task(options, kept=is_task) as cluster:
        for part in ranges:
            broker = part.queue.broker_name
            offsets = range(part.begin, part.end)
            for chunk in _read_unless_gone(cluster, part, options, wanted):
                for batch in decode(chunk, broker, columns, queue_offsets=offsets):
                    if says_fault:
                        _warn_of_faults(batch, part)
                    if tags:
                        batch = _rows_with_tags(batch, tags)
                    yield batch.select(options.columns)


def _warn_of_faults(batch: pa.RecordBatch, part: OffsetRange) -> None:
    """Log a warning if bodies of a batch cannot be read.

    This is for reads without the column that marks these rows.
    """
    faults = batch.column(BODY_FAULT)
    count = len(faults) - faults.null_count
    if count:
        first = next(fault for fault in faults.to_pylist() if fault is not None)
        _log.warning(
            "%s: %d of the bodies of offsets %d to %d cannot be read (%s); their rows "
"have the stored bytes, and the column %s marks them",
            part.queue, count, part.begin, part.end - 1, first, BODY_FAULT,
        )  # fmt: skip


def _read_unless_gone(
    cluster: Cluster, part: OffsetRange, options: ReadOptions, wanted: PullFilter
) -> Iterator[bytearray]:
    """Read a range of a queue with ``read_range``, but allow that the topic is deleted meanwhile.

    If the topic was deleted after planning and ``fail_on_data_loss`` is false, the range ends
    there.
    """
    try:
        yield from read_range(cluster, part, options, wanted)
    except (RouteNotFoundError, ResponseError) as error:
        if options.fail_on_data_loss or not _is_gone(cluster, part.queue.topic):
            raise
        report_loss(False, str(error), "", f"the rest of {part.queue} is skipped")


def _is_gone(cluster: Cluster, topic: str) -> bool:
    try:
        cluster.queues(topic)
    except RouteNotFoundError:
        return True
    return False


def _rows_with_tags(batch: pa.RecordBatch, tags: frozenset[str]) -> pa.RecordBatch:
    """Keep those rows of a batch whose tag is one of ``tags``.

    Brokers compare only hashes of tags, so an answer may also have messages with other tags.
    """
    import pyarrow.compute as pc  # 50 ms; planning and most reads do not need it

    return batch.filter(pc.is_in(batch.column("tags"), value_set=text_array(sorted(tags))))


# Reading of the messages of an offset range, as raw stored bytes in chunks. The rule: repeated
# reads of a range return the same messages or fail. The CRC of each message is checked, and each
# offset of the range must be present.
CHUNK_ROWS_MAX: Final = 10_000
CHUNK_SIZE_MAX: Final = 4 << 20
"""Maximum size of a chunk in bytes; ``CHUNK_ROWS_MAX`` messages is the other limit. The size is
large enough for fast vector code, and small enough for the JVM."""

PULLS_MAX: Final = 16
PULLED_ROWS_MAX: Final = 2048
"""Maximum number of messages requested at once, in at most ``PULLS_MAX`` pulls."""


def read_range(
    cluster: Cluster,
    wanted: OffsetRange,
    options: ReadOptions,
    messages: PullFilter = EVERY_MESSAGE,
) -> Iterator[bytearray]:
    """Read the stored messages of a range of a queue, and yield their bytes in chunks.

    ``messages`` is the filter that brokers apply. The last chunk may have a few messages after the
    end of the range.

    The end was already seen at planning. If a broker does not have this offset within
    ``pull_timeout_ms``, the messages count as lost. Lost messages raise DataLossError. If
    ``fail_on_data_loss`` is false, they are skipped with a warning.
    """
    if messages != EVERY_MESSAGE:
        yield from _read_filtered(cluster, wanted, options, messages)
        return
    chunk = bytearray()
    rows = 0
    offset = wanted.begin
    step = options.pull_batch_size
    depth = 1
    fail = options.fail_on_data_loss
    while offset < wanted.end:
        # A broker returns few messages per pull (Apache's 32), and the next offset. The first pull
        # finds out how many. Then several pulls are sent together, each for this many. If one
        # returns fewer, the answers behind it leave a gap, and these pulls are sent again.
        begins = range(offset, wanted.end, step)[:depth]
        asked = [(begin, min(step, wanted.end - begin)) for begin in begins]
        answers = cluster.start_pull(wanted.queue, asked, hold_ms=options.pull_timeout_ms)
        if _is_full(chunk, rows):
            yield chunk  # Spark decodes it while the broker answers
            chunk, rows = bytearray(), 0
        for begin, answer in zip(begins, answers(), strict=True):
            if begin != offset:
                break
            reply = answer.header(PullMessageReply)
            if answer.code == ResponseCode.SUCCESS and reply.next_begin_offset > offset:
                chunk += _good_messages(wanted, offset, reply.next_begin_offset, answer.body, fail)
                offset = reply.next_begin_offset
            else:
                offset = _after_gap(wanted, offset, reply, fail)
            given = offset - begin
        rows += offset - begins[0]
        if _is_full(chunk, rows) and step < options.pull_batch_size:
            step = options.pull_batch_size  # the broker may return more now
            depth = 1
        elif offset < begins[-1] + step and depth > 1:
            step = min(given, step)
            depth //= 2
        else:
            step = min(given, step)
            depth = max(1, min(PULLS_MAX, PULLED_ROWS_MAX // step))
    if chunk:
        yield chunk


def _is_full(chunk: bytearray, rows: int) -> bool:
    return len(chunk) >= CHUNK_SIZE_MAX or rows >= CHUNK_ROWS_MAX


def _read_filtered(
    cluster: Cluster, wanted: OffsetRange, options: ReadOptions, messages: PullFilter
) -> Iterator[bytearray]:
    """Read a range of a queue while the broker filters messages. Otherwise do the same as
    ``read_range``.

    Only the ``nextBeginOffset`` of an answer tells which offsets the broker has handled, so one
    pull is sent at a time. A range is complete when these offsets have covered it without a gap. A
    message that the broker skips because its store is damaged is not noticed here: it looks like a
    filtered one.
    """
    chunk = bytearray()
    rows = 0
    offset = wanted.begin
    while offset < wanted.end:
        count = min(options.pull_batch_size, wanted.end - offset)
        answers = cluster.start_pull(
            wanted.queue, [(offset, count)], hold_ms=options.pull_timeout_ms, wanted=messages
        )
        if _is_full(chunk, rows):
            yield chunk  # Spark decodes it while the broker answers
            chunk, rows = bytearray(), 0
        (answer,) = answers()
        reply = answer.header(PullMessageReply)
        if _is_gap(answer, reply, offset):
            offset = _after_gap(wanted, offset, reply, options.fail_on_data_loss)
        else:
            body, count = _undamaged_messages(wanted, answer.body, options.fail_on_data_loss)
            chunk += body
            rows += count
            offset = reply.next_begin_offset
    if chunk:
        yield chunk


def _is_gap(answer: Command, reply: PullMessageReply, offset: int) -> bool:
    """Return True if the answer to a filtered pull skips offsets, but not because of the filter."""
    if reply.next_begin_offset <= offset or reply.min_offset > offset:
        return True
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        # RocketMQ: the same code also means that the messages are being deleted.
        return answer.remark == "MESSAGE_WAS_REMOVING"
    return answer.code != ResponseCode.SUCCESS


def _all_good(body: bytes) -> int | None:
    """Count the messages in an answer, if all of them are valid, as is usual.

    The result is None if a message is damaged or an inner batch. The check takes about 0.04 µs per
    100 bytes.
    """
    positions, end = good_positions(body)
    return len(positions) // 8 if end == len(body) else None


def _undamaged_messages(wanted: OffsetRange, body: bytes, fail: bool) -> tuple[bytes, int]:
    """Return the valid messages in an answer to a filtered pull. Also return their number.

    A damaged message counts as lost.
    """
    good = _all_good(body)
    if good is not None:
        return body, good
    damaged: list[DamagedEntry] = []
    entries = list(pulled_entries(body, damaged.append))
    if damaged:
        report_loss(
            fail,
            f"{wanted.queue}: damaged in the broker's store: offset {damaged[0].queue_offset} or "
            f"near it ({damaged[0].fault})",
            ". Set the option failOnDataLoss to false to continue without it",
            "skipped",
        )
    return b"".join(entries), len(entries)


_NAMED_MAX: Final = 10
"""Maximum number of lost offsets listed for one answer."""


def _good_messages(wanted: OffsetRange, begin: int, end: int, body: bytes, fail: bool) -> bytes:
    """Return the valid messages in an answer. All offsets from ``begin`` to ``end`` are expected.

    Missing offsets count as lost.
    """
    if _all_good(body) == end - begin:
        return body
    damaged: list[DamagedEntry] = []
    entries = list(pulled_entries(body, damaged.append))
    wrapped = any(is_wrapped(entry[FLAG_BITS_AT]) for entry in entries)
    if not damaged and not wrapped and len(entries) == end - begin:
        return body
    unpacking = Unpacking()
    # the end comes from the broker, and may be after the wanted range
    asked = range(begin, min(end, wanted.end))
    there = {
        offset for entry in entries for offset in _offsets_of(entry, unpacking) if offset in asked
    }
    count = len(asked) - len(there)
    if count:
        absent = (offset for offset in asked if offset not in there)
        named = ", ".join(map(str, islice(absent, _NAMED_MAX)))
        more = f" and {count - _NAMED_MAX} more" if count > _NAMED_MAX else ""
        cause = "the broker has skipped them: read the reason in its log"
        if damaged:
            cause = damaged[0].fault
        report_loss(
            fail,
            f"{wanted.queue}: damaged in the broker's store: offsets {named}{more} ({cause})",
            ". Set the option failOnDataLoss to false to continue without them",
            "skipped",
        )
    return b"".join(entries)


def _offsets_of(entry: bytes, unpacking: Unpacking) -> range:
    """Return the queue offsets of a stored entry. An inner batch has several."""
    first = queue_offset_of(entry)
    count = None
    if is_wrapped(entry[FLAG_BITS_AT]):
        with suppress(StoredMessageError):
            count = inner_count(decode_entry(entry, check_crc=False).properties_text)
            count = count or len(unpacking.entries(entry))
    return range(first, first + (count or 1))


def _after_gap(wanted: OffsetRange, offset: int, reply: PullMessageReply, fail: bool) -> int:
    """Report lost messages. Return the offset at which the read continues.

    The broker has answered a pull at ``offset`` with code 19 (not stored yet), 20 (the whole queue
    was removed) or 21 (outside the queue).
    """
    go_on = max(reply.next_begin_offset, reply.min_offset)
    if go_on <= offset:
        go_on = wanted.end
    report_loss(
        fail,
        f"{wanted.queue}: messages {offset} to {min(go_on, wanted.end) - 1} of the asked "
        f"{wanted.begin} to {wanted.end - 1} are not there: "
        f"the queue now holds {reply.min_offset} to {reply.max_offset - 1}",
        ". They were deleted (retention), or the topic or broker was deleted and made "
        "again. Set the option failOnDataLoss to false to continue without them, or give "
        "startingOffsets that exist (and a new checkpoint)",
        "skipped",
    )
    return go_on


def report_loss(fail: bool, what: str, advice: str, instead: str) -> None:
    """Raise DataLossError for lost messages. If the user allows losses, log a warning instead.

    The text of the error is ``what`` and ``advice``. The text of the warning is ``what`` and
    ``instead``, which says what happens after the loss.
    """
    if fail:
        raise DataLossError(f"{what}{advice}")
    _log.warning("%s; %s, as failOnDataLoss is false", what, instead)
