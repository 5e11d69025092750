"""Base classes of a group's consumers. They hold a consumer's subscriptions, and its parts from
start to close.

One rule: a running consumer is informed of changes to group, routes and connections by its client
instance. This module must not know how messages are read.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from datetime import datetime
from traceback import format_exception_only
from typing import Any, ClassVar, Generic, TypeVar

from turbopump.client.consumer.delivery import Delivery, is_retry
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.queue_table import QueueTable
from turbopump.client.consumer.rebalance import Balancer
from turbopump.client.consumer.settings import SubscriberSettings
from turbopump.client.consumer.subscription import Wanted, first_subscriptions, topic_subscription
from turbopump.client.heartbeat import InstanceMember, Operated
from turbopump.client.instance import ClientInstance
from turbopump.client.lifecycle import InContext, Lifecycle
from turbopump.client.operator_requests import running_info
from turbopump.client.producer import Producer
from turbopump.client.settings import ClientSettings
from turbopump.client.shared_instances import join_instance
from turbopump.client.tracing import Tracing, trace_topic
from turbopump.clock import Clock
from turbopump.errors import NotStartedError
from turbopump.protocol.requests import clients, consumers


class RunningMember(ABC):
    """Running consumer of a group, from its start to its close."""

    def __init__(self, instance: ClientInstance, member: InstanceMember) -> None:
        self.instance = instance
        self.member = member
        self.closing = False

    async def prepare(self, topics: Collection[str]) -> None:
        """Fetch the routes of ``topics``. Raises RouteNotFoundError if no name server answers."""
        await self.instance.routes.find_routes(list(topics))

    async def begin_consuming(self) -> None:  # noqa: B027 - a simple consumer has nothing to begin
        """Start to consume messages. By default this does nothing, for consumers that read only on
        request."""

    @abstractmethod
    async def close(self) -> None:
        """Leave the group. A failure in one part of the close does not skip the other parts."""


RunningT = TypeVar("RunningT", bound=RunningMember)


class GroupConsumer(InContext, Generic[RunningT]):
    """Base class of the consumers with subscriptions. Each is a member of a group.

    ``_group`` and the topics in ``_subscriptions`` are the names that brokers know.
    """

    def __init__(self, settings: SubscriberSettings) -> None:
        self._settings = settings
        self.group = settings.group
        self._group = settings.wire_group
        self._namespace = settings.namespace
        self._environment = settings.environment()
        self._subscriptions = first_subscriptions(
            self._namespace, settings.topic, settings.tags, self._environment.clock.now_ms()
        )

    lifecycle: Lifecycle[RunningT]

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client. Raises NotStartedError before ``start``."""
        return self.lifecycle.ready().instance.client_id

    @abstractmethod
    def consumer_data(self) -> clients.ConsumerData:
        """Return this consumer's entry in the heartbeats to brokers."""

    @abstractmethod
    def _make_running(
        self, instance: ClientInstance, member: InstanceMember, settings: ClientSettings
    ) -> RunningT:
        """Create the running consumer. It exists from the start to the close.

        ``settings`` are those with which the client joined ``instance``.
        """

    def _join_instance(self, member: InstanceMember) -> tuple[ClientSettings, ClientInstance]:
        """Add ``member`` to a client instance.

        Return the settings that identify the instance, and the instance.
        """
        return self._settings, join_instance(self._settings, self._environment, member)

    async def _start(self) -> None:
        """Join the group and start to consume messages.

        If the start fails, the member leaves its client instance again.
        """
        member = InstanceMember(self._group, consumer=self.consumer_data)
        settings, instance = self._join_instance(member)
        try:
            running = self.lifecycle.running = self._make_running(instance, member, settings)
        except BaseException:
            await instance.leave(member)
            raise
        try:
            await running.prepare(self._subscriptions)
            await instance.introduce_all()
            await running.begin_consuming()
        except BaseException:
            await self.lifecycle.undo_start()
            raise

    def _tracing(self, settings: ClientSettings, trace: bool | str) -> Tracing | None:
        """Return the tracing of this consumer's messages, or None if ``trace`` is off."""
        topic = trace_topic(trace)
        if topic is None:
            return None
        return Tracing(
            Producer,
            settings,
            self._environment,
            group=self.group,
            topic=topic,
            namespace=self._namespace,
            kind="CONSUME",
        )

    def _subscribe(self, topic: str, tags: Wanted) -> None:
        subscription = topic_subscription(
            self._namespace, topic, tags, self._environment.clock.now_ms()
        )
        self._subscriptions[subscription.topic] = subscription

    def _data(
        self,
        kind: clients.ConsumeType,
        where: ConsumeFrom | datetime,
        model: clients.MessageModel = clients.MessageModel.CLUSTERING,
        **further: Any,
    ) -> clients.ConsumerData:
        """Return this consumer's entry in the heartbeats to brokers."""
        from_where = clients.ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        if isinstance(where, ConsumeFrom):
            from_where = clients.ConsumeFromWhere(where.value)
        return clients.ConsumerData(
            group_name=self._group,
            consume_type=kind,
            consume_from_where=from_where,
            subscription_data_set=tuple(one.data() for one in self._subscriptions.values()),
            message_model=model,
            **further,
        )


class RunningConsumer(RunningMember):
    """Running consumer with assigned queues, from its start to its close.

    ``tracing`` is None if messages are not traced.
    """

    what: ClassVar[str]
    """Name of the consumer's class, for error messages."""

    def __init__(
        self,
        instance: ClientInstance,
        member: InstanceMember,
        tracing: Tracing | None,
        table: QueueTable[Any],
        balancer: Balancer,
    ) -> None:
        super().__init__(instance, member)
        self.balancer = balancer
        self._tracing = tracing
        self._table = table
        self._tasks: list[asyncio.Task[None]] = []
        self._started_ms = instance.environment.clock.now_ms()
        member.operated = Operated(
            table.done_offsets, table.reset, self._running_info, self._consume_directly
        )
        member.on_group_change = self._group_changed
        member.on_route_change = balancer.route_changed
        member.on_disconnect = table.disconnected

    async def prepare(self, topics: Collection[str]) -> None:
        if self._tracing is not None:
            await self._tracing.start()
        await super().prepare(topics)

    async def begin_consuming(self) -> None:
        """Assign queues to this member and start reading them.

        Raises NotStartedError if the consumer is closed meanwhile.
        """
        complete = not self.closing and await self._first_queues()
        if self.closing:
            raise NotStartedError(f"this {self.what} was closed during its start; start a new one")
        self._spawn(self.balancer.run(complete=complete), "balancer")
        self._spawn(self._table.commit_for_ever(), "commits")

    async def _first_queues(self) -> bool:
        """Assign this member's share of the queues. Return False if a queue is not available
        yet."""
        return await self.balancer.balance()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a background task that runs until the close."""
        self._tasks.append(self.instance.spawn(work, name=name))

    def _group_changed(self) -> None:
        """React to a change of the group's members: commit offsets, and divide the queues again.

        Without the commit, the next owner of a queue would read finished messages again.
        """
        if not self.closing:
            self.instance.spawn(self._table.commit(), name="commit")
            self.balancer.wake()

    def _running_info(self) -> consumers.ConsumerRunningInfo:
        """Return the settings and queues of this consumer, for an operator.

        RocketMQ: a lite pull consumer keeps no statistics.
        """
        return self._info_with(concurrency=0, ordered=False, statuses={})

    def _info_with(
        self, *, concurrency: int, ordered: bool, statuses: Mapping[str, consumers.ConsumeStatus]
    ) -> consumers.ConsumerRunningInfo:
        assert self.member.consumer is not None
        return running_info(
            self.instance.routes.name_servers,
            self.member.consumer(),
            self._table.infos(),
            concurrency=concurrency,
            ordered=ordered,
            started_ms=self._started_ms,
            statuses=statuses,
        )

    async def _consume_directly(self, _message: Delivery) -> consumers.ConsumeMessageDirectlyResult:
        """Answer an operator who wants this consumer to handle a message now.

        This default answer says that the consumer has no handler.
        """
        return consumers.ConsumeMessageDirectlyResult(
            consume_result=consumers.ConsumeResult.CR_THROW_EXCEPTION,
            remark=f"this {self.what} has no handler, so it cannot handle a message directly",
        )


class _Nobody:
    """Stand-in for a queue: owner of a message that an operator has sent.

    ``wanted_again`` is True once the handler has called ``retry``.
    """

    dropped = False
    wanted_again = False

    def delivery_done(self, message: Delivery) -> None:
        pass

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        self.wanted_again = True

    def delivery_abandoned(self, message: Delivery) -> None:
        pass


async def consume_directly(
    message: Delivery, call: Callable[[Delivery], Awaitable[object]], clock: Clock, *, ordered: bool
) -> consumers.ConsumeMessageDirectlyResult:
    """Handle a message from an operator with ``call``, without committing an offset.

    Exceptions of ``call`` become part of the result.

    Source: apache/rocketmq ``ConsumeMessageConcurrentlyService.consumeMessageDirectly``.
    """
    owner = _Nobody()
    message.deliver(owner, message.reconsume_times + 1)
    started = clock.monotonic()
    remark = None
    try:
        returned = await call(message)
    except Exception as error:
        result = consumers.ConsumeResult.CR_THROW_EXCEPTION
        remark = "".join(format_exception_only(error)).strip()
    else:
        result = consumers.ConsumeResult.CR_SUCCESS
        if owner.wanted_again or is_retry(returned):
            result = consumers.ConsumeResult.CR_LATER
    spent = int((clock.monotonic() - started) * 1000)
    return consumers.ConsumeMessageDirectlyResult(
        order=ordered, consume_result=result, remark=remark, spent_time_mills=spent
    )
