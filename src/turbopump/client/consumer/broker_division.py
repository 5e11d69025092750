"""Assignment of queues by brokers (request 400): which queues a member pulls, and which it pops.

One rule: a broker that does not answer changes nothing. If a broker does not know the request
(Apache's 4.9), the members divide the queues. Source: apache/rocketmq
``RebalanceImpl.getRebalanceResultFromBroker``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from turbopump.client.consumer.assignment import Assignment
from turbopump.client.consumer.delivery_policy import Membership
from turbopump.client.consumer.rebalance import Division, QueueChange, ask_one
from turbopump.client.consumer.subscription import ALL, tag_subscription
from turbopump.message.handles import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests import assignment as requests
from turbopump.protocol.requests.clients import MessageModel

log = logging.getLogger(__name__)


class BrokerDivision:
    """Ask brokers for this member's queues.

    - ``table``: queues that are assigned now.
    - ``fallback``: divides a topic without the broker.

    For a pulled topic, the consumer also subscribes to its POP retry topic and pulls that, because
    its messages may have been popped before.
    """

    def __init__(
        self, shared: Membership, table: Assignment, fallback: Callable[[str], Awaitable[Division]]
    ) -> None:
        self._instance = shared.instance
        self._group = shared.group
        self._subscriptions = shared.subscriptions
        self._strategy = shared.settings.broker_strategy
        self._table = table
        self._fallback = fallback
        self._falls_back = False

    async def divide(self, topic: str) -> Division:
        """Ask a broker of ``topic`` for the assignment. Raises RemotingError, RouteNotFoundError,
        BodyError."""
        route = await self._instance.routes.get(topic)
        masters = sorted(route.every_address(slaves=False))
        self._instance.environment.random.shuffle(masters)
        slaves = sorted(route.every_address(slaves=True).difference(masters))
        assignments = await self._ask(topic, [*masters, *slaves])
        if self._falls_back:
            return await self._fallback(topic)
        if assignments is None:
            return Division(complete=False)
        if topic not in self._subscriptions:  # it was given up meanwhile
            return Division()
        pop_mode = requests.MessageRequestMode.POP
        wanted = {one.message_queue: one.mode is pop_mode for one in assignments}
        complete = await self._look_after_retries(
            topic, pulls=False in wanted.values(), pops=True in wanted.values()
        )
        popped = self._table.popped_of(topic)
        ours = {queue: queue in popped for queue in self._table.of_topic(topic)}
        gained = sorted(queue for queue, pops in wanted.items() if ours.get(queue) is not pops)
        lost = sorted(queue for queue, pops in ours.items() if wanted.get(queue) is not pops)
        change = QueueChange(gained, lost, frozenset(queue for queue in gained if wanted[queue]))
        return Division(change, complete, "by=broker")

    async def _ask(
        self, topic: str, addresses: Sequence[str]
    ) -> Sequence[requests.MessageQueueAssignment] | None:
        request = requests.QueryAssignment()
        body = requests.QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=self._group,
            client_id=self._instance.client_id,
            strategy_name=self._strategy,
            message_model=MessageModel.CLUSTERING,
        )
        address, command = await ask_one(
            self._instance,
            addresses,
            request,
            body,
            answers=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._fall_back(address)
            return None
        assignments = reply_in(command, request).message_queue_assignments
        if assignments is None and not topic.startswith(RETRY_PREFIX):
            self._instance.forget_introduction(address)
        return assignments

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
        """Subscribe to the POP retry topic of a pulled topic, and drop it for a popped one. Return
        False if it was just added and must be divided soon."""
        if topic.startswith(RETRY_PREFIX) or pulls == pops:
            return True
        retries = pop_retry_topic(topic, self._group)
        if pops:
            if self._subscriptions.pop(retries, None) is not None:
                await self._table.apply(QueueChange((), self._table.of_topic(retries)))
            return True
        if retries in self._subscriptions:
            return True
        self._subscriptions[retries] = tag_subscription(
            retries, ALL, self._subscriptions[topic].version
        )
        return False
