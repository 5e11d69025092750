"""Timer wheel: for each second of two weeks, the timer-log position of the newest unit.

::

    slot, 32 bytes:   8 time / precision   8 position of its first unit   8 of its last unit
                      4 units   4 magic (0)
    file:             slots × 2 of them, 7 × 86,400 × 2 by default: 38,707,200 bytes
                      slot of a time = time / precision mod their number

A slot is overwritten when its time comes round again, not when its units have been delivered.
``PendingTimers.read_time``, the time up to which all is delivered, shows which slots still count.
The wheel is derived data: it can be rebuilt from the timer log. Source: apache/rocketmq
``TimerWheel``, ``Slot``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.disk import Disk, Segment
from turbopump.store.holes import STEP, data_steps

WHEEL_SLOT_SIZE: Final = 32
SLOTS: Final = 7 * 86_400
"""Number of slots of one round, for any precision. The file has two rounds. RocketMQ:
``TIMER_WHEEL_TTL_DAY``."""

_SLOT: Final = struct.Struct(">qqqii")
_COUNT_MAX: Final = 0x7FFFFFFF
_OCCUPIED: Final = b"\x01"


class Slot(NamedTuple):
    """Slot of the timer wheel. It leads to the messages of one time.

    - ``time``: time of the slot in ms.
    - ``first``, ``last``: positions of its oldest and newest unit in the timer log.
    - ``units``: number of its units, minus recalls.
    """

    time: int
    first: int
    last: int
    units: int


def wheel_size(slots: int) -> int:
    """Return the size in bytes of the file of a timer wheel."""
    return slots * 2 * WHEEL_SLOT_SIZE


class TimerWheel:
    """Timer wheel in a file. A missing file is created.

    Times are in ms, and multiples of ``precision_ms``. One byte a slot in memory marks the slots
    with undelivered units, so that the next one is found at once. Raises OSError, StoreError.
    """

    def __init__(self, disk: Disk, path: Path, slots: int, precision_ms: int) -> None:
        self.total = slots * 2
        self.precision_ms = precision_ms
        if disk.file_size(path) is None:
            disk.make_directory(path.parent)
            self.segment: Segment = disk.create_segment(path, wheel_size(slots))
        else:
            self.segment = disk.open_segment(path)
        assert self.segment.size == wheel_size(slots)
        self._buffer = self.segment.buffer
        self._occupied = bytearray(self.total)
        self.sum = 0
        """Sum of the CRC-32 of every undelivered slot. It shows if the file is unchanged."""
        self.waiting = 0
        """Number of units in undelivered slots, minus recalls."""
        self.dirty = False

    @property
    def span_ms(self) -> int:
        """Time in ms that the wheel covers, from the oldest undelivered slot on."""
        return self.total * self.precision_ms

    def slot(self, time: int) -> Slot | None:
        """Return the slot of a time, or None if it has no unit."""
        number = time // self.precision_ms
        found, first, last, count, _ = _SLOT.unpack_from(
            self._buffer, number % self.total * WHEEL_SLOT_SIZE
        )
        return Slot(time, first, last, count) if found == number and last >= 0 else None

    def last(self, time: int) -> int:
        """Return the timer-log position of the newest unit of a time, or −1 if the time has no
        unit."""
        number = time // self.precision_ms
        found, _, last, _, _ = _SLOT.unpack_from(
            self._buffer, number % self.total * WHEEL_SLOT_SIZE
        )
        return int(last) if found == number else -1

    def add_unit(self, time: int, position: int, change: int) -> None:
        """Make the unit at ``position`` of the timer log the newest unit of a time.

        ``change`` is added to the number of units in the slot.
        """
        number = time // self.precision_ms
        index = number % self.total
        found, first, _, before, magic = _SLOT.unpack_from(self._buffer, index * WHEEL_SLOT_SIZE)
        count = before
        if found != number:
            first = -1
            count = 0
        count = max(min(count + change, _COUNT_MAX), -_COUNT_MAX)
        slot = _SLOT.pack(number, position if first < 0 else first, position, count, magic)
        self._write(index, slot, before, count, occupied=True)

    def set_last(self, time: int, last: int, count: int) -> None:
        """Make ``last`` the newest unit of a time, with ``count`` units in the slot. −1 empties the
        slot."""
        number = time // self.precision_ms
        index = number % self.total
        _, first, _, before, magic = _SLOT.unpack_from(self._buffer, index * WHEEL_SLOT_SIZE)
        slot = _SLOT.pack(number, first if last >= 0 else -1, last, count, magic)
        self._write(index, slot, before, count, occupied=last >= 0)

    def passed(self, time: int) -> None:
        """Mark the slot of a time as delivered."""
        index = time // self.precision_ms % self.total
        if self._occupied[index]:
            self.sum -= self._crc(index)
            self.waiting -= _SLOT.unpack_from(self._buffer, index * WHEEL_SLOT_SIZE)[3]
            self._occupied[index] = 0

    def next_pending(self, time: int) -> int | None:
        """Return the time of the first slot with undelivered units from ``time`` on, or None.

        Cost: about 0.1 ms if there is none.
        """
        number = time // self.precision_ms
        index = number % self.total
        found = self._occupied.find(_OCCUPIED, index)
        if found < 0:
            found = self._occupied.find(_OCCUPIED, 0, index)
            if found < 0:
                return None
            found += self.total
        return (number + found - index) * self.precision_ms

    def mark_pending(self, time: int) -> list[Slot]:
        """Mark all slots from ``time`` on as undelivered, and return the slots with units.

        The whole file is read. Cost: about 0.3 s if it is full.
        """
        pending = []
        number = time // self.precision_ms
        total = self.total
        self._occupied = bytearray(total)
        self.sum = self.waiting = 0
        for index, (found, first, last, count, _) in self._slots():
            if number <= found < number + total and found % total == index and last >= 0:
                self._occupied[index] = 1
                self.sum += self._crc(index)
                self.waiting += count
                pending.append(Slot(found * self.precision_ms, first, last, count))
        return pending

    def has_other_precision(self, now: int) -> bool:
        """Return True if some slots fit no time around ``now``. Such slots have another precision.

        The whole file is read.
        """
        low, high = (int(now * share) // self.precision_ms for share in (0.7, 1.4))
        return any(
            number > 0 and last >= 0 and not low < number < high
            for _, (number, _, last, _, _) in self._slots()
        )

    def clear(self) -> None:
        """Remove the units from every slot of the wheel."""
        for start in data_steps(self.segment, 0):
            size = min(STEP, self.segment.size - start)
            self._buffer[start : start + size] = bytes(size)
        self._occupied = bytearray(self.total)
        self.sum = self.waiting = 0
        self.dirty = True

    def dirty_segments(self) -> list[Segment]:
        """Return the segment of the file if it was written since the last call.

        It counts as clean from now on.
        """
        dirty = self.dirty
        self.dirty = False
        return [self.segment] if dirty else []

    def close(self) -> None:
        self.segment.close()

    def _slots(self) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
        """For each slot outside the holes of the file, yield its number and its fields."""
        for start in data_steps(self.segment, 0):
            size = min(STEP, self.segment.size - start)
            piece = self.segment.read_cold(start, size - size % WHEEL_SLOT_SIZE)
            yield from enumerate(_SLOT.iter_unpack(piece), start // WHEEL_SLOT_SIZE)

    def _write(self, index: int, slot: bytes, before: int, count: int, *, occupied: bool) -> None:
        if self._occupied[index]:
            self.sum -= self._crc(index)
            self.waiting -= before
        at = index * WHEEL_SLOT_SIZE
        self._buffer[at : at + WHEEL_SLOT_SIZE] = slot
        self._occupied[index] = occupied
        if occupied:
            self.sum += zlib.crc32(slot)
            self.waiting += count
        self.dirty = True

    def _crc(self, index: int) -> int:
        return zlib.crc32(self._buffer[index * WHEEL_SLOT_SIZE : (index + 1) * WHEEL_SLOT_SIZE])
