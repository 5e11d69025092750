"""One queue of a topic with ``queue.type=BatchCQ``: a unit stands for an entry of the log, which
may hold several messages.

::

    unit, 46 bytes:   8 commit-log offset   4 entry size   8 tagsCode   8 store time (ms)
                      8 base: index of the entry's first message
                      2 count of its messages   4 compacted offset (−1)   4 reserved (0)
                      300,000 units a file by default
    gap (ours):       size 7FFFFFFF, store time 0
    end of the queue: a unit of size 0

An ``index`` counts messages and is what clients call the queue offset; a ``number`` counts units,
and says where in the files one lies. Units follow each other without holes: the base of one is base
+ count of the one before. A queue whose first messages are gone begins with number 0 all the same,
where it is written anew. Source: apache/rocketmq ``BatchConsumeQueue``. Derived data, as all queues
are.

One or a few damaged units never decide anything: where the units at the number in question do not
agree, all units are counted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, cast

from turbopump.store.disk import Disk, Piece, SparseSegment
from turbopump.store.mapped_file import PAGE, MappedFile, OpenFiles
from turbopump.store.queues.consume_queue import (
    NO_MESSAGE_SIZE,
    UNIT,
    ConsumeQueue,
    first_unit_at,
    pack_unit,
    possible_offset,
)

BATCH_UNIT_SIZE: Final = 46
COUNT_MAX: Final = 0x7FFF
"""Messages of one entry: the count is a signed short."""

_UNIT: Final = struct.Struct(">qiqqqhii")
_NOT_COMPACTED: Final = -1
_LOOK: Final = 204
"""Units behind the end of a file that are looked at: two sectors of 4 KiB may be damaged, and there
are units behind them all the same."""
_UNITS_AT_ONCE: Final = 10_000


class BatchUnit(NamedTuple):
    """A unit: where its entry lies in the log, what filters and times need of it, and which
    messages it holds."""

    offset: int
    size: int
    tags_code: int
    stored_ms: int
    base: int
    messages: int

    @property
    def end(self) -> int:
        """The index behind its last message."""
        return self.base + self.messages

    @property
    def can_be(self) -> bool:
        """Whether it may be a unit, as far as the unit alone shows."""
        return (
            possible_offset(self.offset, self.size) is not None
            and self.base >= 0
            and self.messages > 0
        )


def pack_batch_unit_into(buffer: Any, at: int, unit: BatchUnit) -> None:
    """Write its 46 bytes into a map."""
    _UNIT.pack_into(buffer, at, *unit, _NOT_COMPACTED, 0)


def batch_units(raw: bytes) -> list[BatchUnit]:
    """The whole units in ``raw``."""
    return [
        BatchUnit(*fields[:6])
        for fields in _UNIT.iter_unpack(raw[: len(raw) - len(raw) % BATCH_UNIT_SIZE])
    ]


def units_written(buffer: Any, room: int) -> int:
    """How many of the units from the start of a file on are written; it has ``room`` for so many.
    By binary search: behind the end all is zero, and damaged units do not look like the end as long
    as they are no more than ``_LOOK`` side by side."""

    def is_free(number: int) -> bool:
        return not BatchUnit(*_UNIT.unpack_from(buffer, number * BATCH_UNIT_SIZE)[:6]).can_be

    low = bisect_left(range(room), True, key=is_free)
    while data := bytes(
        buffer[low * BATCH_UNIT_SIZE : min(low + _LOOK, room) * BATCH_UNIT_SIZE]
    ).rstrip(b"\0"):
        low += -(-len(data) // BATCH_UNIT_SIZE)
    return low


class BatchConsumeQueue(ConsumeQueue):
    """The queue in ``directory``. What takes an ``index`` answers for the entry that holds that
    message."""

    is_batch: ClassVar[bool] = True
    unit_size: ClassVar[int] = BATCH_UNIT_SIZE
    message_size_min: ClassVar[int] = 22

    __slots__ = ("first_number", "next_number", "suspect", "tail_damaged")

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        open_files: OpenFiles | None = None,
    ) -> None:
        super().__init__(disk, directory, topic, queue_id, file_size, open_files)
        self.first_number = 0
        """Number of the first unit whose entry is still there."""
        self.next_number = 0
        """Number of the next unit."""
        self.suspect = False
        """Whether units round the first are damaged, so that ``min_index`` and ``first_number`` may
        be too low until they are repaired."""
        self.tail_damaged = False
        """Whether damaged units were found where the files end, or the queue was cut: it may have
        had more than it says."""

    def load(self) -> None:
        """Find the files and the last unit. Where the first one is damaged, ``min_index`` is 0,
        and the queue ``suspect``; damaged ones at the end are not counted, and ``tail_damaged``
        tells of them."""
        self.files.load()
        self.first_number = self.next_number = self.floor
        for file in reversed(self.files.files):
            at, tail = cast(SparseSegment, file.segment).tail(PAGE)
            room = -(-(at + len(tail)) // BATCH_UNIT_SIZE)
            room = min(room, (file.end - file.start) // BATCH_UNIT_SIZE)
            count = units_written(file.segment.buffer, room) if room else 0
            file.unmap()
            if count:
                self.next_number = file.start // BATCH_UNIT_SIZE + count
                break
        written = self.next_number
        while (last := self.unit_at(self.next_number - 1)) is not None and not last.can_be:
            self.next_number -= 1
        self.tail_damaged = self.next_number != written
        self._file = self.files.at(self.next_number * BATCH_UNIT_SIZE)
        first, second = self.unit_at(self.first_number), self.unit_at(self.first_number + 1)
        believable = (
            first is not None and first.can_be and (second is None or second.base == first.end)
        )
        self.suspect = written > self.first_number and not believable
        self.min_index = first.base if first is not None and believable else 0
        self.max_index = last.end if last is not None else 0

    @property
    def _next_number(self) -> int:
        return self.next_number

    @property
    def floor(self) -> int:
        """Number of the first unit in the files: its entry may be gone."""
        return self.files.start // BATCH_UNIT_SIZE

    def unit_at(self, number: int) -> BatchUnit | None:
        """The unit with this number, if it is there."""
        piece = self.numbered_piece(number, 1)
        return _read(piece)[0] if piece is not None else None

    def gone_unit(self, number: int) -> BatchUnit | None:
        """A unit before ``first_number`` that the files still have."""
        if not self.floor <= number < self.first_number:
            return None
        piece = self._piece_at(number, 1)
        return _read(piece)[0] if piece is not None else None

    def numbered_piece(self, number: int, count: int) -> Piece | None:
        """Where up to ``count`` units lie from this number on, as many as one file holds; None
        where there are none."""
        count = min(count, self.next_number - number)
        return self._piece_at(number, count) if count > 0 and number >= self.first_number else None

    def _piece_at(self, number: int, count: int) -> Piece | None:
        file = self.files.at(number * BATCH_UNIT_SIZE)
        if file is None:
            return None
        at = number * BATCH_UNIT_SIZE - file.start
        return Piece(file.segment, at, min(count * BATCH_UNIT_SIZE, file.segment.size - at))

    def number_of(self, index: int) -> int:
        """The number of the unit that holds the message ``index`` (binary search): the last whose
        base is not behind it."""

        def is_behind(number: int) -> bool:
            unit = self.unit_at(number)
            return unit is None or unit.base > index

        numbers = range(self.first_number, self.next_number)
        return self.first_number + bisect_left(numbers, True, key=is_behind) - 1

    def begin_with(self, number: int, index: int) -> None:
        """The first unit whose entry is there is found to be this one, and its first message
        ``index``."""
        self.first_number, self.min_index = number, index

    def rewrite_at(self, number: int, unit: BatchUnit) -> None:
        """Overwrite a unit that is there. Raises OSError."""
        position = number * BATCH_UNIT_SIZE
        file = self.files.make_room(position, position + BATCH_UNIT_SIZE)
        pack_batch_unit_into(file.buffer, position - file.start, unit)
        if not file.dirty:
            self.files.note_written(file)

    def append(
        self,
        index: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        stored_ms: int = 0,
        count: int = 1,
    ) -> bool:
        """Put the unit of ``count`` messages from ``index`` on; False if messages before it are
        missing. A unit that is already there is written again, the same; if another is there (the
        topic was deleted and made again), it goes, with all behind it."""
        unit = BatchUnit(physical_offset, size, tags_code, stored_ms, index, count)
        if index != self.max_index:
            return self._append_apart(unit)
        self._write(unit)
        return True

    def append_many(self, index: int, units: bytes, stored_ms: int = 0) -> bool:
        """``append`` for entries of one message each; ``units`` as a plain queue has them."""
        numbered = enumerate(UNIT.iter_unpack(units), index)
        return all(
            self.append(at, offset, size, tags, stored_ms) for at, (offset, size, tags) in numbered
        )

    def fill_gap(self, index: int, physical_offset: int) -> None:
        """Mark the messages from the end up to ``index`` as gaps: they were damaged at
        ``physical_offset``."""
        while self.max_index < index:
            count = min(index - self.max_index, COUNT_MAX)
            self._write(BatchUnit(physical_offset, NO_MESSAGE_SIZE, 0, 0, self.max_index, count))

    def begin_empty_at(self, index: int) -> None:
        """Let an empty queue go on at ``index`` (above 0), as one whose messages the log no longer
        has: by a unit of size 1 that points before all of it. (RocketMQ takes offset + size of the
        last unit for the newest message of the queue.)"""
        self._write(BatchUnit(0, 1, 0, 0, index - 1, 1))
        self.min_index, self.first_number = index, self.next_number

    def units(self, index: int, count: int) -> bytes:
        """The units of up to ``count`` messages from ``index`` on, as a plain queue would have
        them: one for each message, so that what only looks at sizes need not know. The size is that
        of the entry in the unit of its first message, 0 in the others."""
        parts: list[bytes] = []
        end = min(index + count, self.max_index)
        number = self.number_of(index) if self.min_index <= index < end else self.next_number
        while (
            index < end
            and (unit := self.unit_at(number)) is not None
            and unit.base <= index < unit.end
        ):
            if index == unit.base:
                parts.append(pack_unit(*unit[:3]))
                index += 1
            more = min(unit.end, end) - index
            parts.append(pack_unit(unit.offset, 0, unit.tags_code) * more)
            index += more
            number += 1
        return b"".join(parts)

    def piece(self, index: int, count: int) -> Piece | None:
        """Where the unit of the message ``index`` lies, and those behind it; None where there is
        none."""
        if not self.min_index <= index < self.max_index:
            return None
        return self.numbered_piece(self.number_of(index), count)

    def unit(self, index: int) -> tuple[int, int, int] | None:
        """(commit-log offset, size, tagsCode) of the entry that holds a message."""
        unit = self.unit_of(index)
        return unit[:3] if unit is not None else None

    def unit_of(self, index: int) -> BatchUnit | None:
        """The unit of the message ``index``; None if there is none, or the units round it are
        damaged."""
        if not self.min_index <= index < self.max_index:
            return None
        unit = self.unit_at(self.number_of(index))
        return unit if unit is not None and unit.base <= index < unit.end else None

    def cut_at(
        self, physical_offset: int, is_there: Callable[[ConsumeQueue, int, int, int], bool]
    ) -> None:
        number, agreed = self._border_at(physical_offset, lowest=False)
        while number > self.first_number:
            unit = self.unit_at(number - 1)
            if (
                unit is not None
                and unit.can_be
                and unit.offset < physical_offset
                and (
                    unit.size == NO_MESSAGE_SIZE
                    or is_there(self, unit.base, unit.offset, unit.size)
                )
            ):
                break
            number, agreed = number - 1, False
        self.tail_damaged = self.tail_damaged or not agreed
        self._cut_to(number)

    def first_at(self, physical_offset: int) -> int:
        """The index of the first message in an entry at or after this offset of the log."""
        unit = self.unit_at(self._border_at(physical_offset)[0])
        return unit.base if unit is not None else self.max_index

    def raise_min(self, log_start: int) -> None:
        """Let the queue begin at its first unit whose entry is at or after ``log_start``; not
        behind it where units are damaged."""
        first = self.unit_at(self.first_number)
        if first is None or log_start <= 0:
            return
        second = self.unit_at(self.first_number + 1)
        in_order = second is None or (first.end == second.base and first.offset <= second.offset)
        if not self.suspect and first.can_be and in_order and first.offset >= log_start:
            return
        number, agreed = self._border_at(log_start)
        index = self._base_of(number)
        self.suspect = self.suspect or not agreed
        if index is not None:
            self.min_index = max(self.min_index, min(index, self.max_index))
        self.first_number = number

    def files_before(self, log_start: int) -> list[MappedFile]:
        """The files from the front on whose entries all lie before ``log_start``; never the last,
        which knows where the queue goes on."""
        self.raise_min(log_start)
        kept = min(self.first_number, self.next_number - 1) * BATCH_UNIT_SIZE
        return [file for file in self.files.files[:-1] if file.end <= kept]

    @property
    def last_unit(self) -> tuple[int, int, int] | None:
        """(commit-log offset, size, tagsCode) of the last entry; None for an empty queue."""
        unit = self.unit_at(self.next_number - 1)
        return unit[:3] if unit is not None and unit.size != NO_MESSAGE_SIZE else None

    def _append_apart(self, unit: BatchUnit) -> bool:
        index = unit.base
        if index < self.min_index:
            return True
        if index > self.max_index:
            if self.max_index > 0:
                return False
            self.min_index = index  # nothing before it is left: the log no longer has it
        else:
            number = self.number_of(index)
            there = self.unit_at(number)
            if there is not None and there[4:] == unit[4:]:
                self.rewrite_at(number, unit)
                return True
            self._cut_to(number)
            self.fill_gap(index, unit.offset)
        self._write(unit)
        return True

    def _write(self, unit: BatchUnit) -> None:
        position, file = self.next_number * BATCH_UNIT_SIZE, self._file
        if file is None or not file.start <= position < file.room:
            file = self._file = self.files.make_room(position, position + BATCH_UNIT_SIZE)
        pack_batch_unit_into(file.buffer, position - file.start, unit)
        if not file.dirty:
            self.files.note_written(file)
        self.next_number += 1
        self.max_index = unit.end

    def _cut_to(self, number: int) -> None:
        """Let the queue end before the unit of this number."""
        self.next_number = number
        last = self.unit_at(number - 1)
        if last is None and self.suspect:
            self.min_index, self.suspect = 0, False  # nothing is known of where it began
        self.max_index = last.end if last is not None else self.min_index
        if self.files:
            self.files.truncate(number * BATCH_UNIT_SIZE)
        self._file = self.files.at(number * BATCH_UNIT_SIZE)

    def _border_at(self, physical_offset: int, *, lowest: bool = True) -> tuple[int, bool]:
        """The number of the first unit whose entry lies at or after this offset of the log; and
        whether the units on its two sides agree. If not, it is the number that contradicts the
        fewest of all units (the ``lowest``, or the highest)."""
        low = self.first_number
        number = first_unit_at(physical_offset, low, self.next_number, self._offset_of)
        if self._agree(physical_offset, number):
            return number, True
        # The binary search was led astray by damaged units, or ended next to some. A majority
        # decides instead: for each number, count the units before it that point at or behind the
        # offset and those from it on that point before it. ``against`` is that count, less a
        # constant; the number with the least contradicts the fewest units.
        best, against, least = low, 0, 0
        for at, unit in enumerate(self._all_units(), low + 1):
            if possible_offset(unit.offset, unit.size) is not None:
                against += 1 if unit.offset >= physical_offset else -1
            if against < least or (against == least and not lowest):
                best, least = at, against
        return best, False

    def _offset_of(self, number: int) -> int | None:
        unit = self.unit_at(number)
        return possible_offset(unit.offset, unit.size) if unit is not None else None

    def _agree(self, physical_offset: int, number: int) -> bool:
        """Whether the unit before a number lies before the offset, that of the number behind it,
        and they and the next follow one another."""
        before, unit, behind = (self.unit_at(at) for at in (number - 1, number, number + 1))
        if before is not None and not (before.can_be and before.offset < physical_offset):
            return False
        if unit is None:
            return True
        if not unit.can_be or unit.offset < physical_offset:
            return False
        if before is not None and before.end != unit.base:
            return False
        return behind is None or (unit.end == behind.base and unit.offset <= behind.offset)

    def _base_of(self, number: int) -> int | None:
        """The first message of the unit of a number, as far as it and its neighbours tell; behind
        the last unit, where the queue ends. None if nothing can be said."""
        before, unit, behind = (self.unit_at(at) for at in (number - 1, number, number + 1))
        if unit is None:
            return self.max_index
        following = behind.base if behind is not None else self.max_index
        follows = before is not None and before.end == unit.base
        if unit.can_be and (unit.end == following or follows):
            return unit.base
        return before.end if before is not None and before.can_be else None

    def _all_units(self) -> Iterator[BatchUnit]:
        number = self.first_number
        while (piece := self.numbered_piece(number, _UNITS_AT_ONCE)) is not None:
            yield from (units := _read(piece))
            number += len(units)


def _read(piece: Piece) -> list[BatchUnit]:
    return batch_units(piece.segment.read(piece.at, piece.size))
