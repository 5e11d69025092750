"""Requests for statistics of a broker: 28 GET_BROKER_RUNTIME_INFO, 315 VIEW_BROKER_STATS_DATA, 321
QUERY_CONSUME_QUEUE."""

from __future__ import annotations

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import SubscriptionData
from turbopump.protocol.requests.namesrv import KVTable


class GetBrokerRuntimeInfo(Request[KVTable], kw_only=True):
    """Ask a broker for its runtime figures."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO


# Statistics of topics and groups (202, 208, 303, 308, 315, 317, 321). Offsets are indexes, times
# are epoch milliseconds, rates are per second.
class OffsetWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """Offset of a group in a queue. `last_timestamp` is the store time of the last message before
    that offset."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of a group in all its queues (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0

    @property
    def total_diff(self) -> int:
        """Number of messages before the end that the group has not consumed, in all queues."""
        return sum(one.broker_offset - one.consumer_offset for one in self.offset_table.values())


class ConsumeStatsList(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of every group of a broker (317)."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0


class QueueTimeSpan(msgspec.Struct, kw_only=True, rename="camel"):
    """Store times of a queue's first, last and next-consumed message. `delay_time` is the delay of
    the consumer in ms. Apache's broker also sends each time as text in its own zone
    (`2023-11-14#22:13:20:123`), for tools to show."""

    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp: Int64 = 0
    max_time_stamp_str: str | None = None
    consume_time_stamp: Int64 = 0
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Time spans of all queues of a topic (303)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queue id -> the smallest offset among groups (308)."""

    correction_offsets: dict[int, Int64] = {}


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


class ViewBrokerStatsData(Request[BrokerStatsData], kw_only=True):
    """Ask for one statistic. ``stats_name`` is for example ``TOPIC_PUT_NUMS``; ``stats_key`` is a
    topic, ``topic@group`` or the cluster."""

    code = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str


class ConsumeQueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """One ConsumeQueue unit, and the result of a filter for it."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Range of a ConsumeQueue (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


class QueryConsumeQueue(Request[QueryConsumeQueueResponseBody], kw_only=True):
    """Ask for ``count`` units of a queue from ``index`` on, and the subscription of
    ``consumer_group`` to the topic."""

    code = RequestCode.QUERY_CONSUME_QUEUE
    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


# Flow control for consumers that read old messages: 2001 UPDATE_COLD_DATA_FLOW_CTR_CONFIG, 2002
# REMOVE_COLD_DATA_FLOW_CTR_CONFIG, 2003 GET_COLD_DATA_FLOW_CTR_INFO; and the system's read-ahead:
# 2004 SET_COMMITLOG_READ_MODE. Source: apache/rocketmq ``AdminBrokerProcessor``.
class UpdateColdFlow(Request[None], kw_only=True):
    """Set the cold-read thresholds of groups. The body is properties text: ``group=bytes in five
    seconds``."""

    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG


class RemoveColdFlow(Request[None], kw_only=True):
    """Give a group the default cold-read threshold again. The body is its name."""

    code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG


class SetCommitLogReadMode(Request[None], kw_only=True):
    """Set how the system reads the log's files: mode "0" allows read-ahead (``MADV_NORMAL``), "1"
    prevents it (``MADV_RANDOM``)."""

    code = RequestCode.SET_COMMITLOG_READ_MODE
    mode: str | None = msgspec.field(default=None, name="READ_AHEAD_MODE")


class ColdReading(msgspec.Struct, kw_only=True, rename="camel"):
    """Cold reads of one group: bytes in the current five seconds, and the times of the first and
    last read (ms)."""

    cold_acc: Int64 = 0
    last_cold_read_time_mills: Int64 = 0
    create_time_mills: Int64 = 0


class ColdFlowInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Cold reads of all groups. `config_table` has the thresholds of single groups."""

    runtime_table: dict[str, ColdReading] = {}
    config_table: dict[str, Int64] = {}
    cg_cold_read_threshold: Int64 = 0
    global_cold_read_threshold: Int64 = 0
    global_acc: Int64 = 0


class GetColdFlow(Request[ColdFlowInfo], kw_only=True):
    """Ask which groups read cold data, and how many bytes."""

    code = RequestCode.GET_COLD_DATA_FLOW_CTR_INFO
