"""Writes of rows to topics, for ``df.write.format("rocketmq")`` and ``writeStream``.

The main thread of a task receives record batches from Spark and encodes them. The event loop of the
blocking clients sends many requests at a time. The main thread waits when too many requests are
pending.

The rule: a row counts as sent when a broker has confirmed it. A task that cannot send all rows
fails, with the first unsent row and the number of sent rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from turbopump.client.environment import SYSTEM_CLOCK, Environment
from turbopump.client.loop_thread import the_loop_thread
from turbopump.client.producer import Producer
from turbopump.client.sending.outgoing import Outgoing
from turbopump.client.sending.send_attempts import deliver
from turbopump.client.sending.send_result import SendResult
from turbopump.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectionLostError,
    RouteNotFoundError,
    SendError,
    WriteError,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import TEMPORARY_REFUSALS, ResponseCode
from turbopump.spark.arrow_arrays import Mask
from turbopump.spark.encode import (
    Encoded,
    PackedRows,
    RowError,
    encode,
    pack_rows,
    take_present,
    unique_ids,
)
from turbopump.spark.plain_errors import hidden_traceback
from turbopump.spark.read_back import Planned, ReadBack, SentKeys, TaskAttempt, attempt_of
from turbopump.spark.reading import keep_what_is_loaded
from turbopump.spark.write_options import Layout, WriteOptions

_log = logging.getLogger(__name__)

PARCEL_SIZE_MAX: Final = 512 << 10
"""Maximum bytes of a batch with several rows. Brokers accept 4 MiB."""
ENCODED_SIZE_MAX: Final = 64 << 20
"""Maximum bytes of a record batch that is encoded at once. A larger batch is encoded in parts."""
ATTEMPT_S: Final = 10.0
ROUTE_PATIENCE_S: Final = 10.0
SETTLE_S: Final = 3.0
"""Seconds to wait after a lost answer. A message that is not in its queue then will not be stored
any more."""
PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Result of one writing task.

    - ``rows``: number of rows sent.
    - ``skipped``: number of rows that were stored already.
    - ``twice``: number of rows stored twice, because an older attempt was still running.
    """

    partition: int
    rows: int
    skipped: int = 0
    twice: int = 0


class BatchWriter(DataSourceArrowWriter):
    """Spark writer for ``df.write.format("rocketmq").mode("append")``."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._planned = Planned(uuid4().hex[:16], SYSTEM_CLOCK.now_ms())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        keep_what_is_loaded()
        with hidden_traceback():
            now_ms = SYSTEM_CLOCK.now_ms()
            attempt = attempt_of(TaskContext.get(), self._options, self._planned, now_ms)
            return write_task(iterator, self._options, self._layout, attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the rows that an earlier attempt had already stored. Otherwise a commit changes
        nothing."""
        _log_resent_rows(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that the write has failed. Rows already sent stay stored."""
        _log.warning("the write failed; %d of its rows are stored", _count_rows(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark writer for ``df.writeStream.format("rocketmq")``."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._batches = BatchWriter(options, layout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._batches.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the rows that an earlier attempt had already stored. Otherwise a commit changes
        nothing."""
        _log_resent_rows(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that the micro-batch has failed. Rows already sent stay stored."""
        _log.warning("batch %d failed; %d of its rows are stored", batchId, _count_rows(messages))


def _count_rows(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(one.rows for one in messages if isinstance(one, Written))


def _log_resent_rows(messages: Sequence[WriterCommitMessage | None]) -> None:
    for one in messages:
        if isinstance(one, Written) and one.skipped:
            text = "task %d sent %d rows; an earlier attempt had already stored %d more"
            _log.warning(text, one.partition, one.rows, one.skipped)
        if isinstance(one, Written) and one.twice:
            text = "task %d: %d rows are stored twice, because an older attempt was still sending"
            _log.warning(text, one.partition, one.twice)


def refuse_overwrite() -> ConfigError:
    """Return the error for a write in overwrite mode. Existing messages cannot be replaced."""
    return ConfigError(
        'a topic is only appended to: use mode("append"), in a stream outputMode("append")'
    )


def write_task(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, layout: Layout, attempt: TaskAttempt
) -> Written:
    """Send all rows of one Spark task, and return their number.

    Raises WriteError if a row cannot be sent, or RouteNotFoundError if a topic has no route.
    """
    with Outbox(options, attempt) as outbox:
        for batch in batches:
            for part in parts(batch):
                outbox.send_rows(part, layout)
        outbox.finish()
        twice = outbox.count_duplicates()
    return Written(attempt.partition, outbox.stored, outbox.skipped, twice)


def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice a record batch, so that the encoded rows of each slice have a limited size."""
    count = -(-batch.nbytes // ENCODED_SIZE_MAX)
    step = max(1, -(-batch.num_rows // max(count, 1)))
    for begin in range(0, batch.num_rows, step):
        yield batch.slice(begin, step)


class PackedProducer(Producer):
    """Producer for messages that are already encoded."""

    async def deliver(self, outgoing: Outgoing, queue: MessageQueue, timeout: float) -> SendResult:
        """Send an encoded message to a queue once, without retries.

        Raises the errors of ``send``.
        """
        return await deliver(self._ready(), outgoing, queue, timeout)


@dataclass(eq=False)
class Outbox:
    """Sender of the rows of one task. Use it as a context manager, on one thread.

    No request is pending when the block ends.
    """

    options: WriteOptions
    attempt: TaskAttempt
    stored: int = 0
    """Number of rows that brokers have confirmed."""
    skipped: int = 0
    """Number of rows that were already stored."""
    _rows_taken: int = 0
    _failure: tuple[int, str, Exception] | None = None
    _in_doubt: int = 0

    def __post_init__(self) -> None:
        self._loop = the_loop_thread()
        self._permits = threading.Semaphore(self.options.in_flight_max)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._keyed = self.options.idempotency_key is not None
        self._read_back = ReadBack(self.options, self.attempt)
        self._found: dict[str, SentKeys] = {}
        self._sent_to: dict[MessageQueue, int] = {}
        self._queue_locks: dict[MessageQueue, asyncio.Lock] = {}
        self._next_index = random.randrange(1 << 16)
        self._new_ids = partial(unique_ids, Environment().unique_ids())
        self._producer = PackedProducer(
            list(self.options.name_servers),
            group=self.options.producer_group,
            credentials=self.options.credentials,
            tls=self.options.tls or False,
            retries=0,
            attempt_timeout=None,
        )

    def __enter__(self) -> Outbox:
        self._loop.call(self._producer.start)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._failure is None:
            self._failure = self._rows_taken, "the task ended", RuntimeError("the task ended")
        self._wait_for_requests()
        self._loop.call(self._producer.close)

    def send_rows(self, batch: pa.RecordBatch, layout: Layout) -> None:
        """Send the rows of a record batch, without waiting for the last answers.

        Raises WriteError for the first row of the task that could not be sent.
        """
        self._raise_failure()
        mark = self.attempt.mark if self._keyed else None
        try:
            encoded = encode(batch, layout, self.queues, self._new_ids, mark)
        except RowError as error:
            self._wait_for_requests()
            self._raise_failure()
            raise self._write_error(self._rows_taken + error.row, str(error)) from None
        for packed in self._packed_rows(encoded):
            self._permits.acquire()
            if self._failure is not None:
                self._permits.release()
                break
            asyncio.run_coroutine_threadsafe(
                self._send_packed(packed, self._rows_taken), self._loop.loop
            )
        self._rows_taken += batch.num_rows

    def finish(self) -> None:
        """Wait for the answers to all requests.

        Raises WriteError if a row could not be sent.
        """
        self._wait_for_requests()
        self._raise_failure()

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that can get rows for a topic.

        Raises RouteNotFoundError if the topic has no route.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._loop.call(self._find_queues, topic)
            if self._keyed:
                self._found[topic] = self._find_sent_keys(topic)
            self._queues[topic] = found
        return found

    def _find_sent_keys(self, topic: str) -> SentKeys:
        try:
            return self._read_back.find_sent_keys(topic)
        except RouteNotFoundError:  # the broker creates the topic with its first message
            return SentKeys()

    def count_duplicates(self) -> int:
        """Count the rows that are stored twice, because an older attempt was still sending."""
        found = [one for one in self._found.values() if one.again or self.attempt.number]
        return sum(self._read_back.stray_keys(one).total() for one in found)

    def _packed_rows(self, encoded: Encoded) -> list[PackedRows]:
        rows_max = self.options.batch_rows_max
        free = sum(len(self.queues(topic)) for topic in encoded.topics)
        # spread also a few rows over all queues
        spread = max(1, min(rows_max, -(-len(encoded) // free)))
        return pack_rows(
            encoded,
            self.queues,
            rows_max=spread,
            size_max=PARCEL_SIZE_MAX,
            keep=self._mask_absent(encoded),
        )

    def _mask_absent(self, encoded: Encoded) -> Mask | None:
        """Return a mask of the rows that their topic lacks. Return None if all rows are new."""
        if encoded.keys is None or not any(one.ids for one in self._found.values()):
            return None
        there = np.zeros(len(encoded), np.bool_)
        for number, topic in enumerate(encoded.topics):
            rows = np.flatnonzero(encoded.topic_of == number)
            keys = encoded.keys.take(pa.array(rows))
            there[rows] = take_present(keys, self._found[topic].ids)
        self.skipped += int(there.sum())
        return ~there

    def _wait_for_requests(self) -> None:
        for _ in range(self.options.in_flight_max):
            self._permits.acquire()
        self._permits.release(self.options.in_flight_max)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._wait_for_requests()
            row, why, error = self._failure
            raise self._write_error(row, why) from error

    def _write_error(self, row: int, why: str) -> WriteError:
        doubt = f", {self._in_doubt} may be" if self._in_doubt else ""
        return WriteError(
            f"row {row} of {self.attempt.who}, was not sent: {why} ({self.stored} rows of this "
            f"task are stored{doubt})"
        )

    # --- code that runs in the event loop

    async def _find_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic. If there are none, wait for them.

        While a broker restarts, it is missing in the route for a moment.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + min(self.options.send_timeout_ms / 1000, ROUTE_PATIENCE_S)
        while True:
            try:
                return await self._producer.publish_queues(topic)
            except RouteNotFoundError:
                if now() + PAUSES_S[0] > deadline:
                    raise
            await asyncio.sleep(PAUSES_S[0])

    async def _send_packed(self, packed: PackedRows, first_row: int) -> None:
        """Send rows in one request, after all earlier rows for the same queue.

        Rows without a queue do not wait for other rows. Errors are not raised but stored:
        ``_failure`` has the first row that could not be sent.
        """
        try:
            if packed.queue is None:
                await self._until_stored(packed, first_row)
            else:
                async with self._queue_locks.setdefault(packed.queue, asyncio.Lock()):
                    await self._until_stored(packed, first_row)
        except Exception as error:
            self._record_failure(first_row + int(packed.rows[0]), str(error), error)
        finally:
            self._permits.release()

    def _record_failure(self, row: int, why: str, error: Exception) -> None:
        if self._failure is None or row < self._failure[0]:
            self._failure = row, why, error

    async def _until_stored(self, packed: PackedRows, first_row: int) -> None:
        """Send rows until they are stored, or until an error is final. After other errors, send
        them again.

        If a broker refuses the content of one row, the rows are halved until that row is found.
        """
        # A lost answer leaves the rows in doubt: the broker may have stored them. With idempotency
        # keys, the queue is read from ``begin`` on, and only the absent rows are sent again.
        # ``begin`` is taken before the request: a later end of the queue could lie behind the rows
        # in doubt, and they would be sent twice. Without keys, the rows are sent again as they are,
        # and ``in_doubt`` says so if the task fails.
        now = asyncio.get_running_loop().time
        deadline = now() + self.options.send_timeout_ms / 1000
        attempt = 0
        in_doubt = False
        failed: Exception | None = None
        while self._failure is None:
            queue = packed.queue or self._next_queue(packed.topic)
            left = deadline - now()
            if left <= 0 and failed is not None:
                if in_doubt:
                    self._in_doubt += len(packed)
                self._record_failure(first_row + int(packed.rows[0]), str(failed), failed)
                return
            begin = self._search_start(queue)
            try:
                result = await self._producer.deliver(
                    _outgoing(packed), queue, min(left, ATTEMPT_S)
                )
            except (SendError, RouteNotFoundError) as error:
                if len(packed) > 1 and is_rows_fault(error):
                    middle = len(packed) // 2
                    await self._until_stored(packed.part(0, middle), first_row)
                    await self._until_stored(packed.part(middle, len(packed)), first_row)
                    return
                failed = error
                doubtful = may_be_stored(error)
                pause = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
                if not passes(error) or attempt >= self.options.retries or left <= pause:
                    if in_doubt or doubtful:
                        self._in_doubt += len(packed)
                    self._record_failure(first_row + int(packed.rows[0]), str(error), error)
                    return
                attempt += 1
                if doubtful and self._keyed:
                    remaining = await self._drop_present(packed, queue, begin)
                    if remaining is None:
                        self.stored += len(packed)
                        return
                    self.stored += len(packed) - len(remaining)
                    packed = remaining
                else:
                    in_doubt |= doubtful
                    await asyncio.sleep(pause)
            else:
                self.stored += len(packed)
                if self._keyed:
                    end = result.queue_offset + len(packed)
                    self._sent_to[queue] = max(end, self._sent_to.get(queue, 0))
                return

    def _search_start(self, queue: MessageQueue) -> int:
        """Return the offset at which a search of a queue must begin.

        All rows that this task sends next to the queue will be at this offset or later.
        """
        found = self._found.get(queue.topic)
        return self._sent_to.get(queue) or (0 if found is None else found.read_to.get(queue, 0))

    async def _drop_present(
        self, packed: PackedRows, queue: MessageQueue, begin: int
    ) -> PackedRows | None:
        """Remove the rows that a queue already has, after a lost answer. Return the other rows.

        The queue is read from offset ``begin`` on. The result is None if the queue has all rows.
        """
        await asyncio.sleep(SETTLE_S)
        try:
            present = await asyncio.to_thread(self._read_back.own_keys, queue, begin)
        except Exception:
            self._in_doubt += len(packed)
            raise
        return packed.without(present)

    def _next_queue(self, topic: str) -> MessageQueue:
        choice = self._queues[topic]
        self._next_index += 1
        return choice[self._next_index % len(choice)]


def _outgoing(packed: PackedRows) -> Outgoing:
    if packed.single is not None:
        text, body, flag = packed.single
        return Outgoing(packed.topic, body, text, 0, flag, "of a row")
    items = packed.items[: int(packed.ends[-1])]
    count = f"of {len(packed)} rows"
    return Outgoing(packed.topic, bytes(items), "", 0, 0, count, (count,))


def is_rows_fault(error: Exception) -> bool:
    """Return True if a broker refused a message because of its content.

    Other rows of the request may then succeed.
    """
    return isinstance(error, SendError) and error.code == ResponseCode.MESSAGE_ILLEGAL


def may_be_stored(error: Exception) -> bool:
    """Return True if the broker may have stored the message despite the error."""
    return isinstance(error.__cause__, CallTimeoutError | ConnectionLostError)


def passes(error: Exception) -> bool:
    """Return True for a temporary error: the same send may succeed later.

    A broker may be busy, offline, or restarting.
    """
    return (
        not isinstance(error, SendError) or error.code is None or error.code in TEMPORARY_REFUSALS
    )
