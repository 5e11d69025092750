"""Bound of what may be under way at once: calls, sends, or messages that want no answer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

PERMITS: Final = 65_535
"""Calls that may wait for their answers at once (apache/rocketmq ``NettySystemConfig``,
``clientAsyncSemaphoreValue``), and as many that want none (``clientOnewaySemaphoreValue``)."""


@dataclass(slots=True, eq=False)
class Permits:
    """Count of what is under way; more than ``limit`` wait for their turn, first come, first
    served.

    Add 1 to ``count``; if that makes it more than ``limit``, await ``turn``; in the end take 1 off,
    and call ``wake`` if ``watched``: a call would cost a send more than that does. ``with permits``
    (``hold``, ``ended``) is for what takes no permit, and is waited for by ``wait_idle``.
    Source: apache/rocketmq ``NettyRemotingAbstract.semaphoreAsync``, ``semaphoreOneway``.
    """

    limit: int = PERMITS
    count: int = 0
    """Those that wait for their turn are in it."""
    watched: bool = False
    """True while somebody waits for one of them to end."""
    idle: asyncio.Event | None = None
    _turns: deque[asyncio.Future[None]] = field(default_factory=deque)

    def hold(self) -> None:
        self.count += 1
        self.limit += 1

    def ended(self) -> None:
        self.count -= 1
        self.limit -= 1
        if self.watched:
            self.wake()

    def __enter__(self) -> None:
        self.hold()

    def __exit__(self, *_: object) -> None:
        self.ended()

    async def turn(self, deadline: float) -> None:
        """Wait for a permit. Raises TimeoutError at ``deadline`` (loop time)."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(mine)
        self.watched = True
        try:
            async with asyncio.timeout_at(deadline):
                await mine
        finally:
            if mine in self._turns:
                self._turns.remove(mine)

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self.count:
            self.idle = self.idle or asyncio.Event()
            self.idle.clear()
            self.watched = True
            await self.idle.wait()

    def wake(self) -> None:
        """Let those go on whose turn it is."""
        turns = self._turns
        while turns and self.count - len(turns) < self.limit:
            first = turns.popleft()
            if not first.done():
                first.set_result(None)
        if self.idle is not None and not self.count:
            self.idle.set()
        self.watched = bool(turns) or (self.idle is not None and not self.idle.is_set())
