"""Two clusters of a simulation, ``source`` and ``target``, and a mirror between them.

Each has a name server and a broker on hosts of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import SMALL, Client

from turbopump.admin.admin import Admin
from turbopump.admin.mirror import MirrorReport, mirror
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.message import Message, MessageQueue, ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.namesrv.server import NameServer
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2

TOPIC = "orders"


class Cluster:
    """A name server and a broker ``broker-a`` on hosts of their own."""

    def __init__(self, simulation: Simulation, name: str, number: int) -> None:
        self.name = name
        self.namesrv = f"10.0.{number}.9"
        self.host = f"10.0.{number}.1"
        self.client = Client(f"{self.host}:10911")
        self.broker: Broker
        self._simulation = simulation
        self._over: dict[str, asyncio.Event] = {}
        self._lives: dict[str, asyncio.Future[None]] = {}

    async def start(self, **config: Any) -> None:
        server = NameServer(
            NamesrvConfig(bind_address=self.namesrv), clock=self._simulation.clock(self.namesrv)
        )
        await self._run(self.namesrv, server.start, server.close)
        await self.up(**config)

    async def up(self, **config: Any) -> None:
        """Start the broker, on the disk that it had before."""
        settings = {
            **SMALL,
            "bind_address": self.host,
            "listen_port": 10911,
            "namesrv_addr": f"{self.namesrv}:9876",
            "broker_cluster_name": self.name,
            "store_path_root_dir": "/store",
            **config,
        }
        self.broker = Broker(
            BrokerConfig(**settings),
            disk=self._simulation.disk(self.host).mount(),
            clock=self._simulation.clock(self.host),
            source=self._simulation.source(self.host),
        )
        await self._run(self.host, self.broker.start, self.broker.close)

    def kill(self, *, power_cut: bool = False) -> None:
        """End the broker by kill -9, or with its host's power."""
        self._simulation.end(self.host, power_cut=power_cut)
        self._lives.pop(self.host).cancel()

    async def send(
        self, body: bytes, queue_id: int = 0, topic: str = TOPIC, **properties: str
    ) -> None:
        await self.client.ask(
            SendMessageV2(
                topic=topic,
                queue_id=queue_id,
                born_timestamp=self._simulation.clock(self.host).now_ms(),
                properties=encode_properties({"UNIQ_KEY": f"ID-{body[:20].hex()}", **properties}),
            ),
            body,
        )

    async def fill(self, count: int, *, begin: int = 0, queues: int = 1) -> None:
        """Send bodies ``b"0"``, ``b"1"`` and so on, to the queues in turn."""
        for first in range(begin, min(begin + queues, begin + count)):
            numbers = range(first, begin + count, queues)
            messages = [
                Message(TOPIC, b"%d" % number, properties={"UNIQ_KEY": f"ID-{number}"})
                for number in numbers
            ]
            request = SendBatchMessage(
                topic=TOPIC,
                queue_id=first % queues,
                born_timestamp=self._simulation.clock(self.host).now_ms(),
                properties="",
                batch=True,
            )
            answer = await self.client.ask(request, encode_batch(messages))
            assert answer.code == ResponseCode.SUCCESS, answer

    async def messages(self, queue_id: int = 0, topic: str = TOPIC) -> list[ReceivedMessage]:
        """All messages of a queue."""
        found: list[ReceivedMessage] = []
        offset = 0
        while True:
            answer, header = await self.client.pull(offset, topic=topic, queue_id=queue_id)
            found += decode_entries(answer.body)
            if header.next_begin_offset <= offset:
                return found
            offset = header.next_begin_offset

    async def bodies(self, queue_id: int = 0, topic: str = TOPIC) -> list[bytes]:
        return [message.body for message in await self.messages(queue_id, topic)]

    async def close(self) -> None:
        await self.client.close()
        for host, life in reversed(self._lives.items()):
            self._over[host].set()
            await life

    async def _run(
        self, host: str, start: Callable[[], Awaitable[Any]], close: Callable[[], Awaitable[Any]]
    ) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over = self._over[host] = asyncio.Event()

        async def program() -> None:
            await start()
            ready.set_result(None)
            await over.wait()
            await close()

        life = asyncio.ensure_future(self._simulation.boot(host).start(program()))
        self._lives[host] = life
        await asyncio.wait((ready, life), return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()  # why it could not start


class TwoClusters:
    """Both clusters, and a mirror between them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.source = Cluster(simulation, "source", 1)
        self.target = Cluster(simulation, "target", 2)

    @asynccontextmanager
    async def admins(self, *, back: bool = False) -> AsyncIterator[tuple[Admin, Admin]]:
        """Connections to source and target. With ``back``, in the other order."""
        pair = [self.source, self.target]
        if back:
            pair.reverse()
        async with (
            Admin(f"{pair[0].namesrv}:9876") as one,
            Admin(f"{pair[1].namesrv}:9876") as other,
        ):
            yield one, other

    async def mirror(self, *topics: str, back: bool = False, **options: Any) -> MirrorReport:
        """Mirror topics to their ends. With ``back``, from the target to the source."""
        async with self.admins(back=back) as (source, target):
            return await mirror(source, target, topics or (TOPIC,), **options)

    @asynccontextmanager
    async def following(self, *topics: str, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
        """Mirror topics within the block, and stop cleanly at its end."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.mirror(*topics, follow=True, stop=stop, **options))
        yield task
        stop.set()
        await task


Story = Callable[..., Awaitable[None]]


async def _with_both(
    story: Story, source: dict[str, Any], target: dict[str, Any], simulation: Simulation
) -> None:
    world = TwoClusters(simulation)
    await world.source.start(**source)
    await world.target.start(**target)
    await story(world)
    await world.source.close()
    await world.target.close()


def with_two_clusters(
    story: Story,
    *,
    seed: int = 1,
    source: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
) -> None:
    """Run a story with both clusters. ``source`` and ``target`` are fields of BrokerConfig."""
    on_a_client_s_host(partial(_with_both, story, source or {}, target or {}), seed=seed)


QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def missing(copies: list[bytes], originals: list[bytes]) -> list[bytes]:
    """The originals that a reader of the copies does not get in their order.

    A reader skips what it has read before, and what comes too early: after a power cut, copies that
    were not acknowledged may lie beyond missing ones. All of them are repeated in order then.
    """
    read = 0
    for copy in copies:
        if read < len(originals) and copy == originals[read]:
            read += 1
    return originals[read:]


def too_early(copies: list[bytes]) -> list[bytes]:
    """Copies, whose bodies are numbers, before which another one is missing."""
    distinct = list(dict.fromkeys(copies))
    return [one for one, after in pairwise(distinct) if int(after) < int(one)]
