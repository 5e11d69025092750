"""Which messages wait for their time: the timer wheel, the timer log and their checkpoint as one
thing.

A message is put where its slot is, or, if that is too far ahead, in a slot on the way, from where
it goes round again (it *rolls*). Slots are delivered in the order of time; ``read_time`` is the
first that is not. Nothing is kept per message in memory but a byte per slot.

So that a crash loses nothing, two things must hold. Everything is derived from the queue of
``rmq_sys_wheel_timer``. A checkpoint is written only when the commit log, the timer log and the
wheel are on the disk as far as it says. Opening is in ``timer_recovery.py``. This module must not
know who reads the clock, the queue or the messages. Source: apache/rocketmq ``TimerMessageStore``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreDamagedError
from turbopump.store.files import StorePaths
from turbopump.store.log.cold_reads import Steps
from turbopump.store.timers.timer_log import (
    LOG_FILE_SIZE,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TIMER_UNIT_SIZE,
    TimerCheckpoint,
    TimerLog,
    read_unit,
)
from turbopump.store.timers.timer_wheel import SLOTS, TimerWheel, wheel_size

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BLANK_SLOTS: Final = 60
"""So many slots of a round stay free. RocketMQ: ``TIMER_BLANK_SLOTS``."""

_BLOCK: Final = TIMER_UNIT_SIZE * 78
"""Bytes of the log read around a unit: its neighbours in a chain are often its neighbours in the
log."""
_PAUSE_EVERY: Final = 500
"""Units that are looked at in one go: about 1 ms."""


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """``roll_window_slots`` as it is used: how far ahead of now a slot may be."""

    paths: StorePaths
    slots: int = SLOTS
    precision_ms: int = 1000
    roll_window_slots: int = 2 * 86_400
    log_file_size: int = LOG_FILE_SIZE

    @property
    def window_ms(self) -> int:
        """RocketMQ: a window of less than two slots, or nearly a whole round, counts as a round."""
        most = self.slots - BLANK_SLOTS
        return (
            self.roll_window_slots if 2 <= self.roll_window_slots <= most else most
        ) * self.precision_ms

    def floor(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms


@dataclass(slots=True)
class SlotUnits:
    """What a slot holds, in the order in which it came: offset and size of each message, when it
    was put there (ms), and its magic."""

    time: int
    offsets: array[int]
    sizes: array[int]
    written: array[int]
    magics: bytearray

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class OldSlots:
    """Units of the timer log, from ``start`` to ``end``, in slots of another precision. Those
    before ``read_time`` are delivered, and of the slot ``read_time`` the first ``delivered``."""

    start: int
    end: int
    read_time: int
    delivered: int


class PendingTimers:
    """The timers of an open store, as ``timer_recovery.py`` has found them. Times in ms.

    ``report`` gets a sentence for whoever runs the broker.
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
        """The checkpoint on the disk."""
        self.read_time = config.floor(self.saved.read_time)
        self.queue_offset = self.saved.queue_offset
        """The next message of the queue that has no unit yet."""
        self.delivered = self.saved.delivered
        """Units of the slot ``read_time`` that are delivered."""
        self.redo_before = 0
        """Not 0: log and wheel are made anew from the queue. Its messages before this offset had
        units once: those whose slot is before ``read_time`` are delivered. Until that is over,
        ``log`` and ``wheel`` are no base for a checkpoint."""
        self.old_slots: OldSlots | None = None
        """Not None: these are to be put into slots of ``config.precision_ms``. Until that is over,
        it is as with ``redo_before``."""
        self.log_begin = self.saved.log_begin
        """What the log has before this position counts no more, and goes with the next
        checkpoint."""
        self.known: set[int] = set()
        """Offsets, in the commit log, of messages at or behind ``queue_offset`` that have units
        nevertheless."""
        self._oldest_at = 0

    @property
    def wheel(self) -> TimerWheel:
        """The wheel, made when it is first needed. Raises OSError, StoreError."""
        if self._wheel is None:
            path, slots = self.config.paths.timer_wheel, self.config.slots
            if self._disk.file_size(path) not in (None, wheel_size(slots)):
                self._disk.remove(path)
            self._wheel = TimerWheel(self._disk, path, slots, self.config.precision_ms)
        return self._wheel

    def put(
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
        """Remember the message at ``offset`` of the commit log for the slot ``due``, which is not
        before ``read_time``; and for those behind it up to ``until``. Raises OSError, StoreError;
        nothing has changed then, or a recall is in some. About 3 µs."""
        written = self.config.floor(now)
        for slot in range(due, due + 1 if until is None else until + 1, self.config.precision_ms):
            if self._put(slot, offset, size, written, topic_hash, recalls=recalls):
                break

    def _put(
        self, due: int, offset: int, size: int, written: int, topic_hash: int, *, recalls: bool
    ) -> bool:
        """Put it into one slot; whether it rolls from there."""
        time, rolls = self.slot_for(due, written)
        magic = MAGIC_DEFAULT | (MAGIC_ROLL if rolls else 0) | (MAGIC_DELETE if recalls else 0)
        wheel = self.wheel
        written = min(written, time)  # the field for the difference holds 24 days at most
        position = self.log.append(wheel.last(time), magic, written, time, offset, size, topic_hash)
        wheel.put(time, position, -1 if recalls else 1)
        return rolls

    def slot_for(self, due: int, written: int) -> tuple[int, bool]:
        """The slot of a message that is due in the slot ``due`` and put there at ``written``; True
        if it must roll from there.

        RocketMQ: ``TimerMessageStore.doEnqueue``. Ours: no slot overwrites one that is not
        delivered yet, however long the broker was down.
        """
        # The wheel holds two rounds of slots, and a message may be due later than that. It then
        # goes into a slot on the way and is put again from there. The hop is a whole window, unless
        # the rest behind it would be less than a third of a window: then it is half a window, so
        # that two hops of similar length remain instead of a long one and one that is so short that
        # the roll itself could be late.
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
        """The first slot that holds what is not delivered; None if there is none."""
        return self._wheel.next_pending(self.read_time) if self._wheel is not None else None

    @property
    def waiting(self) -> int:
        """Messages in slots that are not delivered yet, recalls counted against them. RocketMQ:
        ``TimerWheel.getAllNum``, which walks over all slots; ours is counted as they come and
        go."""
        return max(self._wheel.waiting, 0) if self._wheel is not None else 0

    def due(self, time: int) -> Steps[SlotUnits]:
        """What the slot holds. Raises StoreDamagedError if its chain is not as it was written: then
        ``begin_anew``."""
        found = SlotUnits(time, array("q"), array("i"), array("q"), bytearray())
        slot = self._wheel.slot(time) if self._wheel is not None else None
        position = slot.last if slot is not None else -1
        reached = position
        block, begin = b"", -1
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
            reached, position = position, unit.previous
            if len(found) % _PAUSE_EVERY == 0:
                yield []
        if slot is not None and self.log.start <= slot.first < reached:
            raise StoreDamagedError(
                f"the slot {time} does not reach its first unit, at position "
                f"{slot.first} of the timer log"
            )
        for column in (found.offsets, found.sizes, found.written, found.magics):
            column.reverse()  # the chain has the newest first
        return found

    def newest(self, time: int) -> int:
        """What tells whether a slot has got more since it was last read: −1 if it holds nothing."""
        return self._wheel.last(time) if self._wheel is not None else -1

    def passed(self, time: int) -> None:
        """All that is in slots up to and with ``time`` is delivered."""
        if self._wheel is not None:
            self._wheel.passed(time)
        self.read_time = time + self.config.precision_ms
        self.delivered = 0

    def idle_until(self, now: int) -> None:
        """Nothing waits in slots before ``now``: they count as delivered."""
        if self.config.floor(now) > self.read_time:
            self.read_time = self.config.floor(now)
            self.delivered = 0

    def rewind(self, now: int) -> None:
        """The clock was set back: let slots before ``read_time`` take messages again. What they
        held is delivered, and the checkpoint on the disk (``saved``) must say so, for the slots are
        wiped."""
        assert self.saved.read_time >= self.read_time
        first = max(self.config.floor(now), self.read_time - self.wheel.span_ms)
        for time in range(first, self.read_time, self.config.precision_ms):
            if self.wheel.slot(time) is not None:
                self.wheel.set_last(time, -1, 0)
        self.read_time = first
        self.delivered = 0

    def checkpoint(self, now: int) -> TimerCheckpoint:
        """How far things are; to be written when all of that is on the disk."""
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
        """Whether log and wheel are being made and are no base for a checkpoint."""
        return self.redo_before > 0 or self.old_slots is not None

    @property
    def moved(self) -> bool:
        """Whether things are further than the checkpoint on the disk says."""
        saved = self.saved
        now = (self.read_time, self.log.end, self.queue_offset, self.delivered)
        return now != (saved.read_time, saved.log_end, saved.queue_offset, saved.delivered)

    def dirty_segments(self) -> list[Segment]:
        """What was written since this was last asked."""
        return [
            *self.log.files.dirty_segments(),
            *(self._wheel.dirty_segments() if self._wheel is not None else ()),
        ]

    def write_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Put it on the disk; may run in a thread. Raises OSError."""
        self._disk.make_directory(self.config.paths.config)
        self._disk.replace_file(self.config.paths.timer_checkpoint, checkpoint.encode())

    def close(self) -> None:
        self.log.close()
        if self._wheel is not None:
            self._wheel.close()

    def begin_anew(self, queue_start: int, why: str) -> None:
        """The log or the wheel cannot be used: both are made again from the queue, which begins at
        ``queue_start``."""
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
        """Delete wheel and log."""
        self.forget_wheel()
        self.log.remove()
        self.log_begin = 0

    def forget_wheel(self) -> None:
        """Delete the wheel."""
        if self._wheel is not None:
            self._wheel.close()
            self._wheel = None
        self._disk.remove(self.config.paths.timer_wheel)

    def take_out_old_slots(self, end: int, read_time: int) -> None:
        """The slots of what the log has up to ``end`` are of another precision: they become
        ``old_slots``, and the log begins anew behind them. The checkpoint on the disk stays true
        until the next one."""
        self.forget_wheel()
        self.old_slots = OldSlots(self.log.start, end, read_time, self.delivered)
        self.log_begin = self.log.go_on_behind(end)
        self.delivered = 0

    def finish_old_slots(self) -> None:
        """All that waits has another slot."""
        self.old_slots = None
        if self.log.end == self.log_begin:  # none waits
            self.forget()

    def oldest(self) -> Steps[int | None]:
        """The offset in the commit log of the oldest message that waits here, or waited when the
        checkpoint was written; None if none does. Goes on where it last stopped: all before that is
        delivered."""
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

    def _read(self, position: int, before: int) -> Steps[tuple[bytes, int]]:
        """The unit at ``position`` with those before it, or behind it; and the position of the
        first byte. Empty if it cannot be read."""
        there = self.log.piece(position, before, TIMER_UNIT_SIZE if before else _BLOCK)
        if there is None:
            return b"", position
        piece, within = there
        (found,) = yield [piece]
        return (found, position - within) if isinstance(found, bytes) else (b"", position)
