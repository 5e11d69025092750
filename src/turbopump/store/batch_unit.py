"""The unit of a batch queue, and what a row of units says as a whole, where some of them may be
damaged.

The ruler is in ``batch_consume_queue.py``. A sound unit begins with the message with which the one
before it ends, and its entry lies behind that one's. The rule: one or a few damaged units never
decide anything; where the units at the place in question do not agree, all are asked. It must not
know of files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from turbopump.store.consume_queue import first_unit_at, possible_offset

BATCH_UNIT_SIZE: Final = 46
COUNT_MAX: Final = 0x7FFF
"""Messages of one entry: the count is a signed short."""

_UNIT: Final = struct.Struct(">qiqqqhii")
_NOT_COMPACTED: Final = -1
_LOOK: Final = 204
"""Units behind the end of a file that are looked at: two sectors of 4 KiB may be damaged, and there
are units behind them all the same."""


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
        """Whether it may be a unit, as far as it shows by itself."""
        return (
            possible_offset(self.offset, self.size) is not None
            and self.base >= 0
            and self.messages > 0
        )


UnitAt = Callable[[int], BatchUnit | None]
"""The unit of a number; None where there is none."""


def pack_batch_unit(unit: BatchUnit) -> bytes:
    """Its 46 bytes."""
    return _UNIT.pack(*unit, _NOT_COMPACTED, 0)


def pack_batch_unit_into(buffer: Any, at: int, unit: BatchUnit) -> None:
    """Write it into a map."""
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
    low, high = 0, room
    while low < high:
        middle = (low + high) // 2
        if BatchUnit(*_UNIT.unpack_from(buffer, middle * BATCH_UNIT_SIZE)[:6]).can_be:
            low = middle + 1
        else:
            high = middle
    while data := bytes(
        buffer[low * BATCH_UNIT_SIZE : min(low + _LOOK, room) * BATCH_UNIT_SIZE]
    ).rstrip(b"\0"):
        low += -(-len(data) // BATCH_UNIT_SIZE)
    return low


def border_at(
    offset: int,
    low: int,
    high: int,
    unit_at: UnitAt,
    all_units: Callable[[], Iterable[BatchUnit]],
    *,
    lowest: bool,
) -> tuple[int, bool]:
    """The number of the first unit, of those from ``low`` to ``high``, whose entry lies at or after
    this offset of the log; and whether the units on its two sides agree. If not, it is the number
    that contradicts the fewest of ``all_units`` (the ``lowest``, or the highest)."""

    def offset_of(number: int) -> int | None:
        unit = unit_at(number)
        return possible_offset(unit.offset, unit.size) if unit is not None else None

    number = first_unit_at(offset, low, high, offset_of)
    if _agree(offset, number, low, high, unit_at):
        return number, True
    best, against, least = low, 0, 0
    for at, unit in enumerate(all_units(), low + 1):
        if possible_offset(unit.offset, unit.size) is not None:
            against += 1 if unit.offset >= offset else -1
        if against < least or (against == least and not lowest):
            best, least = at, against
    return best, False


def _agree(offset: int, number: int, low: int, high: int, unit_at: UnitAt) -> bool:
    """Whether the unit before a number lies before the offset, that of the number behind it, and
    they and the next follow one another."""
    before = unit_at(number - 1) if number > low else None
    unit = unit_at(number) if number < high else None
    behind = unit_at(number + 1) if number + 1 < high else None
    if before is not None and not (before.can_be and before.offset < offset):
        return False
    if unit is None:
        return True
    if not unit.can_be or unit.offset < offset or (before is not None and before.end != unit.base):
        return False
    return behind is None or (unit.end == behind.base and unit.offset <= behind.offset)


def base_of(number: int, low: int, high: int, unit_at: UnitAt, end: int) -> int | None:
    """The first message of the unit of a number, as far as it and its neighbours tell; ``end`` is
    the one behind the last unit. None if nothing can be said."""
    before = unit_at(number - 1) if number > low else None
    unit = unit_at(number)
    if number >= high or unit is None:
        return end
    behind = unit_at(number + 1)
    following = behind.base if behind is not None else end
    if unit.can_be and (unit.end == following or (before is not None and before.end == unit.base)):
        return unit.base
    return before.end if before is not None and before.can_be else None
