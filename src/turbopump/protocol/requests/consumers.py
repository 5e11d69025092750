"""What an operator asks about those who consume and produce: 203 GET_CONSUMER_CONNECTION_LIST, 204
GET_PRODUCER_CONNECTION_LIST, 208 GET_CONSUME_STATS, 317 GET_BROKER_CONSUME_STATS, 300
QUERY_TOPIC_CONSUME_BY_WHO, 343 QUERY_TOPICS_BY_CONSUMER, 345 QUERY_SUBSCRIPTION_BY_CONSUMER, 303
QUERY_CONSUME_TIME_SPAN, 328 GET_ALL_PRODUCER_INFO; and, by way of the broker, of one of them: 307
GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class GetConsumerConnectionList(Request[None], kw_only=True):
    """The members of a consumer group; the body of the answer is
    ``bodies.connections.ConsumerConnection``."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


class GetProducerConnectionList(Request[None], kw_only=True):
    """The members of a producer group; the body of the answer is
    ``bodies.connections.ProducerConnection``."""

    code: ClassVar[int] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class GetConsumeStats(Request[None], kw_only=True):
    """How far a group is: in ``topic``, in those of ``topic_list`` (separated by semicolons), or
    everywhere; the body of the answer is ``bodies.stats.ConsumeStats``."""

    code: ClassVar[int] = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetBrokerConsumeStats(Request[None], kw_only=True):
    """How far every group is, or (``is_order``) every one in its ordered topics; the body of the
    answer is ``bodies.stats.ConsumeStatsList``."""

    code: ClassVar[int] = RequestCode.GET_BROKER_CONSUME_STATS

    is_order: bool = False


class GetAllProducerInfo(Request[None], kw_only=True):
    """All producers by group; the body of the answer is
    ``bodies.connections.ProducerTableInfo``."""

    code: ClassVar[int] = RequestCode.GET_ALL_PRODUCER_INFO


class QuerySubscriptionByConsumer(Request[None], kw_only=True):
    """What a group wants of a topic; the body of the answer is
    ``bodies.connections.QuerySubscriptionResponseBody``."""

    code: ClassVar[int] = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str


class QueryTopicConsumeByWho(Request[None], kw_only=True):
    """The groups that consume a topic, now or before; the body of the answer is
    ``bodies.groups.GroupList``."""

    code: ClassVar[int] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class QueryTopicsByConsumer(Request[None], kw_only=True):
    """The topics in which a group has a place; the body of the answer is
    ``bodies.topics.TopicList``."""

    code: ClassVar[int] = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class QueryConsumeTimeSpan(Request[None], kw_only=True):
    """When the first, last and next message of each queue were stored; the body of the answer is
    ``bodies.stats.QueryConsumeTimeSpanBody``."""

    code: ClassVar[int] = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str


class GetConsumerRunningInfo(Request[None], kw_only=True):
    """What one consumer tells of itself; the body of the answer is
    ``bodies.running.ConsumerRunningInfo``."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectly(Request[None], kw_only=True):
    """Have one consumer handle the message with the offset message id ``msg_id`` now; the broker
    adds the message as the body. The body of the answer is
    ``bodies.running.ConsumeMessageDirectlyResult``."""

    code: ClassVar[int] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
