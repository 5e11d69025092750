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

A damaged unit of a batch queue does not even say which messages it stands for. So units are
identified by their numbers (in a plain queue, a number is a queue offset):

- Between two good units, the entries that the log has of the queue are its units, in their order.
- Where messages are missing between them, their entries are damaged too: the units left over become
  gaps.
- Before the first good unit the queue begins with the first entry that the log has; behind the last
  one it ends as it did.
- A unit is good if the log has its entry where it says, and as many messages in it; a wrong store
  time is put right.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from turbopump.message.codec import FIXED_SIZE, entry_fault
from turbopump.message.properties import SysFlag
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import IsLost, Steps, finish_now, read_piece
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, inner_count, parse_entry, queue_position
from turbopump.store.log.scanner import entry_at
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.batch_consume_queue import (
    COUNT_MAX,
    BatchConsumeQueue,
    BatchUnit,
    batch_units,
)
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT, ConsumeQueue, unpack_unit

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

    def unit_of(self, entry: bytes, offset: int) -> BatchUnit | None:
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
        search: LogSearch[Any]
        if isinstance(queue, BatchConsumeQueue):
            search = self._search(queue, is_lost, unit.queue_offset)
        else:
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

    def repair_all(
        self,
        queue: BatchConsumeQueue,
        is_lost: IsLost = lambda _directory, _offset: True,
        number: int | None = None,
    ) -> Steps[int]:
        """Repair the units of a batch queue round ``number``, or every one that does not follow the
        one before it; how many there were."""
        if (queue.topic, queue.queue_id) in self._under_way:
            return 0
        search = self._search(queue, is_lost)
        steps = search.repair_all() if number is None else search.repair_around(number)
        yield from self._alone(search, steps)
        if number is None:
            self._log_repaired(search, queue)
        return search.repaired

    def repair_for_message(
        self, queue: BatchConsumeQueue, index: int, number: int, is_lost: IsLost
    ) -> Steps[OSError | None]:
        """Repair the units of a batch queue round ``number``, of which the message ``index`` is
        wanted, and every one that does not follow the one before it; why that cannot be done now.
        What could not be repaired once is not tried again for the same message."""
        key = (queue.topic, queue.queue_id, index)
        if key[:2] in self._under_way:
            return OSError(0, "its units in the consume queue are damaged and are being repaired")
        if key in self.not_found and not queue.suspect:
            return None
        search = self._search(queue, is_lost)

        def both() -> Steps[None]:
            if not queue.suspect:
                yield from search.repair_around(number)
            yield from search.repair_all()

        yield from self._alone(search, both())
        self._log_repaired(search, queue)
        if not search.repaired and search.error is None:
            self._remember(key)
        return search.error

    def check_fronts(self, queues: Iterable[ConsumeQueue]) -> None:
        """See, at a start, that each batch queue begins with the first of its messages that the log
        has. Waits for the disk; it costs two looks a queue where nothing is damaged."""
        batches = [queue for queue in queues if isinstance(queue, BatchConsumeQueue)]
        first = entry_at(self.log, self.log.start) if batches else None
        for queue in batches:
            search = self._search(queue, lambda _directory, _offset: True)
            finish_now(search.check_front(first.store_timestamp if first is not None else 1 << 62))
            self._log_repaired(search, queue)

    def good_unit(
        self, queue: BatchConsumeQueue, number: int, is_lost: IsLost
    ) -> Steps[BatchUnit | None]:
        """The unit of this number, if the log has its entry where it says."""
        return self._search(queue, is_lost).good(number)

    def _search(
        self, queue: BatchConsumeQueue, is_lost: IsLost, index: int = -1
    ) -> BatchQueueSearch:
        return BatchQueueSearch(self.log, queue, index, self.tags_of, is_lost)

    def _alone(self, search: LogSearch[Any], steps: Steps[Any]) -> Steps[None]:
        """Do it while nobody else repairs the same queue."""
        self._under_way.add(search.queue_key)
        try:
            yield from steps
        finally:
            self._under_way.discard(search.queue_key)

    def _log_repaired(self, search: BatchQueueSearch, queue: BatchConsumeQueue) -> None:
        if search.repaired:
            name = f"the consume queue of {queue.topic} queue {queue.queue_id}"
            self.log_error(
                f"{search.repaired} units of {name} were damaged; they are repaired from the log"
            )

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
    def _take(self, unit: BatchUnit, entry: bytes) -> None:
        """A whole entry of the queue, and what its unit holds."""

    @abstractmethod
    def _read_unit(self, number: int) -> Steps[BatchUnit | None]:
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

    def good(self, number: int) -> Steps[BatchUnit | None]:
        """The unit of this number, if the log has its entry where it says."""
        unit = yield from self._read_unit(number)
        if unit is None or not unit.can_be or unit.size == NO_MESSAGE_SIZE:
            return None
        entry = yield from self._entry_of(unit.offset, unit.size, unit.base)
        there = unit_of(entry, unit.offset, self.tags_of) if entry else None
        if there is None or there.messages != unit.messages:
            return None
        return self._confirmed(number, unit, there)

    def _confirmed(self, number: int, unit: BatchUnit, there: BatchUnit) -> BatchUnit:
        """A unit that was found to be good; ``there`` is what its entry says."""
        return unit

    def _good_neighbour(self, number: int, direction: int) -> Steps[tuple[int, BatchUnit | None]]:
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
    damaged too. A unit is seen as a batch queue's, of one message, whose store time is not
    known."""

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

    def _take(self, unit: BatchUnit, entry: bytes) -> None:
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

    def _read_unit(self, number: int) -> Steps[BatchUnit | None]:
        raw = yield from self._read(self.queue.piece(number, 1))
        if not raw:
            return None
        offset, size, tags = unpack_unit(raw)
        return BatchUnit(offset, size, tags, 0, number, 1)

    def _numbers(self) -> tuple[int, int]:
        return self.queue.min_index, self.queue.max_index - 1


UNITS_AT_ONCE: Final = 2000
"""Units whose links are looked at in one turn."""


def unit_of(entry: bytes, offset: int, tags_of: Callable[[ParsedEntry], int]) -> BatchUnit | None:
    """The unit of a good entry at an offset of the log; None if its texts cannot be read."""
    parsed = parse_entry(entry, offset)
    if parsed is None:
        return None
    stored_ms, base = parsed.store_timestamp, parsed.queue_offset
    return BatchUnit(offset, parsed.size, tags_of(parsed), stored_ms, base, inner_count(parsed))


def units_between(
    found: list[BatchUnit], end: int, begin: int | None, count: int | None, offset: int
) -> list[BatchUnit] | None:
    """The ``count`` units for the messages from ``begin`` to ``end``, of entries ``found`` in the
    log; None if that cannot be. ``begin`` None: from the first that was found on, in as many units
    as it takes. Gaps before the first are said to be at ``offset``.

    Of entries of the same messages the last counts: the topic was deleted and made again.
    """
    # How many units lie between two good ones is known from the file, and how many messages from
    # their bases; how the damaged entries divided the messages among them is not. Each run of
    # missing messages gets as few gaps as hold them (a count is a signed short). The units that are
    # then left over divide these gaps further, from the front on, so that the numbers of all units
    # behind stay as they are. If that does not add up, the good units on the two sides do not
    # belong together, and nothing is changed.
    kept: list[BatchUnit] = []
    limit = end
    for unit in reversed(found):
        if unit.end <= limit:
            kept.append(unit)
            limit = unit.base
    kept.reverse()
    index = begin if begin is not None else limit
    holes: list[tuple[int, int]] = []  # (first message, number of messages)
    for base, following in [*((unit.base, unit.end) for unit in kept), (end, end)]:
        if base > index:
            holes.append((index, base - index))
        index = following
    least = [-(-count // COUNT_MAX) for _, count in holes]
    spare = count - len(kept) - sum(least) if count is not None else 0
    if spare < 0 or spare > sum(missing for _, missing in holes) - sum(least):
        return None
    row: list[BatchUnit] = []
    for (base, missing), units in zip(holes, least, strict=True):
        while kept and kept[0].base < base:
            row.append(kept.pop(0))
        more = min(spare, missing - units)
        spare -= more
        row.extend(_gaps(base, missing, units + more, row[-1].offset if row else offset))
    return row + kept


def _gaps(base: int, missing: int, units: int, offset: int) -> list[BatchUnit]:
    """So many units that stand for ``missing`` damaged messages."""
    gaps = []
    for left in range(units, 0, -1):
        messages = min(missing - left + 1, COUNT_MAX)
        gaps.append(BatchUnit(offset, NO_MESSAGE_SIZE, 0, 0, base, messages))
        base, missing = base + messages, missing - messages
    return gaps


@dataclass(eq=False)
class BatchQueueSearch(LogSearch[BatchConsumeQueue]):
    """One repair of a queue. ``wanted`` is the entry of the message that was asked for, if it was
    found."""

    _found: list[BatchUnit] = field(default_factory=list)

    def run(self) -> Steps[None]:
        yield from self.repair_around(self.queue.number_of(self.index))

    def repair_all(self) -> Steps[None]:
        """Repair every unit that cannot be, or does not follow the one before it, and find out
        where the queue begins."""
        queue = self.queue
        if queue.suspect:
            yield from self.repair_around(queue.first_number)
            if self.error is not None:
                return
        number, before = queue.first_number, None
        while number < queue.next_number:
            piece = queue.numbered_piece(number, UNITS_AT_ONCE)
            raw: Found = b""
            if piece is not None:
                (raw,) = yield [piece]
            if isinstance(raw, OSError):
                self.error = raw
                return
            units = batch_units(raw)
            if not units:
                return
            for at, unit in enumerate(units, number):
                if not (yield from self._follows(before, unit, at)):
                    number = yield from self.repair_around(at)
                    before = queue.unit_at(number - 1)
                    break
                before = unit
            else:
                number += len(units)
                yield []
            if self.error is not None:
                return
        if before is not None and before.end != queue.max_index:
            yield from self.repair_around(queue.next_number - 1)

    def _follows(self, before: BatchUnit | None, unit: BatchUnit, number: int) -> Steps[bool]:
        """Whether a unit may come behind this one; None: it is the first."""
        if not unit.can_be or unit.base != (
            before.end if before is not None else self.queue.min_index
        ):
            return False
        return (
            before is None
            or before.offset <= unit.offset
            or (yield from self.good(number)) is not None
        )

    def check_front(self, first_time: int) -> Steps[None]:
        """See at a start that the queue begins with the first unit whose entry the log has; if not,
        repair it. The log begins with an entry of ``first_time`` (ms). Costs two small reads where
        nothing is damaged."""
        # Where the queue begins cannot be seen from its units alone if one of them is damaged: a
        # wrong first unit would hide messages, or show some that are deleted. So both sides of the
        # border are checked: the first unit must lead to its entry, and the unit before it, if the
        # file still has it, must be of an entry older than the log's first.
        queue = self.queue
        unit, gone = queue.unit_at(queue.first_number), queue.gone_unit(queue.first_number - 1)
        if (
            unit is not None
            and unit.size != NO_MESSAGE_SIZE
            and (yield from self.good(queue.first_number)) is None
        ):
            queue.suspect = True
        if gone is not None and gone.stored_ms >= first_time:
            queue.suspect = True  # its entry may be there, and the unit damaged
        if queue.suspect:
            yield from self.repair_all()

    def repair_around(self, number: int) -> Steps[int]:
        """Repair the unit of this number, and what else is wrong between the nearest good ones on
        its two sides; the number of the latter, behind which nothing was looked at."""
        # Two good units are the fixed points: number and base of each are right. What the log has
        # of the queue between their entries are the entries of the units between, in order; units
        # left over are gaps (``units_between``). Before the first good unit there may be no fixed
        # point, since the queue may have been trimmed: then the entries found say how many units
        # there are, counted back from the good one, and the queue begins there.
        log, queue = self.log, self.queue
        low, before = yield from self._good_neighbour(number, -1)
        high, after = yield from self._good_neighbour(number, 1)
        start = before.offset + before.size if before is not None else log.start
        end = after.offset if after is not None else log.end
        base_high = after.base if after is not None else queue.max_index
        first_number = queue.first_number
        self._found.clear()
        yield from self.walk(before.end - 1 if before is not None else -1, base_high, start, end)
        if self.error is not None or queue.next_number < high or queue.first_number != first_number:
            return high  # retention has been here, or the topic was deleted
        if before is None and queue.suspect:
            queue.suspect = False
            row = units_between(self._found, base_high, None, None, start)
            if row is not None and high - len(row) >= queue.floor:
                low = high - len(row) - 1
                queue.begin_with(low + 1, row[0].base if row else base_high)
        else:
            base_low = before.end if before is not None else queue.min_index
            row = units_between(self._found, base_high, base_low, high - low - 1, start)
        for at, unit in enumerate(row or (), low + 1):
            if unit.size != NO_MESSAGE_SIZE or (yield from self.good(at)) is None:
                self._put(at, unit)
        return max(high, number + 1)

    def _put(self, number: int, unit: BatchUnit) -> None:
        queue = self.queue
        if not queue.first_number <= number < queue.next_number:
            return  # deleted meanwhile
        if queue.unit_at(number) != unit:
            queue.rewrite_at(number, unit)
            self.repaired += 1
        if number == queue.first_number:
            queue.min_index = unit.base

    def _confirmed(self, number: int, unit: BatchUnit, there: BatchUnit) -> BatchUnit:
        right = unit._replace(stored_ms=there.stored_ms)
        if right != unit and self.queue.unit_at(number) == unit:
            self._put(number, right)
        return right

    def _take(self, unit: BatchUnit, entry: bytes) -> None:
        self._found.append(unit)
        if unit.base <= self.index < unit.end:
            self.wanted, self.wanted_offset = entry, unit.offset

    def _read_unit(self, number: int) -> Steps[BatchUnit | None]:
        raw = yield from self._read(self.queue.numbered_piece(number, 1))
        return batch_units(raw)[0] if raw else None

    def _numbers(self) -> tuple[int, int]:
        return self.queue.first_number, self.queue.next_number - 1
