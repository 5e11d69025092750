"""Inner batches that were popped: each message by itself, as pulls have them, under the one handle
that all of a batch have.

One rule: for its broker a batch is one message. It is done when all of its messages are, and when
one is to come again they all do. Apache's clients hand a batch's bytes to the handler of a pop as
one message (``MQClientAPIImpl.processPopResponse`` takes nothing apart).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar


class Popped(Protocol):
    """Any message with a handle. ``batch``: the inner batch that it came in."""

    topic: str
    handle: str
    queue_offset: int
    batch: PoppedBatch | None


class PoppedBatch:
    """One delivery of a batch, with the ``messages`` in it. ``turn``: its handle changes once at a
    time."""

    __slots__ = ("_left", "_moved", "messages", "turn")

    def __init__(self, messages: Sequence[Popped]) -> None:
        self.messages = list(messages)
        self.turn = asyncio.Lock()
        self._left = {message.queue_offset for message in messages}
        self._moved = (0.0, -1.0)

    def done(self, message: Popped) -> bool:
        """``message`` is done; whether all are now."""
        self._left.discard(message.queue_offset)
        return not self._left

    def replace(self, before: Popped, message: Popped) -> None:
        """``message`` is another delivery of the same, and has the handle from now on."""
        self.messages = [message if other is before else other for other in self.messages]

    def moved(self, handle: str, seconds: float, now: float) -> None:
        """It comes again after so many seconds from ``now``, and has another handle from now on."""
        self._moved = seconds, now
        for message in self.messages:
            message.handle = handle

    def has_moved(self, seconds: float, since: float) -> bool:
        """Whether it was told to come again after so many seconds, at ``since`` or later."""
        return self._moved[0] == seconds and self._moved[1] >= since


PoppedT = TypeVar("PoppedT", bound=Popped)


def to_acknowledge(messages: Iterable[PoppedT]) -> Iterator[PoppedT]:
    """Of messages that are done those that brokers are told of: of a batch one message, and only
    when all of its messages are done."""
    told: set[PoppedBatch] = set()
    for message in messages:
        batch = message.batch
        if batch is None:
            yield message
        elif batch.done(message) and batch not in told:
            told.add(batch)
            yield message
