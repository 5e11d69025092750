"""What a running consumer tells about itself (307), and how it took one message given to it by hand
(309).

One rule: the field names are Apache's, misspellings included (`droped`). It must not know a
consumer.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.heartbeat import SubscriptionData


class ProcessQueueInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """What a consumer holds of one queue."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class PopProcessQueueInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """The same for a POP consumer."""

    wait_ack_count: Int32 = 0
    droped: bool = False
    last_pop_timestamp: Int64 = 0


class ConsumeStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """Times (ms) and rates (per second) of one topic."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """A consumer's settings, subscriptions, queues and figures."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """What became of the message (apache/rocketmq `CMResult`)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to 309; `spent_time_mills` is ms."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0
