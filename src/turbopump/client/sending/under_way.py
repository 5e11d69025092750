"""What a producer has under way, counted: a close waits for it. It must not know what that is."""

from __future__ import annotations

import asyncio

from turbopump.client.sending.send_failure import ProducerClosedError


class UnderWay:
    """One for all senders of a producer: ``with under_way`` around what a close is to wait for. The
    hot path does it by hand: who begins adds 1 to ``count``; who ends takes it off, and sets
    ``idle`` if there is one and he was the last."""

    __slots__ = ("closed", "count", "idle")

    def __init__(self) -> None:
        self.count = 0
        self.closed = False
        """Nothing is sent from now on, and what fails is not tried again."""
        self.idle: asyncio.Event | None = None

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.ended()

    def refuse_if_closed(self, why: str) -> None:
        """Raises ProducerClosedError, with ``why``, after the close."""
        if self.closed:
            raise ProducerClosedError(why)

    def ended(self) -> None:
        """One less."""
        self.count -= 1
        if self.idle is not None and not self.count:
            self.idle.set()

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self.count:
            self.idle = self.idle or asyncio.Event()
            self.idle.clear()
            await self.idle.wait()
