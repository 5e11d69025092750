"""Timers of a broker. They move timer messages into slots of time, and deliver due slots.

The queue belongs to the topic ``rmq_sys_wheel_timer``. One task does both. Before the task delivers
a slot, it moves all messages of the queue into slots. So an accepted recall reaches the slot of its
message in time. At a start overdue messages are delivered after the whole queue has been read.

The task sleeps until the next slot is due, or the queue grows. Slots are delivered in the order of
time, a slice of messages at a time. A message that the store refuses is tried
again. Source: apache/rocketmq ``TimerMessageStore``, which drops a message after three attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.broker.background import RetryingTask, stop_after_turn, wait_for
from turbopump.broker.counters.timers import TimerCounts
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask, read_units
from turbopump.broker.schedule.timer_messages import (
    NEVER_WAITED,
    Recalls,
    TimerMessage,
    copy_properties,
    is_recalled,
    slot_ms,
)
from turbopump.broker.schedule.timer_repair import SLICE, TimerRepair, first_slice
from turbopump.broker.schedule.timer_saving import TimerSaving
from turbopump.broker.stored import Stored
from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.errors import MessageError, StoreDamagedError, StoreError
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, unpack_unit
from turbopump.store.timers.pending_timers import TIMER_TOPIC, PendingTimers, SlotUnits, TimerConfig
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL
from turbopump.store.timers.timer_recovery import open_timers

GATHER_S: Final = 0.02
"""Seconds for which new messages of the queue are collected, so that several are handled at
once."""
AHEAD_S: Final = 0.1
"""Seconds by which a slot is read before its time, so that its messages need not wait for the
disk."""
SLEEP_MAX_S: Final = 60.0
"""Maximum seconds between two readings of the wall clock.

The clock may be set, and a sleep does not count the time in which the machine is suspended.
"""

SLEEP_IDLE_S: Final = 86_400.0
"""Maximum seconds of sleep while no message waits."""
LOGGED_MAX: Final = 1000
"""Maximum number of skipped messages with a log line each. All skipped messages are counted."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TimerNumbers:
    """Counters of timer messages since the start of the broker.

    - ``rolled``: messages that were moved to a later slot.
    - ``skipped``: messages that could not be delivered. The log names them.
    """

    received: int = 0
    delivered: int = 0
    rolled: int = 0
    recalled: int = 0
    skipped: int = 0

    def in_and_out(self) -> tuple[int, int]:
        """Return two numbers of messages: those moved into slots, and those moved out."""
        return self.received, self.delivered + self.rolled


@dataclass(frozen=True, slots=True)
class FoundUnits:
    """Part of the timer log that a start has found.

    - ``read_time``: slots before this time were delivered, in ms since 1970.
    - ``delivered``: number of delivered messages of the slot at ``read_time``.
    """

    log_end: int
    read_time: int
    delivered: int


@dataclass(frozen=True, slots=True)
class PrefetchedSlot:
    """A slot and its first messages, read ahead of time.

    The slot must be read again if the newest message of the slot is not ``newest``.
    """

    time: int
    newest: int
    due: SlotUnits
    found: dict[int, TimerMessage | str]


class Timers:
    """Timers of a broker. They deliver each timer message at its time.

    Call ``start``, then ``stop``, then ``save_now``.

    - ``counts``: the counters by topic, for the metrics.
    """

    def __init__(
        self,
        open_pending: Callable[[], PendingTimers],
        store: MessageStore,
        disk: Disk,
        forwarding: Forwarding,
        clock: Clock,
        flush_interval: float,
    ) -> None:
        self.numbers = TimerNumbers()
        self.counts = TimerCounts()
        self._open_pending = open_pending
        self._store = store
        self._disk = disk
        self._forwarding = forwarding
        self._clock = clock
        self._flush_interval = flush_interval
        self._queue = store.queues.find_or_make(TIMER_TOPIC, 0)
        self._turn = asyncio.Lock()
        self._held_back: Callable[[], int | None] = _nothing_held
        self._take_files()
        self._task = RetryingTask(
            "timers",
            self._step,
            log,
            failing="timer messages wait, trying again",
            again="timer messages are delivered again",
        )

    def _take_files(self) -> None:
        """Open the timer log, the wheel and the checkpoint, and begin from them. Raises OSError."""
        pending = self.pending = self._open_pending()
        if pending.redo_before:
            log.info(
                "timer log and wheel are made again from the queue of timer messages before=%d",
                pending.redo_before,
            )
        self._found = FoundUnits(pending.log.end, pending.read_time, pending.delivered)
        self._saving = TimerSaving(
            pending,
            self._store,
            self._queue,
            self._disk,
            self._clock,
            self._flush_interval,
            self._forwarding.turns,
            self._held_back,
        )
        self._repair = TimerRepair(
            pending, self._store, self._queue, self._skip, self._forwarding.turns
        )
        self._found_end = self._queue.max_index
        """End of the timers' queue at the start of the broker."""
        over = pending.read_time + pending.config.precision_ms <= self._clock.now_ms()
        self._overdue_in = pending.read_time if over else -1
        """Slot that may contain overdue messages of earlier slots."""
        self._begun = -1
        """Newest slot whose delivery has begun."""
        self._prefetched: PrefetchedSlot | None = None

    def start(self) -> None:
        """Start to deliver the messages of due slots."""
        if self._repair.rebuilds:
            self._saving.save_redo()
        needed_from = self._store.retention.needed_from
        if self._needed_from not in needed_from:
            needed_from.append(self._needed_from)
        self._task.start()

    def _needed_from(self) -> int | None:
        return self._saving.needed_from()

    def start_from_copy(self, held_back: Callable[[], int | None]) -> None:
        """Start to deliver at a slave, from the checkpoint that it has copied from its master.

        The call may follow a ``pause``. Raises OSError.

        - ``held_back``: a function that returns the time of the first slot whose messages must be
          delivered again after a restart, or None.
        """
        self._held_back = held_back
        self.pending.close()
        self.counts.waiting.clear()
        self._take_files()
        self.start()

    async def pause(self) -> None:
        """Stop the deliveries after the present slot.

        A slot that lasts longer than TURN_S is interrupted. One message may then be delivered
        twice.
        """
        await stop_after_turn(self._turn, self._task.stop)

    async def save(self) -> None:
        """Save the progress after a ``pause``. Raises OSError."""
        await self._saving.finish()

    async def stop(self) -> None:
        """Stop the deliveries. This may be called twice."""
        self._saving.stop()
        await self._task.stop()

    def save_now(self) -> None:
        """Save the progress of the timers, at a clean stop. Raises OSError."""
        self._saving.save_now()

    async def copy(self, checkpoint: TimerCheckpoint) -> None:
        """Save the checkpoint of the master on this slave. A slave does not deliver timer messages.

        If the slave becomes the master, its timers begin at this checkpoint. Raises OSError.
        """
        await self._saving.copy(checkpoint)

    @property
    def safe_checkpoint(self) -> TimerCheckpoint:
        """Checkpoint that is on the disk. All its fields are zero before the first message."""
        return self.pending.saved

    def may_recall(self, due: int) -> bool:
        """Return True if a recall can still come before the delivery of the slot ``due``.

        After a crash a slot may be delivered again. So the slot must also not be due by the clock.
        """
        pending = self.pending
        return (
            due > self._begun
            and due >= pending.read_time
            and self._clock.now_ms() < due + pending.config.precision_ms
        )

    @property
    def queue_end(self) -> int:
        """End of the timers' queue. Messages that cannot be read yet are included."""
        return self._queue.max_index

    @property
    def overdue_ms(self) -> int:
        """Milliseconds by which the next slot is late.

        RocketMQ reads slot by slot, and counts what is not read yet as behind. This broker sleeps
        until the next slot is due, so it counts only from then on.
        """
        next_time = self.pending.next_time()
        if next_time is None:
            return 0
        return max(self._clock.now_ms() - next_time - self.pending.config.precision_ms, 0)

    async def count_found(self) -> Counter[int]:
        """Return the numbers of messages that waited at the start of the broker, by the hash of
        their topics.

        The timer log is read. A log that is being made again counts as empty.
        """
        pending = self.pending
        found = self._found
        if pending.redo_before or found.log_end == pending.log.start:
            return Counter()
        steps = pending.count_units(found.log_end, found.read_time, found.delivered)
        return await ask(self._store.cold_reads, steps, self._forwarding.turns)

    def figures(self) -> dict[str, str]:
        """Return counts of late and waiting messages, for the broker's runtime table."""
        pending = self.pending
        return {
            "timerReadBehind": str(self.overdue_ms // 1000),
            "timerOffsetBehind": str(max(self.queue_end - pending.queue_offset, 0)),
            "timerCongestNum": str(pending.waiting),
        }

    def has_delivered(self, deliver_ms: int, queue_offset: int) -> bool:
        """Return True if messages with a time up to ``deliver_ms`` are delivered. Only messages
        before ``queue_offset`` count."""
        pending = self.pending
        if pending.queue_offset < queue_offset or pending.rebuilding:
            return False
        next_time = pending.next_time()
        return next_time is None or next_time > max(
            slot_ms(deliver_ms, pending.config.precision_ms), self._overdue_in
        )

    async def _step(self) -> None:
        """Move new messages into slots, deliver the messages that are due, and sleep."""
        try:
            async with self._turn:
                if await self._repair.give_new_slots(self._clock.now_ms()):
                    self._saving.save_soon()
                await self._fill_slots()
                wait = await self.deliver_due()
        except StoreDamagedError as error:
            await self._saving.wait_for_write()
            self._prefetched = None
            self.counts.waiting.clear()
            self._repair.begin_rebuild(str(error))
            self._saving.save_redo()
            return
        if wait:
            self._task.works()
            await self._sleep(wait)

    # --- from the queue into slots

    async def _fill_slots(self) -> None:
        """Move every visible message of the timers' queue into its slot."""
        pending = self.pending
        queue = self._queue
        while pending.queue_offset < queue.end.value:
            await self._saving.ensure_checkpoint()
            if pending.queue_offset < queue.min_index:
                log.error(
                    "timer messages are lost, they were deleted with the log first=%s end=%s",
                    pending.queue_offset,
                    queue.min_index,
                )
                pending.queue_offset = queue.min_index
            first = pending.queue_offset
            units = await read_units(
                self._store,
                queue,
                first,
                min(SLICE, queue.end.value - first),
                self._forwarding.turns,
            )
            positions = first_slice(
                unpack_unit(units, at)[:2] for at in range(0, len(units), UNIT_SIZE)
            )
            found = await self._repair.read_messages(
                [position for position in positions if position[1] != NO_MESSAGE_SIZE]
            )
            for number, (offset, size) in enumerate(positions, first):
                message = found.get(offset, "it was damaged in the log")
                if isinstance(message, str):
                    self._skip(number, offset, message)
                else:
                    await self._add_message(number, offset, size, message)
                pending.queue_offset = number + 1
            self._saving.save_soon()
            await self._forwarding.turns.pause()
        if self._repair.rebuilds and self._repair.finish_rebuild(
            queue.end.value, self._clock.now_ms()
        ):
            self._saving.save_soon()

    async def _add_message(self, index: int, offset: int, size: int, message: TimerMessage) -> None:
        """Put a message of the timers' queue into its slot. An overdue message may be delivered at
        once."""
        # There are three kinds of overdue messages. A message that arrived while the broker runs is
        # delivered at once, and an overdue recall has no effect. A message that the start found in
        # the queue may have a recall behind it. So it goes into the first undelivered slot, which
        # is delivered after the whole queue is read; ``_overdue_in`` remembers that slot for
        # ``has_delivered``. A message far before ``read_time``, while ``read_time`` is ahead of the
        # clock, shows that the clock was set back.
        pending = self.pending
        now = self._clock.now_ms()
        if offset in pending.known:
            pending.known.discard(offset)
            return
        self.numbers.received += 1
        if self._repair.rebuilds and not self._repair.is_pending(index, offset, size, message):
            return
        stored = message.message
        self.counts.add_taken(
            message.topic, stored.born_timestamp, stored.store_timestamp, message.out, now
        )
        precision = pending.config.precision_ms
        overdue = message.until < pending.read_time and message.until + precision <= now
        if overdue and index >= self._found_end and not self._repair.rebuilds:
            if not message.recalls:
                self.counts.waiting[message.topic] += 1
                await self._forward_message(message, NEVER_WAITED, rolls=False)
            return
        is_far_behind = message.until < pending.read_time - 2 * precision
        if is_far_behind and pending.read_time > now + precision:
            self._rewind(now)
        due = self._repair.put_in_slot(offset, size, message.slot, now)
        self.counts.waiting[message.topic] += not message.recalls
        if overdue:
            self._overdue_in = max(self._overdue_in, due)

    def _rewind(self, now: int) -> None:
        """Let slots of the past accept messages again. The clock was set back.

        Raises StoreError until the progress is saved.
        """
        if self.pending.saved.read_time < self.pending.read_time:
            self._saving.save_soon()
            raise StoreError("the clock was set back; the timers wait until this is saved")
        log.warning("clock was set back, slots of the past accept messages again")
        self.pending.rewind(now)
        self._overdue_in = -1

    # --- out of due slots

    async def deliver_due(self) -> float:
        """Deliver the first slot if it is due. Return 0 after the delivery.

        If no slot is due, return the seconds until the next one is due.
        """
        # A slot is delivered only when every stored message of the queue is in a slot, also those
        # that are not visible yet, because one of them may be a recall. From ``_begun`` on no
        # recall for the slot is accepted (``may_recall``). ``_begun`` is set before the first await
        # of the delivery: a recall accepted later would have no effect. The slot counts as
        # passed only after its last message; until then ``delivered`` says where to continue.
        pending = self.pending
        now = self._clock.now_ms()
        time = pending.next_time()
        complete = pending.queue_offset == self._queue.max_index and not self._repair.rebuilds
        if time is None:
            if complete:
                pending.idle_until(now)
            return SLEEP_IDLE_S
        left_ms = time + pending.config.precision_ms - now
        if left_ms > 0:
            if complete:
                pending.idle_until(min(now, time))
            if left_ms > AHEAD_S * 1000:
                return min(left_ms / 1000 - AHEAD_S, SLEEP_MAX_S)
            await self._prefetch(time)
            return max((now + left_ms - self._clock.now_ms()) / 1000, 0.001)
        if not complete:
            return GATHER_S if self._store.durable.error is None else SLEEP_MAX_S
        if time > pending.read_time:
            pending.idle_until(time)
        self._begun = max(self._begun, time)
        slot = await self._prefetch(time)
        await self._deliver_slot(slot.due, await self._read_recalls(slot), slot.found)
        self._prefetched = None
        pending.passed(time)
        self._saving.save_soon()
        return 0.0

    async def _prefetch(self, time: int) -> PrefetchedSlot:
        """Return the slot of a time. Read it, unless the result of an earlier read is still
        complete."""
        newest = self.pending.newest(time)
        known = self._prefetched
        if known is not None and known.time == time and known.newest == newest:
            return known
        self._prefetched = None
        due = await ask(self._store.cold_reads, self.pending.due(time), self._forwarding.turns)
        found = await self._repair.read_messages(_slice_of(due, self.pending.delivered))
        self._prefetched = PrefetchedSlot(time, newest, due, found)
        return self._prefetched

    async def _read_recalls(self, slot: PrefetchedSlot) -> Recalls:
        """Read the recalls in a slot."""
        names: Recalls = {}
        due = slot.due
        for number, magic in enumerate(due.magics):
            if not magic & MAGIC_DELETE or magic & MAGIC_ROLL:
                continue
            offset = due.offsets[number]
            message = slot.found.get(offset)
            if message is None:
                message = (await self._repair.read_messages([(offset, due.sizes[number])]))[offset]
            self._repair.check_units(due, number, [message])
            if isinstance(message, TimerMessage) and message.recalled is not None:
                meant = names.setdefault((message.topic, message.recalled), set())
                meant.add((message.due, message.until))
            await self._forwarding.turns.pause()
        return names

    async def _deliver_slot(
        self, due: SlotUnits, recalls: Recalls, found: dict[int, TimerMessage | str]
    ) -> None:
        """Deliver the undelivered messages of a slot."""
        pending = self.pending
        while pending.delivered < len(due):
            first = pending.delivered
            positions = _slice_of(due, first)
            if not all(offset in found for offset, _ in positions):
                found = await self._repair.read_messages(positions)
            self._repair.check_units(due, first, [found[offset] for offset, _ in positions])
            for number, (offset, _) in enumerate(positions, first):
                await self._deliver_unit(due, number, found[offset], recalls)
                pending.delivered = number + 1
            self._saving.save_soon()
            await self._forwarding.turns.pause()

    async def _deliver_unit(
        self, due: SlotUnits, number: int, message: TimerMessage | str, recalls: Recalls
    ) -> None:
        """Deliver one message of a due slot. A recall or a recalled message is not delivered.

        A message that is not due yet is put into a later slot.
        """
        if isinstance(message, str):
            self._skip(-1, due.offsets[number], message)
            return
        magic = due.magics[number]
        if magic & MAGIC_ROLL:
            await self._forward_message(message, due.written[number], rolls=True)
        elif message.due > due.time:
            queue_offset = message.message.queue_offset
            self._skip(queue_offset, due.offsets[number], "another message is at its offset")
        elif magic & MAGIC_DELETE:
            return
        elif recalls and is_recalled(message, recalls):
            self.numbers.recalled += 1
            self.counts.waiting[message.topic] -= 1
        else:
            await self._forward_message(message, due.written[number], rolls=False)

    async def _forward_message(self, timer: TimerMessage, written: int, *, rolls: bool) -> None:
        message = timer.message
        self.counts.left[timer.topic] += 1
        self.counts.waiting[timer.topic] -= 1
        topic, queue_id = (TIMER_TOPIC, 0) if rolls else (timer.topic, timer.queue_id)
        try:
            text = copy_properties(message, written, self._clock.now_ms(), rolls=rolls)
            await self._forwarding.forward(message, topic, queue_id, properties=text)
        except MessageError:
            try:  # perhaps there is no space for the properties that are added
                await self._forwarding.forward(message, topic, queue_id)
            except MessageError as error:
                self._skip(message.queue_offset, message.commit_log_offset, str(error))
                return
        if rolls:
            self.numbers.rolled += 1
        else:
            self.numbers.delivered += 1

    async def _sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until the timers' queue grows.

        After growth, the sleep lasts ``GATHER_S`` longer, to collect more new messages.
        """
        end = self._queue.end
        await wait_for((end, self.pending.queue_offset + 1), seconds=seconds)
        if end.value > self.pending.queue_offset:
            await asyncio.sleep(min(GATHER_S, seconds))

    def _skip(self, queue_offset: int, offset: int, cause: str) -> None:
        self.numbers.skipped += 1
        if self.numbers.skipped <= LOGGED_MAX:
            log.error(
                "timer message not delivered queue_offset=%s offset=%s cause=%s",
                queue_offset,
                offset,
                cause,
            )


def _slice_of(due: SlotUnits, first: int) -> list[tuple[int, int]]:
    """Return the positions of the next messages to deliver from a slot.

    - ``first``: the number of the first of these messages in the slot.
    """
    return first_slice(
        zip(due.offsets[first : first + SLICE], due.sizes[first : first + SLICE], strict=True)
    )


def timers_of(stored: Stored, forwarding: Forwarding) -> Timers:
    """Return the timers of an open store, after their recovery. Raises OSError."""
    config, store, disk, clock = stored.config, stored.store, stored.disk, stored.clock
    settings = TimerConfig(
        stored.settings.paths,
        precision_ms=config.timer_precision_ms,
        roll_window_slots=config.timer_roll_window_slot,
        log_file_size=config.mapped_file_size_timer_log,
    )

    def open_pending() -> PendingTimers:
        return open_timers(settings, disk, store.queue(TIMER_TOPIC, 0), clock.now_ms(), _report)

    interval = config.timer_flush_interval_ms / 1000
    return Timers(open_pending, store, disk, forwarding, clock, interval)


def _nothing_held() -> int | None:
    """Return None. At a master every delivered message is on its way to the disk."""
    return None


def _report(text: str) -> None:
    log.error("timers: %s", text)
