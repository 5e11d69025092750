"""Messages that wait for somebody to handle them, first come first served, over all queues of a consumer.

One rule: a message of a queue that is no longer ours, or that is settled already, is not handed out. It must not know what becomes of
a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from turbopump.client.delivery import Delivery

TURN_MAX_S: Final = 0.01
"""A taker that never has to wait lets the loop do other things this often: heartbeats must go out whatever the handlers do."""


class NoMoreMessages(Exception):  # noqa: N818 - an end, not an error
    """The consumer is closed."""


class ReadyMessages:
    """A queue with many takers. Bounded by what the pulls may put into it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Delivery] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._turn_started = self._loop.time()

    def put(self, messages: Iterable[Delivery]) -> None:
        """Hand in messages."""
        if self._closed:
            return
        before = len(self._ready)
        self._ready.extend(messages)
        self._wake(len(self._ready) - before)

    def give_back(self, message: Delivery) -> None:
        """It was taken and nothing was done with it: it is the next again."""
        if not self._closed:
            self._ready.appendleft(message)
            self._wake(1)

    def close(self) -> None:
        """Nobody gets anything any more."""
        self._closed = True
        self._ready.clear()
        self._wake(len(self._waiters))

    async def take(self) -> Delivery:
        """The next message, when there is one. Raises NoMoreMessages once closed."""
        while True:
            message = self._next()
            if message is not None:
                if self._loop.time() - self._turn_started > TURN_MAX_S:
                    self._turn_started = self._loop.time() + 1.0  # only one taker yields
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        self.give_back(message)
                        raise
                    finally:
                        self._turn_started = self._loop.time()
                    if not message.wanted:
                        continue
                return message
            if self._closed:
                raise NoMoreMessages
            await self._more()

    async def take_some(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``. Raises NoMoreMessages once closed."""
        messages = [await self.take()]
        while len(messages) < count and (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Delivery | None:
        while self._ready:
            message = self._ready.popleft()
            if message.wanted:
                return message
        return None

    async def _more(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # it was for somebody who is gone now
            else:
                self._waiters.remove(waiter)
            raise
        self._turn_started = self._loop.time()

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
