"""The messages of one assigned queue that were pulled and are not done: what a consumer has in its hands.

One rule: the offset to commit is the lowest that is not done, and where nothing is in flight, the place up to which was pulled. Pure:
no clock, no network, no tasks. It must not know who handles a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue

MESSAGES_MAX: Final = 1000
BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2000
"""``pullThresholdForQueue``, ``pullThresholdSizeForQueue``, ``consumeConcurrentlyMaxSpan``: beyond any of them, pulling waits."""


class ProcessQueue:
    """``next_offset`` is where the next pull begins. ``dropped``: the queue is someone else's now; nothing of it counts any more."""

    __slots__ = ("_bytes", "_in_flight", "_offsets", "dropped", "next_offset", "queue")

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self._offsets: deque[int] = deque()  # in flight or done behind one that is in flight; the first is in flight
        self._in_flight: dict[int, int] = {}  # offset -> bytes
        self._bytes = 0

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Pulled messages, in the order of their offsets; what a filter left out may be missing."""
        offsets, in_flight, total = self._offsets, self._in_flight, 0
        for message in messages:
            offset, size = message.queue_offset, message.store_size
            offsets.append(offset)
            in_flight[offset] = size
            total += size
        self._bytes += total
        assert not self._offsets or self._offsets[-1] < next_offset
        self.next_offset = next_offset

    def done(self, offset: int) -> None:
        """This message will not be handled again. Says nothing if it was done before."""
        size = self._in_flight.pop(offset, None)
        if size is None:
            return
        self._bytes -= size
        offsets, in_flight = self._offsets, self._in_flight
        while offsets and offsets[0] not in in_flight:
            offsets.popleft()

    @property
    def commit_offset(self) -> int:
        """Everything below it is done."""
        return self._offsets[0] if self._offsets else self.next_offset

    @property
    def in_flight(self) -> int:
        """Messages pulled and not done."""
        return len(self._in_flight)

    def full(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX, span_max: int = SPAN_MAX) -> bool:
        """Whether pulling must wait until something is done."""
        offsets = self._offsets
        return (
            len(self._in_flight) >= messages_max
            or self._bytes >= bytes_max
            or (bool(offsets) and offsets[-1] - offsets[0] > span_max)
        )
