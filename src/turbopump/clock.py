"""Clocks for wall time and for intervals.

Intervals and deadlines use ``monotonic``. ``now_ms`` is only stored or shown, and never subtracted
to measure a wait, because a wall clock may jump (apache/rocketmq#9455). Components get their
``Clock`` as an argument.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Interface of the clocks that components use."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return the time in seconds, by a clock that never goes back.

        Only the difference of two values has a meaning.
        """


class SystemClock:
    """Clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # called twice per append: without a Python frame it takes 0.03 µs
    monotonic = staticmethod(time.monotonic)
