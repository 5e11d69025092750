"""A transaction producer with a broker of ours in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.store.looked_up import message_in_queue

from turbopump import TransactionProducer, TransactionState
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.message.message import ReceivedMessage
from turbopump.namesrv.server import NameServer
from turbopump.testing.broker_in_loop import SMALL_FILES

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)
NAMESRV, BROKER, SELLER, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"


class World:
    """A name server and a broker in virtual time."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.broker: Broker

    def producer(self, host: str = SELLER, **settings: Any) -> TransactionProducer:
        settings = {"group": "sellers", "checker": unexpected, **settings}
        clock, source = self.simulation.clock(host), self.simulation.source(host)
        return TransactionProducer(
            f"{NAMESRV}:9876", clock=clock, random=source, local_ip=host, **settings
        )

    def delivered(self, topic: str = "orders") -> list[bytes]:
        """What consumers of the topic get."""
        store, found = self.broker.store, []
        for queue in store.queues:
            if queue.topic == topic:
                for index in range(queue.min_index, queue.end.value):
                    message = message_in_queue(store.lookup, topic, queue.queue_id, index)
                    assert message is not None
                    found.append(message.body)
        return sorted(found)


async def unexpected(message: ReceivedMessage) -> None:
    raise AssertionError(f"nobody should be asked about {message}")


async def serve(over: asyncio.Event, simulation: Simulation) -> None:
    name_server = NameServer(
        NamesrvConfig(bind_address=NAMESRV, listen_port=9876), clock=simulation.clock(NAMESRV)
    )
    await name_server.start()
    await over.wait()
    await name_server.close()


async def play(story: Callable[[World], Awaitable[None]], world: World) -> None:
    await story(world)


async def main(
    config: Any, story: Callable[[World], Awaitable[None]], simulation: Simulation
) -> None:
    world = World(simulation)
    over, ready = asyncio.Event(), asyncio.Event()

    async def store() -> None:
        fields = {
            **SMALL_FILES,
            "broker_name": "broker-a",
            "bind_address": BROKER,
            "namesrv_addr": f"{NAMESRV}:9876",
            **config,
        }
        disk, clock = simulation.disk(BROKER).mount(), simulation.clock(BROKER)
        world.broker = Broker(
            BrokerConfig(store_path_root_dir=str(Path("/store")), **fields), disk=disk, clock=clock
        )
        await world.broker.start()
        ready.set()
        await over.wait()
        await world.broker.close()

    running = [
        simulation.boot(NAMESRV).start(serve(over, simulation)),
        simulation.boot(BROKER).start(store()),
    ]
    await ready.wait()
    await simulation.boot(SELLER).start(play(story, world))
    over.set()
    await asyncio.gather(*running)


def in_a_world(story: Callable[[World], Awaitable[None]], **config: Any) -> None:
    simulate(1, partial(main, config, story))
