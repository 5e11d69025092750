"""Which messages are popped and neither acknowledged nor put back, by group and queue: how many,
and whether that is too many.

Only what was popped since the start is counted, and nothing if there is no limit; nor what is
popped in order, where no more is taken of a queue while some is out. Pure. RocketMQ:
``PopInflightMessageCounter``, which keeps a number alone, and counts an acknowledgement that comes
twice twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from turbopump.broker.pop.places import GroupQueue


class InFlight:
    """``limit``: a queue of which more than that are out is not popped by this group; None: there
    is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._out: dict[GroupQueue, set[int]] = {}

    def count(self, place: GroupQueue) -> int:
        """How many are out."""
        return len(self._out.get(place, ()))

    def is_full(self, place: GroupQueue) -> bool:
        """Whether more are out than may be."""
        return self._limit is not None and self.count(place) > self._limit

    def took(self, place: GroupQueue, offsets: Iterable[int]) -> None:
        """These queue offsets are popped."""
        if self._limit is not None:
            self._out.setdefault(place, set()).update(offsets)

    def ended(self, place: GroupQueue, offsets: Iterable[int]) -> bool:
        """They are acknowledged, or put back; True if the queue may be popped again now."""
        out = self._out.get(place)
        if out is None:
            return False
        was_full = self.is_full(place)
        out.difference_update(offsets)
        if not out:
            del self._out[place]
        return was_full and not self.is_full(place)

    def forget(self, place: GroupQueue) -> None:
        """The group goes on elsewhere: what is out will not be waited for."""
        self._out.pop(place, None)
