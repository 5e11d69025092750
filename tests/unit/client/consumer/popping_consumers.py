"""Push consumers of a scripted cluster that has them pop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster
from tests.unit.client.scripted_pops import ScriptedPops

from turbopump import ConsumeFrom, PushConsumer
from turbopump.client.consumer.delivery import Delivery
from turbopump.protocol.requests.assignment import MessageRequestMode

POP, PULL = MessageRequestMode.POP, MessageRequestMode.PULL


def consumer_of(cluster: ScriptedCluster, **settings: Any) -> PushConsumer:
    defaults = {
        "group": "readers",
        "topic": "orders",
        "consume_from": ConsumeFrom.FIRST,
        "client_rebalance": False,
    }
    return PushConsumer(cluster.name_server.address, **{**defaults, **cluster.settings, **settings})


def prepare(pops: list[ScriptedPops], broker: ScriptedBroker) -> None:
    pops.append(ScriptedPops(broker, modes={"orders": POP}))


@asynccontextmanager
async def popping(
    simulation: Simulation, **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, ScriptedPops]]:
    pops: list[ScriptedPops] = []

    async with scripted_cluster(simulation, prepare=partial(prepare, pops), **settings) as cluster:
        yield cluster, pops[0]


class Handled:
    """A handler: what it got, and when; ``fate`` says what it does with a message."""

    def __init__(
        self, fate: Callable[[Delivery], object] = does_nothing, *, takes: float = 0.0
    ) -> None:
        self.bodies: list[bytes] = []
        self.attempts: list[int] = []
        self.times: list[float] = []
        self._fate = fate
        self._takes = takes

    async def __call__(self, message: Delivery) -> object:
        self.bodies.append(message.body)
        self.attempts.append(message.attempt)
        self.times.append(asyncio.get_running_loop().time())
        if self._takes:
            await asyncio.sleep(self._takes)
        return self._fate(message)
