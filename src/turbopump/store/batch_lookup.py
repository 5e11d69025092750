"""Single questions to a batch queue: which unit holds a message, and which message was stored when.

The rule: a unit is believed if its neighbours follow one another, a store time only if the log has
it. What does not fit is repaired, and passed over where it cannot be. It must not know of keys.
"""

from __future__ import annotations

from collections.abc import Callable

from turbopump.store.batch_consume_queue import BatchConsumeQueue
from turbopump.store.batch_unit import BatchUnit
from turbopump.store.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.question import Question
from turbopump.store.unit_repair import Unit, UnitRepair


def unit_holding(
    queue: BatchConsumeQueue, index: int, repair: UnitRepair
) -> Question[BatchUnit | OSError | None]:
    """The unit of the message ``index``, which the queue has; None if units are damaged there and
    cannot be repaired, OSError if that cannot be told now."""
    number = queue.number_of(index)
    if not _fits(queue, number, index):
        error = yield from repair.put_right(
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
    time_at: Callable[[int, int], Question[int | OSError | None]],
) -> Question[tuple[int, int] | OSError | None]:
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
