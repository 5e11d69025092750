"""Unfinished messages of one assigned queue: pulled, but not done.

One rule: the offset to commit is the lowest that is not done. If no message is in flight, it is the
offset of the next pull. Pure: no clock, no network, no tasks. This module must not know who handles
a message.
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
    """Limits of the unfinished messages of one queue. Pulling waits while a limit is reached.

    - ``messages``: number of messages.
    - ``bytes``: total size of the messages.
    - ``span``: distance from the first to the last offset.
    - ``topic_messages``, ``topic_bytes``: limits for all assigned queues of a topic together, which
      are divided equally among these queues. Of two limits for one queue, the smaller counts.

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
        """True if there is a limit for a whole topic."""
        return self.topic_messages is not None or self.topic_bytes is not None

    def divided_by(self, queues: int) -> PullLimits:
        """Return the limits of one queue of a topic with ``queues`` assigned queues."""
        messages = self.messages
        size = self.bytes
        if self.topic_messages is not None:
            messages = min(messages, max(1, self.topic_messages // queues))
        if self.topic_bytes is not None:
            size = min(size, max(1, self.topic_bytes // queues))
        return PullLimits(messages, size, self.span)


USUAL_LIMITS: Final = PullLimits()


class ProcessQueue:
    """Unfinished messages of one queue: pulled, but not done.

    ``next_offset`` is the offset of the next pull. ``limits`` may be changed at any time.
    """

    __slots__ = ("_in_flight", "_offsets", "limits", "next_offset", "size")

    def __init__(self, next_offset: int, limits: PullLimits = USUAL_LIMITS) -> None:
        self.limits = limits
        self.next_offset = next_offset
        self.size = 0
        """Bytes of unfinished messages."""
        # in flight or done behind one that is in flight; the first is in flight
        self._offsets: deque[int] = deque()
        self._in_flight: dict[int, int] = {}  # offset -> bytes

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Add pulled messages, in the order of their offsets. A filter can leave gaps between the
        offsets."""
        offsets = self._offsets
        in_flight = self._in_flight
        total = 0
        for message in messages:
            offset = message.queue_offset
            size = message.store_size
            offsets.append(offset)
            in_flight[offset] = size
            total += size
        self.size += total
        assert not self._offsets or self._offsets[-1] < next_offset
        self.next_offset = next_offset

    def done(self, offset: int) -> None:
        """Remove a message that will not be handled again. An unknown offset is no error."""
        size = self._in_flight.pop(offset, None)
        if size is None:
            return
        self.size -= size
        offsets = self._offsets
        in_flight = self._in_flight
        while offsets and offsets[0] not in in_flight:
            offsets.popleft()

    @property
    def commit_offset(self) -> int:
        """Offset to commit. Every message before this offset is done."""
        return self._offsets[0] if self._offsets else self.next_offset

    @property
    def in_flight(self) -> int:
        """Number of pulled messages that are not done."""
        return len(self._in_flight)

    @property
    def span(self) -> tuple[int, int]:
        """First unfinished offset and last pulled offset. Both are 0 if every message is done."""
        return (self._offsets[0], self._offsets[-1]) if self._offsets else (0, 0)

    def full(self) -> bool:
        """Return True if pulling must wait until a message is done."""
        offsets = self._offsets
        limits = self.limits
        return (
            len(self._in_flight) >= limits.messages
            or self.size >= limits.bytes
            or (bool(offsets) and offsets[-1] - offsets[0] > limits.span)
        )
