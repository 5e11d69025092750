"""A whole name server in virtual time, on a host with a disk, and its peers on theirs."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop, run_in
from tests.simulation.world.network import SimulatedNetwork
from tests.simulation.world.simulation import SimulatedClock

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.message.codec import body_crc32
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, encode_command, request_command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import (
    GetRouteInfo,
    RegisterBroker,
    RegisterBrokerBody,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import DataVersion, TopicConfig
from turbopump.remoting.client import RemotingClient

T = TypeVar("T")

HOST, PORT = "10.0.0.100", 9876
NAMESRV = f"{HOST}:{PORT}"


class LoopClock:
    """Virtual time as a clock."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class World:
    """A name server on its host, and brokers and clients on theirs."""

    def __init__(
        self, loop: SimulatedLoop, network: SimulatedNetwork, config: NamesrvConfig
    ) -> None:
        self.loop = loop
        self.network = network
        self.disk = SimulatedDisk(loop, random.Random("7/disk"), SimulatedClock(loop))
        self._hosts = 0
        self._config = config
        self.server: NameServer

    async def start(self, file: Path | None = None) -> None:
        process = self._process = self.loop.create_process(HOST)
        self.mount = self.disk.mount()

        async def begin() -> None:
            self.server = NameServer(self._config, clock=LoopClock(), disk=self.mount, file=file)
            assert await self.server.start(HOST, PORT) == (HOST, PORT)

        await process.start(begin())

    async def kill_and_start(self, file: Path | None = None) -> None:
        """End the server's process as kill -9 does, and start another on its disk."""
        self.disk.kill()
        self._process.kill()
        await self.start(file)

    def peer(self) -> "Peer":
        self._hosts += 1
        return Peer(self.loop, f"10.0.0.{self._hosts}")


class Peer:
    """A process on its own host that asks the name server."""

    def __init__(self, loop: SimulatedLoop, host: str) -> None:
        self.host = host
        self.address = f"{host}:10911"
        self._process = loop.create_process(host)
        self._client = self._process.call(RemotingClient)

    async def ask(
        self,
        request: Request[Any],
        body: bytes = b"",
        *,
        version: int | None = None,
        timeout: float = 3.0,
    ) -> Command:
        """The answer to a request, which says that it comes from a peer of `version`."""

        async def call() -> Command:
            connection = await self._client.connect(NAMESRV)
            command = request_command(request, body, opaque=connection.calls.next_opaque)
            if version is not None:
                command.version = version
            return await connection.start_call(command.opaque, encode_command(command), timeout)

        return await self._process.start(call())

    async def tell(self, request: Request[Any], body: bytes = b"") -> None:
        """Send a request that is not answered."""
        await self._process.start(self._client.send_oneway(NAMESRV, request, body))

    async def register(
        self,
        topics: tuple[str, ...] = ("T", "U"),
        *,
        name: str = "broker-a",
        timeout: float = 3.0,
        **header: Any,
    ) -> Command:
        body = registered(topics).encode()
        request = self.registration(name=name, **{"body_crc32": body_crc32(body), **header})
        return await self.ask(request, body, timeout=timeout)

    def registration(self, *, name: str = "broker-a", **header: Any) -> RegisterBroker:
        return RegisterBroker(
            **{
                "broker_name": name,
                "broker_addr": self.address,
                "cluster_name": "c",
                "broker_id": 0,
                **header,
            }
        )

    async def route(self, topic: str, *, version: int | None = None) -> TopicRouteData | None:
        answer = await self.ask(GetRouteInfo(topic=topic), version=version)
        return (
            fastjson.decode(answer.body, TopicRouteData)
            if answer.code == ResponseCode.SUCCESS
            else None
        )

    def disconnect(self) -> None:
        self._process.call(self._client.disconnect, NAMESRV)


def registered(topics: tuple[str, ...], counter: int = 1) -> RegisterBrokerBody:
    body = RegisterBrokerBody()
    body.topic_config_serialize_wrapper.data_version = DataVersion(counter=counter)
    body.topic_config_serialize_wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name) for name in topics
    }
    return body


def play(scene: Callable[[World], Awaitable[T]], **config: Any) -> T:
    loop = SimulatedLoop(7)
    network = SimulatedNetwork(loop, random.Random("7/network"))

    async def main() -> T:
        world = World(loop, network, NamesrvConfig(**config))
        await world.start()
        return await scene(world)

    return run_in(loop, main())
