"""A division of queues that brokers make (400): which of a topic's queues are ours, and whether we
pull them or pop them.

One rule: a broker that cannot say changes nothing. One that knows no such question (Apache's 4.9)
has the group divide the queues itself. It must not know what having a queue means. Source:
apache/rocketmq ``RebalanceImpl.getRebalanceResultFromBroker``, ``updateMessageQueueAssignment``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence

from turbopump.client.consuming.assignment import Assignment
from turbopump.client.consuming.rebalance import Change
from turbopump.client.consuming.subscription import ALL, Subscription, tag_subscription
from turbopump.client.instance import CALL_TIMEOUT_S, ClientInstance
from turbopump.client.popping.assignment import PopAssignment
from turbopump.errors import RemotingError, ResponseError, RouteNotFoundError
from turbopump.message.message_queue import MessageQueue
from turbopump.message.pop_handle import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.assignment import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from turbopump.protocol.bodies.heartbeat import MessageModel
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import QueryAssignment

log = logging.getLogger(__name__)


class BrokerDivision:
    """``pulled`` and ``popped``: our queues, by how we read them. ``fallback`` divides a topic
    without the broker. ``subscriptions``: a topic that is pulled has its POP retry topic pulled
    too, for what was popped of it before."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        pulled: Assignment,
        popped: PopAssignment,
        fallback: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._pulled = pulled
        self._popped = popped
        self._fallback = fallback
        self._falls_back = False
        self._told: dict[str, str] = {}

    async def look(self, topic: str) -> bool:
        """Ask a broker of ``topic``, and do as it says; False if that could not be done. Raises
        RemotingError, RouteNotFoundError, BodyError."""
        route = await self._instance.routes.get(topic)
        masters = sorted(route.every_address(slaves=False))
        self._instance.environment.random.shuffle(masters)
        slaves = sorted(route.every_address(slaves=True).difference(masters))
        assignments = await self._ask(topic, [*masters, *slaves])
        if self._falls_back:
            return await self._fallback(topic)
        if assignments is None:
            return False
        if topic not in self._subscriptions:  # it was given up meanwhile
            return True
        pops = {one.message_queue for one in assignments if one.mode is MessageRequestMode.POP}
        pulls = {one.message_queue for one in assignments if one.mode is not MessageRequestMode.POP}
        complete = await self._look_after_retries(topic, pulls=bool(pulls), pops=bool(pops))
        pull, pop = (
            _change(self._pulled.of_topic(topic), pulls),
            _change(self._popped.of_topic(topic), pops),
        )
        self._tell(topic, pull, pop)
        if pop.gained or pop.lost:
            await self._popped.apply(pop)
        if pull.gained or pull.lost:
            complete &= await self._pulled.apply(pull)
        return complete

    async def _ask(
        self, topic: str, addresses: Sequence[str]
    ) -> Sequence[MessageQueueAssignment] | None:
        body = fastjson.encode(
            QueryAssignmentRequestBody(
                topic=topic,
                consumer_group=self._group,
                client_id=self._instance.client_id,
                strategy_name=self._popped.settings.strategy,
                message_model=MessageModel.CLUSTERING,
            )
        )
        failure: RemotingError | None = None
        for address in addresses:
            try:
                await self._instance.introduced(address)
                command = await self._instance.remoting.exchange(
                    address, QueryAssignment(), body, timeout=CALL_TIMEOUT_S
                )
                if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    self._fall_back(address)
                    return None
                if command.code != ResponseCode.SUCCESS:
                    raise ResponseError(
                        command.code, command.remark, request="QueryAssignment", address=address
                    )
            except RemotingError as error:
                failure = error
                continue
            assignments = fastjson.decode(
                command.body, QueryAssignmentResponseBody
            ).message_queue_assignments
            if assignments is None and not topic.startswith(RETRY_PREFIX):
                self._instance.forget_introduction(address)
            return assignments
        if failure is not None:
            raise failure
        raise RouteNotFoundError("the topic has no broker at the moment")

    def _fall_back(self, address: str) -> None:
        if not self._falls_back:
            log.warning(
                "broker %s divides no queues (it is older than 5.0): the group divides them "
                "itself group=%s",
                address,
                self._group,
            )
        self._falls_back = True

    async def _look_after_retries(self, topic: str, *, pulls: bool, pops: bool) -> bool:
        """Of a topic that is pulled, pull the POP retry topic too; False if that has just begun,
        and is to be looked at soon."""
        if topic.startswith(RETRY_PREFIX) or pulls == pops:
            return True
        retries = pop_retry_topic(topic, self._group)
        if pops:
            if self._subscriptions.pop(retries, None) is not None:
                await self._pulled.apply(Change((), list(self._pulled.of_topic(retries))))
            return True
        if retries in self._subscriptions:
            return True
        self._subscriptions[retries] = tag_subscription(
            retries, ALL, self._subscriptions[topic].version
        )
        return False

    def _tell(self, topic: str, pull: Change, pop: Change) -> None:
        if not (pull.gained or pull.lost or pop.gained or pop.lost):
            self._told.pop(topic, None)
            return
        words = [
            f"{name}={' '.join(map(str, queues)) or '-'}" for name, queues in _named(pull, pop)
        ]
        text = " ".join(words)
        if self._told.get(topic) != text:  # once, however often it is tried again
            self._told[topic] = text
            log.info("rebalanced by a broker group=%s topic=%s %s", self._group, topic, text)


def _change(before: Collection[MessageQueue], now: Collection[MessageQueue]) -> Change:
    return Change(sorted(set(now).difference(before)), sorted(set(before).difference(now)))


def _named(pull: Change, pop: Change) -> list[tuple[str, Sequence[MessageQueue]]]:
    return [
        ("pull", pull.gained),
        ("pull_no_more", pull.lost),
        ("pop", pop.gained),
        ("pop_no_more", pop.lost),
    ]
