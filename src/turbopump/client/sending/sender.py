"""State that all sends of one producer share: settings, connections, routes, faults, counts.

One message is sent by ``send_attempts.py``. Source: apache/rocketmq
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
from turbopump.client.routes import (
    DEFAULT_TOPIC_QUEUES,
    READABLE,
    WRITABLE,
    NameServersSilentError,
    TopicRoute,
)
from turbopump.client.sending import send_result
from turbopump.client.sending.outgoing import Outgoing, Packer, SendFrames
from turbopump.client.sending.queue_chooser import FaultStrategy, QueueSelection
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
"""With a shorter timeout than this, the timeout is the likely cause of a failure, not the name
server."""
SILENCE_PAUSE_S: Final = 0.1
"""Wait before name servers that kept silent are asked again."""
SEND_TIMEOUT_S: Final = 3.0
RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class SendRules:
    """Rules of retries.

    ``timeout``: seconds that a send may take with all its retries. ``attempt_timeout``: seconds
    that one attempt may take while others could follow. ``retries``: attempts after the first.
    ``retry_codes``: answers that another broker might not give. ``retry_unless_ok``: try another
    broker if the message is stored, but not as safely as promised.
    """

    timeout: float = SEND_TIMEOUT_S
    attempt_timeout: float | None = None
    retries: int = RETRIES
    retry_codes: frozenset[int] = send_result.RETRYABLE_CODES
    retry_unless_ok: bool = False


@dataclass(eq=False)
class Sender:
    """State that all sends of one producer share."""

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
    """True if a broker must know this client before it gets a message."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """Tasks that run beside sending until the producer is closed."""

    def __post_init__(self) -> None:
        self.creation = TopicCreation(self.instance)
        self.encode = self.frames.encode
        self.now_ms = self.instance.environment.clock.now_ms
        self.time = asyncio.get_running_loop().time
        self.known = self.instance.routes.known
        remoting = self.instance.remoting
        self.connection, self.connect = remoting.connection, remoting.connect
        self.short = not self.hooks and self.rules.attempt_timeout is None
        self.may_retry = self.rules.retries > 0
        self.hangs = HangWatch(self.instance, self.under_way, self.rules.timeout)

    def introducing(self) -> Sender:
        """Return a copy that sends only to brokers that know this client, for they will call
        back."""
        other = copy(self)
        other.introduces, other.short = True, False
        return other

    def shown(self, topic: str) -> str:
        """Return the topic as the user knows it, for texts."""
        return unwrap(self.namespace, topic)

    def close(self) -> None:
        """Send nothing more, by this sender or its copies. A send on its way still gets its
        answer."""
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
        """Return a route with queues to send to, or any if it need not be ``writable``. The topic
        is made if it is new. Name servers that keep silent are asked again until ``timeout``
        seconds are over. Raises RouteNotFoundError."""
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
                remedy = "That is little time for a question over the network: give the send more "
                remedy += "seconds"
            remedy = self.instance.stalls.explanation(began) or remedy
            raise RouteNotFoundError(
                f"no route to topic {self.shown(topic)!r}: no name server answered in {waited} s "
                f"(asked: {asked}). {remedy}",
                code=ClientErrorCode.NO_NAME_SERVER,
            ) from None
        is_new = route.inherited and route.topic not in self.creation.tried
        if is_new and not self.under_way.closed:
            # the send itself needs time too
            await self.creation.make(route, max(deadline - loop.time(), 0.001) / 2)
            route = self.known.get(topic, route)
        if writable and not route.publish_queues:
            raise RouteNotFoundError(
                f"no route to topic {self.shown(topic)!r}: it has no writable queue. Check its "
                "permission (perm 6 allows reading and writing) and that the master of its broker "
                f"is up: `turbopump doctor -t {topic}` says what is wrong"
            )
        return route

    async def _known_route(self, topic: str, writable: bool) -> TopicRoute:
        """Return the route that the name servers know, asked until they answer. Raises
        RouteNotFoundError."""
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
                text = str(error).replace(repr(topic), repr(self.shown(topic)), 1)
                raise RouteNotFoundError(text, code=error.code) from None


def is_usual(route: TopicRoute) -> bool:
    """Return True if the topic exists, with queues to send to."""
    return not route.inherited and bool(route.publish_queues)


@dataclass(slots=True, eq=False)
class PendingSends(Permits):
    """Sends under way, for a close to wait for; all senders of a producer share one."""

    closed: bool = False
    """True: nothing is sent from now on, and a failed attempt is not tried again."""

    def refuse_if_closed(self, why: str) -> None:
        """Raises ProducerClosedError, with ``why``, after the close."""
        if self.closed:
            raise send_result.ProducerClosedError(why)


HANG_SHARE: Final = 1 / 3
"""Share of ``send_timeout``. After so long without a byte from a broker it is asked for a sign of
life, and has as long to answer; the last third is for another broker."""
HANG_PATIENCE_MAX_S: Final = 3.0


class HangWatch:
    """Let sends leave a broker that hangs (its process is stopped, its machine is gone) for another
    one.

    A broker may be slow for good reasons: under SYNC_FLUSH a send waits for its disk, with replicas
    for their answers, by default for up to 5 s. A send that went elsewhere then would be stored
    twice. So if a broker is silent while sends wait, it is asked something that needs neither disk
    nor replicas. Only if no byte of an answer comes, the sends that may go elsewhere end with
    BrokerHangsError. Each producer has one timer, and only while sends are under way.
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
        """Brokers for which sends waited at the last look."""
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
                        self._ask_for_life(address, connection), name=f"look at {address}"
                    )
        self._waiting, self._looked_at = waiting, self._loop.time()
        self._loop.call_later(self._patience / 2, self._check_silent_brokers)

    async def _ask_for_life(self, address: str, connection: Wire) -> None:
        began, question = self._loop.time(), GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0)
        try:
            await self._instance.remoting.exchange(address, question, timeout=self._patience)
        except CallTimeoutError:
            if connection.last_read <= began and not connection.closed:
                text = f"{address} hangs: it answers nothing"
                failed = connection.calls.fail_typed(
                    send_result.SEND_ANSWER, lambda: send_result.BrokerHangsError(text)
                )
                log.warning(
                    "broker hangs, other brokers are sent what it has not answered address=%s "
                    "messages=%d: what it has read already may be stored twice",
                    address,
                    failed,
                )
        except RemotingError:
            pass  # the connection has ended, and with it the sends
        finally:
            self._asked.discard(address)


class TopicCreation:
    """Have each new topic made once, before its first message, on every master that lets new topics
    inherit. A failure here fails no send; the log says where a topic is that could not be made.

    Only our brokers are asked to: they leave a topic alone that an operator has made meanwhile.
    RocketMQ: the topic comes into being at the first send, on the one broker that happens to get it
    (``createTopicInSendMessageMethod``).
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._making: dict[str, asyncio.Task[None]] = {}
        self.tried: set[str] = set()
        """Topics that were made, or could not be."""
        self.unsaid: dict[str, str] = {}
        """Reasons why topics could not be made; logged when a broker gets the first message."""

    async def make(self, route: TopicRoute, timeout: float) -> None:
        """Make the topic of an inherited route; return after ``timeout`` seconds at the latest."""
        task = self._making.get(route.topic)
        if task is None:
            work = self._make(route, timeout)
            task = self._instance.spawn(work, name=f"creation of {route.topic}")
            self._making[route.topic] = task
        await asyncio.wait({task}, timeout=timeout)

    def log_first_broker(self, queue: MessageQueue) -> None:
        """Log that the first message of a topic that could not be made is on this broker."""
        why = self.unsaid.pop(queue.topic, None)
        if why is not None:
            log.warning(
                "topic was not there and could not be created topic=%s cause=%s: for now it is on "
                "broker %s alone, which got its first message; create it with `turbopump topic "
                "create %s`",
                queue.topic,
                why,
                queue.broker_name,
                queue.topic,
            )

    async def _make(self, route: TopicRoute, timeout: float) -> None:
        try:
            masters = [
                (address, count)
                for name, count in sorted(route.heirs.items())
                if (address := route.master(name)) is not None
            ]
            faults = await asyncio.gather(
                *(self._make_on(route.topic, address, count, timeout) for address, count in masters)
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

    async def _make_on(
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
            # a broker of Apache's would give an operator's topic other queues
            if await instance.language(address) == LanguageCode.PYTHON:
                await instance.remoting.call(address, request, timeout=timeout)
        except RemotingError as error:
            return str(error)
        return None
