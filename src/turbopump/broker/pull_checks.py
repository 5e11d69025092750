"""What is asked of a pull before a queue is read: whether it may be, and which messages it is to be
given.

Order of checks and codes: apache/rocketmq ``PullMessageProcessor``. It must not know how queues are
read or who waits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.broker.consumers import (
    TAG,
    ClientTable,
    Subscription,
    no_property_filter,
    read_subscription,
)
from turbopump.broker.groups import GroupTable
from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.filtering.tag import code_filter
from turbopump.protocol.bodies.heartbeat import MessageModel, SubscriptionData
from turbopump.protocol.bodies.topics import PERM_READ
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Response
from turbopump.store.queues.queue_reader import Accept, Wanted

FORBIDDEN_BROKER: Final = 1
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4


class Wants(NamedTuple):
    """Which messages a pull is to be given: judges of tag codes and of properties, None where
    everything will do."""

    accept: Accept
    matches: Wanted | None


class PullChecks:
    """By the broker's settings, its topics and groups, and what groups subscribe to."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable[Connection],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients

    def refusal(self, request: PullMessage) -> Response | None:
        """Why this pull may not be, or None."""
        config = self._config
        if not config.broker_permission & PERM_READ:
            return forbidden(
                FORBIDDEN_BROKER, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.sys_flag & PullSysFlag.LITE_PULL and not config.lite_pull_message_enable:
            return forbidden(
                FORBIDDEN_BROKER,
                f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden",
            )
        group = self._groups.find(request.consumer_group)
        if group is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group [{request.consumer_group[:128]}] does not exist; "
                "create it, use a legal name, "
                "or set autoCreateSubscriptionGroup=true on the broker",
            )
        if not group.consume_enable:
            return forbidden(
                FORBIDDEN_GROUP, f"subscription group no permission, {request.consumer_group}"
            )
        topic = self._topics.find(request.topic)
        if topic is None:
            return Response(
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=f"topic[{request.topic[:128]}] not exist, apply first please! Create it "
                "(turbopump topic create)",
            )
        if not topic.readable:
            return forbidden(
                FORBIDDEN_TOPIC, f"the topic[{request.topic}] pulling message is forbidden"
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            return Response(
                code=ResponseCode.INVALID_PARAMETER,
                remark=f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{request.consumer_group}]",
            )
        return None

    def wants(self, request: PullMessage) -> Wants | Response:
        """What this pull is to be given: from the request itself, or from the group's heartbeat."""
        if request.sys_flag & PullSysFlag.SUBSCRIPTION:
            data = SubscriptionData(
                topic=request.topic,
                sub_string=request.subscription,
                expression_type=request.expression_type,
            )
            try:
                subscription = read_subscription(data)
            except ValueError as error:
                return Response(
                    code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    remark=f"parse the consumer's subscription failed: {error}",
                )
            return self._judges(subscription, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        group = self._clients.groups.get(request.consumer_group)
        if group is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's group info not exist: {request.consumer_group}; send a "
                "heartbeat first",
            )
        config = self._groups.find(request.consumer_group)
        if (
            config is not None
            and not config.consume_broadcast_enable
            and group.message_model is MessageModel.BROADCASTING
        ):
            return forbidden(
                FORBIDDEN_BROADCAST,
                f"the consumer group[{request.consumer_group}] can not consume by broadcast way",
            )
        known = group.subscriptions.get(request.topic)
        if known is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's subscription not exist: group {request.consumer_group}, "
                f"topic {request.topic}",
            )
        if known.data.sub_version < request.sub_version:
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
                remark="the consumer's subscription not latest",
            )
        return self._judges(known, ResponseCode.FILTER_DATA_NOT_EXIST)

    def _judges(self, subscription: Subscription, fault_code: int) -> Wants | Response:
        kind = subscription.data.expression_type
        if kind not in (None, "", TAG) and not self._config.enable_property_filter:
            return no_property_filter(kind)
        if subscription.fault is not None:
            return Response(
                code=fault_code,
                remark="parse the consumer's subscription failed, your expression may be wrong: "
                f"{subscription.fault}",
            )
        return Wants(code_filter(subscription.codes), subscription.matches)


def forbidden(kind: int, remark: str) -> Response:
    header = PullMessageReply(next_begin_offset=0, min_offset=0, max_offset=0, forbidden_type=kind)
    return Response(header, code=ResponseCode.NO_PERMISSION, remark=remark)
