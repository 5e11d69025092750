"""A controller in virtual time, on a host with a disk, and replicas that talk to it by requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation

from turbopump.config.controller_config import ControllerConfig
from turbopump.controller import Controller
from turbopump.controller.decided_groups import REPORTS_S
from turbopump.protocol import fastjson
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests import controller as requests
from turbopump.protocol.requests.namesrv import BrokerHeartbeat
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import HELD, RequestContext, Router
from turbopump.remoting.server import RemotingServer

HOST, PORT = "10.0.0.9", 9878
CONTROLLER = f"{HOST}:{PORT}"
CLUSTER, BROKER = "c", "a"
BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class Member:
    """A replica as the controller sees it: it says what a test tells it to, and notes notices."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.host = f"10.0.1.{number}"
        self.address = f"{self.host}:10911"
        self.id = 0
        self.simulation = simulation
        self.notices: list[requests.NotifyRoleChanged] = []
        self.epoch, self.max_offset, self.confirm_offset = -1, 0, -1
        self.priority: int | None = None

    async def start(self) -> None:
        """Begin a process on the host of the replica, with new connections."""
        self.simulation.network.unsilence(self.host)
        self.process = self.simulation.boot(self.host)
        router = Router()
        router.add_with_body(requests.NotifyRoleChanged, self._told)
        self._server = self.process.call(RemotingServer, router)
        self.connect_anew()
        await self.process.start(self._server.listen(self.host, 10911))

    def connect_anew(self) -> None:
        """Use no connection of before."""
        self.remoting = self.process.call(RemotingClient)

    def _told(
        self,
        request: requests.NotifyRoleChanged,
        _body: requests.SyncStateSet,
        _context: RequestContext,
    ) -> Any:
        self.notices.append(request)
        return HELD

    def kill(self) -> None:
        """End the process as kill -9 does: the connections are closed."""
        self.simulation.end(self.host, power_cut=False)

    def vanish(self) -> None:
        """Cut the power: no connection is closed, and nothing is heard any more."""
        self.simulation.end(self.host, power_cut=True)

    async def ask(self, request: Request[Any], body: bytes = b"") -> Command:
        asking = self.remoting.exchange(CONTROLLER, request, body, timeout=10.0)
        return await self.process.start(asking)

    async def tell(self, request: Request[Any]) -> None:
        await self.process.start(self.remoting.send_oneway(CONTROLLER, request))

    async def get_id(self) -> None:
        answer = await self.ask(requests.GetNextBrokerId(cluster_name=CLUSTER, broker_name=BROKER))
        wanted = answer.header(requests.NextBrokerIdReply).next_broker_id
        assert wanted is not None
        answer = await self.ask(
            requests.ApplyBrokerId(
                cluster_name=CLUSTER,
                broker_name=BROKER,
                applied_broker_id=wanted,
                register_check_code=f"{self.address};17",
            )
        )
        assert answer.code == 0, answer.remark
        self.id = wanted

    async def register(self) -> Command:
        return await self.ask(
            requests.RegisterReplica(
                cluster_name=CLUSTER,
                broker_name=BROKER,
                broker_id=self.id,
                broker_address=self.address,
            )
        )

    async def beat(self) -> None:
        await self.tell(
            BrokerHeartbeat(
                cluster_name=CLUSTER,
                broker_addr=self.address,
                broker_name=BROKER,
                broker_id=self.id,
                epoch=self.epoch,
                max_offset=self.max_offset,
                confirm_offset=self.confirm_offset,
                heartbeat_timeout_mills=3000,
                election_priority=self.priority,
            )
        )
        await self.ask(requests.GetControllerMetadata())  # it has arrived by now

    async def join(self) -> None:
        """Get an id, register and send the first heartbeat."""
        await self.start()
        await self.get_id()
        await self.register()
        await self.beat()

    async def elect(self, id_: int | None = None, *, designate: bool = False) -> Command:
        return await self.ask(
            requests.ElectMaster(
                cluster_name=CLUSTER,
                broker_name=BROKER,
                broker_id=self.id if id_ is None else id_,
                designate_elect=designate,
            )
        )

    async def alter(self, ids: list[int]) -> Command:
        """Ask for a sync state set, as the master that 1004 names."""
        info = await self.info()
        body = requests.SyncStateSet(
            sync_state_set=ids, sync_state_set_epoch=set_in(info).sync_state_set_epoch
        )
        master = info.header(requests.MasterReply)
        request = requests.AlterSyncStateSet(
            broker_name=BROKER, master_broker_id=self.id, master_epoch=master.master_epoch or 0
        )
        return await self.ask(request, fastjson.encode(body))

    async def info(self) -> Command:
        return await self.ask(requests.GetReplicaInfo(broker_name=BROKER))

    async def master(self) -> tuple[int | None, int | None]:
        """Id and epoch of the master."""
        reply = (await self.info()).header(requests.MasterReply)
        return reply.master_broker_id, reply.master_epoch


def set_in(answer: Command) -> requests.SyncStateSet:
    return body_of(answer, requests.SyncStateSet)


def body_of(answer: Command, type_: type[BodyT]) -> BodyT:
    return fastjson.decode(answer.body, type_)


class World:
    """A controller, and replicas of one broker name."""

    def __init__(self, simulation: Simulation, **config: Any) -> None:
        self.simulation = simulation
        self.config = {"bind_address": HOST, "controller_store_path": "/controller", **config}
        self.controller: Controller
        self.members: list[Member] = []

    async def start(self) -> None:
        """Begin a process of the controller, on the disk that it had before."""
        simulation = self.simulation
        simulation.network.unsilence(HOST)
        self.process = simulation.boot(HOST)
        self.controller = self.process.call(self._made)
        assert await self.process.start(self.controller.start()) == (HOST, PORT)

    def _made(self) -> Controller:
        simulation = self.simulation
        return Controller(
            ControllerConfig(**self.config),
            clock=simulation.clock(HOST),
            disk=simulation.disk(HOST).mount(),
        )

    def kill(self, *, power_cut: bool = False) -> None:
        self.simulation.end(HOST, power_cut=power_cut)

    async def beats(self, seconds: float, *members: Member) -> None:
        """Let time pass, in which these replicas send a heartbeat each 500 ms."""
        for _ in range(round(seconds / 0.5)):
            for member in members:
                await member.beat()
            await asyncio.sleep(0.5)

    async def member(self) -> Member:
        """A new replica that has joined."""
        member = Member(self.simulation, len(self.members) + 1)
        self.members.append(member)
        await member.join()
        return member

    async def group(self, count: int = 3) -> list[Member]:
        """Replicas in sync, of which the first is the master."""
        members = [await self.member() for _ in range(count)]
        first = members[0]
        assert (await first.elect()).code == 0
        if count > 1:
            assert (await first.alter([one.id for one in members])).code == 0
        return members


async def pause() -> None:
    """Let what has happened be noticed: an ended connection, a decision on its way to the disk.

    After the death of a master, the wait for the reports of the others ends, too.
    """
    await asyncio.sleep(0.2 + REPORTS_S)


def controlled(story: Callable[..., Any], **config: Any) -> None:
    """Run a story in a world with a controller: ``@in_loop(controlled)``."""

    async def run(simulation: Simulation) -> None:
        world = World(simulation, **config)
        await world.start()
        await story(world)

    on_a_client_s_host(run)
