"""A push consumer while it runs: what it is made of from start to close, and in which order that
begins and ends.

One rule: it hears of its group, its routes and its connections from the instance it has joined. It
must not know its user's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from turbopump.client.consumer.assignment import Assignment
from turbopump.client.consumer.broker_division import BrokerDivision
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.delivery_policy import Membership
from turbopump.client.consumer.group_consumer import RunningConsumer, consume_directly
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.local_offsets import LocalOffsets, default_directory
from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.consumer.rebalance import Balancer, QueueChange
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import PushConsumerSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.client.tracing import Tracing
from turbopump.message.handles import pop_retry_topic
from turbopump.message.properties import RETRY_TOPIC
from turbopump.protocol.requests.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo


class RunningPush(RunningConsumer):
    """``ready``: what waits to be handled. ``subscriptions``: by topic, as they are at any time.
    ``tracing`` None: nothing is traced. ``concurrency``: handler calls at once."""

    what = "PushConsumer"

    def __init__(
        self,
        instance: ClientInstance,
        member: InstanceMember,
        settings: PushConsumerSettings,
        subscriptions: MutableMapping[str, Subscription],
        tracing: Tracing | None,
        *,
        concurrency: int,
    ) -> None:
        group, namespace = member.group, settings.namespace
        self.closed = asyncio.Event()
        self._subscriptions = subscriptions
        self._concurrency, self._namespace = concurrency, namespace
        self._ordered, self._consume_timeout = settings.ordered, settings.consume_timeout
        self.consumption = Consumption(
            asyncio.get_running_loop().time, tracing.of_consumer() if tracing is not None else None
        )
        self.ready = ReadyMessages(
            self.consumption.began, batch=settings.handler_batch, ordered=settings.ordered
        )
        self._offsets: OffsetStore | LocalOffsets = OffsetStore(instance, group)
        self._backs: SendBack | None = None
        if settings.broadcast:
            directory = Path(settings.offsets_directory or default_directory())
            self._offsets = LocalOffsets(
                self._offsets, directory, instance.client_id, group, settings.disk
            )
        else:
            self._backs = SendBack(instance, group, settings.max_reconsume_times, namespace)
        shared = Membership(
            instance, group, subscriptions, self.ready, self._backs, self.consumption, settings
        )
        self.assignment = Assignment(shared, self._offsets)
        balancer = Balancer(
            instance,
            group,
            lambda: list(subscriptions),
            None if settings.broadcast else settings.strategy,
            assigned=self.assignment.of_topic,
            apply=self.assignment.apply,
        )
        if settings.asks_brokers:
            balancer.divide = BrokerDivision(shared, self.assignment, balancer.divide).divide
        self.handlers: HandlerPool | None = None
        if settings.handler is not None:
            fate = None
            if settings.broadcast and not settings.ordered:
                fate = "is not delivered again (broadcasting)"
            self.handlers = HandlerPool(
                settings.handler, self.ready, concurrency=concurrency, fate=fate
            )
        super().__init__(instance, member, tracing, self.assignment, balancer)

    # --- life

    async def begin(self) -> None:
        """Take up this member's share of the queues, and handle what they hold from now on. Raises
        NotStartedError if it is closed."""
        await super().begin()
        if self.assignment.locks is not None:
            self._spawn(self.assignment.locks.keep(), "locks")
        if self.handlers is not None:
            self.handlers.start()
            if not self._ordered:
                late = self.handlers.give_back_late(self._consume_timeout)
                self._spawn(late, "late handlers")

    async def give_up(self, topic: str) -> None:
        """It is not consumed any more: what is done of its queues is committed, and they are left
        to others. In order, they are free when nobody handles a message of them, which is not
        waited for."""
        for name in (topic, pop_retry_topic(topic, self.member.group)):
            if name in self._subscriptions:
                self.assignment.stop(name)
                del self._subscriptions[name]
                await self.assignment.apply(QueueChange((), self.assignment.of_topic(name)))

    def is_handling(self, task: asyncio.Task[Any] | None, thread: int | None) -> bool:
        """Whether this task, or this thread, is one that calls the handler."""
        return self.handlers is not None and task is not None and self.handlers.has(task, thread)

    def resume(self) -> None:
        """Hand out messages and read them, after ``ready`` was paused."""
        self.ready.resume()
        self.assignment.look()

    async def close(self, timeout: float) -> None:
        """Stop pulling, let running handlers finish (``timeout`` seconds at most), commit, leave
        the group, whatever fails on the way."""
        for task in self._tasks:
            task.cancel()
        try:
            await self._finish(timeout)
        finally:
            await self.instance.leave(self.member)
            self.closed.set()

    async def _finish(self, timeout: float) -> None:
        self.assignment.stop()
        self.ready.close()
        if self.handlers is not None:
            await self.handlers.stop(timeout)
        if self._backs is not None:
            await self._backs.finish(timeout)
        # A handler in a thread cannot be stopped: what it popped stays invisible for its time.
        await self.assignment.close(timeout, give_back_taken=self.handlers is None)
        if isinstance(self._offsets, LocalOffsets):
            await self._offsets.close()
        if self._tracing is not None:
            await self._tracing.close()

    # --- what an operator asks

    def _running_info(self) -> ConsumerRunningInfo:
        return self._info_with(
            concurrency=self._concurrency if self.handlers is None else self.handlers.concurrency,
            ordered=self._ordered,
            statuses=self.consumption.statuses(),
        )

    async def _consume_directly(self, message: Delivery) -> ConsumeMessageDirectlyResult:
        if self.handlers is None:
            return await super()._consume_directly(message)
        message.topic = unwrap(self._namespace, message.properties.get(RETRY_TOPIC, message.topic))
        clock = self.instance.environment.clock
        return await consume_directly(message, self.handlers.call, clock, ordered=self._ordered)
