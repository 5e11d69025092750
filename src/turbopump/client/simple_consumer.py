"""Simple consumer. The user asks for messages, and acknowledges each message.

A received message is invisible to other consumers for a limited time. One rule: the consumer
acknowledges nothing by itself. A message that is not acknowledged in time is delivered again to any
member of the group. This file holds the consumer's start, close and user calls. It must not know
how messages are fetched. Source: apache/rocketmq-clients ``SimpleConsumer``; on the wire,
apache/rocketmq's POP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from turbopump import errors
from turbopump.client.consumer.group_consumer import GroupConsumer, RunningMember
from turbopump.client.consumer.pop import (
    ANSWER_S,
    BATCH_MAX,
    WAIT_S,
    PoppedMessage,
    PopResult,
    init_mode_of,
)
from turbopump.client.consumer.pop_requests import TIMEOUT_S as CALL_TIMEOUT_S
from turbopump.client.consumer.pop_requests import PopRequests, introduced_master
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import SimpleConsumerSettings
from turbopump.client.consumer.subscription import ALL, Subscription, Wanted
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.instrumentation import receiving, settling
from turbopump.client.lifecycle import Lifecycle
from turbopump.client.namespace import unwrap, wrap
from turbopump.client.setting_rules import SECONDS, TIMEOUT, check_timeout, whole_from
from turbopump.client.settings import ClientSettings, keywords_of
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import ConsumerData, ConsumeType
from turbopump.protocol.requests.pop import Notification, NotificationReply
from turbopump.remoting.client import refused_by

__all__ = ["PoppedMessage", "SimpleConsumer"]

log = logging.getLogger(__name__)
ANY_QUEUE: Final = -1
PAUSE_S: Final = 1.0
"""Time in seconds for which a broker that failed, or a topic that does not exist, is skipped."""
HASTE_S: Final = 0.05
"""Pause in seconds before a broker is asked again that announced messages but returned none."""
INVISIBLE_S: Final = 60.0
TIMEOUT_S: Final = 15.0
CLOSE_PATIENCE_S: Final = 3.0
_MESSAGES: Final = whole_from(1)

Error = errors.RemotingError | errors.ProtocolError | errors.RouteNotFoundError


class SimpleConsumer(GroupConsumer["RunningSimple"]):
    """Group member that receives messages on request. The user acknowledges each message
    separately.

    Use it as ``async with SimpleConsumer("127.0.0.1:9876", group="g", topic="t") as consumer:``,
    then ``await consumer.receive()`` and ``await consumer.ack(message)``. The keywords are the
    fields of ``SimpleConsumerSettings``; docs/reference/client-settings.md explains them. Raises
    ConfigError for unusable settings.

    Brokers assign each message separately and record which ones are done. Any number of consumers
    and tasks may receive at once. Messages have no order unless ``ordered``. Apache's brokers
    support this from 5.0 on. Methods may raise a RemotingError, and NotStartedError before
    ``start`` and after ``close``.
    """

    _settings: SimpleConsumerSettings

    @keywords_of(SimpleConsumerSettings)
    def __init__(self, settings: SimpleConsumerSettings) -> None:
        super().__init__(settings)
        self.lifecycle: Lifecycle[RunningSimple] = Lifecycle("SimpleConsumer")

    # --- start and close

    async def start(self) -> None:
        """Start the consumer and register the group with the brokers.

        A topic that does not exist yet is no error. Raises RouteNotFoundError if no name server
        answers, and NotStartedError after ``close``. A start that fails or is cancelled may be
        called again.
        """
        if self.lifecycle.may_start():
            await self._start()

    async def close(self) -> None:
        """Leave the group, and end waiting ``receive`` calls with an empty list.

        Messages that are not acknowledged are delivered again when their invisible time ends. A
        second call is harmless.
        """
        await self.lifecycle.close_once()

    # --- receiving

    async def subscribe(self, topic: str, tags: Wanted = ALL) -> None:
        """Subscribe to ``topic``, or change the tags of its subscription.

        This method may be called before and after ``start``. Raises ConfigError for an unusable
        topic or filter.
        """
        self._subscribe(topic, tags)
        if self.lifecycle.running is not None:
            await self.lifecycle.ready().instance.introduce_all()

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic`` and remove its subscription. An unknown topic is no
        error."""
        self._subscriptions.pop(wrap(self._namespace, topic), None)
        if self.lifecycle.running is not None:
            await self.lifecycle.ready().instance.introduce_all()

    @property
    def subscriptions(self) -> Mapping[str, Wanted]:
        """Subscribed topics, with the tags or filter of each."""
        return {
            unwrap(self._namespace, one.topic): one.wanted for one in self._subscriptions.values()
        }

    async def receive(
        self,
        max_messages: int = BATCH_MAX,
        invisible_seconds: float = INVISIBLE_S,
        timeout: float = TIMEOUT_S,
    ) -> list[PoppedMessage]:
        """Wait for messages, and return at most ``max_messages`` of one topic and broker.

        The list is empty if no message arrives within ``timeout`` seconds, or the consumer is
        closed. The messages are invisible to the rest of the group for ``invisible_seconds``.
        Acknowledge each in that time, or extend the time. If the call is cancelled, popped messages
        are returned to the broker.

        Raises ConfigError for unusable arguments, and RemotingError or RouteNotFoundError if no
        broker could be asked before the timeout.
        """
        _MESSAGES.check("max_messages", max_messages)
        SECONDS.check("invisible_seconds", invisible_seconds)
        TIMEOUT.check("timeout", timeout)
        if not self._subscriptions:
            raise errors.ConfigError("nothing to receive: give topic=… or call subscribe(topic)")
        running = self.lifecycle.ready()
        with receiving(self.group) as messages:
            messages += await running.receive(max_messages, invisible_seconds, timeout)
        return messages

    # --- acknowledging

    async def ack(
        self, messages: PoppedMessage | Iterable[PoppedMessage], *, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """Acknowledge one or more messages. Brokers do not deliver acknowledged messages again.

        The call returns when the brokers have answered. Several messages go to each broker in one
        request, which has one answer for all. A late or repeated acknowledgement is no error.
        Raises ResponseError if a broker refuses (code 208: the queue has no such offset), or
        another RemotingError if the broker was not reached. The message may be delivered again
        then.
        """
        check_timeout(timeout)
        running = self.lifecycle.ready()
        several = [messages] if isinstance(messages, PoppedMessage) else list(messages)
        for message in several:
            _refuse_others(message)
        with settling(several, self.group):
            await running.requests.acknowledge(several, timeout=timeout)

    async def change_invisible_time(
        self, message: PoppedMessage, seconds: float, *, timeout: float = CALL_TIMEOUT_S
    ) -> str:
        """Set the remaining invisible time of a message to ``seconds``.

        Use this to get more time for a message, or to postpone it. The message is delivered again
        after that time, and the attempt is counted then. Returns the message's new handle, which is
        also set as ``message.handle``. Raises ConfigError for an unusable number, and
        RemotingError.
        """
        SECONDS.check("seconds", seconds)
        check_timeout(timeout)
        _refuse_others(message)
        message.handle = await self.lifecycle.ready().requests.change_invisible_time(
            message, seconds, timeout=timeout
        )
        return message.handle

    # --- internals

    def consumer_data(self) -> ConsumerData:
        settings = self._settings
        return self._data(ConsumeType.CONSUME_POP, settings.consume_from, ordered=settings.ordered)

    def _make_running(
        self, instance: ClientInstance, member: InstanceMember, _settings: ClientSettings
    ) -> RunningSimple:
        return RunningSimple(instance, member, self._settings, self._subscriptions)


def _refuse_others(message: object) -> None:
    if not isinstance(message, PoppedMessage):
        raise TypeError(
            f"{message!r:.80} is not a message of a SimpleConsumer: pass a message that "
            "`receive` returned"
        )


class RunningSimple(RunningMember):
    """State of a simple consumer from start to close.

    Every broker of every topic in ``subscriptions`` is asked, one after another. A message is
    popped only when a reader waits. If no broker has a message, long polls ask the brokers to
    announce new ones. A pop whose reader has gone is returned to the broker. A message becomes a
    dead letter after ``max_reconsume_times`` retries. With ``ordered`` there are no dead letters,
    because brokers count attempts for a whole pop, not for a message.
    """

    def __init__(
        self,
        instance: ClientInstance,
        member: InstanceMember,
        settings: SimpleConsumerSettings,
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        super().__init__(instance, member)
        retries_max = settings.max_reconsume_times
        namespace = settings.namespace
        self._backs = SendBack(instance, member.group, retries_max, namespace)
        self.requests = PopRequests(
            instance,
            member.group,
            init_mode_of(settings.consume_from),
            namespace,
            self._backs,
            None if settings.ordered else retries_max,
        )
        self._group = member.group
        self._subscriptions = subscriptions
        self._ordered = settings.ordered
        self._unanswered: dict[str, str] = {}
        """Attempt id of an ordered pop that got no answer, by topic and broker. The broker may have
        popped messages."""
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._failed: dict[str, Error] = {}
        self._asked_again_at: dict[str, float] = {}
        self._late: set[asyncio.Task[PopResult[PoppedMessage]]] = set()
        self._closed = asyncio.Event()

    async def close(self) -> None:
        """End waiting readers, return unread messages to the brokers, and leave the group.

        Requests that are being sent are finished first. The group is left even if something before
        fails.
        """
        self._closed.set()
        try:
            if self._late:
                await asyncio.wait(self._late, timeout=CLOSE_PATIENCE_S)
                await asyncio.sleep(0)  # let their callbacks run
            await self._backs.finish(CLOSE_PATIENCE_S)
            await self.requests.finish(CLOSE_PATIENCE_S)
        finally:
            await self.instance.leave(self.member)

    async def receive(self, count: int, invisible_s: float, timeout: float) -> list[PoppedMessage]:
        """Wait for messages of one topic and broker, and return at most ``count``.

        The list is empty after ``timeout`` seconds or once the consumer is closed. If no broker
        could be asked by then, the last error is raised: RemotingError, ProtocolError, or
        RouteNotFoundError.
        """
        deadline = self._loop.time() + timeout
        announced = False
        while not self._closed.is_set():
            sources = await self._sources()
            messages = await self._first_that_has(sources, count, invisible_s)
            if messages and not self._closed.is_set():
                return messages
            self._give_back(messages)
            left = deadline - self._loop.time()
            if left <= 0:
                if not any(self._may_ask(str(source)) for source in sources):
                    self._raise_failure()
                break
            if announced:
                await asyncio.sleep(min(left, HASTE_S))
            announced = await self._something_came(sources, min(left, WAIT_S))
        return []

    # --- brokers to ask

    async def _sources(self) -> list[MessageQueue]:
        """Return all pairs of a subscribed topic and a broker. The starting pair changes with each
        call."""
        sources: list[MessageQueue] = []
        for topic in list(self._subscriptions):
            if not self._may_ask(topic):
                continue
            try:
                route = await self.instance.routes.get(topic)
            except errors.RouteNotFoundError as error:
                self._source_failed(topic, error)
                continue
            self._source_works(topic)
            brokers = sorted({queue.broker_name for queue in route.subscribe_queues})
            sources += [
                MessageQueue(topic, name, ANY_QUEUE)
                for name in brokers
                if route.master(name) is not None
            ]
        self._turn += 1
        at = self._turn % len(sources) if sources else 0
        return sources[at:] + sources[:at]

    def _may_ask(self, source: str) -> bool:
        return self._asked_again_at.get(source, 0.0) <= self._loop.time()

    def _source_failed(self, source: str, error: Error) -> None:
        if source not in self._failed:  # log the first failure, and later the recovery
            log.warning(
                "receiving failed, is repeated group=%s source=%s cause=%s",
                self._group,
                source,
                error,
            )
        self._failed.pop(source, None)
        self._failed[source] = error
        self._asked_again_at[source] = self._loop.time() + PAUSE_S

    def _broker_failed(self, source: MessageQueue, error: Error) -> None:
        self._source_failed(str(source), error)
        self.instance.routes.renew_after_failure(source.topic, error)

    def _source_works(self, source: str) -> None:
        if self._failed.pop(source, None) is not None:
            log.info("receiving works again group=%s source=%s", self._group, source)
        self._asked_again_at.pop(source, None)

    def _raise_failure(self) -> None:
        for error in reversed(self._failed.values()):
            if (
                not isinstance(error, errors.RouteNotFoundError)
                or not self.instance.routes.name_server_answers
            ):
                raise error

    # --- popping

    async def _first_that_has(
        self, sources: Sequence[MessageQueue], count: int, invisible_s: float
    ) -> list[PoppedMessage]:
        messages: list[PoppedMessage] = []
        try:
            for source in sources:
                await self._pop_into(messages, source, count, invisible_s)
                if messages:
                    break
        except BaseException:  # the messages of earlier pops reach no caller
            self._give_back(messages)
            raise
        return messages

    async def _pop_into(
        self, messages: list[PoppedMessage], source: MessageQueue, count: int, invisible_s: float
    ) -> None:
        """Pop messages of a topic from a broker and append them to ``messages``.

        Popping ends when there are ``count`` messages or the broker has no more. A broker returns
        at most 32 per request.
        """
        while len(messages) < count and self._may_ask(str(source)):
            batch = min(count - len(messages), BATCH_MAX)
            try:
                found = await self._pop_once(source, batch, invisible_s)
            except (errors.RemotingError, errors.ProtocolError) as error:
                self._broker_failed(source, error)
                break
            self._source_works(str(source))
            messages += found.messages
            if found.came < batch:
                break

    async def _pop_once(
        self, source: MessageQueue, batch: int, invisible_s: float
    ) -> PopResult[PoppedMessage]:
        # A pop makes messages invisible at the broker, even if the caller of ``receive`` is gone
        # when the answer arrives. So the request runs in a task of its own, which a cancellation of
        # the caller does not reach (``shield``). Its messages are then returned to the broker,
        # instead of being invisible for a minute. An ordered pop blocks its queue until its
        # messages are acknowledged. If its answer is lost, the next pop repeats the attempt id, and
        # the broker returns the same messages again.
        attempt_id = None
        if self._ordered:
            new = f"{self.instance.environment.random.getrandbits(128):032x}"
            attempt_id = self._unanswered.pop(str(source), new)
        popping = self._loop.create_task(
            self.requests.pop(
                self._subscriptions[source.topic],
                source,
                PoppedMessage,
                batch=batch,
                invisible_s=invisible_s,
                wait_s=0.0,
                attempt_id=attempt_id,
            ),
            name=f"turbopump pop {source}",
        )
        try:
            return await asyncio.shield(popping)
        except errors.RemotingError:
            if attempt_id is not None:
                self._unanswered[str(source)] = attempt_id
            raise
        except asyncio.CancelledError:
            self._late.add(popping)
            popping.add_done_callback(self._came_late)
            raise

    def _came_late(self, popping: asyncio.Task[PopResult[PoppedMessage]]) -> None:
        self._late.discard(popping)
        if not popping.cancelled() and popping.exception() is None:
            self._give_back(popping.result().messages)

    def _give_back(self, messages: Sequence[PoppedMessage]) -> None:
        for message in messages:
            self.requests.give_back(message)

    # --- waiting

    async def _something_came(self, sources: Sequence[MessageQueue], seconds: float) -> bool:
        """Wait until a broker announces messages. Return True if this happens within ``seconds``.

        The wait lasts at most 1 s if no broker can be asked.
        """
        asked = [source for source in sources if self._may_ask(str(source))]
        waits = {self._loop.create_task(self._has_something(source, seconds)) for source in asked}
        if not asked:
            waits.add(self._loop.create_task(_after(min(seconds, PAUSE_S))))
        closing = self._loop.create_task(self._closed.wait())
        try:
            while waits and not closing.done():
                done, _ = await asyncio.wait({*waits, closing}, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result() for task in done & waits):
                    return True
                waits -= done
            return False
        finally:
            for task in (*waits, closing):
                task.cancel()
            await asyncio.gather(*waits, closing, return_exceptions=True)

    async def _has_something(self, source: MessageQueue, seconds: float) -> bool:
        asked = self._loop.time()
        try:
            address = await introduced_master(self.instance, source)
            request = Notification(
                consumer_group=self._group,
                topic=source.topic,
                queue_id=ANY_QUEUE,
                poll_time=int(seconds * 1000),
                born_time=0,
                order=self._ordered,
            )
            command = await self.instance.remoting.exchange(
                address, request, timeout=seconds + ANSWER_S
            )
            if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                await asyncio.sleep(min(seconds, PAUSE_S))
                return True  # the broker cannot announce messages: pop
            if command.code != ResponseCode.SUCCESS:
                raise refused_by(address, request, command)
            has_something = command.header(NotificationReply).has_msg
        except (errors.RemotingError, errors.ProtocolError) as error:
            self._broker_failed(source, error)
            return False
        if not has_something:  # the broker may answer at once, if too many polls wait
            await asyncio.sleep(max(min(seconds, PAUSE_S) - (self._loop.time() - asked), 0.0))
        return has_something


async def _after(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return False
