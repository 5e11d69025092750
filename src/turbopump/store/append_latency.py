"""How long appends took, counted in Apache's thirteen classes and told once a minute on a line of
Apache's form.

An append under a millisecond, nearly every one, costs nothing here: how many there were follows
from the number of messages. Source: apache/rocketmq
``StoreStatsService.setPutMessageEntireTimeMax``, which counts in whole milliseconds.
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
"""From here on an append is counted one by one."""


class AppendLatency:
    """``appended()`` is the number of messages appended so far. ``on_slow`` gets the seconds of
    each append from ``SLOW_S`` on."""

    def __init__(self, appended: Callable[[], int]) -> None:
        self._appended = appended
        self._before = 0
        self._slow = [0] * len(NAMES)
        self.last_minute: dict[str, int] = dict.fromkeys(NAMES, 0)
        """Class to count, of the minute that ended last."""
        self.longest = 0.0
        """Seconds."""
        self.on_slow: Callable[[float], None] = lambda _seconds: None

    def begin(self) -> None:
        """What there is now was appended before."""
        self._before = self._appended()

    def slow(self, seconds: float) -> None:
        """An append took ``SLOW_S`` or longer; one of a batch counts once."""
        self._slow[bisect_right(BOUNDS_MS, int(seconds * 1000))] += 1
        self.longest = max(self.longest, seconds)
        self.on_slow(seconds)

    def end_minute(self) -> str:
        """Close a minute: its counts are ``last_minute`` now. The line for the log."""
        now = self._appended()
        counts = [*self._slow]
        counts[0] += max(now - self._before - sum(self._slow), 0)
        self._before, self._slow = now, [0] * len(NAMES)
        self.last_minute = dict(zip(NAMES, counts, strict=True))
        text = "".join(f"{name}:{count} " for name, count in self.last_minute.items())
        return f"[PAGECACHERT] TotalPut {sum(counts)}, PutMessageDistributeTime {text}"
