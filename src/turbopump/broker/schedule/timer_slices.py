"""How much of a slot is read and delivered in one turn of the loop, and a slot that was read before
its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from turbopump.broker.schedule.timer_copies import TimerMessage
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.timers.pending_timers import Due

SLICE: Final = 32
"""Messages that are read and delivered in one turn at most: about 1 ms."""
SLICE_BYTES: Final = 256 * 1024
"""And their bytes, or one message."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A slot that was read before its time, and its first messages; good as long as ``newest``
    is."""

    time: int
    newest: int
    due: Due
    found: dict[int, TimerMessage | str]


def slice_of(due: Due, first: int) -> list[tuple[int, int]]:
    """The messages of a slot, from number ``first`` on, that are delivered in one turn."""
    return first_slice(
        zip(due.offsets[first : first + SLICE], due.sizes[first : first + SLICE], strict=True)
    )


def first_slice(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first (offset, size) of those, as many as are read in one turn."""
    taken: list[tuple[int, int]] = []
    left = SLICE_BYTES
    for place in places:
        left -= place[1] if place[1] != NO_MESSAGE_SIZE else 0
        if taken and left < 0:
            break
        taken.append(place)
    return taken
