"""Delayed messages: the timer wheel, the timer log and their checkpoint as one unit.

A message goes into the slot of its delivery time. If that is too far ahead, it goes into an earlier
slot, and is put again from there (it *rolls*). Slots are delivered in the order of time;
``read_time`` is the first undelivered one. The only state in memory is a byte per slot.

Two rules keep a crash from losing anything. Everything is derived from the queue of
``rmq_sys_wheel_timer``. A checkpoint is written only when the commit log, the timer log and the
wheel are on the disk up to its positions. Opening is in ``timer_recovery.py``. The clock, the queue
and the messages are unknown here. Source: apache/rocketmq ``TimerMessageStore``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreDamagedError
from turbopump.store.files import StorePaths
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint
from turbopump.store.timers.timer_log import (
    LOG_FILE_SIZE,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TIMER_UNIT_SIZE,
    TimerLog,
    read_unit,
)
from turbopump.store.timers.timer_wheel import SLOTS, TimerWheel, wheel_size

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BLANK_SLOTS: Final = 60
"""Number of slots of a round that stay free. RocketMQ: ``TIMER_BLANK_SLOTS``."""

_BLOCK: Final = TIMER_UNIT_SIZE * 78
"""Number of bytes of the timer log read around a unit. Adjacent units of a chain are often adjacent
in the log."""
_PAUSE_EVERY: Final = 500
"""Number of units examined before other reads run: about 1 ms."""


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """Settings of the timers for delayed messages.

    - ``slots``: number of slots in one round of the wheel.
    - ``precision_ms``: time between two slots.
    - ``roll_window_slots``: largest number of slots between now and a message's slot; a later
      message rolls.
    """

    paths: StorePaths
    slots: int = SLOTS
    precision_ms: int = 1000
    roll_window_slots: int = 2 * 86_400
    log_file_size: int = LOG_FILE_SIZE

    @property
    def window_ms(self) -> int:
        """Largest time in ms between now and the slot of a message.

        RocketMQ: a window of less than two slots, or nearly a whole round, counts as a round.
        """
        most = self.slots - BLANK_SLOTS
        return (
            self.roll_window_slots if 2 <= self.roll_window_slots <= most else most
        ) * self.precision_ms

    def floor(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms


@dataclass(slots=True)
class SlotUnits:
    """Messages in one slot of the timer wheel, in the order of arrival.

    - ``time``: time of the slot in ms.
    - ``offsets``, ``sizes``: position and size of each message in the commit log.
    - ``written``: time in ms at which each message was put into the slot.
    - ``magics``: magic of each unit in the timer log.
    """

    time: int
    offsets: array[int]
    sizes: array[int]
    written: array[int]
    magics: bytearray

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class OldSlots:
    """Part of the timer log with units for slots of another precision.

    - ``start``, ``end``: positions in the timer log.
    - ``read_time``: time in ms. Messages in slots before it are delivered.
    - ``delivered``: number of delivered units of the slot ``read_time``.
    """

    start: int
    end: int
    read_time: int
    delivered: int


class PendingTimers:
    """Delayed messages of an open store, kept until their delivery time.

    All times are in ms. ``timer_recovery.py`` recovers them at a start. ``report`` gets a line for
    the operator.
    """

    def __init__(
        self,
        config: TimerConfig,
        disk: Disk,
        checkpoint: TimerCheckpoint | None,
        report: Callable[[str], None],
    ) -> None:
        self.config = config
        self._disk = disk
        self.report = report
        self.log = TimerLog(disk, config.paths.timer_log, config.log_file_size)
        self._wheel: TimerWheel | None = None
        self.saved = checkpoint or TimerCheckpoint(ours=False)
        """Checkpoint of the timers that is on the disk."""
        self.read_time = config.floor(self.saved.read_time)
        self.queue_offset = self.saved.queue_offset
        """Queue offset of the first timer message that is not in the timer log."""
        self.delivered = self.saved.delivered
        """Number of delivered units of the slot ``read_time``."""
        self.redo_before = 0
        """Queue offset up to which messages had units before a rebuild. 0 if no rebuild is running.

        Of these messages, those with a slot before ``read_time`` are delivered. During the rebuild
        from the queue, ``log`` and ``wheel`` are no base for a checkpoint.
        """
        self.old_slots: OldSlots | None = None
        """Units that must be put into slots of ``config.precision_ms``, or None.

        Until all are moved, no checkpoint is possible.
        """
        self.log_begin = self.saved.log_begin
        """Position in the timer log before which units no longer count. The next checkpoint removes
        that part."""
        self.known: set[int] = set()
        """Commit-log offsets of messages at or behind ``queue_offset`` that already have units."""
        self._oldest_at = 0

    @property
    def wheel(self) -> TimerWheel:
        """Timer wheel, created on first use. Raises OSError and StoreError."""
        if self._wheel is None:
            path = self.config.paths.timer_wheel
            slots = self.config.slots
            if self._disk.file_size(path) not in (None, wheel_size(slots)):
                self._disk.remove(path)
            self._wheel = TimerWheel(self._disk, path, slots, self.config.precision_ms)
        return self._wheel

    def put_message(
        self,
        due: int,
        offset: int,
        size: int,
        now: int,
        topic_hash: int,
        *,
        recalls: bool,
        until: int | None = None,
    ) -> None:
        """Put a delayed message into the slot of its delivery time.

        - ``due``: the slot; it must not be before ``read_time``.
        - ``offset``, ``size``: position and size of the message in the commit log.
        - ``recalls``: True if the message recalls another one.
        - ``until``: last of several slots, all of which get the message; None for one slot.

        Raises OSError, StoreError. Then nothing has changed, or a recall is in some of its slots.
        Cost: about 3 µs.
        """
        written = self.config.floor(now)
        for slot in range(due, due + 1 if until is None else until + 1, self.config.precision_ms):
            if self._put(slot, offset, size, written, topic_hash, recalls=recalls):
                break

    def _put(
        self, due: int, offset: int, size: int, written: int, topic_hash: int, *, recalls: bool
    ) -> bool:
        """Put a message into one slot. Return True if the message must later move on to another
        slot."""
        time, rolls = self.slot_for(due, written)
        magic = MAGIC_DEFAULT
        if rolls:
            magic |= MAGIC_ROLL
        if recalls:
            magic |= MAGIC_DELETE
        wheel = self.wheel
        written = min(written, time)  # the difference field holds at most 24 days
        position = self.log.append(wheel.last(time), magic, written, time, offset, size, topic_hash)
        wheel.add_unit(time, position, -1 if recalls else 1)
        return rolls

    def slot_for(self, due: int, written: int) -> tuple[int, bool]:
        """Choose the slot for a message put at ``written`` and due at ``due``.

        Return the time of the slot, and True if the message must be put again from there (it
        rolls).

        RocketMQ: ``TimerMessageStore.doEnqueue``. Ours: no undelivered slot is overwritten, however
        long the broker was down.
        """
        # The wheel holds two rounds of slots, and a message may be due later than that. It then
        # goes into an earlier slot and is put again from there. The hop is a whole window, unless
        # less than a third of a window would remain after it. Then the hop is half a window, so
        # that two hops of similar length remain. A very short last hop could make the roll itself
        # late.
        window = self.config.window_ms
        time = self.config.floor(due)
        if time - written >= window:
            half = window // self.config.precision_ms // 2 * self.config.precision_ms
            third = window // self.config.precision_ms // 3 * self.config.precision_ms
            time = written + (half if time - written - window < third else window)
        last = self.read_time + (self.config.slots * 2 - BLANK_SLOTS) * self.config.precision_ms
        time = min(time, last)
        return time, time != self.config.floor(due)

    def next_time(self) -> int | None:
        """Return the time of the first slot with undelivered messages, or None."""
        return self.next_time_from(self.read_time)

    def next_time_from(self, time: int) -> int | None:
        """Return the time of the first slot at or after ``time`` with undelivered messages, or
        None."""
        return self._wheel.next_pending(time) if self._wheel is not None else None

    def count_at(self, time: int) -> int:
        """Return the number of messages in the slot of a time, minus the number of recalls."""
        slot = self._wheel.slot(time) if self._wheel is not None else None
        return slot.units if slot is not None else 0

    @property
    def waiting(self) -> int:
        """Number of messages waiting for delivery, minus the number of recalls.

        RocketMQ: ``TimerWheel.getAllNum``, which walks over all slots; ours is updated with each
        change.
        """
        return max(self._wheel.waiting, 0) if self._wheel is not None else 0

    def due(self, time: int) -> ReadSteps[SlotUnits]:
        """Read the messages in the slot of a time.

        Raises StoreDamagedError if the chain of the slot is damaged. Then call ``begin_anew``.
        """
        found = SlotUnits(time, array("q"), array("i"), array("q"), bytearray())
        slot = self._wheel.slot(time) if self._wheel is not None else None
        position = slot.last if slot is not None else -1
        reached = position
        block = b""
        begin = -1
        while position >= self.log.start and position >= 0:
            if not begin <= position <= begin + len(block) - TIMER_UNIT_SIZE:
                block, begin = yield from self._read(position, _BLOCK)
            unit = read_unit(block, position - begin, position) if block else None
            if unit is None or unit.time != time:
                raise StoreDamagedError(
                    f"position {position} of the timer log holds no unit of the slot {time}"
                )
            found.offsets.append(unit.offset)
            found.sizes.append(unit.size)
            found.written.append(unit.written)
            found.magics.append(unit.magic)
            reached = position
            position = unit.previous
            if len(found) % _PAUSE_EVERY == 0:
                yield []
        if slot is not None and self.log.start <= slot.first < reached:
            raise StoreDamagedError(
                f"the slot {time} does not reach its first unit, at position "
                f"{slot.first} of the timer log"
            )
        for column in (found.offsets, found.sizes, found.written, found.magics):
            column.reverse()  # the chain begins with the newest
        return found

    def newest(self, time: int) -> int:
        """Return a number that changes with each new message in the slot of a time. Return −1 for
        an empty slot."""
        return self._wheel.last(time) if self._wheel is not None else -1

    def passed(self, time: int) -> None:
        """Mark all slots up to and including the slot of ``time`` as delivered."""
        if self._wheel is not None:
            self._wheel.passed(time)
        self.read_time = time + self.config.precision_ms
        self.delivered = 0

    def idle_until(self, now: int) -> None:
        """Mark all slots before ``now`` as delivered. These slots must be empty."""
        if self.config.floor(now) > self.read_time:
            self.read_time = self.config.floor(now)
            self.delivered = 0

    def rewind(self, now: int) -> None:
        """Accept messages in delivered slots again, because the clock was set back to ``now``.

        The old content of these slots is delivered and wiped. The checkpoint on the disk
        (``saved``) must contain the new time first.
        """
        assert self.saved.read_time >= self.read_time
        first = max(self.config.floor(now), self.read_time - self.wheel.span_ms)
        for time in range(first, self.read_time, self.config.precision_ms):
            if self.wheel.slot(time) is not None:
                self.wheel.set_last(time, -1, 0)
        self.read_time = first
        self.delivered = 0

    def checkpoint(self, now: int) -> TimerCheckpoint:
        """Return a checkpoint of the present positions.

        It must be written only when everything before these positions is on the disk.
        """
        return TimerCheckpoint(
            self.read_time,
            self.log.end,
            self.queue_offset,
            self.delivered,
            self.redo_before,
            now,
            self.saved.counter + 1,
            wheel_sum=self._wheel.sum if self._wheel is not None else 0,
            precision_ms=self.config.precision_ms,
            log_begin=self.log_begin,
        )

    @property
    def rebuilding(self) -> bool:
        """True while timer log and wheel are being rebuilt. No checkpoint is possible then."""
        return self.redo_before > 0 or self.old_slots is not None

    @property
    def moved(self) -> bool:
        """True if a checkpoint of the present positions would differ from the one on the disk."""
        saved = self.saved
        now = (self.read_time, self.log.end, self.queue_offset, self.delivered)
        return now != (saved.read_time, saved.log_end, saved.queue_offset, saved.delivered)

    def dirty_segments(self) -> list[Segment]:
        """Return the segments of timer log and wheel that were written since the last call."""
        return [
            *self.log.files.dirty_segments(),
            *(self._wheel.dirty_segments() if self._wheel is not None else ()),
        ]

    def write_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Write a checkpoint to the disk. Any thread may call this. Raises OSError."""
        self._disk.make_directory(self.config.paths.config)
        self._disk.replace_file(self.config.paths.timer_checkpoint, checkpoint.encode())

    def close(self) -> None:
        self.log.close()
        if self._wheel is not None:
            self._wheel.close()

    def begin_anew(self, queue_start: int, why: str, *, expected: bool = False) -> None:
        """Delete the unusable timer log and wheel, and start their rebuild from the queue.

        The queue of timer messages begins at ``queue_start``. ``why`` is the fault, for the report.
        An ``expected`` rebuild is not reported.
        """
        if not expected:
            self.report(
                f"{why}; the timer log and wheel are made again from the queue of {TIMER_TOPIC}"
            )
        self.forget()
        self.redo_before = max(self.queue_offset, self.redo_before)
        self.queue_offset = min(queue_start, self.queue_offset)
        self.delivered = self._oldest_at = 0
        self.known.clear()
        self.old_slots = None

    def forget(self) -> None:
        """Delete the timer wheel and the timer log."""
        self.forget_wheel()
        self.log.remove()
        self.log_begin = 0

    def forget_wheel(self) -> None:
        """Delete the timer wheel."""
        if self._wheel is not None:
            self._wheel.close()
            self._wheel = None
        self._disk.remove(self.config.paths.timer_wheel)

    def take_out_old_slots(self, end: int, read_time: int) -> None:
        """Set apart the timer log up to ``end``, because its slots have another precision.

        That part becomes ``old_slots``, and a new log begins behind it. The checkpoint on the disk
        stays valid until the next one.
        """
        self.forget_wheel()
        self.old_slots = OldSlots(self.log.start, end, read_time, self.delivered)
        self.log_begin = self.log.go_on_behind(end)
        self.delivered = 0

    def finish_old_slots(self) -> None:
        """Record that all old slots are moved to slots of the new precision."""
        self.old_slots = None
        if self.log.end == self.log_begin:  # none waits
            self.forget()

    def oldest(self) -> ReadSteps[int | None]:
        """Return the commit-log offset of the oldest delayed message that is still needed, or None.

        It waits for delivery, or waited at the last checkpoint. The search continues from its last
        end, because everything before that is delivered.
        """
        position = max(self._oldest_at, self.log.start)
        looked = 0
        while position < self.log.end:
            block, begin = yield from self._read(position, 0)
            for at in range(0, len(block) - TIMER_UNIT_SIZE + 1, TIMER_UNIT_SIZE):
                unit = read_unit(block, at, begin + at)
                looked += 1
                if unit is None or unit.time >= self.saved.read_time:
                    self._oldest_at = begin + at
                    return unit.offset if unit is not None else 0
            following = begin + len(block) if block else self.log.end
            position = self._oldest_at = self.log.next_position(following)
            if looked >= _PAUSE_EVERY:
                looked = 0
                yield []
        return None

    def count_units(self, end: int, read_time: int, delivered: int) -> ReadSteps[Counter[int]]:
        """Count the undelivered messages in the timer log before ``end``, by the hash of their
        topics.

        - ``read_time``: slots before this time are delivered.
        - ``delivered``: number of delivered messages of the slot at ``read_time``.
        """
        counts: Counter[int] = Counter()
        position = self.log.start
        while position < end:
            block, begin = yield from self._read(position, 0)
            for at in range(0, min(len(block), end - begin) - TIMER_UNIT_SIZE + 1, TIMER_UNIT_SIZE):
                unit = read_unit(block, at, begin + at)
                if unit is None or unit.time < read_time:
                    continue
                if unit.time == read_time and delivered:
                    delivered -= 1
                elif not unit.recalls:
                    counts[unit.topic_hash] += 1
            if not block:
                break
            position = self.log.next_position(begin + len(block))
            yield []
        return counts

    def _read(self, position: int, before: int) -> ReadSteps[tuple[bytes, int]]:
        """Read the unit at a position of the timer log, together with units beside it.

        With ``before``, these are the units before it, otherwise the units behind it. Return the
        bytes and the position of the first. The bytes are empty if they cannot be read.
        """
        there = self.log.piece(position, before, TIMER_UNIT_SIZE if before else _BLOCK)
        if there is None:
            return b"", position
        piece, within = there
        (found,) = yield [piece]
        return (found, position - within) if isinstance(found, bytes) else (b"", position)
