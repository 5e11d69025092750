"""One queue of one topic: a row of units that point into the commit log.

::

    unit, 20 bytes:   8 commit-log offset   4 entry size   8 tagsCode   300,000 units a file
    leading unit of a queue whose first file begins mid-queue:   (0, 7FFFFFFF, 0)
    gap, a message that was damaged in the log (ours):           (offset, 7FFFFFFF, 0)
    end of the queue: a unit of size 0

``index`` is the number of a unit; clients call it the queue offset. Source: apache/rocketmq
``ConsumeQueue``. Units are derived data: they can be rebuilt from the log at any time.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from turbopump.disk.disk import Disk, Piece, SparseSegment
from turbopump.store.mapped_file import MappedFile
from turbopump.store.mapped_file_queue import MappedFileQueue
from turbopump.store.sparse_files import PAGE, OpenFiles
from turbopump.store.watermark import Watermark

UNIT_SIZE: Final = 20
NO_MESSAGE_SIZE: Final = 0x7FFFFFFF
"""Size field of a unit without a message: a leading unit or a gap."""
EXTENDED_TAGS_MAX: Final = -0x8000_0001
"""Largest tagsCode that is an address in one of Apache's ConsumeQueueExt files."""

OFFSET_MAX: Final = 1 << 60
"""Upper bound of valid log offsets."""
UNIT: Final = struct.Struct(">qiq")
_pack_into = UNIT.pack_into
pack_unit: Final = UNIT.pack
"""Packs commit-log offset, entry size and tagsCode into 20 bytes."""
unpack_unit: Final = UNIT.unpack_from


class ConsumeQueue:
    """One queue of a topic, stored as a row of units that point into the log.

    ``end`` is the watermark of visible units. Pulls that wait for messages wait for it to grow.
    """

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
        self.files = MappedFileQueue(
            disk,
            (directory,),
            file_size - file_size % UNIT_SIZE,
            open_files=open_files or OpenFiles(disk.maps_max),
            unit_size=UNIT_SIZE,
        )
        self._file: MappedFile | None = None
        self._found: _FoundEnd | None = None
        self.min_index = 0
        """Index of the first unit whose message is still in the log."""
        self.max_index = 0
        """Index of the next unit to append."""
        self.opened_at = 0
        """Index of the first unit that this process wrote. Units before it may not be in memory."""
        self.deleted_until = 0
        """Log offset up to which the messages of the topic were deleted with it."""
        self.end = Watermark()

    def load(self) -> None:
        """Open the files of the queue, and find its first and last unit."""
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
        """Append the queue unit with this index.

        Return False if units before it are missing. An existing unit is overwritten with the same
        bytes. Raises OSError if there is no space.
        """
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
        """Append adjacent packed units to the queue, with one copy for each file.

        Return False if units before ``index`` are missing.
        """
        if index != self.max_index:
            return all(
                self.append(index + number, *unit)
                for number, unit in enumerate(UNIT.iter_unpack(units))
            )
        self._file = self._write_units(index, units, self._file)
        self.max_index = index + len(units) // UNIT_SIZE
        return True

    def overwrite(self, index: int, units: bytes) -> None:
        """Overwrite existing units of the queue with packed units. Raises OSError."""
        self._write_units(index, units, None)

    def _write_units(self, index: int, units: bytes, file: MappedFile | None) -> MappedFile | None:
        """Write packed units to the files of the queue, and return the file of the last unit.

        ``file`` is used for the first unit if that lies in it.
        """
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
        """Overwrite one existing unit of the queue. Raises OSError."""
        position = index * UNIT_SIZE
        file = self._writable(position, position + UNIT_SIZE)
        _pack_into(file.buffer, position - file.start, physical_offset, size, tags_code)
        if not file.dirty:
            self.files.note_written(file)

    def fill_gap(self, index: int, physical_offset: int) -> None:
        """Append gap units up to ``index``, for messages that were damaged at ``physical_offset``
        of the log."""
        while self.max_index < index:
            # with 0 it would be a leading unit
            self.append(self.max_index, max(physical_offset, 1), NO_MESSAGE_SIZE, 0)

    def begin_empty_at(self, index: int) -> None:
        """Set the next index of an empty queue whose messages are no longer in the log.

        ``index`` must be above 0. The last leading unit then has the size 1, because RocketMQ
        derives the end of the queue's newest message from the last unit: offset + size. It drops
        messages up to there.
        """
        self.begin_at(index)
        if self.files.start < index * UNIT_SIZE:
            self.rewrite(index - 1, 0, 1, 0)

    def room_missing(self, count: int) -> int:
        """Return the most bytes of disk space that ``make_room`` can need for ``count`` units."""
        return self.files.room_missing((self.max_index + count) * UNIT_SIZE)

    def make_room(self, count: int) -> None:
        """Allocate disk space for the next ``count`` units, so that appending them cannot fail.

        Raises OSError, for example on a full disk.
        """
        file = self._file
        begin = self.max_index * UNIT_SIZE
        end = begin + count * UNIT_SIZE
        if file is None or end > file.room:
            self._file = self._writable(begin, end)

    def _writable(self, begin: int, end: int) -> MappedFile:
        """Make a range of the queue's bytes writable, and return the file of the first byte.

        Raises OSError, for example on a full disk.
        """
        self._found = None
        return self.files.make_room(begin, end)

    def units(self, index: int, count: int) -> bytes:
        """Return the packed units of the queue from ``index`` on, ``count`` at most.

        All of them come from one file. The result is empty if there are none.
        """
        found = self._found
        if found is not None and self.min_index <= index and found.begin <= index:
            return found.units(index, min(count, self.max_index - index))
        piece = self.piece(index, count)
        return piece.segment.read(piece.at, piece.size) if piece is not None else b""

    def piece(self, index: int, count: int) -> Piece | None:
        """Return the piece of a file with the units from ``index`` on, ``count`` at most.

        Return None if there are no units.
        """
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
        """Return log offset, size and tags code of one unit, or None if it does not exist."""
        raw = self.units(index, 1)
        return UNIT.unpack(raw) if raw else None

    def cut_at(
        self, physical_offset: int, is_there: Callable[[ConsumeQueue, int, int, int], bool]
    ) -> None:
        """Remove the units at the end of the queue that recovery cannot use.

        These are the units whose messages lie at ``physical_offset`` of the log or behind it.
        Before them, the last units are removed for which ``is_there(queue, index, offset, size)``
        is False, because after a power cut they may point anywhere.
        """
        # Units are written after their entries, but the system may save their pages first. So after
        # a power cut the last units may point behind the log, or to bytes that never came. The
        # binary search passes most of them in a few reads. Then they are tried one by one.
        last = self._offset_of(self.max_index - 1)
        index = self.max_index
        if last is None or last >= physical_offset:
            index = self.first_at(physical_offset)
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
        """Free the units that ``load`` has kept in memory for the rest of the start."""
        self._found = None

    @property
    def ends_with_a_file(self) -> bool:
        """True if the next unit would be the first of a new file.

        The files behind it may then have been removed unnoticed.
        """
        return self.max_index * UNIT_SIZE % self.files.file_size == 0

    def first_at(self, physical_offset: int) -> int:
        """Return the index of the first unit whose message is at or behind this log offset.

        The search is binary. It ignores damaged units, and never skips an undamaged one because of
        them.
        """
        return first_unit_at(physical_offset, self.min_index, self.max_index, self._offset_of)

    def _offset_of(self, index: int) -> int | None:
        """Return the log offset in a unit, or None if the unit is visibly damaged."""
        offset, size, _ = self.unit(index) or (0, 0, 0)
        return possible_offset(offset, size)

    def raise_min(self, log_start: int) -> None:
        """Move the start of the queue to the first message that is still in the log.

        The log begins at ``log_start``. The start of the queue never moves back.
        """
        if not self.is_trimmed(log_start):
            self.min_index = self._first_from(log_start)

    def is_trimmed(self, log_start: int) -> bool:
        """Return True if the queue has been trimmed to ``log_start``, the start of the log.

        Any unit of the queue that points before ``log_start`` is then damaged.
        """
        first = self.unit(self.min_index) if log_start > 0 else None
        return (
            first is None or first[0] >= log_start or self._first_from(log_start) == self.min_index
        )

    def lower_min(self, index: int) -> None:
        """Move the start of the queue back to ``index``, if the queue has a unit there.

        The message of that unit must be in the log.
        """
        if self.files.start <= index * UNIT_SIZE and index < self.min_index:
            self.min_index = index

    def files_before(self, log_start: int) -> list[MappedFile]:
        """Return the oldest files of the queue. Their messages are no longer in the log.

        The log begins at ``log_start``. The last file is never among them, because it contains the
        next index.
        """
        self.raise_min(log_start)
        return [file for file in self.files.files[:-1] if file.end <= self.min_index * UNIT_SIZE]

    def forget_first(self, file: MappedFile) -> None:
        """Take the first file out of the queue, after its deletion from the disk."""
        self.files.forget_first(file)

    @property
    def last_unit(self) -> tuple[int, int, int] | None:
        """Last unit of the queue if it points to a message, or None."""
        unit = self.unit(self.max_index - 1)
        return unit if unit is not None and unit[1] != NO_MESSAGE_SIZE else None

    def close(self) -> None:
        self.files.close()
        self._file = None

    def remove(self) -> None:
        """Delete the files of the queue."""
        self.files.remove_all()
        self._file = None

    def _first_from(self, log_start: int) -> int:
        """Return the index of the first unit whose message is at or behind ``log_start``.

        A unit is not trusted if its offset lies before that of the unit before it.
        """
        index = self.first_at(log_start)
        while index > self.min_index and not self._follows(index - 1, log_start):
            index -= 1
        return index

    def _follows(self, index: int, log_start: int) -> bool:
        """Return True if a unit points before ``log_start``, but behind the message of the previous
        unit."""
        here = self._offset_of(index)
        position = (index - 1) * UNIT_SIZE
        if here is None or here >= log_start:
            return False
        file = self.files.at(position)  # the unit may be before the queue's start
        if file is None:
            return True
        before, size, _ = UNIT.unpack(file.segment.read(position - file.start, UNIT_SIZE))
        end = before
        if size != NO_MESSAGE_SIZE:
            end += size
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
        self.begin_at(index)  # its earlier messages are no longer in the log
        return self.append(index, physical_offset, size, tags_code)

    def begin_at(self, index: int) -> None:
        """Set the start of an empty queue to ``index``.

        The units before ``index`` in its first file are marked as leading units, which have no
        message.
        """
        # Apache's broker expects that the first file begins at a multiple of its size. The units of
        # that file before ``index`` have no messages, and are marked, so that no reader takes them
        # for damage.
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
        """Move the start of the queue behind the leading units. These units have no messages."""

        def is_other(index: int) -> bool:
            offset, size, _ = self.unit(index) or (0, 0, 0)
            return size != NO_MESSAGE_SIZE or offset != 0

        self.min_index += bisect_left(range(self.min_index, self.max_index), True, key=is_other)


class _FoundEnd:
    """End of the units in a queue file, as found when the file was opened.

    ``index`` is the end. The units from ``begin`` on were read for the search. They are kept until
    the queue is written.
    """

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
        """Find the end of the units in a file: the first unit of size 0."""
        # Everything behind the last page with data is zero, so the end nearly always lies in that
        # page. A binary search of the whole file would bring twenty pages into memory.
        segment = cast(SparseSegment, file.segment)
        at, tail = segment.tail(PAGE + UNIT_SIZE)
        begin = -(-at // UNIT_SIZE)
        count = -(-(at + len(tail)) // UNIT_SIZE)
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
        """Return ``count`` of the kept packed units, from ``index`` on."""
        at = (index - self.begin) * UNIT_SIZE
        return self._units[at : at + count * UNIT_SIZE] if count > 0 else b""

    def ends(self, files: MappedFileQueue, index: int) -> bool:
        """Return True if the queue has only zeros from ``index`` on. A cut at ``index`` then
        changes nothing."""
        return self._is_all and index >= self.index and files.files[-1] is self.file


def possible_offset(offset: int, size: int) -> int | None:
    """Return the log offset in a unit, or None if the unit is visibly damaged."""
    return offset if 0 <= offset < OFFSET_MAX and size > 0 else None


def first_unit_at(
    physical_offset: int, low: int, high: int, offset_of: Callable[[int], int | None]
) -> int:
    """Return the index of the first unit whose message is at or behind this log offset.

    The search covers the units from ``low`` to ``high``. ``offset_of`` returns the log offset in a
    unit, or None if the unit is damaged. The search ignores damaged units, and never skips an
    undamaged one because of them.
    """
    # The offsets of undamaged units grow with the index. A damaged unit may have any offset. If it
    # has a small one, to go right there would pass over good units before it. So the search goes
    # right only if the unit before agrees, or is visibly damaged.
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
