"""The broker: what it is made of, in the order in which it is put together and taken apart.

``start`` opens the store, loads the tables, listens, and registers; ``close`` does the reverse and leaves a clean directory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket

from turbopump.broker.cleaning import SPACE_INTERVAL_S, Cleaning
from turbopump.broker.consumers import ClientTable
from turbopump.broker.groups import GroupTable
from turbopump.broker.handlers.clients import ClientsHandler
from turbopump.broker.handlers.offsets import OffsetsHandler
from turbopump.broker.handlers.pull import PullHandler
from turbopump.broker.handlers.queries import QueriesHandler
from turbopump.broker.handlers.send import SendHandler
from turbopump.broker.handlers.topics import TopicsHandler
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.questions import Questions
from turbopump.broker.recovery_progress import RecoveryProgress
from turbopump.broker.registration import Registration
from turbopump.broker.scrubbing import Scrubbing
from turbopump.broker.send_queue import SendQueue
from turbopump.broker.stalls import LOOK_INTERVAL_S, StallWatch
from turbopump.broker.store_settings import store_config
from turbopump.broker.timetable import Timetable
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock, SystemClock
from turbopump.compiled import KIND
from turbopump.config.addresses import join_address
from turbopump.config.broker_config import VIP_OFFSET, BrokerConfig
from turbopump.errors import ConfigError, NotStartedError
from turbopump.protocol.bodies.topics import PERM_INHERIT, PERM_READ, PERM_WRITE
from turbopump.protocol.requests.clients import GetConsumerListByGroup, Heartbeat, UnregisterClient
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import LitePullMessage, PullMessage
from turbopump.protocol.requests.queries import GetEarliestMsgStoreTime, QueryMessage, ViewMessageById
from turbopump.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, GetAllTopicConfig
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Router
from turbopump.remoting.server import RemotingServer
from turbopump.store.disk import Disk, SystemDisk
from turbopump.store.json_table import JsonTable
from turbopump.store.message_store import MessageStore
from turbopump.store.recovery import RecoveryReport

log = logging.getLogger(__name__)

CLIENT_CHECK_S = 10.0
LATENCY_LINE_S = 60.0
FIRST_REGISTRATION_S = 3.0
"""Longest that a start waits for name servers; a silent one must not keep the broker from serving those who know it."""
SAVE_AGAIN_S = 1.0
"""After how long a table that could not be saved is tried again."""
DAMAGES_LOGGED = 100
"""Damaged ranges, and offsets set back, that get a line each at the start; all of them are counted."""


class Broker:
    """One broker on one store directory.

    ``disk``, ``clock`` and ``source`` (of random numbers) are the system's unless given. ``host`` and ``port`` are where it listens
    once started, ``address`` is what clients are told.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        source: random.Random | None = None,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._disk = disk
        self._random = source or random.Random()
        self._timetable = Timetable()
        self._cleaning: Cleaning | None = None
        self._held = HeldPulls()
        self._store: MessageStore | None = None
        self._server: RemotingServer | None = None
        self._registration: Registration | None = None
        self._files: list[JsonTable] = []
        self._tables: list[TopicTable | GroupTable | ConsumerOffsets] = []
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

    async def start(self) -> None:
        """Open the store, listen, register once.

        Raises StoreLockedError, StoreDamagedError, ConfigError (a port is taken) or OSError; nothing is left open then.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        config, clock = self.config, self._clock
        loop = asyncio.get_running_loop()
        disk = self._disk or SystemDisk(lambda call: loop.call_soon_threadsafe(call))
        settings = store_config(config)
        store = self._store = MessageStore.open(settings, disk, clock, _report, RecoveryProgress(clock.monotonic).reached)
        store.cold_reads.take_turns(loop.call_soon, loop.time)
        _report_recovery(config.store_path_root_dir, store.recovery)
        log.info("hot functions: %s", KIND)

        paths = settings.paths
        self._files = [
            JsonTable(disk, paths.table(name), _report) for name in ("topics", "subscriptionGroup", "consumerOffset")
        ]
        topics, groups, offsets = self._files
        self._topics = TopicTable(topics, clock, auto_create=config.auto_create_topic_enable)
        self._groups = GroupTable(groups, clock, auto_create=config.auto_create_subscription_group)
        self._offsets = ConsumerOffsets(offsets, clock)
        for table in (self._topics, self._groups, self._offsets):
            table.load()
            self._tables.append(table)
        self._set_back_offsets()
        self._topics.add_system_topics(
            cluster=config.broker_cluster_name,
            broker=config.broker_name,
            default_queues=config.default_topic_queue_nums,
            cluster_perm=PERM_READ | PERM_WRITE | PERM_INHERIT if config.cluster_topic_enable else PERM_INHERIT,
            broker_perm=PERM_READ | PERM_WRITE if config.broker_topic_enable else PERM_INHERIT,
        )

        self._sends = sends = SendQueue(config)
        store.latency.on_slow = sends.append_took
        store.log.files.on_spare = sends.backlog.release
        clients: ClientTable[Connection] = ClientTable()
        self._clients_handler = ClientsHandler(config, clients, self._topics, self._groups)
        self._server = RemotingServer(
            Router(),
            on_close=self._clients_handler.connection_lost,
            idle_timeout=float(config.server_channel_max_idle_time_seconds),
            backlog=sends.backlog,
        )
        router, vip_router = Router(), Router()
        await self._listen(router, vip_router)

        self._registration = Registration(
            config.namesrv_addresses,
            self._topics,
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=self.address,
            ha_address=join_address(config.broker_ip2 or self._advertised_host, config.ha_listen_port or self.port + 1),
            timeout=config.register_broker_timeout_mills / 1000,
        )
        self._add_handlers(router, clients, pulls=True)
        self._add_handlers(vip_router, clients, pulls=False)
        self._begin_repeating(disk)
        if not config.namesrv_addresses:
            log.warning("no name server is given (namesrvAddr, -n): clients will not find this broker")
        await self._registration.now(within=FIRST_REGISTRATION_S)
        self._topics.on_change = self._registration.soon

    async def close(self) -> None:
        """Unregister, answer held pulls, close connections, save the tables, close the store. Safe to call twice."""
        self._timetable.close()
        if self._cleaning is not None:
            self._cleaning.close()
        if self._registration is not None:
            registration, self._registration = self._registration, None
            self._topics.on_change = lambda: None
            await registration.close()
        self._held.expire_all()
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()
        if self._store is not None:
            store, self._store = self._store, None
            try:
                store.finish_background()
                for table in self._tables:
                    table.save_now()
            finally:
                store.close()

    async def _listen(self, router: Router, vip_router: Router) -> None:
        assert self._server is not None
        config = self.config
        if config.listen_port > VIP_OFFSET:
            try:
                await self._server.listen(config.bind_address, config.listen_port - VIP_OFFSET, vip_router)
            except ConfigError as error:
                what = f"the VIP port of a broker on port {config.listen_port}, always {VIP_OFFSET} below it"
                raise ConfigError(f"{error} (that is {what})") from None
        self.host, self.port = await self._server.listen(config.bind_address, config.listen_port, router)
        if config.listen_port == 0:
            try:
                await self._server.listen(config.bind_address, self.port - VIP_OFFSET, vip_router)
            except ConfigError as error:  # nobody chose these numbers, so nobody is to choose again
                log.info("no VIP port, clients that ask for it fall short cause=%s", error)
        self._advertised_host = config.advertised_host
        self.address = join_address(self._advertised_host, config.advertised_port or self.port)
        self._store_host = (await _numeric(self._advertised_host, self.host), config.advertised_port or self.port)

    def _set_back_offsets(self) -> None:
        """No group may stand beyond what recovery found: it would miss what takes the lost offsets, also after the next crash."""
        queues = self.store.queues

        def end_of(topic: str, queue_id: int) -> int:
            queue = queues.find(topic, queue_id)
            return queue.max_index if queue is not None else 0

        moved = self._offsets.set_back(end_of)
        for one in moved[:DAMAGES_LOGGED]:
            log.warning("offset set back to the end of its recovered queue group=%s topic=%s queue=%d offset=%d end=%d", *one)
        if moved:
            log.warning("offsets set back to the ends of their recovered queues count=%d", len(moved))
            try:
                self._offsets.save_now()
            except OSError as error:  # the repeating save goes on trying
                _report(f"the offsets that were set back could not be saved ({error.strerror or error})")

    def _add_handlers(self, router: Router, clients: ClientTable[Connection], *, pulls: bool) -> None:
        assert self._registration is not None
        config, store = self.config, self.store
        announce = self._registration.now
        send = SendHandler(config, store, self._topics, self._groups, self._clock, self._random, self._store_host, announce)
        router.add(SendMessage, send.send, may_wait=True)
        router.add(SendMessageV2, send.send, may_wait=True)
        router.add(SendBatchMessage, send.send, may_wait=True)
        if pulls:
            pull = PullHandler(config, store, self._topics, self._groups, self._offsets, clients, self._held)
            router.add(PullMessage, pull.pull)
            router.add(LitePullMessage, pull.pull)
        questions = Questions(store.cold_reads)
        offsets = OffsetsHandler(store, self._topics, self._groups, self._offsets, questions)
        router.add(QueryConsumerOffset, offsets.query)
        router.add(UpdateConsumerOffset, offsets.update)
        router.add(GetMaxOffset, offsets.maximum)
        router.add(GetMinOffset, offsets.minimum)
        router.add(SearchOffset, offsets.at_time)
        queries = QueriesHandler(config, store.lookup, questions)
        router.add(QueryMessage, queries.by_key)
        router.add(ViewMessageById, queries.by_offset)
        router.add(GetEarliestMsgStoreTime, queries.earliest)
        router.add(Heartbeat, self._clients_handler.heartbeat)
        router.add(UnregisterClient, self._clients_handler.unregister)
        router.add(GetConsumerListByGroup, self._clients_handler.consumer_list)
        topics = TopicsHandler(config, self._topics, announce)
        router.add(CreateTopic, topics.create)
        router.add(GetAllTopicConfig, topics.list_all)

    def _begin_repeating(self, disk: Disk) -> None:
        assert self._registration is not None
        config, every = self.config, self._timetable.every
        loop = asyncio.get_running_loop()
        every(config.flush_interval_commit_log / 1000, self.store.flusher.flush_log)
        every(config.flush_interval_consume_queue / 1000, self.store.flusher.flush_queues)
        every(config.flush_consumer_offset_interval / 1000, self._offsets.save)
        for file in self._files:
            every(SAVE_AGAIN_S, file.repeat)
        every(min(max(config.register_name_server_period, 10_000), 60_000) / 1000, self._registration.soon)
        every(LOOK_INTERVAL_S, StallWatch(loop.time, self._sends.stood_still).look)
        if config.scrub_bytes_per_second:
            self.scrubbing = Scrubbing(self.store, disk, config.scrub_bytes_per_second, loop.time)
            self._timetable.at_its_pace(self.scrubbing.step)
        cleaning = self._cleaning = Cleaning(self.store, config)
        cleaning.look()
        every(SPACE_INTERVAL_S, cleaning.look)
        every(config.clean_resource_interval / 1000, cleaning.round)
        every(LATENCY_LINE_S, lambda: log.info("%s", self.store.latency.end_minute()))
        silence = config.channel_expired_timeout / 1000
        every(CLIENT_CHECK_S, lambda: self._clients_handler.close_silent(loop.time(), silence))


async def _numeric(host: str, fallback: str) -> str:
    """The address behind an advertised host, for stored entries, which hold four or sixteen bytes of it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("advertised host has no address here, messages name %s host=%s cause=%s", fallback, host, error)
        return fallback
    return str(found[0][4][0])


def _report_recovery(directory: str, report: RecoveryReport | None) -> None:
    assert report is not None
    log.info(
        "store opened directory=%s clean=%s begun_at=%d log_end=%d entries=%d rebuilt=%s torn=%s damaged_ranges=%d",
        directory,
        report.clean,
        report.begun_at,
        report.log_end,
        report.entries,
        report.rebuilt,
        report.torn,
        len(report.damages),
    )
    for damage in report.damages[:DAMAGES_LOGGED]:
        log.error("damaged range of the commit log set apart start=%d end=%d cause=%s", damage.start, damage.end, damage.fault)


def _report(text: str) -> None:
    log.error("store: %s", text)
