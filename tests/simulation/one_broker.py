"""One broker on a simulated host that is stopped, killed or loses its power and comes up again on
its disk, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.loops import on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import SERVER, SMALL, Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import StoreClosedError
from turbopump.message.properties import encode_properties
from turbopump.store.message_store import MessageStore

HOST = SERVER
EIGHTEEN_LEVELS = "1s 5s 30s 1m 5m 10m 30m 1h 2h 3h 4h 6h 8h 10h 12h 16h 20h 23h"
"""As many as Apache's table has, and long enough for a day."""


class OneBroker:
    """``broker`` is the one that runs now. ``config`` are fields of BrokerConfig, which may be
    changed before the next start."""

    def __init__(self, simulation: Simulation, config: dict[str, Any]) -> None:
        self.simulation = simulation
        self.config = config
        self.client = Client(f"{HOST}:10911")
        self.broker: Broker
        self._over = asyncio.Event()
        self._life: asyncio.Future[None]

    async def up(self) -> None:
        """Start it."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over = self._over = asyncio.Event()
        fields = {
            **SMALL,
            "bind_address": HOST,
            "listen_port": 10911,
            "store_path_root_dir": "/store",
            **self.config,
        }

        async def serve() -> None:
            disk, clock = self.simulation.disk(HOST).mount(), self.simulation.clock(HOST)
            self.broker = Broker(
                BrokerConfig(**fields),
                disk=disk,
                clock=clock,
                source=self.simulation.source("broker"),
            )
            await self.broker.start()
            ready.set_result(None)
            await over.wait()
            await self.broker.close()

        await self.client.close()
        self.client = Client(f"{HOST}:10911")
        self._life = self.simulation.boot(HOST).start(serve())
        await asyncio.wait((ready, self._life), return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            self._life.result()  # why it could not start

    async def stop(self) -> None:
        """Stop it cleanly."""
        self._over.set()
        await self._life
        self.simulation.end(HOST, power_cut=False)

    def kill(self, *, power_cut: bool = False) -> None:
        """End it by kill -9, or with its host's power."""
        self._life.add_done_callback(lambda life: life.exception())
        self.simulation.end(HOST, power_cut=power_cut)

    async def delay(self, body: bytes, level: int, topic: str = "T") -> None:
        """Send a message that comes later."""
        await self.client.send(
            body,
            topic=topic,
            properties=encode_properties({"UNIQ_KEY": body.hex(), "DELAY": str(level)}),
        )

    async def delivered(self, topic: str = "T") -> list[bytes]:
        """Every body that consumers of the topic can see."""
        return await self.client.all_bodies(topic)

    def table(self, name: str) -> bytes:
        """The content of a table of its store."""
        return (
            self.simulation.disk(HOST).mounted.read_file(Path("/store/config") / f"{name}.json")
            or b""
        )  # type: ignore[union-attr]


async def with_broker(
    config: Any, scene: Callable[[OneBroker], Coroutine[Any, Any, None]], simulation: Simulation
) -> None:
    async with one_broker(simulation, **config) as world:
        await scene(world)


def with_one_broker(
    scene: Callable[[OneBroker], Coroutine[Any, Any, None]], seed: int = 1, **config: Any
) -> None:
    """Run ``scene`` on another host than the broker's, which is up."""

    on_a_client_s_host(partial(with_broker, config, scene), seed=seed)


@asynccontextmanager
async def one_broker(simulation: Simulation, **config: Any) -> AsyncIterator[OneBroker]:
    """A broker that is up and has topic T, for a story on another host; stopped after the block
    unless it is down."""
    world = OneBroker(simulation, config)
    await world.up()
    await world.client.create()
    yield world
    await world.client.close()
    if simulation.process(HOST).alive:
        await world.stop()


@contextmanager
def full_after(store: MessageStore, count: int) -> Iterator[None]:
    """Within the block the store takes so many messages, and then none."""
    put, taken = store.put, 0

    def refuse(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > count:
            raise StoreClosedError("the disk is full")
        return put(*args, **kwargs)

    store.put = refuse  # type: ignore[method-assign]
    yield
    store.put = put  # type: ignore[method-assign]
