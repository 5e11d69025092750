"""The broker. It builds its parts, starts them in a fixed order, and stops them in reverse.

``start`` opens the store, loads the tables, opens the ports and registers the broker. ``close``
does the reverse and leaves a clean directory.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from turbopump.auth.server_access import LOOK_INTERVAL_S as ACCESS_CHECK_S
from turbopump.auth.server_access import NoAccessControl, ServerAccess, inner_signer
from turbopump.auth.signatures import RequestSigner
from turbopump.broker.acting.acting import Acting
from turbopump.broker.acting.escape import EscapingForwarding
from turbopump.broker.acting.progress import Progress, take_over
from turbopump.broker.background import wait_for
from turbopump.broker.cold_flow import ColdFlow
from turbopump.broker.handlers.assignment import AssignmentHandler
from turbopump.broker.handlers.cleaning import CleaningHandler
from turbopump.broker.handlers.client_questions import ClientQuestionsHandler
from turbopump.broker.handlers.clients import ClientsHandler
from turbopump.broker.handlers.cold_flow import ColdFlowHandler
from turbopump.broker.handlers.configuration import ConfigurationHandler
from turbopump.broker.handlers.consumers import ConsumersHandler
from turbopump.broker.handlers.groups import GroupsHandler
from turbopump.broker.handlers.locks import LocksHandler
from turbopump.broker.handlers.offset_control import OffsetControlHandler
from turbopump.broker.handlers.offsets import OffsetsHandler
from turbopump.broker.handlers.pop import PopHandler
from turbopump.broker.handlers.pop_acks import PopAcksHandler
from turbopump.broker.handlers.pull import PullHandler
from turbopump.broker.handlers.queries import QueriesHandler
from turbopump.broker.handlers.recall import RecallHandler
from turbopump.broker.handlers.replica import ReplicaHandler
from turbopump.broker.handlers.replication import ReplicationHandler
from turbopump.broker.handlers.replies import RepliesHandler
from turbopump.broker.handlers.send import SendHandler
from turbopump.broker.handlers.send_back import SendBackHandler
from turbopump.broker.handlers.statistics import StatisticsHandler
from turbopump.broker.handlers.topics import TopicsHandler
from turbopump.broker.handlers.transactions import TransactionsHandler
from turbopump.broker.handlers.unserved import UnservedHandler
from turbopump.broker.housekeeping import FILES_CHECK_S, SPACE_INTERVAL_S, STALL_CHECK_S, StallWatch
from turbopump.broker.log_repair import Range
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.broker.metrics.broker_state import add_readiness
from turbopump.broker.parts import (
    Parts,
    follow_master,
    listen,
    make_announcing,
    make_copies,
    make_deliveries,
)
from turbopump.broker.readiness import Readiness
from turbopump.broker.recovery_progress import RecoveryProgress
from turbopump.broker.replica.group_replication import GroupReplication
from turbopump.broker.replica.role import Part
from turbopump.broker.replica.served_role import ServedRole
from turbopump.broker.replication import Replication
from turbopump.broker.saved_table import in_time
from turbopump.broker.statistics import SAMPLE_S
from turbopump.broker.store_settings import store_config
from turbopump.broker.stored import Stored, open_stored
from turbopump.broker.tables import SAVE_AGAIN_S, Tables
from turbopump.clock import Clock, SystemClock
from turbopump.config.broker_config import BROKER_KEYS, BrokerConfig, check_together
from turbopump.config.running import RunningConfiguration
from turbopump.disk.disk import Disk
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import NotStartedError
from turbopump.protocol.requests.send import NOT_IN_SYNC
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.health_port import HealthPort
from turbopump.remoting.metrics_port import MetricsPort
from turbopump.remoting.published_metrics import PublishedMetrics
from turbopump.remoting.router import Authorise, Router
from turbopump.store.message_store import MessageStore
from turbopump.timetable import Timetable

log = logging.getLogger(__name__)

CLIENT_CHECK_S = 10.0
LATENCY_LINE_S = 60.0
MASTER_CHECK_S = 1.0
FINISH_S = 1.0
"""Maximum seconds of each step of ``finish_writes``. Requests wait meanwhile."""
FIRST_REGISTRATION_S = 3.0
"""Maximum seconds that a start waits for name servers. After that the broker runs without them,
because clients that know its address can already be served."""


_Step = Callable[[], Awaitable[None] | None]


class HandlerSet(Protocol):
    """Set of handlers for related requests. A router learns of them through ``add_to``."""

    def add_to(self, router: Router) -> None: ...


class Broker:
    """A RocketMQ broker on one store directory.

    Arguments:

    - ``disk``, ``clock`` and ``source`` (of random numbers): those of the system by default.
    - ``file``: the configuration file, which keeps settings changed by request.
    - ``authorise``: a function that is called for every request before its handler (``Router``). If
      given, it replaces the broker's own access control.
    - ``served_role``: the role that a controller has given (``replica/``), or None without one.

    Attributes:

    - ``host`` and ``port``: the listening address, once started.
    - ``address``: the address for clients.
    - ``access``: the broker's own access control, or None unless ``config`` turns it on.
    - ``readiness``: the reasons why the broker is not ready for clients.
    - ``parts``: the parts of the broker, for inspection while it runs.
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
        served_role: ServedRole | None = None,
    ) -> None:
        self.config = config
        self._served_role = served_role
        self._stays = False
        self._file = file
        self.clock = clock or SystemClock()
        self._authorise = authorise
        self._disk = disk
        self._random = source or random.Random()
        self._ends = AsyncExitStack()
        self._timetable = Timetable()
        self.access: ServerAccess | None = None
        self.readiness = Readiness(config, RecoveryProgress(self.clock.monotonic))
        self._health = HealthPort(config, self.readiness.reasons)
        self._parts: Parts | None = None
        self.acting: Acting | None = None
        """Work of this slave while its master is away. None without `enableSlaveActingMaster`."""
        self._metrics: PublishedMetrics | None = None
        self.host = config.bind_address
        self.port = config.listen_port
        self.address = ""

    @property
    def parts(self) -> Parts:
        """All parts of the started broker.

        Raises NotStartedError before ``start`` and after ``close``.
        """
        if self._parts is None:
            raise NotStartedError("the broker is not started")
        return self._parts

    @property
    def store(self) -> MessageStore:
        """The open message store of the started broker.

        Raises NotStartedError before ``start`` and after ``close``.
        """
        return self.parts.stored.store

    @property
    def tables(self) -> Tables:
        """The topics, groups, offsets and locks of the started broker.

        Raises NotStartedError before ``start`` and after ``close``.
        """
        return self.parts.stored.tables

    @property
    def metrics_port(self) -> MetricsPort | None:
        """Port of `/metrics` of the started broker, which may be closed. None before the start."""
        return None if self._metrics is None else self._metrics.port

    async def start(self) -> None:
        """Open the store, listen for clients, and register with the name servers.

        Raises StoreLockedError, StoreDamagedError or OSError if the store cannot be opened. Raises
        ConfigError if a port is taken. After an error nothing is left open.
        """
        try:
            self._ends.callback(self._health.pages.close)
            await self._health.open()
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        parts = self._parts = await self._build()
        self.readiness.note_start(parts)
        parts.stored.store.log.files.on_spare = partial(self._room_made, parts)
        for handler in self._handlers(parts):
            handler.add_to(parts.listening.router)
            if not isinstance(handler, PullHandler | PopHandler):  # a VIP port takes no pulls
                handler.add_to(parts.listening.vip_router)
        if parts.copying.table_records is not None:
            parts.copying.table_records.hold_answers(
                parts.listening.router, parts.listening.vip_router
            )
        if self._served_role is not None:
            for router in (parts.listening.router, parts.listening.vip_router):
                self._served_role.gate.add_router(router)
            self.follow_role()  # before anything is served
        for begin, end in self._lives(parts):
            self._ends.push_async_callback(_call, end)
            await _call(begin)
        if not self.config.namesrv_addresses:
            log.warning(
                "no name server is given (namesrvAddr, -n): clients will not find this broker"
            )
        served = self._served_role
        if served is None or served.role.part is Part.WAITING:  # a change of the role has no time
            await in_time(FIRST_REGISTRATION_S, *parts.announcing.registration.announce_changes())

    async def _build(self) -> Parts:
        """Open the store and the ports, and build all parts of the broker."""
        config = self.config
        loop = asyncio.get_running_loop()
        settings = store_config(config)
        disk = self._disk or SystemDisk(
            loop.call_soon_threadsafe, loop if settings.flushed_only else None
        )
        with self._health.pages.answered_by_thread():  # opening blocks the loop
            stored = open_stored(
                config, settings, disk, self.clock, self._random, self.readiness.recovery
            )
        self._ends.callback(self._close_stored, stored)
        self._open_access(disk)
        signer = inner_signer(config)
        progress = await self._take_over(stored, signer)
        listening = await listen(stored, self._authorise, self._ends, self._served_role)
        self.host = listening.host
        self.port = listening.port
        self.address = listening.address
        delivering = make_deliveries(stored, listening, self.access, signer)
        copying = make_copies(stored, listening, delivering, self.access, signer)
        if copying.table_records is not None:
            copying.table_records.open()
        if self._served_role is not None and self._served_role.role.is_master:
            # after the records, which bring the versions of earlier masters
            stored.tables.topics.next_version(self._served_role.role.master_epoch)
        announcing = make_announcing(stored, listening, copying, signer)
        if progress is not None:
            progress.pass_on(delivering)
        if isinstance(delivering.forwarding, EscapingForwarding):
            self.acting = Acting(stored, listening, delivering, copying, delivering.forwarding)
            stored.runtime_info.add_source(self.acting.figures)
            announcing.registration.when_smallest_id_changes(self.acting.look_soon)
        return Parts(stored, listening, delivering, copying, announcing)

    async def _take_over(self, stored: Stored, signer: RequestSigner | None) -> Progress | None:
        """Ask the slaves of this master how far they came, if they may have acted for it."""
        config = self.config
        if not config.asks_slaves:
            return None
        remoting = RemotingClient(tls=config.client_tls, signer=signer)
        try:
            return await take_over(stored, remoting)
        finally:
            await remoting.close()

    def _lives(self, parts: Parts) -> Iterator[tuple[_Step, _Step]]:
        """For each part, yield its start function and its stop function. The parts come in the
        order of their starts."""
        # The stops run from the last to the first. Nothing new is delivered, then the broker
        # unregisters, and clients learn of it while it still answers them. Held requests are
        # answered before the connections close. POP and transactions stop last, because requests
        # use them until then.
        listening = parts.listening
        delivering = parts.delivering
        copying = parts.copying
        delivers = not self.config.is_slave  # a slave stores nothing of its own
        if copying.table_records is not None:
            yield _nothing, copying.table_records.stop
        if delivers:
            yield delivering.pop.start, delivering.pop.stop
            yield delivering.transactions.start, delivering.transactions.close
        yield _nothing, self._end_held_writes
        yield _nothing, listening.server.close
        yield listening.replication.start, listening.replication.stop
        yield self._fetch_damaged, delivering.log_repair.stop
        if copying.slave_tables is not None:
            yield copying.slave_tables.start, copying.slave_tables.stop
        if copying.slave_accounts is not None:
            yield copying.slave_accounts.start, copying.slave_accounts.stop
        yield _nothing, self._answer_held
        yield _nothing, parts.announcing.routes.close
        yield self._register, self._unregister
        if self.acting is not None:
            yield self.acting.start, self.acting.stop
        if delivers:
            yield delivering.timers.start, delivering.timers.stop
            yield delivering.delays.start, delivering.delays.stop
        yield copying.cleaning.check_space, copying.cleaning.close
        yield partial(self._begin_metrics, parts), self._end_metrics
        yield self._begin_repeating, self._timetable.close

    async def _begin_metrics(self, parts: Parts) -> None:
        may_read = None
        if self.access is not None:
            may_read = self.access.control.may_read_metrics
        metrics = metrics_of(parts)
        add_readiness(metrics, self.readiness.reasons)
        server, turns = parts.listening.server, parts.stored.turns
        self._metrics = PublishedMetrics(self.config, server, metrics, may_read, turns)
        await self._metrics.start(self.config.metrics_prom_exporter_port)

    async def _end_metrics(self) -> None:
        if self._metrics is not None:
            await self._metrics.close()

    def _fetch_damaged(self) -> None:
        """Request the parts of the log that the recovery found damaged from another broker.

        A slave requests all damaged parts again each time when it begins to copy.
        """
        slave = self.parts.listening.replication.slave
        if slave is not None:
            slave.on_copying = self.parts.delivering.log_repair.fetch_again
        report = self.store.recovery
        if report is not None:
            damages = (Range(one.start, one.end) for one in report.damages)
            self.parts.delivering.log_repair.fetch(damages)

    async def close(self, *, stays: bool = False) -> None:
        """Stop the broker and close its store.

        The broker unregisters, answers waiting pulls, closes the connections and saves the tables.
        The method may be called twice. ``stays`` leaves out the unregistration, because a broker
        with another role is opened here at once.
        """
        self._stays = stays
        if self._parts is not None:
            self.readiness.note_stop()
        await self._ends.aclose()

    # --- a broker in controller mode

    @property
    def group_replication(self) -> GroupReplication:
        """Replication of this broker, which a controller manages."""
        replication = self.parts.listening.replication
        assert not isinstance(replication, Replication)
        return replication

    def follow_role(self) -> None:
        """Take over what has changed in the role without another part to play: the sync state set,
        or the master to which sends are passed on."""
        served = self._served_role
        assert served is not None
        self.group_replication.follow_role()
        master = self.group_replication.master
        if master is None:
            served.gate.pass_on(None)  # until the master serves as such
        elif master.is_writable:
            served.gate.open()
        else:
            served.gate.hold(
                f"{NOT_IN_SYNC}: the sync state set is {sorted(master.sync_state)}, and "
                f"minInSyncReplicas={self.config.min_in_sync_replicas}; start the other replicas"
            )

    def follow_master(self, address: str, ha_address: str) -> None:
        """Let this slave copy from the master at these addresses, and pass sends on to it."""
        assert self._served_role is not None
        self._served_role.gate.pass_on(address)
        follow_master(self.parts.listening, self.parts.copying, address, ha_address)

    async def finish_writes(self) -> None:
        """Hold all writes of this master, and wait until the others have its log.

        What is half done is finished first: a commit that is stored and not recorded would be
        repeated by the next master. Call this when clients send nothing more, and then
        ``resume_writes`` if this broker stays the master.
        """
        store = self.store
        await wait_for((store.confirmed, store.log.end), seconds=FINISH_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self.parts.delivering.transactions.write_ends()
        records = self.parts.copying.table_records
        assert records is not None
        records.write()
        store.hold()
        await wait_for((store.confirmed, store.log.end), seconds=FINISH_S)

    def resume_writes(self) -> None:
        """Continue with the writes that ``finish_writes`` holds."""
        self.store.resume()
        self._room_made(self.parts)

    def _end_held_writes(self) -> None:
        """Refuse writes that still wait, so that the rest of the stop does not wait for them."""
        if self.store.is_held:
            self.parts.delivering.forwarding.end_waits()

    def _close_stored(self, stored: Stored) -> None:
        self._parts = None
        with self._health.pages.answered_by_thread():
            stored.close()

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

    def _handlers(self, parts: Parts) -> Iterator[HandlerSet]:
        """Yield the handlers of all requests."""
        config = self.config
        stored = parts.stored
        listening = parts.listening
        delivering = parts.delivering
        copying = parts.copying
        forwarding = delivering.forwarding
        pop = delivering.pop
        held = delivering.held_pulls
        announce = parts.announcing.registration.announce_changes
        cold = ColdFlow(
            self.clock,
            enabled=config.cold_data_flow_control_enable,
            group_max=config.cg_cold_read_threshold,
            total_max=config.global_cold_read_threshold,
        )

        send = SendHandler(stored, forwarding, delivering.interceptors, announce)
        yield send
        yield RecallHandler(stored, forwarding, delivering.timers)
        yield TransactionsHandler(config, delivering.transactions, self.clock)
        yield RepliesHandler(stored, forwarding, send.check)
        yield SendBackHandler(stored, forwarding)

        yield PullHandler(stored, held, cold, delivering.log_repair)
        yield PopHandler(stored, pop, forwarding)
        yield PopAcksHandler(stored, pop, forwarding)
        yield OffsetsHandler(stored)
        yield LocksHandler(stored)
        yield QueriesHandler(stored, delivering.log_repair)

        yield ClientsHandler(stored, listening.membership)
        yield AssignmentHandler(stored, parts.announcing.routes)
        yield ClientQuestionsHandler(stored)

        yield TopicsHandler(config, copying.records, announce)
        yield CleaningHandler(copying.records, copying.cleaning)
        yield GroupsHandler(stored.tables, held, pop.held, stored.statistics)
        yield OffsetControlHandler(stored, held)
        yield ConsumersHandler(stored, "{}:{}".format(*listening.store_host), listening.membership)
        yield StatisticsHandler(stored)
        yield ColdFlowHandler(cold, stored.store.log)
        yield ReplicationHandler(stored, listening, delivering, copying, self.acting)
        if self._served_role is not None:
            yield ReplicaHandler(self._served_role, stored, self.group_replication)
        yield ConfigurationHandler(
            RunningConfiguration.from_file(config, BROKER_KEYS, self._file, check=check_together),
            stored.disk,
            self.clock,
            partial(self._settings_changed, send),
        )
        yield self.access or NoAccessControl()
        yield UnservedHandler()

    def _settings_changed(self, send: SendHandler) -> None:
        """Pass changed settings to the parts that keep a copy of them."""
        config = self.config
        tables = self.tables
        settings = store_config(self.config)
        send.read_settings()
        self.parts.stored.sends.read_settings()
        tables.topics.auto_create = config.auto_create_topic_enable
        tables.groups.auto_create = config.auto_create_subscription_group
        tables.topics.add_system_topics(config)
        self.store.retention.rules = settings.retention
        self.store.space.limits = settings.space
        self.parts.announcing.registration.register_all()  # brokerPermission

    def _look_for_master(self) -> None:
        """Ask the name servers for the address of the master, if this slave does not know it."""
        if self.parts.copying.lacks_master:
            self.parts.announcing.registration.register_all()

    def _answer_held(self) -> None:
        self.parts.delivering.held_pulls.expire_all()
        self.parts.delivering.pop.held.expire_all()

    def _revoke_held(self) -> None:
        """Answer waiting requests whose users may have lost permissions."""
        self.parts.delivering.held_pulls.revoke_all()
        self.parts.delivering.pop.held.revoke_all()

    def _register(self) -> None:
        self.tables.topics.on_change = self.parts.announcing.registration.note_change
        self.parts.announcing.registration.start()

    async def _unregister(self) -> None:
        self.tables.topics.on_change = lambda _name: None
        await self.parts.announcing.registration.close(stays=self._stays)

    def _save_offsets(self) -> None:
        """Save the offsets of the groups, including the offsets of pops."""
        self.parts.delivering.pop.save()
        self.tables.offsets.save()

    def _save_again(self) -> None:
        """Save the tables whose last save failed."""
        for file in (*self.tables.files, self.store.queue_ends.file):
            file.repeat_save()

    @staticmethod
    def _room_made(parts: Parts) -> None:
        """Resume appends that waited for a new file of the log, or because the store was held.

        Copied messages and the broker's own messages are appended first, because they are older
        than waiting sends.
        """
        if parts.copying.table_records is not None:
            parts.copying.table_records.write()
        parts.listening.replication.room_made()
        parts.delivering.forwarding.room_made()
        parts.stored.sends.backlog.release_held()

    def _sample_statistics(self) -> None:
        statistics = self.parts.stored.statistics
        self.parts.stored.turns.run(statistics, statistics.sample())

    def _log_latency(self) -> None:
        log.info("%s", self.store.latency.end_minute())

    def _close_silent_clients(self) -> None:
        now = asyncio.get_running_loop().time()
        self.parts.listening.membership.close_silent(
            now, self.config.channel_expired_timeout / 1000
        )

    def _begin_repeating(self) -> None:
        config = self.config
        every = self._timetable.every
        loop = asyncio.get_running_loop()
        parts = self.parts
        every(config.flush_interval_commit_log / 1000, self.store.flusher.flush_log)
        every(config.flush_interval_consume_queue / 1000, self.store.flusher.flush_queues)
        every(FILES_CHECK_S, self.store.flusher.check_files)
        every(config.flush_consumer_offset_interval / 1000, self._save_offsets)
        every(SAVE_AGAIN_S, self._save_again)
        if parts.copying.table_records is not None:
            every(config.flush_consumer_offset_interval / 1000, parts.copying.table_records.save)
        every(
            min(max(config.register_name_server_period, 10_000), 60_000) / 1000,
            parts.announcing.registration.register_all,
        )
        if self.access is not None:
            self.access.control.on_permissions_reduced = self._revoke_held
            every(ACCESS_CHECK_S, self.access.check_file)
        if config.enable_slave_acting_master:
            every(
                config.broker_heartbeat_interval / 1000,
                parts.announcing.registration.begin_heartbeats,
            )
        if config.is_slave and not config.enable_controller_mode:
            every(MASTER_CHECK_S, self._look_for_master)
        every(STALL_CHECK_S, StallWatch(loop.time, parts.stored.sends.stood_still).check_delay)
        if parts.copying.scrubbing is not None:
            self._timetable.at_its_pace(parts.copying.scrubbing.step)
        every(SPACE_INTERVAL_S, parts.copying.cleaning.check_space)
        every(config.clean_resource_interval / 1000, parts.copying.cleaning.start_round)
        every(SAMPLE_S, self._sample_statistics)
        every(LATENCY_LINE_S, self._log_latency)
        every(CLIENT_CHECK_S, self._close_silent_clients)


def _nothing() -> None:
    """Start nothing. Some parts need only a stop."""


async def _call(step: _Step) -> None:
    done = step()
    if done is not None:
        await done
