"""A `turbopump.clock.Clock` for simulations: wall time that starts on a fixed day, runs with the
loop and can be made to jump.

Its one rule: `monotonic` is the loop's virtual time whatever happens to `now_ms`, as on a real
machine.
"""

import asyncio

START_MS = 1_700_000_000_000
"""Wall time at the start of a run: 2023-11-14 22:13:20 UTC, in milliseconds."""


class SimulatedClock:
    """The clocks of one host. `start_ms` is wall time, in epoch milliseconds, when the loop's time
    is 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = START_MS) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back if negative."""
        self._start_ms += milliseconds
