"""Checks of a pull before its queue is read.

The order of checks and the codes are those of apache/rocketmq ``PullMessageProcessor``. A pop has
its own order (``handlers/pop.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.broker.client_table import ClientTable
from turbopump.broker.groups import GroupTable
from turbopump.broker.subscriptions import (
    TAG,
    SubscriptionFilter,
    no_property_filter,
    read_subscription,
)
from turbopump.broker.topics import TopicTable, unserved_refusal
from turbopump.config.broker_config import BrokerConfig
from turbopump.filtering.tag import ALL, code_filter
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import MessageModel, SubscriptionData
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.protocol.requests.topics import PERM_READ, TopicConfig
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.wire import Wire
from turbopump.store.queues.matching import PropertyFilter
from turbopump.store.queues.queue_reader import TagsFilter

FORBIDDEN_BROKER: Final = 1
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
FORBIDDEN_SUBSCRIPTION: Final = 5


class PullFilters(NamedTuple):
    """Filters for a pull. A message must pass them to be returned.

    - ``accept``: a filter by tag code, or None if every tag passes.
    - ``matches``: a filter by properties, or None.
    """

    accept: TagsFilter
    matches: PropertyFilter | None


EVERYTHING: Final = PullFilters(None, None)


@dataclass(eq=False)
class PullChecks:
    """Checks of pulls against the broker's settings, topics, groups and subscriptions."""

    config: BrokerConfig
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable[Wire]

    def refusal(self, request: PullMessage) -> Response[PullMessageReply] | None:
        """Check that a pull is allowed. Return a refusal, or None for an allowed pull."""
        config = self.config
        if not config.broker_permission & PERM_READ:
            return forbidden(
                FORBIDDEN_BROKER, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.sys_flag & PullSysFlag.LITE_PULL and not config.lite_pull_message_enable:
            return forbidden(
                FORBIDDEN_BROKER,
                f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden",
            )
        group = self.groups.find_or_create(request.consumer_group)
        if group is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, no_group_remark(request.consumer_group)
            )
        if not group.consume_enable:
            return forbidden(
                FORBIDDEN_GROUP, f"subscription group no permission, {request.consumer_group}"
            )
        topic = self.topics.find(request.topic)
        if topic is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, no_topic_remark(request.topic))
        unserved = unserved_refusal(topic)
        if unserved is not None:
            return unserved
        if not topic.readable:
            return forbidden(
                FORBIDDEN_TOPIC, f"the topic[{request.topic}] pulling message is forbidden"
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            return refusal(
                ResponseCode.INVALID_PARAMETER,
                no_queue_remark(request.queue_id, topic, request.consumer_group),
            )
        # RocketMQ: a pull that brings its own subscription passes.
        if self.groups.bans and self.groups.is_banned(request.consumer_group, request.topic):
            return forbidden(
                FORBIDDEN_SUBSCRIPTION, ban_remark(request.consumer_group, request.topic)
            )
        return None

    def wants(self, request: PullMessage) -> PullFilters | Response[PullMessageReply]:
        """Return the filters for the messages of a pull, or a refusal.

        The filters come from the request itself, or from the heartbeats of the group.
        """
        if request.sys_flag & PullSysFlag.SUBSCRIPTION:
            if request.subscription == ALL and request.expression_type == TAG:  # nearly always
                return EVERYTHING
            data = SubscriptionData(
                topic=request.topic,
                sub_string=request.subscription,
                expression_type=request.expression_type,
            )
            try:
                subscription = read_subscription(data)
            except ValueError as error:
                return refusal(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                )
            return self._judges(subscription, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        group = self.clients.groups.get(request.consumer_group)
        if group is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {request.consumer_group}; send a "
                "heartbeat first",
            )
        config = self.groups.find_or_create(request.consumer_group)
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
            return refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {request.consumer_group}, "
                f"topic {request.topic}",
            )
        if known.data.sub_version < request.sub_version:
            return refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return self._judges(known, ResponseCode.FILTER_DATA_NOT_EXIST)

    def _judges(
        self, subscription: SubscriptionFilter, fault_code: int
    ) -> PullFilters | Response[PullMessageReply]:
        kind = subscription.data.expression_type
        if kind not in (None, "", TAG) and not self.config.enable_property_filter:
            return no_property_filter(kind)
        if subscription.fault is not None:
            return refusal(
                fault_code,
                "parse the consumer's subscription failed, your expression may be wrong: "
                f"{subscription.fault}",
            )
        accept = code_filter(subscription.codes)
        matches = subscription.matches
        if accept is None and matches is None:
            return EVERYTHING
        return PullFilters(accept, matches)


def no_topic_remark(topic: str) -> str:
    return f"topic[{topic[:128]}] not exist, apply first please! Create it (turbopump topic create)"


def no_group_remark(group: str) -> str:
    return (
        f"subscription group [{group[:128]}] does not exist; create it, use a legal name, or set "
        "autoCreateSubscriptionGroup=true on the broker"
    )


def no_queue_remark(queue_id: int, topic: TopicConfig, group: str) -> str:
    """Return the remark for a request about a queue that the topic does not have."""
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{group[:128]}]"
    )


def ban_remark(group: str, topic: str) -> str:
    """Return the remark for a group that an operator has banned from a topic (request 353)."""
    return f"the consumer group[{group}] is forbidden for topic[{topic}]"


def forbidden(kind: int, remark: str) -> Response[PullMessageReply]:
    header = PullMessageReply(next_begin_offset=0, min_offset=0, max_offset=0, forbidden_type=kind)
    return Response(header, code=ResponseCode.NO_PERMISSION, remark=remark)
