"""Shared state of all sends of one producer: settings, connections, routes, faults, counts.

``send_attempts.py`` sends one message. Source: apache/rocketmq
``DefaultMQProducerImpl.sendDefaultImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from turbopump.client.hooks import SendHooks
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.client.routes import NameServersSilentError
from turbopump.client.sending import send_result
from turbopump.client.sending.outgoing import Outgoing, Packer, SendFrames
from turbopump.client.sending.queue_chooser import FaultStrategy, QueueSelection
from turbopump.client.topic_route import DEFAULT_TOPIC_QUEUES, READABLE, WRITABLE, TopicRoute
from turbopump.errors import CallTimeoutError, ClientErrorCode, RemotingError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import LanguageCode
from turbopump.protocol.command import Command, TypedJsonHeader
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.topics import FLAG_UNIT, CreateTopic
from turbopump.remoting.permits import Permits
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)

LITTLE_S: Final = 0.1
"""Timeout in seconds below which a failure is blamed on the timeout, not on the name server."""
SILENCE_PAUSE_S: Final = 0.1
"""Seconds to pause before name servers that did not answer are asked again."""
SEND_TIMEOUT_S: Final = 3.0
RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class SendRules:
    """Rules by which a failed send is retried.

    - ``timeout``: seconds for a send with all its retries.
    - ``attempt_timeout``: seconds for one attempt while others may follow. None for no limit.
    - ``retries``: maximum number of attempts after the first.
    - ``retry_codes``: response codes after which another broker is tried.
    - ``retry_unless_ok``: True also tries another broker if the message is stored with a status
      other than OK.
    """

    timeout: float = SEND_TIMEOUT_S
    attempt_timeout: float | None = None
    retries: int = RETRIES
    retry_codes: frozenset[int] = send_result.RETRYABLE_CODES
    retry_unless_ok: bool = False


@dataclass(eq=False)
class Sender:
    """Shared state of all sends of one producer."""

    instance: ClientInstance
    rules: SendRules
    packer: Packer
    frames: SendFrames
    selection: QueueSelection
    faults: FaultStrategy
    hooks: SendHooks
    group: str
    namespace: str | None = None
    statistics: send_result.SendStatistics = field(default_factory=send_result.SendStatistics)
    under_way: PendingSends = field(default_factory=lambda: PendingSends())
    oneways: Permits = field(default_factory=Permits)
    introduces: bool = False
    """True if a broker must get this client's heartbeat before its first message."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """Background tasks, which run until the producer is closed."""

    def __post_init__(self) -> None:
        self.creation = TopicCreation(self.instance)
        self.encode = self.frames.encode
        self.now_ms = self.instance.environment.clock.now_ms
        self.time = asyncio.get_running_loop().time
        self.known = self.instance.routes.known
        remoting = self.instance.remoting
        self.connection = remoting.connection
        self.connect = remoting.connect
        self.short = not self.hooks and self.rules.attempt_timeout is None
        self.may_retry = self.rules.retries > 0
        self.hangs = HangWatch(self.instance, self.under_way, self.rules.timeout)

    def introducing(self) -> Sender:
        """Return a copy of this sender. It sends this client's heartbeat to each broker before the
        first message.

        The brokers will send requests to the client later. A broker that already knows the client
        gets no second heartbeat.
        """
        other = copy(self)
        other.introduces = True
        other.short = False
        return other

    def shown_topic(self, topic: str) -> str:
        """Return the name by which the user knows ``topic``, for texts."""
        return unwrap(self.namespace, topic)

    def close(self) -> None:
        """Refuse new sends by this sender and its copies. Sends in flight still get their
        answers."""
        self.under_way.closed = True
        self.short = False

    def ask(
        self,
        connection: Wire,
        outgoing: Outgoing,
        queue: MessageQueue,
        timeout: float,
        kind: send_result.AnswerKind,
    ) -> asyncio.Future[TypedJsonHeader[send_result.SendAnswer] | Command]:
        opaque = connection.calls.next_opaque
        frame = self.encode(outgoing, queue, opaque, self.now_ms())
        return connection.start_call(opaque, frame, timeout, kind)

    async def route(self, topic: str, timeout: float, *, writable: bool = True) -> TopicRoute:
        """Return the route of ``topic``. A topic that does not exist is created.

        With ``writable``, the route has queues to send to. Name servers that do not answer are
        asked again for ``timeout`` seconds. Raises RouteNotFoundError if there is no such route.
        """
        known = self.known.get(topic)
        if known is not None and is_usual(known):
            return known
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout
        try:
            async with asyncio.timeout_at(deadline):
                route = await self._known_route(topic, writable)
        except TimeoutError:
            asked = ", ".join(self.instance.routes.name_servers)
            waited = f"{timeout:.1f}"
            remedy = (
                "Check the name server address, and that it runs; `turbopump doctor` shows more"
            )
            if timeout < LITTLE_S:
                waited = f"{timeout:.1g}"
                remedy = "This timeout is short for a request over the network: give the send more "
                remedy += "seconds"
            remedy = self.instance.stalls.explanation(began) or remedy
            raise RouteNotFoundError(
                f"no route to topic {self.shown_topic(topic)!r}: no name server answered in "
                f"{waited} s (asked: {asked}). {remedy}",
                code=ClientErrorCode.NO_NAME_SERVER,
            ) from None
        is_new = route.inherited and route.topic not in self.creation.tried
        if is_new and not self.under_way.closed:
            # the send itself needs time too
            await self.creation.create_topic(route, max(deadline - loop.time(), 0.001) / 2)
            route = self.known.get(topic, route)
        if writable and not route.publish_queues:
            raise RouteNotFoundError(
                f"no route to topic {self.shown_topic(topic)!r}: it has no writable queue. "
                "Check its permission (perm 6 allows reading and writing) and that the "
                f"master of its broker is up: `turbopump doctor -t {topic}` shows the "
                "cause"
            )
        return route

    async def _known_route(self, topic: str, writable: bool) -> TopicRoute:
        """Return the route of ``topic``. The request is repeated until a name server answers.

        Raises RouteNotFoundError if the topic has no route.
        """
        routes = self.instance.routes
        while True:
            try:
                route = await routes.get(topic, inherit=True)
                if writable and not route.publish_queues:
                    route = await routes.refresh(topic, inherit=True)
                return route
            except NameServersSilentError:
                await asyncio.sleep(SILENCE_PAUSE_S)
            except RouteNotFoundError as error:
                if self.namespace is None:
                    raise
                text = str(error).replace(repr(topic), repr(self.shown_topic(topic)), 1)
                raise RouteNotFoundError(text, code=error.code) from None


def is_usual(route: TopicRoute) -> bool:
    """Return True if the topic exists and has writable queues."""
    return not route.inherited and bool(route.publish_queues)


@dataclass(slots=True, eq=False)
class PendingSends(Permits):
    """Counter of a producer's sends in flight, shared by all its senders.

    ``close`` waits until the counter is 0.
    """

    closed: bool = False
    """True after the close. There are no new sends and no retries then."""

    def refuse_if_closed(self, why: str) -> None:
        """Raise ProducerClosedError with the text ``why`` if the producer was closed."""
        if self.closed:
            raise send_result.ProducerClosedError(why)


HANG_SHARE: Final = 1 / 3
"""Share of ``send_timeout`` after which a silent broker gets a request as a test. The broker has
the same time to answer. The last third is left for another broker."""
HANG_PATIENCE_MAX_S: Final = 3.0


class HangWatch:
    """Timer that moves sends away from a hanging broker.

    A broker hangs if its process is stopped or its machine is down. But a broker may also be slow
    for good reasons. Under SYNC_FLUSH a send waits for the disk, and with replicas for their
    answers, by default up to 5 s. A retry elsewhere would then store the message twice.

    So a broker that is silent while sends wait gets a request that needs neither disk nor replicas.
    Only if the broker sends no byte of an answer, sends that may use another broker end with
    BrokerHangsError. Each producer has one timer, which runs only while sends are in flight.
    """

    def __init__(
        self, instance: ClientInstance, under_way: PendingSends, send_timeout: float
    ) -> None:
        self._instance = instance
        self._under_way = under_way
        self._patience = min(send_timeout * HANG_SHARE, HANG_PATIENCE_MAX_S)
        self.on = False
        self._loop = asyncio.get_running_loop()
        self._looked_at = 0.0
        self._waiting: set[str] = set()
        """Brokers that had unanswered sends at the last check."""
        self._asked: set[str] = set()

    def start(self) -> None:
        self.on = True
        self._waiting.clear()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    def _check_silent_brokers(self) -> None:
        if not self._under_way.count:
            self.on = False
            return
        waiting: set[str] = set()
        for address, connection in self._instance.remoting.connections.items():
            if send_result.SEND_ANSWER in connection.calls.typed.values():
                waiting.add(address)
                silent = address in self._waiting and connection.last_read <= self._looked_at
                if silent and address not in self._asked:
                    self._asked.add(address)
                    self._instance.spawn(
                        self._ask_for_life(address, connection), name=f"check {address}"
                    )
        self._waiting = waiting
        self._looked_at = self._loop.time()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    async def _ask_for_life(self, address: str, connection: Wire) -> None:
        began = self._loop.time()
        question = GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0)
        try:
            await self._instance.remoting.exchange(address, question, timeout=self._patience)
        except CallTimeoutError:
            if connection.last_read <= began and not connection.closed:
                text = f"{address} hangs: it answers nothing"
                failed = connection.calls.fail_typed(
                    send_result.SEND_ANSWER, lambda: send_result.BrokerHangsError(text)
                )
                log.warning(
                    "broker hangs, its unanswered messages go to other brokers and may "
                    "be stored twice address=%s messages=%d",
                    address,
                    failed,
                )
        except RemotingError:
            pass  # the connection has ended, and with it the sends
        finally:
            self._asked.discard(address)


class TopicCreation:
    """Creator of new topics. A new topic is created before its first message is sent.

    Each topic is created once, on every master that allows automatic creation. A failure here fails
    no send. The log then names the broker that has the topic.

    Only this project's brokers are asked, because they do not change a topic that an operator has
    created meanwhile. RocketMQ: the first send creates the topic, only on the broker that receives
    it (``createTopicInSendMessageMethod``).
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._making: dict[str, asyncio.Task[None]] = {}
        self.tried: set[str] = set()
        """Topics that were created, or whose creation failed."""
        self.unsaid: dict[str, str] = {}
        """Reasons of failed creations by topic. Each is logged when a broker gets the first
        message."""

    async def create_topic(self, route: TopicRoute, timeout: float) -> None:
        """Create a new topic on the brokers, and wait at most ``timeout`` seconds.

        ``route`` is the route that the new topic inherits.
        """
        task = self._making.get(route.topic)
        if task is None:
            work = self._create_on_masters(route, timeout)
            task = self._instance.spawn(work, name=f"creation of {route.topic}")
            self._making[route.topic] = task
        await asyncio.wait({task}, timeout=timeout)

    def log_first_broker(self, queue: MessageQueue) -> None:
        """Log the only broker of a topic that could not be created. It got the topic's first
        message."""
        why = self.unsaid.pop(queue.topic, None)
        if why is not None:
            log.warning(
                "topic did not exist and could not be created topic=%s cause=%s: only "
                "broker %s, which got the first message, has it; create it with "
                "`turbopump topic create %s`",
                queue.topic,
                why,
                queue.broker_name,
                queue.topic,
            )

    async def _create_on_masters(self, route: TopicRoute, timeout: float) -> None:
        try:
            masters = [
                (address, count)
                for name, count in sorted(route.heirs.items())
                if (address := route.master(name)) is not None
            ]
            faults = await asyncio.gather(
                *(
                    self._create_on(route.topic, address, count, timeout)
                    for address, count in masters
                )
            )
            refused = [fault for fault in faults if fault is not None]
            if len(refused) == len(masters):
                self.unsaid[route.topic] = "; ".join(refused) or "no broker lets new topics inherit"
            else:
                if refused:
                    text = "new topic is not on every broker topic=%s cause=%s"
                    log.warning(text, route.topic, "; ".join(refused))
                await self._instance.routes.refresh(route.topic, inherit=True)
        except RouteNotFoundError as error:
            log.info("route of a new topic not known yet topic=%s cause=%s", route.topic, error)
        finally:
            self.tried.add(route.topic)
            del self._making[route.topic]

    async def _create_on(
        self, topic: str, address: str, default_queues: int, timeout: float
    ) -> str | None:
        queues = min(DEFAULT_TOPIC_QUEUES, default_queues)
        request = CreateTopic(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READABLE | WRITABLE,
            topic_sys_flag=FLAG_UNIT if self._instance.unit_mode else None,
            if_absent=True,
        )
        instance = self._instance
        try:
            # Apache's broker would change the queues of a topic that an operator has created
            if await instance.language(address) == LanguageCode.PYTHON:
                await instance.remoting.call(address, request, timeout=timeout)
        except RemotingError as error:
            return str(error)
        return None
