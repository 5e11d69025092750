"""Push consumer: a group member that gets its share of the messages through ``async for`` or a
handler.

One rule: an offset is committed only when every message before it is done. A message that is not
done is delivered again, to this member or another. This file holds a consumer's start, delivery and
close. It must not know how queues are assigned and lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.delivery_policy import ConsumerContext
from turbopump.client.consumer.group_consumer import (
    GroupConsumer,
    RunningConsumer,
    consume_directly,
)
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.local_offsets import LocalOffsets, default_directory
from turbopump.client.consumer.offsets import ConsumeFrom, OffsetStore
from turbopump.client.consumer.queue_table import Assignment
from turbopump.client.consumer.ready_messages import MessageStream, ReadyMessages
from turbopump.client.consumer.rebalance import Balancer, BrokerDivision
from turbopump.client.consumer.send_back import INNER_PRODUCER, SendBack
from turbopump.client.consumer.settings import CONCURRENCY, PushConsumerSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import ALL, Subscription, Wanted
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.instrumentation import handler_with_telemetry, telemetry
from turbopump.client.lifecycle import Lifecycle
from turbopump.client.namespace import unwrap, unwrapped, wrap
from turbopump.client.request_reply import Replier
from turbopump.client.sending.send_result import SendResult
from turbopump.client.setting_rules import whole_from
from turbopump.client.settings import ClientSettings, keywords_of
from turbopump.client.shared_instances import join_broadcasting
from turbopump.client.tracing import Tracing
from turbopump.errors import ConfigError
from turbopump.message.handles import pop_retry_topic
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import RETRY_TOPIC
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.clients import ConsumerData, ConsumeType, MessageModel
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
)

__all__ = ["ConsumeFrom", "Delivery", "PushConsumer", "Retry"]


_COUNT: Final = whole_from(1, " of messages")


class PushConsumer(GroupConsumer["RunningPush"]):
    """Consumer that gets its group's messages delivered, through ``async for`` or a handler.

    Use it as ``async with PushConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:`` and
    then ``async for message in consumer:``, or pass a ``handler``. The keywords are the fields of
    ``PushConsumerSettings``; docs/reference/client-settings.md explains them. Two consumers of a
    group must not have the same ``instance_name`` and ``unit_name``. Raises ConfigError for
    unusable settings.

    A message is done when its handler returns (also None). With ``async for`` it is done when the
    loop asks for the next message; see docs/guide/consuming.md.
    """

    _settings: PushConsumerSettings

    @keywords_of(PushConsumerSettings)
    def __init__(self, settings: PushConsumerSettings) -> None:
        super().__init__(settings)
        self._concurrency = settings.concurrency
        self._started_ms = 0
        self._stopped = False
        self.lifecycle: Lifecycle[RunningPush] = Lifecycle("PushConsumer")

    # --- subscriptions

    async def subscribe(self, topic: str, tags: Wanted = ALL) -> None:
        """Subscribe to ``topic``, or change the tags of its subscription.

        All members of a group must have the same subscription, or messages are missed. This method
        may be called before and after ``start``. Raises ConfigError for an unusable topic or
        filter.
        """
        self._subscribe(topic, tags)
        if self.lifecycle.running is not None:
            running = self.lifecycle.ready()
            await running.instance.introduce_all()
            running.balancer.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic`` and remove its subscription. An unknown topic is no error.

        This method may be called before and after ``start``, also in a handler. The consumer
        releases the topic's queues at once and commits finished messages. Messages in handlers are
        delivered again to the next member that reads the queue. An ordered queue is released when
        its running handler ends; this method does not wait for that. Messages that failed before
        still arrive through the group's retry topic. All members of a group should unsubscribe
        together.
        """
        topic = wrap(self._namespace, topic)
        if self.lifecycle.running is None:
            self._subscriptions.pop(topic, None)
        elif topic in self._subscriptions:
            running = self.lifecycle.ready()
            await running.give_up(topic)
            await running.instance.introduce_all()

    @property
    def queues(self) -> list[MessageQueue]:
        """Queues assigned to this consumer now, sorted."""
        running = self.lifecycle.running
        queues = running.assignment.queues if running is not None else ()
        return sorted(
            unwrapped(self._namespace, queue)
            for queue in queues
            if not queue.topic.startswith(RETRY_PREFIX)
        )

    def statistics(self) -> dict[str, ConsumeStatus]:
        """Return statistics by topic for the last minute: times and rates of pulls and handling.

        docs/reference/statistics.md explains the numbers. Raises NotStartedError before ``start``.
        """
        statuses = self.lifecycle.started().consumption.statuses()
        return {unwrap(self._namespace, topic): status for topic, status in statuses.items()}

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client.

        Raises NotStartedError before ``start``.
        """
        return self.lifecycle.started().instance.client_id

    # --- start and close

    async def start(self) -> None:
        """Join the group and start to consume messages.

        The call returns after the first assignment of queues. A topic that does not exist yet is no
        error.

        Raises RouteNotFoundError if no name server answers, ConfigError without a subscription, and
        NotStartedError if the consumer is closed before or during the start. A start that fails or
        is cancelled leaves the group, and may be called again.
        """
        if not self.lifecycle.may_start():
            return
        if not self._subscriptions:
            raise ConfigError(
                "nothing to consume: give topic=… or call subscribe(topic) before start"
            )
        if not self._settings.broadcast:
            self._subscribe(RETRY_PREFIX + self.group, ALL)
        self._started_ms = self._environment.clock.now_ms()
        await self._start()

    def _join_instance(self, member: InstanceMember) -> tuple[ClientSettings, ClientInstance]:
        if self._settings.broadcast:
            return join_broadcasting(self._settings, self._environment, member)
        return super()._join_instance(member)

    def _make_running(
        self, instance: ClientInstance, member: InstanceMember, settings: ClientSettings
    ) -> RunningPush:
        running = RunningPush(
            instance,
            member,
            self._settings,
            self._subscriptions,
            self._tracing(settings, self._settings.trace),
            concurrency=self._concurrency,
        )
        if self._stopped:
            running.stop()
        return running

    async def close(self) -> None:
        """Stop pulling, wait for running handlers, commit offsets, and leave the group.

        The consumer waits at most ``close_timeout`` for handlers. A second call waits for the same
        close. If the caller is cancelled (``asyncio.wait_for``), the close continues. In a
        coroutine handler the call returns at once. The close then continues when the handler ends,
        and the handler's message is done.
        """
        await self._close(None)

    async def _close(self, thread: int | None) -> bool:
        """Close the consumer, and return True if the close is complete.

        If a handler is the caller, the result is False, because the close ends only after the
        handler. ``thread`` is the id of the calling thread, or None.
        """
        running = self.lifecycle.running
        in_handler = running is not None and running.is_handling(asyncio.current_task(), thread)
        await self.lifecycle.close_once(wait=not in_handler)
        return not in_handler

    def stop(self) -> None:
        """Deliver no more messages. The method does not wait, and may be called before ``start``.

        Loops over this consumer end after their current message, which is then done. Running
        handlers continue. The consumer stays in its group until ``close``. See ``stop_on_signals``.
        """
        self._stopped = True
        if self.lifecycle.running is not None:
            self.lifecycle.running.stop()

    async def wait_closed(self) -> None:
        """Wait until the consumer is closed. A program with a handler can wait here."""
        await self.lifecycle.started().closed.wait()

    def __aiter__(self) -> MessageStream:
        return MessageStream(self._readable())

    async def take(self, count: int) -> list[Delivery]:
        """Wait for messages, and return at least one and at most ``count`` of them.

        The caller settles each message with ``done()`` or ``retry()``. Use this method for batches;
        ``async for`` is simpler. Raises NoMoreMessages when the consumer is closed, and ConfigError
        for an unusable ``count``.
        """
        _COUNT.check("count", count)
        return await self._readable().take_some(count)

    def _begin_message(self) -> Delivery | None:
        """Return the next ready message without waiting. The blocking client uses this method.

        The result is None if no message is ready or the consumer has a handler. Any thread may call
        this method.
        """
        running = self.lifecycle.running
        if running is None or self._settings.handler is not None:
            return None
        message = running.ready.next_ready()
        assert message is None or isinstance(message, Delivery)
        return message

    def give_back(self, messages: Sequence[Delivery]) -> None:
        """Return unsettled messages to the front of the queue of ready messages."""
        running = self.lifecycle.running
        if running is not None:
            for message in reversed(messages):
                if not message.settled:
                    running.ready.give_back(message)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of concurrent handler calls. Running handlers continue.

        Raises ConfigError for an unusable number, and if the consumer has no handler.
        """
        CONCURRENCY.check("concurrency", concurrency)
        if self._settings.handler is None:
            raise ConfigError(
                "this PushConsumer has no handler: how many messages are in hand "
                "is up to the tasks that take them"
            )
        self._concurrency = concurrency
        running = self.lifecycle.running
        if running is not None and running.handlers is not None:
            running.handlers.resize(concurrency)

    def pause(self) -> None:
        """Stop pulling and delivering messages until ``resume`` is called.

        Running handlers continue. The queues stay assigned to this consumer.
        """
        self.lifecycle.started().ready.pause()

    def resume(self) -> None:
        """Start pulling and delivering messages again after ``pause``."""
        self.lifecycle.started().resume()

    @property
    def paused(self) -> bool:
        return self.lifecycle.running is not None and self.lifecycle.running.ready.paused

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Answer a message that was sent with ``Producer.request``. Return when the producer has
        the reply.

        - ``properties``: your own properties of the reply.
        - ``timeout``: seconds, 3 by default.

        Raises ReplyError if the reply did not arrive, MessageError if the message is no request or
        the body is empty or too long, and NotStartedError.
        """
        running = self.lifecycle.ready()
        return await running.replier().reply(request, body, properties, timeout)

    def _readable(self) -> ReadyMessages:
        running = self.lifecycle.started()
        if not running.closing:
            self.lifecycle.ready()
        if self._settings.handler is not None:
            raise ConfigError(
                "this PushConsumer has a handler, which gets the messages; iterate over one without"
            )
        return running.ready

    # --- joining

    def consumer_data(self) -> ConsumerData:
        """Return this consumer's entry in the heartbeat to brokers."""
        settings = self._settings
        model = MessageModel.BROADCASTING if settings.broadcast else MessageModel.CLUSTERING
        return self._data(
            ConsumeType.CONSUME_PASSIVELY,
            settings.consume_from,
            model,
            max_reconsume_times=settings.max_reconsume_times,
            started_at=None if settings.max_reconsume_times is None else self._started_ms,
            ordered=settings.ordered,
        )

    # --- committing

    async def commit(self, *, acknowledged: bool = False) -> None:
        """Commit the offsets of finished messages now. Otherwise they are committed within five
        seconds.

        With ``acknowledged`` the call waits until the brokers have stored the offsets.
        """
        running = self.lifecycle.started()
        if acknowledged:
            await running.assignment.commit(final=True)
        else:
            running.instance.spawn(running.assignment.commit(), name="commit")


class RunningPush(RunningConsumer):
    """State of a push consumer from start to close.

    - ``ready``: messages that are waiting for a handler or reader.
    - ``subscriptions``: current subscriptions by topic.
    - ``tracing``: None if nothing is traced.
    - ``concurrency``: maximum number of concurrent handler calls.
    """

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
        group = member.group
        namespace = settings.namespace
        self.closed = asyncio.Event()
        self._subscriptions = subscriptions
        self._concurrency = concurrency
        self._namespace = namespace
        self._ordered = settings.ordered
        self._consume_timeout = settings.consume_timeout
        self._close_timeout = settings.close_timeout
        self._replier: Replier | None = None
        observer = telemetry()
        shown_group = unwrap(namespace, group)
        reading = None
        if observer is not None and settings.handler is None:
            reading = observer.reading(shown_group, broadcast=settings.broadcast)
        self.consumption = Consumption(
            asyncio.get_running_loop().time,
            tracing.of_consumer() if tracing is not None else None,
            reading,
        )
        self.ready = ReadyMessages(
            self.consumption.handling_began, batch=settings.handler_batch, ordered=settings.ordered
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
        shared = ConsumerContext(
            instance, group, subscriptions, self.ready, self._backs, self.consumption, settings
        )
        self.assignment = Assignment(shared, self._offsets)
        balancer = Balancer(
            instance,
            group,
            lambda: list(subscriptions),
            None if settings.broadcast else settings.strategy,
            self.assignment,
        )
        if settings.asks_brokers:
            balancer.divide = BrokerDivision(shared, self.assignment, balancer.divide).divide
        self.handlers: HandlerPool | None = None
        if settings.handler is not None:
            consequence = None
            if settings.broadcast and not settings.ordered:
                consequence = "is not delivered again (broadcasting)"
            handler = handler_with_telemetry(
                settings.handler, shown_group, broadcast=settings.broadcast
            )
            self.handlers = HandlerPool(
                handler, self.ready, concurrency=concurrency, consequence=consequence
            )
        super().__init__(instance, member, tracing, self.assignment, balancer)

    # --- start and close

    async def begin_consuming(self) -> None:
        """Assign queues to this member and start handling their messages.

        Raises NotStartedError if the consumer is closed in the meantime.
        """
        await super().begin_consuming()
        if self.assignment.locks is not None:
            self._spawn(self.assignment.locks.renew_for_ever(), "locks")
        if self.handlers is not None:
            self.handlers.start()
            if not self._ordered:
                late = self.handlers.give_back_late(self._consume_timeout)
                self._spawn(late, "late handlers")

    async def give_up(self, topic: str) -> None:
        """Commit the finished messages of a topic and release its queues.

        An ordered queue is released when its running handler ends; this method does not wait for
        that.
        """
        for name in (topic, pop_retry_topic(topic, self.member.group)):
            if name in self._subscriptions:
                self.assignment.stop(name)
                del self._subscriptions[name]
                await self.assignment.release_topic(name)

    def is_handling(self, task: asyncio.Task[Any] | None, thread: int | None) -> bool:
        """Return True if the handler is running in this task or thread."""
        return (
            self.handlers is not None
            and task is not None
            and self.handlers.is_handling_in(task, thread)
        )

    def replier(self) -> Replier:
        """Return the object that sends replies. The first call creates it."""
        if self._replier is None:
            self._replier = Replier(self.instance, group=INNER_PRODUCER)
        return self._replier

    def resume(self) -> None:
        """Deliver and pull messages again, after a pause."""
        self.ready.resume()
        self.assignment.wake_loops()

    async def close(self) -> None:
        """Stop pulling, wait for running handlers, commit offsets, and leave the group.

        The wait lasts at most ``close_timeout``. The group is left and the replier is closed even
        if something before fails.
        """
        for task in self._tasks:
            task.cancel()
        try:
            await self._finish(self._close_timeout)
        finally:
            await self.instance.leave(self.member)
            self.closed.set()
            if self._replier is not None:
                self._replier.close()

    def stop(self) -> None:
        """Pull no more messages, and deliver none of those that wait."""
        self.assignment.stop()
        self.ready.close()

    async def _finish(self, timeout: float) -> None:
        self.stop()
        if self.handlers is not None:
            await self.handlers.stop(timeout)
        if self._backs is not None:
            await self._backs.finish(timeout)
        # A handler in a thread cannot be stopped; its popped messages stay invisible meanwhile.
        await self.assignment.close(timeout, give_back_taken=self.handlers is None)
        if isinstance(self._offsets, LocalOffsets):
            await self._offsets.close()
        if self._tracing is not None:
            await self._tracing.close()

    # --- operators' requests

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
