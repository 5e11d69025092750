"""A lite pull consumer while it runs: what it is made of from start to close, and in which order
that begins and ends.

One rule: it hears of its group, its routes and its connections from the instance it has joined. It
must not know its user's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from turbopump.client.allocation import Strategy
from turbopump.client.consuming.offset_store import ConsumeFrom, OffsetStore
from turbopump.client.consuming.prefetching import Limits, Prefetching
from turbopump.client.consuming.queue_listeners import QueueListeners
from turbopump.client.consuming.rebalance import Balancer, Change
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.heartbeat import Member
from turbopump.client.instance import ClientInstance
from turbopump.client.operating.operated_consumers import OperatedLitePull
from turbopump.client.routes import TopicRoute
from turbopump.client.traces.tracing import Tracing
from turbopump.errors import NotStartedError
from turbopump.message.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class LitePullSettings:
    """As its user gave them, checked: see ``LitePullConsumer``."""

    consume_from: ConsumeFrom | datetime
    auto_commit: bool
    limits: Limits
    strategy: Strategy
    namespace: str | None


class RunningLitePull:
    """``subscriptions``: by topic, as they are at any time. ``divided_topics``: those whose queues
    the group divides, as brokers know them. ``tracing`` None: nothing is traced."""

    def __init__(
        self,
        instance: ClientInstance,
        member: Member,
        settings: LitePullSettings,
        subscriptions: Mapping[str, Subscription],
        divided_topics: Callable[[], Sequence[str]],
        listeners: QueueListeners,
        tracing: Tracing | None,
    ) -> None:
        assert member.consumer is not None
        self.instance = instance
        self.member = member
        self.closing = False
        self.traces = tracing.of_consumer() if tracing is not None else None
        self.offsets = OffsetStore(instance, member.group)
        self.prefetching = Prefetching(
            *(
                instance,
                member.group,
                subscriptions,
                settings.consume_from,
                self.offsets,
                settings.limits,
            ),
            auto_commit=settings.auto_commit,
            namespace=settings.namespace,
        )
        self.balancer = Balancer(
            *(instance, member.group, divided_topics, settings.strategy),
            assigned=self.prefetching.of_topic,
            apply=self.prefetching.apply,
        )
        self._divided_topics = divided_topics
        self._listeners = listeners
        self._tracing = tracing
        self._tasks: list[asyncio.Task[None]] = []
        member.operated = OperatedLitePull(
            self.prefetching,
            member.consumer,
            instance.routes.name_servers,
            instance.environment.clock,
        )
        member.on_group_change = self._group_changed
        member.on_route_change = self._route_changed
        member.on_disconnect = self.prefetching.told_nothing

    # --- life
    # ----------------------------------------------------------------------------------------------

    async def prepare(self, topics: Collection[str]) -> None:
        """Learn the routes of ``topics``. Raises RouteNotFoundError if no name server answers."""
        if self._tracing is not None:
            await self._tracing.start()
        await self.instance.routes.find(list(topics))
        self._spawn(self._listeners.run(self.instance), "queue listeners")

    async def begin(self, named: Sequence[MessageQueue] | None) -> None:
        """Take up the queues that are named or, with None, this member's share, and pull ahead from
        now on. Raises NotStartedError if it is closed."""
        if self.closing:
            complete = False
        elif named is not None:
            complete = await self.prefetching.apply(Change(named, ()))
        else:
            complete = await self.balancer.balance()
        if self.closing:
            raise NotStartedError(
                "this LitePullConsumer was closed while it was started; start a new one"
            )
        self._spawn(self.balancer.run(complete=complete), "balancer")
        self._spawn(self.prefetching.commit_for_ever(), "commits")

    async def close(self) -> None:
        """Commit what is to be committed, and leave the group, whatever fails on the way."""
        for task in self._tasks:
            task.cancel()
        self.prefetching.close()
        try:
            await self.prefetching.commit(final=True)
            self._listeners.close()
            if self._tracing is not None:
                await self._tracing.close()
        finally:
            await self.instance.leave(self.member)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self.instance.spawn(work, name=name))

    # --- what it hears
    # ----------------------------------------------------------------------------------------------

    def _group_changed(self) -> None:
        """Somebody may be about to take over queues of ours: what is done shall not be read
        again."""
        if not self.closing:
            self.instance.spawn(self.prefetching.commit(), name="commit")
            self.balancer.wake()

    def _route_changed(self, route: TopicRoute) -> None:
        self._listeners.route_changed(route)
        if route.topic in self._divided_topics():
            self.balancer.wake()
