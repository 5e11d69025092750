"""The producer: takes a message, finds it a queue, and stays with it until a broker has it or the deadline is over.

One rule: the deadline of a send covers everything, routes, connections and retries; the error of a failed one lists what was tried.
It must not know how messages are consumed.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, overload

from turbopump.client.heartbeat import Member
from turbopump.client.identity import InstanceSettings
from turbopump.client.instance import ClientInstance
from turbopump.client.outgoing import COMPRESS_FROM, Outgoing, Packer
from turbopump.client.routes import TopicRoute
from turbopump.client.selection import RoundRobin
from turbopump.client.send_failure import failure_text
from turbopump.client.send_frame import SendFrames
from turbopump.client.send_result import RETRYABLE_CODES, STATUS_BY_CODE, SendResult
from turbopump.client.shared_instances import join_instance
from turbopump.client.surroundings import name_server_addresses, surroundings_of
from turbopump.clock import Clock
from turbopump.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectError,
    MessageError,
    NotStartedError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
    SendError,
)
from turbopump.message.ids import UniqueIds
from turbopump.message.message import BODY_SIZE_MAX, Message
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import group_fault
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import header_from_ext
from turbopump.protocol.requests.send import SendMessageReply

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
RETRY_PAUSE_S: Final = 0.1
"""Wait before the same broker is tried again; doubles each time."""


class Producer:
    """Sends messages. Use it as ``async with Producer("127.0.0.1:9876") as producer: await producer.send("topic", b"body")``.

    ``namesrv``: ``"host:port"``, several separated by ``;``, or a list. ``group``: the producer group. ``instance_name`` and ``unit_name``:
    make the client id ``ip@instance_name[@unit_name]``; by default one per process, whose clients share connections.
    ``send_timeout``: seconds that a send
    may take with all its retries. ``retries``: further brokers (or the same again) tried after a failure. ``compress_from``: body size
    in bytes from which bodies are compressed (zlib); None: never. ``clock``, ``random`` and ``local_ip`` replace the system's.

    Many tasks may send at once. It belongs to the event loop and process it was started in. Raises ConfigError for unusable settings.
    """

    def __init__(
        self,
        namesrv: str | list[str] | tuple[str, ...],
        *,
        group: str = DEFAULT_GROUP,
        instance_name: str | None = None,
        unit_name: str | None = None,
        send_timeout: float = 3.0,
        retries: int = 2,
        compress_from: int | None = COMPRESS_FROM,
        body_size_max: int = BODY_SIZE_MAX,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        local_ip: str | None = None,
    ) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ConfigError(fault)
        if send_timeout <= 0 or retries < 0:
            raise ConfigError(f"send_timeout={send_timeout} must be above 0 and retries={retries} not below 0")
        self.group = group
        self._settings = InstanceSettings(name_server_addresses(namesrv), instance_name, unit_name)
        self._send_timeout = send_timeout
        self._retries = retries
        self._surroundings = surroundings_of(clock, random, local_ip)
        self._clock = self._surroundings.clock
        self._compress_from = compress_from
        self._body_size_max = body_size_max
        self._frames = SendFrames(group)
        self._selection = RoundRobin(self._surroundings.random)
        self._instance: ClientInstance | None = None
        self._member = Member(group, produces=True)
        self._packer: Packer | None = None
        self._in_flight = 0
        self._idle: asyncio.Event | None = None

    # --- life ----------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What brokers know this client by. Raises NotStartedError before ``start``."""
        return self._started().client_id

    async def start(self) -> None:
        """Make ready; connections are opened by the first send. Nothing happens if it is started already.

        Raises ConfigError if ``instance_name`` was given and this process has a producer of this group under it.
        """
        if self._instance is not None:
            self._instance.check_usable("Producer", self._member)
            return
        token = self._surroundings.random.getrandbits(32)
        ids = UniqueIds(self._clock, ip=self._surroundings.ip, token=token, pid=self._surroundings.pid())
        self._packer = Packer(ids, body_size_max=self._body_size_max, compress_from=self._compress_from)
        self._instance = join_instance(self._settings, self._surroundings, self._member)

    async def close(self) -> None:
        """Wait for the sends in flight (``send_timeout`` at most), take leave of the brokers, close the connections that no other client
        shares."""
        if self._instance is None:
            return
        if self._in_flight:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(self._send_timeout):
                    await self._idle.wait()
            except TimeoutError:
                pass
        await self._instance.leave(self._member)

    def _started(self) -> ClientInstance:
        if self._instance is None:
            raise NotStartedError("this Producer is not started; use `async with Producer(...)` or `await producer.start()`")
        return self._instance

    # --- sending -------------------------------------------------------------------------------------------------------------

    @overload
    async def send(
        self, message: Message, /, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult: ...

    @overload
    async def send(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult: ...

    async def send(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        ``queue``: send to this queue and no other (one attempt). ``timeout``: seconds, instead of ``send_timeout``. Raises
        MessageError (the message itself), RouteNotFoundError (no broker known), SendError (no broker took it; after a time-out or
        a lost connection it may be stored all the same), NotStartedError.
        """
        if message.__class__ is not Message or body is not None:
            message = as_message(message, body, tags, keys, properties)
        instance = self._ready()
        return await self._deliver(instance, self._pack.pack(message), queue, timeout)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue, all or none. Nothing is split: see MessageError. Errors as ``send``."""
        instance = self._ready()
        return await self._deliver(instance, self._pack.pack_batch(messages), queue, timeout)

    @overload
    async def send_oneway(self, message: Message, /, *, queue: MessageQueue | None = None) -> None: ...

    @overload
    async def send_oneway(
        self,
        topic: str,
        /,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
    ) -> None: ...

    async def send_oneway(
        self,
        message: Message | str,
        /,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Send one message without waiting for an answer: whether it was stored is not known.

        Raises MessageError, RouteNotFoundError, SendError (no connection), NotStartedError.
        """
        instance = self._ready()
        outgoing = self._pack.pack(as_message(message, body, tags, keys, properties))
        route = await self._route(instance, outgoing.topic, queue, self._send_timeout)
        chosen = queue or self._selection.choose(route)
        try:
            connection = await instance.remoting.connect(_master(route, chosen), timeout=self._send_timeout)
        except ConnectError as error:
            raise SendError(f"a oneway message to topic {outgoing.topic!r} was not sent: {error}") from error
        connection.send_frame(self._frame(outgoing, chosen, connection.next_opaque, oneway=True))
        await asyncio.sleep(0)  # let the loop write: a caller that only sends oneway would never yield
        await connection.drain()

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of ``topic`` go to, for ``queue=``. Raises RouteNotFoundError."""
        return (await self._route(self._ready(), topic, None, self._send_timeout)).publish_queues

    # --- the way of one message ----------------------------------------------------------------------------------------------

    @property
    def _pack(self) -> Packer:
        assert self._packer is not None
        return self._packer

    def _ready(self) -> ClientInstance:
        instance = self._instance or self._started()
        instance.check_usable("Producer", self._member)
        return instance

    async def _deliver(
        self, instance: ClientInstance, outgoing: Outgoing, queue: MessageQueue | None, timeout: float | None
    ) -> SendResult:
        self._in_flight += 1
        try:
            return await self._try_brokers(instance, outgoing, queue, self._send_timeout if timeout is None else timeout)
        finally:
            self._in_flight -= 1
            if self._idle is not None and not self._in_flight:
                self._idle.set()

    async def _try_brokers(
        self, instance: ClientInstance, outgoing: Outgoing, queue: MessageQueue | None, timeout: float
    ) -> SendResult:
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout
        route = instance.routes.known.get(outgoing.topic)
        if route is None or not route.publish_queues or queue is not None:
            route = await self._route(instance, outgoing.topic, queue, timeout)
        failed: list[str] = []
        tried: list[str] = []
        while True:
            chosen = queue or self._selection.choose(route, failed)
            try:
                return await self._attempt(instance, route, outgoing, chosen, deadline)
            except RemotingError as error:
                tried.append(f"{chosen.broker_name} ({route.master(chosen.broker_name) or 'no address'}) {error}")
                last = error
            final = isinstance(last, ResponseError) and last.code not in RETRYABLE_CODES
            if final or queue is not None or len(tried) > self._retries:
                break
            pause = RETRY_PAUSE_S * 2 ** failed.count(chosen.broker_name) if _only_broker(route, chosen) else 0.0
            if loop.time() + pause >= deadline:
                break
            failed.append(chosen.broker_name)
            await asyncio.sleep(pause)
            route = await self._refreshed(instance, route, last, deadline)
        spent_ms = (loop.time() - started) * 1000
        raise SendError(failure_text(outgoing, tried, spent_ms, last)) from last

    async def _attempt(
        self, instance: ClientInstance, route: TopicRoute, outgoing: Outgoing, queue: MessageQueue, deadline: float
    ) -> SendResult:
        loop = asyncio.get_running_loop()
        address = _master(route, queue)
        began = loop.time()
        patience = deadline - began
        if not instance.remoting.connected(address) and not _only_broker(route, queue):
            patience /= 2  # a host that is silent must leave time for another one
        connection = await instance.remoting.connect(address, timeout=max(patience, 0.001))
        opaque = connection.next_opaque
        frame = self._frame(outgoing, queue, opaque)
        try:
            command = await connection.start_call(opaque, frame, max(deadline - loop.time(), 0.001))
        except CallTimeoutError:
            await instance.abandon_if_silent(address, began)
            raise
        return _result(command, outgoing, queue, address)

    def _frame(self, outgoing: Outgoing, queue: MessageQueue, opaque: int, *, oneway: bool = False) -> bytes:
        return self._frames.encode(
            queue,
            opaque=opaque,
            sys_flag=outgoing.sys_flag,
            born_timestamp=self._clock.now_ms(),
            flag=outgoing.flag,
            properties=outgoing.properties,
            body=outgoing.body,
            batch=outgoing.batch,
            oneway=oneway,
        )

    # --- routes --------------------------------------------------------------------------------------------------------------

    async def _route(self, instance: ClientInstance, topic: str, queue: MessageQueue | None, timeout: float) -> TopicRoute:
        if queue is not None and queue.topic != topic:
            raise MessageError(f"the message is for topic {topic!r}, the chosen queue is of topic {queue.topic!r}")
        try:
            async with asyncio.timeout(timeout):
                route = await instance.routes.get(topic, inherit=True)
                if not route.publish_queues:
                    route = await instance.routes.refresh(topic, inherit=True)
        except TimeoutError:
            raise RouteNotFoundError(f"no route to topic {topic!r}: no name server answered in {timeout:.1f} s") from None
        if not route.publish_queues:
            raise RouteNotFoundError(
                f"no route to topic {topic!r}: it has no writable queue. Check its permission (perm 6 allows reading and writing) "
                "and that the master of its broker is up"
            )
        return route

    async def _refreshed(
        self, instance: ClientInstance, route: TopicRoute, error: RemotingError, deadline: float
    ) -> TopicRoute:
        """A newer route if the error says that ours is old and there is one."""
        stale = isinstance(error, ConnectError) or (
            isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST
        )
        if not stale:
            return route
        try:
            async with asyncio.timeout_at(deadline):
                newer = await instance.routes.refresh(route.topic, inherit=True)
        except (TimeoutError, RouteNotFoundError):
            return route
        return newer if newer.publish_queues else route


def as_message(
    message: Message | str,
    body: bytes | str | None,
    tags: str | None,
    keys: str | Iterable[str] | None,
    properties: Mapping[str, str] | None,
) -> Message:
    """A ``Message`` of either form of ``send``. Raises TypeError if the two are mixed."""
    if isinstance(message, Message):
        if body is not None or tags is not None or keys is not None or properties is not None:
            raise TypeError(
                "a Message brings its own body, tags, keys and properties; give either a Message or a topic with them"
            )
        return message
    if body is None:
        raise TypeError("a topic without a body was given; give a Message, or topic and body")
    return Message(message, body, tags=tags, keys=keys, properties=properties)


def _master(route: TopicRoute, queue: MessageQueue) -> str:
    address = route.master(queue.broker_name)
    if address is None:
        raise ConnectError(f"broker {queue.broker_name} has no master at the moment")
    return address


def _only_broker(route: TopicRoute, queue: MessageQueue) -> bool:
    return all(other.broker_name == queue.broker_name for other in route.publish_queues)


def _result(command: Command, outgoing: Outgoing, queue: MessageQueue, address: str) -> SendResult:
    status = STATUS_BY_CODE.get(command.code)
    if status is None:
        raise ResponseError(command.code, command.remark, request="SendMessage", address=address)
    reply = header_from_ext(SendMessageReply, command.ext or {})
    if reply.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    return SendResult(
        status, outgoing.msg_id, queue, reply.queue_offset, reply.msg_id, reply.transaction_id, reply.recall_handle
    )
