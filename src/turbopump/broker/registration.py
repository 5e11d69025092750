"""Registration of a broker and its topics with the name servers.

The broker registers at its start, every 30 s, at once when topics change, and at once after a lost
connection. Each name server has its own task, which sends what that server lacks: all topics, or
those that changed since the server confirmed a registration on the same connection. Changes during
a registration all go into the next one. An unreachable name server is tried again soon, and logged
once until it answers. Source: apache/rocketmq ``BrokerController.registerIncrementBrokerData``,
``RouteInfoManager.registerBroker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from turbopump.auth.signatures import RequestSigner
from turbopump.broker.background import stop_task
from turbopump.broker.saved_table import EncodedMap, Rounds
from turbopump.broker.topics import READ_WRITE, TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ConnectionLostError, ProtocolError, RemotingError, ResponseError
from turbopump.message.codec import body_crc32
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import header_from_ext
from turbopump.protocol.requests.namesrv import (
    BrokerHeartbeat,
    KVTable,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerReply,
    UnregisterBroker,
)
from turbopump.protocol.requests.replication import NotifyMinBrokerIdChange
from turbopump.protocol.requests.topics import (
    PERM_WRITE,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)

WITHOUT_SLAVE_S: Final = 3.0
"""Maximum seconds for which a restarted master that waits for slaves is registered without write
permission."""
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 1.5
"""Maximum seconds between two attempts at an unreachable name server. A name server that comes back
is found within 5 s, because an attempt to connect takes 3 s at most."""
REFUSED_PAUSE_S: Final = 5.0
"""Seconds before the next attempt at a name server that refuses the registration. The reason may be
another broker of the same name that is about to stop."""
KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 9000,
}
"""Socket options that let the system notice within seconds that the machine of a name server is
gone or has restarted. Otherwise a loss would be noticed only at the next registration, up to 30 s
later. Linux has all of these options, other systems some."""


class NameServerRegistration:
    """Registration of a broker with all its name servers.

    - ``master_is_at``: a function that gets the answers to a slave, which contain its
      master's addresses.
    - ``signer``: the signer of the broker's own account, or None.
    """

    def __init__(
        self,
        config: BrokerConfig,
        announcement: Announcement,
        master_is_at: Callable[[RegisterBrokerReply], None],
        signer: RequestSigner | None,
    ) -> None:
        self._config = config
        self._timeout = config.register_broker_timeout_mills / 1000
        self._remoting = RemotingClient(
            on_close=self._connection_lost, tls=config.client_tls, signer=signer
        )
        self._announcement = announcement
        self._patience: asyncio.TimerHandle | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._name_servers = {
            server: RegisteredServer(
                server, self._remoting, announcement, self._timeout, master_is_at
            )
            for server in config.namesrv_addresses
        }

    def _connection_lost(self, server: str) -> None:
        self._name_servers[server].connection_lost()

    def start(self) -> None:
        """Register the broker now, and again after changes, until ``close``."""
        if not self._announcement.takes_sends:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(WITHOUT_SLAVE_S, self.allow_sends)
        for server in self._name_servers.values():
            server.start()

    def faults(self) -> dict[str, str | None]:
        """Return why the broker is not registered with each name server, or None if it is."""
        return {server.address: server.fault for server in self._name_servers.values()}

    def allow_sends(self) -> None:
        """Register the broker with write permission, so that clients send messages here.

        This is called when enough slaves are in sync, or the broker no longer waits for them.
        """
        if self._announcement.takes_sends:
            return
        self._announcement.takes_sends = True
        self.register_all()

    def note_change(self, topic: str) -> None:
        """Register a topic that was created, changed or deleted. The call does not wait."""
        self._announcement.note_change(topic)
        for server in self._name_servers.values():
            server.note_change(topic)

    def register_all(self) -> None:
        """Register all topics, and the permission of the broker, with all name servers. The call
        does not wait."""
        self._announcement.read_settings()
        for server in self._name_servers.values():
            server.register_all()

    def announce_changes(self) -> list[asyncio.Future[bool]]:
        """Return a future for each reachable name server that lacks changes.

        A future ends when its server has confirmed all changes so far (True), or the registration
        has failed (False). Others wait for the same future, so it must not be cancelled.
        """
        return [
            round_
            for server in self._name_servers.values()
            if (round_ := server.registration()) is not None
        ]

    def begin_heartbeats(self) -> None:
        """Send heartbeats to the name servers, unless the last ones are still under way."""
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = asyncio.create_task(self._send_heartbeats(), name="heartbeats")

    async def _send_heartbeats(self) -> None:
        """Tell every name server where the broker is registered that it is alive.

        A name server that does not answer is left to the next heartbeat.
        """
        config = self._config
        heartbeat = BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._announcement.address,
            broker_name=config.broker_name,
            broker_id=config.id,
        )
        timeout = config.send_heartbeat_timeout_millis / 1000
        await asyncio.gather(
            *(
                self._remoting.call(server.address, heartbeat, timeout=timeout)
                for server in self._name_servers.values()
                if server.fault is None
            ),
            return_exceptions=True,
        )

    def when_smallest_id_changes(self, call: Callable[[], None]) -> None:
        """Call a function when a name server says that another broker of this name has the smallest
        id (905)."""

        def notified(_notice: NotifyMinBrokerIdChange, _context: RequestContext) -> Response[None]:
            call()
            return Response()

        self._remoting.router.add(NotifyMinBrokerIdChange, notified)

    async def close(self, *, stays: bool = False) -> None:
        """Unregister the broker from all name servers, and close the connections.

        The call waits for an answer for at most two seconds. ``stays`` leaves the broker
        registered, because it registers again at once, with another role.
        """
        if self._patience is not None:
            self._patience.cancel()
        await stop_task(self._heartbeats)
        servers = self._name_servers.values()
        await asyncio.gather(*(server.stop() for server in servers))
        request = UnregisterBroker(
            broker_name=self._config.broker_name,
            broker_addr=self._announcement.address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.id,
        )
        await asyncio.gather(
            *(
                self._remoting.call(server.address, request, timeout=min(self._timeout, 2.0))
                for server in servers
                if server.reachable and not stays
            ),
            return_exceptions=True,
        )
        await self._remoting.close()


class Announcement:
    """Data that a broker sends to name servers when it registers.

    If the broker itself may not be read or written (``brokerPermission``), its topics are
    registered without that permission, so that clients use other brokers (apache/rocketmq
    ``BrokerController.registerBrokerAll``). The permission to write is also left out while the
    broker does not accept sends yet.

    - ``address``: the address for clients, ``host:port``.
    - ``ha_address``: the address for slaves, or an empty text if no port is open for them.
      Apache's name server requires the field.
    - ``takes_sends``: False if clients must send elsewhere until ``allow_sends``, or for
      WITHOUT_SLAVE_S. RocketMQ: clients may send at once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        address: str,
        ha_address: str,
        *,
        takes_sends: bool,
    ) -> None:
        self._config = config
        self._topics = topics
        self.address = address
        self._ha_address = ha_address
        self.entries = topics.entries
        self.takes_sends = takes_sends
        self._permission = READ_WRITE
        self.read_settings()

    def read_settings(self) -> None:
        """Mark all topics as changed if the permission of the broker has changed."""
        permission = self._config.broker_permission
        if not self.takes_sends:
            permission &= ~PERM_WRITE
        if permission == self._permission:
            return
        self._permission = permission
        self.entries = self._topics.entries
        if self._masked:
            self.entries = EncodedMap(self._with_permission)
            self.entries.add(*self._topics.names())
        self.raise_version()

    @property
    def _masked(self) -> bool:
        return self._permission & READ_WRITE != READ_WRITE

    def note_change(self, topic: str) -> None:
        """Mark a topic as created, changed or deleted."""
        if self._masked and self.has_topic(topic):
            self.entries.add(topic)
        elif self._masked:
            self.entries.remove(topic)

    def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists."""
        return self._topics.find(topic) is not None

    def raise_version(self) -> None:
        """Increase the data version of the topic table."""
        self._topics.next_version()

    def note_ordered_topics(self, body: bytes) -> None:
        """Mark as ordered the topics in a name server's answer to a registration.

        Source: apache/rocketmq ``TopicConfigManager.updateOrderTopicConfig``.
        """
        try:
            names = fastjson.decode(body, KVTable).table if body else {}
        except ProtocolError as error:
            log.warning("list of ordered topics of a name server cannot be read cause=%s", error)
            return
        for name in names:
            topic = self._topics.find(name)
            if topic is not None and not topic.order:
                log.info("topic is ordered, according to a name server topic=%s", name)
                self._topics.put(msgspec.structs.replace(topic, order=True))

    async def encode_entries(self) -> None:
        """Encode all changed topics, with pauses in which the event loop does other work."""
        await self._topics.encode_in_turns(self.entries)

    def request_for(self, topics: list[str] | None) -> tuple[RegisterBroker, bytes]:
        """Return the header and the body of a registration of ``topics``. None stands for all
        topics."""
        config = self._config
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=self._topics.version)
        empty = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
        entries = fastjson.compact(b",".join(self.entries.pieces(topics)))
        body = empty.replace(b'"topicConfigTable":{}', b'"topicConfigTable":{%b}' % entries, 1)
        request = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=config.id,
            heartbeat_timeout_millis=config.broker_not_active_timeout_millis
            if config.enable_slave_acting_master
            else None,
            enable_acting_master=config.enable_slave_acting_master,
            compressed=False,
            body_crc32=body_crc32(body),
            partial=None if topics is None else True,
        )
        return request, body

    def _with_permission(self, name: str) -> TopicConfig:
        topic = self._topics.find(name)
        assert topic is not None
        return msgspec.structs.replace(topic, perm=topic.perm & self._permission)


class RegisteredServer:
    """Registration with one name server, kept up to date by a task.

    A registration of some topics goes only to a name server that has confirmed all others on the
    same connection. A restarted name server must first get all topics. Apache's name server ignores
    known topics that come with a known data version. So an unanswered registration of some topics
    is followed by one of all topics, with a newer version.
    """

    def __init__(
        self,
        address: str,
        remoting: RemotingClient,
        announcement: Announcement,
        timeout: float,
        master_is_at: Callable[[RegisterBrokerReply], None],
    ) -> None:
        self.address = address
        self._master_is_at = master_is_at
        self.reachable = True
        self.fault: str | None = "the first registration has not been answered yet"
        """Reason why the broker is not registered here now, or None if it is."""
        self._remoting = remoting
        self._announcement = announcement
        self._timeout = timeout
        self._confirmed: Wire | None = None
        """Connection on which the server has confirmed all topics except those of ``_pending``, or
        None."""
        self._pending: dict[str, None] = {}
        self._all = True
        self._unsure = False
        """True if a registration of some topics was not answered, so that the server may know their
        data version."""
        self._wanted = asyncio.Event()
        self._registering = False
        self._rounds = Rounds()
        self._failing = False
        self._registered = False
        self._pause = PAUSE_MIN_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._wanted.set()
        self._task = asyncio.create_task(self._run(), name=f"registration with {self.address}")

    async def stop(self) -> None:
        """Stop the task of this name server. The method may be called twice."""
        await stop_task(self._task)
        self._rounds.end_round(good=False)
        self._rounds.start_round()
        self._rounds.end_round(good=False)

    def note_change(self, topic: str) -> None:
        """Register a changed topic with this name server soon."""
        self._pending[topic] = None
        if self.reachable:
            self._wanted.set()

    def register_all(self) -> None:
        """Register all topics with this name server soon."""
        self._all = True
        self._wanted.set()

    def connection_lost(self) -> None:
        """Register all topics again soon, because the connection to the name server has ended."""
        self.fault = "the connection has ended"
        if self._confirmed is not None:
            self._confirmed = None
            asyncio.get_running_loop().call_later(PAUSE_MIN_S, self._wanted.set)

    def registration(self) -> asyncio.Future[bool] | None:
        """Return a future for the registration of all changes so far, or None.

        The future is True when the name server has confirmed them, and False if the registration
        fails. None means that the server knows all changes, or cannot be reached.
        """
        if self.reachable and self._wanted.is_set():
            return self._rounds.next_round()
        if self.reachable and self._registering:
            return self._rounds.current_round()
        return None

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            good = False
            try:
                await self._register()
                good = True
            except Exception as error:
                self._note_failure(error)
            if not self._registering:
                self._begin_registration()
            self._registering = False
            self._rounds.end_round(good)

    async def _register(self) -> None:
        """Register the topics that the name server lacks.

        Raises RemotingError if the name server cannot be reached, or refuses.
        """
        connection = await self._remoting.connect(self.address, timeout=self._timeout)
        if connection is not self._confirmed:
            keep_alive(connection)
        await self._announcement.encode_entries()
        # From here to the request in one turn: nothing may change or end in between.
        if connection.closed:
            raise ConnectionLostError(f"connection to {self.address} ended before registration")
        some = list(self._pending)
        whole = (
            self._all
            or connection is not self._confirmed
            # a name server with deleteTopicWithBrokerRegistration deletes what is missing
            or not all(map(self._announcement.has_topic, some))
        )
        self._begin_registration()
        if not whole and not some:
            return
        if whole and self._unsure:
            self._announcement.raise_version()
        # Until the answer comes nothing counts as confirmed, so that a failed exchange is followed
        # by a registration of all topics. A registration of some topics may have arrived although
        # its answer did not. The server then knows its data version, and ignores known topics that
        # come with it: the whole registration needs a newer version (``_unsure``).
        self._confirmed = None
        self._all = False
        request, body = self._announcement.request_for(None if whole else some)
        try:
            answer = await self._remoting.exchange(
                self.address, request, body, timeout=self._timeout
            )
        except RemotingError:
            self._unsure = self._unsure or not whole
            raise
        if answer.code != ResponseCode.SUCCESS and whole:
            name = type(request).__name__
            raise ResponseError(answer.code, answer.remark, request=name, address=self.address)
        if answer.code != ResponseCode.SUCCESS:  # it has forgotten this broker
            self.register_all()
            return
        self._unsure = self._unsure and not whole
        self._note_success()
        self._confirmed = connection
        if not self._remoting.is_connected(self.address):
            self.connection_lost()
        self._announcement.note_ordered_topics(answer.body)
        self._master_is_at(header_from_ext(RegisterBrokerReply, answer.ext or {}))

    def _begin_registration(self) -> None:
        """Start a registration that contains all changes so far."""
        self._wanted.clear()
        self._pending.clear()
        self._rounds.start_round()
        self._registering = True

    def _note_success(self) -> None:
        self.reachable = True
        self.fault = None
        self._pause = PAUSE_MIN_S
        if self._failing:
            log.info("registration works again namesrv=%s", self.address)
        elif not self._registered:
            log.info("registered namesrv=%s", self.address)
        self._failing = False
        self._registered = True

    def _note_failure(self, error: Exception) -> None:
        self._all = True
        self.fault = str(error) or type(error).__name__
        if not self._failing:
            self._failing = True
            unexpected = not isinstance(error, RemotingError)
            said = "registration failed namesrv=%s cause=%s"
            log.warning(said, self.address, error, exc_info=unexpected)
        if isinstance(error, ResponseError):
            pause = REFUSED_PAUSE_S
        else:
            self.reachable = False
            pause = self._pause
            self._pause = min(self._pause * 2, PAUSE_MAX_S)
        asyncio.get_running_loop().call_later(pause, self._wanted.set)


def keep_alive(connection: Wire) -> None:
    """Set socket options so that the system detects a lost peer within seconds."""
    transport = connection.transport
    end = transport.get_extra_info("socket") if transport is not None else None
    if end is None:
        return
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
