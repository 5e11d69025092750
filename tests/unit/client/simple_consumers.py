"""Simple consumers of a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster
from tests.unit.client.scripted_pops import ScriptedPops

from turbopump import ConsumeFrom, PoppedMessage, SimpleConsumer


def consumer_of(cluster: ScriptedCluster, **settings: Any) -> SimpleConsumer:
    defaults = {"group": "readers", "topic": "orders", "consume_from": ConsumeFrom.FIRST}
    return SimpleConsumer(
        cluster.name_server.address, **{**defaults, **cluster.settings, **settings}
    )


def prepare(pops: list[ScriptedPops], broker: ScriptedBroker) -> None:
    pops.append(ScriptedPops(broker))


@asynccontextmanager
async def popping(
    simulation: Simulation, **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, list[ScriptedPops]]]:
    pops: list[ScriptedPops] = []

    async with scripted_cluster(simulation, prepare=partial(prepare, pops), **settings) as cluster:
        yield cluster, pops


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [message.body for message in messages]
