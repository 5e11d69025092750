"""A name server, a master and its slaves, each on a host of a simulated network, for a story on a
client's host."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import SMALL, Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.replication.slave_link import SlaveLink
from turbopump.store.message_store import MessageStore

NAMESRV, MASTER, SLAVE, SECOND_SLAVE = "10.0.0.9", "10.0.1.1", "10.0.1.2", "10.0.1.3"
SYNC = {"broker_role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
"""A master that waits for one slave."""


class Replicas:
    """Programs by host. ``client_of`` talks to one of them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.brokers: dict[str, Broker] = {}
        self._over: dict[str, asyncio.Event] = {}
        self._ended: dict[str, asyncio.Future[None]] = {}
        self._clients: list[Client] = []

    async def name_server(self) -> None:
        config = NamesrvConfig(
            bind_address=NAMESRV, support_acting_master=True, notify_min_broker_id_changed=True
        )
        server = NameServer(config, clock=self.simulation.clock(NAMESRV))
        await self._run(NAMESRV, server.start, server.close)

    async def broker(self, host: str, role: BrokerRole, **config: Any) -> Broker:
        """Start the broker of a host, on the disk that it had before."""
        settings = {
            **SMALL,
            "bind_address": host,
            "listen_port": 10911,
            "namesrv_addr": f"{NAMESRV}:9876",
            "broker_role": role,
            "broker_id": int(host[-1]) - 1 if role is BrokerRole.SLAVE else 0,
            "store_path_root_dir": "/store",
            **config,
        }
        simulation = self.simulation
        if host in self._over:
            simulation.network.unsilence(host)
        broker = Broker(
            BrokerConfig(**settings),
            disk=simulation.disk(host).mount(),
            clock=simulation.clock(host),
            source=simulation.source(host),
        )
        await self._run(host, broker.start, broker.close)
        self.brokers[host] = broker
        return broker

    async def master(self, **config: Any) -> Broker:
        return await self.broker(
            MASTER, config.pop("broker_role", BrokerRole.ASYNC_MASTER), **config
        )

    async def slave(self, host: str = SLAVE, **config: Any) -> Broker:
        return await self.broker(host, BrokerRole.SLAVE, **config)

    async def stop(self, host: str) -> None:
        """As SIGTERM does."""
        self._over[host].set()
        await self._ended[host]
        self.simulation.end(host, power_cut=False)

    def kill(self, host: str, *, power_cut: bool = False) -> None:
        """As kill -9, or a power cut."""
        self.simulation.end(host, power_cut=power_cut)
        self._ended.pop(host).cancel()

    def client_of(self, host: str, *, port: int = 10911) -> Client:
        client = Client(f"{host}:{port}")
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for host, ended in list(self._ended.items()):
            self._over[host].set()
            if not ended.done():
                await ended

    async def _run(self, host: str, start: Callable[[], Any], close: Callable[[], Any]) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over = self._over[host] = asyncio.Event()

        async def program() -> None:
            try:
                await start()
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(None)
            await over.wait()
            await close()

        self._ended[host] = asyncio.ensure_future(self.simulation.boot(host).start(program()))
        await ready


async def run_with_replicas(story: Callable[..., Any], simulation: Simulation) -> None:
    async with started(simulation) as replicas:
        await story(replicas)


def with_replicas(story: Callable[..., Any]) -> None:
    """Run a story with a name server; its brokers are closed at the end."""

    on_a_client_s_host(partial(run_with_replicas, story))


@asynccontextmanager
async def started(simulation: Simulation) -> AsyncIterator[Replicas]:
    """A name server; everything is closed after the block."""
    replicas = Replicas(simulation)
    await replicas.name_server()
    yield replicas
    await replicas.close()


async def eventually(
    condition: Callable[..., object], *arguments: object, seconds: float = 30.0
) -> None:
    """Wait, in virtual time, until ``condition(*arguments)`` holds."""
    async with asyncio.timeout(seconds):
        while not condition(*arguments):
            await asyncio.sleep(0.01)


async def until_joined(master: Broker, seconds: float = 30.0) -> None:
    """Wait until a slave of this master counts as a replica."""
    await eventually(lambda: not master.store.confirmed.alone, seconds=seconds)


async def until_topic(broker: Broker, topic: str, seconds: float = 30.0) -> None:
    """Wait until a broker knows the topic."""
    await eventually(broker.tables.topics.find, topic, seconds=seconds)


async def until_stored(broker: Broker, topic: str, count: int, seconds: float = 30.0) -> None:
    """Wait until queue 0 of the topic has so many messages at a broker."""
    await eventually(lambda: broker.store.max_offset(topic, 0) == count, seconds=seconds)


async def until_offset(
    broker: Broker, group: str, topic: str, offset: int, seconds: float = 30.0
) -> None:
    """Wait until a broker has this offset of the group for queue 0."""
    find = broker.tables.offsets.find
    await eventually(lambda: find(group, topic, 0) == offset, seconds=seconds)


async def until_fault(link: SlaveLink, text: str) -> None:
    """Wait until a slave says what is wrong with its master's log."""
    await eventually(lambda: text in (link.fault or ""))


async def until_same_end(one: Broker, other: Broker) -> None:
    """Wait until the logs of two brokers end at the same offset."""
    await eventually(lambda: one.store.log.end == other.store.log.end)


async def until_mended(broker: Broker, count: int) -> None:
    """Wait until a broker has repaired so many pieces of its log."""
    await eventually(lambda: broker.parts.delivering.log_repair.mended == count)


async def a_round_later(broker: Broker) -> None:
    """Wait until a round of copying that has not begun yet is over."""
    tables = broker.parts.copying.slave_tables
    assert tables is not None
    wanted = tables.rounds + 2
    await eventually(lambda: tables.rounds >= wanted)


def log_of(store: MessageStore) -> bytes:
    """All bytes of a log."""
    pieces, start = [], store.log.start
    while start < store.log.end:
        size = min(store.log.segment_end(start), store.log.end) - start
        piece = store.log.read(start, size)
        assert piece is not None
        pieces.append(piece)
        start += size
    return b"".join(pieces)


async def same_logs(one: Broker, other: Broker) -> None:
    """Wait until two brokers have the same log, byte for byte."""
    await until_same_end(one, other)
    assert log_of(one.store) == log_of(other.store)
