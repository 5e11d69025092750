"""Which topic a dead letter is resent to. One rule: it asks, and sends nothing. It must not know
journals.

A group has two kinds of retry topics. Its consumers that pull read ``%RETRY%group``; those that pop
read ``%RETRY%group_topic``, one for each topic (and a push consumer over POP both). Source:
apache/rocketmq ``PopMessageProcessor``, ``KeyBuilder.buildPopRetryTopic``. A newer kind,
``%RETRY%group+topic`` (``enableRetryTopicV2``), cannot be sent to: a + is not allowed. Its brokers
read the older one, too.
"""

from __future__ import annotations

import logging
from typing import Final

from turbopump.client.dead_letters.dead_letter import DeadLetter, ResendTo
from turbopump.client.instance import ClientInstance
from turbopump.errors import BodyError, RemotingError, RouteNotFoundError
from turbopump.message.pop_handle import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.connections import ConsumerConnection
from turbopump.protocol.bodies.heartbeat import ConsumeType
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import GetConsumerConnectionList

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0


class TargetTopics:
    """For one run: what the group's brokers say about its consumers is asked once for each
    topic."""

    def __init__(self, instance: ClientInstance, group: str, to: ResendTo) -> None:
        self._instance = instance
        self._group = group
        self._to = to
        self._pops_of: dict[str, bool] = {}

    async def learn(self, letter: DeadLetter) -> str | None:
        """The topic it goes to; None if it cannot be told, because the letter does not say from
        which topic it came."""
        origin = letter.origin_topic
        unsure = self._to is ResendTo.RETRY and not letter.was_popped
        if unsure and origin is not None and origin not in self._pops_of:
            self._pops_of[origin] = await self._pops(origin)
        return self.of(letter)

    def of(self, letter: DeadLetter) -> str | None:
        """The same, of a letter about which it was asked."""
        origin = letter.origin_topic
        match self._to:
            case ResendTo.ORIGIN:
                return origin
            case ResendTo.RETRY:
                pops = origin is not None and (letter.was_popped or self._pops_of[origin])
            case _:
                pops = self._to is ResendTo.POP_RETRY
        if not pops:
            return RETRY_PREFIX + self._group
        return pop_retry_topic(origin, self._group) if origin is not None else None

    async def _pops(self, topic: str) -> bool:
        """Whether consumers of the group are there that say they pop."""
        try:
            route = await self._instance.routes.get(topic)
        except (RouteNotFoundError, RemotingError):
            return False
        request = GetConsumerConnectionList(consumer_group=self._group)
        for broker_name in sorted(route.addresses):
            address = route.master(broker_name)
            if address is None:
                continue
            try:
                answer = await self._instance.remoting.exchange(address, request, timeout=TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    return (
                        fastjson.decode(answer.body, ConsumerConnection).consume_type
                        is ConsumeType.CONSUME_POP
                    )
            except (RemotingError, BodyError) as error:
                log.warning(
                    "not asked how a group consumes broker=%s group=%s cause=%s",
                    broker_name,
                    self._group,
                    error,
                )
        return False


def missing_topic_hint(topic: str, group: str) -> str:
    """What to do about a target that has no route."""
    if topic == RETRY_PREFIX + group:
        return "; no consumer of the group has made it: resend to the origin"
    if topic.startswith(RETRY_PREFIX):
        return (
            "; the group pops, and has not had anything to retry yet: make the topic with "
            f"turbopump topic create '{topic}' --queues 1, or resend to the origin"
        )
    return ""
