"""So many a second, and never more within any second. It must not know of what."""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Hands out turns one after the other, ``rate`` a second; without a rate at once.

    They are spread evenly. What a pause has missed is made up for, but between a turn and the one
    ``rate`` turns later there is always a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._latest: deque[float] = deque(maxlen=max(1, int(rate or 1)))
        self._due = 0.0
        self._one_by_one = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for the next turn."""
        if self._rate is None:
            return
        loop = asyncio.get_running_loop()
        async with self._one_by_one:
            latest, span = self._latest, (self._latest.maxlen or 1) / self._rate
            self._due = (
                max(self._due + 1 / self._rate, loop.time() - span) if latest else loop.time()
            )
            at = max(self._due, latest[0] + span) if len(latest) == latest.maxlen else self._due
            await asyncio.sleep(max(0.0, at - loop.time()))
            latest.append(loop.time())
