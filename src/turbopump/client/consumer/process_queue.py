"""The messages of one assigned queue that were pulled and are not done: what a consumer has in its
hands.

One rule: the offset to commit is the lowest that is not done, and where nothing is in flight, the
offset up to which was pulled. Pure: no clock, no network, no tasks. This module must not know who
handles a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from turbopump.message.message import ReceivedMessage

MESSAGES_MAX: Final = 1000
BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2000


class PullLimits(NamedTuple):
    """Limits of what is in hand of a queue, beyond which pulling waits: messages, bytes, and
    offsets from the first to the last. Limits of a topic are shared in equal parts by its queues
    that are ours; the smaller limit counts.

    RocketMQ: ``pullThresholdForQueue``, ``pullThresholdSizeForQueue`` (MiB),
    ``consumeConcurrentlyMaxSpan``, ``pullThresholdForTopic``, ``pullThresholdSizeForTopic``; the
    parts by ``RebalancePushImpl.messageQueueChanged``.
    """

    messages: int = MESSAGES_MAX
    bytes: int = BYTES_MAX
    span: int = SPAN_MAX
    topic_messages: int | None = None
    topic_bytes: int | None = None

    @property
    def has_topic(self) -> bool:
        """True if a topic's queues share a limit."""
        return self.topic_messages is not None or self.topic_bytes is not None

    def shared(self, queues: int) -> PullLimits:
        """Return the limits of one queue when ``queues`` of its topic are ours."""
        return PullLimits(
            self.messages
            if self.topic_messages is None
            else min(self.messages, max(1, self.topic_messages // queues)),
            self.bytes
            if self.topic_bytes is None
            else min(self.bytes, max(1, self.topic_bytes // queues)),
            self.span,
        )


USUAL_LIMITS: Final = PullLimits()


class ProcessQueue:
    """``next_offset`` is where the next pull begins. ``limits`` may change."""

    __slots__ = ("_in_flight", "_offsets", "limits", "next_offset", "size")

    def __init__(self, next_offset: int, limits: PullLimits = USUAL_LIMITS) -> None:
        self.limits = limits
        self.next_offset = next_offset
        self.size = 0
        """Bytes of what is pulled and not done."""
        # in flight or done behind one that is in flight; the first is in flight
        self._offsets: deque[int] = deque()
        self._in_flight: dict[int, int] = {}  # offset -> bytes

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Pulled messages, in the order of their offsets; what a filter left out may be missing."""
        offsets, in_flight, total = self._offsets, self._in_flight, 0
        for message in messages:
            offset, size = message.queue_offset, message.store_size
            offsets.append(offset)
            in_flight[offset] = size
            total += size
        self.size += total
        assert not self._offsets or self._offsets[-1] < next_offset
        self.next_offset = next_offset

    def done(self, offset: int) -> None:
        """Forget a message that will not be handled again. Nothing happens if it was done
        before."""
        size = self._in_flight.pop(offset, None)
        if size is None:
            return
        self.size -= size
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

    @property
    def span(self) -> tuple[int, int]:
        """The first offset that is pulled and not done, and the last that is pulled; both 0 if
        there is none."""
        return (self._offsets[0], self._offsets[-1]) if self._offsets else (0, 0)

    def full(self) -> bool:
        """Return True if pulling must wait until a message is done."""
        offsets, limits = self._offsets, self.limits
        return (
            len(self._in_flight) >= limits.messages
            or self.size >= limits.bytes
            or (bool(offsets) and offsets[-1] - offsets[0] > limits.span)
        )
