"""Client instance: connections, routes and heartbeats, shared by all producers and consumers with
one client id.

One rule: before a broker gets a request for which it must know this client, the broker gets a
heartbeat on the same connection. When the connection ends, the broker must get another heartbeat.
This module must not know sending or consuming.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from turbopump import errors
from turbopump.client.environment import Environment
from turbopump.client.heartbeat import InstanceMember, heartbeat_data
from turbopump.client.loop_stalls import LOOK_INTERVAL_S, LoopStalls
from turbopump.client.operator_requests import add_operator_requests
from turbopump.client.routes import Routes
from turbopump.client.settings import ClientSettings
from turbopump.client.topic_route import TopicRoute
from turbopump.message import properties as names
from turbopump.message.codec import decode_entry
from turbopump.message.message import ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import JSON, ROCKETMQ
from turbopump.protocol.requests.clients import (
    Heartbeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from turbopump.protocol.requests.send import CheckTransactionState, PushReplyMessageToClient
from turbopump.remoting.client import RemotingClient, refused_by
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.repeated_line import RepeatedLine


class ForkCount:
    """Counter of forks: how many lie between the first process and this one.

    Every send compares ``count``, because reading the process id costs a system call.
    """

    count = 0


def _count_one() -> None:
    ForkCount.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_one)


log = logging.getLogger(__name__)
_unreadable_question = RepeatedLine(
    log, logging.WARNING, "question about a transaction cannot be read broker=%s cause=%s"
)

PENDING_MAX: Final = 10_000
_MAGICS: Final = (bytes.fromhex("04224d18"), bytes.fromhex("28b52ffd"))
"""First bytes of an LZ4 frame and of a Zstandard frame. A zlib stream is recognised by the checksum
in its first two bytes."""


class PendingRequests:
    """Table of a client's requests that wait for a consumer's reply, by correlation id.

    A reply (326) is passed to its request, once. Other replies are dropped and counted. The broker
    still gets a success, because the replier made no mistake. Source: apache/rocketmq
    ``RequestFutureHolder``, ``ClientRemotingProcessor.receiveReplyMessage``.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.limit = PENDING_MAX
        self.late = 0
        """Number of replies that arrived after their request had ended."""
        self._now_ms = now_ms
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """Register a request, and return the future that gets the reply.

        Raises RequestError if too many requests are waiting.
        """
        if len(self._waiting) >= self.limit:
            raise errors.RequestError(
                f"{len(self._waiting)} requests of this client wait for replies, and that is the "
                "most that may; wait for some before you send more, or check that somebody "
                "replies to them"
            )
        assert correlation_id not in self._waiting
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def remove(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def reply_came(self, push: PushReplyMessageToClient, context: RequestContext) -> Response[None]:
        text = push.properties or ""
        future = self._waiting.pop(names.property_value(text, names.CORRELATION_ID) or "", None)
        if future is None or future.done():
            self.late += 1
        else:
            future.set_result(_reply_of(push, text, context.body, self._now_ms()))
        return Response()


def _reply_of(
    push: PushReplyMessageToClient, properties: str, body: bytes, now_ms: int
) -> ReceivedMessage:
    """Return the message that a broker pushed as a reply. Reading ``body`` decompresses a
    compressed body."""
    if properties and properties[-1] != names.PAIR_END:
        properties += names.PAIR_END
    sys_flag = push.sys_flag
    if not _may_be_compressed(body):
        sys_flag &= ~names.SysFlag.COMPRESSED
    return ReceivedMessage(
        topic=push.topic,
        stored_body=body,
        properties_text=f"{properties}{names.REPLY_ARRIVE_TIME}\x01{now_ms}\x02",
        queue_id=push.queue_id,
        queue_offset=0,
        commit_log_offset=0,
        flag=push.flag,
        sys_flag=sys_flag,
        born_timestamp=push.born_timestamp,
        born_host=_host(push.born_host),
        store_timestamp=push.store_timestamp,
        store_host=_host(push.store_host),
        reconsume_times=push.reconsume_times or 0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=0,
    )


def _may_be_compressed(body: bytes) -> bool:
    """Return True if the body starts like compressed data.

    The flag of the message is not enough, because Go's client sets it also on long replies that are
    not compressed.
    """
    return body[:4] in _MAGICS or (
        len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    )


def _host(text: str) -> tuple[str, int]:
    """Split Java's form of ``ip:port``. An IPv6 address has no brackets there."""
    ip, _, port = text.rpartition(":")
    return ip.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0


ROUTE_INTERVAL_S: Final = 30.0
"""Default of ``route_interval``, in seconds."""
SILENCE_S: Final = 1.0
"""Minimum time in seconds without a received byte before a connection with timed-out calls is
closed."""
FAREWELL_TIMEOUT_S: Final = 1.0


def this_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises NotStartedError if the caller runs outside of asyncio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise errors.NotStartedError(
            "no event loop of asyncio runs here, and this client needs one: use "
            "turbopump.blocking, under trio in a thread (trio.to_thread.run_sync)"
        ) from None


class ClientInstance:
    """Connections, routes and heartbeats under one client id, ``ip@instance_name[@unit_name]``.

    The instance works only in the event loop and the process that started it; ``check_usable``
    enforces this rule.

    - ``instance_name``: part of the client id. If None, a new name is made.
    - ``signer``: adds the client's credentials and namespace to every request.
    - ``on_end``: called when the close begins.
    """

    def __init__(
        self, settings: ClientSettings, instance_name: str | None, environment: Environment
    ) -> None:
        self.environment = environment
        self.signer = settings.signer()
        self.route_interval = settings.route_interval
        self.commit_interval = settings.commit_interval
        self.call_timeout = settings.call_timeout
        """Timeout in seconds of the client's internal requests, such as heartbeats, routes, offsets
        and locks."""
        self._heartbeat_interval = settings.heartbeat_interval
        self.header_form = ROCKETMQ if settings.header_form == "ROCKETMQ" else JSON
        self.on_end: Callable[[], None] = lambda: None
        self.client_id = f"{environment.ip}@{instance_name or environment.new_instance_name()}"
        if settings.unit_name is not None:
            self.client_id += f"@{settings.unit_name}"
        router = Router()
        router.add(NotifyConsumerIdsChanged, self._group_changed)
        router.add(CheckTransactionState, self._transaction_asked)
        self.requests = PendingRequests(environment.clock.now_ms)
        router.add(PushReplyMessageToClient, self.requests.reply_came)
        add_operator_requests(router, lambda: self._members)
        self.remoting = RemotingClient(
            router,
            on_close=self._disconnected,
            serialize_type=self.header_form,
            signer=self.signer,
            tls=settings.client_tls,
            permits=settings.async_permits,
        )
        self.unit_mode = settings.unit_mode
        self.routes = Routes(
            self.remoting,
            settings.name_servers,
            random=environment.random,
            on_change=self._route_changed,
            timeout=self.call_timeout,
        )
        self._members: list[InstanceMember] = []
        self._membership = 0
        """Number of changes of the members so far. A heartbeat built before the last change is
        outdated."""
        self._introduced: set[str] = set()
        self._introducing: dict[str, asyncio.Task[None]] = {}
        self._languages: dict[str, int] = {}
        """Programming language of each broker by address, from the broker's answer to a
        heartbeat."""
        self._warned: dict[str, str] = {}
        """Last complaint of each broker about a heartbeat, by address."""
        self._silent: dict[str, float] = {}
        """Loop time since which calls to an address have timed out and no byte was received, by
        address."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._forks = 0
        self._closed = False
        self.stalls: LoopStalls  # set by start()

    # --- start and close

    def start(self) -> None:
        """Start to send heartbeats and to refresh routes. The first request for a route opens a
        connection."""
        assert self._loop is None
        self._loop = this_loop()
        self._pid = self.environment.pid()
        self._forks = ForkCount.count
        self.spawn(self._repeat(self._heartbeat_interval, self._heartbeat_all), name="heartbeats")
        self.spawn(self._repeat(self.route_interval, self.routes.refresh_all), name="routes")
        servers = ";".join(self.routes.name_servers)
        log.debug("client started client_id=%s namesrv=%s", self.client_id, servers)
        self.stalls = LoopStalls(self._loop.time)
        self.spawn(self._watch_stalls(), name="stalls")

    async def close(self) -> None:
        """Unregister from the brokers, then close every connection. A second call does nothing."""
        if self._closed or self._loop is None:
            return
        self._closed = True
        self.on_end()
        # a user's function that runs in one of our tasks may be calling close
        this = asyncio.current_task()
        others = [task for task in (*self._tasks, *self._introducing.values()) if task is not this]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.routes.close()
        leaving = [member for member in self._members if member.announced]
        pairs = [(address, member) for member in leaving for address in sorted(self._introduced)]
        await asyncio.gather(*(self._take_leave(*pair) for pair in pairs))
        await self.remoting.close()

    def check_usable(self, what: str, member: InstanceMember | None = None) -> None:
        """Raise NotStartedError if the caller must not use a client of this instance.

        The error is raised after the close, in a forked child and on another event loop. ``what``
        is the name of a class for the error, for example ``"Producer"``.
        """
        if self._closed or (member is not None and member.left):
            raise errors.NotStartedError(f"this {what} is closed; start a new one")
        if ForkCount.count != self._forks:
            raise errors.NotStartedError(
                f"this {what} was started in process {self._pid} and is used in its fork "
                f"{self.environment.pid()}, which must not use its connections; start a "
                "new one after the fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise errors.NotStartedError(
                f"this {what} was started on another event loop; start a new one on this loop, "
                "or use turbopump.blocking"
            )

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run ``work`` as a task until it ends or the instance is closed."""
        task = asyncio.get_running_loop().create_task(work, name=f"turbopump {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background task failed name=%s", task.get_name(), exc_info=task.exception())

    async def _repeat(self, interval: float, work: Any) -> None:
        while True:
            await asyncio.sleep(interval)
            await work()

    async def _watch_stalls(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.stalls.measure_delay()

    # --- members

    def join(self, member: InstanceMember) -> None:
        """Add a producer or consumer to the instance. An announced member is also added to the
        heartbeats."""
        self._members.append(member)
        if member.announced:
            self._members_changed()
            for address in sorted(self.routes.addresses(slaves=self._consumes)):
                self._introduce(address)

    def announce(self, member: InstanceMember) -> None:
        """Include ``member`` in heartbeats from now on. Each broker gets a heartbeat before its
        next request."""
        if not member.announced:
            member.announced = True
            self._members_changed()

    def admits(self, member: InstanceMember) -> bool:
        """Return True if ``member`` fits into one heartbeat with all present members."""
        return not any(member.clashes_with(other) for other in self._members)

    async def leave(self, member: InstanceMember) -> None:
        """Remove ``member`` from the instance, and unregister the member from the brokers.

        The last member to leave closes the instance. A second call does nothing.
        """
        if member.left:
            return
        member.left = True
        if self._members == [member]:
            await self.close()
            return
        self._members.remove(member)
        self._members_changed(forget=False)
        if member.announced and not any(
            other.group == member.group and other.kind == member.kind for other in self._members
        ):
            known = sorted(self._introduced)
            await asyncio.gather(*(self._take_leave(address, member) for address in known))

    def _members_changed(self, *, forget: bool = True) -> None:
        self._membership += 1
        if forget:
            self._introduced.clear()

    async def _take_leave(self, address: str, member: InstanceMember) -> None:
        request = UnregisterClient(
            client_id=self.client_id,
            producer_group=member.group if member.produces else None,
            consumer_group=member.group if member.consumer is not None else None,
        )
        try:
            await self.remoting.call(address, request, timeout=FAREWELL_TIMEOUT_S)
        except errors.RemotingError as error:
            log.info("not unregistered broker=%s cause=%s", address, error)

    def _group_changed(
        self, request: NotifyConsumerIdsChanged, context: RequestContext
    ) -> Outcome[None]:
        for member in self._members:
            if member.consumer is not None and member.group == request.consumer_group:
                member.on_group_change()
        return HELD

    def _transaction_asked(
        self, request: CheckTransactionState, context: RequestContext
    ) -> Outcome[None]:
        try:
            message = decode_entry(context.body)
        except errors.StoredMessageError as error:
            _unreadable_question(context.peer.peer, error, kind=context.peer.peer)
            return HELD
        group = message.properties.get(names.PRODUCER_GROUP)
        for member in self._members:
            if member.on_transaction_check is not None and member.group == group:
                member.on_transaction_check(request, message, context.peer)
        return HELD

    def _route_changed(self, route: TopicRoute) -> None:
        for member in self._members:
            member.on_route_change(route)
        if not self._announced:  # a client without announced members sends no heartbeats
            return
        for address in sorted(route.every_address(slaves=self._consumes)):
            if address not in self._introduced:
                self._introduce(address)

    def _disconnected(self, address: str) -> None:
        self._introduced.discard(address)
        self._languages.pop(address, None)
        self._silent.pop(address, None)
        for member in self._members:
            member.on_disconnect(address)

    # --- heartbeats

    @property
    def _announced(self) -> bool:
        return any(member.announced for member in self._members)

    @property
    def _consumes(self) -> bool:
        return any(member.announced and member.consumer is not None for member in self._members)

    async def introduced(self, address: str) -> None:
        """Wait until the broker has received this client's heartbeat on the current connection.

        Raises RemotingError if the heartbeat fails.
        """
        while address not in self._introduced:
            await asyncio.shield(self._introduce(address))

    async def language(self, address: str) -> int | None:
        """Return the programming language of a broker (``LanguageCode``), or None if it is not
        known.

        The number comes from the answer to a heartbeat, which needs no permission. Raises
        RemotingError if the broker does not answer.
        """
        if address not in self._languages:
            with suppress(errors.ResponseError):
                await asyncio.shield(self._introduce(address))
        return self._languages.get(address)

    def forget_introduction(self, address: str) -> None:
        """Record that this broker does not know this client. The next request to the broker waits
        for a heartbeat."""
        self._introduced.discard(address)

    async def abandon_if_silent(self, address: str, since: float) -> None:
        """Close the connection to a silent peer after calls to this peer have timed out.

        The connection is closed if no byte was received since ``since`` (loop time, the start of
        the call), and calls have timed out for a second.

        A host without power, or a firewall that has dropped the connection, sends no reset. TCP
        alone would notice that after a quarter of an hour. A single call with a timeout of a few
        milliseconds proves nothing about the peer, and other calls may be waiting on the
        connection.
        """
        if self.remoting.is_connected(address):
            connection = await self.remoting.connect(address)
            first = self._silent.get(address, since)
            if connection.last_read >= first:
                first = since
            self._silent[address] = first
            if connection.last_read < first <= asyncio.get_running_loop().time() - SILENCE_S:
                log.warning("connection given up, the peer is silent address=%s", address)
                connection.abort()

    def _introduce(self, address: str) -> asyncio.Task[None]:
        task = self._introducing.get(address)
        # A task that is done may still be in the table, because its callback has not run yet.
        # Awaiting such a task would not let the loop run.
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(
                self._heartbeat(address), name=f"turbopump heartbeat to {address}"
            )
            self._introducing[address] = task
            membership = self._membership
            task.add_done_callback(lambda done: self._introduction_ended(address, done, membership))
        return task

    def _introduction_ended(self, address: str, task: asyncio.Task[None], membership: int) -> None:
        if self._introducing.get(address) is task:
            del self._introducing[address]
        if task.cancelled():
            return
        if task.exception() is not None:
            log.info("heartbeat failed broker=%s cause=%s", address, task.exception())
        elif membership != self._membership and not self._closed:
            self._introduce(address)

    async def introduce_all(self) -> None:
        """Send a heartbeat to every known broker now, because subscriptions have changed.

        Failures are logged.
        """
        self._members_changed()
        await self._heartbeat_all()

    async def _heartbeat_all(self) -> None:
        addresses = self.routes.addresses(slaves=self._consumes) if self._announced else set()
        await asyncio.gather(
            *(self._introduce_anew(address) for address in sorted(addresses)),
            return_exceptions=True,
        )

    async def _introduce_anew(self, address: str) -> None:
        running = self._introducing.get(address)
        if running is not None:
            await asyncio.wait({running})  # its heartbeat may be from before the last change
        await asyncio.shield(self._introduce(address))

    async def _heartbeat(self, address: str) -> None:
        # The broker knows this client only if the heartbeat that it has is (1) of the present
        # members and (2) came on the connection that is still open. Both may change while the
        # answer is awaited. So the connection and the number of the membership are kept from before
        # the request, and compared after the answer. If one has changed, the broker stays unknown,
        # and ``introduced`` or ``_introduction_ended`` sends another heartbeat.
        connection = await self.remoting.connect(address, timeout=self.call_timeout)
        membership = self._membership
        body = heartbeat_data(self.client_id, self._members, unit_mode=self.unit_mode)
        asked = asyncio.get_running_loop().time()
        try:
            request = Heartbeat()
            answer = await self.remoting.exchange(address, request, body, timeout=self.call_timeout)
        except errors.CallTimeoutError:
            await self.abandon_if_silent(address, asked)
            raise
        self._languages[address] = answer.language
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by(address, request, answer)
        self._log_complaint(address, answer.remark or "")
        if not connection.closed and membership == self._membership:
            self._introduced.add(address)

    def _log_complaint(self, address: str, remark: str) -> None:
        """Log a broker's complaint in a successful answer to a heartbeat.

        The same text is not logged again. Our brokers complain this way about the client's groups.
        """
        if remark and remark != self._warned.get(address):
            log.warning(
                "broker warns broker=%s client_id=%s remark=%s", address, self.client_id, remark
            )
        self._warned[address] = remark
