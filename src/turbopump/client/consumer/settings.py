"""Settings of consumers, with the rule of each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turbopump.client.allocation import strategy_of
from turbopump.client.consumer.delivery import BatchHandler
from turbopump.client.consumer.handling import Handler
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.pop import ATTEMPTS_MAX, BATCH_MAX
from turbopump.client.consumer.process_queue import PullLimits
from turbopump.client.consumer.subscription import ALL, Wanted
from turbopump.client.setting_rules import (
    BYTES,
    FUNCTION,
    SECONDS,
    SECONDS_OR_0,
    SWITCH,
    SettingRule,
    has_methods,
    is_a,
    is_path,
    number_between,
    setting,
    whole_between,
    whole_from,
)
from turbopump.client.settings import TRACE, GroupSettings
from turbopump.errors import ConfigError
from turbopump.message.queue_shares import Strategy

if TYPE_CHECKING:
    from turbopump.disk.disk import Files

ONE_BY_ONE: Final = "handles_one_by_one"
"""Name of the attribute that marks a handler which cannot handle lists of messages."""
BROKER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
"""Strategies that brokers know by name. RocketMQ: ``QueryAssignmentProcessor``."""


CONCURRENCY: Final = whole_from(1, " of calls at once")
_CONSUME_FROM: Final = SettingRule(
    is_a(ConsumeFrom, datetime), "must be ConsumeFrom.LAST, FIRST or NOW, or a datetime"
)
_POPPED_FROM: Final = SettingRule(
    lambda value: value in (ConsumeFrom.LAST, ConsumeFrom.FIRST),
    "must be ConsumeFrom.LAST or ConsumeFrom.FIRST: brokers know no time here",
)
_ALLOCATION: Final = SettingRule(
    lambda value: isinstance(value, str) or callable(value),
    "must be the name of a strategy, as in 'AVG', or a function as turbopump.client.allocation "
    "makes them",
)
_BATCH: Final = SettingRule(
    whole_between(1, 1024), "must be a whole number of messages from 1 to 1024"
)
_DIRECTORY: Final = SettingRule(is_path, "must be the path of a directory")
_INVISIBLE: Final = SettingRule(  # as Java's client allows
    number_between(5, 300), "must be from 5 to 300 seconds", "s"
)
_POP_BATCH: Final = SettingRule(
    whole_between(1, BATCH_MAX), f"must be a whole number from 1 to {BATCH_MAX}"
)
_DISK: Final = SettingRule(
    has_methods("read_file", "replace_file"), "must be a turbopump.disk.disk.Files"
)
_RETRIES: Final = whole_from(0, " of retries").or_none()
_MESSAGES: Final = whole_from(1, " of messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings(GroupSettings):
    """Settings of every consumer that subscribes to topics.

    Raises ConfigError for unusable settings.
    """

    group: str
    """Name of the consumer group. Java: ``consumerGroup``."""
    topic: str | None = None
    """Topic to consume. ``subscribe`` adds further topics."""
    tags: Wanted = ALL
    """Filter of the topic's messages: ``*``, ``A || B``, ``Tags`` or ``Sql``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerSettings(SubscriberSettings):
    """Settings of a ``PushConsumer``.

    Raises ConfigError for unusable settings.
    """

    handler: Handler | BatchHandler | None = setting(None, FUNCTION.or_none())
    """Function that is called with each message. A coroutine function runs on the event loop, a
    plain function in a thread. Java: ``MessageListenerConcurrently``,
    ``MessageListenerOrderly``."""
    handler_batch: int | None = setting(None, _BATCH.or_none())
    """Maximum number of messages in one handler call, 1 to 1024. The handler then gets lists of
    messages of one queue. When the handler returns, every message that it has not settled is done.
    Java: ``consumeMessageBatchMaxSize``."""
    concurrency: int = setting(20, CONCURRENCY)
    """Maximum number of concurrent handler calls. Java: ``consumeThreadMax``."""
    consume_from: ConsumeFrom | datetime = setting(ConsumeFrom.LAST, _CONSUME_FROM)
    """Position where a group starts to read a queue without a committed offset. The values are
    ``LAST``, ``FIRST``, ``NOW`` and any datetime: see
    docs/reference/client-settings.md#where-a-group-begins. Java: ``consumeFromWhere``,
    ``consumeTimestamp``."""
    ordered: bool = setting(False, SWITCH)
    """True handles the messages of a queue one after the other, and retries failed ones in
    place."""
    suspend_time: float = setting(1.0, SECONDS)
    """Time until a failed message is handled again if ``ordered`` is True. Without ``ordered``, any
    other value than the default is refused. Java: ``suspendCurrentQueueTimeMillis``."""
    consume_timeout: float = setting(900.0, SECONDS)
    """Time after which the message of a running handler is sent back to the broker (level 3, 10 s).
    The limit does not apply with ``ordered``, or to messages without a handler. Java:
    ``consumeTimeout``."""
    max_reconsume_times: int | None = setting(None, _RETRIES)
    """Number of retries before a message becomes a dead letter: see
    docs/reference/client-settings.md#which-maximum-of-retries-holds. None means the group's
    maximum, usually 16, or no limit with ``ordered``. Java: ``maxReconsumeTimes``."""
    broadcast: bool = setting(False, SWITCH)
    """True delivers every message to every consumer of the group. Java: ``messageModel``."""
    offsets_directory: str | Path | None = setting(None, _DIRECTORY.or_none())
    """Directory in which a consumer with ``broadcast`` stores its offsets. By default it is
    ``~/.rocketmq_offsets``. Java: ``rocketmq.client.localOffsetStoreDir``."""
    allocation: str | Strategy = setting("AVG", _ALLOCATION)
    """Strategy that divides the queues among members: see
    docs/reference/client-settings.md#how-queues-are-divided. Java:
    ``allocateMessageQueueStrategy``."""
    trace: bool | str = setting(False, TRACE)
    """True sends traces before and after each handling to ``RMQ_SYS_TRACE_TOPIC``. A name sends
    them to the topic of that name: see docs/guide/tracing.md. Java: ``enableTrace``."""
    close_timeout: float = setting(5.0, SECONDS_OR_0)
    """Maximum time for which ``close`` waits for running handlers: see
    docs/explanations/clients.md#closing. Java: ``awaitTerminationMillisWhenShutdown``."""
    disk: Files | None = setting(None, _DISK.or_none())
    """Replacement of the system's disk, for simulations."""
    pull_batch: int = setting(32, _BATCH)
    """Maximum number of messages in one pull. Java: ``pullBatchSize``."""
    queue_messages_max: int = setting(1000, _MESSAGES)
    """Maximum number of unfinished messages of one queue, beyond which pulling waits. Java:
    ``pullThresholdForQueue``."""
    queue_bytes_max: int = setting(100 * 1024 * 1024, BYTES)
    """Maximum bytes of unfinished messages of one queue, beyond which pulling waits. Java:
    ``pullThresholdSizeForQueue``, in MiB."""
    queue_span_max: int = setting(2000, whole_from(1, " of offsets"))
    """Maximum distance between the first and last unfinished offset of one queue, beyond which
    pulling waits. Java: ``consumeConcurrentlyMaxSpan``."""
    topic_messages_max: int | None = setting(None, _MESSAGES.or_none())
    """Maximum number of unfinished messages of a topic, divided equally among its assigned queues.
    Java divides the limit among all queues of the consumer. Java: ``pullThresholdForTopic``."""
    topic_bytes_max: int | None = setting(None, BYTES.or_none())
    """Maximum bytes of unfinished messages of a topic, divided equally among its assigned queues.
    Java: ``pullThresholdSizeForTopic``, in MiB."""
    client_rebalance: bool = setting(True, SWITCH)
    """False lets a broker divide the queues, and decide whether they are pulled or popped. The
    setting has no effect with ``broadcast``, where every consumer reads every queue. False is
    refused with ``ordered``, whose members divide and lock the queues (Java ignores the setting
    there). ``allocation`` must be ``AVG`` or ``AVG_BY_CIRCLE``. Java: ``clientRebalance``."""
    pop_invisible_time: float = setting(60.0, _INVISIBLE)
    """Time for which a popped message is invisible to other members, 5 to 300 s. It must be longer
    than the slowest handler call. Java: ``popInvisibleTime``."""
    pop_batch: int = setting(BATCH_MAX, _POP_BATCH)
    """Maximum number of messages in one pop, at most 32. Java: ``popBatchNums``."""
    pop_threshold: int = setting(96, whole_from(1))
    """Maximum number of unsettled popped messages of a topic on one broker. Java:
    ``popThresholdForQueue``."""

    def __post_init__(self) -> None:
        SubscriberSettings.__post_init__(self)
        if self.offsets_directory is not None and not self.broadcast:
            raise ConfigError(
                "offsets_directory is for broadcast=True; the offsets of a group "
                "are kept by the brokers"
            )
        if "suspend_time" in self._changed and not self.ordered:
            raise ConfigError(
                f"suspend_time={self.suspend_time!r:.80} requires ordered=True, where a "
                "failed message is handled again in place; without ordered, return "
                "Retry(delay=seconds)"
            )
        self._check_batches()
        self._check_pop()

    def _check_batches(self) -> None:
        if self.handler_batch is None:
            return
        if self.handler is None:
            raise ConfigError(
                f"handler_batch={self.handler_batch} without handler=… is of no use: give a "
                "handler, or take(count) messages yourself"
            )
        if getattr(self.handler, ONE_BY_ONE, False):
            raise ConfigError(
                f"handler_batch={self.handler_batch} passes lists, but an "
                "IdempotentConsumer wraps handlers of single messages: omit "
                "handler_batch, or iterate over the list in your handler with "
                "idempotent.handling(message)"
            )

    def _check_pop(self) -> None:
        if self.asks_brokers and self.ordered:
            raise ConfigError(
                "client_rebalance=False cannot be combined with ordered=True, whose "
                "members divide and lock the queues themselves; to pop in order, use "
                "SimpleConsumer(ordered=True)"
            )
        strategy_of(self.allocation)
        for name in ("pop_invisible_time", "pop_batch", "pop_threshold"):
            if name in self._changed and not self.asks_brokers:
                raise ConfigError(
                    f"{name}={self[name]} is for client_rebalance=False without broadcast, where "
                    "brokers may have queues popped; this "
                    "consumer pulls all of its queues: see pull_batch and queue_messages_max"
                )
        if self.asks_brokers and self.broker_strategy is None:
            raise ConfigError(
                f"allocation={self.allocation!r} is not known to brokers: with "
                "client_rebalance=False give AVG or AVG_BY_CIRCLE"
            )

    @property
    def _changed(self) -> list[str]:
        return [known.name for known in fields(self) if self[known.name] != known.default]

    @property
    def asks_brokers(self) -> bool:
        """True if brokers divide the queues."""
        return not self.client_rebalance and not self.broadcast

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.allocation)

    @property
    def limits(self) -> PullLimits:
        """Limits of unfinished messages, beyond which pulling waits."""
        return PullLimits(
            self.queue_messages_max,
            self.queue_bytes_max,
            self.queue_span_max,
            self.topic_messages_max,
            self.topic_bytes_max,
        )

    @property
    def broker_strategy(self) -> str | None:
        """Name of the strategy for brokers, or None if brokers do not know the strategy."""
        if isinstance(self.allocation, str) and self.allocation in BROKER_STRATEGIES:
            return self.allocation
        return None

    @property
    def retries_max(self) -> int:
        """Maximum number of retries of a popped message before it becomes a dead letter."""
        return ATTEMPTS_MAX if self.max_reconsume_times is None else self.max_reconsume_times


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerSettings(SubscriberSettings):
    """Settings of a ``LitePullConsumer``.

    Raises ConfigError for unusable settings.
    """

    consume_from: ConsumeFrom | datetime = setting(ConsumeFrom.LAST, _CONSUME_FROM)
    """Position where a group starts to read a queue without a committed offset, as for
    ``PushConsumer``."""
    auto_commit: bool = setting(True, SWITCH)
    """True commits the messages of one ``poll`` after the next ``poll`` has begun. False commits
    only when ``commit`` is called. Java: ``autoCommit``."""
    pull_batch: int = setting(32, _MESSAGES)
    """Maximum number of messages in one pull. Brokers return at most 32 by default. Java:
    ``pullBatchSize``, 10."""
    queue_messages_max: int = setting(1000, _MESSAGES)
    """Maximum number of prefetched messages of one queue, beyond which pulling waits. Java:
    ``pullThresholdForQueue``."""
    queue_bytes_max: int = setting(100 * 1024 * 1024, BYTES)
    """Maximum bytes of prefetched messages of one queue, beyond which pulling waits. Java:
    ``pullThresholdSizeForQueue``, in MiB."""
    messages_max: int = setting(10_000, _MESSAGES)
    """Maximum number of prefetched messages over all queues. Running pulls may exceed this limit.
    Java: ``pullThresholdForAll``."""
    allocation: str | Strategy = setting("AVG", _ALLOCATION)
    """Strategy that divides the queues among members, as for ``PushConsumer``."""
    trace: bool | str = setting(False, TRACE)
    """True sends traces of polled messages to ``RMQ_SYS_TRACE_TOPIC``. A name sends them to the
    topic of that name: see docs/guide/tracing.md."""

    def __post_init__(self) -> None:
        SubscriberSettings.__post_init__(self)
        strategy_of(self.allocation)

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.allocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerSettings(SubscriberSettings):
    """Settings of a ``SimpleConsumer``.

    Raises ConfigError for unusable settings.
    """

    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST, _POPPED_FROM)
    """Position where a group without a committed offset starts to read: ``LAST`` or ``FIRST``.
    Brokers accept no time here."""
    ordered: bool = setting(False, SWITCH)
    """True receives the messages of each queue in order. After a receive, no member gets more of
    the queue until all received messages are acknowledged. If some are not acknowledged in time,
    they are delivered again from the first of them on. All members must use the same value."""
    max_reconsume_times: int | None = setting(ATTEMPTS_MAX, _RETRIES)
    """Number of retries before a message becomes a dead letter. None means no limit. The setting is
    not for ``ordered``, because brokers count attempts for all messages received together; check
    ``attempt`` instead."""
