"""Automatic batching of messages of the same kind that are sent within a few milliseconds.

A batch is sent in one request, and each message gets its own result. One rule: only messages that
may share a batch are sent together, so results and errors are those of a single send. If one
message's timeout ends first, only that message fails.

Source: apache/rocketmq ``ProduceAccumulator``. Unlike there, no message waits while no batch of the
same kind is in flight. A lone sender therefore loses no time, and 64 senders that await results are
not limited to 64 messages per 10 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from turbopump.client.sending.outgoing import DELAYING, BatchPart, NotedFrames
from turbopump.client.sending.send_result import SendResult, SendStatistics, no_queue, no_time
from turbopump.client.setting_rules import (
    BYTES,
    SettingRule,
    check_settings,
    is_seconds,
    setting,
    whole_between,
)
from turbopump.errors import SendError
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import PROPERTIES_SIZE_MAX
from turbopump.message.rules import RETRY_PREFIX

HOLD_S_MAX: Final = 30.0
SIZE_MAX: Final = 2 * 1024 * 1024
TURN_AFTER: Final = 64
"""Number of added messages after which the caller lets the loop run, even if no batch is full."""
ALIKE: Final = 0.02
"""Tolerance for treating deadlines as equal, as a share of the time left."""
LOOK_EVERY_S: Final = 0.005
"""Minimum seconds between two searches for expired messages in a batch."""
_HOLD: Final = SettingRule(
    lambda hold: is_seconds(hold) and hold <= HOLD_S_MAX,
    f"must be a number of seconds above 0 and at most {HOLD_S_MAX:g}",
    "s",
)
_SIZE: Final = SettingRule(
    whole_between(1, SIZE_MAX), f"must be a number of bytes above 0 and at most {SIZE_MAX}", "bytes"
)


@dataclass(frozen=True, slots=True)
class AutoBatch:
    """Limits of automatic batches.

    Messages wait while a batch of the same kind is in flight, and are sent together after that.
    Raises ConfigError for values that Apache's accumulator refuses too.
    """

    hold: float = setting(0.01, _HOLD)
    """Maximum time in seconds for which a message waits for others. Java: ``batchMaxDelayMs``."""
    size: int = setting(32 * 1024, _SIZE)
    """Size in bytes at which a batch is sent. Java: ``batchMaxBytes``."""
    total_size: int = setting(32 * 1024 * 1024, BYTES)
    """Maximum number of bytes that wait. Further messages are sent at once. Java:
    ``totalBatchMaxBytes``."""

    def __post_init__(self) -> None:
        check_settings(self)


SendBatch = Callable[[Sequence[BatchPart], MessageQueue | None, bool, float], Awaitable[SendResult]]
BatchKey = tuple[str, MessageQueue | None, str | None, object]


class _UnsentMessage(msgspec.Struct, frozen=True):
    """Message that waits to be sent in a batch.

    The message is already encoded, because the user may change the ``Message`` meanwhile.
    """

    piece: BatchPart
    future: asyncio.Future[SendResult]
    deadline: float
    timeout: float


@dataclass(slots=True, eq=False)
class _GatheredBatch:
    waiting: list[_UnsentMessage] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Names of the brokers to which the batch was sent so far."""
    size: int = 0
    timer: asyncio.Handle | None = None
    deadline: float = inf
    """Deadline of the batch once it is sent. ``expiry`` ends messages with an earlier deadline."""
    expiry: asyncio.TimerHandle | None = None
    expiry_at: float = inf


@dataclass(slots=True, eq=False)
class Accumulator:
    """Collector that combines messages of one producer into batches.

    All calls must come from one event loop. ``send_batch`` sends one batch as one request. A batch
    has at most ``size_max`` bytes, unless it is a single message.
    """

    settings: AutoBatch
    send_batch: SendBatch
    size_max: int
    statistics: SendStatistics
    _batches: dict[BatchKey, _GatheredBatch] = field(default_factory=dict)
    _under_way: dict[BatchKey, int] = field(default_factory=dict)
    _sending: set[asyncio.Task[None]] = field(default_factory=set)
    _held: int = 0
    _since_turn: int = 0
    _loop: asyncio.AbstractEventLoop | None = None

    def accepts(self, message: Message) -> bool:
        """Return True if the message may be part of a batch and there is room for it."""
        try:
            settings = self.settings
            properties = message.properties
            if self._held >= settings.total_size or not 0 < len(message.body) <= settings.size:
                return False
            if message.topic.startswith(RETRY_PREFIX):
                return False
            return not properties or (
                "TRAN_MSG" not in properties and not any(name in properties for name in DELAYING)
            )
        except (AttributeError, TypeError):
            return False  # the packer says what is wrong with it

    def add_message(
        self, message: Message, piece: BatchPart, queue: MessageQueue | None, timeout: float
    ) -> asyncio.Future[SendResult]:
        """Add a message to its batch, and return the future of the message's result. ``piece`` is
        the encoded message.

        ``put_piece`` has the details and errors.
        """
        return self.put_piece(batch_key(message, piece, queue), piece, timeout)

    def put_piece(
        self, key: BatchKey, piece: BatchPart, timeout: float
    ) -> asyncio.Future[SendResult]:
        """Add an encoded message to the batch of ``key``, and return the future of its result.

        The future fails after ``timeout`` seconds. Raises SendError if the time is already over,
        and TypeError if the queue is no MessageQueue.
        """
        if timeout <= 0:
            raise no_time(piece.msg_id, key[0], timeout)
        size = len(piece.entry)
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()  # in 3.11 it makes a system call
        try:
            batch = self._batches.get(key)
        except TypeError:
            raise no_queue(key[1]) from None
        if batch is not None and batch.size + size > self.size_max:
            self._send_gathered(key)
            batch = None
        if batch is None:
            batch = self._batches[key] = _GatheredBatch()
            if key in self._under_way:
                batch.timer = loop.call_later(self.settings.hold, self._send_gathered, key)
            else:
                batch.timer = loop.call_soon(
                    self._send_gathered, key
                )  # with whatever else this turn brings
        future: asyncio.Future[SendResult] = loop.create_future()
        deadline = loop.time() + timeout
        batch.waiting.append(_UnsentMessage(piece, future, deadline, timeout))
        batch.size += size
        if timeout <= self.settings.hold and deadline < batch.expiry_at:
            self._schedule_expiry(batch, key, deadline)  # it may run out of time while it is held
        self._held += size
        self._since_turn += 1
        if batch.size >= self.settings.size:
            self._send_gathered(key)
        return future

    def wants_a_turn(self) -> bool:
        """Return True if the caller should let the event loop run now.

        That is so after a batch is full, or after many messages were added.
        """
        if self._since_turn < TURN_AFTER:
            return False
        self._since_turn = 0
        return True

    async def flush(self) -> None:
        """Send all waiting messages, and wait for the batches in flight."""
        while self._batches or self._sending:
            for key in list(self._batches):
                self._send_gathered(key)
            await asyncio.wait(set(self._sending))

    def _send_gathered(self, key: BatchKey) -> None:
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        self._under_way[key] = self._under_way.get(key, 0) + 1
        self._since_turn = TURN_AFTER
        loop = asyncio.get_running_loop()
        deadlines = [one.deadline for one in batch.waiting]
        batch.deadline = until = shared_deadline(deadlines, loop.time())
        earliest = min(deadlines)
        if earliest < until and earliest < batch.expiry_at:
            self._schedule_expiry(batch, key, earliest)
        task = loop.create_task(self._deliver_batch(batch, key), name="turbopump batch")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver_batch(self, batch: _GatheredBatch, key: BatchKey) -> None:
        NotedFrames.notes.set(batch.asked)
        try:
            timeout = max(batch.deadline - asyncio.get_running_loop().time(), 0.001)
            pieces = [one.piece for one in batch.waiting]
            whole = await self.send_batch(pieces, key[1], key[2] != "false", timeout)
            results = each_result(whole, len(pieces))
        except Exception as error:
            for one in batch.waiting:
                if not one.future.done():
                    one.future.set_exception(error)
        else:
            for one, result in zip(batch.waiting, results, strict=True):
                if not one.future.done():
                    one.future.set_result(result)
        finally:
            if batch.expiry is not None:
                batch.expiry.cancel()
            self._held -= batch.size
            self._batch_ended(key)

    def _schedule_expiry(self, batch: _GatheredBatch, key: BatchKey, at: float) -> None:
        if batch.expiry is not None:
            batch.expiry.cancel()
        batch.expiry_at = at
        batch.expiry = asyncio.get_running_loop().call_at(at, self._fail_expired, batch, key)

    def _fail_expired(self, batch: _GatheredBatch, key: BatchKey) -> None:
        """Fail the messages of a batch that are past their own deadlines.

        Messages that still waited are removed from the batch and not sent.
        """
        # A batch has the deadline of its last message (``shared_deadline``), so that one hasty
        # message does not take the time of the others. Messages with an earlier deadline are ended
        # here. Before the batch is sent they are removed from it: nothing of them is stored, and
        # the error says so. Afterwards they stay in the batch, since its frame has them, and only
        # their future fails. A timer for every message would cost more than the batch saves, so one
        # timer waits for the earliest deadline and finds the next one here.
        now = asyncio.get_running_loop().time()
        held = batch.deadline == inf
        kept: list[_UnsentMessage] = []
        following = inf
        for one in batch.waiting:
            if one.deadline > now or one.deadline >= batch.deadline:
                kept.append(one)
                if not one.future.done() and one.deadline < min(following, batch.deadline):
                    following = one.deadline
                continue
            if held:
                batch.size -= len(one.piece.entry)
                self._held -= len(one.piece.entry)
            if not one.future.done():
                spent_ms = (now - one.deadline + one.timeout) * 1000
                error = overdue(key[0], one.piece.msg_id, batch.asked, spent_ms, held=held)
                one.future.set_exception(error)
                self.statistics.given_up += 1
        batch.expiry = None
        batch.expiry_at = inf
        if held:
            batch.waiting = kept
            if not kept:
                del self._batches[key]
                if batch.timer is not None:
                    batch.timer.cancel()
        if following < inf:
            self._schedule_expiry(batch, key, max(following, now + LOOK_EVERY_S))

    def _batch_ended(self, key: BatchKey) -> None:
        """Schedule the next batch of the same kind after a batch has ended.

        The next batch includes messages that senders add as soon as they get their results.
        """
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
            following = self._batches.get(key)
            if following is not None:
                if following.timer is not None:
                    following.timer.cancel()
                following.timer = asyncio.get_running_loop().call_soon(self._send_gathered, key)


def batch_key(message: Message, piece: BatchPart, queue: MessageQueue | None) -> BatchKey:
    """Return the values that all messages of a batch must share.

    These are topic, queue, waiting for the store, and tags.
    """
    properties = message.properties
    if not properties:
        return message.topic, queue, None, None
    if len(piece.entry) - len(message.body) > PROPERTIES_SIZE_MAX // 2:
        # sent alone: brokers add properties, and if there are too many, the whole batch fails
        return message.topic, queue, None, object()
    return message.topic, queue, properties.get("WAIT"), properties.get("TAGS")


def shared_deadline(deadlines: Sequence[float], now: float) -> float:
    """Return the deadline of a batch: roughly the latest deadline of its messages.

    The result is slightly earlier if other messages have nearly the same deadline.
    """
    earliest = min(deadlines)
    latest = max(deadlines)
    alike = latest - max(latest - now, 0.0) * ALIKE
    if earliest >= alike:
        return earliest
    return min(deadline for deadline in deadlines if deadline >= alike)


def overdue(
    topic: str, msg_id: str, asked: Sequence[str], spent_ms: float, *, held: bool
) -> SendError:
    """Return the error for a message that timed out earlier than its batch."""
    text = f"message {msg_id[:80]} to topic {topic!r} was not "
    if held:
        text += (
            "sent: its time was up while it was held for a batch. Nothing was stored; give it "
            "more seconds, or hold batches for less"
        )
    else:
        text += (
            f"acknowledged: no answer within its timeout, {spent_ms:.0f} ms (asked: "
            f"{', '.join(asked) or 'no broker yet'}). Its batch is still being sent, so the "
            "message may be stored nevertheless. Check the broker's load and disk, or set a longer "
            "send_timeout"
        )
    return SendError(text, topic=topic, brokers=tuple(asked), spent_ms=spent_ms)


def each_result(whole: SendResult, count: int) -> list[SendResult]:
    """Return one result for each message of a batch.

    If the broker stores the batch as one entry (an inner batch), all messages get the same result.
    """
    ids = whole.batch_ids
    offset_ids = whole.offset_msg_id.split(",")
    if len(ids) != count:
        return [whole] * count
    if len(offset_ids) != count:
        offset_ids = [whole.offset_msg_id] * count
    status = whole.status
    queue = whole.queue
    region = whole.region_id
    trace_on = whole.trace_on
    return [
        SendResult(status, msg_id, queue, offset, offset_id, None, None, region, trace_on)
        for offset, (msg_id, offset_id) in enumerate(
            zip(ids, offset_ids, strict=True), whole.queue_offset
        )
    ]
