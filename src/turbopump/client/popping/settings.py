"""How a push consumer pops, where a broker has it pop. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.client.allocation import Strategy
from turbopump.client.popping.pop import ATTEMPTS_MAX, BATCH_MAX
from turbopump.client.setting_rules import Rule, check, is_number, is_whole, whole_from

INVISIBLE_S: Final = 60.0
INVISIBLE_RANGE_S: Final = (5, 300)
"""What Java's client allows."""
THRESHOLD: Final = 96
_RULES: Final[Mapping[str, Rule]] = {
    "pop_invisible_time": Rule(
        lambda value: is_number(value) and INVISIBLE_RANGE_S[0] <= value <= INVISIBLE_RANGE_S[1],
        "must be from {} to {} seconds".format(*INVISIBLE_RANGE_S),
    ),
    "pop_batch": Rule(
        lambda value: is_whole(value) and 1 <= value <= BATCH_MAX, f"must be a whole number from 1 to {BATCH_MAX}"
    ),
    "pop_threshold": whole_from(1),
}
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
    check(_RULES, {"pop_invisible_time": invisible_s, "pop_batch": batch, "pop_threshold": threshold})
    strategy = allocation if isinstance(allocation, str) and allocation in BROKER_STRATEGIES else None
    return PopSettings(strategy, invisible_s, batch, threshold, ATTEMPTS_MAX if retries_max is None else retries_max)
