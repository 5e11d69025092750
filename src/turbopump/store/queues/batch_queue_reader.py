"""Reading a queue whose units stand for several messages. Entries are given whole, also if the
offset asked for is in the middle of one.

What this process wrote, and not long ago, is copied out of the map; everything else is read and
checked as in any queue. A filter of tags lets through what has none: a batch has none of its own,
but its messages may, and clients look at the tags of each message anyway. Source of the rules:
apache/rocketmq ``DefaultMessageStore.getMessage``, which compares no tags like any others, so that
batches pass no filter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from turbopump.message.codec import FIXED_SIZE
from turbopump.store.disk import Found
from turbopump.store.log.cold_reads import Steps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import messages_by_entry
from turbopump.store.queues.batch_consume_queue import BatchConsumeQueue, BatchUnit, batch_units
from turbopump.store.queues.checked_entries import (
    GetResult,
    GetStatus,
    ReadContext,
    checked_entries,
    unreadable_text,
)
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.repair.unit_repair import Unit, UnitRepair

UNITS_AT_ONCE: Final = 348
"""Units that one filtered read looks at: 16,000 bytes of them."""

UNITS_IN_A_TURN: Final = 2000
"""Units that are looked at in one turn for one that is not damaged."""
_LOOK_AHEAD: Final = 2
"""Units behind those that are given that must follow them: two damaged ones may seem to follow each
other."""
_HEAD: Final = struct.Struct(">i8xi4xqq")
"""Size, queue id, queue offset and offset in the log of an entry."""
_UNITS_HOT: Final = 2_000_000
"""Units at the end of a queue that count as in memory, if this process wrote their messages."""


@dataclass(slots=True)
class _SelectedBatchUnits:
    """What one read is to give, and where it goes on."""

    next_index: int
    units: list[BatchUnit] = field(default_factory=list)
    messages: int = 0
    gaps: int = 0


@dataclass(frozen=True, slots=True)
class BatchRead:
    """One read: entries from the message ``offset`` on, which the queue has, of ``count_max``
    messages together, but always one entry. What lies at ``hot_from`` in the log or behind is in
    memory. ``accept`` judges tag codes."""

    queue: BatchConsumeQueue
    context: ReadContext
    offset: int
    count_max: int
    hot_from: int
    accept: Callable[[int], bool] | None

    def run(self) -> Steps[GetResult]:
        """Where units do not agree with each other, or with the log, they are repaired first."""
        queue, offset, context = self.queue, self.offset, self.context
        result, wrong = yield from self._attempt(strict=True)
        if wrong is None:
            return result
        error = yield from context.repair.repair_for_message(queue, offset, wrong, context.is_lost)
        low, high = queue.min_index, queue.end.value
        if error is not None:
            result = GetResult(GetStatus.OFFSET_FOUND_NULL, offset, low, high)
            result.unreadable = unreadable_text(error, "the queue")
            return result
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        result, _ = yield from self._attempt(strict=False)
        return result

    def _attempt(self, *, strict: bool) -> Steps[tuple[GetResult, int | None]]:
        """What it gives, and the number of a unit that seems to be wrong (if ``strict``; else what
        can be given is given)."""
        queue, offset, log, limits = self.queue, self.offset, self.context.log, self.context.limits
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_index, queue.end.value)
        number = queue.number_of(offset)
        hot = offset >= queue.opened_at and number >= queue.next_number - _UNITS_HOT
        asked = (UNITS_AT_ONCE if self.accept is not None else self.count_max) + _LOOK_AHEAD
        found = yield from _units(queue, number, asked, cold=not hot)
        if isinstance(found, OSError):
            result.status, result.unreadable = (
                GetStatus.OFFSET_FOUND_NULL,
                unreadable_text(found, "the queue"),
            )
            return result, None
        if len(found) < asked:  # the last of a file: what is to follow them is in the next
            end = number + len(found)
            found = [*found, *filter(None, map(queue.unit_at, range(end, end + _LOOK_AHEAD)))]
        sound = _sound(queue, number, found, strict=strict)
        result.min_offset, result.max_offset = queue.min_index, queue.end.value
        if not sound or not sound[0].base <= offset < sound[0].end:
            if strict:
                return result, max(number, queue.first_number)
            sound, following = yield from _search(queue, offset, result.max_offset, self.context)
            if not sound:
                result.status, result.next_offset, result.gaps = (
                    GetStatus.MESSAGE_WAS_REMOVING,
                    following,
                    following - offset,
                )
                return result, None
        in_memory = sound[0].offset >= log.end - limits.hot_size
        count_max = min(self.count_max, limits.count_hot if in_memory else limits.count_cold)
        bytes_max = limits.bytes_hot if in_memory else limits.bytes_cold
        selected = _select(sound, result.max_offset, log.end, count_max, bytes_max, self.accept)
        result.next_offset, result.gaps = selected.next_index, selected.gaps
        if not selected.units:
            if selected.gaps:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            return result, None
        if hot and selected.units[0].offset >= self.hot_from:
            data = _hot_entries(queue, log, selected.units)
            if data is not None:
                result.status, result.count, result.data = GetStatus.FOUND, selected.messages, data
                return result, None
        wanted = [Unit(unit.base, unit.offset, unit.size) for unit in selected.units]
        checked = yield from checked_entries(wanted, queue, self.context)
        damaged = {damage.queue_offset for damage in checked.damages}
        result.gaps += sum(unit.messages for unit in selected.units if unit.base in damaged)
        checked.put_into(result)
        result.next_offset = max(result.next_offset, offset)
        if result.data:
            counts = messages_by_entry(result.data)
            result.count = sum(counts.values())
            for unit in selected.units if strict else ():
                if counts.get(unit.base, unit.messages) != unit.messages:
                    return result, queue.number_of(unit.base)
        return result, None


def _hot_entries(queue: BatchConsumeQueue, log: CommitLog, units: list[BatchUnit]) -> bytes | None:
    """The entries of units, out of memory; None if one does not begin as the unit's must."""
    parts = []
    for unit in units:
        entry = log.read(unit.offset, unit.size) or b""
        head = unit.size, queue.queue_id, unit.base, unit.offset
        if len(entry) < FIXED_SIZE or _HEAD.unpack_from(entry) != head:
            return None
        parts.append(entry)
    return b"".join(parts)


def _sound(
    queue: BatchConsumeQueue, number: int, units: list[BatchUnit], *, strict: bool
) -> list[BatchUnit]:
    """The units, from this number on, up to the first that cannot be, or that the next one does not
    follow. ``strict``: not the one before that either, nor any if they do not follow what is before
    them; and what is to follow the last is looked at too."""
    end = queue.max_index
    for at, unit in enumerate(units):
        if at + 1 < len(units):
            following = units[at + 1].base
        else:
            behind = queue.unit_at(number + at + 1)
            following = behind.base if behind is not None else end
        if not unit.can_be or unit.end != following or unit.end > end:
            return units[: max(at - 1, 0) if strict else at]
    if strict and units:
        before = queue.unit_at(number - 1)
        if (
            units[0].base != (before.end if before is not None else queue.min_index)
            or queue.suspect
        ):
            return []
        if number + len(units) < queue.next_number:
            return units[:-_LOOK_AHEAD]
    return units


def _units(
    queue: BatchConsumeQueue, number: int, count: int, *, cold: bool
) -> Steps[list[BatchUnit] | OSError]:
    piece = queue.numbered_piece(number, count)
    if piece is None:
        return []
    if not cold:
        return batch_units(piece.segment.read(piece.at, piece.size))
    found: Found
    (found,) = yield [piece]
    return batch_units(found) if isinstance(found, bytes) else found


def _search(
    queue: BatchConsumeQueue, offset: int, end: int, context: ReadContext
) -> Steps[tuple[list[BatchUnit], int]]:
    """Look for the unit of a message where units are damaged and could not be repaired, so that a
    binary search may lead astray: (that unit, if the log has its entry; else where to go on, which
    is the first message behind that may be there)."""
    number, following = queue.first_number, end
    candidates: list[int] = []
    while number < queue.next_number:
        found = yield from _units(queue, number, UNITS_IN_A_TURN, cold=True)
        units = found if isinstance(found, list) else []
        for at, unit in enumerate(units):
            if unit.can_be and unit.base <= offset < unit.end:
                candidates.append(number + at)
            elif (
                unit.can_be
                and offset < unit.base < following
                and unit.end == _base_behind(queue, number + at)
            ):
                following = unit.base
        number += len(units) or UNITS_IN_A_TURN
    for candidate in candidates:
        good = yield from context.repair.good_unit(queue, candidate, context.is_lost)
        if good is not None and good.base <= offset < good.end:
            return [good], offset
    return [], following


def _base_behind(queue: BatchConsumeQueue, number: int) -> int:
    behind = queue.unit_at(number + 1)
    return behind.base if behind is not None else queue.max_index


def _select(
    units: list[BatchUnit],
    end: int,
    log_end: int,
    count_max: int,
    bytes_max: int,
    accept: Callable[[int], bool] | None,
) -> _SelectedBatchUnits:
    """Which of the units' entries one read gives. What a unit that cannot be says of tags does not
    count: it is repaired by being read."""
    selected, taken = _SelectedBatchUnits(units[0].base), 0
    for unit in units:
        if unit.base >= end:
            break
        if unit.size == NO_MESSAGE_SIZE:
            selected.gaps += unit.messages
            selected.next_index = unit.end
            continue
        can_be = FIXED_SIZE <= unit.size <= ENTRY_SIZE_MAX and unit.offset < log_end
        if can_be and accept is not None and not accept(unit.tags_code) and unit.tags_code:
            selected.next_index = unit.end
            continue
        size = unit.size if can_be else 0
        if selected.units and (
            selected.messages + unit.messages > count_max or taken + size > bytes_max
        ):
            break
        selected.units.append(unit)
        selected.messages += unit.messages
        selected.next_index = unit.end
        taken += size
        if selected.messages >= count_max:
            break
    return selected


# A unit is believed if its neighbours follow one another, a store time only if the log has it. What
# does not fit is repaired, and passed over where it cannot be.


def unit_holding(
    queue: BatchConsumeQueue, index: int, repair: UnitRepair
) -> Steps[BatchUnit | OSError | None]:
    """The unit of the message ``index``, which the queue has; None if units are damaged there and
    cannot be repaired, OSError if that cannot be told now."""
    number = queue.number_of(index)
    if not _fits(queue, number, index):
        error = yield from repair.repair_for_message(
            queue, index, max(number, queue.first_number), lambda _directory, _offset: False
        )
        if error is not None:
            return error
    return queue.unit_of(index)


def first_with_time(
    queue: BatchConsumeQueue,
    index: int,
    end: int,
    repair: UnitRepair,
    time_at: Callable[[int, int], Steps[int | OSError | None]],
) -> Steps[tuple[int, int] | OSError | None]:
    """The first message from ``index`` on, before ``end``, whose store time the log has, and that
    time (ms); the OSError that leaves it open. ``time_at`` tells the time of the entry at an offset
    of the log that begins with a message."""
    failure: OSError | None = None
    while index < end:
        unit = yield from unit_holding(queue, index, repair)
        if isinstance(unit, OSError):
            return unit
        if unit is None:
            # nothing can be said of it, or it was deleted meanwhile
            index = max(index + 1, queue.min_index)
            continue
        if unit.size != NO_MESSAGE_SIZE:
            stored = yield from time_at(unit.offset, unit.base)
            if stored is None:
                repaired = yield from repair.message_of(
                    queue, Unit(unit.base, unit.offset, unit.size)
                )
                stored = repaired.error
                if repaired.entry is not None:
                    stored = yield from time_at(repaired.offset, unit.base)
            if isinstance(stored, int):
                return index, stored
            failure = stored or failure
        index = unit.end
    return failure


def _fits(queue: BatchConsumeQueue, number: int, index: int) -> bool:
    """Whether the unit of a number holds the message, and it, the one before it and the two behind
    it follow one another."""
    unit = queue.unit_at(number)
    if queue.suspect or unit is None or not unit.can_be or not unit.base <= index < unit.end:
        return False
    before = queue.unit_at(number - 1)
    if unit.base != (before.end if before is not None else queue.min_index):
        return False
    for at in (number + 1, number + 2):
        behind = queue.unit_at(at)
        if unit.end != (behind.base if behind is not None else queue.max_index):
            return False
        if behind is None:
            return True
        unit = behind
    return True
