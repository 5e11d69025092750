"""Division of a group's queues among its members. Either the members calculate it, or a broker
does.

One rule: a division uses the brokers' *current* answers. If no broker answers, nothing changes, and
the division is tried again soon. This module must not know what follows from having a queue.
Source: apache/rocketmq ``RebalanceImpl``, ``RebalanceService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from turbopump.client.consumer.delivery_policy import ConsumerContext
from turbopump.client.consumer.queue_table import NO_CHANGE, Assignment, QueueChange, QueueTable
from turbopump.client.consumer.subscription import ALL, tag_subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.topic_route import TopicRoute
from turbopump.errors import BodyError, RemotingError, RouteNotFoundError
from turbopump.log_keys import LogKeys
from turbopump.message.handles import pop_retry_topic
from turbopump.message.message import MessageQueue
from turbopump.message.queue_shares import Strategy, allocate_average
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command, reply_in
from turbopump.protocol.request import Request
from turbopump.protocol.requests import assignment as requests
from turbopump.protocol.requests.clients import MEMBERS_MAX, GetConsumerListByGroup, MessageModel
from turbopump.remoting.client import refused_by
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_rebalanced = RepeatedLine(log, logging.INFO, "rebalanced group=%s topic=%s %s")

INTERVAL_S: Final = 20.0
RETRY_INTERVAL_S: Final = 0.25
RETRY_INTERVAL_MAX_S: Final = 1.0
"""Intervals in seconds after an incomplete division: the first one is doubled up to this maximum.
An ordered queue is only free once its lock is released or expired; two seconds after a notice every
queue has its owner."""


@dataclass(frozen=True, slots=True)
class Division:
    """Result of dividing a topic's queues: the queues that this member gains and loses.

    - ``complete``: False if the division must be repeated soon.
    - ``by``: keys of a log line, which say who has divided the queues.
    """

    change: QueueChange = NO_CHANGE
    complete: bool = True
    by: LogKeys = field(default_factory=LogKeys)


def queue_change(
    queues: Collection[MessageQueue],
    clients: Collection[str],
    client_id: str,
    assigned: Collection[MessageQueue],
    strategy: Strategy,
) -> QueueChange:
    """Calculate a new division of one topic's queues. Return the change for the member
    ``client_id``.

    A client that the brokers do not list yet gains and loses nothing. Queues of other topics in a
    strategy's result are ignored.
    """
    if client_id not in clients:
        return NO_CHANGE
    topics = {queue.topic for queue in queues}
    ours = [
        queue
        for queue in strategy(sorted(queues), sorted(clients), client_id)
        if queue.topic in topics
    ]
    kept = set(ours)
    before = set(assigned)
    return QueueChange([queue for queue in ours if queue not in before], sorted(before - kept))


@dataclass(eq=False)
class Balancer:
    """Task that repeatedly divides a group's queues among its members.

    The queues are divided every 20 s, after ``wake``, and soon after a failure.

    - ``topics``: function that returns the subscribed topics.
    - ``strategy``: function that divides the queues. None assigns every queue to this member, as
      broadcasting needs.
    - ``table``: table of the assigned queues.
    """

    instance: ClientInstance
    group: str
    topics: Callable[[], Sequence[str]]
    strategy: Strategy | None
    table: QueueTable[Any]

    def __post_init__(self) -> None:
        self.divide: Callable[[str], Awaitable[Division]] = self.divide_by_members
        """Function that divides the queues of a topic. Raises RemotingError, RouteNotFoundError,
        BodyError."""
        self._woken = asyncio.Event()
        self._complaints: dict[str, str] = {}
        self._changes: dict[str, LogKeys] = {}

    def wake(self) -> None:
        """Divide the queues now, because something has changed."""
        self._woken.set()

    def route_changed(self, route: TopicRoute) -> None:
        """Divide the queues now if the changed route belongs to a subscribed topic."""
        if route.topic in self.topics():
            self._woken.set()

    async def run(self, *, complete: bool = True) -> None:
        """Divide the queues of every topic at intervals. Runs until cancelled.

        The first division follows after one interval, or after ``wake``. If the last division was
        not ``complete``, the first one follows soon.
        """
        pause = RETRY_INTERVAL_S
        while True:
            try:
                async with asyncio.timeout(INTERVAL_S if complete else pause):
                    await self._woken.wait()
                pause = RETRY_INTERVAL_S
            except TimeoutError:
                pause = min(pause * 2, RETRY_INTERVAL_MAX_S)
            if complete := await self.balance():
                pause = RETRY_INTERVAL_S

    async def balance(self) -> bool:
        """Divide the queues of every topic now. Return False if a division must be repeated
        soon."""
        self._woken.clear()
        complete = True
        for topic in self.topics():
            try:
                complete &= await self._balance_topic(topic)
                self._complaints.pop(topic, None)
            except (RemotingError, RouteNotFoundError, BodyError) as error:
                if not topic.startswith(RETRY_PREFIX):
                    complete = False
                    self._log_failure(topic, str(error))
            except Exception as error:
                # of a user's strategy, which may do better the next time: as ``rebalanceByTopic``
                complete = False
                self._log_failure(topic, f"{error!r:.200}", error)
        return complete

    async def _balance_topic(self, topic: str) -> bool:
        """Divide the queues of ``topic``, and apply the change. Return False if any of this is
        incomplete."""
        division = await self.divide(topic)
        change = division.change
        if not change.gained and not change.lost:
            self._changes.pop(topic, None)
            return division.complete
        keys = LogKeys(division.by, gained=_named(change.gained), lost=_named(change.lost))
        if change.popped:
            keys["popped"] = _named(sorted(change.popped))
        if self._changes.get(topic) != keys:  # once, however often it is tried again
            self._changes[topic] = keys
            _rebalanced(self.group, topic, keys, kind=(self.group, topic))
        return await self.table.apply(change) and division.complete

    async def divide_by_members(self, topic: str) -> Division:
        """Divide the current queues of ``topic`` among the group's current members.

        Raises RemotingError, RouteNotFoundError or BodyError.
        """
        # No broker assigns queues here. Each member asks one broker for the list of members, sorts
        # queues and members the same way, and computes the same division as all the others. While
        # their lists differ, because a member has just joined or left, two members may read a
        # queue, or none may. This corrects itself: the brokers notify all members of a change, and
        # each divides again after 20 s in any case. Meanwhile a message may be delivered twice but
        # is not lost, because a queue's next owner starts at the group's offset at the broker.
        # Order needs more than this division: the lock of each queue (``consumer/queue_locks.py``).
        route = await self.instance.routes.get(topic)
        strategy = self.strategy
        clients = [self.instance.client_id]
        if strategy is not None:
            clients = await self._member_ids(route)
        change = queue_change(
            route.subscribe_queues,
            clients,
            self.instance.client_id,
            self.table.of_topic(topic),
            strategy or allocate_average,  # to this member alone
        )
        # A broker that does not list us has missed our heartbeat or was restarted. No queue can be
        # assigned to us until it knows us, so the division is incomplete and is repeated soon.
        return Division(change, self.instance.client_id in clients, LogKeys(members=len(clients)))

    async def _member_ids(self, route: TopicRoute) -> list[str]:
        """Ask a broker of the topic for the client ids of the group's members."""
        request = GetConsumerListByGroup(consumer_group=self.group)
        addresses = sorted(route.every_address(slaves=True))
        address, command = await ask_one(self.instance, addresses, request)
        clients = reply_in(command, request).consumer_id_list
        if len(clients) > MEMBERS_MAX:
            raise BodyError(
                f"{address} lists {len(clients)} members of group {self.group!r}, above "
                f"the limit of {MEMBERS_MAX}: divide its consumers into several groups"
            )
        if self.instance.client_id not in clients:
            self.instance.forget_introduction(address)
        return clients

    def _log_failure(self, topic: str, cause: str, failure: Exception | None = None) -> None:
        if self._complaints.get(topic) != cause:  # once per cause, not every few seconds
            self._complaints[topic] = cause
            if failure is None:
                log.warning(
                    "no queues to consume yet, division is repeated group=%s topic=%s cause=%s",
                    self.group,
                    topic,
                    cause,
                )
            else:
                log.error(
                    "rebalance failed, the queues stay assigned and it is repeated "
                    "group=%s topic=%s cause=%s",
                    self.group,
                    topic,
                    cause,
                    exc_info=failure,
                )


async def ask_one(
    instance: ClientInstance,
    addresses: Sequence[str],
    request: Request[Any],
    body: Body = b"",
    *,
    answers: Collection[int] = (ResponseCode.SUCCESS,),
) -> tuple[str, Command]:
    """Ask brokers in turn, until the code of an answer is in ``answers``.

    Return the address of that broker and its answer. Raises the last error, or RouteNotFoundError
    without any address.
    """
    failure: RemotingError | None = None
    for address in addresses:
        try:
            await instance.introduced(address)
            command = await instance.remoting.exchange(
                address, request, body, timeout=instance.call_timeout
            )
            if command.code in answers:
                return address, command
            failure = refused_by(address, request, command)
        except RemotingError as error:
            failure = error
    if failure is not None:
        raise failure
    raise RouteNotFoundError("the topic has no broker at the moment")


def _named(queues: Iterable[MessageQueue]) -> str:
    return " ".join(map(str, queues)) or "-"


class BrokerDivision:
    """Division of queues by a broker. The broker also decides if a queue is popped.

    If a broker does not know the request for a division (code 400, unknown to Apache's 4.9), the
    members divide the queues.

    - ``table``: queues that are assigned now.
    - ``fallback``: divides the queues of a topic without the broker.

    For a pulled topic, the consumer also subscribes to its POP retry topic and pulls that, because
    its messages may have been popped before.

    Source: apache/rocketmq ``RebalanceImpl.getRebalanceResultFromBroker``.
    """

    def __init__(
        self,
        shared: ConsumerContext,
        table: Assignment,
        fallback: Callable[[str], Awaitable[Division]],
    ) -> None:
        self._instance = shared.instance
        self._group = shared.group
        self._subscriptions = shared.subscriptions
        self._strategy = shared.settings.broker_strategy
        self._table = table
        self._fallback = fallback
        self._falls_back = False

    async def divide(self, topic: str) -> Division:
        """Ask a broker of ``topic`` for the queues of this member.

        Raises RemotingError, RouteNotFoundError or BodyError.
        """
        route = await self._instance.routes.get(topic)
        masters = sorted(route.every_address(slaves=False))
        self._instance.environment.random.shuffle(masters)
        slaves = sorted(route.every_address(slaves=True).difference(masters))
        assignments = await self._ask_brokers(topic, [*masters, *slaves])
        if self._falls_back:
            return await self._fallback(topic)
        if assignments is None:
            return Division(complete=False)
        if topic not in self._subscriptions:  # it was given up meanwhile
            return Division()
        pop_mode = requests.MessageRequestMode.POP
        wanted = {one.message_queue: one.mode is pop_mode for one in assignments}
        complete = await self._subscribe_to_retries(
            topic, pulls=False in wanted.values(), pops=True in wanted.values()
        )
        popped = self._table.popped_of(topic)
        ours = {queue: queue in popped for queue in self._table.of_topic(topic)}
        gained = sorted(queue for queue, pops in wanted.items() if ours.get(queue) is not pops)
        lost = sorted(queue for queue, pops in ours.items() if wanted.get(queue) is not pops)
        change = QueueChange(gained, lost, frozenset(queue for queue in gained if wanted[queue]))
        return Division(change, complete, LogKeys(by="broker"))

    async def _ask_brokers(
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
                "broker does not divide queues, because its version is below 5.0; the members "
                "divide them broker=%s group=%s",
                address,
                self._group,
            )
        self._falls_back = True

    async def _subscribe_to_retries(self, topic: str, *, pulls: bool, pops: bool) -> bool:
        """Subscribe to the POP retry topic if ``topic`` is pulled. Unsubscribe from it if ``topic``
        is popped.

        Return False if the subscription is new, so that its queues must be divided soon.
        """
        if topic.startswith(RETRY_PREFIX) or pulls == pops:
            return True
        retries = pop_retry_topic(topic, self._group)
        if pops:
            if self._subscriptions.pop(retries, None) is not None:
                await self._table.release_topic(retries)
            return True
        if retries in self._subscriptions:
            return True
        self._subscriptions[retries] = tag_subscription(
            retries, ALL, self._subscriptions[topic].version
        )
        return False
