"""Figures about topics and groups, as a broker tells an administrator (202, 208, 303, 308, 315,
317, 321).

One rule: offsets are indexes, times are epoch milliseconds, rates are per second. It must not know
where the figures come from.
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.heartbeat import SubscriptionData


class TopicOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """Where a queue begins and ends, and when it last got a message."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(msgspec.Struct, kw_only=True, rename="camel"):
    """A topic's queues (202)."""

    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = msgspec.field(default_factory=dict)


class OffsetWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """How far a group is in a queue; `last_timestamp` is the store time of the message before its
    offset."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(msgspec.Struct, kw_only=True, rename="camel"):
    """How far a group is in all its queues (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def total_diff(self) -> int:
        """Messages that it has before it, in all queues."""
        return sum(one.broker_offset - one.consumer_offset for one in self.offset_table.values())


class ConsumeStatsList(msgspec.Struct, kw_only=True, rename="camel"):
    """The same for every group of a broker (317)."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = msgspec.field(default_factory=list)
    broker_addr: str | None = None
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0


class QueueTimeSpan(msgspec.Struct, kw_only=True, rename="camel"):
    """Store times of a queue's first, last and next-consumed message; `delay_time` is ms behind.
    Apache's broker also sends each time as a text in its own zone (`2023-11-14#22:13:20:123`), for
    tools to show."""

    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp: Int64 = 0
    max_time_stamp_str: str | None = None
    consume_time_stamp: Int64 = 0
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Those of all queues of a topic (303)."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)


class QueryCorrectionOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queue id -> the smallest offset among groups (308)."""

    correction_offsets: dict[int, Int64] = msgspec.field(default_factory=dict)


class BrokerStatsItem(msgspec.Struct, kw_only=True, rename="camel"):
    """Sum, rate and average over one span."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(msgspec.Struct, kw_only=True, rename="camel"):
    """One statistic over the last minute, hour and day (315)."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class ConsumeQueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """One ConsumeQueue unit and what a filter makes of it."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """A stretch of a ConsumeQueue (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
