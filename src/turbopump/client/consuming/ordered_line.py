"""The messages of one queue in line: the next one is handed out when the one before it is done.

One rule: at most one message of the queue is in somebody's hands, and after a failure it is the
same one again. It must not know locks, offsets or brokers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.ready_messages import AnyReady


@dataclass(frozen=True, slots=True)
class InOrder:
    """How a message that failed is retried in place: after so many seconds, and how often (None:
    until it succeeds). ``batch``: so many messages of a queue at a time, for a handler that takes
    several at once; None: one."""

    suspend_s: float
    retries_max: int | None
    batch: int | None = None


class OrderedLine:
    """Hands messages to ``ready``, one at a time, until it is stopped."""

    def __init__(self, ready: AnyReady) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = ready
        self._waiting: deque[Delivery] = deque()
        self._out: Delivery | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._idle: list[asyncio.Future[None]] = []

    def put(self, messages: Iterable[Delivery]) -> None:
        """Messages that follow those that were put before."""
        if not self._stopped:
            self._waiting.extend(messages)
            if self._out is None:
                self._next()

    def done(self, message: Delivery) -> None:
        """It has been dealt with: the next one may go."""
        if message is self._out:
            self._out = None
            if not self._stopped:
                self._next()
            self._tell()

    def again(self, message: Delivery, delay: float) -> None:
        """It has failed: it is handed out again after so many seconds, and the others wait. Its
        owner gives it a new delivery then."""
        assert message is self._out
        message.taken = False
        if not self._stopped:
            self._timer = self._loop.call_later(max(delay, 0.0), self._hand_out, message)
        self._tell()

    def left(self) -> None:
        """Whoever had the message has put it down."""
        self._tell()

    def stop(self) -> None:
        """Hand nothing out any more. Who has a message may still deal with it."""
        self._stopped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def idle(self) -> None:
        """Wait, after ``stop``, until nobody has a message of this queue in hand."""
        while self._in_hand:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    @property
    def _in_hand(self) -> bool:
        return self._out is not None and self._out.taken

    def _next(self) -> None:
        if self._waiting:
            self._out = self._waiting.popleft()
            self._ready.put([self._out])

    def _hand_out(self, message: Delivery) -> None:
        self._timer = None
        # a handler that has asked for it again may still say something, of that delivery
        self._out = again = copy(message)
        again.deliver_again()
        self._ready.put([again])

    def _tell(self) -> None:
        if self._idle and not self._in_hand:
            waiters, self._idle = self._idle, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
