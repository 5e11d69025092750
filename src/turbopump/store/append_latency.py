"""Durations of appends to the store, in Apache's thirteen classes.

Appends under 1 ms cost nothing here: their number follows from the number of messages. RocketMQ:
``setPutMessageEntireTimeMax``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_TEXT: Final = (
    "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] "
    "[3~4s] [4~5s] [5~10s] [10s~]"
)
NAMES: Final = tuple(_TEXT.split(" "))
BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
SLOW_S: Final = 0.001
"""Duration in seconds from which an append counts as slow."""


class AppendLatency:
    """Count of appends to the store in each duration class.

    - ``appended``: returns the total number of appended messages.
    - ``on_slow``: gets the seconds of each append that took ``SLOW_S`` or longer.
    """

    def __init__(self, appended: Callable[[], int], on_slow: Callable[[float], None]) -> None:
        self._appended = appended
        self._on_slow = on_slow
        self._before = appended()
        self._slow = [0] * len(NAMES)
        self.last_minute: dict[str, int] = dict.fromkeys(NAMES, 0)
        """Number of appends in each duration class during the last complete minute."""
        self.longest = 0.0
        """Duration of the longest append in seconds."""

    def add_slow(self, seconds: float) -> None:
        """Record one append that took ``SLOW_S`` or longer. The append of a batch counts once."""
        self._slow[bisect_right(BOUNDS_MS, int(seconds * 1000))] += 1
        self.longest = max(self.longest, seconds)
        self._on_slow(seconds)

    def end_minute(self) -> str:
        """Store the counts of the past minute in ``last_minute``, and return them as a line for the
        log."""
        now = self._appended()
        counts = [*self._slow]
        counts[0] += max(now - self._before - sum(self._slow), 0)
        self._before = now
        self._slow = [0] * len(NAMES)
        self.last_minute = dict(zip(NAMES, counts, strict=True))
        text = "".join(f"{name}:{count} " for name, count in self.last_minute.items())
        return f"[PAGECACHERT] TotalPut {sum(counts)}, PutMessageDistributeTime {text}"
