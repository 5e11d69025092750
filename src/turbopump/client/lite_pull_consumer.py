"""Lite pull consumer. The user polls for messages, and can seek to any offset.

Either the group divides the queues among its members, or the user names the queues. One rule:
reading starts at the group's offset, leaves no gap and never goes back, except after a seek or a
reset. This file holds the consumer's start, close and user calls. It must not know how a queue is
pulled. Source: apache/rocketmq ``DefaultLitePullConsumer``, ``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Final

from turbopump.client.consumer.group_consumer import GroupConsumer, RunningConsumer
from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.prefetching import PrefetchedQueue, Prefetching
from turbopump.client.consumer.queue_listeners import QueueListener, QueueListeners
from turbopump.client.consumer.queue_table import QueueChange
from turbopump.client.consumer.rebalance import Balancer
from turbopump.client.consumer.settings import LitePullConsumerSettings
from turbopump.client.consumer.subscription import ALL, Subscription, Wanted, subscription_to
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.instrumentation import receiving
from turbopump.client.lifecycle import Lifecycle
from turbopump.client.namespace import unwrapped, wrap, wrapped
from turbopump.client.setting_rules import OFFSET, SettingRule, is_number, whole_from
from turbopump.client.settings import ClientSettings, keywords_of
from turbopump.client.times import Time, as_ms
from turbopump.client.topic_route import TopicRoute
from turbopump.client.tracing import Tracing
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.clients import ConsumerData, ConsumeType

POLL_TIMEOUT_S: Final = 5.0
POLL_BATCH: Final = 32
_POLL_TIMEOUT: Final = SettingRule(
    lambda value: is_number(value) and value <= float("inf"),
    "must be a number of seconds (inf: without end)",
)
_MESSAGES: Final = whole_from(1)


class LitePullConsumer(GroupConsumer["RunningLitePull"]):
    """Consumer that delivers messages only on request, through ``poll``.

    Use it as ``async with LitePullConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:``
    and then ``await consumer.poll()``. The keywords are the fields of ``LitePullConsumerSettings``;
    docs/reference/client-settings.md explains them. Call ``assign`` to name the queues instead of
    subscribing to topics. Raises ConfigError for unusable settings.

    Every method may raise NotStartedError. Methods that ask a broker may raise a RemotingError or
    RouteNotFoundError. Call ``poll`` from one task only.
    """

    _settings: LitePullConsumerSettings

    @keywords_of(LitePullConsumerSettings)
    def __init__(self, settings: LitePullConsumerSettings) -> None:
        super().__init__(settings)
        self._named: list[MessageQueue] | None = None
        """Queues passed to ``assign``, under the names that brokers know. None if the group assigns
        queues by subscription."""
        self._listeners = QueueListeners(self._namespace)
        self.lifecycle: Lifecycle[RunningLitePull] = Lifecycle("LitePullConsumer")

    # --- start and close

    async def start(self) -> None:
        """Join the group and start to prefetch messages.

        Topics and queues may be added later. A topic that does not exist yet is no error.

        Raises RouteNotFoundError if no name server answers, and NotStartedError if the consumer is
        closed before or during the start. A start that fails or is cancelled leaves the group, and
        may be called again.
        """
        if self.lifecycle.may_start():
            await self._start()

    async def close(self) -> None:
        """Commit offsets and leave the group. A second call is harmless.

        With ``auto_commit`` all polled messages are committed, except those of the last poll.
        Without ``auto_commit`` only offsets passed to ``commit`` are sent, if the brokers do not
        have them yet.
        """
        await self.lifecycle.close_once()

    # --- subscriptions and queues

    async def subscribe(self, topic: str, tags: Wanted = ALL) -> None:
        """Subscribe to ``topic``, or change the tags of its subscription.

        This method may be called before and after ``start``. Raises ConfigError after ``assign``.
        """
        before = self._subscriptions.get(wrap(self._namespace, topic))
        self._subscribe(topic, tags)
        if self.lifecycle.running is None:
            return
        running = self.lifecycle.ready()
        if before is not None:  # prefetched messages were filtered by the old tags
            ours = list(running.prefetching.of_topic(before.topic))
            await running.prefetching.apply(QueueChange(ours, ours))
        await running.instance.introduce_all()
        running.balancer.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading ``topic`` and remove its subscription. An unknown topic is no error."""
        topic = wrap(self._namespace, topic)
        if (
            self._named is not None
            or self._subscriptions.pop(topic, None) is None
            or self.lifecycle.running is None
        ):
            return
        running = self.lifecycle.ready()
        await running.prefetching.release_topic(topic)
        await running.instance.introduce_all()

    async def assign(self, queues: Collection[MessageQueue], tags: Wanted = ALL) -> None:
        """Read exactly these queues, even if other members of the group read them too.

        This method may be called before and after ``start``. Raises ConfigError after
        ``subscribe``.
        """
        if self._named is None and self._subscriptions:
            raise ConfigError(
                "this LitePullConsumer subscribes, so the group divides the queues; make another "
                "one to assign queues"
            )
        named = [wrapped(self._namespace, queue) for queue in queues]
        now = self._environment.clock.now_ms()
        subscriptions = {queue.topic: subscription_to(queue.topic, tags, now) for queue in named}
        before = {
            topic: subscription.expression for topic, subscription in self._subscriptions.items()
        }
        changed = {
            topic
            for topic, new in subscriptions.items()
            if before.get(topic, new.expression) != new.expression
        }
        self._named = named
        self._subscriptions.clear()
        self._subscriptions.update(subscriptions)
        if self.lifecycle.running is None:
            return
        running = self.lifecycle.ready()
        ours = running.prefetching.queues
        lost = [queue for queue in ours if queue not in named or queue.topic in changed]
        await running.prefetching.apply(
            QueueChange([queue for queue in named if queue not in ours or queue in lost], lost)
        )
        await running.instance.introduce_all()

    @property
    def assigned(self) -> list[MessageQueue]:
        """Queues assigned to this consumer now, sorted."""
        running = self.lifecycle.running
        if running is None:
            return []
        return sorted(unwrapped(self._namespace, queue) for queue in running.prefetching.queues)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted."""
        route = await self.lifecycle.ready().instance.routes.refresh(wrap(self._namespace, topic))
        return [unwrapped(self._namespace, queue) for queue in route.subscribe_queues]

    async def on_queue_change(self, topic: str, listener: QueueListener) -> None:
        """Call ``listener(topic, queues)`` whenever the set of readable queues of ``topic``
        changes.

        The consumer checks every 30 s. This method may be called before and after ``start``. A
        listener that is a plain function runs in a thread.
        """
        await self._listeners.add_listener(wrap(self._namespace, topic), listener)

    # --- reading

    async def poll(
        self, timeout: float = POLL_TIMEOUT_S, *, max_messages: int = POLL_BATCH
    ) -> list[ReceivedMessage]:
        """Wait for at least one message, and return at most ``max_messages``.

        The list is empty if no message arrives within ``timeout`` seconds, or the consumer is
        closed. Messages of one queue arrive in order. With ``auto_commit`` this call marks the
        messages of the previous poll as done.
        """
        _POLL_TIMEOUT.check("timeout", timeout)
        _MESSAGES.check("max_messages", max_messages)
        running = self.lifecycle.ready()
        with receiving(self.group) as messages:
            messages += await running.prefetching.poll(max_messages, timeout)
        if messages and running.traces is not None:
            running.traces.polled(messages)
        return messages

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of the next message that ``poll`` returns from ``queue``.

        Raises ConfigError if the queue is not assigned to this consumer or has no such offset.
        """
        OFFSET.check("offset", offset)
        self._assigned_queue(queue)
        store = self.lifecycle.ready().offsets
        wire = wrapped(self._namespace, queue)
        first = await store.min_offset(wire)
        end = await store.max_offset(wire)
        if not first <= offset <= end:
            raise ConfigError(
                f"offset={offset} is outside of {queue}, which has {first} to {end} (its end)"
            )
        self._assigned_queue(queue).seek(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue to read the queue at its oldest message.

        Raises ConfigError if the queue is not assigned to this consumer.
        """
        offsets = self.lifecycle.ready().offsets
        wire = self._assigned_queue(queue).queue
        self._assigned_queue(queue).seek(await offsets.min_offset(wire))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue to read the queue after its newest message.

        Raises ConfigError if the queue is not assigned to this consumer.
        """
        offsets = self.lifecycle.ready().offsets
        wire = self._assigned_queue(queue).queue
        self._assigned_queue(queue).seek(await offsets.max_offset(wire))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Stop returning messages of these queues until ``resume`` is called.

        Prefetched messages are kept. Raises ConfigError if a queue is not assigned to this
        consumer.
        """
        for prefetched in [self._assigned_queue(queue) for queue in queues]:
            prefetched.paused = True

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Return messages of these queues again, after ``pause``.

        Raises ConfigError if a queue is not assigned to this consumer.
        """
        for prefetched in [self._assigned_queue(queue) for queue in queues]:
            prefetched.paused = False
        self.lifecycle.ready().prefetching.wake_polls()

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that ``poll`` returns from the queue.

        The result is None until the group's offset is known. Raises ConfigError if the queue is not
        assigned to this consumer.
        """
        return self._assigned_queue(queue).position

    # --- offsets

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, acknowledged: bool = True
    ) -> None:
        """Commit all polled messages, or the given offsets of queues.

        - ``offsets``: offset of the next message to read, by queue.
        - ``acknowledged``: wait until the brokers have stored the offsets. Otherwise the offsets
          are sent without waiting, and sent again at ``close`` if necessary.

        Raises ConfigError for a queue that is not assigned to this consumer, for an offset before
        finished messages, and for an offset beyond polled messages. Use ``seek`` for such offsets.
        """
        prefetching = self.lifecycle.ready().prefetching
        if offsets is None:
            chosen = [self._assigned_queue(queue) for queue in self.assigned]
            for prefetched in chosen:
                prefetched.settle_polled()
        else:
            chosen = [self._assigned_queue(queue) for queue in offsets]
            for prefetched, (queue, offset) in zip(chosen, offsets.items(), strict=True):
                OFFSET.check("offset", offset)
                if prefetched.next_offset is not None and offset > prefetched.next_offset:
                    raise ConfigError(
                        f"{queue} was read up to {prefetched.next_offset}; "
                        f"offset={offset} is beyond: use seek"
                    )
                if prefetched.done_offset is not None and offset < prefetched.done_offset:
                    raise ConfigError(
                        f"{queue} is done up to {prefetched.done_offset}; offset={offset} "
                        "is before that: use seek"
                    )
            for prefetched, offset in zip(chosen, offsets.values(), strict=True):
                prefetched.done_offset = offset
        await prefetching.commit_these(chosen, acknowledged=acknowledged)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset in this queue, as stored at the broker. The next
        message has this offset.

        The result is None if the group has committed no offset.
        """
        return await (await self._offsets_of(queue)).committed(wrapped(self._namespace, queue))

    async def offset_for_time(self, queue: MessageQueue, when: Time) -> int:
        """Search a queue for the first message stored at or after ``when``. Return the message's
        offset.

        ``when`` is in ms since 1970 UTC, or a datetime.
        """
        return await (await self._offsets_of(queue)).offset_at(
            wrapped(self._namespace, queue), as_ms(when)
        )

    # --- internals

    def _assigned_queue(self, queue: MessageQueue) -> PrefetchedQueue:
        found = self.lifecycle.ready().prefetching.find_queue(wrapped(self._namespace, queue))
        if found is None:
            ours = ", ".join(map(str, self.assigned)) or "none"
            raise ConfigError(
                f"{queue} is not assigned to this consumer at the moment; its queues: {ours}"
            )
        return found

    async def _offsets_of(self, queue: MessageQueue) -> OffsetStore:
        running = self.lifecycle.ready()
        await running.instance.routes.get(wrap(self._namespace, queue.topic))
        return running.offsets

    def _subscribe(self, topic: str, tags: Wanted) -> None:
        if self._named is not None:
            raise ConfigError(
                "this LitePullConsumer has queues assigned by name; make another one to subscribe"
            )
        super()._subscribe(topic, tags)

    def consumer_data(self) -> ConsumerData:
        return self._data(ConsumeType.CONSUME_ACTIVELY, self._settings.consume_from)

    def _make_running(
        self, instance: ClientInstance, member: InstanceMember, settings: ClientSettings
    ) -> RunningLitePull:
        return RunningLitePull(
            instance,
            member,
            self._settings,
            self._subscriptions,
            lambda: self._named,
            self._listeners,
            self._tracing(settings, self._settings.trace),
        )


class RunningLitePull(RunningConsumer):
    """State of a lite pull consumer from start to close.

    - ``subscriptions``: current subscriptions by topic.
    - ``named``: returns the queues passed to ``assign``. The result is None if the group divides
      the queues of its topics.
    - ``tracing``: None if nothing is traced.
    """

    what = "LitePullConsumer"

    def __init__(
        self,
        instance: ClientInstance,
        member: InstanceMember,
        settings: LitePullConsumerSettings,
        subscriptions: MutableMapping[str, Subscription],
        named: Callable[[], Sequence[MessageQueue] | None],
        listeners: QueueListeners,
        tracing: Tracing | None,
    ) -> None:
        self._named = named
        self._subscriptions = subscriptions
        self.traces = tracing.of_consumer() if tracing is not None else None
        self.offsets = OffsetStore(instance, member.group)
        self.prefetching = Prefetching(
            instance, member.group, subscriptions, self.offsets, settings
        )
        balancer = Balancer(
            instance, member.group, self._divided_topics, settings.strategy, self.prefetching
        )
        self._listeners = listeners
        super().__init__(instance, member, tracing, self.prefetching, balancer)
        member.on_route_change = self._route_changed

    async def prepare(self, topics: Collection[str]) -> None:
        await super().prepare(topics)
        self._spawn(self._listeners.run(self.instance), "queue listeners")

    def _divided_topics(self) -> Sequence[str]:
        """Return the topics whose queues are divided among the members of the group."""
        if self._named() is not None:
            return ()
        return list(self._subscriptions)

    async def _first_queues(self) -> bool:
        named = self._named()
        if named is None:
            return await super()._first_queues()
        return await self.prefetching.apply(QueueChange(named, ()))

    async def close(self) -> None:
        """Commit the offsets, then leave the group. A failed commit does not keep the consumer in
        the group."""
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

    def _route_changed(self, route: TopicRoute) -> None:
        self._listeners.route_changed(route)
        self.balancer.route_changed(route)
