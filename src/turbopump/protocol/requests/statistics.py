"""Requests for statistics of a broker.

- 28 GET_BROKER_RUNTIME_INFO, 315 VIEW_BROKER_STATS_DATA, 321 QUERY_CONSUME_QUEUE
- 2001–2004: flow control for consumers that read old messages (below)
"""

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
    """Offset of a group in one queue, and the end of the queue.

    `last_timestamp` is the store time of the last message before the group's offset.
    """

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_CONSUME_STATS (208) with the offsets of a group in all its queues."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0

    @property
    def total_diff(self) -> int:
        """Number of messages not yet consumed by the group, in all queues."""
        return sum(one.broker_offset - one.consumer_offset for one in self.offset_table.values())


class ConsumeStatsList(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_BROKER_CONSUME_STATS (317) with the offsets of every group of a broker."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0


class QueueTimeSpan(msgspec.Struct, kw_only=True, rename="camel"):
    """Store times of three messages of a queue: the first, the last and the group's next message.

    `delay_time` is the delay of the consumer in ms. Apache's broker also sends each time as text in
    its own zone (`2023-11-14#22:13:20:123`), for tools to show.
    """

    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp: Int64 = 0
    max_time_stamp_str: str | None = None
    consume_time_stamp: Int64 = 0
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_CONSUME_TIME_SPAN (303) with the store times of all queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_CORRECTION_OFFSET (308): for each queue, the lowest offset among all
    groups."""

    correction_offsets: dict[int, Int64] = {}


class BrokerStatsItem(msgspec.Struct, kw_only=True, rename="camel"):
    """Sum, rate and average of one statistic over one period."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to VIEW_BROKER_STATS_DATA (315) with one statistic over the last minute, hour and
    day."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class ViewBrokerStatsData(Request[BrokerStatsData], kw_only=True):
    """Ask a broker for one statistic.

    ``stats_name`` is for example ``TOPIC_PUT_NUMS``. ``stats_key`` is a topic, ``topic@group`` or
    the cluster.
    """

    code = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str


class ConsumeQueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """Unit of a ConsumeQueue, and the result of a filter for this unit."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_CONSUME_QUEUE (321) with a range of a ConsumeQueue."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


class QueryConsumeQueue(Request[QueryConsumeQueueResponseBody], kw_only=True):
    """Ask a broker for units of a ConsumeQueue, and for the subscription of a group to the topic.

    ``count`` units are read from ``index`` on.
    """

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
    """Set how many bytes of old messages each consumer group may read.

    The body is properties text, ``group=bytes in five seconds``.
    """

    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG


class RemoveColdFlow(Request[None], kw_only=True):
    """Give a group the default limit for reading old messages again. The body is the name of the
    group."""

    code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG


class SetCommitLogReadMode(Request[None], kw_only=True):
    """Set if the system reads ahead in the files of the log.

    Mode "0" allows read-ahead (``MADV_NORMAL``), "1" prevents it (``MADV_RANDOM``).
    """

    code = RequestCode.SET_COMMITLOG_READ_MODE
    mode: str | None = msgspec.field(default=None, name="READ_AHEAD_MODE")


class ColdReading(msgspec.Struct, kw_only=True, rename="camel"):
    """Reads of old messages by one group.

    - ``cold_acc``: bytes in the current five seconds.
    - ``create_time_mills``, ``last_cold_read_time_mills``: times of the first and the last read, in
      ms.
    """

    cold_acc: Int64 = 0
    last_cold_read_time_mills: Int64 = 0
    create_time_mills: Int64 = 0


class ColdFlowInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_COLD_DATA_FLOW_CTR_INFO (2003) with the reads of old messages by each group.

    `config_table` has the limits of single groups, in bytes in five seconds.
    """

    runtime_table: dict[str, ColdReading] = {}
    config_table: dict[str, Int64] = {}
    cg_cold_read_threshold: Int64 = 0
    global_cold_read_threshold: Int64 = 0
    global_acc: Int64 = 0


class GetColdFlow(Request[ColdFlowInfo], kw_only=True):
    """Ask a broker for the groups that read old messages, with the number of bytes."""

    code = RequestCode.GET_COLD_DATA_FLOW_CTR_INFO
