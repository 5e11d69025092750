"""Pulls that found nothing and wait for their queue to grow (long polling).

Those that wait for the same offset of a queue stand in one line, behind one waiter at its end
watermark. All of a line are woken at once and read again, after the loop turn in which the queue
grew: one answer carries all that came with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from turbopump.broker.waiting import Again, Line, WaitingRequest, WaitingRequests
from turbopump.remoting.served import Served
from turbopump.remoting.turns import Turns
from turbopump.store.queues.consume_queue import ConsumeQueue

PULL_SIZE: Final = 1024
"""Bytes that a held pull takes, its request included; 40,000 took 920 to 960 each."""


class _PullLine(Line):
    """The pulls that wait for one offset of a queue."""

    __slots__ = ("queue", "waiter")

    def __init__(
        self, queue: ConsumeQueue, offset: int, reached: Callable[[_PullLine], None]
    ) -> None:
        super().__init__((queue, offset))
        self.queue = queue
        self.waiter = queue.end.when(offset + 1, lambda: reached(self))

    def unwatch(self) -> None:
        self.waiter.cancel()


class HeldPulls(WaitingRequests[_PullLine]):
    """Every waiting pull of a broker."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns, PULL_SIZE)

    def hold(
        self, queue: ConsumeQueue, offset: int, seconds: float, again: Again, served: Served
    ) -> None:
        """Wait until ``queue`` has a message at ``offset``, or ``seconds`` are over, or the
        connection has ended."""
        line = self.lines.get((queue, offset))
        if line is None:
            line = _PullLine(queue, offset, self._wake_line)
            self.lines[line.key] = line
        deadline = asyncio.get_running_loop().time() + seconds
        self._add(line, WaitingRequest(line, deadline, again, served), served)

    def expire_topic(self, topic: str) -> None:
        """Answer all pulls that wait for a topic: it was deleted, and what comes under its name
        comes into other queues."""
        for line in [line for line in self.lines.values() if line.queue.topic == topic]:
            self.expire_line(line)
