"""The broker: what it is made of, in the order in which it is put together and taken apart.

``start`` opens the store, loads the tables, listens, and registers; ``close`` does the reverse and
leaves a clean directory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from turbopump.auth.server_access import LOOK_INTERVAL_S as ACCESS_LOOK_S
from turbopump.auth.server_access import NoAccessControl, ServerAccess, inner_signer
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.cold_flow import ColdFlow
from turbopump.broker.consumers import ClientTable
from turbopump.broker.dead_letters import retry_interceptor
from turbopump.broker.forwarding import FlushWait, Forwarding
from turbopump.broker.groups import RequestModes
from turbopump.broker.handlers.assignment import AssignmentHandler
from turbopump.broker.handlers.cleaning import CleaningHandler
from turbopump.broker.handlers.clients import ClientQuestionsHandler, ClientsHandler
from turbopump.broker.handlers.configuration import ConfigurationHandler
from turbopump.broker.handlers.consumers import ConsumersHandler, GroupsHandler
from turbopump.broker.handlers.locks import LocksHandler
from turbopump.broker.handlers.offsets import OffsetControlHandler, OffsetsHandler
from turbopump.broker.handlers.pop import PopHandler
from turbopump.broker.handlers.pop_acks import PopAcksHandler
from turbopump.broker.handlers.pull import PullHandler
from turbopump.broker.handlers.queries import QueriesHandler
from turbopump.broker.handlers.recall import RecallHandler
from turbopump.broker.handlers.replication import ReplicationHandler
from turbopump.broker.handlers.replies import RepliesHandler
from turbopump.broker.handlers.send import SendHandler
from turbopump.broker.handlers.send_back import SendBackHandler
from turbopump.broker.handlers.statistics import ColdFlowHandler, StatisticsHandler
from turbopump.broker.handlers.topics import TopicRecords, TopicsHandler
from turbopump.broker.handlers.transactions import TransactionsHandler
from turbopump.broker.handlers.unserved import UnservedHandler
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.housekeeping import (
    LOOK_AT_FILES_S,
    LOOK_INTERVAL_S,
    SPACE_INTERVAL_S,
    Cleaning,
    Scrubbing,
    StallWatch,
    Timetable,
)
from turbopump.broker.interceptors import (
    Interceptors,
    refuse_false_inner_batch,
    refuse_unknown_kinds,
)
from turbopump.broker.log_repair import LogRepair, Range
from turbopump.broker.pop.pop import Pop
from turbopump.broker.registration import NameServerRegistration, TopicRoutes
from turbopump.broker.replication import Replication
from turbopump.broker.saved_table import in_time
from turbopump.broker.schedule.delays import Delays, delay_level_interceptor
from turbopump.broker.schedule.timer_messages import timer_interceptor
from turbopump.broker.schedule.timers import timers_of
from turbopump.broker.send_queue import SendQueue
from turbopump.broker.slave_accounts import SlaveAccounts
from turbopump.broker.slave_tables import SlaveTables
from turbopump.broker.statistics import SAMPLE_S, RuntimeInfo, Statistics
from turbopump.broker.store_opening import log_error, log_info, open_store, store_config
from turbopump.broker.tables import SAVE_AGAIN_S, Tables
from turbopump.broker.topics import QueueKinds, make_topic_of_waiting
from turbopump.broker.transactions.half_messages import HalfMessageInterceptor
from turbopump.broker.transactions.transactions import Transactions
from turbopump.clock import Clock, SystemClock
from turbopump.compiled import KIND
from turbopump.config.addresses import bare_host, join_address
from turbopump.config.broker_config import (
    BROKER_KEYS,
    VIP_OFFSET,
    BrokerConfig,
    FlushDiskType,
    check_together,
)
from turbopump.config.running import RunningConfiguration
from turbopump.errors import ConfigError, NotStartedError
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import Authorise, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.turns import Turns
from turbopump.remoting.wire import Wire
from turbopump.replication.history import LogHistory, new_id
from turbopump.store.disk import Disk, SystemDisk
from turbopump.store.log.cold_reads import ReadPace
from turbopump.store.message_store import MessageStore, StoreConfig

log = logging.getLogger(__name__)

CLIENT_CHECK_S = 10.0
LATENCY_LINE_S = 60.0
MASTER_LOOK_S = 1.0
FIRST_REGISTRATION_S = 3.0
"""Longest that a start waits for name servers; a silent one must not keep the broker from serving
those who know it."""


_Step = Callable[[], Awaitable[None] | None]


class HandlerSet(Protocol):
    """The handlers of some related requests."""

    def add_to(self, router: Router) -> None: ...


class Broker:
    """One broker on one store directory.

    ``disk``, ``clock`` and ``source`` (of random numbers) are the system's unless given. ``host``
    and ``port`` are where it listens once started, ``address`` is what clients are told. ``file``
    is what it was configured by; it keeps settings that are changed by request.
    ``authorise`` sees every request before its handler (``Router``), in place of ``access``, the
    broker's own access control; that is None unless ``config`` turns it on. Its parts
    (``store``, ``tables``, ``timers`` and so on) are there to be looked at from ``start`` on.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        source: random.Random | None = None,
        file: Path | None = None,
        authorise: Authorise | None = None,
    ) -> None:
        self.config = config
        self._file = file
        self.clock = clock or SystemClock()
        self._authorise = authorise
        self._disk = disk
        self._random = source or random.Random()
        self._ends = AsyncExitStack()
        self._timetable = Timetable()
        self._turns = Turns()
        self.held_pulls = HeldPulls(self._turns)
        self.access: ServerAccess | None = None
        self._store: MessageStore | None = None
        self._tables: Tables | None = None
        self.scrubbing: Scrubbing | None = None
        self.host = config.bind_address
        self.port = config.listen_port
        self.address = ""

    @property
    def store(self) -> MessageStore:
        """The open store. Raises NotStartedError before ``start``."""
        if self._store is None:
            raise NotStartedError("the broker is not started")
        return self._store

    @property
    def tables(self) -> Tables:
        """Topics, groups, offsets and locks. Raises NotStartedError before ``start``."""
        if self._tables is None:
            raise NotStartedError("the broker is not started")
        return self._tables

    async def start(self) -> None:
        """Open the store, listen, register once.

        Raises StoreLockedError, StoreDamagedError, ConfigError (a port is taken) or OSError;
        nothing is left open then.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings, loop = store_config(self.config), asyncio.get_running_loop()
        disk = self._disk or SystemDisk(
            loop.call_soon_threadsafe, loop if settings.flushed_only else None
        )
        self._open(settings, disk)
        self._open_access(disk)
        await self._listen(disk)
        self._make_parts(settings, disk)
        self._add_handlers(disk)
        for begin, end in self._parts():
            self._ends.push_async_callback(_call, end)
            await _call(begin)
        if not self.config.namesrv_addresses:
            log.warning(
                "no name server is given (namesrvAddr, -n): clients will not find this broker"
            )
        await in_time(FIRST_REGISTRATION_S, *self._registration.telling())

    def _parts(self) -> Iterator[tuple[_Step, _Step]]:
        """How each part begins, in this order, and how it ends, in the reverse one. They stand on
        the open store."""
        delivers = not self.config.is_slave  # a slave stores nothing of its own
        if delivers:
            yield self.pop.start, self.pop.stop
            yield self._transactions.start, self._transactions.close
        yield _nothing, self.server.close
        yield self.replication.start, self.replication.stop
        yield self._fetch_damaged, self.log_repair.stop
        if self.slave_tables is not None:
            yield self.slave_tables.start, self.slave_tables.stop
        if self.slave_accounts is not None:
            yield self.slave_accounts.start, self.slave_accounts.stop
        yield _nothing, self._answer_held
        yield _nothing, self._routes.close
        yield self._register, self._unregister
        if delivers:
            yield self.timers.start, self.timers.stop
            yield self.delays.start, self.delays.stop
        yield self._cleaning.look, self._cleaning.close
        yield self._begin_repeating, self._timetable.close

    def _fetch_damaged(self) -> None:
        """What the start has found damaged."""
        report = self.store.recovery
        if report is not None:
            self.log_repair.fetch(Range(one.start, one.end) for one in report.damages)

    async def close(self) -> None:
        """Unregister, answer held pulls, close connections, save the tables, close the store. Safe
        to call twice."""
        await self._ends.aclose()

    def _open(self, settings: StoreConfig, disk: Disk) -> None:
        """The store and the tables beside it, recovered; who is connected, and the figures."""
        config, clock, loop = self.config, self.clock, asyncio.get_running_loop()
        self.sends = SendQueue(config)
        kinds = QueueKinds(disk, settings.paths)
        store = self._store = open_store(
            settings, disk, clock, kinds.is_batch, self.sends.append_took
        )
        self._ends.callback(self._close_store)
        pace = ReadPace(config.cold_read_share / 100, lambda: store.log.end, loop.call_later)
        store.log.files.read_ahead(enabled=config.data_read_ahead_enable)
        store.cold_reads.take_turns(loop.call_soon, clock.monotonic, pace)
        log.info("hot functions: %s", KIND)

        tables = self._tables = Tables(
            config, store, settings.paths, disk, clock, log_error, log_info, self._turns
        )
        kinds.table = tables.topics
        self._request_modes = RequestModes(config, tables.request_modes)
        self._request_modes.begun_ms = tables.begun_ms
        self._request_modes.load()
        tables.save_too(self._request_modes)
        self._clients: ClientTable[Wire] = ClientTable()
        self.clients_handler = ClientsHandler(
            config, self._clients, tables.topics, tables.groups, self._request_modes, self._turns
        )
        self.statistics = Statistics(
            store.queues, clock, config.broker_cluster_name, detail=config.enable_detail_stat
        )
        self.runtime_info = RuntimeInfo(
            config, settings.paths, store, self.statistics, self.sends, clock
        )

    def _open_access(self, disk: Disk) -> None:
        config = self.config
        if config.authentication_enabled:
            directory = Path(config.store_path_root_dir) / "config" / "auth"
            if config.auth_config_path:
                directory = Path(config.auth_config_path)
            clusters = (config.broker_cluster_name,)
            self.access = ServerAccess(config, directory, disk, lambda: clusters)
            self.access.open()
            self._authorise = self._authorise or self.access.control

    def _close_store(self) -> None:
        store, self._store = self.store, None
        try:
            store.finish_background()
            if self._tables is not None:
                self._tables.save_now()
        finally:
            store.close()

    async def _listen(self, disk: Disk) -> None:
        """Take the ports, and with them the address that clients and stored messages are told.
        Nothing waits from here until the handlers are there: a request that came before them would
        be refused as unknown."""
        config = self.config
        advertised = config.advertised_host
        numeric = await _numeric(advertised)
        self.router, self._vip_router = Router(self._authorise), Router(self._authorise)
        server = self.server = RemotingServer(
            self.router,
            on_close=self.clients_handler.connection_lost,
            idle_timeout=float(config.server_channel_max_idle_time_seconds),
            backlog=self.sends.backlog,
            turns=self._turns,
            memory_max=config.connection_memory_max,
            per_address=config.max_connections_per_address,
            tls=config.server_tls,
        )
        # If the start fails; else it is closed in its turn, see ``_parts``.
        self._ends.push_async_callback(server.close)
        if config.listen_port > VIP_OFFSET:
            try:
                await server.listen(
                    config.bind_address, config.listen_port - VIP_OFFSET, self._vip_router
                )
            except ConfigError as error:
                what = (
                    f"the VIP port of a broker on port {config.listen_port}, always "
                    f"{VIP_OFFSET} below it"
                )
                raise ConfigError(f"{error} (that is {what})") from None
        self.host, self.port = await server.listen(config.bind_address, config.listen_port)
        if config.listen_port == 0:
            try:
                await server.listen(config.bind_address, self.port - VIP_OFFSET, self._vip_router)
            except ConfigError as error:  # nobody chose these numbers, so nobody is to choose again
                log.info("no VIP port: clients that want one cannot connect to it cause=%s", error)
        if numeric is None:
            log.warning(
                "advertised host has no address here, messages name %s host=%s",
                self.host,
                advertised,
            )
        port = config.advertised_port or self.port
        self.address = join_address(advertised, port)
        self._store_host = (numeric or self.host, port)
        history = LogHistory(
            disk,
            store_config(config).paths.history,
            new_id(self.clock.now_ms(), self._random),
            self.store.log.end,
            unchanged=self.store.unchanged,
        )
        self.replication = Replication(config, self.store, disk, self.clock, history)
        self._ends.push_async_callback(self.replication.stop)  # if the start fails, as above
        ha_port = await self.replication.listen(self.port)
        self.ha_address = (
            join_address(bare_host(config.broker_ip2) or advertised, ha_port)
            if ha_port is not None
            else ""
        )

    def _make_parts(self, settings: StoreConfig, disk: Disk) -> None:
        """What moves messages beside the handlers, and what name servers are told."""
        signer = inner_signer(self.config)
        self._make_forwarding(settings)
        self._make_deliveries(settings, disk, signer)
        self._make_copies(disk, signer)
        self._make_registration(signer)
        self._cleaning = Cleaning(self.store, self.config)

    def _make_forwarding(self, settings: StoreConfig) -> None:
        """What stores messages of the broker's own, and what a send passes on its way."""
        config, clock, store, tables = self.config, self.clock, self.store, self.tables
        topics = tables.topics
        self._flush_wait = FlushWait(
            store.flusher,
            flushes=config.flush_disk_type == FlushDiskType.SYNC_FLUSH,
            copies=settings.copied_only,
        )
        self.forwarding = Forwarding(
            store,
            clock,
            self._store_host,
            self._flush_wait,
            partial(make_topic_of_waiting, topics, config.default_topic_queue_nums),
        )
        store.log.files.on_spare = self._room_made
        self._transactions = Transactions(
            config,
            store,
            self.forwarding,
            self._flush_wait,
            tables.offsets,
            topics,
            self._clients,
            clock,
            lambda peer, topic: self.access is None or self.access.control.may_publish(peer, topic),
        )
        self.interceptors = Interceptors()
        for interceptor in (
            refuse_false_inner_batch,
            HalfMessageInterceptor(config),
            retry_interceptor(
                topics,
                tables.groups,
                lambda group: tables.locks.locks.any_held(group, clock.monotonic()),
            ),
            timer_interceptor(config, clock),
            delay_level_interceptor(settings.delay_levels),
            refuse_unknown_kinds,
        ):
            self.interceptors.add(interceptor)

    def _make_deliveries(
        self, settings: StoreConfig, disk: Disk, signer: RequestSigner | None
    ) -> None:
        """Messages that wait: for their time, or to be popped."""
        config, clock, store, tables = self.config, self.clock, self.store, self.tables
        self.delays = Delays(
            tables.delay_offsets,
            store,
            self.forwarding,
            settings.delay_levels,
            clock,
            config.flush_delay_offset_interval / 1000,
        )
        self.delays.load()
        tables.save_too(self.delays)
        self.runtime_info.add_source(self.delays.positions)
        self.runtime_info.add_source(self._transactions.figures)
        self.runtime_info.add_source(self.replication.figures)
        self.timers = timers_of(config, settings.paths, store, disk, self.forwarding, clock)
        tables.save_too(self.timers)
        self.runtime_info.add_source(self.timers.figures)
        self.statistics.timers = self.timers.numbers.in_and_out
        self.log_repair = LogRepair(
            store,
            disk,
            RemotingClient(tls=config.client_tls, signer=signer),
            config.broker_name,
            self.address,
            config.namesrv_addresses,
        )
        self.pop = Pop(
            config,
            self._turns,
            store,
            tables,
            self.timers,
            self.forwarding,
            self.statistics,
            clock,
            self.log_repair,
        )

    def _make_copies(self, disk: Disk, signer: RequestSigner | None) -> None:
        """What a slave copies beside the log, and the scrub, which has damage mended from a
        copy."""
        config, store, tables = self.config, self.store, self.tables
        self._records = TopicRecords(
            tables.topics, tables.offsets, store, self.statistics, self.held_pulls
        )
        link = self.replication.slave
        self.slave_tables: SlaveTables | None = None
        self.slave_accounts: SlaveAccounts | None = None
        if link is not None:
            tables_of_master = self.slave_tables = SlaveTables(
                link,
                store,
                self._records,
                tables.groups,
                self._request_modes,
                self.pop.order,
                tables.locks,
                self.delays,
                self.timers,
                RemotingClient(tls=config.client_tls, signer=signer),
                default_queues=config.default_topic_queue_nums,
            )
            link.begin_at = tables_of_master.begin_at
            inner = config.inner_user
            if self.access is not None and inner is not None:
                self.slave_accounts = SlaveAccounts(
                    self.access,
                    Credentials(*inner),
                    tables_of_master.remoting,
                    lambda: tables_of_master.master,
                )
        if config.scrub_bytes_per_second:
            now = asyncio.get_running_loop().time
            self.scrubbing = Scrubbing(
                store,
                disk,
                config.scrub_bytes_per_second,
                now,
                lambda start, end: self.log_repair.fetch([Range(start, end)]),
            )

    def _make_registration(self, signer: RequestSigner | None) -> None:
        """What name servers are told, and asked."""
        config, topics = self.config, self.tables.topics
        self._registration = NameServerRegistration(
            config,
            topics,
            self.address,
            self.ha_address,
            lambda reply: self._master_is_at(reply.master_addr, reply.ha_server_addr),
            signer,
            # a new one has no slave that is about to come back
            awaits_slaves=config.slave_acks > 0 and self.store.log.end > 0,
        )
        if self.replication.master is not None:
            self.replication.master.on_in_sync = self._registration.takes_sends
        self._routes = TopicRoutes(config, topics, self.clock, signer)

    def _add_handlers(self, disk: Disk) -> None:
        for handler in self._handlers(self.store, self.tables, disk):
            handler.add_to(self.router)
            if not isinstance(handler, PullHandler | PopHandler):  # a VIP port takes no pulls
                handler.add_to(self._vip_router)

    def _handlers(self, store: MessageStore, tables: Tables, disk: Disk) -> Iterator[HandlerSet]:
        """Who answers which requests: each handler is given what it needs, and no more."""
        config, clock, clients, random = self.config, self.clock, self._clients, self._random
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        reads, lookup, statistics = store.cold_reads, store.lookup, self.statistics
        forwarding, flush_wait, host = self.forwarding, self._flush_wait, self._store_host
        pop, held, announce = self.pop, self.held_pulls, self._registration.telling
        cold = ColdFlow(
            clock,
            enabled=config.cold_data_flow_control_enable,
            group_max=config.cg_cold_read_threshold,
            total_max=config.global_cold_read_threshold,
            adapts=config.cold_ctr_strategy_enable,
        )

        send = SendHandler(
            config,
            store,
            topics,
            groups,
            clock,
            random,
            host,
            announce,
            self.interceptors,
            flush_wait,
        )
        yield send
        yield RecallHandler(config, store, topics, self.timers, clock, host, flush_wait)
        yield TransactionsHandler(config, self._transactions, clock)
        yield RepliesHandler(config, topics, clients, clock, forwarding, host, send.check)
        yield SendBackHandler(
            config, lookup, reads, topics, groups, clients, forwarding, statistics, random
        )

        yield PullHandler(
            config, store, topics, groups, offsets, clients, held, statistics, cold, self.log_repair
        )
        yield PopHandler(config, store, topics, groups, pop, forwarding, clock, random)
        yield PopAcksHandler(config, store, topics, offsets, pop, forwarding, clock)
        yield OffsetsHandler(store, topics, groups, offsets, reads)
        yield LocksHandler(tables.locks, topics, clients, clock)
        yield QueriesHandler(config, lookup, reads, topics, clients, self.log_repair)

        yield self.clients_handler
        yield AssignmentHandler(config, topics, groups, self._request_modes, self._routes, clients)
        yield ClientQuestionsHandler(config.broker_name, store, topics, groups, clients, reads)

        records = self._records
        yield TopicsHandler(config, records, reads, announce)
        yield CleaningHandler(records, self._cleaning)
        yield GroupsHandler(groups, offsets, held, pop.held)
        yield OffsetControlHandler(config, store, topics, groups, offsets, clients, held, reads)
        address, conflicts = f"{host[0]}:{host[1]}", self.clients_handler.conflicts
        yield ConsumersHandler(
            config.broker_name,
            address,
            store,
            topics,
            groups,
            offsets,
            clients,
            conflicts,
            statistics,
            reads,
            clock,
        )
        yield StatisticsHandler(statistics, self.runtime_info, store, reads)
        yield ColdFlowHandler(cold, store.log)
        yield ReplicationHandler(
            store,
            self.replication,
            offsets,
            pop.order,
            tables.locks,
            self.delays,
            self._request_modes,
            self.timers,
            (self.address, self.ha_address),
            self._master_is_at,
        )
        yield ConfigurationHandler(
            RunningConfiguration.of(config, BROKER_KEYS, self._file, check=check_together),
            disk,
            clock,
            lambda: self._settings_changed(send),
        )
        yield self.access or NoAccessControl()
        yield UnservedHandler()

    def _settings_changed(self, send: SendHandler) -> None:
        """Pass on to those who do not read a setting when they use it."""
        config, tables, settings = self.config, self.tables, store_config(self.config)
        send.read_settings()
        self.sends.read_settings()
        tables.topics.auto_create = config.auto_create_topic_enable
        tables.groups.auto_create = config.auto_create_subscription_group
        tables.topics.add_system_topics(config)
        self.store.retention.rules = settings.retention
        self.store.space.limits = settings.space
        self._registration.all_again()  # brokerPermission

    def _master_is_at(self, address: str | None, ha_address: str | None) -> None:
        if self.slave_tables is not None:
            self.slave_tables.master_is_at(address)
        self.replication.master_is_at(ha_address)

    def _look_for_master(self) -> None:
        """A slave that started before its master hears of it from the name servers' answers."""
        if self.slave_tables is not None and self.slave_tables.master is None:
            self._registration.all_again()

    def _answer_held(self) -> None:
        self.held_pulls.expire_all()
        self.pop.held.expire_all()

    def _revoke_held(self) -> None:
        """Answer held requests whose users may have lost permissions."""
        self.held_pulls.revoke_all()
        self.pop.held.revoke_all()

    def _register(self) -> None:
        self.tables.topics.on_change = self._registration.changed
        self._registration.start()

    async def _unregister(self) -> None:
        self.tables.topics.on_change = lambda _name: None
        await self._registration.close()

    def _save_offsets(self) -> None:
        """With what pops note in them before."""
        self.pop.save()
        self.tables.offsets.save()

    def _save_again(self) -> None:
        """What could not be saved before."""
        for file in (*self.tables.files, self.store.queue_ends.file):
            file.repeat()

    def _room_made(self) -> None:
        """The log has a new file. What is stored already goes first: it is older."""
        self.replication.room_made()
        self.forwarding.room_made()
        self.sends.backlog.release()

    def _begin_repeating(self) -> None:
        config, every = self.config, self._timetable.every
        loop = asyncio.get_running_loop()
        every(config.flush_interval_commit_log / 1000, self.store.flusher.flush_log)
        every(config.flush_interval_consume_queue / 1000, self.store.flusher.flush_queues)
        every(LOOK_AT_FILES_S, self.store.flusher.look_at_files)
        every(config.flush_consumer_offset_interval / 1000, self._save_offsets)
        every(SAVE_AGAIN_S, self._save_again)
        every(
            min(max(config.register_name_server_period, 10_000), 60_000) / 1000,
            self._registration.all_again,
        )
        if self.access is not None:
            self.access.control.on_permissions_reduced = self._revoke_held
            every(ACCESS_LOOK_S, self.access.look)
        if config.is_slave:
            every(MASTER_LOOK_S, self._look_for_master)
        every(LOOK_INTERVAL_S, StallWatch(loop.time, self.sends.stood_still).look)
        if self.scrubbing is not None:
            self._timetable.at_its_pace(self.scrubbing.step)
        every(SPACE_INTERVAL_S, self._cleaning.look)
        every(config.clean_resource_interval / 1000, self._cleaning.round)
        every(SAMPLE_S, lambda: self._turns.run(self.statistics, self.statistics.sample()))
        every(LATENCY_LINE_S, lambda: log.info("%s", self.store.latency.end_minute()))
        silence = config.channel_expired_timeout / 1000
        every(CLIENT_CHECK_S, lambda: self.clients_handler.close_silent(loop.time(), silence))


def _nothing() -> None:
    """How a part begins that is there as soon as it is made."""


async def _call(step: _Step) -> None:
    done = step()
    if done is not None:
        await done


async def _numeric(host: str) -> str | None:
    """The address behind an advertised host, for stored entries, which hold four or sixteen bytes
    of it; None if it has none here."""
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
