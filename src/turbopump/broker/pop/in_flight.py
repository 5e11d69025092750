"""Popped messages of each queue that are neither acknowledged nor put back.

Only messages popped since the start count, and only if there is a limit. Ordered pops do not count:
they take no more of a queue while some of its messages are out. RocketMQ:
``PopInflightMessageCounter``, a plain number; a repeated acknowledgement lowers it twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from turbopump.broker.pop.group_queue import GroupQueue


class InFlight:
    """Popped messages without an acknowledgement. A group does not pop a queue that has more than
    ``limit`` of them. None: no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._out: dict[GroupQueue, set[int]] = {}

    def count_popped(self, queue: GroupQueue) -> int:
        """Count the popped messages that are not acknowledged."""
        return len(self._out.get(queue, ()))

    def is_full(self, queue: GroupQueue) -> bool:
        """Return True if more messages are unacknowledged than allowed."""
        return self._limit is not None and self.count_popped(queue) > self._limit

    def add_popped(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """Record these queue offsets as popped."""
        if self._limit is not None:
            self._out.setdefault(queue, set()).update(offsets)

    def remove_ended(self, queue: GroupQueue, offsets: Iterable[int]) -> bool:
        """Record these queue offsets as acknowledged or put back. Return True if the queue may be
        popped again now."""
        out = self._out.get(queue)
        if out is None:
            return False
        was_full = self.is_full(queue)
        out.difference_update(offsets)
        if not out:
            del self._out[queue]
        return was_full and not self.is_full(queue)

    def forget_queue(self, queue: GroupQueue) -> None:
        """Forget the popped messages of a queue, because the group's offset was reset."""
        self._out.pop(queue, None)
