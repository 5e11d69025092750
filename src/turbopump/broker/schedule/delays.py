"""Delay levels. A delayed message waits in the schedule topic until it is due.

Each level has one task. The task sleeps until the first message of its queue is due, or, while the
queue is empty, until the queue grows. Nothing is polled. Due messages are delivered in slices, one
slice of one level at a time, so that sends are served in between.

The positions are saved in ``config/delayOffset.json`` soon after a delivery, and only up to
messages whose copies are on the disk. After a kill or a power cut messages may be delivered twice,
but none is lost. Source: apache/rocketmq ``ScheduleMessageService``, which polls every 100 ms and
saves every 10 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from turbopump.broker.background import RetryingTask, stop_after_turn, stop_task, wait_for
from turbopump.broker.counters.counted_events import CountedEvents
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import read_queue, read_units
from turbopump.broker.saved_table import SavedTable
from turbopump.clock import Clock
from turbopump.disk.json_table import JsonTable
from turbopump.errors import MessageError, StoredMessageError, StoreError
from turbopump.log_keys import LogKeys
from turbopump.message.codec import decode_entries
from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import REAL_QUEUE_ID, REAL_TOPIC, whole_number
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.requests.offsets import DelayOffsetTable
from turbopump.protocol.requests.topics import DataVersion
from turbopump.repeated_line import RepeatedLine
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import (
    NO_MESSAGE_SIZE,
    UNIT_SIZE,
    ConsumeQueue,
    unpack_unit,
)
from turbopump.store.queues.read_result import GetResult

SLICE: Final = 32
"""Maximum number of messages delivered before other requests are served: about 1 ms."""
SLEEP_MAX_S: Final = 60.0
"""Maximum seconds between two readings of the wall clock.

The clock may be set, and a sleep does not count the time in which the machine is suspended.
"""

log = logging.getLogger(__name__)
_not_delivered = RepeatedLine(
    log, logging.ERROR, "delayed message not delivered delay_level=%d queue_offset=%d cause=%s"
)


class Delays(SavedTable[DelayOffsetTable]):
    """All delay levels of a broker. Their positions are saved in one file.

    Call ``load`` before ``start``, and ``stop`` before ``save_now``. Positions are saved as soon as
    a delivery is on the disk, but at most once in ``save_interval`` seconds.
    """

    def __init__(
        self,
        file: JsonTable,
        store: MessageStore,
        forwarding: Forwarding,
        events: CountedEvents,
        levels: DelayLevels,
        clock: Clock,
        save_interval: float,
    ) -> None:
        super().__init__(file, DelayOffsetTable)
        self._store = store
        self._clock = clock
        self._version = DataVersion()
        self._saved: dict[int, int] = {}
        self._save_interval = save_interval
        self._has_moved = False
        self._saving: asyncio.Task[None] | None = None
        self._next_save = 0.0
        numbers = set(range(1, levels.highest + 1))
        # levels of an earlier, longer table
        numbers |= {queue.queue_id + 1 for queue in store.queues if queue.topic == SCHEDULE_TOPIC}
        self._turn = turn = asyncio.Lock()
        self.levels = []
        for number in sorted(numbers):
            delay_ms = levels.delays_ms[min(number, levels.highest) - 1]
            self.levels.append(
                DelayLevel(
                    number, delay_ms, store, forwarding, events, clock, turn, self._save_soon
                )
            )

    def load(self) -> None:
        """Read the position of each level from ``config/delayOffset.json``.

        A position outside of its recovered queue is set to the nearest end of the queue and saved
        at once, because new messages reuse the lost offsets. Raises OSError.
        """
        read = self._load()
        self._version = read.data_version
        self._saved = dict(read.offset_table)
        there = sum(level.queue.max_index - level.queue.min_index for level in self.levels)
        if there and not self._saved:
            log.warning(
                "config/delayOffset.json is missing or has no positions: all delayed "
                "messages in the log are delivered, also those that were delivered before "
                "messages=%s",
                there,
            )
        for level in self.levels:
            first = level.queue.min_index
            end = level.queue.max_index
            wanted = self._saved.get(level.number, 0)
            level.set_position(min(max(wanted, first), end))
            if level.position != wanted and level.number in self._saved:
                log.warning(
                    "position of a delay level is outside its recovered queue delay_level=%s "
                    "offset=%s first=%s end=%s",
                    level.number,
                    wanted,
                    first,
                    end,
                )
        if self._collect_positions():
            super().save_now()

    def copy(self, positions: Mapping[int, int]) -> None:
        """Save the positions of the master on this slave. A slave does not deliver delayed
        messages."""
        if all(self._saved.get(number) == position for number, position in positions.items()):
            return
        for level in self.levels:
            if level.number in positions:
                level.set_position(positions[level.number])
        self._saved.update(positions)
        self._dirty = True
        self.save()

    def start(self) -> None:
        """Start to deliver the messages that are due. The call may follow a ``stop``."""
        needed_from = self._store.retention.needed_from
        if self.needed_from not in needed_from:
            needed_from.append(self.needed_from)
        for level in self.levels:
            level.task.start()

    async def pause(self) -> None:
        """Stop the deliveries after the present slice, and save the positions.

        A slice that lasts longer than TURN_S is interrupted. Its last message may then be
        delivered twice.
        """
        await stop_after_turn(self._turn, self.stop)
        if self._collect_positions():
            self._dirty = True
            self.save()

    def advance(self, positions: Mapping[int, int]) -> None:
        """Move levels on to positions that another broker has reached. No level moves back.

        Call this before ``start``. Raises OSError.
        """
        for level in self.levels:
            position = min(positions.get(level.number, 0), level.queue.max_index)
            if position > level.position:
                level.set_position(position)
        if self._collect_positions():
            super().save_now()

    async def stop(self) -> None:
        """Stop the deliveries. This may be called twice."""
        await asyncio.gather(*(level.task.stop() for level in self.levels))
        await stop_task(self._saving)

    def positions(self) -> dict[str, str]:
        """For each level, return its position and the end of its queue, for the broker's runtime
        table."""
        return {
            f"scheduleMessageOffset_{level.number}": f"{level.position},{level.queue.max_index}"
            for level in self.levels
        }

    def needed_from(self) -> int | None:
        """Return the log offset of the first waiting message. Return None if no message waits.

        Retention keeps the log from this offset on.
        """
        offsets = [level.needed_from() for level in self.levels]
        return min((offset for offset in offsets if offset is not None), default=None)

    def _save_soon(self) -> None:
        """Save the positions soon, because a level has moved or has got its first message.

        The save starts at once if the last one is older than ``save_interval``.
        """
        self._has_moved = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save(), name="delay saving")

    async def _save(self) -> None:
        """Save the positions once the delivered copies are on the disk. Repeat this after further
        deliveries."""
        loop = asyncio.get_running_loop()
        durable = self._store.durable
        while self._has_moved:
            await asyncio.sleep(self._next_save - loop.time())
            self._next_save = loop.time() + self._save_interval
            self._has_moved = False
            delivered = [level.unflushed[-1][0] for level in self.levels if level.unflushed]
            log_end = max(delivered, default=0)
            if durable.value < log_end and durable.error is None:
                self._store.flusher.flush_log()
                await wait_for((durable, log_end))
            if self._collect_positions():
                self._dirty = True
                self.save()

    def save_now(self) -> None:
        """Sync the delivered messages to the disk, and save the positions in this thread.

        After a clean stop no message is then delivered twice. Raises OSError.
        """
        if any(level.unflushed for level in self.levels):
            self._store.flusher.flush_all_now()
        if self._collect_positions() or self._saved:
            super().save_now()

    def _collect_positions(self) -> bool:
        """Collect the positions to save. Return True if a position has changed.

        A level without messages has no position.
        """
        now = {
            level.number: level.safe_position()
            for level in self.levels
            if level.queue.max_index or level.number in self._saved
        }
        moved = any(self._saved.get(number) != position for number, position in now.items())
        self._saved.update(now)
        return moved

    def _content(self) -> DelayOffsetTable:
        self._version = self._version.next(self._clock.now_ms())
        return DelayOffsetTable(data_version=self._version, offset_table=self._saved)


@dataclass(eq=False)
class DelayLevel:
    """One delay level. It delivers the waiting messages of one queue.

    - ``number``: the level, from 1.
    - ``turn``: the lock that a level needs to deliver, so that one level at a time delivers.
    - ``on_moved``: called when ``position`` has changed.
    - ``position``: the queue offset of the next message to deliver.
    """

    number: int
    delay_ms: int
    store: MessageStore
    forwarding: Forwarding
    events: CountedEvents
    clock: Clock
    turn: asyncio.Lock
    on_moved: Callable[[], None]
    queue: ConsumeQueue = field(init=False)
    task: RetryingTask = field(init=False)
    position: int = 0
    unflushed: deque[tuple[int, int]] = field(default_factory=deque)
    """Slices whose copies may not be on the disk yet: the end of the log, and the position after
    it."""
    _safe: int = 0
    _odd_end: int = 0
    _odd_due: int = 0

    def __post_init__(self) -> None:
        self.queue = self.store.queues.find_or_make(SCHEDULE_TOPIC, self.number - 1)
        self.task = RetryingTask(
            f"delay level {self.number}",
            self._step,
            log,
            failing="delayed messages wait, trying again",
            again="delayed messages are delivered again",
            keys=LogKeys(delay_level=self.number),
        )

    def set_position(self, position: int) -> None:
        self.position = self._safe = position

    def safe_position(self) -> int:
        """Return a safe position: the copies of all messages before this queue offset are on the
        disk."""
        flushed = self.store.durable.value
        while self.unflushed and self.unflushed[0][0] <= flushed:
            self._safe = self.unflushed.popleft()[1]
        return self._safe

    def needed_from(self) -> int | None:
        """Return the log offset of the first message whose copy is not on the disk, or None."""
        unit = self.queue.unit(self.safe_position())
        return unit[0] if unit is not None else None

    async def _step(self) -> None:
        if self.position >= self.queue.end.value:
            await wait_for((self.queue.end, self.position + 1))
            self.on_moved()
            return
        wait_ms = await self.deliver_due()
        if wait_ms > 0:
            await asyncio.sleep(min(wait_ms / 1000, SLEEP_MAX_S))

    async def deliver_due(self) -> int:
        """Deliver up to ``SLICE`` due messages of the level.

        Return 0, or, if no message is due, the milliseconds until the first one is due.
        """
        queue = self.queue
        begin = self.position = max(self.position, queue.min_index)
        units = await read_units(
            self.store, queue, begin, min(SLICE, queue.end.value - begin), self.forwarding.turns
        )
        now = self.clock.now_ms()
        due_count = 0
        for at in range(0, len(units), UNIT_SIZE):
            _, size, due_ms = unpack_unit(units, at)
            wait_ms = self._due_ms(begin + due_count, due_ms, now) - now
            if wait_ms > 0 and size != NO_MESSAGE_SIZE:
                if not due_count:
                    return wait_ms
                break
            due_count += 1
        found = await read_queue(self.store, SCHEDULE_TOPIC, queue.queue_id, begin, due_count)
        async with self.turn:
            await self._deliver_slice(found)
            await self.forwarding.turns.pause()
        if self.position == begin:
            where = f"queue offset {begin} of {SCHEDULE_TOPIC} queue {queue.queue_id}"
            raise StoreError(f"{where} cannot be read: {found.status.name}")
        return 0

    def _due_ms(self, index: int, due_ms: int, now: int) -> int:
        """Return the time when a message is due. It is at most the level's delay from now.

        The limit matters if the clock was set back or the table of levels was changed. RocketMQ
        delivers such messages at once.
        """
        # The limit is determined once for all messages that are in the queue now. Otherwise it
        # would move on with the clock, and the messages would never become due.
        if due_ms > now + self.delay_ms and index >= self._odd_end:
            self._odd_end = self.queue.max_index
            self._odd_due = now + self.delay_ms
        if index < self._odd_end:
            return min(due_ms, self._odd_due)
        return due_ms

    async def _deliver_slice(self, found: GetResult) -> None:
        for damage in found.damages:
            self._log_skipped(damage.queue_offset, damage.fault)
        if found.gaps > len(found.damages):
            self._log_skipped(
                self.position, f"{found.gaps - len(found.damages)} messages were damaged in the log"
            )
        log_end = 0
        try:
            for message in decode_entries(found.data, errors="surrogateescape"):
                log_end = await self._forward_message(message) or log_end
                self.position = message.queue_offset + 1
            self.position = max(self.position, found.next_offset)
        except StoredMessageError as error:
            self._log_skipped(self.position, str(error))
            # the offset may be a gap before the damaged message, which then comes next
            self.position += 1
        finally:
            if log_end:
                self.unflushed.append((log_end, self.position))
            elif self.unflushed:
                self.unflushed[-1] = (self.unflushed[-1][0], self.position)
            else:
                self._safe = self.position
            self.on_moved()

    async def _forward_message(self, message: ReceivedMessage) -> int | None:
        """Store the copy of a due message. Return the end of the copy in the log.

        Return None if no copy is possible.
        """
        topic = message.properties.get(REAL_TOPIC, "")
        given = message.properties.get(REAL_QUEUE_ID, "")
        queue_id = whole_number(given)
        fault = f"{REAL_TOPIC}={topic!r} {REAL_QUEUE_ID}={given!r} does not name a queue"
        if topic not in ("", HALF_TOPIC, SCHEDULE_TOPIC) and queue_id is not None:
            try:
                stored = await self.forwarding.forward(message, topic, queue_id, is_sent=True)
            except MessageError as error:
                fault = str(error)
            else:
                size = stored.log_end - stored.offset
                self.events.messages_in.count_delivered(topic, size)
                self.events.delayed.add(size)
                self.task.works()
                return stored.log_end
        self._log_skipped(message.queue_offset, fault)
        return None

    def _log_skipped(self, queue_offset: int, cause: str) -> None:
        _not_delivered(self.number, queue_offset, cause, kind=self.number)
