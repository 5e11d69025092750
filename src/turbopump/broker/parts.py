"""Parts of a started broker, in groups. Each group is built from the groups before it.

Handlers are no parts: ``broker.py`` gives each of them ``Stored`` and what else it needs.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from turbopump.auth.server_access import ServerAccess
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.acting.escape import EscapingForwarding
from turbopump.broker.acting.other_masters import OtherMasters
from turbopump.broker.dead_letters import retry_interceptor
from turbopump.broker.flush_wait import FlushWait
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.housekeeping import Cleaning, Scrubbing
from turbopump.broker.interceptors import Interceptors, refuse_false_inner_batch
from turbopump.broker.log_repair import LogRepair
from turbopump.broker.lost_topics import make_topic_of_waiting
from turbopump.broker.membership import Membership
from turbopump.broker.pop.pop import Pop
from turbopump.broker.registration import Announcement, NameServerRegistration
from turbopump.broker.replica.group_replication import GroupReplication
from turbopump.broker.replica.served_role import ServedRole
from turbopump.broker.replication import Replication
from turbopump.broker.schedule.delays import Delays
from turbopump.broker.schedule.destinations import delay_level_interceptor, timer_interceptor
from turbopump.broker.schedule.timers import Timers, timers_of
from turbopump.broker.slave_accounts import SlaveAccounts
from turbopump.broker.slave_tables import SlaveTables
from turbopump.broker.stored import Stored
from turbopump.broker.table_records.table_records import TableRecords
from turbopump.broker.topic_routes import TopicRoutes
from turbopump.broker.transactions.half_messages import HalfMessageInterceptor
from turbopump.broker.transactions.transactions import Transactions
from turbopump.config.addresses import bare_host, join_address
from turbopump.config.broker_config import VIP_OFFSET, BrokerConfig, FlushDiskType
from turbopump.errors import ConfigError
from turbopump.protocol.requests.namesrv import RegisterBrokerReply
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import Authorise, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire
from turbopump.replication.history import LogHistory, new_id
from turbopump.replication.slave_link import SlaveLink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Listening:
    """Ports of a broker, and its addresses for clients, slaves and stored messages.

    - ``vip_router``: the router for the requests that arrive at the VIP port.
    - ``host`` and ``port``: the listening address.
    - ``address``: the address that clients use.
    - ``store_host``: (ip, port), as written into entries.
    - ``ha_address``: the address that slaves use, or an empty text if no HA port is open.
    """

    membership: Membership
    router: Router
    vip_router: Router
    server: RemotingServer
    host: str
    port: int
    address: str
    store_host: tuple[str, int]
    replication: Replication | GroupReplication
    ha_address: str


@dataclass(frozen=True, slots=True, eq=False)
class Delivering:
    """Parts that deliver waiting messages, for example delayed, transactional or popped messages.

    Each sent message passes through the ``interceptors``. ``log_repair`` repairs the log.
    """

    forwarding: Forwarding
    transactions: Transactions
    interceptors: Interceptors
    delays: Delays
    timers: Timers
    log_repair: LogRepair
    held_pulls: HeldPulls
    pop: Pop


@dataclass(frozen=True, slots=True, eq=False)
class Copying:
    """Parts that look after stored data: they copy a master's tables, check the log, and delete old
    files.

    - ``slave_tables`` and ``slave_accounts``: None at a master.
    - ``scrubbing``: None if the settings turn it off.
    - ``table_records``: None unless a controller may make another replica the master.
    """

    records: TopicRecords
    slave_tables: SlaveTables | None
    slave_accounts: SlaveAccounts | None
    scrubbing: Scrubbing | None
    cleaning: Cleaning
    table_records: TableRecords | None

    @property
    def lacks_master(self) -> bool:
        """True for a slave that does not know the address of its master."""
        return self.slave_tables is not None and self.slave_tables.master is None


@dataclass(frozen=True, slots=True, eq=False)
class Announcing:
    """Parts that register the broker with name servers and request routes."""

    registration: NameServerRegistration
    routes: TopicRoutes


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """All parts of a started broker."""

    stored: Stored
    listening: Listening
    delivering: Delivering
    copying: Copying
    announcing: Announcing


async def listen(
    stored: Stored,
    authorise: Authorise | None,
    ends: AsyncExitStack,
    served_role: ServedRole | None = None,
) -> Listening:
    """Open the ports of the broker.

    ``ends`` closes the ports. No await may follow until the handlers exist, because an earlier
    request would be refused as unknown. Raises ConfigError if a port cannot be opened.
    """
    config = stored.config
    numeric = await _numeric(config.advertised_host)
    membership = Membership(stored)
    router = Router(authorise)
    vip_router = Router(authorise)
    server = RemotingServer(
        router,
        on_close=membership.connection_lost,
        idle_timeout=float(config.server_channel_max_idle_time_seconds),
        backlog=stored.sends.backlog,
        turns=stored.turns,
        times=stored.times,
        memory_max=config.connection_memory_max,
        per_address=config.max_connections_per_address,
        tls=config.server_tls,
        kept=None if served_role is None else served_role.sockets,
    )
    ends.push_async_callback(server.close)
    replication = _replication(stored, served_role)
    ends.push_async_callback(replication.stop)
    # first, because binding it lets the loop serve the other ports
    ha_port = await replication.listen(config.listen_port)
    host, port = await _take_ports(server, config, vip_router)
    if numeric is None:
        log.warning(
            "advertised host has no address here, messages name another host=%s instead=%s",
            config.advertised_host,
            host,
        )
    ha_address = ""
    if ha_port is not None:
        ha_host = bare_host(config.broker_ip2) or config.advertised_host
        ha_address = join_address(ha_host, ha_port)
    advertised_port = config.advertised_port or port
    return Listening(
        membership,
        router,
        vip_router,
        server,
        host,
        port,
        join_address(config.advertised_host, advertised_port),
        (numeric or host, advertised_port),
        replication,
        ha_address,
    )


def _replication(stored: Stored, served_role: ServedRole | None) -> Replication | GroupReplication:
    config = stored.config
    store = stored.store
    paths = stored.settings.paths
    if served_role is not None:
        return GroupReplication(config, store, stored.disk, stored.clock, paths, served_role)
    history = LogHistory(
        stored.disk,
        paths.history,
        new_id(stored.clock.now_ms(), stored.random),
        store.log.end,
        unchanged=store.unchanged,
    )
    return Replication(config, store, stored.disk, stored.clock, history)


async def _take_ports(
    server: RemotingServer, config: BrokerConfig, vip_router: Router
) -> tuple[str, int]:
    """Listen on the VIP port and the ordinary port. Return the host and the ordinary port."""
    if config.listen_port > VIP_OFFSET:
        try:
            await server.listen(config.bind_address, config.listen_port - VIP_OFFSET, vip_router)
        except ConfigError as error:
            what = (
                f"the VIP port of a broker on port {config.listen_port}, always {VIP_OFFSET} below "
                "it"
            )
            raise ConfigError(f"{error} (that is {what})") from None
    host, port = await server.listen(config.bind_address, config.listen_port)
    if config.listen_port == 0:
        try:
            await server.listen(config.bind_address, port - VIP_OFFSET, vip_router)
        except ConfigError as error:  # nobody chose these numbers, so nobody is to choose again
            log.info("no VIP port: clients that want one cannot connect to it cause=%s", error)
    return host, port


def make_deliveries(
    stored: Stored, listening: Listening, access: ServerAccess | None, signer: RequestSigner | None
) -> Delivering:
    config = stored.config
    store = stored.store
    tables = stored.tables
    flush = FlushWait(
        store.flusher,
        flushes=config.flush_disk_type == FlushDiskType.SYNC_FLUSH,
        copies=stored.settings.waits_for_copies,
    )
    forwarding: Forwarding
    if config.may_act:
        masters = OtherMasters(config, stored.clock, signer)
        forwarding = EscapingForwarding(store, stored.clock, listening.store_host, flush, masters)
    else:
        forwarding = Forwarding(
            store,
            stored.clock,
            listening.store_host,
            flush,
            partial(make_topic_of_waiting, tables.topics, config.default_topic_queue_nums),
            stored.statistics.events.messages_in,
        )

    def may_publish(peer: Wire, topic: str) -> bool:
        return access is None or access.control.may_publish(peer, topic)

    transactions = Transactions(stored, forwarding, may_publish)
    delays = Delays(
        tables.delay_offsets,
        store,
        forwarding,
        stored.statistics.events,
        stored.settings.delay_levels,
        stored.clock,
        config.flush_delay_offset_interval / 1000,
    )
    delays.load()
    tables.save_too(delays)
    timers = timers_of(stored, forwarding)
    tables.save_too(timers)
    for source in (
        delays.positions,
        transactions.figures,
        listening.replication.figures,
        timers.figures,
    ):
        stored.runtime_info.add_source(source)
    stored.statistics.timers = timers.numbers.in_and_out
    remoting = RemotingClient(tls=config.client_tls, signer=signer)
    log_repair = LogRepair(stored, remoting, listening.address)
    pop = Pop(stored, timers, forwarding, log_repair)
    return Delivering(
        forwarding,
        transactions,
        _interceptors(stored),
        delays,
        timers,
        log_repair,
        HeldPulls(stored.turns),
        pop,
    )


def _interceptors(stored: Stored) -> Interceptors:
    return Interceptors(
        refuse_false_inner_batch,
        HalfMessageInterceptor(stored.config),
        retry_interceptor(stored.tables, stored.clock, stored.statistics.events.dead_letters),
        timer_interceptor(stored.config, stored.clock),
        delay_level_interceptor(stored.settings.delay_levels),
    )


def make_copies(
    stored: Stored,
    listening: Listening,
    delivering: Delivering,
    access: ServerAccess | None,
    signer: RequestSigner | None,
) -> Copying:
    config = stored.config
    records = TopicRecords(
        stored.tables.topics,
        stored.tables.offsets,
        stored.store,
        stored.statistics,
        delivering.held_pulls,
    )
    link = listening.replication.slave
    slave_tables = slave_accounts = scrubbing = None
    if link is not None:
        tables_of_master = slave_tables = SlaveTables(
            stored,
            link,
            records,
            delivering.pop.order,
            delivering.delays,
            delivering.timers,
            RemotingClient(tls=config.client_tls, signer=signer),
        )
        if isinstance(link, SlaveLink):
            link.begin_at = slave_tables.begin_at
        else:
            link.before_copying = slave_tables.copy_first
        inner = config.inner_user
        if access is not None and inner is not None:
            slave_accounts = SlaveAccounts(
                access,
                Credentials(*inner),
                slave_tables.remoting,
                lambda: tables_of_master.master,
                tables_of_master.has_records,
            )
            slave_tables.copy_accounts = slave_accounts.copy_once
    if config.scrub_bytes_per_second:
        scrubbing = Scrubbing(stored, delivering.log_repair)
    table_records = None
    if config.enable_controller_mode:
        table_records = TableRecords(stored, delivering.forwarding, records, access)
        stored.runtime_info.add_source(table_records.figures)
    return Copying(
        records, slave_tables, slave_accounts, scrubbing, Cleaning(stored), table_records
    )


def follow_master(
    listening: Listening, copying: Copying, address: str | None, ha_address: str | None
) -> None:
    """Let a slave follow the master at these addresses. At a master the call has no effect."""
    if copying.slave_tables is not None:
        copying.slave_tables.master_is_at(address)
    listening.replication.master_is_at(ha_address)


def make_announcing(
    stored: Stored, listening: Listening, copying: Copying, signer: RequestSigner | None
) -> Announcing:
    config = stored.config

    def registered(reply: RegisterBrokerReply) -> None:
        if not config.enable_controller_mode:  # else the controller names the master
            follow_master(listening, copying, reply.master_addr, reply.ha_server_addr)

    # a new broker has no slave that is about to come back
    awaits_slaves = config.slave_acks > 0 and stored.store.log.end > 0
    if config.enable_controller_mode:  # sends wait here, until the sync state set is large enough
        awaits_slaves = False
    announcement = Announcement(
        config,
        stored.tables.topics,
        listening.address,
        listening.ha_address,
        takes_sends=not awaits_slaves,
    )
    registration = NameServerRegistration(config, announcement, registered, signer)
    if isinstance(listening.replication, Replication) and listening.replication.master is not None:
        listening.replication.master.on_in_sync = registration.allow_sends
    return Announcing(registration, TopicRoutes(config, stored.tables.topics, stored.clock, signer))


async def _numeric(host: str) -> str | None:
    """Return the numeric address of a host. Return None if this machine cannot resolve the host.

    Stored entries contain this address.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, None, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):  # the latter for a name that IDNA cannot encode
        return None
    return str(found[0][4][0])
