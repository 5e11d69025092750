"""The push consumer: a member of a group that gets its share of the messages, one ``async for`` or
handler call each.

One rule: an offset is committed only when every message before it is done; what is not done comes
again, to this member or the next. This file is the life of a consumer: joining, consuming, leaving.
It must not know how queues are got and lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from turbopump.client.allocation import Strategy, strategy_of
from turbopump.client.consumer.delivery import BatchHandler, Delivery, Retry
from turbopump.client.consumer.group_consumer import GroupConsumer
from turbopump.client.consumer.handling import Handler
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.ordered import OrderSettings
from turbopump.client.consumer.pop import BATCH_MAX
from turbopump.client.consumer.process_queue import BYTES_MAX, MESSAGES_MAX, SPAN_MAX, PullLimits
from turbopump.client.consumer.pull import PULL_BATCH
from turbopump.client.consumer.ready_messages import MessageStream, ReadyMessages
from turbopump.client.consumer.running_push import PushSettings, RunningPush
from turbopump.client.consumer.send_back import INNER_PRODUCER
from turbopump.client.consumer.settings import (
    CONCURRENCY_RULES,
    INVISIBLE_S,
    PUSH_RULES,
    TAKE_RULES,
    THRESHOLD,
    check_batches,
    pop_settings,
)
from turbopump.client.consumer.subscription import ALL, Wanted, first_subscriptions
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.lifecycle import Lifecycle
from turbopump.client.namespace import unwrap, unwrapped, wrap
from turbopump.client.request_reply import Replier
from turbopump.client.sending.send_result import SendResult
from turbopump.client.setting_rules import check, group_in
from turbopump.client.settings import Surrounding, client_settings
from turbopump.client.shared_instances import join_broadcasting, join_instance
from turbopump.client.tracing import trace_topic
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.clients import ConsumerData, ConsumeType, MessageModel
from turbopump.protocol.requests.consumers import ConsumeStatus

if TYPE_CHECKING:
    from turbopump.store.disk import Disk

__all__ = ["ConsumeFrom", "Delivery", "PushConsumer", "Retry"]

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
SUSPEND_S: Final = 1.0
"""``suspendCurrentQueueTimeMillis``."""
CONSUME_TIMEOUT_S: Final = 900.0
"""``consumeTimeout``."""


class PushConsumer(GroupConsumer[RunningPush]):
    """Consumes as a member of ``group``. Use it as ``async with PushConsumer("127.0.0.1:9876",
    group="g", topic="t") as consumer:`` and then ``async for message in consumer:``, or give a
    ``handler``.

    ``namesrv``: ``"host:port"``, several separated by ``;``, or a list. ``topic`` and ``tags``
    (``*``, ``A || B``, ``Tags`` or ``Sql``): what to consume; ``subscribe`` adds more. ``handler``:
    called with each message, ``concurrency`` at once; a coroutine function runs on the loop, a
    plain function in a thread. ``handler_batch``: it is called with a list instead, of up to so
    many messages (1 to 1024) of one queue, what is there at the time; all are done when it returns
    but those it has settled otherwise (docs/guide/consuming.md). ``consume_from``: where a group
    that is new to a queue begins (``ConsumeFrom``); a datetime means what was stored from then on.
    With ``LAST`` a queue whose first message is still in the broker's memory is read from its
    beginning, as with Java's client; ``NOW`` begins at the start of the consumer.
    ``max_reconsume_times``: a message that failed comes again so often, then it is a dead letter
    (None: as the group is set at the broker, usually 16). ``instance_name`` and ``unit_name`` as
    for ``Producer``; two consumers of a group must not be given the same. ``ordered``: of each
    queue one message at a time, the next when it is done; one that fails is handled again after
    ``suspend_time`` seconds, without limit unless ``max_reconsume_times`` is set.
    ``consume_timeout``: a message that its handler has had for so many seconds is sent back, unless
    ``ordered``. ``broadcast``: every consumer gets every message, and keeps its offsets in a file
    below ``offsets_directory`` (``~/.rocketmq_offsets``). ``trace``: records before and after each
    handling, on ``RMQ_SYS_TRACE_TOPIC`` or the topic you name (docs/guide/tracing.md).
    ``client_rebalance`` False: brokers divide the queues and say whether they are pulled or popped
    (not with ``ordered``); ``pop_invisible_time`` (seconds), ``pop_batch`` and ``pop_threshold``
    then count (docs/guide/pop.md). ``pull_batch`` messages come with one pull; pulling waits while
    more than ``queue_messages_max`` messages, ``queue_bytes_max`` bytes or ``queue_span_max``
    offsets of a queue are in hand; ``topic_messages_max`` and ``topic_bytes_max`` are shared by the
    queues of a topic that are ours. ``clock``, ``random``, ``local_ip`` and ``disk`` replace the
    system's. Raises ConfigError for unusable settings.

    A message is done when its handler returns (None included) or, in ``async for``, when the next
    one is asked for; see docs/guide/consuming.md.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...] | None = None,
        *,
        group: str,
        topic: str | None = None,
        tags: Wanted = ALL,
        handler: Handler | BatchHandler | None = None,
        handler_batch: int | None = None,
        consume_from: ConsumeFrom | datetime = ConsumeFrom.LAST,
        concurrency: int = 20,
        ordered: bool = False,
        suspend_time: float = SUSPEND_S,
        consume_timeout: float = CONSUME_TIMEOUT_S,
        broadcast: bool = False,
        offsets_directory: str | Path | None = None,
        max_reconsume_times: int | None = None,
        namespace: str | None = None,
        allocation: str | Strategy = "AVG",
        close_timeout: float = CLOSE_TIMEOUT_S,
        pull_batch: int = PULL_BATCH,
        queue_messages_max: int = MESSAGES_MAX,
        queue_bytes_max: int = BYTES_MAX,
        queue_span_max: int = SPAN_MAX,
        topic_messages_max: int | None = None,
        topic_bytes_max: int | None = None,
        trace: bool | str = False,
        client_rebalance: bool = True,
        pop_invisible_time: float = INVISIBLE_S,
        pop_batch: int = BATCH_MAX,
        pop_threshold: int = THRESHOLD,
        disk: Disk | None = None,
        **surrounding: Unpack[Surrounding],
    ) -> None:
        self._group = group_in(namespace, group)
        check(PUSH_RULES, locals())
        if offsets_directory is not None and not broadcast:
            raise ConfigError(
                "offsets_directory is for broadcast=True; the offsets of a group "
                "are kept by the brokers"
            )
        if suspend_time != SUSPEND_S and not ordered:
            raise ConfigError(
                f"suspend_time={suspend_time!r:.80} is for ordered=True, where a message that "
                "failed is handled again in place; without, "
                "Retry(delay=seconds) keeps one here for so long"
            )
        check_batches(handler, handler_batch)
        asks_brokers = not client_rebalance and not broadcast
        if asks_brokers and ordered:
            raise ConfigError(
                "client_rebalance=False is not for ordered=True, whose members divide and lock the "
                "queues themselves; to pop in order use SimpleConsumer(ordered=True)"
            )
        self.group = group
        self._namespace = namespace
        self._settings, self._environment = client_settings(namesrv, **surrounding)
        strategy = strategy_of(allocation)
        pop = pop_settings(
            allocation,
            pop_invisible_time,
            pop_batch,
            pop_threshold,
            max_reconsume_times,
            used=asks_brokers,
        )
        self._push_settings = PushSettings(
            handler,
            handler_batch,
            consume_from,
            OrderSettings(suspend_time, max_reconsume_times, handler_batch) if ordered else None,
            broadcast=broadcast,
            offsets_directory=Path(offsets_directory) if offsets_directory is not None else None,
            disk=disk,
            max_reconsume_times=max_reconsume_times,
            strategy=strategy,
            pop=pop,
            asks_brokers=asks_brokers,
            namespace=namespace,
            limits=PullLimits(
                queue_messages_max,
                queue_bytes_max,
                queue_span_max,
                topic_messages_max,
                topic_bytes_max,
            ),
            batch=pull_batch,
            consume_timeout=consume_timeout,
        )
        if asks_brokers and pop.strategy is None:
            raise ConfigError(
                f"allocation={allocation!r} is not known to brokers: with client_rebalance=False "
                "give AVG or AVG_BY_CIRCLE"
            )
        self._concurrency = concurrency
        self._close_timeout = close_timeout
        self._trace_topic = trace_topic(trace)
        self._subscriptions = first_subscriptions(
            namespace, topic, tags, self._environment.clock.now_ms()
        )
        self._started_ms = 0
        self._replier: Replier | None = None
        self.lifecycle: Lifecycle[RunningPush] = Lifecycle("PushConsumer")

    # --- what it consumes

    async def subscribe(self, topic: str, tags: Wanted = ALL) -> None:
        """Consume ``topic`` too (or with other tags); may be called before ``start`` and after. All
        members of a group must subscribe alike, or messages are missed. Raises ConfigError."""
        self._subscribe(topic, tags)
        if self.lifecycle.running is not None:
            running = self.lifecycle.ready()
            await running.instance.introduce_all()
            running.balancer.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no longer; says nothing if it was not consumed. May be called before
        ``start`` and after, also in a handler.

        Its queues are given up at once, as when another member gets them: what is done is
        committed, what a handler has in hand comes to the next one that consumes them. In order,
        each is free when the handler that has a message of it has ended; that is not waited for.
        What has failed before still comes by the group's retry topic. All members of a group should
        do the same.
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
        """The queues that are ours at the moment, sorted."""
        queues = self.lifecycle.running.queues if self.lifecycle.running is not None else ()
        return sorted(
            unwrapped(self._namespace, queue)
            for queue in queues
            if not queue.topic.startswith(RETRY_PREFIX)
        )

    def statistics(self) -> dict[str, ConsumeStatus]:
        """How pulls and handling go, by topic: times and rates of the last minute
        (docs/reference/statistics.md). Raises NotStartedError."""
        statuses = self.lifecycle.started().consumption.statuses()
        return {unwrap(self._namespace, topic): status for topic, status in statuses.items()}

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self.lifecycle.started().instance.client_id

    # --- life

    async def start(self) -> None:
        """Join the group and begin to consume. Returns after the first look at who gets which
        queue.

        Raises RouteNotFoundError if no name server answers (a topic that does not exist yet is
        waited for), NotStartedError after ``close`` or if it is closed meanwhile, ConfigError if
        nothing is subscribed. A start that fails or is cancelled leaves the group, and may be
        called again.
        """
        if not self.lifecycle.begins():
            return
        if not self._subscriptions:
            raise ConfigError(
                "nothing to consume: give topic=… or call subscribe(topic) before start"
            )
        if not self._push_settings.broadcast:
            self._subscribe(RETRY_PREFIX + self.group, ALL)
        self._started_ms = self._environment.clock.now_ms()
        member = InstanceMember(self._group, consumer=self.consumer_data)
        settings = self._settings
        if self._push_settings.broadcast:
            settings, instance = join_broadcasting(settings, self._environment, member)
        else:
            instance = join_instance(settings, self._environment, member)

        def make() -> RunningPush:
            return RunningPush(
                instance,
                member,
                self._push_settings,
                self._subscriptions,
                self._tracing(settings, self._trace_topic),
                concurrency=self._concurrency,
            )

        await self._run(instance, member, make, self._end)

    async def close(self) -> None:
        """Stop pulling, let running handlers finish (``close_timeout`` at most), commit, leave the
        group.

        May be called twice. If it is cancelled while waiting (``asyncio.wait_for``) the close goes
        on. In a coroutine handler it returns at once, and the close goes on when the handler
        has ended: its message too is done.
        """
        await self._close(None)

    async def _close(self, thread: int | None) -> bool:
        """As ``close``, for a caller in ``thread``; whether it has ended: it has not if a handler
        asked."""
        running = self.lifecycle.running
        in_handler = running is not None and running.is_handling(asyncio.current_task(), thread)
        await self.lifecycle.end(self._end, wait=not in_handler)
        return not in_handler

    async def _end(self, running: RunningPush) -> None:
        try:
            await running.close(self._close_timeout)
        finally:
            if self._replier is not None:
                self._replier.close()
                self._replier = None

    async def wait_closed(self) -> None:
        """Wait until somebody closes this consumer: what a program with a handler does for the rest
        of its life."""
        await self.lifecycle.started().closed.wait()

    def __aiter__(self) -> MessageStream:
        return MessageStream(self._readable())

    async def take(self, count: int) -> list[Delivery]:
        """At least one message and at most ``count``; each must be settled with ``done()`` or
        ``retry()``. Raises NoMoreMessages when the consumer is closed, ConfigError for another
        ``count``. For those who want batches; ``async for`` is simpler."""
        check(TAKE_RULES, locals())
        return await self._readable().take_some(count)

    def _begin(self) -> Delivery | None:
        """As ``take(1)``, but from any thread and without waiting: None if no message is ready, or
        nobody may take any. For the blocking face."""
        running = self.lifecycle.running
        if running is None or self._push_settings.handler is not None:
            return None
        message = running.ready.begin()
        assert message is None or isinstance(message, Delivery)
        return message

    def give_back(self, messages: Sequence[Delivery]) -> None:
        """Messages that were taken and are not dealt with: they are the next ones again."""
        running = self.lifecycle.running
        if running is not None:
            for message in reversed(messages):
                if not message.settled:
                    running.ready.put_back(message)

    def set_concurrency(self, concurrency: int) -> None:
        """So many handler calls at once from now on; what is being handled is not disturbed. Raises
        ConfigError, also without a handler."""
        check(CONCURRENCY_RULES, locals())
        if self._push_settings.handler is None:
            raise ConfigError(
                "this PushConsumer has no handler: how many messages are in hand "
                "is up to the tasks that take them"
            )
        self._concurrency = concurrency
        running = self.lifecycle.running
        if running is not None and running.handlers is not None:
            running.handlers.resize(concurrency)

    def pause(self) -> None:
        """Hand out no message and pull none until ``resume``; what is being handled may end. The
        queues stay ours."""
        self.lifecycle.started().pause()

    def resume(self) -> None:
        """Go on after ``pause``."""
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
        """Answer a message that was sent by a producer's ``request``; returns when that producer
        has the answer.

        ``properties`` of your own go with it; ``timeout`` in seconds, 3 by default. Raises
        ReplyError (it did not get there, and why), MessageError (nobody asked, or the body is empty
        or too long), NotStartedError.
        """
        running = self.lifecycle.ready()
        if self._replier is None:
            self._replier = Replier(running.instance, group=INNER_PRODUCER)
        return await self._replier.reply(request, body, properties, timeout)

    def _readable(self) -> ReadyMessages:
        running = self.lifecycle.started()
        if not running.closing:
            self.lifecycle.ready()
        if self._push_settings.handler is not None:
            raise ConfigError(
                "this PushConsumer has a handler, which gets the messages; iterate over one without"
            )
        return running.ready

    # --- joining

    def consumer_data(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        settings = self._push_settings
        model = MessageModel.BROADCASTING if settings.broadcast else MessageModel.CLUSTERING
        return self._data(
            ConsumeType.CONSUME_PASSIVELY,
            settings.consume_from,
            model,
            max_reconsume_times=settings.max_reconsume_times,
            started_at=None if settings.max_reconsume_times is None else self._started_ms,
            ordered=settings.order is not None,
        )

    # --- committing

    async def commit(self, *, acknowledged: bool = False) -> None:
        """Tell the brokers what is done, now instead of at the next five seconds. ``acknowledged``:
        wait until they have it."""
        running = self.lifecycle.started()
        if acknowledged:
            await running.assignment.commit(final=True)
        else:
            running.instance.spawn(running.assignment.commit(), name="commit")
