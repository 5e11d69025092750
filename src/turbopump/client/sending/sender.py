"""Sending what is packed: the short way of a message, and what all messages of a producer share.

One rule: the short way does nothing that the whole one (``send_attempts.py``) would not; it only
leaves out what is not needed. Source: apache/rocketmq ``DefaultMQProducerImpl.sendDefaultImpl``.
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
from turbopump.client.sending.outgoing import LARGE_BODY_SIZE, Outgoing, Packer, SendFrames
from turbopump.client.sending.queue_chooser import FaultStrategy, QueueSelection
from turbopump.client.sending.send_attempts import SendAttempts, Target
from turbopump.errors import (
    CallTimeoutError,
    ClientErrorCode,
    RemotingError,
    RouteNotFoundError,
    SendError,
)
from turbopump.message.message import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import LanguageCode
from turbopump.protocol.command import Command, TypedJsonHeader
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.topics import FLAG_UNIT, CreateTopic
from turbopump.remoting.client import Permits
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
    """``timeout``: seconds that a send may take with all its retries; ``attempt_timeout``: that one
    attempt may take while others could follow. ``retries``: attempts after the first.
    ``retry_codes``: answers that another broker might not give. ``retry_unless_ok``: try another
    broker if the message is stored, but not as safely as promised."""

    timeout: float = SEND_TIMEOUT_S
    attempt_timeout: float | None = None
    retries: int = RETRIES
    retry_codes: frozenset[int] = send_result.RETRYABLE_CODES
    retry_unless_ok: bool = False


@dataclass(eq=False)
class Sender:
    """Sends what is packed, for one producer."""

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
    """Whether a broker must know this client before it gets a message."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """What runs beside sending until the producer is closed."""

    def __post_init__(self) -> None:
        self.creation = TopicCreation(self.instance)
        self.encode = self.frames.encode
        self.now_ms = self.instance.environment.clock.now_ms
        self._time = asyncio.get_running_loop().time
        self._known = self.instance.routes.known
        self.vip_channel = self.instance.vip_channel
        channel = self.vip_channel or self.instance.remoting
        self.connection, self.connect = channel.connection, channel.connect
        self._short = not self.hooks and self.rules.attempt_timeout is None
        self._retries = self.rules.retries > 0
        self.hangs = HangWatch(self.instance, self.under_way, self.rules.timeout)

    def introducing(self) -> Sender:
        """A copy that sends only to brokers that know this client, for they will call back."""
        other = copy(self)
        other.introduces, other._short = True, False
        return other

    async def deliver(
        self, outgoing: Outgoing, target: Target = None, timeout: float | None = None
    ) -> send_result.SendResult:
        """Returns when a broker has stored it. Raises as ``Producer.send``."""
        if timeout is None:
            timeout = self.rules.timeout
        elif timeout <= 0:
            raise send_result.no_time(outgoing.msg_id, self.shown(outgoing.topic), timeout)
        began = self._time()
        first: send_result.Attempt | None = None
        under_way = self.under_way
        under_way.count += 1
        try:
            if under_way.count > under_way.limit:
                timeout = await self._turn(under_way, outgoing, timeout)
                began = self._time()
            if len(outgoing.body) >= LARGE_BODY_SIZE:
                outgoing = await self.packer.compressed(outgoing)
                began = self._time()  # the time-out is for brokers, not for this
            route = self._known.get(outgoing.topic)
            if (
                target is None
                and route is not None
                and self._short
                and self.faults.empty
                and is_usual(route)
            ):
                queue = self.selection.choose(route)
                address = route.master(queue.broker_name) or ""
                connection = self.connection(address)
                if connection is not None:
                    kind = send_result.BOUND_SEND_ANSWER
                    if route.spread and self._retries:
                        kind = send_result.SEND_ANSWER
                        if not self.hangs.on:
                            self.hangs.start()
                    try:
                        answer = await self.ask(connection, outgoing, queue, timeout, kind)
                        now = self._time()
                        if self.faults.settings is not None:
                            self.faults.succeeded(queue.broker_name, (now - began) * 1000, now)
                        result = send_result.result_of(answer, outgoing, queue, address)
                        self.statistics.count_stored(queue.broker_name, now - began)
                        if (
                            result.status is send_result.SendStatus.OK
                            or not self.rules.retry_unless_ok
                        ):
                            return result
                        first = send_result.Attempt(
                            queue, address, result.status.value, None, result
                        )
                    except RemotingError as error:
                        first = send_result.Attempt(queue, address, str(error), error)
            return await SendAttempts(self, outgoing, target, began, timeout).until_stored(first)
        except (SendError, RouteNotFoundError):
            self.statistics.given_up += 1
            raise
        finally:
            under_way.count -= 1  # 50 ns less than ``with``
            if under_way.watched:
                under_way.wake()

    async def _turn(self, permits: Permits, outgoing: Outgoing, timeout: float) -> float:
        """The seconds that are left when there is a permit. Raises SendError."""
        began = self._time()
        try:
            await permits.turn(began + timeout)
        except TimeoutError:
            spent_ms = (self._time() - began) * 1000
            oneway = permits is self.oneways
            raise send_result.no_room(
                outgoing.msg_id,
                self.shown(outgoing.topic),
                f"for {spent_ms:.0f} ms {permits.limit} {'oneway ' if oneway else ''}sends of this "
                "producer were under way, and that is the most that may "
                f"({'oneway_permits' if oneway else 'async_permits'}). Nothing was stored: send "
                "less at once, or check the broker's load",
                spent_ms,
                ClientErrorCode.ACCESS_BROKER_TIMEOUT,
            ) from None
        return max(timeout - (self._time() - began), 0.001)

    def pool_address(self, address: str) -> str:
        """Where the connection leads to by which a broker is sent to."""
        return address if self.vip_channel is None else self.vip_channel.address(address)

    def shown(self, topic: str) -> str:
        """The topic as the user knows it, for what he reads."""
        return unwrap(self.namespace, topic)

    async def send_oneway(self, outgoing: Outgoing, target: Target) -> None:
        began, timeout = self._time(), self.rules.timeout
        oneways = self.oneways
        oneways.count += 1
        try:
            if oneways.count > oneways.limit:
                await self._turn(oneways, outgoing, timeout)
            if len(outgoing.body) >= LARGE_BODY_SIZE:
                outgoing = await self.packer.compressed(outgoing)
                began = self._time()
            await SendAttempts(self, outgoing, target, began, timeout).oneway()
        finally:
            oneways.count -= 1
            if oneways.watched:
                oneways.wake()

    def close(self) -> None:
        """Nothing more is sent, by this one or its copies; what waits for its answer still gets
        it."""
        self.under_way.closed = True
        self._short = False

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
        """A route with queues to send to, or any if it need not be ``writable``; the topic is made
        if it is new. Name servers that keep silent are asked again until ``timeout`` seconds are
        over. Raises RouteNotFoundError."""
        known = self._known.get(topic)
        if known is not None and is_usual(known):
            return known
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout
        try:
            async with asyncio.timeout_at(deadline):
                route = await self._found(topic, writable)
        except TimeoutError:
            asked = ", ".join(self.instance.routes.name_servers)
            waited = f"{timeout:.1f}"
            remedy = (
                "Check the name server address, and that it runs; `turbopump doctor` tells more"
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
            route = self._known.get(topic, route)
        if writable and not route.publish_queues:
            raise RouteNotFoundError(
                f"no route to topic {self.shown(topic)!r}: it has no writable queue. Check its "
                "permission (perm 6 allows reading and writing) and that the master of its broker "
                f"is up: `turbopump doctor -t {topic}` says what is wrong"
            )
        return route

    async def _found(self, topic: str, writable: bool) -> TopicRoute:
        """What the name servers know, asked until they answer. Raises RouteNotFoundError."""
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
    """Whether the topic exists, with queues to send to."""
    return not route.inherited and bool(route.publish_queues)


@dataclass(slots=True, eq=False)
class PendingSends(Permits):
    """What a producer has under way, for a close to wait for; all its senders share one."""

    closed: bool = False
    """Nothing is sent from now on, and what fails is not tried again."""

    def refuse_if_closed(self, why: str) -> None:
        """Raises ProducerClosedError, with ``why``, after the close."""
        if self.closed:
            raise send_result.ProducerClosedError(why)


HANG_SHARE: Final = 1 / 3
"""Of ``send_timeout``: after so long without a byte from a broker it is asked whether it lives, and
has as long to answer; the last third is for another broker."""
HANG_PATIENCE_MAX_S: Final = 3.0


class HangWatch:
    """Lets sends leave a broker that hangs (its process is stopped, its machine is gone) for
    another one.

    A broker may be slow for good reasons: under SYNC_FLUSH a send waits for its disk, with replicas
    for their answers, by default for up to 5 s. Who went elsewhere then would store messages twice.
    So a broker that says nothing while sends wait is asked something that needs neither, and only
    if no byte of an answer comes the sends that may go elsewhere end with BrokerHangsError. A timer
    for each producer, and only while sends are under way.
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
        """The brokers for which sends waited at the last look."""
        self._asked: set[str] = set()

    def start(self) -> None:
        self.on = True
        self._waiting.clear()
        self._loop.call_later(self._patience / 2, self._look)

    def _look(self) -> None:
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
                    self._instance.spawn(self._ask(address, connection), name=f"look at {address}")
        self._waiting, self._looked_at = waiting, self._loop.time()
        self._loop.call_later(self._patience / 2, self._look)

    async def _ask(self, address: str, connection: Wire) -> None:
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
    """Has each new topic made once, before its first message, on every master that lets new topics
    inherit; nothing here can fail a send, and the log says where a topic is that could not be made.

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
        """Topics that could not be made, and why; logged when a broker gets the first message."""

    async def make(self, route: TopicRoute, timeout: float) -> None:
        """Make the topic of an inherited route; returns after ``timeout`` seconds at the latest."""
        task = self._making.get(route.topic)
        if task is None:
            work = self._make(route, timeout)
            task = self._instance.spawn(work, name=f"creation of {route.topic}")
            self._making[route.topic] = task
        await asyncio.wait({task}, timeout=timeout)

    def landed(self, queue: MessageQueue) -> None:
        """The first message of a topic that could not be made is on this broker."""
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
