"""The push consumer: a member of a group that gets its share of the messages, one ``async for`` or handler call each.

One rule: an offset is committed only when every message before it is done; what is not done comes again, to this member or the next.
This file is the life of a consumer: joining, getting and losing queues, committing, leaving. It must not know how a queue is pulled.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Collection, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final

from turbopump.client.allocation import STRATEGIES
from turbopump.client.assigned_queue import AssignedQueue
from turbopump.client.delivery import Delivery, Retry
from turbopump.client.handling import Handler, HandlerPool
from turbopump.client.heartbeat import Member
from turbopump.client.identity import Credentials, InstanceSettings
from turbopump.client.instance import ClientInstance
from turbopump.client.message_stream import MessageStream
from turbopump.client.offset_store import ConsumeFrom, OffsetStore
from turbopump.client.ready_messages import ReadyMessages
from turbopump.client.rebalance import Balancer, Change
from turbopump.client.routes import TopicRoute
from turbopump.client.shared_instances import join_instance
from turbopump.client.subscription import ALL, Subscription, tag_subscription
from turbopump.client.surroundings import name_server_addresses, surroundings_of
from turbopump.clock import Clock
from turbopump.errors import ConfigError, NotStartedError, RemotingError, RouteNotFoundError
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import RETRY_PREFIX, group_fault, topic_fault
from turbopump.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel

__all__ = ["ConsumeFrom", "Delivery", "PushConsumer", "Retry"]

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0


class PushConsumer:
    """Consumes as a member of ``group``. Use it as ``async with PushConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:``
    and then ``async for message in consumer:``, or give a ``handler``.

    ``namesrv``: ``"host:port"``, several separated by ``;``, or a list. ``topic`` and ``tags`` (``*``, or ``A || B``): what to
    consume; ``subscribe`` adds more. ``handler``: called with each message, ``concurrency`` at once; a coroutine function runs on the
    loop, a plain function in a thread. ``consume_from``: where a group that is new to a queue begins; a datetime means what was stored
    from then on. ``instance_name`` and ``unit_name`` as for ``Producer``; two consumers of a group must not be given the same.
    ``clock``, ``random`` and
    ``local_ip`` replace the system's. Raises ConfigError for unusable settings.

    A message is done when its handler returns (None included) or, in ``async for``, when the next one is asked for; see docs/client.md.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        topic: str | None = None,
        tags: str = ALL,
        handler: Handler | None = None,
        consume_from: ConsumeFrom | datetime = ConsumeFrom.LAST,
        concurrency: int = 20,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        namespace_v2: str | None = None,
        allocation: str = "AVG",
        close_timeout: float = CLOSE_TIMEOUT_S,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        local_ip: str | None = None,
    ) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ConfigError(fault)
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency} must be at least 1")
        if allocation not in STRATEGIES:
            raise ConfigError(f"allocation={allocation!r} is unknown; there is {', '.join(STRATEGIES)}")
        self.group = group
        self._settings = InstanceSettings(name_server_addresses(namesrv), instance_name, unit_name, credentials, namespace_v2)
        self._handler = handler
        self._consume_from = consume_from
        self._concurrency = concurrency
        self._strategy = STRATEGIES[allocation]
        self._close_timeout = close_timeout
        self._surroundings = surroundings_of(clock, random, local_ip)
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._running: _Running | None = None
        if topic is not None:
            self._subscribe(topic, tags)

    # --- what it consumes ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, tags: str = ALL) -> None:
        """Consume ``topic`` too (or with other tags); may be called before ``start`` and after. All members of a group must subscribe
        alike, or messages are missed. Raises ConfigError."""
        self._subscribe(topic, tags)
        if self._running is not None:
            self._running.instance.check_usable("PushConsumer", self._running.member)
            await self._running.instance.introduce_all()
            self._running.balancer.wake()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours at the moment, sorted."""
        return sorted(queue for queue in self._assigned if not queue.topic.startswith(RETRY_PREFIX))

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self._started().instance.client_id

    # --- life ----------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PushConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and begin to consume. Returns after the first look at who gets which queue.

        Raises RouteNotFoundError if no name server answers (a topic that does not exist yet is waited for), NotStartedError after
        ``close``, ConfigError if nothing is subscribed.
        """
        if self._running is not None:
            self._running.instance.check_usable("PushConsumer", self._running.member)
            return
        if not self._subscriptions:
            raise ConfigError("nothing to consume: give topic=… or call subscribe(topic) before start")
        self._subscribe(RETRY_PREFIX + self.group, ALL)
        member = Member(self.group, consumer=self.consumer_data)
        instance = join_instance(self._settings, self._surroundings, member)
        running = self._running = _Running(self, instance, member)
        try:
            await self._find_topics(instance)
        except BaseException:
            await self.close()
            raise
        complete = await running.balancer.balance()
        running.tasks = [
            instance.spawn(running.balancer.run(complete=complete), name="balancer"),
            instance.spawn(self._commit_for_ever(), name="commits"),
        ]
        if running.handlers is not None:
            running.handlers.start()

    async def close(self) -> None:
        """Stop pulling, let running handlers finish (``close_timeout`` at most), commit, leave the group. May be called twice."""
        running = self._running
        if running is None or running.closing:
            return
        running.closing = True
        for task in running.tasks:
            task.cancel()
        for assigned in self._assigned.values():
            assigned.stop_pulling()
        running.ready.close()
        if running.handlers is not None:
            await running.handlers.stop(self._close_timeout)
        await self.commit(acknowledged=True)
        for assigned in self._assigned.values():
            assigned.drop()
        self._assigned.clear()
        await running.instance.leave(running.member)
        running.closed.set()

    async def wait_closed(self) -> None:
        """Wait until somebody closes this consumer: what a program with a handler does for the rest of its life."""
        await self._started().closed.wait()

    def __aiter__(self) -> MessageStream:
        return MessageStream(self._readable())

    async def take(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``; each must be settled with ``done()`` or ``retry()``. Raises NoMoreMessages when
        the consumer is closed. For those who want batches; ``async for`` is simpler."""
        return await self._readable().take_some(count)

    def give_back(self, messages: Sequence[Delivery]) -> None:
        """Messages that were taken and are not dealt with: they are the next ones again."""
        if self._running is not None:
            for message in reversed(messages):
                if message.wanted:
                    self._running.ready.give_back(message)

    def _readable(self) -> ReadyMessages:
        running = self._started()
        if not running.closing:
            running.instance.check_usable("PushConsumer", running.member)
        if self._handler is not None:
            raise ConfigError("this PushConsumer has a handler, which gets the messages; iterate over one without")
        return running.ready

    def _started(self) -> _Running:
        if self._running is None:
            raise NotStartedError(
                "this PushConsumer is not started; use `async with PushConsumer(...)` or `await consumer.start()`"
            )
        return self._running

    # --- joining -------------------------------------------------------------------------------------------------------------

    def _subscribe(self, topic: str, tags: str) -> None:
        fault = topic_fault(topic)
        if fault is not None:
            raise ConfigError(fault)
        self._subscriptions[topic] = tag_subscription(topic, tags, self._surroundings.clock.now_ms())

    def consumer_data(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        where = self._consume_from
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere(
                where.value if isinstance(where, ConsumeFrom) else ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
            ),
            subscription_data_set=tuple(subscription.data() for subscription in self._subscriptions.values()),
        )

    async def _find_topics(self, instance: ClientInstance) -> None:
        for topic in list(self._subscriptions):
            try:
                await instance.routes.get(topic)
            except RouteNotFoundError:
                if not instance.routes.name_server_answers:
                    raise  # else it is waited for: the first rebalance says so
        await instance.introduce_all()

    # --- getting and losing queues -------------------------------------------------------------------------------------------

    async def apply(self, change: Change) -> bool:
        """Make a rebalance real; False if a gained queue could not be begun yet."""
        await asyncio.gather(*(self._lose(queue) for queue in change.lost))
        return all(await asyncio.gather(*(self._gain(queue) for queue in change.gained)))

    def assigned_of(self, topic: str) -> Collection[MessageQueue]:
        """Our queues of one topic."""
        return [queue for queue in self._assigned if queue.topic == topic]

    async def _gain(self, queue: MessageQueue) -> bool:
        running = self._started()
        try:
            offset, known = await running.offsets.starting_offset(queue, self._consume_from)
        except RemotingError as error:
            log.warning("queue not begun yet queue=%s group=%s cause=%s", queue, self.group, error)
            return False
        if running.closing or queue in self._assigned:
            return True
        self._begin(queue, offset, offset if known else None)
        return True

    def _begin(self, queue: MessageQueue, offset: int, known_offset: int | None) -> None:
        running = self._started()
        subscription = self._subscriptions[queue.topic]
        assigned = AssignedQueue(running.instance, self.group, subscription, running.ready, queue, offset, on_moved=self._moved)
        assigned.sent_offset = known_offset
        self._assigned[queue] = assigned
        assigned.start()

    async def _lose(self, queue: MessageQueue) -> None:
        assigned = self._assigned.pop(queue, None)
        if assigned is not None:
            assigned.drop()
            await self._commit(assigned, acknowledged=True)

    def _moved(self, assigned: AssignedQueue, offset: int) -> None:
        """The broker has other offsets than we thought: go on where it says. RocketMQ: code 21, ``OFFSET_ILLEGAL``."""
        if self._assigned.get(assigned.queue) is assigned:
            assigned.drop()
            self._begin(assigned.queue, offset, None)

    # --- committing ----------------------------------------------------------------------------------------------------------

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now instead of at the next five seconds. ``acknowledged``: wait until they have it."""
        await asyncio.gather(*(self._commit(queue, acknowledged=acknowledged) for queue in list(self._assigned.values())))

    async def _commit(self, assigned: AssignedQueue, *, acknowledged: bool) -> None:
        offset = assigned.commit_offset
        if offset == assigned.sent_offset:
            return
        try:
            await self._started().offsets.commit(assigned.queue, offset, acknowledged=acknowledged)
            assigned.sent_offset = offset
        except RemotingError as error:
            # Every 5 s while a broker is away, and the pull has said so already: only the last one, at a close, is news.
            level = logging.WARNING if acknowledged else logging.DEBUG
            log.log(level, "offset not committed queue=%s offset=%d cause=%s", assigned.queue, offset, error)


class _Running:
    """What exists from start to close."""

    def __init__(self, consumer: PushConsumer, instance: ClientInstance, member: Member) -> None:
        self.instance = instance
        self.member = member
        self.ready = ReadyMessages()
        self.offsets = OffsetStore(instance, consumer.group)
        self.tasks: list[asyncio.Task[None]] = []
        self.closing = False
        self.closed = asyncio.Event()
        self.balancer = Balancer(
            instance,
            consumer.group,
            lambda: list(consumer._subscriptions),
            consumer._strategy,
            assigned=consumer.assigned_of,
            apply=consumer.apply,
        )
        self.handlers = None
        if consumer._handler is not None:
            self.handlers = HandlerPool(consumer._handler, self.ready, concurrency=consumer._concurrency)
        self._consumer = consumer
        member.on_group_change = self._group_changed
        member.on_route_change = self._route_changed
        member.on_disconnect = self._disconnected

    def _group_changed(self) -> None:
        """Somebody may be about to take over queues of ours: what is done shall not be done again."""
        if not self.closing:
            self.instance.spawn(self._consumer.commit(), name="commit")
            self.balancer.wake()

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._consumer._subscriptions:
            self.balancer.wake()

    def _disconnected(self, address: str) -> None:
        """A broker that was killed may have lost the last seconds of offsets: tell it again."""
        for assigned in self._consumer._assigned.values():
            if self.instance.routes.address_of(assigned.queue.broker_name, topic=assigned.queue.topic) == address:
                assigned.sent_offset = None
