"""Putting right the units of a batch queue, from the log. As ``unit_repair.py`` does it, but for this:

A damaged unit does not even say which messages it stands for, so units are told by their numbers. Between two good ones, the entries that
the log has of the queue are its units, in their order, as far as they follow one another without a hole: from the front, then from the
back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.store.batch_consume_queue import BatchConsumeQueue, BatchUnit, batch_units
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
    return BatchUnit(mark.offset, mark.size, tags, mark.store_timestamp, mark.queue_offset, inner_count(mark))


class BatchSearch(LogSearch):
    """One repair of a queue. ``wanted`` is the entry of the message that was asked for, if it was come by."""

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
        """Repair every unit that cannot be, or does not follow the one before it."""
        queue, before = self._batches, None
        number = queue.first_number
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
            repaired = self.repaired
            for at, unit in enumerate(units, number):
                if not unit.can_be or (before is not None and unit.base != before.end):
                    yield from self.repair_round(at)
                    break
                before = unit
            else:
                number += len(units)
                yield []
                continue
            again = at if self.repaired > repaired else at + 1
            before = queue.unit_at(again - 1)
            number = again

    def repair_round(self, number: int) -> Steps[None]:
        """Repair the unit of this number, and what else is wrong between the nearest good ones on its two sides."""
        log = self._log
        low, before = yield from self._good_neighbour(number, -1)
        high, after = yield from self._good_neighbour(number, 1)
        self._found.clear()
        yield from self.walk(
            before.end - 1 if before is not None else -1,
            after.base if after is not None else 1 << 62,
            before.offset + before.size if before is not None else log.start,
            after.offset if after is not None else log.end,
        )
        slot, following = low + 1, before.end if before is not None else None
        for unit in self._found:
            if unit.base != following or slot >= high:
                break
            self._put(slot, unit)
            slot, following = slot + 1, unit.end
        front, slot, following = slot, high - 1, after.base if after is not None else None
        for unit in reversed(self._found):
            if unit.end != following or slot < front:
                break
            self._put(slot, unit)
            slot, following = slot - 1, unit.base

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
        """The nearest good unit before or behind, or about the nearest, and its number; (the number beyond the last, None) if there is
        none."""
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
        return unit if there is not None and there[3:] == unit[3:] else None

    def _unit_of(self, entry: bytes, offset: int) -> BatchUnit | None:
        mark = read_mark(entry, offset)
        return unit_of_mark(mark, self._tags_of(mark)) if mark is not None else None

    def _take(self, file: MappedFile, offset: int, size: int, index: int, entry: Found) -> Steps[None]:
        whole = yield from self._whole(file, offset, size, index, entry)
        unit = self._unit_of(whole, offset) if whole is not None else None
        if unit is None or whole is None:
            return
        self._found.append(unit)
        if unit.base <= self._index < unit.end:
            self.wanted, self.wanted_offset = whole, offset
