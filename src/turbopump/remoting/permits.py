"""Limit on concurrent calls, sends, or one-way messages."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

PERMITS: Final = 65_535
"""Maximum concurrent calls (apache/rocketmq ``NettySystemConfig``, ``clientAsyncSemaphoreValue``),
and also maximum concurrent one-way messages (``clientOnewaySemaphoreValue``)."""


@dataclass(slots=True, eq=False)
class Permits:
    """Counter of running operations. Above ``limit``, new operations wait, first come, first
    served.

    To use a permit, add 1 to ``count``. If ``count`` is then above ``limit``, await ``wait_turn``.
    At the end subtract 1, and call ``wake_waiting`` if ``watched``. Callers do this inline, because
    a call would slow each send down more.

    ``with permits`` (``hold``, ``ended``) marks an operation that needs no permit but that
    ``wait_idle`` must wait for. Source: apache/rocketmq ``NettyRemotingAbstract.semaphoreAsync``,
    ``semaphoreOneway``.
    """

    limit: int = PERMITS
    count: int = 0
    """Number of operations, including those that wait for a permit."""
    watched: bool = False
    """True while a caller waits for a permit, or for all operations to end."""
    idle: asyncio.Event | None = None
    _turns: deque[asyncio.Future[None]] = field(default_factory=deque)

    def hold(self) -> None:
        self.count += 1
        self.limit += 1

    def ended(self) -> None:
        self.count -= 1
        self.limit -= 1
        if self.watched:
            self.wake_waiting()

    def __enter__(self) -> None:
        self.hold()

    def __exit__(self, *_: object) -> None:
        self.ended()

    async def wait_turn(self, deadline: float) -> None:
        """Wait for a permit. Raises TimeoutError at ``deadline``, a time of the event loop."""
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
        """Wait until no operation is running."""
        while self.count:
            self.idle = self.idle or asyncio.Event()
            self.idle.clear()
            self.watched = True
            await self.idle.wait()

    def wake_waiting(self) -> None:
        """Give free permits to the callers that wait for a permit, oldest first."""
        # `count` includes operations that wait for a permit, so `count - len(turns)` are running.
        # The oldest wait ends first.
        turns = self._turns
        while turns and self.count - len(turns) < self.limit:
            first = turns.popleft()
            if not first.done():
                first.set_result(None)
        if self.idle is not None and not self.count:
            self.idle.set()
        self.watched = bool(turns) or (self.idle is not None and not self.idle.is_set())
