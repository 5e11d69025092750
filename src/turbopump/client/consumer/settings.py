"""What the settings of consumers must be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from turbopump.client import setting_rules as rules
from turbopump.client.allocation import Strategy
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.pop import ATTEMPTS_MAX, BATCH_MAX
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue


def _is_disk(value: object) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("read_file", "replace_file")
    )


_CONSUME_FROM: Final = rules.SettingRule(
    lambda value: isinstance(value, ConsumeFrom | datetime),
    "must be ConsumeFrom.LAST, FIRST or NOW, or a datetime",
)
_ALLOCATION: Final = rules.SettingRule(
    lambda value: isinstance(value, str) or callable(value),
    "must be the name of a strategy, as in 'AVG', or a function as turbopump.client.allocation "
    "makes them",
)
_BYTES: Final = rules.SettingRule(
    lambda value: rules.is_whole(value) and value > 0, "must be a number of bytes above 0"
)

ONE_BY_ONE: Final = "handles_one_by_one"
"""An attribute of handlers that can do nothing with a list of messages."""

CONCURRENCY_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "concurrency": rules.whole_from(1, " of calls at once")
}
_RETRIES: Final = rules.whole_from(0, " of retries").or_none()

PUSH_RULES: Final[Mapping[str, rules.SettingRule]] = {
    **CONCURRENCY_RULES,
    "max_reconsume_times": _RETRIES,
    "handler": rules.FUNCTION.or_none(),
    "handler_batch": rules.SettingRule(
        lambda value: rules.is_whole(value) and 1 <= value <= 1024,
        "must be a whole number of messages from 1 to 1024",
    ).or_none(),
    "consume_from": _CONSUME_FROM,
    "ordered": rules.SWITCH,
    "suspend_time": rules.SECONDS,
    "consume_timeout": rules.SECONDS,
    "broadcast": rules.SWITCH,
    "offsets_directory": rules.SettingRule(
        lambda value: isinstance(value, str | os.PathLike) and bool(str(value)),
        "must be the path of a directory",
    ).or_none(),
    "allocation": _ALLOCATION,
    "close_timeout": rules.SECONDS_OR_0,
    "client_rebalance": rules.SWITCH,
    "pull_batch": rules.SettingRule(
        lambda value: rules.is_whole(value) and 1 <= value <= 1024,
        "must be a whole number of messages from 1 to 1024",
    ),
    "queue_messages_max": rules.whole_from(1, " of messages"),
    "queue_bytes_max": _BYTES,
    "queue_span_max": rules.whole_from(1, " of offsets"),
    "topic_messages_max": rules.whole_from(1, " of messages").or_none(),
    "topic_bytes_max": _BYTES.or_none(),
    "disk": rules.SettingRule(_is_disk, "is no turbopump.store.disk.Disk").or_none(),
}
POLL_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "timeout": rules.SettingRule(
        lambda value: rules.is_number(value) and value <= float("inf"),
        "must be a number of seconds (inf: without end)",
    ),
    "max_messages": rules.whole_from(1),
}
RECEIVE_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "max_messages": rules.whole_from(1),
    "invisible_seconds": rules.SECONDS,
    "timeout": rules.TIMEOUT,
}
INVISIBLE_RULES: Final[Mapping[str, rules.SettingRule]] = {"seconds": rules.SECONDS}
COMMIT_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "offset": rules.SettingRule(
        lambda value: rules.is_whole(value) and 0 <= value < 2**63,
        "must be a whole number, an offset in the queue",
    )
}
TAKE_RULES: Final[Mapping[str, rules.SettingRule]] = {"count": rules.whole_from(1, " of messages")}
QUEUE_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "queue": rules.SettingRule(
        lambda value: isinstance(value, MessageQueue),
        "is no MessageQueue: take one of `await consumer.queues(topic)`",
    )
}
PULL_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "offset": rules.SettingRule(rules.is_whole, "must be a whole number, an offset in the queue"),
    "max_messages": rules.whole_from(1),
    "wait": rules.TIMEOUT,
    "timeout": rules.TIMEOUT,
}
SIMPLE_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "consume_from": rules.SettingRule(
        lambda value: value in (ConsumeFrom.LAST, ConsumeFrom.FIRST),
        "must be ConsumeFrom.LAST or ConsumeFrom.FIRST: brokers know no time here",
    ),
    "ordered": rules.SWITCH,
    "max_reconsume_times": _RETRIES,
}
LITE_PULL_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "consume_from": _CONSUME_FROM,
    "auto_commit": rules.SWITCH,
    "pull_batch": rules.whole_from(1, " of messages"),
    "queue_messages_max": rules.whole_from(1, " of messages"),
    "queue_bytes_max": _BYTES,
    "messages_max": rules.whole_from(1, " of messages"),
    "allocation": _ALLOCATION,
}
"""``group``, ``topic``, ``tags``, ``trace``, where it lives and how it pops are checked where they
are used."""


def check_batches(handler: object, handler_batch: int | None) -> None:
    """Raises ConfigError if nobody could be given lists of messages."""
    if handler_batch is None:
        return
    if handler is None:
        raise ConfigError(
            f"handler_batch={handler_batch} without handler=… is of no use: give a handler, or "
            "take(count) messages yourself"
        )
    if getattr(handler, ONE_BY_ONE, False):
        raise ConfigError(
            f"handler_batch={handler_batch} gives lists, and an IdempotentConsumer wraps handlers "
            "of single messages: leave handler_batch out, or go through the list in a handler of "
            "your own, each with idempotent.handling(message)"
        )


# --- How a push consumer pops, where a broker has it pop.

INVISIBLE_S: Final = 60.0
INVISIBLE_RANGE_S: Final = (5, 300)
"""What Java's client allows."""
THRESHOLD: Final = 96
_RULES: Final[Mapping[str, rules.SettingRule]] = {
    "pop_invisible_time": rules.SettingRule(
        lambda value: (
            rules.is_number(value) and INVISIBLE_RANGE_S[0] <= value <= INVISIBLE_RANGE_S[1]
        ),
        "must be from {} to {} seconds".format(*INVISIBLE_RANGE_S),
    ),
    "pop_batch": rules.SettingRule(
        lambda value: rules.is_whole(value) and 1 <= value <= BATCH_MAX,
        f"must be a whole number from 1 to {BATCH_MAX}",
    ),
    "pop_threshold": rules.whole_from(1),
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
    rules.check(_RULES, given)
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
