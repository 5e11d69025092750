"""A broker, the name servers that it registers with, and a client that asks them, in virtual
time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.simulation.world.simulation import Simulation, simulate

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.requests.namesrv import GetAllTopicList, GetRouteInfo, TopicRouteData
from turbopump.protocol.requests.topics import CreateTopic, TopicList
from turbopump.remoting.client import RemotingClient

BROKER = "10.0.0.1"
SECOND = "10.0.0.2"
"""Of a second broker, ``broker-b``."""
NAME_SERVERS = ("10.0.0.100", "10.0.0.101")


class World:
    """Two name servers that can be started and killed, a broker (or two) that knows both, and a
    client."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._client_host = simulation.boot("10.0.0.50")
        self._client = self._client_host.call(RemotingClient)

    async def start_name_server(self, host: str) -> None:
        process = self.simulation.boot(host)

        async def begin() -> None:
            await NameServer(NamesrvConfig(), clock=self.simulation.clock(host)).start(host, 9876)

        await process.start(begin())

    async def start_broker(
        self, name_servers: Sequence[str] = NAME_SERVERS, host: str = BROKER, **settings: Any
    ) -> float:
        """Returns how many seconds the start took."""
        process = self.simulation.boot(host)
        config = BrokerConfig(
            broker_name="broker-b" if host == SECOND else "broker-a",
            bind_address=host,
            namesrv_addr=";".join(f"{host}:9876" for host in name_servers),
            store_path_root_dir="/store",
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=100,
            max_index_num=1000,
            **settings,
        )

        async def begin() -> None:
            broker = Broker(
                config, disk=self.simulation.disk(host).mount(), clock=self.simulation.clock(host)
            )
            if host == BROKER:
                self.broker = broker
            await broker.start()

        begun = self.simulation.loop.time()
        await process.start(begin())
        return self.simulation.loop.time() - begun

    async def stop_broker(self) -> None:
        await self.simulation.process(BROKER).start(self.broker.close())

    async def ask(self, address: str, request: Any, body: bytes = b"") -> Any:
        return await self._client_host.start(
            self._client.exchange(address, request, body, timeout=30)
        )

    async def create(self, topic: str, *, on: Sequence[str] = (BROKER,)) -> None:
        request = CreateTopic(topic=topic, read_queue_nums=3, write_queue_nums=3)
        for host in on:
            assert (await self.ask(f"{host}:10911", request)).code == 0

    async def make_topics(self, made: list[str], *, on: Sequence[str] = (BROKER,)) -> None:
        """One after the other, without end."""
        while True:
            await self.create(f"T{len(made)}", on=on)
            made.append(f"T{len(made)}")
            await asyncio.sleep(self.simulation.random.random())

    async def permission(self, host: str, topic: str) -> int:
        """What one name server says that clients may do with a topic: 4 read, 2 write, 1
        inherit."""
        answer = await self.ask(f"{host}:9876", GetRouteInfo(topic=topic))
        (queues,) = fastjson.decode(answer.body, TopicRouteData).queue_datas
        return queues.perm

    async def topics(self, host: str) -> set[str]:
        """Every topic that one name server routes."""
        answer = await self.ask(f"{host}:9876", GetAllTopicList())
        return set(fastjson.decode(answer.body, TopicList).topic_list)

    async def route(self, host: str, topic: str) -> list[tuple[str, int]]:
        """(broker name, write queues) of a topic, as one name server knows it."""
        answer = await self.ask(f"{host}:9876", GetRouteInfo(topic=topic))
        if answer.code:
            return []
        route = fastjson.decode(answer.body, TopicRouteData)
        return [(queue.broker_name or "", queue.write_queue_nums) for queue in route.queue_datas]


def tell(scene: Callable[[World], Coroutine[Any, Any, None]], seed: int = 3) -> None:
    simulate(seed, lambda simulation: scene(World(simulation)))
