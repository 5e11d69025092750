"""Whether thresholds of cold reads may grow, or must shrink: what an adapting ``ColdFlow`` asks
every five seconds.

Pure: it is told how much all groups together have read, and never of a group. Source:
apache/rocketmq ``SimpleColdCtrStrategy``, ``PIDAdaptiveColdCtrStrategy``.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from turbopump.config.broker_config import BrokerConfig

REMEMBERED: Final = 10
"""Windows that the controller looks back on; before it has seen so many it decides nothing."""
PROPORTIONAL, INTEGRAL, DIFFERENTIAL = 0.5, 0.3, 0.2
EXPECTED: Final = 0.8
"""Of what all groups may read together, so much is aimed at."""


class ColdStrategy(Protocol):
    """Decides after each window."""

    def collect(self, total: int) -> None:
        """All groups together have read so many bytes in the window that is over."""

    def raises(self) -> bool:
        """Whether a group that used up its threshold gets a higher one."""

    def lowers(self, *, exceeded: bool) -> bool:
        """Whether the highest thresholds come down; ``exceeded``: all together read more than they
        may."""


def cold_strategy(config: BrokerConfig) -> ColdStrategy | None:
    """The one that a broker is configured with; None: thresholds stay as they are."""
    if not config.cold_ctr_strategy_enable:
        return None
    return (
        PidStrategy(config.global_cold_read_threshold)
        if config.use_pid_cold_ctr_strategy
        else SimpleStrategy()
    )


class SimpleStrategy:
    """Up whenever a group would have more, down when all together have too much."""

    def collect(self, total: int) -> None:
        """It looks back on nothing."""

    def raises(self) -> bool:
        return True

    def lowers(self, *, exceeded: bool) -> bool:
        return exceeded


class PidStrategy:
    """A controller that aims at 80 % of ``total_max``, bytes of a window: by how far off it is, was
    in all, and how that changes."""

    def __init__(self, total_max: int) -> None:
        self._expected = int(total_max * EXPECTED)
        self._below: deque[int] = deque(maxlen=REMEMBERED)

    def collect(self, total: int) -> None:
        self._below.append(self._expected - total)

    def raises(self) -> bool:
        return self._factor > 0

    def lowers(self, *, exceeded: bool) -> bool:
        return self._factor < 0

    @property
    def _factor(self) -> float:
        below = self._below
        if len(below) < REMEMBERED:
            return 0.0
        return (
            PROPORTIONAL * below[-1]
            + INTEGRAL * sum(below)
            + DIFFERENTIAL * (below[-1] - below[-2])
        )
