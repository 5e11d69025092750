"""One queue of one topic: a row of units that point into the commit log.

::

    unit, 20 bytes:   8 commit-log offset   4 entry size   8 tagsCode   300,000 units a file
    leading unit of a queue whose first file begins mid-queue:   (0, 7FFFFFFF, 0)
    gap, a message that was damaged in the log (ours):           (offset, 7FFFFFFF, 0)
    end of the queue: a unit of size 0

``index`` counts units and is what clients call the queue offset. Source: apache/rocketmq
``ConsumeQueue``. Derived data: it can be rebuilt from the log at any time.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from turbopump.disk.disk import Disk, Piece, SparseSegment
from turbopump.store.mapped_file import PAGE, MappedFile, MappedFiles, OpenFiles
from turbopump.store.watermark import Watermark

UNIT_SIZE: Final = 20
NO_MESSAGE_SIZE: Final = 0x7FFFFFFF
"""The size in a unit that points to no message: leading units and gaps."""
EXTENDED_TAGS_MAX: Final = -0x8000_0001
"""A tagsCode at or below this is an address in one of Apache's ConsumeQueueExt files."""

OFFSET_MAX: Final = 1 << 60
"""No log is that long."""
UNIT: Final = struct.Struct(">qiq")
_pack_into = UNIT.pack_into
pack_unit: Final = UNIT.pack
"""20 bytes from commit-log offset, entry size and tagsCode."""
unpack_unit: Final = UNIT.unpack_from


class ConsumeQueue:
    """The queue in ``directory``. ``end`` is the watermark of visible units: held pulls wait on
    it."""

    __slots__ = (
        "_file",
        "_found",
        "deleted_until",
        "end",
        "files",
        "max_index",
        "min_index",
        "opened_at",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFiles(
            disk,
            (directory,),
            file_size - file_size % UNIT_SIZE,
            open_files=open_files or OpenFiles(disk.maps_max),
            unit_size=UNIT_SIZE,
        )
        self._file: MappedFile | None = None
        self._found: _FoundEnd | None = None
        self.min_index = 0
        """Index of the first unit whose message is still there."""
        self.max_index = 0
        """Index of the next unit."""
        self.opened_at = 0
        """Index of the first unit that this process wrote: those before may not be in memory."""
        self.deleted_until = 0
        """Offset of the log up to which the messages of its topic were deleted with it."""
        self.end = Watermark()

    def load(self) -> None:
        """Find the files and the last unit."""
        self.files.load()
        for file in reversed(self.files.files):
            found = _FoundEnd.of(file)
            if found.index > file.start // UNIT_SIZE:
                self._found = found
                self._set_end(found.index)
                break
        else:
            self._set_end(self.files.start // UNIT_SIZE)
        self.min_index = self.files.start // UNIT_SIZE
        self._skip_leading()

    def append(self, index: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Put the unit ``index``; False if units before it are missing. One that is already there
        is written again, the same."""
        if index != self.max_index:
            return self._append_elsewhere(index, physical_offset, size, tags_code)
        position = index * UNIT_SIZE
        file = self._file
        if file is None or position >= file.room:
            file = self._file = self._writable(position, position + UNIT_SIZE)
        _pack_into(file.buffer, position - file.start, physical_offset, size, tags_code)
        if not file.dirty:
            self.files.note_written(file)
        self.max_index = index + 1
        return True

    def append_many(self, index: int, units: bytes) -> bool:
        """``append`` for units that follow each other, packed: one copy for each file that holds
        some of them."""
        if index != self.max_index:
            return all(
                self.append(index + number, *unit)
                for number, unit in enumerate(UNIT.iter_unpack(units))
            )
        self._file = self._write_units(index, units, self._file)
        self.max_index = index + len(units) // UNIT_SIZE
        return True

    def overwrite(self, index: int, units: bytes) -> None:
        """Overwrite packed units that are there. Raises OSError."""
        self._write_units(index, units, None)

    def _write_units(self, index: int, units: bytes, file: MappedFile | None) -> MappedFile | None:
        """Write packed units, from ``file`` on if that has their first; return the file of the
        last."""
        position = index * UNIT_SIZE
        while units:
            if file is None or position >= file.room:
                file = self._writable(position, position + len(units))
            here = units[: file.room - position]
            at = position - file.start
            file.buffer[at : at + len(here)] = here
            if not file.dirty:
                self.files.note_written(file)
            position += len(here)
            units = units[len(here) :]
        return file

    def rewrite(self, index: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Overwrite a unit that is there. Raises OSError."""
        position = index * UNIT_SIZE
        file = self._writable(position, position + UNIT_SIZE)
        _pack_into(file.buffer, position - file.start, physical_offset, size, tags_code)
        if not file.dirty:
            self.files.note_written(file)

    def fill_gap(self, index: int, physical_offset: int) -> None:
        """Mark the units from the end up to ``index`` as gaps: their messages were damaged at
        ``physical_offset``."""
        while self.max_index < index:
            # with 0 it would be a leading unit
            self.append(self.max_index, max(physical_offset, 1), NO_MESSAGE_SIZE, 0)

    def begin_empty_at(self, index: int) -> None:
        """Let an empty queue go on at ``index`` (above 0), as one whose messages the log no longer
        has. Its last leading unit then has the size 1: RocketMQ takes offset + size of the last
        unit for the newest message of the queue, and drops others up to there."""
        self.begin_at(index)
        if self.files.start < index * UNIT_SIZE:
            self.rewrite(index - 1, 0, 1, 0)

    def room_missing(self, count: int) -> int:
        """Bytes of the disk that ``make_room`` would take at most; 0 if it needs none."""
        return self.files.room_missing((self.max_index + count) * UNIT_SIZE)

    def make_room(self, count: int) -> None:
        """Make the files that the next ``count`` units need, and give them their blocks, so that
        appending them cannot fail. Raises OSError."""
        file, begin = self._file, self.max_index * UNIT_SIZE
        end = begin + count * UNIT_SIZE
        if file is None or end > file.room:
            self._file = self._writable(begin, end)

    def _writable(self, begin: int, end: int) -> MappedFile:
        """The file with the byte ``begin`` of the row; up to ``end`` may be written. Raises
        OSError."""
        self._found = None
        return self.files.make_room(begin, end)

    def units(self, index: int, count: int) -> bytes:
        """Up to ``count`` units from ``index`` on as raw bytes, as many as one file holds; empty
        where there are none."""
        found = self._found
        if found is not None and self.min_index <= index and found.begin <= index:
            return found.units(index, min(count, self.max_index - index))
        piece = self.piece(index, count)
        return piece.segment.read(piece.at, piece.size) if piece is not None else b""

    def piece(self, index: int, count: int) -> Piece | None:
        """Where ``units`` reads; None where there are none."""
        count = min(count, self.max_index - index)
        if count <= 0 or index < self.min_index:
            return None
        position = index * UNIT_SIZE
        file = self.files.at(position)
        if file is None:
            return None
        at = position - file.start
        return Piece(file.segment, at, min(count * UNIT_SIZE, file.segment.size - at))

    def unit(self, index: int) -> tuple[int, int, int] | None:
        """(commit-log offset, size, tagsCode) of one unit."""
        raw = self.units(index, 1)
        return UNIT.unpack(raw) if raw else None

    def cut_at(
        self, physical_offset: int, is_there: Callable[[ConsumeQueue, int, int, int], bool]
    ) -> None:
        """Cut every unit whose message lies at or after ``physical_offset``, an offset up to which
        units are known to be on the disk, and the last ones for which not ``is_there(queue, index,
        offset, size)``: after a power cut what is behind may point anywhere.
        """
        last = self._offset_of(self.max_index - 1)
        nothing = last is not None and last < physical_offset
        index = self.max_index if nothing else self.first_at(physical_offset)
        while index > self.min_index:
            unit = self.unit(index - 1)
            if (
                unit is not None
                and 0 <= unit[0] < physical_offset
                and (unit[1] == NO_MESSAGE_SIZE or is_there(self, index - 1, unit[0], unit[1]))
            ):
                break
            index -= 1
        self._set_end(index)
        if self.files and not (self._found is not None and self._found.ends(self.files, index)):
            self.files.truncate(index * UNIT_SIZE)
            self._file = self.files.at(index * UNIT_SIZE)

    def forget_found(self) -> None:
        """Let go of what ``load`` has read, which saves a start many reads."""
        self._found = None

    @property
    def ends_with_a_file(self) -> bool:
        """Whether the next unit would be the first of a file: then the files behind may have been
        taken away."""
        return self.max_index * UNIT_SIZE % self.files.file_size == 0

    def first_at(self, physical_offset: int) -> int:
        """The index of the first unit at or after this offset of the log (binary search). Damaged
        ones are passed over, and never a reason to pass over others."""
        return first_unit_at(physical_offset, self.min_index, self.max_index, self._offset_of)

    def _offset_of(self, index: int) -> int | None:
        """Where in the log a unit points; None if it is damaged, as far as the unit alone shows."""
        offset, size, _ = self.unit(index) or (0, 0, 0)
        return possible_offset(offset, size)

    def raise_min(self, log_start: int) -> None:
        """Let the queue begin at its first unit whose message is at or after ``log_start``."""
        if not self.is_trimmed(log_start):
            self.min_index = self._first_from(log_start)

    def is_trimmed(self, log_start: int) -> bool:
        """Whether the queue begins where a log does that begins at ``log_start``: then a unit that
        points before that is damaged."""
        first = self.unit(self.min_index) if log_start > 0 else None
        return (
            first is None or first[0] >= log_start or self._first_from(log_start) == self.min_index
        )

    def lower_min(self, index: int) -> None:
        """The log has the message ``index``: let the queue begin there, if it begins behind it and
        has a unit for it."""
        if self.files.start <= index * UNIT_SIZE and index < self.min_index:
            self.min_index = index

    def files_before(self, log_start: int) -> list[MappedFile]:
        """The files from the front on whose messages all lie before ``log_start``; never the last,
        which knows where the queue goes on."""
        self.raise_min(log_start)
        return [file for file in self.files.files[:-1] if file.end <= self.min_index * UNIT_SIZE]

    def forget_first(self, file: MappedFile) -> None:
        """The first file was removed."""
        self.files.forget_first(file)

    @property
    def last_unit(self) -> tuple[int, int, int] | None:
        """The last unit that points to a message; None for an empty queue."""
        unit = self.unit(self.max_index - 1)
        return unit if unit is not None and unit[1] != NO_MESSAGE_SIZE else None

    def close(self) -> None:
        self.files.close()
        self._file = None

    def remove(self) -> None:
        """Delete the queue's files."""
        self.files.remove_all()
        self._file = None

    def _first_from(self, log_start: int) -> int:
        """The first unit at or after ``log_start``. One that says that its message is before that
        of the unit before it is not believed."""
        index = self.first_at(log_start)
        while index > self.min_index and not self._follows(index - 1, log_start):
            index -= 1
        return index

    def _follows(self, index: int, log_start: int) -> bool:
        """Whether what a unit says, which is that its message lies before ``log_start``, can be: it
        lies behind that of the unit before."""
        here, position = self._offset_of(index), (index - 1) * UNIT_SIZE
        if here is None or here >= log_start:
            return False
        file = self.files.at(position)  # it may be one that the queue has no longer
        before, size, _ = (
            UNIT.unpack(file.segment.read(position - file.start, UNIT_SIZE))
            if file is not None
            else (0, 0, 0)
        )
        end = before + size if size != NO_MESSAGE_SIZE else before
        return possible_offset(before, size) is None or end <= here

    def _append_elsewhere(
        self, index: int, physical_offset: int, size: int, tags_code: int
    ) -> bool:
        if index < self.min_index:
            return True
        if index < self.max_index:
            self.rewrite(index, physical_offset, size, tags_code)
            return True
        if self.max_index > 0:
            return False
        self.begin_at(index)  # nothing before it is left: the log no longer has it
        return self.append(index, physical_offset, size, tags_code)

    def begin_at(self, index: int) -> None:
        """Start an empty queue in the middle: units before ``index`` in its first file are marked
        as leading."""
        self.files.remove_all()
        per_file = self.files.file_size // UNIT_SIZE
        first = index - index % per_file
        self.files = self.files.emptied()
        self.files.append_file(first * UNIT_SIZE)
        self._set_end(first)
        if index > first:
            self.make_room(index - first)
            self.append_many(first, pack_unit(0, NO_MESSAGE_SIZE, 0) * (index - first))
        self.min_index = index
        self._set_end(index)

    def _set_end(self, index: int) -> None:
        self.max_index = index
        self._file = self.files.at(index * UNIT_SIZE)

    def _skip_leading(self) -> None:
        """Let the queue begin behind its leading units."""

        def is_other(index: int) -> bool:
            offset, size, _ = self.unit(index) or (0, 0, 0)
            return size != NO_MESSAGE_SIZE or offset != 0

        self.min_index += bisect_left(range(self.min_index, self.max_index), True, key=is_other)


class _FoundEnd:
    """Where the units in a file end, found when it was opened: at ``index``. The units from
    ``begin`` on were read for it, and are kept until the queue is written."""

    __slots__ = ("_is_all", "_units", "begin", "file", "index")

    def __init__(self, file: MappedFile, index: int, begin: int, tail: bytes) -> None:
        self.file = file
        self.index = index
        self.begin = begin
        used = max(index - begin, 0) * UNIT_SIZE
        self._units = tail[:used]
        self._is_all = begin <= index and tail[used:] == bytes(len(tail) - used)

    @classmethod
    def of(cls, file: MappedFile) -> _FoundEnd:
        """A unit of size 0 is the end."""
        # Behind the last page that has data all is zero, so the end nearly always lies in that
        # page. A binary search of the whole file would bring twenty pages into memory.
        segment = cast(SparseSegment, file.segment)
        at, tail = segment.tail(PAGE + UNIT_SIZE)
        begin, count = -(-at // UNIT_SIZE), -(-(at + len(tail)) // UNIT_SIZE)
        tail = tail[begin * UNIT_SIZE - at :].ljust((count - begin) * UNIT_SIZE, b"\0")

        def is_free(number: int) -> bool:
            if number >= begin:
                offset, size, _ = unpack_unit(tail, (number - begin) * UNIT_SIZE)
            else:
                offset, size, _ = UNIT.unpack(segment.read_cold(number * UNIT_SIZE, UNIT_SIZE))
            return not (offset >= 0 and size > 0)

        first = begin if begin < count and not is_free(begin) else 0
        used = bisect_left(range(count), True, lo=first, key=is_free)
        before = file.start // UNIT_SIZE
        return cls(file, before + used, before + begin, tail)

    def units(self, index: int, count: int) -> bytes:
        """So many units from ``index`` on, of those that were read."""
        at = (index - self.begin) * UNIT_SIZE
        return self._units[at : at + count * UNIT_SIZE] if count > 0 else b""

    def ends(self, files: MappedFiles, index: int) -> bool:
        """Whether a queue that is cut at ``index`` ends there as it is: all behind is zero."""
        return self._is_all and index >= self.index and files.files[-1] is self.file


def possible_offset(offset: int, size: int) -> int | None:
    """Where in the log a unit points; None if it is damaged, as far as the unit alone shows."""
    return offset if 0 <= offset < OFFSET_MAX and size > 0 else None


def first_unit_at(
    physical_offset: int, low: int, high: int, offset_of: Callable[[int], int | None]
) -> int:
    """The number of the first unit, of those from ``low`` to ``high``, at or after this offset of
    the log. ``offset_of`` says where a unit points; damaged ones (None) are passed over, and never
    a reason to pass over others."""
    first = low
    while low < high:
        middle = at = (low + high) // 2
        offset = offset_of(at)
        while offset is None and at + 1 < high:
            at += 1
            offset = offset_of(at)
        before = offset_of(at - 1) if at > first else None
        if (
            offset is not None
            and offset < physical_offset
            and (before is None or before < physical_offset)
        ):
            low = at + 1
        else:
            high = middle
    return low
