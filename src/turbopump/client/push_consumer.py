"""The push consumer: a member of a group that gets its share of the messages, one ``async for`` or handler call each.

One rule: an offset is committed only when every message before it is done; what is not done comes again, to this member or the next.
This file is the life of a consumer: joining, consuming, leaving. It must not know how queues are got and lost.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from turbopump.client.allocation import Strategy, strategy_of
from turbopump.client.consuming.assigned_queue import InOrder
from turbopump.client.consuming.assignment import Assignment
from turbopump.client.consuming.broker_division import BrokerDivision
from turbopump.client.consuming.consumer_rules import CONCURRENCY_RULES, PUSH_RULES
from turbopump.client.consuming.consumption import Consumption
from turbopump.client.consuming.delivery import Delivery, Retry
from turbopump.client.consuming.handler_threads import HandlerThreads
from turbopump.client.consuming.handling import Handler, HandlerPool, is_coroutine_function
from turbopump.client.consuming.local_offsets import LocalOffsets, default_directory
from turbopump.client.consuming.message_stream import MessageStream
from turbopump.client.consuming.offset_store import ConsumeFrom, OffsetStore
from turbopump.client.consuming.ready_messages import ReadyMessages
from turbopump.client.consuming.rebalance import Balancer
from turbopump.client.consuming.send_back import INNER_PRODUCER, SendBack
from turbopump.client.consuming.subscription import ALL, Sql, first_subscriptions, topic_subscription
from turbopump.client.heartbeat import Member
from turbopump.client.identity import Credentials, InstanceSettings
from turbopump.client.in_context import InContext
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap, unwrapped
from turbopump.client.operating.operated_consumers import OperatedPush
from turbopump.client.popping.assignment import PopAssignment
from turbopump.client.popping.pop import BATCH_MAX
from turbopump.client.popping.settings import INVISIBLE_S, THRESHOLD, pop_settings
from turbopump.client.producer import Producer
from turbopump.client.request_reply import Replier
from turbopump.client.routes import TopicRoute
from turbopump.client.sending.send_result import SendResult
from turbopump.client.setting_rules import check, group_in
from turbopump.client.shared_instances import join_instance
from turbopump.client.surroundings import name_server_addresses, surroundings_of
from turbopump.client.traces.tracing import Tracing, trace_topic
from turbopump.clock import Clock
from turbopump.errors import ConfigError, NotStartedError
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from turbopump.protocol.bodies.running import ConsumeStatus
from turbopump.store.disk import Disk

__all__ = ["ConsumeFrom", "Delivery", "PushConsumer", "Retry"]

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
SUSPEND_S: Final = 1.0
"""``suspendCurrentQueueTimeMillis``."""
BROADCAST_INSTANCE: Final = "DEFAULT"
"""The instance name of broadcasting clients, the same in every life: their offsets lie under it."""


class PushConsumer(InContext):
    """Consumes as a member of ``group``. Use it as ``async with PushConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:``
    and then ``async for message in consumer:``, or give a ``handler``.

    ``namesrv``: ``"host:port"``, several separated by ``;``, or a list. ``topic`` and ``tags`` (``*``, ``A || B``, or ``Sql(…)``): what
    to consume; ``subscribe`` adds more. ``handler``: called with each message, ``concurrency`` at once; a coroutine function runs on the
    loop, a plain function in a thread. ``consume_from``: where a group that is new to a queue begins; a datetime means what was stored
    from then on. ``max_reconsume_times``: a message that failed comes again so often, then it is a dead letter (None: as the group is set
    at the broker, usually 16). ``instance_name`` and ``unit_name`` as for ``Producer``; two consumers of a group must not be given the
    same. ``ordered``: of each queue one message at a time, the next when it is done; one that fails is handled again after
    ``suspend_time`` seconds, without limit unless ``max_reconsume_times`` is set. ``broadcast``: every consumer gets every message, and
    keeps its offsets in a file below ``offsets_directory`` (``~/.rocketmq_offsets``). ``trace``: records before and after each handling, on
    ``RMQ_SYS_TRACE_TOPIC`` or the topic you name (docs/tracing.md). ``client_rebalance`` False: brokers divide the queues and say
    whether they are pulled or popped, ordered or not; ``pop_invisible_time`` (seconds), ``pop_batch`` and ``pop_threshold`` then count
    (docs/consuming.md). ``clock``, ``random``, ``local_ip`` and ``disk`` replace the system's. Raises ConfigError for unusable settings.

    A message is done when its handler returns (None included) or, in ``async for``, when the next one is asked for; see docs/client.md.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str,
        topic: str | None = None,
        tags: str | Sql = ALL,
        handler: Handler | None = None,
        consume_from: ConsumeFrom | datetime = ConsumeFrom.LAST,
        concurrency: int = 20,
        ordered: bool = False,
        suspend_time: float = SUSPEND_S,
        broadcast: bool = False,
        offsets_directory: str | Path | None = None,
        max_reconsume_times: int | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        allocation: str | Strategy = "AVG",
        close_timeout: float = CLOSE_TIMEOUT_S,
        trace: bool | str = False,
        client_rebalance: bool = True,
        pop_invisible_time: float = INVISIBLE_S,
        pop_batch: int = BATCH_MAX,
        pop_threshold: int = THRESHOLD,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        local_ip: str | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._group = group_in(namespace, group)
        check(PUSH_RULES, locals())
        if offsets_directory is not None and not broadcast:
            raise ConfigError("offsets_directory is for broadcast=True; the offsets of a group are kept by the brokers")
        self.group = group
        self._namespace = namespace
        if broadcast:
            instance_name = instance_name or BROADCAST_INSTANCE
        self._settings = InstanceSettings(name_server_addresses(namesrv), instance_name, unit_name, credentials, namespace_v2)
        self._handler = handler
        self._consume_from = consume_from
        self._concurrency = concurrency
        self._order = InOrder(suspend_time, max_reconsume_times) if ordered else None
        self._broadcast = broadcast
        self._offsets_directory = Path(offsets_directory) if offsets_directory is not None else None
        self._disk = disk
        self._max_reconsume_times = max_reconsume_times
        self._strategy = strategy_of(allocation)
        self._pop_settings = pop_settings(allocation, pop_invisible_time, pop_batch, pop_threshold, max_reconsume_times)
        self._asks_brokers = not client_rebalance and not broadcast
        if self._asks_brokers and self._pop_settings.strategy is None:
            raise ConfigError(
                f"allocation={allocation!r} is not known to brokers: with client_rebalance=False give AVG or AVG_BY_CIRCLE"
            )
        self._close_timeout = close_timeout
        self._trace_topic = trace_topic(trace)
        self._surroundings = surroundings_of(clock, random, local_ip)
        self._subscriptions = first_subscriptions(namespace, topic, tags, self._surroundings.clock.now_ms())
        self._running: _Running | None = None

    # --- what it consumes ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, tags: str | Sql = ALL) -> None:
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
        queues = self._running.queues if self._running is not None else ()
        return sorted(unwrapped(self._namespace, queue) for queue in queues if not queue.topic.startswith(RETRY_PREFIX))

    def statistics(self) -> dict[str, ConsumeStatus]:
        """How pulls and handling go, by topic: times and rates of the last minute (docs/statistics.md). Raises NotStartedError."""
        statuses = self._started().consumption.statuses()
        return {unwrap(self._namespace, topic): status for topic, status in statuses.items()}

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self._started().instance.client_id

    # --- life ----------------------------------------------------------------------------------------------------------------

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
        if not self._broadcast:
            self._subscribe(RETRY_PREFIX + self.group, ALL)
        member = Member(self._group, consumer=self.consumer_data)
        instance = join_instance(self._settings, self._surroundings, member)
        try:
            running = self._running = _Running(self, instance, member)
        except BaseException:
            await instance.leave(member)
            raise
        try:
            if running.tracing is not None:
                await running.tracing.start()
            await instance.routes.find(list(self._subscriptions))
            await instance.introduce_all()
        except BaseException:
            await self.close()
            raise
        complete = await running.balancer.balance()
        running.tasks = [
            instance.spawn(running.balancer.run(complete=complete), name="balancer"),
            instance.spawn(running.assignment.commit_for_ever(), name="commits"),
        ]
        if running.assignment.locks is not None:
            running.tasks.append(instance.spawn(running.assignment.locks.keep(), name="locks"))
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
        running.assignment.stop_pulling()
        running.pops.stop_popping()
        running.ready.close()
        if running.handlers is not None:
            await running.handlers.stop(self._close_timeout)
        if running.backs is not None:
            await running.backs.finish(self._close_timeout)
        await running.assignment.close(self._close_timeout)
        # A handler in a thread cannot be stopped: what it has stays invisible for its time.
        await running.pops.close(self._close_timeout, give_back_taken=running.handlers is None)
        if isinstance(running.offsets, LocalOffsets):
            await running.offsets.close()
        if running.tracing is not None:
            await running.tracing.close()
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

    def _begin(self) -> Delivery | None:
        """As ``take(1)``, but from any thread and without waiting: None if no message is ready, or nobody may take any. For the blocking
        face."""
        return None if self._running is None or self._handler is not None else self._running.ready.begin()

    def give_back(self, messages: Sequence[Delivery]) -> None:
        """Messages that were taken and are not dealt with: they are the next ones again."""
        if self._running is not None:
            for message in reversed(messages):
                if not message.settled:
                    self._running.ready.give_back(message)

    def set_concurrency(self, concurrency: int) -> None:
        """So many handler calls at once from now on; what is being handled is not disturbed. Raises ConfigError, also without a handler."""
        check(CONCURRENCY_RULES, locals())
        if self._handler is None:
            raise ConfigError("this PushConsumer has no handler: how many messages are in hand is up to whoever takes them")
        self._concurrency = concurrency
        if self._running is not None and self._running.handlers is not None:
            self._running.handlers.resize(concurrency)

    def pause(self) -> None:
        """Hand out no message and pull none until ``resume``; what is being handled may end. The queues stay ours."""
        self._started().ready.pause()

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._started().ready.resume()

    @property
    def paused(self) -> bool:
        return self._running is not None and self._running.ready.paused

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Answer a message that was sent by a producer's ``request``; returns when that producer has the answer.

        ``properties`` of your own go with it; ``timeout`` in seconds, 3 by default. Raises ReplyError (it did not get there, and why),
        MessageError (nobody asked, or the body is empty or too long), NotStartedError.
        """
        running = self._started()
        running.instance.check_usable("PushConsumer", running.member)
        if running.replier is None:
            running.replier = Replier(running.instance, group=INNER_PRODUCER)
        return await running.replier.reply(request, body, properties, timeout)

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

    def _subscribe(self, topic: str, tags: str | Sql) -> None:
        subscription = topic_subscription(self._namespace, topic, tags, self._surroundings.clock.now_ms())
        self._subscriptions[subscription.topic] = subscription

    def consumer_data(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        where = self._consume_from
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.BROADCASTING if self._broadcast else MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere(
                where.value if isinstance(where, ConsumeFrom) else ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
            ),
            subscription_data_set=tuple(subscription.data() for subscription in self._subscriptions.values()),
        )

    # --- committing ----------------------------------------------------------------------------------------------------------

    async def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now instead of at the next five seconds. ``acknowledged``: wait until they have it."""
        running = self._started()
        if acknowledged:
            await running.assignment.commit(final=True)
        else:
            running.instance.spawn(running.assignment.commit(), name="commit")


class _Running:
    """What exists from start to close."""

    def __init__(self, consumer: PushConsumer, instance: ClientInstance, member: Member) -> None:
        group, namespace = consumer._group, consumer._namespace
        self.instance = instance
        self.member = member
        self.tracing: Tracing | None = None
        if consumer._trace_topic is not None:
            self.tracing = Tracing(
                *(Producer, consumer._settings, consumer._surroundings),
                group=consumer.group,
                topic=consumer._trace_topic,
                namespace=namespace,
                kind="CONSUME",
            )
        traces = self.tracing.of_consumer() if self.tracing is not None else None
        self.consumption = Consumption(asyncio.get_running_loop().time, traces)
        self.ready = ReadyMessages(self.consumption.began)
        self.offsets: OffsetStore | LocalOffsets = OffsetStore(instance, group)
        self.backs: SendBack | None = None
        if consumer._broadcast:
            directory = consumer._offsets_directory or default_directory()
            self.offsets = LocalOffsets(self.offsets, directory, instance.client_id, group, consumer._disk)
        else:
            self.backs = SendBack(instance, group, consumer._max_reconsume_times, namespace)
        self.assignment = Assignment(
            *(instance, group, consumer._subscriptions, consumer._consume_from, self.ready, self.offsets, self.backs),
            order=consumer._order,
            namespace=namespace,
            consumption=self.consumption,
        )
        self.pops = PopAssignment(
            *(instance, group, consumer._subscriptions, consumer._consume_from, self.ready, consumer._pop_settings),
            *(self.backs, self.consumption),
            order=consumer._order,
            namespace=namespace,
        )
        self.tasks: list[asyncio.Task[None]] = []
        self.closing = False
        self.closed = asyncio.Event()
        self.balancer = Balancer(
            instance,
            group,
            lambda: list(consumer._subscriptions),
            None if consumer._broadcast else consumer._strategy,
            assigned=self.assignment.of_topic,
            apply=self.assignment.apply,
        )
        if consumer._asks_brokers:
            division = BrokerDivision(
                instance, group, consumer._subscriptions, self.assignment, self.pops, self.balancer.divide
            )
            self.balancer.leave_to(division.look)
        self.replier: Replier | None = None
        self.handlers: HandlerPool | HandlerThreads | None = None
        if consumer._handler is not None:
            fate = "is not delivered again (broadcasting)" if self.backs is None and consumer._order is None else None
            kind: type[HandlerPool | HandlerThreads] = (
                HandlerPool if is_coroutine_function(consumer._handler) else HandlerThreads
            )
            self.handlers = kind(consumer._handler, self.ready, concurrency=consumer._concurrency, fate=fate)
        self._subscriptions = consumer._subscriptions
        member.operated = OperatedPush(
            *(self.assignment, self.pops, consumer.consumer_data, self.handlers, self.consumption),
            *(instance.routes.name_servers, consumer._surroundings.clock),
            concurrency=consumer._concurrency,
            ordered=consumer._order is not None,
            namespace=namespace,
        )
        member.on_group_change = self._group_changed
        member.on_route_change = self._route_changed
        member.on_disconnect = self._disconnected

    @property
    def queues(self) -> list[MessageQueue]:
        return [*self.assignment.queues, *self.pops.queues]

    def _group_changed(self) -> None:
        """Somebody may be about to take over queues of ours: what is done shall not be done again."""
        if not self.closing:
            self.instance.spawn(self.assignment.commit(), name="commit")
            self.balancer.wake()

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            self.balancer.wake()

    def _disconnected(self, address: str) -> None:
        """A broker that was killed may have lost the last seconds of offsets: tell it again."""
        address_of = self.instance.routes.address_of
        self.assignment.told_nothing(
            [queue for queue in self.assignment.queues if address_of(queue.broker_name, topic=queue.topic) == address]
        )
