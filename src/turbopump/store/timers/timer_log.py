"""Timer log: one unit for each delayed message, in the order of arrival.

::

    unit, 52 bytes:   4 size (52)   8 position of the unit before it in its slot (−1: none)
                      4 magic: 1, + 2 rolls, + 4 recalls another
                      8 written at (ms, floored to the precision)   4 ms from then to its slot
                      8 offset of the message in the commit log   4 its size
                      4 hash of its real topic   8 reserved (0)
    end of a file:    4 bytes that are left   8 zeros   4 CBD43194, if no further unit fits

Units of one slot form a chain, newest first, which starts in the timer wheel. Source:
apache/rocketmq ``TimerLog``, ``TimerMessageStore``. The log is derived data: it can be rebuilt from
the queue of ``rmq_sys_wheel_timer``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.disk import Disk, Piece
from turbopump.message.entry import FIXED_SIZE
from turbopump.store.mapped_file import MappedFile
from turbopump.store.mapped_file_queue import MappedFileQueue

TIMER_UNIT_SIZE: Final = 52
LOG_FILE_SIZE: Final = 100 * 1024 * 1024
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
"""Magic bit: the slot is not the message's own, but an earlier one."""
MAGIC_DELETE: Final = 4
"""Magic bit: the message recalls another one."""

_UNIT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqI")
_MAGIC_BLANK: Final = 0xCBD43194
_SCAN_STEP: Final = TIMER_UNIT_SIZE * 16_384
_OFFSET_MAX: Final = 1 << 60
"""Upper bound of valid log offsets."""


class TimerUnit(NamedTuple):
    """Record of one delayed message in the timer log.

    - ``position``: position of the unit in the timer log.
    - ``previous``: position of the unit before it in its slot, or −1.
    - ``written``: time in ms at which the message was put into its slot.
    - ``time``: time of the slot in ms.
    - ``offset``, ``size``: position and size of the message in the commit log.
    """

    position: int
    previous: int
    magic: int
    written: int
    time: int
    offset: int
    size: int
    topic_hash: int

    @property
    def rolls(self) -> bool:
        return self.magic & MAGIC_ROLL != 0

    @property
    def recalls(self) -> bool:
        return self.magic & MAGIC_DELETE != 0


def read_unit(data: bytes, at: int, position: int) -> TimerUnit | None:
    """Decode the unit at byte ``at`` of ``data``.

    Return None for bytes that cannot be the unit at ``position`` of the timer log.
    """
    size, previous, magic, written, delay, offset, message_size, topic_hash, _ = _UNIT.unpack_from(
        data, at
    )
    if (
        size != TIMER_UNIT_SIZE
        or not 1 <= magic <= 0xF
        or not -1 <= previous < position
        or message_size < FIXED_SIZE
    ):
        return None
    if not 0 <= offset < _OFFSET_MAX or not 0 <= written < _OFFSET_MAX:
        return None
    return TimerUnit(
        position, previous, magic, written, written + delay, offset, message_size, topic_hash
    )


class TimerLog:
    """Log with one unit for each delayed message, in a directory of its own.

    The directory is created with the first unit. ``end`` is the position of the next unit. It is
    unknown until ``cut_at`` is called after ``files.load``.
    """

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        self._disk = disk
        self._directory = directory
        self.files = MappedFileQueue(disk, (directory,), file_size, ahead=True)
        self.end = 0
        self._current: MappedFile | None = None

    @property
    def start(self) -> int:
        return self.files.start

    @property
    def capacity(self) -> int:
        """Position at which the last file of the log ends."""
        return self.files.files[-1].end if self.files else 0

    def file_start(self, position: int) -> int:
        """Return the start of the file that contains ``position``."""
        return position - (position - self.start) % self.files.file_size

    def append(
        self,
        previous: int,
        magic: int,
        written: int,
        time: int,
        offset: int,
        size: int,
        topic_hash: int,
    ) -> int:
        """Append a unit to the timer log and return its position.

        Raises OSError if a new file cannot be made. Then nothing has changed. Cost: about 1 µs.
        """
        current = self._current
        position = self.end
        if current is None or current.end - position < TIMER_UNIT_SIZE + _BLANK.size:
            current = self._roll()
            position = self.end
        _UNIT.pack_into(
            current.buffer,
            position - current.start,
            TIMER_UNIT_SIZE,
            previous,
            magic,
            written,
            time - written,
            offset,
            size,
            topic_hash,
            0,
        )
        current.dirty = True
        self.end = position + TIMER_UNIT_SIZE
        return position

    def piece(
        self, position: int, before: int = 0, size: int = TIMER_UNIT_SIZE
    ) -> tuple[Piece, int] | None:
        """Return the piece of a file with the unit at ``position``, or None.

        The result also has the position of the unit in the piece. It is None if the unit no longer
        exists. The piece has ``size`` bytes from the unit on, or fewer at the end of the file, and
        up to ``before`` bytes before the unit.
        """
        file = self.files.at(position)
        there = min(self.end, file.end - _BLANK.size) - position if file is not None else 0
        if file is None or there < TIMER_UNIT_SIZE:
            return None
        begin, end = max(position - before, file.start), position + min(size, there)
        end -= (end - position) % TIMER_UNIT_SIZE
        return Piece(file.segment, begin - file.start, end - begin), position - begin

    def unit(self, position: int) -> TimerUnit | None:
        """Read the unit at a position of the timer log. Return None if no unit is there.

        The call blocks the thread.
        """
        there = self.piece(position)
        if there is None:
            return None
        segment, at, size = there[0]
        return read_unit(segment.read_cold(at, size), 0, position)

    def next_position(self, position: int) -> int:
        """Return ``position``, or the start of the next file if no unit fits there."""
        file = self.files.at(position)
        if file is None or file.end - position >= TIMER_UNIT_SIZE + _BLANK.size:
            return position
        return file.end

    def scan(self, start: int, end: int | None = None) -> Iterator[TimerUnit]:
        """Yield the units of the timer log from ``start`` to ``end``.

        Without ``end``, the scan ends at the first invalid unit. An invalid unit before ``end``
        ends it too. ``scanned_to`` is the end of the scan. It reads without the map. Cost: about 1
        µs a unit.
        """
        self.scanned_to = start
        limit = self.capacity if end is None else end
        while self.scanned_to < limit:
            file = self.files.at(self.scanned_to)
            if file is None:
                return
            at = self.scanned_to - file.start
            whole = (file.segment.size - at - _BLANK.size) // TIMER_UNIT_SIZE * TIMER_UNIT_SIZE
            size = min(whole, _SCAN_STEP, limit - self.scanned_to)
            if size < TIMER_UNIT_SIZE:
                if file.segment.size - at > _BLANK.size + TIMER_UNIT_SIZE:
                    return
                self.scanned_to = file.end
                continue
            data = file.segment.read_cold(at, size)
            for within in range(0, size - TIMER_UNIT_SIZE + 1, TIMER_UNIT_SIZE):
                unit = read_unit(data, within, self.scanned_to)
                if unit is None:
                    return
                self.scanned_to += TIMER_UNIT_SIZE
                yield unit

    def cut_at(self, end: int) -> None:
        """Cut the timer log off at ``end``, and append the next unit there."""
        assert self.start <= end <= self.capacity
        self.files.truncate(end)
        self.end = end
        self._current = self.files.at(end)

    def go_on_behind(self, end: int) -> int:
        """Cut the timer log off at ``end``, and append the next unit to a new file.

        Return the first position of that file.
        """
        self.cut_at(end)
        if self._current is not None:
            self.end = self._current.end
            self._current = None
        return self.end

    def files_before(self, position: int) -> list[MappedFile]:
        """Return the oldest files of the timer log, as far as they end at or before ``position``.

        The last file is never among them.
        """
        return [file for file in self.files.files[:-1] if file.end <= position]

    def remove_before(self, position: int) -> None:
        """Delete the oldest files of the timer log, as far as they end at or before ``position``.

        The call blocks the thread. Raises OSError.
        """
        for file in self.files_before(position):
            self._disk.remove(file.segment.path)
            self.files.forget_first()

    def prepare(self) -> None:
        """Start to make the next file in a thread if the current file is nearly full.

        The owner calls this periodically.
        """
        if self._current is not None and self._current.end - self.end < self.files.file_size // 4:
            self.files.prepare_next()

    def drop_before(self, log_start: int) -> list[MappedFile]:
        """Return the oldest files. Their messages are no longer in the commit log.

        The commit log begins at ``log_start``. The last file is never returned. The caller deletes
        each file, and then calls ``files.forget_first``.
        """
        found = []
        for file in self.files.files[:-1]:
            last = (
                file.segment.size - _BLANK.size
            ) // TIMER_UNIT_SIZE * TIMER_UNIT_SIZE - TIMER_UNIT_SIZE
            unit = read_unit(file.segment.read(last, TIMER_UNIT_SIZE), 0, file.start + last)
            if unit is None or unit.offset >= log_start:
                break
            found.append(file)
        return found

    def remove(self) -> None:
        """Delete every file, so that the timer log is empty."""
        self.files.remove_all()
        self.files = self.files.emptied()
        self.end = 0
        self._current = None

    def close(self) -> None:
        self.files.close()
        self._current = None

    def _roll(self) -> MappedFile:
        """Start a new file of the timer log, and end the current one with a blank."""
        current = self._current
        start = current.end if current is not None else self.end
        if not self.files:
            self._disk.make_directory(self._directory)
        fresh = self.files.append_file(start)
        if current is not None:
            at = self.end - current.start
            _BLANK.pack_into(current.buffer, at, current.end - self.end, 0, _MAGIC_BLANK)
            current.dirty = True
        self._current = fresh
        self.end = start
        return fresh
