"""Table of messages that are in flight: popped, but neither acknowledged nor given back.

Only messages popped since the start count. Ordered pops do not count: they take no more of a queue
while some of its messages are unacknowledged. RocketMQ: ``PopInflightMessageCounter`` is a plain
number, so a repeated acknowledgement lowers it twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from turbopump.broker.pop.group_queue import GroupQueue


class InFlight:
    """Table of popped messages without an acknowledgement, by queue.

    A group does not pop a queue that has more than ``limit`` of these messages. A limit of None
    means no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._out: dict[GroupQueue, set[int]] = {}

    def count_popped(self, queue: GroupQueue) -> int:
        """Return the number of messages of a queue that were popped but not acknowledged."""
        return len(self._out.get(queue, ()))

    def is_full(self, queue: GroupQueue) -> bool:
        """Return True if a queue has more unacknowledged messages than the limit."""
        return self._limit is not None and self.count_popped(queue) > self._limit

    def add_popped(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """Record that the messages at these offsets of a queue were popped."""
        self._out.setdefault(queue, set()).update(offsets)

    def remove_ended(self, queue: GroupQueue, offsets: Iterable[int]) -> bool:
        """Record that the messages at these offsets of a queue were acknowledged or given back.

        Return True if the queue was over the limit and is no longer.
        """
        out = self._out.get(queue)
        if out is None:
            return False
        was_full = self.is_full(queue)
        out.difference_update(offsets)
        if not out:
            del self._out[queue]
        return was_full and not self.is_full(queue)

    def forget_queue(self, queue: GroupQueue) -> None:
        """Forget the popped messages of a queue after a reset of the group's offset."""
        self._out.pop(queue, None)
