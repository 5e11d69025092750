"""How long the turns of a loop are, in CPU time of its thread: whatever else runs on the machine,
that is what others wait for."""

from __future__ import annotations

import asyncio
import gc
import time

LONGEST_MS = 50.0
"""What no turn of a broker's loop may take."""


class Turns:
    """``count`` and ``longest_ms`` of the turns of the loop within a ``with`` block. Python's
    collector passes over what the test run has made before."""

    def __enter__(self) -> Turns:
        gc.collect()
        gc.freeze()
        self.count = 0
        self.longest_ms = 0.0
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._last = time.thread_time()
        self._loop.call_soon(self._turn)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        gc.unfreeze()

    def _turn(self) -> None:
        now = time.thread_time()
        self.count += 1
        self.longest_ms = max(self.longest_ms, (now - self._last) * 1000)
        self._last = now
        if not self._over:
            self._loop.call_soon(self._turn)
