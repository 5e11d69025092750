"""Timer messages of a broker: from the queue of ``rmq_sys_wheel_timer`` into their slots, and out
of them when they are due.

One task does both, in this order: whatever the queue has is taken in before a slot is delivered, so
that a recall that was accepted is in the slot of its message before that goes; of what a start
finds, the overdue goes when all of it is read. While nothing is due the task sleeps until the next
slot is, or the queue grows; nothing is polled. Slots go in the order of time, a slice of messages
in a turn of the loop. Neither is anything kept per message, nor lost: what the store refuses is
tried again. Source: apache/rocketmq ``TimerMessageStore``, which drops a message after three
attempts.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask, read_pieces
from turbopump.broker.schedule.timer_messages import (
    NEVER_WAITED,
    Recalls,
    TimerMessage,
    copied,
    is_recalled,
    slot_ms,
)
from turbopump.broker.schedule.timer_repair import (
    SLICE,
    Ahead,
    NewSlots,
    Redo,
    TimerCheck,
    TimerReading,
    first_slice,
    slice_of,
)
from turbopump.broker.schedule.timer_saving import TimerSaving
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError, StoreDamagedError, StoreError
from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE
from turbopump.store.timers.pending_timers import TIMER_TOPIC, Due, PendingTimers, TimerConfig
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL
from turbopump.store.timers.timer_recovery import open_timers

GATHER_S: Final = 0.02
"""So long new messages of the queue are gathered, so that a turn of the task is worth its while."""
REFUSED_PAUSE_S: Final = 1.0
"""After how long a delivery that the store refused, or a read that failed, is tried again."""
AHEAD_S: Final = 0.1
"""So long before its time a slot is read: then its messages wait for no disk when it comes."""
SLEEP_MAX_S: Final = 60.0
"""The task looks at the wall clock so often at least: it may be set, and stands for no time while a
machine is suspended."""

SLEEP_IDLE_S: Final = 86_400.0
"""And so often if nothing waits."""
LOGGED_MAX: Final = 1000
"""Messages passed over that get a line each; all of them are counted."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TimerNumbers:
    """Messages since the start: taken in, delivered, rolled on, recalled; and those that could not
    be delivered, which the log names."""

    taken_in: int = 0
    delivered: int = 0
    rolled: int = 0
    recalled: int = 0
    passed_over: int = 0

    def in_and_out(self) -> tuple[int, int]:
        """Messages taken in, and given on."""
        return self.taken_in, self.delivered + self.rolled


class Timers:
    """The timers of a broker. ``start``, then ``stop``, then ``save_now``."""

    def __init__(
        self,
        pending: PendingTimers,
        store: MessageStore,
        disk: Disk,
        forwarding: Forwarding,
        clock: Clock,
        flush_interval: float,
    ) -> None:
        self.pending = pending
        self.numbers = TimerNumbers()
        self._store = store
        self._forwarding = forwarding
        self._clock = clock
        self._queue = store.queues.find_or_make(TIMER_TOPIC, 0)
        self._saving = TimerSaving(pending, store, self._queue, disk, clock, flush_interval)
        self._redo = Redo(pending)
        self._doubts = TimerCheck(self._queue, pending.config.precision_ms)
        self._log = TimerReading(store, pending.config.precision_ms)
        self._new_slots = NewSlots(pending, self._doubts, self._log.read, self._pass_over)
        self._task: asyncio.Task[None] | None = None
        self._found_end = self._queue.max_index
        """One past the last message that the queue had at the start."""
        over = pending.read_time + pending.config.precision_ms <= clock.now_ms()
        self._overdue_in = pending.read_time if over else -1
        """A slot that may hold messages whose own had passed before."""
        self._begun = -1
        """The newest slot whose delivery has begun."""
        self._ahead: Ahead | None = None
        self._refused = False

    def start(self) -> None:
        """Deliver from now on."""
        if self._redo.active:
            self._saving.save_redo()
        self._store.retention.needed_from.append(self._saving.needed_from)
        self._task = asyncio.create_task(self._run(), name="timers")

    async def stop(self) -> None:
        """Deliver no more. May be called twice."""
        task, self._task = self._task, None
        self._saving.stop()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def save_now(self) -> None:
        """Write down how far things are, for a clean stop. Raises OSError."""
        self._saving.save_now()

    def may_recall(self, due: int) -> bool:
        """Whether a recall that is stored now is in the slot ``due`` before that is delivered.
        After a crash a slot may be delivered once more, so the clock counts too."""
        pending = self.pending
        return (
            due > self._begun
            and due >= pending.read_time
            and self._clock.now_ms() < due + pending.config.precision_ms
        )

    @property
    def queue_end(self) -> int:
        """One past the last message of ``rmq_sys_wheel_timer``, whether it is visible yet or
        not."""
        return self._queue.max_index

    def figures(self) -> dict[str, str]:
        """For the runtime information. RocketMQ: behind is what the ``TimerMessageStore`` has not
        read yet, slot by slot; ours sleeps until the next one is due, so it is behind only from
        then on."""
        pending = self.pending
        next_time = pending.next_time()
        overdue = (
            0
            if next_time is None
            else self._clock.now_ms() - next_time - pending.config.precision_ms
        )
        return {
            "timerReadBehind": str(max(overdue, 0) // 1000),
            "timerOffsetBehind": str(max(self.queue_end - pending.queue_offset, 0)),
            "timerCongestNum": str(pending.waiting),
        }

    def has_delivered(self, deliver_ms: int, queue_offset: int) -> bool:
        """Whether all is delivered that was to be so at ``deliver_ms`` or before and stands in the
        queue before ``queue_offset``."""
        pending = self.pending
        if pending.queue_offset < queue_offset or pending.rebuilding:
            return False
        next_time = pending.next_time()
        return next_time is None or next_time > max(
            slot_ms(deliver_ms, pending.config.precision_ms), self._overdue_in
        )

    async def _run(self) -> None:
        while True:
            try:
                if await self._new_slots.run(self._clock.now_ms()):
                    self._saving.touch()
                await self._take_in()
                wait = await self._deliver_due()
                if self._refused and wait:
                    self._refused = False
                    log.info("timer messages are delivered again")
            except StoreDamagedError as error:
                await self._saving.settled()
                self._begin_anew(error)
                continue
            except Exception as error:  # most likely the disk is full: nothing is skipped
                self._say_refused(error)
                wait = REFUSED_PAUSE_S
                await asyncio.sleep(wait)
                continue
            if wait:
                await self._sleep(wait)

    # --- in
    # ----------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        """Put every message that the queue shows into its slot."""
        pending, queue = self.pending, self._queue
        while pending.queue_offset < queue.end.value:
            await self._saving.begin()
            if pending.queue_offset < queue.min_index:
                log.error(
                    "timer messages are lost, deleted with the log first=%d end=%d",
                    pending.queue_offset,
                    queue.min_index,
                )
                pending.queue_offset = queue.min_index
            first = pending.queue_offset
            piece = queue.piece(first, min(SLICE, queue.end.value - first))
            if piece is None:
                raise StoreError(f"queue offset {first} of {TIMER_TOPIC} cannot be found")
            (units,) = await read_pieces(self._store.cold_reads, [piece])
            if isinstance(units, OSError):
                raise units
            ends = range(0, len(units), UNIT_SIZE)
            places = first_slice(
                (int.from_bytes(units[at : at + 8]), int.from_bytes(units[at + 8 : at + 12]))
                for at in ends
            )
            found = await self._log.read([place for place in places if place[1] != NO_MESSAGE_SIZE])
            for number, (offset, size) in enumerate(places, first):
                message = found.get(offset, "it was damaged in the log")
                if isinstance(message, str):
                    self._pass_over(number, offset, message)
                else:
                    await self._take(number, offset, size, message)
                pending.queue_offset = number + 1
            self._saving.touch()
            await asyncio.sleep(0)
        if self._redo.active and self._redo.finish(queue.end.value, self._clock.now_ms()):
            self._saving.touch()

    async def _take(self, index: int, offset: int, size: int, message: TimerMessage) -> None:
        pending, now = self.pending, self._clock.now_ms()
        if offset in pending.known:
            pending.known.discard(offset)
            return
        self.numbers.taken_in += 1
        if self._redo.active and not self._redo.is_pending(index, offset, size, message):
            return
        precision = pending.config.precision_ms
        overdue = message.until < pending.read_time and message.until + precision <= now
        if overdue and index >= self._found_end and not self._redo.active:
            if message.recalled is None:
                await self._deliver(message, NEVER_WAITED, rolls=False)
            return
        if (
            message.until < pending.read_time - 2 * precision
            and pending.read_time > now + precision
        ):
            self._rewind(now)
        due, until = (max(slot, pending.read_time) for slot in (message.due, message.until))
        if overdue:  # its recall may stand behind it, whose slot had passed as well
            self._overdue_in = max(self._overdue_in, due)
        pending.put(
            due,
            offset,
            size,
            now,
            message.topic_hash,
            recalls=message.recalled is not None,
            until=until,
        )

    def _rewind(self, now: int) -> None:
        """The clock was set back. Raises StoreError until it is on the disk how far things are."""
        if self.pending.saved.read_time < self.pending.read_time:
            self._saving.touch()
            raise StoreError("the clock was set back, which is to be noted first")
        log.warning("the clock was set back: times that had passed come again")
        self.pending.rewind(now)
        self._overdue_in = -1

    # --- out
    # ----------------------------------------------------------------------------------------------

    async def _deliver_due(self) -> float:
        """Deliver the first slot if it is due (0), or tell in how many seconds the next one will
        be."""
        pending, now = self.pending, self._clock.now_ms()
        time, precision = pending.next_time(), pending.config.precision_ms
        complete = pending.queue_offset == self._queue.max_index and not self._redo.active
        if time is None or time + precision > now:
            if complete:
                pending.idle_until(min(now, time) if time is not None else now)
            if time is None:
                return SLEEP_IDLE_S
            if time + precision - now <= AHEAD_S * 1000:
                await self._look_ahead(time)
                return max((time + precision - self._clock.now_ms()) / 1000, 0.001)
            return min((time + precision - now) / 1000 - AHEAD_S, SLEEP_MAX_S)
        if not complete:  # what is not on the disk yet (SYNC_FLUSH) may be a recall
            return GATHER_S if self._store.durable.error is None else SLEEP_MAX_S
        if time > pending.read_time:
            pending.idle_until(time)
        self._begun = max(self._begun, time)
        await self._look_ahead(time)
        assert self._ahead is not None
        due, found = self._ahead.due, self._ahead.found
        await self._deliver_all(due, await self._recalls(due, found), found)
        self._ahead = None
        pending.passed(time)
        self._saving.touch()
        return 0.0

    async def _look_ahead(self, time: int) -> None:
        """Read a slot, unless it was read and has got no more since."""
        pending, newest = self.pending, self.pending.newest(time)
        if self._ahead is None or (self._ahead.time, self._ahead.newest) != (time, newest):
            self._ahead = None
            due = await ask(self._store.cold_reads, pending.due(time))
            self._ahead = Ahead(
                time, newest, due, await self._log.read(slice_of(due, pending.delivered))
            )

    async def _recalls(self, due: Due, known: dict[int, TimerMessage | str]) -> Recalls:
        """What the recalls of a slot name."""
        names: Recalls = {}
        of_recalls = [
            n
            for n, magic in enumerate(due.magics)
            if magic & MAGIC_DELETE and not magic & MAGIC_ROLL
        ]
        for number in of_recalls:
            offset = due.offsets[number]
            found = (
                known.get(offset) or (await self._log.read([(offset, due.sizes[number])]))[offset]
            )
            self._doubts.check(due, number, [found])
            if isinstance(found, TimerMessage) and found.recalled is not None:
                names.setdefault(found.recalled, set()).add((found.due, found.until))
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return names

    async def _deliver_all(
        self, due: Due, recalls: Recalls, found: dict[int, TimerMessage | str]
    ) -> None:
        """Every message of a slot, from where a stop or a refusal has left it."""
        pending = self.pending
        while pending.delivered < len(due):
            first = pending.delivered
            places = slice_of(due, first)
            if not all(offset in found for offset, _ in places):
                found = await self._log.read(places)
            self._doubts.check(due, first, [found[offset] for offset, _ in places])
            for number, (offset, _) in enumerate(places, first):
                magic, message = due.magics[number], found[offset]
                rolls = magic & MAGIC_ROLL != 0
                if isinstance(message, str):
                    self._pass_over(-1, offset, message)
                elif not rolls and message.due > due.time:
                    self._pass_over(
                        message.message.queue_offset, offset, "it is not the one that was put there"
                    )
                elif magic & MAGIC_DELETE and not rolls:
                    pass
                elif recalls and not rolls and is_recalled(message, recalls):
                    self.numbers.recalled += 1
                else:
                    await self._deliver(message, due.written[number], rolls=rolls)
                pending.delivered = number + 1
            self._saving.touch()
            await asyncio.sleep(0)

    async def _deliver(self, timer: TimerMessage, written: int, *, rolls: bool) -> None:
        message = timer.message
        topic, queue_id = (TIMER_TOPIC, 0) if rolls else (timer.topic, timer.queue_id)
        try:
            text = copied(message, written, self._clock.now_ms(), rolls=rolls)
            await self._forwarding.forward(message, topic, queue_id, properties=text)
        except MessageError:
            try:  # perhaps the properties are full: without those that are added here
                await self._forwarding.forward(message, topic, queue_id)
            except MessageError as error:
                self._pass_over(message.queue_offset, message.commit_log_offset, str(error))
                return
        if rolls:
            self.numbers.rolled += 1
        else:
            self.numbers.delivered += 1

    # --- the rest
    # ----------------------------------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        """Until the time is over or the queue has grown, and new messages of it are gathered."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        waiter = self._queue.end.when(self.pending.queue_offset + 1, wake)
        timer = loop.call_later(seconds, wake)
        if self._queue.end.value > self.pending.queue_offset:
            wake()
        try:
            await woken
        finally:
            waiter.cancel()
            timer.cancel()
        if self._queue.end.value > self.pending.queue_offset:
            await asyncio.sleep(min(GATHER_S, seconds))

    def _begin_anew(self, error: Exception) -> None:
        self._ahead = None
        self.pending.begin_anew(self._queue.min_index, str(error))
        self._redo.begin()
        self._saving.save_redo()

    def _pass_over(self, queue_offset: int, offset: int, cause: str) -> None:
        self.numbers.passed_over += 1
        if self.numbers.passed_over <= LOGGED_MAX:
            log.error(
                "timer message not delivered queue_offset=%d offset=%d cause=%s",
                queue_offset,
                offset,
                cause,
            )

    def _say_refused(self, error: Exception) -> None:
        if not self._refused:
            self._refused = True
            unexpected = not isinstance(error, StoreError | OSError)
            log.warning("timer messages wait, trying again cause=%s", error, exc_info=unexpected)


def timers_of(
    config: BrokerConfig,
    paths: StorePaths,
    store: MessageStore,
    disk: Disk,
    forwarding: Forwarding,
    clock: Clock,
) -> Timers:
    """The timers of an open store, recovered. Raises OSError."""
    settings = TimerConfig(
        paths,
        precision_ms=config.timer_precision_ms,
        roll_window_slots=config.timer_roll_window_slot,
        log_file_size=config.mapped_file_size_timer_log,
    )
    pending = open_timers(settings, disk, store.queue(TIMER_TOPIC, 0), clock.now_ms(), _report)
    return Timers(pending, store, disk, forwarding, clock, config.timer_flush_interval_ms / 1000)


def _report(text: str) -> None:
    log.error("timers: %s", text)
