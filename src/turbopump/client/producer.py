"""Producer of messages: start, close and the send calls. ``sending/`` implements the sends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Unpack, overload

from turbopump.client.heartbeat import InstanceMember
from turbopump.client.hooks import SendHooks
from turbopump.client.instance import ClientInstance
from turbopump.client.instrumentation import with_telemetry
from turbopump.client.lifecycle import InContext, not_started
from turbopump.client.namespace import unwrapped, wrap
from turbopump.client.recall import recall_message
from turbopump.client.request_reply import Replier, Requester
from turbopump.client.selectors import Selector
from turbopump.client.sending.accumulator import Accumulator
from turbopump.client.sending.back_pressure import InFlightLimiter
from turbopump.client.sending.outgoing import (
    BatchPart,
    MessageParts,
    NotedFrames,
    Packer,
    SendFrames,
    as_message,
)
from turbopump.client.sending.queue_chooser import (
    FaultDetector,
    FaultStrategy,
    QueueChooser,
    RoundRobin,
)
from turbopump.client.sending.send_attempts import deliver, send_oneway
from turbopump.client.sending.send_result import SendResult, SendStatistics
from turbopump.client.sending.sender import PendingSends, Sender
from turbopump.client.sending.settings import ProducerSettings
from turbopump.client.setting_rules import TOPIC, check_timeout
from turbopump.client.settings import keywords_of
from turbopump.client.shared_instances import join_instance
from turbopump.client.trace import GROUP_PREFIX as TRACE_GROUP_PREFIX
from turbopump.client.tracing import Tracing, trace_topic
from turbopump.errors import ConfigError
from turbopump.message.message import Message, MessageQueue, ReceivedMessage
from turbopump.message.rules import topic_fault
from turbopump.remoting.permits import Permits


class Producer(InContext):
    """Client that sends messages to brokers.

    Use it as ``async with Producer("127.0.0.1:9876") as producer: await producer.send("topic",
    b"body")``. The keywords are the fields of ``ProducerSettings``;
    docs/reference/client-settings.md explains them. Many tasks may send at once. Use a producer
    only in the event loop and the process that started it. Raises ConfigError for unusable
    settings.
    """

    @keywords_of(ProducerSettings)
    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._environment = settings.environment()
        self._namespace = settings.namespace
        self.group = settings.group
        # RocketMQ refuses a second producer of a group in one instance; trace producers are created
        # automatically
        named = settings.instance_name is not None
        alone = named and not self.group.startswith(TRACE_GROUP_PREFIX)
        self._member = InstanceMember(settings.wire_group, produces=True, exclusive=alone)
        self._rules = settings.rules
        self._chooser = QueueChooser(self._namespace)
        self._faults = FaultStrategy(settings.latency_faults)
        self._limiter = InFlightLimiter(
            settings.back_pressure, self._namespace, settings.send_timeout
        )
        self._plain = settings.back_pressure is None and self._namespace is None
        self.statistics = SendStatistics()
        """Counts and times of this producer's sends, by broker (docs/reference/statistics.md)."""
        self._accumulator: Accumulator | None = None
        if settings.auto_batch is not None:
            self._accumulator = Accumulator(
                settings.auto_batch, self._send_together, settings.body_size_max, self.statistics
            )
        self._sender: Sender | None = None
        self._pack: Packer  # set by start()
        self._tracing: Tracing | None = None
        self._requester: Requester | None = None
        self._replier: Replier | None = None

    # --- start and close

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client.

        Raises NotStartedError before ``start``.
        """
        return self._started().instance.client_id

    async def start(self) -> None:
        """Start the producer and fetch the routes of the topics in the setting ``topics``.

        The first send opens connections to brokers. A second ``start`` does nothing.

        Raises RouteNotFoundError if one of ``topics`` has no queue to send to. Raises ConfigError
        if another client uses the ``instance_name`` and the two cannot share an instance
        (docs/explanations/clients.md).
        """
        if self._sender is not None:
            self._sender.instance.check_usable("Producer", self._member)
            return
        instance = join_instance(self._settings, self._environment, self._member)
        try:
            await self._make_sender(instance)
            await self._learn_routes()
        except BaseException:
            if self._tracing is not None:
                await self._tracing.close()
            await instance.leave(self._member)
            self._member.left = False  # it may be started once more
            raise

    async def _make_sender(self, instance: ClientInstance) -> None:
        settings = self._settings
        environment = self._environment
        self._pack = Packer(
            environment.unique_ids(),
            body_size_max=settings.body_size_max,
            compression=settings.packing,
            namespace=self._namespace,
        )
        hooks = [*settings.hooks]
        if not self.group.startswith(TRACE_GROUP_PREFIX):
            hooks = with_telemetry(hooks)
        topic = trace_topic(settings.trace)
        if topic is not None:
            tracing = Tracing(Producer, settings, environment, self.group, topic, self._namespace)
            self._tracing = tracing
            await tracing.start()
            hooks.append(tracing.dispatcher)
        frames = SendFrames if self._accumulator is None else NotedFrames
        self._sender = Sender(
            instance,
            self._rules,
            self._pack,
            frames(
                self._member.group,
                instance.signer,
                form=instance.header_form,
                unit_mode=instance.unit_mode,
            ),
            RoundRobin(environment.random, self._faults),
            self._faults,
            SendHooks(hooks, self._namespace),
            self._member.group,
            self._namespace,
            self.statistics,
            PendingSends(settings.async_permits),
            Permits(settings.oneway_permits),
        )
        if settings.latency_faults is not None and settings.latency_faults.detector:
            detector = FaultDetector(instance, self._faults)
            self._sender.tasks.append(instance.spawn(detector.run(), name="fault detector"))

    async def _learn_routes(self) -> None:
        sender = self._started()
        try:
            for topic in self._settings.topics:
                await self.publish_queues(topic)
        except BaseException:
            for task in sender.tasks:
                task.cancel()
            self._sender = None
            raise

    async def close(self) -> None:
        """Wait for unfinished sends, replies and recalls, then close the producer.

        The wait lasts at most ``send_timeout``. After that time an unwritten send fails with a
        SendError, a reply with a ReplyError, and a recall with a RemotingError. The producer then
        unregisters from the brokers, and closes the connections that no other client shares. A
        second call does nothing.
        """
        sender = self._sender
        if sender is None or self._member.left:
            return
        if self._requester is not None:
            self._requester.close()
        now = asyncio.get_running_loop().time
        deadline = now() + self._rules.timeout
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wait_idle(sender)
        sender.close()
        self._limiter.close()
        if self._tracing is not None:
            await self._tracing.dispatcher.close(deadline - now())
        for task in sender.tasks:
            task.cancel()
        leaving = sender.instance.leave(self._member)
        if self._tracing is None:
            await leaving
        else:
            await asyncio.gather(leaving, self._tracing.close())

    async def _wait_idle(self, sender: Sender) -> None:
        if self._accumulator is not None:
            await self._accumulator.flush()
        await self._limiter.wait_idle()
        await sender.under_way.wait_idle()
        await sender.oneways.wait_idle()

    def _started(self) -> Sender:
        if self._sender is None:
            raise not_started("Producer", "producer")
        return self._sender

    def _ready(self) -> Sender:
        sender = self._sender or self._started()
        sender.instance.check_usable("Producer", self._member)
        return sender

    # --- sending

    @overload
    async def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> SendResult: ...

    @overload
    async def send(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
        **parts: Unpack[MessageParts],
    ) -> SendResult: ...

    async def send(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
        **parts: Unpack[MessageParts],
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        Pass a ``Message``, or its topic and body with the other arguments of ``Message``: ``tags``,
        ``keys``, ``properties``, ``delay`` and so on.

        - ``queue``: send to this queue only, with one attempt that reaches a master.
        - ``selector``: function of (queues, message) that chooses the queue
          (``turbopump.client.selectors``).
        - ``sharding_key``: messages with an equal key go to the same queue. They keep their order
          if each send is awaited before the next.
        - ``timeout``: seconds, instead of ``send_timeout``.

        While no master can be reached, the send waits for one until its timeout. Raises
        MessageError for an unusable message, RouteNotFoundError if no broker is known,
        NotStartedError, and SendError if no broker confirmed the message. After a time-out or a
        lost connection the message may be stored nevertheless.
        """
        if message.__class__ is not Message or body is not None or parts:
            message = as_message(message, body, parts)
        if timeout is not None:
            check_timeout(timeout)
        sender = self._ready()
        target = queue
        if selector is not None or sharding_key is not None:
            message, target = self._chooser.choose_target(message, queue, selector, sharding_key)  # type: ignore[assignment]
        elif self._accumulator is not None and self._accumulator.accepts(message):
            piece = self._pack.piece(message)
            if self._limiter.bounded:
                future = self._limiter.add_to_batch(
                    self._accumulator, message, piece, queue, timeout
                )
                return await (await future)
            limit = self._rules.timeout if timeout is None else timeout
            return await self._accumulator.add_message(message, piece, queue, limit)
        if self._plain:
            return await deliver(sender, self._pack.pack(message), target, timeout)
        return await self._limiter.deliver(sender, self._pack.pack(message), target, timeout)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue in one request, and wait until a broker has
        stored them.

        The broker stores all of the messages or none. Raises MessageError for a batch that is too
        large, because a batch is not split. Other errors are those of ``send``.
        """
        check_timeout(timeout)
        sender = self._ready()
        batch = self._pack.pack_batch(messages)
        return await self._limiter.deliver(sender, batch, queue, timeout)

    async def _send_together(
        self,
        pieces: Sequence[BatchPart],
        queue: MessageQueue | None,
        wait_store_ok: bool,
        timeout: float,
    ) -> SendResult:
        if len(pieces) == 1:
            outgoing = self._pack.pack_single(pieces[0])
        else:
            outgoing = self._pack.pack_pieces(pieces, wait_store_ok=wait_store_ok)
        return await self._limiter.deliver_unbound(self._started(), outgoing, queue, timeout)

    async def start_send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send one message, and return a future of the result.

        The call returns once the message is within the limits of ``back_pressure``. The future gets
        the result or error of ``send``. Raises MessageError, NotStartedError, and SendError if
        there is no room for the message in time.
        """
        check_timeout(timeout)
        sender = self._ready()
        if (
            self._accumulator is not None
            and selector is None
            and sharding_key is None
            and self._accumulator.accepts(message)
        ):
            piece = self._pack.piece(message)
            future = await self._limiter.add_to_batch(
                self._accumulator, message, piece, queue, timeout
            )
            if self._accumulator.wants_a_turn():
                # let the loop write, because a caller that only starts sends would never yield
                await asyncio.sleep(0)
            return future
        message, target = self._chooser.choose_target(message, queue, selector, sharding_key)
        outgoing = self._pack.pack(message)
        timeout = await self._limiter.wait_for_room(outgoing, timeout)
        task = asyncio.get_running_loop().create_task(
            self._limiter.deliver_entered(sender, outgoing, target, timeout)
        )
        # Let the send begin, because a close waits only for sends that have begun.
        await asyncio.sleep(0)
        return task

    @overload
    async def send_oneway(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
    ) -> None: ...

    @overload
    async def send_oneway(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        **parts: Unpack[MessageParts],
    ) -> None: ...

    async def send_oneway(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        """Send one message without waiting for an answer of the broker.

        The caller does not learn whether the broker stored the message. Raises MessageError,
        RouteNotFoundError, NotStartedError, and SendError if there is no connection or the broker
        has not read earlier data for ``send_timeout``.
        """
        message = as_message(message, body, parts)
        sender = self._ready()
        message, target = self._chooser.choose_target(message, queue, selector, sharding_key)
        await send_oneway(sender, self._pack.pack(message), self._chooser.wrapped_target(target))

    async def request(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        sharding_key: object = None,
        timeout: float | None = None,
        **parts: Unpack[MessageParts],
    ) -> ReceivedMessage:
        """Send one message and wait for the reply of its consumer (docs/guide/request-reply.md).

        ``timeout``: seconds for the send and the reply together, instead of ``send_timeout``. The
        other arguments are those of ``send``.

        Raises RequestTimeoutError if no reply arrives in time. Raises RequestError if the producer
        is closed meanwhile or too many requests wait. A failed send raises its error at once.
        """
        check_timeout(timeout)
        sender = self._ready()
        message = as_message(message, body, parts)
        message, target = self._chooser.choose_target(message, queue, selector, sharding_key)
        if self._requester is None:
            self._requester = Requester(sender, self._member, self._pack)
        return await self._requester.request(message, self._chooser.wrapped_target(target), timeout)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a reply to a request that another consumer received. See ``PushConsumer.reply``."""
        sender = self._ready()
        if self._replier is None:
            self._replier = Replier(sender.instance, group=sender.group, beside=sender)
        return await self._replier.reply(request, body, properties, timeout)

    @property
    def late_replies(self) -> int:
        """Number of replies that came too late, after their request had ended."""
        return self._started().instance.requests.late

    async def recall(self, topic: str, recall_handle: str, *, timeout: float | None = None) -> str:
        """Cancel a delayed message before its delivery, and return the message's id.

        ``recall_handle`` is the handle in ``SendResult.recall_handle``. ``client/recall.py`` lists
        the errors.
        """
        check_timeout(timeout)
        timeout = self._rules.timeout if timeout is None else timeout
        topic = self._wire_topic(topic)
        return await recall_message(self._ready(), topic, recall_handle, timeout, self._tracing)

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of ``topic``.

        One of them can be passed to ``send`` as ``queue``. Raises RouteNotFoundError, and
        ConfigError for an illegal topic name.
        """
        topic = self._wire_topic(topic)
        fault = topic_fault(topic)
        if fault is not None:
            raise ConfigError(fault)
        route = await self._ready().route(topic, self._rules.timeout)
        return tuple(unwrapped(self._namespace, queue) for queue in route.publish_queues)

    def _wire_topic(self, topic: str) -> str:
        TOPIC.check("topic", topic)
        return wrap(self._namespace, topic)
