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
from typing import ClassVar, Final

from turbopump.message.codec import FIXED_SIZE
from turbopump.store.disk import Disk, Piece, Segment
from turbopump.store.mapped_file import MappedFile, MappedFiles
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

    is_batch: ClassVar[bool] = False
    """Whether a unit may stand for several messages (``batch_consume_queue.py``)."""
    unit_size: ClassVar[int] = UNIT_SIZE
    """Bytes of a unit in its files."""
    message_size_min: ClassVar[int] = FIXED_SIZE
    """Bytes of the log that a message of such a queue takes at least."""

    __slots__ = (
        "_file",
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
        self, disk: Disk, directory: Path, topic: str, queue_id: int, file_size: int
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFiles(disk, (directory,), file_size - file_size % self.unit_size)
        self._file: MappedFile | None = None
        self.min_index = 0
        """Index of the first unit whose message is still there."""
        self.max_index = 0
        """Index of the next unit."""
        self.opened_at = 0
        """Index of the first unit that this process wrote: those before may not be in memory."""
        self.deleted_until = 0
        """Offset of the log up to which the messages of its topic were deleted with it."""
        self.end = Watermark()

    @property
    def _next_number(self) -> int:
        """Number of the next unit in the files."""
        return self.max_index

    def load(self) -> None:
        """Map the files and find the last unit."""
        self.files.load()
        for file in reversed(self.files.files):
            count = _units_used(file)
            if count:
                self._set_end((file.start // UNIT_SIZE) + count)
                break
        else:
            self._set_end(self.files.start // UNIT_SIZE)
        self.min_index = self.files.start // UNIT_SIZE
        self._skip_leading()

    def append(
        self,
        index: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        stored_ms: int = 0,
        count: int = 1,
    ) -> bool:
        """Put the unit ``index``; False if units before it are missing. One that is already there
        is written again, the same. ``stored_ms`` and ``count`` (of messages) are for batch
        queues."""
        if index != self.max_index:
            return self._append_elsewhere(index, physical_offset, size, tags_code)
        position = index * UNIT_SIZE
        file = self._file
        if file is None or position >= file.end:
            file = self._file_for(index)
        _pack_into(file.buffer, position - file.start, physical_offset, size, tags_code)
        file.dirty = True
        self.max_index = index + 1
        return True

    def append_many(self, index: int, units: bytes, stored_ms: int = 0) -> bool:
        """``append`` for units that follow each other, packed: one copy for each file that holds
        some of them."""
        if index != self.max_index:
            return all(
                self.append(index + number, *unit)
                for number, unit in enumerate(UNIT.iter_unpack(units))
            )
        position, file = index * UNIT_SIZE, self._file
        while units:
            if file is None or position >= file.end:
                file = self._file_for(position // UNIT_SIZE)
            here = units[: file.end - position]
            at = position - file.start
            file.buffer[at : at + len(here)] = here
            file.dirty = True
            position += len(here)
            units = units[len(here) :]
        self.max_index = position // UNIT_SIZE
        return True

    def rewrite(self, index: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Overwrite a unit that is there."""
        file = self.files.at(index * UNIT_SIZE)
        assert file is not None
        _pack_into(file.buffer, index * UNIT_SIZE - file.start, physical_offset, size, tags_code)
        file.dirty = True

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
        file = self.files.at((index - 1) * UNIT_SIZE)
        if file is not None:
            _pack_into(file.buffer, (index - 1) * UNIT_SIZE - file.start, 0, 1, 0)

    def new_file_for(self, count: int) -> int:
        """Bytes of the file that ``make_room`` would make; 0 if it needs none."""
        end = (self._next_number + count) * self.unit_size
        return 0 if self.files and self.files.files[-1].end >= end else self.files.file_size

    def make_room(self, count: int) -> None:
        """Make the files that the next ``count`` units need, so that appending them cannot fail.
        Raises OSError."""
        file, begin = self._file, self._next_number * self.unit_size
        end = begin + count * self.unit_size
        if file is not None and end <= file.end:
            return
        while not self.files or self.files.files[-1].end < end:
            start = begin - begin % self.files.file_size
            self.files.append_file(self.files.files[-1].end if self.files else start)

    def units(self, index: int, count: int) -> bytes:
        """Up to ``count`` units from ``index`` on as raw bytes, as many as one file holds; empty
        where there are none."""
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
        if self.files:
            self.files.truncate(index * UNIT_SIZE)
            self._file = self.files.at(index * UNIT_SIZE)

    @property
    def ends_with_a_file(self) -> bool:
        """Whether the next unit would be the first of a file: then the files behind may have been
        taken away."""
        return self._next_number * self.unit_size % self.files.file_size == 0

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
            first is None
            or first[0] >= log_start
            or (not self.is_batch and self._first_from(log_start) == self.min_index)
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

    def dirty_segments(self) -> list[Segment]:
        return self.files.dirty_segments()

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
            UNIT.unpack_from(file.buffer, position - file.start) if file is not None else (0, 0, 0)
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
        file = self.files.append_file(first * UNIT_SIZE)
        for number in range(index - first):
            _pack_into(file.buffer, number * UNIT_SIZE, 0, NO_MESSAGE_SIZE, 0)
        file.dirty = True
        self.min_index = index
        self._set_end(index)

    def _file_for(self, index: int) -> MappedFile:
        position = index * UNIT_SIZE
        file = self.files.at(position)
        if file is None:
            file = self.files.append_file(position - position % self.files.file_size)
        self._file = file
        return file

    def _set_end(self, index: int) -> None:
        self.max_index = index
        self._file = self.files.at(index * UNIT_SIZE)

    def _skip_leading(self) -> None:
        """Let the queue begin behind its leading units."""

        def is_other(index: int) -> bool:
            offset, size, _ = self.unit(index) or (0, 0, 0)
            return size != NO_MESSAGE_SIZE or offset != 0

        self.min_index += bisect_left(range(self.min_index, self.max_index), True, key=is_other)


def _units_used(file: MappedFile) -> int:
    """How many units from the start of a file on are written (binary search: a unit of size 0 is
    the end)."""

    def is_free(number: int) -> bool:
        offset, size, _ = unpack_unit(file.buffer, number * UNIT_SIZE)
        return not (offset >= 0 and size > 0)

    return bisect_left(range((file.end - file.start) // UNIT_SIZE), True, key=is_free)


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
