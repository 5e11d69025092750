"""Requests of operators about consumers and producers.

- 203 GET_CONSUMER_CONNECTION_LIST, 204 GET_PRODUCER_CONNECTION_LIST, 328
  GET_ALL_PRODUCER_INFO
- 208 GET_CONSUME_STATS, 317 GET_BROKER_CONSUME_STATS, 303 QUERY_CONSUME_TIME_SPAN
- 300 QUERY_TOPIC_CONSUME_BY_WHO, 343 QUERY_TOPICS_BY_CONSUMER, 345
  QUERY_SUBSCRIPTION_BY_CONSUMER
- 307 GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY: the broker forwards these two
  to one consumer.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import LanguageCode, RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests import clients
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.statistics import (
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
)
from turbopump.protocol.requests.topics import TopicList


class GetConsumeStats(Request[ConsumeStats], kw_only=True):
    """Ask for the offsets of a group in ``topic``, in the topics of ``topic_list`` (separated by
    semicolons), or in all topics."""

    code = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetBrokerConsumeStats(Request[ConsumeStatsList], kw_only=True):
    """Ask for the offsets of every group; with ``is_order`` only in ordered topics."""

    code = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool = False


class QueryTopicConsumeByWho(Request[GroupList], kw_only=True):
    """Ask for the groups that consume a topic or have an offset in it."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    topic: str


class QueryTopicsByConsumer(Request[TopicList], kw_only=True):
    """Ask for the topics in which a group has an offset."""

    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    group: str


class QueryConsumeTimeSpan(Request[QueryConsumeTimeSpanBody], kw_only=True):
    """Ask for the store times of each queue's first, last and next message."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    topic: str
    group: str


# Clients connected to a broker (203, 204, 328, 345).
class Connection(msgspec.Struct, kw_only=True, rename="camel"):
    """One client: its id, its address as the broker sees it, its language and version ordinal."""

    client_id: str | None = None
    client_addr: str | None = None
    language: LanguageCode | None = None
    version: Int32 = 0


class ConsumerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """Members of a consumer group, and its subscriptions by topic (203). ``conflicts`` is ours: one
    sentence for each disagreement among the members; absent if there are none."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, clients.SubscriptionData] = {}
    consume_type: clients.ConsumeType | None = None
    message_model: clients.MessageModel | None = None
    consume_from_where: clients.ConsumeFromWhere | None = None
    conflicts: tuple[str, ...] | None = None


class GetConsumerConnectionList(Request[ConsumerConnection], kw_only=True):
    """Ask for the members of a consumer group."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


class ProducerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """Members of a producer group (204)."""

    connection_set: tuple[Connection, ...] = ()


class GetProducerConnectionList(Request[ProducerConnection], kw_only=True):
    """Ask for the members of a producer group."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


class ProducerInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """One producer. `last_update_timestamp` is the time of its last heartbeat, in ms."""

    client_id: str | None = None
    remote_ip: str | None = msgspec.field(default=None, name="remoteIP")
    language: LanguageCode | None = None
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTableInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """All producers by group (328)."""

    data: dict[str, list[ProducerInfo]] | None = None


class GetAllProducerInfo(Request[ProducerTableInfo], kw_only=True):
    """Ask for all producers, by group."""

    code = RequestCode.GET_ALL_PRODUCER_INFO


class QuerySubscriptionResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Subscription of one group to one topic (345)."""

    subscription_data: clients.SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class QuerySubscriptionByConsumer(Request[QuerySubscriptionResponseBody], kw_only=True):
    """Ask for the subscription of a group to a topic."""

    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    group: str
    topic: str


# Status of a running consumer (307), and its result for one message that an operator had it consume
# (309). Names are Apache's (`droped`).
class ProcessQueueInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Messages of one queue that a consumer has fetched and not yet committed."""

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
    """Messages of one queue that a POP consumer has fetched."""

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

    properties: dict[str, str] = {}
    subscription_set: tuple[clients.SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class GetConsumerRunningInfo(Request[ConsumerRunningInfo], kw_only=True):
    """Ask one consumer for its status."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeResult(StrEnum):
    """Outcome of consuming a message (apache/rocketmq `CMResult`)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to CONSUME_MESSAGE_DIRECTLY (309). `spent_time_mills` is in ms."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0


class ConsumeMessageDirectly(Request[ConsumeMessageDirectlyResult], kw_only=True):
    """Have one consumer handle one message now. ``msg_id`` is its offset message id; the broker
    adds the message as the body."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
