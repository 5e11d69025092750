"""A group of replicas on the simulated loop: a name server, a controller and three replicas, each
on a host of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.replica.fake_controller import FakeController
from tests.unit.broker.replicas import Replicas, eventually
from tests.unit.broker.talking import SMALL, Client

from turbopump.broker.broker import Broker
from turbopump.broker.replica.replica import Replica
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol import fastjson
from turbopump.protocol.requests.namesrv import ClusterInfo, GetBrokerClusterInfo

CONTROLLER = "10.0.0.8"
HOSTS = ("10.0.1.1", "10.0.1.2", "10.0.1.3")


class Group(Replicas):
    """Replicas by host, beside the programs of ``Replicas``."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.controller = FakeController()
        self.replicas: dict[str, Replica] = {}
        self.cut_off: set[str] = set()

    def cut(self, host: str) -> None:
        """Cut a host off from all others. Nobody is told."""
        self.cut_off.add(host)
        self.simulation.network.silence(host)

    def mend(self, host: str) -> None:
        self.cut_off.discard(host)
        self.simulation.network.unsilence(host)

    async def start_controller(self) -> None:
        controller = self.controller
        await self._run(CONTROLLER, partial(controller.start, CONTROLLER, 9878), controller.close)

    async def replica(self, host: str, **config: Any) -> Replica:
        """Start the replica of a host, on the disk that it had before."""
        settings = {
            **SMALL,
            "bind_address": host,
            "listen_port": 10911,
            "namesrv_addr": "10.0.0.9:9876",
            "enable_controller_mode": True,
            "controller_addr": f"{CONTROLLER}:9878",
            "store_path_root_dir": "/store",
            **config,
        }
        simulation = self.simulation
        replica = Replica(
            BrokerConfig(**settings),
            open_disk=simulation.disk(host).mount,
            clock=simulation.clock(host),
            source=simulation.source(host),
        )
        await self._run(host, replica.start, replica.close)
        self.replicas[host] = replica
        return replica

    async def stop(self, host: str) -> None:
        await super().stop(host)
        self.replicas.pop(host, None)

    def kill(self, host: str, *, power_cut: bool = False) -> None:
        super().kill(host, power_cut=power_cut)
        self.replicas.pop(host, None)

    @property
    def master(self) -> Broker | None:  # type: ignore[override]
        """The broker that serves as master, or None while none does, or more than one."""
        masters = [
            one.broker
            for host, one in self.replicas.items()
            if one.broker is not None
            and not one.broker.config.is_slave
            and host not in self.cut_off
        ]
        return masters[0] if len(masters) == 1 else None

    async def master_other_than(self, host: str = "") -> Broker:
        """Wait for a master that takes sends, at another host than this one."""

        def found() -> bool:
            master = self.master
            return master is not None and master.host != host and _takes_sends(master)

        await eventually(found)
        assert self.master is not None
        return self.master

    def id_of(self, host: str) -> int:
        """The id that the controller gave to the replica of a host."""
        role = self.replicas[host].role
        assert role is not None
        return role.id

    async def until_in_sync(self, count: int) -> None:
        """Wait until so many replicas are in the sync state set."""
        await eventually(lambda: len(self.controller.members) == count)

    async def until_slave(self, host: str) -> None:
        """Wait until the replica of a host serves as a slave that knows its master."""

        def serves() -> bool:
            replica = self.replicas[host]
            broker = replica.broker
            return broker is not None and broker.config.is_slave and _copies(broker)

        await eventually(serves, seconds=60.0)

    def client(self, broker: Broker) -> Client:
        return self.client_of(broker.host)


async def _run_with_group(story: Any, simulation: Simulation) -> None:
    async with started_group(simulation) as group:
        await story(group)


@asynccontextmanager
async def started_group(simulation: Simulation) -> AsyncIterator[Group]:
    """A name server, a controller and three replicas; everything is closed after the block."""
    group = Group(simulation)
    await group.name_server()
    await group.start_controller()
    for host in HOSTS:
        await group.replica(host)
    yield group
    await group.close()


def with_group(story: Any, *, seed: int = 1) -> None:
    """Run a story with a group."""
    on_a_client_s_host(partial(_run_with_group, story), seed=seed)


def with_empty_group(story: Any, *, seed: int = 1) -> None:
    """Run a story that starts the programs of a group itself."""

    async def run(simulation: Simulation) -> None:
        group = Group(simulation)
        await group.name_server()
        await story(group)
        await group.close()

    on_a_client_s_host(run, seed=seed)


def _takes_sends(broker: Broker) -> bool:
    link = broker.group_replication.master
    return link is not None and link.is_writable


def _copies(broker: Broker) -> bool:
    link = broker.group_replication.slave
    return link is not None and link.accepted


async def eventually_routed(group: Group, broker_id: int, address: str) -> None:
    """Wait until the name server has this address for this id of the group."""
    client = group.client_of("10.0.0.9", port=9876)
    async with asyncio.timeout(60.0):
        while True:
            answer = await client.ask(GetBrokerClusterInfo())
            brokers = fastjson.decode(answer.body, ClusterInfo).broker_addr_table
            if "broker-a" in brokers and brokers["broker-a"].broker_addrs.get(broker_id) == address:
                return
            await asyncio.sleep(0.05)
