"""Waiting list of pulls that found no message (long polling).

Pulls for the same offset of a queue form one line, with one waiter for the end of the queue. All
pulls of a line are read again after the run of the event loop in which the queue grew. So one
answer contains all messages that were stored in that run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from turbopump.broker.waiting import Again, Line, WaitingRequest, WaitingRequests
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import Turns
from turbopump.store.queues.consume_queue import ConsumeQueue

PULL_SIZE: Final = 1024
"""Bytes of memory counted for a waiting pull and its request. Measured with 40,000 pulls: 920 to
960 each."""


class _PullLine(Line):
    """Pulls that wait for the same offset of a queue."""

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
    """All pulls of a broker that wait for messages."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns, PULL_SIZE)

    def hold_pull(
        self, queue: ConsumeQueue, offset: int, seconds: float, again: Again, served: ServedRequests
    ) -> None:
        """Let a pull wait until ``queue`` has a message at ``offset``.

        The pull is read again by calling ``again`` when the message has arrived or ``seconds`` are
        over. A pull whose connection has ended is dropped.
        """
        line = self.lines.get((queue, offset))
        if line is None:
            line = _PullLine(queue, offset, self._wake_line)
            self.lines[line.key] = line
        deadline = asyncio.get_running_loop().time() + seconds
        self._add_request(line, WaitingRequest(line, deadline, again, served), served)

    def expire_topic(self, topic: str) -> None:
        """Answer all waiting pulls of a deleted topic.

        They cannot be served by a new topic of the same name, which has other queues.
        """
        for line in [line for line in self.lines.values() if line.queue.topic == topic]:
            self.expire_line(line)
