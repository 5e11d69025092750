"""Delay levels: messages that wait in the schedule topic, and their delivery when they are due.

One task per level sleeps until the head of its queue is due, or, while the queue is empty, until it
grows; nothing is polled. What is due goes on in slices, one slice of one level in a turn of the
loop, so that sends come in between. The positions are saved in ``config/delayOffset.json``, and
only as far as what was delivered is on the disk: after a power cut messages may come twice, never
not at all. Source: apache/rocketmq ``ScheduleMessageService``, which looks every 100 ms.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import Final, TypeVar

import msgspec

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.interceptors import Destination, Interceptor
from turbopump.broker.reading import ask, read_queue
from turbopump.clock import Clock
from turbopump.errors import MessageError, StoredMessageError, StoreError
from turbopump.message.codec import decode_entries
from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels, delay_level
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    decode_properties,
    encode_properties,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import DelayOffsetTable
from turbopump.protocol.requests.send import SendRequest
from turbopump.protocol.requests.topics import DataVersion
from turbopump.remoting.router import Response
from turbopump.store.disk import Found
from turbopump.store.json_table import JsonTable
from turbopump.store.log.cold_reads import Steps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import GetResult
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, ConsumeQueue

T = TypeVar("T")

SLICE: Final = 32
"""Messages that are delivered in one turn at most: about 1 ms."""
REFUSED_PAUSE_S: Final = 1.0
"""After how long a delivery that the store refused, or a read that failed, is tried again."""
SLEEP_MAX_S: Final = 60.0
"""A task looks at the wall clock so often at least: it may be set, and stands for no time while a
machine is suspended."""
_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_UNIT: Final = struct.Struct(">qiq")

log = logging.getLogger(__name__)


class Delays:
    """The schedule of a broker. ``load`` before ``start``; ``stop`` before ``save_now``."""

    def __init__(
        self,
        table: JsonTable,
        store: MessageStore,
        forwarding: Forwarding,
        levels: DelayLevels,
        clock: Clock,
    ) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._version = DataVersion()
        self._saved: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        turn = asyncio.Lock()
        numbers = set(range(1, levels.highest + 1))
        # of a table that was longer
        numbers |= {queue.queue_id + 1 for queue in store.queues if queue.topic == SCHEDULE_TOPIC}
        self.levels = [
            DelayLevel(
                number,
                levels.delays_ms[min(number, levels.highest) - 1],
                store,
                forwarding,
                clock,
                turn,
            )
            for number in sorted(numbers)
        ]

    def load(self) -> None:
        """Read the positions; those outside of the recovered queues are set to their ends, at once
        for good: what comes later takes the offsets that were lost. Raises OSError."""
        read = self._table.load(
            lambda data: fastjson.decode(data, DelayOffsetTable), DelayOffsetTable
        )
        self._version = read.data_version
        self._saved = dict(read.offset_table)
        there = sum(level.queue.max_index - level.queue.min_index for level in self.levels)
        if there and not self._saved:
            log.warning(
                "config/delayOffset.json is missing or tells no positions: all delayed messages "
                "that are still in the log are delivered, "
                "those that were delivered before once more messages=%d",
                there,
            )
        for level in self.levels:
            first, end = level.queue.min_index, level.queue.max_index
            wanted = self._saved.get(level.number, 0)
            level.begin_at(min(max(wanted, first), end))
            if level.position != wanted and level.number in self._saved:
                log.warning(
                    "position of a delay level is outside of its recovered queue level=%d "
                    "offset=%d first=%d end=%d",
                    *(level.number, wanted, first, end),
                )
        if self._collect():
            self._table.save_now(self._encode())

    def start(self) -> None:
        """Deliver from now on."""
        self._store.retention.needed_from.append(self.pending_from)
        self._tasks = [
            asyncio.create_task(level.run(), name=f"delay level {level.number}")
            for level in self.levels
        ]

    async def stop(self) -> None:
        """Deliver no more. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def pending(self) -> int:
        """Messages that wait."""
        return sum(level.queue.max_index - level.position for level in self.levels)

    def places(self) -> dict[str, str]:
        """For the broker's runtime table: of each level the position, and the end of its queue."""
        return {
            f"scheduleMessageOffset_{level.number}": f"{level.position},{level.queue.max_index}"
            for level in self.levels
        }

    def pending_from(self) -> int | None:
        """The offset in the log of the first message that is still needed; None: nothing waits."""
        return min(
            (offset for level in self.levels if (offset := level.needed_from()) is not None),
            default=None,
        )

    def save(self) -> None:
        """Write the file, beside the loop, if anything has moved."""
        if self._collect():
            self._table.save(self._encode())

    def save_now(self) -> None:
        """Sync what was delivered, and write how far that is: after a clean stop nothing comes
        twice. Raises OSError."""
        if any(level.unflushed for level in self.levels):
            self._store.flusher.flush_all_now()
        if self._collect() or self._saved:
            self._table.save_now(self._encode())

    def _collect(self) -> bool:
        """Whether there is anything to save. A level that never had a message has no position."""
        now = {
            level.number: level.safe_position()
            for level in self.levels
            if level.queue.max_index or level.number in self._saved
        }
        moved = {
            number: position
            for number, position in now.items()
            if position != self._saved.get(number)
        }
        self._saved.update(moved)
        return bool(moved)

    def _encode(self) -> bytes:
        self._version = self._version.next(self._clock.now_ms())
        return fastjson.encode_indented(
            DelayOffsetTable(data_version=self._version, offset_table=self._saved)
        )


class DelayLevel:
    """One level, and the queue in which its messages wait. ``position`` is the queue offset of the
    next one to deliver."""

    def __init__(
        self,
        number: int,
        delay_ms: int,
        store: MessageStore,
        forwarding: Forwarding,
        clock: Clock,
        turn: asyncio.Lock,
    ) -> None:
        self.number = number
        self.queue: ConsumeQueue = store.queues.find_or_make(SCHEDULE_TOPIC, number - 1)
        self.position = 0
        self.unflushed: deque[tuple[int, int]] = deque()
        """(end of the log, position) of slices whose messages may not be on the disk yet."""
        self._safe = 0
        self._delay_ms = delay_ms
        self._store = store
        self._forwarding = forwarding
        self._clock = clock
        self._turn = turn
        self._odd_end = self._odd_due = 0
        self._refused = False

    def begin_at(self, position: int) -> None:
        self.position = self._safe = position

    def safe_position(self) -> int:
        """Up to where everything was delivered and is on the disk."""
        flushed = self._store.durable.value
        while self.unflushed and self.unflushed[0][0] <= flushed:
            self._safe = self.unflushed.popleft()[1]
        return self._safe

    def needed_from(self) -> int | None:
        """The offset in the log of the first message that waits, or whose delivery is not on the
        disk; None if there is none."""
        unit = self.queue.unit(self.safe_position())
        return unit[0] if unit is not None else None

    async def run(self) -> None:
        """Deliver what comes due, for ever."""
        while True:
            try:
                if self.position >= self.queue.end.value:
                    await self._grown()
                    continue
                wait_ms = await self._deliver_due()
            except Exception as error:  # most likely the disk is full: nothing is skipped
                self._say_refused(error)
                wait_ms = int(REFUSED_PAUSE_S * 1000)
            if wait_ms > 0:
                await asyncio.sleep(min(wait_ms / 1000, SLEEP_MAX_S))

    async def _grown(self) -> None:
        grown: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not grown.done():
                grown.set_result(None)

        waiter = self.queue.end.when(self.position + 1, wake)
        try:
            await grown
        finally:
            waiter.cancel()

    async def _deliver_due(self) -> int:
        """Deliver a slice of what is due, or tell in how many ms the first message will be."""
        queue = self.queue
        begin = self.position = max(self.position, queue.min_index)
        count = min(SLICE, queue.end.value - begin)
        units = await ask(self._store.cold_reads, _units(queue, begin, count))
        if isinstance(units, OSError):
            raise units
        now, due_count = self._clock.now_ms(), 0
        for number, (_, size, due_ms) in enumerate(_UNIT.iter_unpack(units)):
            wait_ms = self._due_ms(begin + number, due_ms, now) - now
            if wait_ms > 0 and size != NO_MESSAGE_SIZE:
                if not number:
                    return wait_ms
                break
            due_count += 1
        found = await read_queue(self._store, SCHEDULE_TOPIC, queue.queue_id, begin, due_count)
        async with self._turn:
            await self._deliver(found)
            await asyncio.sleep(0)  # the others' turn
        if self.position == begin:
            raise StoreError(
                f"queue offset {begin} of {SCHEDULE_TOPIC} queue {queue.queue_id} cannot be "
                f"read: {found.status.name}"
            )
        return 0

    def _due_ms(self, index: int, due_ms: int, now: int) -> int:
        """A message that would wait for longer than its level's delay from now on (the clock was
        set back, or the table was changed) does not, and neither do those that are stored already.
        RocketMQ: such a message is delivered at once."""
        if due_ms > now + self._delay_ms and index >= self._odd_end:
            self._odd_end, self._odd_due = self.queue.max_index, now + self._delay_ms
        return min(due_ms, self._odd_due) if index < self._odd_end else due_ms

    async def _deliver(self, found: GetResult) -> None:
        for damage in found.damages:
            self._pass_over(damage.queue_offset, damage.fault)
        if found.gaps > len(found.damages):
            self._pass_over(
                self.position, f"{found.gaps - len(found.damages)} messages were damaged in the log"
            )
        log_end = 0
        try:
            for message in decode_entries(found.data):
                log_end = await self._forward(message) or log_end
                self.position = message.queue_offset + 1
            self.position = max(self.position, found.next_offset)
        except StoredMessageError as error:
            self._pass_over(self.position, str(error))
            # if that was a gap before the damaged one, it is the next one's turn
            self.position += 1
        finally:
            if log_end:
                self.unflushed.append((log_end, self.position))
            elif self.unflushed:
                self.unflushed[-1] = (self.unflushed[-1][0], self.position)
            else:
                self._safe = self.position

    async def _forward(self, message: ReceivedMessage) -> int | None:
        """Where the log ends behind the copy; None if there can be none."""
        topic, queue_id = (
            message.properties.get(REAL_TOPIC, ""),
            message.properties.get(REAL_QUEUE_ID, ""),
        )
        if (
            not topic
            or topic in (_HALF_TOPIC, SCHEDULE_TOPIC)
            or not (queue_id.isascii() and queue_id.isdigit())
        ):
            fault = f"{REAL_TOPIC}={topic!r} {REAL_QUEUE_ID}={queue_id!r} is no place to deliver to"
        else:
            try:
                placed = await self._forwarding.forward(message, topic, int(queue_id))
            except MessageError as error:
                fault = str(error)
            else:
                if self._refused:
                    self._refused = False
                    log.info("delayed messages are delivered again level=%d", self.number)
                return placed.log_end
        self._pass_over(message.queue_offset, fault)
        return None

    def _pass_over(self, queue_offset: int, cause: str) -> None:
        log.error(
            "delayed message not delivered level=%d queue_offset=%d cause=%s",
            self.number,
            queue_offset,
            cause,
        )

    def _say_refused(self, error: Exception) -> None:
        if not self._refused:
            self._refused = True
            unexpected = not isinstance(error, StoreError | OSError)
            log.warning(
                "delayed messages wait, trying again level=%d cause=%s",
                self.number,
                error,
                exc_info=unexpected,
            )


def _units(queue: ConsumeQueue, index: int, count: int) -> Steps[Found]:
    """Raw units; out of the map only if this process wrote them."""
    if index >= queue.opened_at:
        return queue.units(index, count)
    piece = queue.piece(index, count)
    if piece is None:
        return b""
    (found,) = yield [piece]
    return found


# --- Where a message with a delay level goes: into the schedule topic, with its real place in its
# properties.
#
# Source: apache/rocketmq ``HookUtils.transformDelayLevelMessage``.

_TIMERS: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def scheduled(destination: Destination, level: int, levels: DelayLevels) -> Destination:
    """The destination on its way through ``level``, 1 or more; the highest there is stands for those
    above. A level goes before a timer."""
    level = min(level, levels.highest)
    properties = decode_properties(destination.properties)
    for name in _TIMERS:
        properties.pop(name, None)
    properties.update(
        {
            DELAY_TIME_LEVEL: str(level),
            REAL_TOPIC: destination.topic,
            REAL_QUEUE_ID: str(destination.queue_id),
        }
    )
    return msgspec.structs.replace(
        destination,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=encode_properties(properties),
        recall_handle=None,
    )


def by_level(levels: DelayLevels) -> Interceptor:
    """The rule for DELAY; a message that another rule has sent elsewhere stays there."""

    def rule(request: SendRequest, destination: Destination) -> Destination | Response:
        if destination.topic != request.topic:
            return destination
        try:
            level = delay_level(destination.properties)
        except ValueError as error:
            return Response(
                code=ResponseCode.MESSAGE_ILLEGAL,
                remark=f"{error}: send a number from 1 to {levels.highest} (messageDelayLevel of "
                "the broker), or 0 for no delay",
            )
        return scheduled(destination, level, levels) if level > 0 else destination

    return rule
