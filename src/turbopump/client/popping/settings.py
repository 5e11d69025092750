"""How a push consumer pops, where a broker has it pop. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.client.allocation import Strategy
from turbopump.client.popping.pop import ATTEMPTS_MAX, BATCH_MAX
from turbopump.client.setting_rules import Rule, check, is_number, is_whole, whole_from
from turbopump.errors import ConfigError

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
        lambda value: is_whole(value) and 1 <= value <= BATCH_MAX,
        f"must be a whole number from 1 to {BATCH_MAX}",
    ),
    "pop_threshold": whole_from(1),
}
_USUAL: Final[Mapping[str, float]] = {
    "pop_invisible_time": INVISIBLE_S,
    "pop_batch": BATCH_MAX,
    "pop_threshold": THRESHOLD,
}
BROKER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
"""The strategies that brokers know by name. RocketMQ: ``QueryAssignmentProcessor``."""


@dataclass(frozen=True, slots=True)
class PopSettings:
    """``strategy``: how brokers are to divide queues (None: none they know); ``invisible_s``: how
    long a message is ours (``popInvisibleTime``); ``batch``: messages in one pop
    (``popBatchNums``); ``threshold``: not more in hand than that (``popThresholdForQueue``);
    ``retries_max``: then a message is a dead letter."""

    strategy: str | None
    invisible_s: float
    batch: int
    threshold: int
    retries_max: int


def pop_settings(
    allocation: str | Strategy,
    invisible_s: float,
    batch: int,
    threshold: int,
    retries_max: int | None,
    *,
    used: bool,
) -> PopSettings:
    """Out of a push consumer's settings; ``used``: brokers may have it pop. Raises ConfigError for
    what Java's client refuses too, and for what was given in vain."""
    given = {"pop_invisible_time": invisible_s, "pop_batch": batch, "pop_threshold": threshold}
    check(_RULES, given)
    for name, usual in _USUAL.items():
        if given[name] != usual and not used:
            raise ConfigError(
                f"{name}={given[name]} is for client_rebalance=False without broadcast, where "
                "brokers may have queues popped; this "
                "consumer pulls all of its queues: see pull_batch and queue_messages_max"
            )
    strategy = (
        allocation if isinstance(allocation, str) and allocation in BROKER_STRATEGIES else None
    )
    return PopSettings(
        strategy,
        invisible_s,
        batch,
        threshold,
        ATTEMPTS_MAX if retries_max is None else retries_max,
    )
