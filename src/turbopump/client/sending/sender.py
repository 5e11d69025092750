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
from turbopump.client.sending.hanging_brokers import HangWatch
from turbopump.client.sending.outgoing import Outgoing, Packer, SendFrames
from turbopump.client.sending.queue_chooser import FaultStrategy, QueueSelection
from turbopump.client.sending.topic_creation import TopicCreation
from turbopump.client.topic_route import TopicRoute
from turbopump.errors import ClientErrorCode, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.protocol.command import Command, TypedJsonHeader
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

        With ``writable``, the route has queues to send to. For ``timeout`` seconds, name servers
        that do not answer are asked again, and brokers without a master are waited for. Raises
        RouteNotFoundError if there is no such route.
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
            known = self.known.get(topic)
            if known is not None and known.lacks_master():
                raise self._no_master(known, timeout) from None
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

    def _no_master(self, route: TopicRoute, timeout: float) -> RouteNotFoundError:
        brokers = ", ".join(sorted(route.masterless))
        return RouteNotFoundError(
            f"no route to topic {self.shown_topic(route.topic)!r}: it has no writable queue, and "
            f"no broker of it ({brokers}) got a master within {timeout:.1f} s. Start the master, "
            f"or with a controller more replicas; `turbopump doctor -t {route.topic}` shows more",
            code=ClientErrorCode.BROKER_NOT_EXIST,
        )

    async def _known_route(self, topic: str, writable: bool) -> TopicRoute:
        """Return the route of ``topic``. The request is repeated until a name server answers.

        Raises RouteNotFoundError if the topic has no route.
        """
        routes = self.instance.routes
        while True:
            try:
                route = await routes.get(topic, inherit=True)
                if not writable:
                    return route
                if not route.publish_queues and not route.masterless:
                    route = await routes.refresh(topic, inherit=True)
                while route.lacks_master() and not self.under_way.closed:
                    route = await routes.next_route(route)
                return route
            except NameServersSilentError:
                await asyncio.sleep(SILENCE_PAUSE_S)
            except RouteNotFoundError as error:
                if self.namespace is None:
                    raise
                text = str(error).replace(repr(topic), repr(self.shown_topic(topic)), 1)
                raise type(error)(text, code=error.code) from None


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
