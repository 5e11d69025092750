"""How a push consumer pops, where a broker has it pop. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turbopump.client.allocation import Strategy
from turbopump.client.popping.pop import ATTEMPTS_MAX, BATCH_MAX
from turbopump.errors import ConfigError

INVISIBLE_S: Final = 60.0
INVISIBLE_RANGE_S: Final = (5, 300)
"""What Java's client allows."""
THRESHOLD: Final = 96
BROKER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
"""The strategies that brokers know by name. RocketMQ: ``QueryAssignmentProcessor``."""


@dataclass(frozen=True, slots=True)
class PopSettings:
    """``strategy``: how brokers are to divide queues (None: none they know); ``invisible_s``: how long a message is ours
    (``popInvisibleTime``); ``batch``: messages in one pop (``popBatchNums``); ``threshold``: not more in hand than that
    (``popThresholdForQueue``); ``retries_max``: then a message is a dead letter."""

    strategy: str | None
    invisible_s: float
    batch: int
    threshold: int
    retries_max: int


def pop_settings(
    allocation: str | Strategy, invisible_s: float, batch: int, threshold: int, retries_max: int | None
) -> PopSettings:
    """Out of a push consumer's settings. Raises ConfigError for what Java's client refuses too."""
    least, most = INVISIBLE_RANGE_S
    if not least <= invisible_s <= most:
        raise ConfigError(f"pop_invisible_time={invisible_s} must be from {least} to {most} seconds")
    if not 1 <= batch <= BATCH_MAX:
        raise ConfigError(f"pop_batch={batch} must be from 1 to {BATCH_MAX}")
    if threshold < 1:
        raise ConfigError(f"pop_threshold={threshold} must be at least 1")
    strategy = allocation if isinstance(allocation, str) and allocation in BROKER_STRATEGIES else None
    return PopSettings(strategy, invisible_s, batch, threshold, ATTEMPTS_MAX if retries_max is None else retries_max)
