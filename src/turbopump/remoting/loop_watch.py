"""Watch on the delays of an event loop: how late a timer is that fires again and again.

A turn of the loop that takes long makes the timer late. The watch counts each delay. What the loop
does is unknown here.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import Final

from turbopump.metrics.family import Distribution

INTERVAL_S: Final = 0.01
"""Seconds between two timers. They take 0.6 % of a processor that is otherwise idle, less beside
other work."""
LONG_TURN_S: Final = 0.02
DELAY_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopWatch:
    """Watch on the running event loop. Call ``start``, then ``stop``.

    - ``long_turns``: number of timers that were over ``LONG_TURN_S`` late. A turn of the loop that
      took over ``LONG_TURN_S`` + ``INTERVAL_S`` is always counted, a shorter one only sometimes.
    """

    def __init__(self) -> None:
        self.long_turns = 0
        self._counts = [0] * (len(DELAY_BOUNDS) + 1)
        self._total = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delays(self) -> Distribution:
        """Delays of all timers since the start, in seconds."""
        return Distribution(tuple(self._counts), self._total)

    def start(self) -> None:
        """Begin to watch the running event loop. The method may be called again."""
        if self._timer is None:
            self._set_timer()

    def stop(self) -> None:
        """Stop watching. The method may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._due = time.perf_counter() + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._fire)

    def _fire(self) -> None:
        late = max(time.perf_counter() - self._due, 0.0)
        self._counts[bisect_left(DELAY_BOUNDS, late)] += 1
        self._total += late
        self.long_turns += late > LONG_TURN_S
        self._set_timer()
