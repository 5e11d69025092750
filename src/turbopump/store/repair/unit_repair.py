"""Putting right the units of a queue that do not point to its messages, from the log, which has
them.

Units are derived data: a damaged one must not hide a message that is good. The messages of a queue
lie in the log in the order of the queue, so a message lies between those of the nearest good units
on either side of its own:

1. These two units are searched at distances that double: a damaged sector has 204 units side by
   side, a damaged file all of its units.
2. The log between their messages is searched for heads that name the queue. For each good entry of
   the queue its unit is written again.
3. If the message asked for is not among them, the message itself is damaged, and its unit stays as
   it is. There is one exception: the log has lost its front, and all that is left of the queue lies
   behind the unit. Then the message was deleted with the front, and the queue begins behind it.

The rule: repair runs in steps (``cold_reads.py``), since much of the log may lie between. There is
one search at a time for a queue, and only one for a message that is not found. Each search that
repaired something is reported in one line.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from turbopump.message.codec import entry_fault
from turbopump.message.entry import FIXED_SIZE, queue_position
from turbopump.message.properties import SysFlag
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import IsLost, Steps, read_piece
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, parse_entry
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.consume_queue import (
    NO_MESSAGE_SIZE,
    UNIT,
    ConsumeQueue,
    possible_offset,
    unpack_unit,
)

PIECE_SIZE: Final = 256 * 1024
"""Bytes of the log that are searched in one turn: some 0.3 ms."""
HEAD: Final = 36
"""Bytes of an entry up to its physicalOffset, that included."""

_SECTOR: Final = 4096
_SLICE: Final = 16
"""Entries checked in one turn."""
LMQ_PREFIX: Final = "%LMQ%"
"""Begins the names of Apache's light queues, whose units point to messages of other topics."""
SEARCHED_MAX: Final = 10_000
"""Messages remembered as not to be found."""


Q = TypeVar("Q", bound=ConsumeQueue)


class Unit(NamedTuple):
    """A unit of a queue whose message is wanted: its queue offset, and where in the log it says
    that the message is."""

    queue_offset: int
    offset: int
    size: int


class FoundUnit(NamedTuple):
    """A unit, and the queue offset ``base`` of its message."""

    offset: int
    size: int
    tags_code: int
    base: int

    @property
    def can_be(self) -> bool:
        """True if the unit alone shows no fault."""
        return possible_offset(self.offset, self.size) is not None and self.base >= 0


class Repaired(NamedTuple):
    """What a search came to: the ``entry`` that was looked for, and where it lies; None if it was
    not found, because of ``error`` if that is not None."""

    entry: bytes | None
    offset: int = -1
    error: OSError | None = None


@dataclass(slots=True, eq=False)
class UnitRepair:
    """Repairs queues over ``log``. ``tags_of`` is the tagsCode of an entry's unit. ``log_error``
    gets a line for each search that found units to be wrong."""

    log: CommitLog
    tags_of: Callable[[ParsedEntry], int]
    log_error: Callable[[str], None]
    _under_way: set[tuple[str, int]] = field(default_factory=set)
    not_found: set[tuple[str, int, int]] = field(default_factory=set)

    def unit_of(self, entry: bytes, offset: int) -> FoundUnit | None:
        """What the unit of a good entry at this offset of the log holds; None if it has none. The
        first three fields are those of a plain queue's."""
        prepared = entry[39] & SysFlag.TRANSACTION_PREPARED
        return unit_of(entry, offset, self.tags_of) if not prepared else None

    def message_of(
        self, queue: ConsumeQueue, unit: Unit, is_lost: IsLost = lambda _directory, _offset: True
    ) -> Steps[Repaired]:
        """The message to which ``unit`` of the queue should point and does not. The unit, and what
        else is wrong round it, is repaired. ``is_lost`` says of what cannot be read whether to do
        without it."""
        key = (queue.topic, queue.queue_id, unit.queue_offset)
        if key in self.not_found or queue.topic.startswith(LMQ_PREFIX):
            return Repaired(None)
        if key[:2] in self._under_way:
            return Repaired(
                None,
                error=OSError(0, "its unit in the consume queue is damaged and is being repaired"),
            )
        search = PlainQueueSearch(self.log, queue, unit.queue_offset, self.tags_of, is_lost)
        yield from self._alone(search, search.run())
        if search.repaired:
            self.log_error(_repair_line(queue, unit, search))
        if search.wanted is None and search.error is None:
            self._remember(key)
        return Repaired(search.wanted, search.wanted_offset, search.error)

    def units_of(
        self, queue: ConsumeQueue, index: int, count: int, is_lost: IsLost
    ) -> Steps[Found]:
        """Up to ``count`` packed units of a plain queue from ``index`` on, as many as one file
        holds; none if there are none. One that cannot be a message's (zeros, of a damaged file) is
        repaired first: it stays only if the log has no such message."""
        searched = index - 1
        while True:
            piece = queue.piece(index, count)
            raw = (yield from read_piece(piece)) if piece is not None else b""
            if isinstance(raw, OSError):
                return raw
            for number, (offset, size, _) in enumerate(UNIT.iter_unpack(raw), index):
                if number > searched and (size < FIXED_SIZE or offset < 0):
                    break
            else:
                return raw
            searched = number
            repaired = yield from self.message_of(queue, Unit(number, offset, size), is_lost)
            if repaired.error is not None:
                return repaired.error

    def _alone(self, search: LogSearch[Any], steps: Steps[Any]) -> Steps[None]:
        """Do it while nobody else repairs the same queue."""
        self._under_way.add(search.queue_key)
        try:
            yield from steps
        finally:
            self._under_way.discard(search.queue_key)

    def _remember(self, key: tuple[str, int, int]) -> None:
        if len(self.not_found) >= SEARCHED_MAX:
            self.not_found.clear()
        self.not_found.add(key)


def _repair_line(queue: ConsumeQueue, unit: Unit, search: LogSearch[Any]) -> str:
    name = f"the consume queue of {queue.topic} queue {queue.queue_id}"
    if search.wanted is not None and search.repaired == 1:
        return (
            f"unit {unit.queue_offset} of {name} was damaged: it pointed to {unit.offset}, "
            f"{unit.size} bytes; it is repaired, "
            f"its message is at {search.wanted_offset}"
        )
    return (
        f"{search.repaired} units of {name} round unit {unit.queue_offset} were damaged; they "
        "are repaired from the log"
    )


@dataclass(eq=False)
class LogSearch(Generic[Q]):
    """A search for the message of ``index``, and for others of its queue. ``is_lost`` says of what
    cannot be read whether to do without it; else it is the ``error``. ``wanted`` is the entry that
    was looked for."""

    log: CommitLog
    queue: Q
    index: int
    tags_of: Callable[[ParsedEntry], int]
    is_lost: IsLost
    repaired: int = 0
    wanted: bytes | None = None
    wanted_offset: int = -1
    error: OSError | None = None
    _checked: int = 0

    @property
    def queue_key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.queue.topic, self.queue.queue_id

    @abstractmethod
    def run(self) -> Steps[None]:
        """Look for the message, and repair the unit that should point to it."""

    def walk(self, low: int, high: int, start: int, end: int) -> Steps[None]:
        """Take what between two offsets of the log says that it is the queue's, behind the message
        ``low`` and before ``high``."""
        log = self.log
        pattern = re.compile(
            rb"\xda\xa3\x20[\xa7\xab].{4}"
            + re.escape(self.queue.queue_id.to_bytes(4))
            + rb".{4}(.{8})(.{8})",
            re.DOTALL,
        )
        start = max(start, self.queue.deleted_until)
        position, narrow_to = start, start
        while position < end:
            file = log.files.at(position)
            if file is None:
                position = log.start  # retention has been here
                continue
            begun = position - file.start
            size = min(_SECTOR if position < narrow_to else PIECE_SIZE, file.end - position)
            (piece,) = yield [
                Piece(file.segment, begun, min(size + HEAD, file.segment.size - begun))
            ]
            if isinstance(piece, OSError) and size <= _SECTOR:
                (piece,) = yield [Piece(file.segment, begun, size)]
            if isinstance(piece, OSError):
                if size > _SECTOR:
                    narrow_to = position + size  # only a part of it may be lost
                    continue
                self._failed(piece, file, position)
            else:
                for match in pattern.finditer(piece):
                    begin = match.start() - 4
                    index = int.from_bytes(match[1])
                    if (
                        begin >= 0
                        and low < index < high
                        and int.from_bytes(match[2]) == position + begin < end
                    ):
                        size_there = int.from_bytes(piece[begin : begin + 4])
                        there = piece[begin : begin + size_there]
                        at = position + begin
                        entry = yield from self._whole(file, at, size_there, index, there)
                        unit = unit_of(entry, at, self.tags_of) if entry is not None else None
                        if entry is not None and unit is not None:
                            self._take(unit, entry)
            position += size

    @abstractmethod
    def _take(self, unit: FoundUnit, entry: bytes) -> None:
        """A whole entry of the queue, and what its unit holds."""

    @abstractmethod
    def _read_unit(self, number: int) -> Steps[FoundUnit | None]:
        """What the files say; None if nothing is there, or can be read."""

    @abstractmethod
    def _numbers(self) -> tuple[int, int]:
        """Of the first unit and the last."""

    def _whole(
        self, file: MappedFile, offset: int, size: int, index: int, entry: Found
    ) -> Steps[bytes | None]:
        """The whole entry, if it is good and the queue's."""
        at = offset - file.start
        if not HEAD <= size <= min(ENTRY_SIZE_MAX, file.segment.size - at):
            return None
        if isinstance(entry, bytes) and len(entry) < size:
            (entry,) = yield [Piece(file.segment, at, size)]
        self._checked += 1
        if self._checked % _SLICE == 0:
            yield []
        if isinstance(entry, OSError):
            self._failed(entry, file, offset)
            return None
        return entry if self._belongs(entry, offset, index) else None

    def _failed(self, error: OSError, file: MappedFile, position: int) -> None:
        if position >= self.log.start and not self.is_lost(file.segment.path.parent, position):
            self.error = error

    def _belongs(self, entry: bytes, offset: int, index: int) -> bool:
        return (
            entry_fault(entry, offset, crc_required=self.log.requires_crc(offset)) is None
            and not entry[39] & SysFlag.TRANSACTION_PREPARED
            and queue_position(entry) == (*self.queue_key, index)
        )

    def _entry_of(self, offset: int, size: int, index: int) -> Steps[bytes]:
        """The good entry of the queue at this offset of the log; empty if there is none."""
        file = self.log.files.at(offset) if 0 <= offset < self.log.end else None
        if file is None or not HEAD <= size <= min(ENTRY_SIZE_MAX, file.end - offset):
            return b""
        entry = yield from self._read(Piece(file.segment, offset - file.start, size))
        return entry if entry and self._belongs(entry, offset, index) else b""

    def good(self, number: int) -> Steps[FoundUnit | None]:
        """The unit of this number, if the log has its entry where it says."""
        unit = yield from self._read_unit(number)
        if unit is None or not unit.can_be or unit.size == NO_MESSAGE_SIZE:
            return None
        entry = yield from self._entry_of(unit.offset, unit.size, unit.base)
        there = unit_of(entry, unit.offset, self.tags_of) if entry else None
        if there is None:
            return None
        return self._confirmed(number, unit, there)

    def _confirmed(self, number: int, unit: FoundUnit, there: FoundUnit) -> FoundUnit:
        """A unit that was found to be good; ``there`` is what its entry says."""
        return unit

    def _good_neighbour(self, number: int, direction: int) -> Steps[tuple[int, FoundUnit | None]]:
        """The nearest good unit before or behind, or about the nearest, and its number; (the number
        beyond the last, None) if there is none."""
        distance = 1
        while True:
            first, last = self._numbers()
            border = first if direction < 0 else last
            at = number + direction * distance
            if (at - border) * direction > 0:
                at = border
            unit = (yield from self.good(at)) if at != number else None
            if unit is not None:
                return at, unit
            if at == border:
                return border + direction, None
            distance *= 2

    def _read(self, piece: Piece | None) -> Steps[bytes]:
        """The bytes of a piece; none where there is none, or it cannot be read."""
        if piece is None:
            return b""
        found: Found
        (found,) = yield [piece]
        return found if isinstance(found, bytes) else b""


@dataclass(eq=False)
class PlainQueueSearch(LogSearch[ConsumeQueue]):
    """One search for the message of ``index``, and for those of the units round it that may be
    damaged too."""

    _first: int = 1 << 62
    """The first message that was found."""
    _all_read: bool = True

    def run(self) -> Steps[None]:
        log, queue = self.log, self.queue
        _, before = yield from self._good_neighbour(self.index, -1)
        _, after = yield from self._good_neighbour(self.index, 1)
        low, start = (
            (before.base, before.offset + before.size) if before is not None else (-1, log.start)
        )
        high, end = (after.base, after.offset) if after is not None else (queue.max_index, log.end)
        log_start = log.start
        yield from self.walk(low, high, start, end)
        if before is None and self.wanted is None and self._all_read and 0 < log_start == log.start:
            # Nothing of the queue lies before the first message found in a log that lost its front:
            # there the queue begins, if that is behind the message that was looked for, which then
            # is one of those that are gone.
            first = min(self._first, after.base if after is not None else queue.max_index)
            if self.index < first:
                queue.min_index = max(queue.min_index, first)

    def _failed(self, error: OSError, file: MappedFile, position: int) -> None:
        self._all_read = False
        super()._failed(error, file, position)

    def _confirmed(self, number: int, unit: FoundUnit, there: FoundUnit) -> FoundUnit:
        # A page of zeros that follows may have taken the end of its tags, too, and once its own
        # units are repaired nobody doubts these any more.
        differs = unit.tags_code != there.tags_code and not unit.tags_code & 0xFF
        if differs and self.queue.unit(number) == unit[:3]:
            self.queue.rewrite(number, *there[:3])
            self.repaired += 1
        return unit

    def _take(self, unit: FoundUnit, entry: bytes) -> None:
        queue, index = self.queue, unit.base
        there = queue.unit(index)
        if there is None:  # the queue has no such unit, or was deleted meanwhile
            return
        self._first = min(self._first, index)
        if there != unit[:3]:
            queue.rewrite(index, *unit[:3])
            self.repaired += 1
        if index == self.index:
            self.wanted, self.wanted_offset = entry, unit.offset

    def _read_unit(self, number: int) -> Steps[FoundUnit | None]:
        raw = yield from self._read(self.queue.piece(number, 1))
        if not raw:
            return None
        offset, size, tags = unpack_unit(raw)
        return FoundUnit(offset, size, tags, number)

    def _numbers(self) -> tuple[int, int]:
        return self.queue.min_index, self.queue.max_index - 1


UNITS_AT_ONCE: Final = 2000
"""Units whose links are looked at in one turn."""


def unit_of(entry: bytes, offset: int, tags_of: Callable[[ParsedEntry], int]) -> FoundUnit | None:
    """The unit of a good entry at an offset of the log; None if its texts cannot be read."""
    parsed = parse_entry(entry, offset)
    if parsed is None:
        return None
    return FoundUnit(offset, parsed.size, tags_of(parsed), parsed.queue_offset)
