"""Putting right the units of a batch queue, from the log. As ``unit_repair.py`` does it, but for
this:

A damaged unit does not even say which messages it stands for, so units are told by their numbers.
Between two good ones, the entries that the log has of the queue are its units, in their order.
Where messages are missing between them, their entries are damaged too: gaps take the places that
are left. Before the first good unit the queue begins with the first entry that the log has; behind
the last one it ends as it did. A unit is good if the log has its entry where it says, and as many
messages in it; a wrong store time is put right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.store.batch_consume_queue import BatchConsumeQueue
from turbopump.store.batch_unit import COUNT_MAX, BatchUnit, batch_units
from turbopump.store.cold_reads import IsLost, Steps
from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.disk import Found
from turbopump.store.entry_mark import EntryMark, inner_count, read_mark
from turbopump.store.log_search import LogSearch
from turbopump.store.mapped_file import MappedFile

UNITS_AT_ONCE: Final = 2000
"""Units whose links are looked at in one turn."""


def unit_of_mark(mark: EntryMark, tags: int) -> BatchUnit:
    """The unit of an entry."""
    return BatchUnit(
        mark.offset, mark.size, tags, mark.store_timestamp, mark.queue_offset, inner_count(mark)
    )


def row_of(
    found: list[BatchUnit], end: int, begin: int | None, places: int | None, offset: int
) -> list[BatchUnit] | None:
    """The units for the messages from ``begin`` to ``end`` in so many ``places``, of entries
    ``found`` in the log; None if that cannot be. ``begin`` None: from the first that was found on,
    in as many places as it takes. Gaps before the first are said to be at ``offset``.

    Of entries of the same messages the last counts: the topic was deleted and made again.
    """
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
    spare = places - len(kept) - sum(least) if places is not None else 0
    if spare < 0 or spare > sum(count for _, count in holes) - sum(least):
        return None
    row: list[BatchUnit] = []
    for (base, count), slots in zip(holes, least, strict=True):
        while kept and kept[0].base < base:
            row.append(kept.pop(0))
        more = min(spare, count - slots)
        spare -= more
        row.extend(_gaps(base, count, slots + more, row[-1].offset if row else offset))
    return row + kept


def _gaps(base: int, count: int, places: int, offset: int) -> list[BatchUnit]:
    """So many units that stand for ``count`` damaged messages."""
    gaps = []
    for left in range(places, 0, -1):
        messages = min(count - left + 1, COUNT_MAX)
        gaps.append(BatchUnit(offset, NO_MESSAGE_SIZE, 0, 0, base, messages))
        base, count = base + messages, count - messages
    return gaps


class BatchSearch(LogSearch):
    """One repair of a queue. ``wanted`` is the entry of the message that was asked for, if it was
    come by."""

    def __init__(
        self,
        log: CommitLog,
        queue: BatchConsumeQueue,
        index: int,
        tags_of: Callable[[EntryMark], int],
        is_lost: IsLost,
    ) -> None:
        super().__init__(log, queue, index, is_lost)
        self._batches = queue
        self._tags_of = tags_of
        self._found: list[BatchUnit] = []

    def run(self) -> Steps[None]:
        """Look for the message, and repair the unit that should hold it."""
        yield from self.repair_round(self._batches.number_of(self._index))

    def mend(self) -> Steps[None]:
        """Repair every unit that cannot be, or does not follow the one before it, and find out
        where the queue begins."""
        queue = self._batches
        if queue.suspect:
            yield from self.repair_round(queue.first_number)
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
                    number = yield from self.repair_round(at)
                    before = queue.unit_at(number - 1)
                    break
                before = unit
            else:
                number += len(units)
                yield []
            if self.error is not None:
                return
        if before is not None and before.end != queue.max_index:
            yield from self.repair_round(queue.next_number - 1)

    def _follows(self, before: BatchUnit | None, unit: BatchUnit, number: int) -> Steps[bool]:
        """Whether a unit may come behind this one; None: it is the first."""
        if not unit.can_be or unit.base != (
            before.end if before is not None else self._batches.min_index
        ):
            return False
        return (
            before is None
            or before.offset <= unit.offset
            or (yield from self.good(number)) is not None
        )

    def settle_front(self, first_time: int) -> Steps[None]:
        """See at a start that the queue begins with the first unit whose entry the log has, which
        begins with an entry of ``first_time`` (ms). Costs two looks; else the queue is mended."""
        queue = self._batches
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
            yield from self.mend()

    def repair_round(self, number: int) -> Steps[int]:
        """Repair the unit of this number, and what else is wrong between the nearest good ones on
        its two sides; the number of the latter, behind which nothing was looked at."""
        log, queue = self._log, self._batches
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
            row = row_of(self._found, base_high, None, None, start)
            if row is not None and high - len(row) >= queue.floor:
                low = high - len(row) - 1
                queue.begin_with(low + 1, row[0].base if row else base_high)
        else:
            base_low = before.end if before is not None else queue.min_index
            row = row_of(self._found, base_high, base_low, high - low - 1, start)
        for at, unit in enumerate(row or (), low + 1):
            if unit.size != NO_MESSAGE_SIZE or (yield from self.good(at)) is None:
                self._put(at, unit)
        return max(high, number + 1)

    def _put(self, number: int, unit: BatchUnit) -> None:
        queue = self._batches
        if not queue.first_number <= number < queue.next_number:
            return  # deleted meanwhile
        if queue.unit_at(number) != unit:
            queue.rewrite_at(number, unit)
            self.repaired += 1
        if number == queue.first_number:
            queue.min_index = unit.base

    def _good_neighbour(self, number: int, direction: int) -> Steps[tuple[int, BatchUnit | None]]:
        """The nearest good unit before or behind, or about the nearest, and its number; (the number
        beyond the last, None) if there is none."""
        queue, distance = self._batches, 1
        border = queue.first_number if direction < 0 else queue.next_number - 1
        while True:
            at = number + direction * distance
            if (at - border) * direction > 0:
                at = border
            unit = (yield from self.good(at)) if at != number else None
            if unit is not None:
                return at, unit
            if at == border:
                return border + direction, None
            distance *= 2

    def good(self, number: int) -> Steps[BatchUnit | None]:
        """The unit of this number, if the log has its entry where it says."""
        raw = yield from self._read(self._batches.numbered_piece(number, 1))
        unit = batch_units(raw)[0] if raw else None
        if unit is None or not unit.can_be or unit.size == NO_MESSAGE_SIZE:
            return None
        entry = yield from self._entry_of(unit.offset, unit.size, unit.base)
        there = self._unit_of(entry, unit.offset) if entry else None
        if there is None or there.messages != unit.messages:
            return None
        if there.stored_ms != unit.stored_ms and self._batches.unit_at(number) == unit:
            self._put(number, unit._replace(stored_ms=there.stored_ms))
        return unit._replace(stored_ms=there.stored_ms)

    def _unit_of(self, entry: bytes, offset: int) -> BatchUnit | None:
        mark = read_mark(entry, offset)
        return unit_of_mark(mark, self._tags_of(mark)) if mark is not None else None

    def _take(
        self, file: MappedFile, offset: int, size: int, index: int, entry: Found
    ) -> Steps[None]:
        whole = yield from self._whole(file, offset, size, index, entry)
        unit = self._unit_of(whole, offset) if whole is not None else None
        if unit is None or whole is None:
            return
        self._found.append(unit)
        if unit.base <= self._index < unit.end:
            self.wanted, self.wanted_offset = whole, offset
