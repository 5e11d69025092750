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
    """Ask a broker how far a consumer group has consumed its queues.

    The answer covers ``topic``, the topics of ``topic_list`` (separated by semicolons), or all
    topics of the group.
    """

    code = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetBrokerConsumeStats(Request[ConsumeStatsList], kw_only=True):
    """Ask a broker how far each consumer group has consumed its queues.

    With ``is_order``, only ordered topics are in the answer.
    """

    code = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool = False


class QueryTopicConsumeByWho(Request[GroupList], kw_only=True):
    """Ask a broker for the groups of a topic: those with a consumer now, and those with a stored
    offset."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    topic: str


class QueryTopicsByConsumer(Request[TopicList], kw_only=True):
    """Ask a broker for the topics in which a group has an offset."""

    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    group: str


class QueryConsumeTimeSpan(Request[QueryConsumeTimeSpanBody], kw_only=True):
    """For each queue of a topic, ask for the store times of the first, the last and the group's
    next message."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    topic: str
    group: str


# Clients connected to a broker (203, 204, 328, 345).
class Connection(msgspec.Struct, kw_only=True, rename="camel"):
    """Connected client, as the broker sees it.

    ``version`` is an ordinal of ``MQVersion``.
    """

    client_id: str | None = None
    client_addr: str | None = None
    language: LanguageCode | None = None
    version: Int32 = 0


class ConsumerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_CONSUMER_CONNECTION_LIST (203) with the members of a consumer group.

    ``subscription_table`` has the group's subscriptions by topic. ``conflicts`` is ours: one
    sentence for each disagreement among the members. It is absent if there are none.
    """

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, clients.SubscriptionData] = {}
    consume_type: clients.ConsumeType | None = None
    message_model: clients.MessageModel | None = None
    consume_from_where: clients.ConsumeFromWhere | None = None
    conflicts: tuple[str, ...] | None = None


class GetConsumerConnectionList(Request[ConsumerConnection], kw_only=True):
    """Ask a broker for the connected members of a consumer group."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


class ProducerConnection(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_PRODUCER_CONNECTION_LIST (204) with the members of a producer group."""

    connection_set: tuple[Connection, ...] = ()


class GetProducerConnectionList(Request[ProducerConnection], kw_only=True):
    """Ask a broker for the connected members of a producer group."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


class ProducerInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Producer that is connected to a broker.

    `last_update_timestamp` is the time of its last heartbeat, in ms.
    """

    client_id: str | None = None
    remote_ip: str | None = msgspec.field(default=None, name="remoteIP")
    language: LanguageCode | None = None
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTableInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_ALL_PRODUCER_INFO (328) with all producers of a broker, by group."""

    data: dict[str, list[ProducerInfo]] | None = None


class GetAllProducerInfo(Request[ProducerTableInfo], kw_only=True):
    """Ask a broker for all connected producers, by group."""

    code = RequestCode.GET_ALL_PRODUCER_INFO


class QuerySubscriptionResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_SUBSCRIPTION_BY_CONSUMER (345) with the subscription of one group to one
    topic."""

    subscription_data: clients.SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class QuerySubscriptionByConsumer(Request[QuerySubscriptionResponseBody], kw_only=True):
    """Ask a broker for the subscription of a group to a topic."""

    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    group: str
    topic: str


# Status of a running consumer (307), and its result for one message that an operator had it consume
# (309). Names are Apache's (`droped`).
class ProcessQueueInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """State of one queue in a consumer, with its fetched but uncommitted messages."""

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
    """State of one queue in a POP consumer.

    ``wait_ack_count`` is the number of popped messages that are not acknowledged yet.
    """

    wait_ack_count: Int32 = 0
    droped: bool = False
    last_pop_timestamp: Int64 = 0


class ConsumeStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """Times and rates of one topic in a consumer.

    Times are in ms, rates per second.
    """

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_CONSUMER_RUNNING_INFO (307) with the settings, queues and figures of one
    consumer."""

    properties: dict[str, str] = {}
    subscription_set: tuple[clients.SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class GetConsumerRunningInfo(Request[ConsumerRunningInfo], kw_only=True):
    """Ask one consumer for its settings, queues and figures.

    The broker passes the request to the consumer with this client id.
    """

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeResult(StrEnum):
    """Outcome of handling one message in a consumer (apache/rocketmq `CMResult`)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to CONSUME_MESSAGE_DIRECTLY (309) with the outcome of handling one message.

    `spent_time_mills` is the time that the handler took, in ms.
    """

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0


class ConsumeMessageDirectly(Request[ConsumeMessageDirectlyResult], kw_only=True):
    """Ask one consumer to handle one message now.

    ``msg_id`` is the offset message id of the message. The broker adds the message as the body.
    """

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
