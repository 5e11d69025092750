"""Consumers whose start does not end well, or whose queues cannot be divided for a while, against a scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster

from turbopump import LitePullConsumer, MessageQueue, PushConsumer, SimpleConsumer
from turbopump.client.allocation import allocate_average
from turbopump.testing.simulation import Simulation, simulate

Consumer = PushConsumer | LitePullConsumer | SimpleConsumer


def consumer_of(kind: type[Consumer], cluster: ScriptedCluster, **settings: object) -> Consumer:
    return kind(cluster.name_server.address, group="readers", topic="orders", **cluster.settings, **settings)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_an_allocation_that_raises_is_told_and_the_next_one_counts(
    kind: type[Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    rooms = {"nobody": "here"}

    def allocate(queues: Sequence[MessageQueue], clients: Sequence[str], client_id: str) -> list[MessageQueue]:
        assert rooms["everybody"]
        return allocate_average(queues, clients, client_id)

    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation, queues=2) as cluster:
            consumer = consumer_of(kind, cluster, allocation=allocate)
            assert isinstance(consumer, PushConsumer | LitePullConsumer)
            async with consumer:
                await asyncio.sleep(30)
                told = [record for record in caplog.records if "not rebalanced" in record.getMessage()]
                assert [("KeyError('everybody')" in record.getMessage(), bool(record.exc_info)) for record in told] == [
                    (True, True)
                ]
                rooms["everybody"] = "here"
                await asyncio.sleep(2)
                ours = consumer.queues if isinstance(consumer, PushConsumer) else consumer.assigned
                assert ours == [MessageQueue("orders", "broker-a", number) for number in range(2)]

    simulate(1, scenario)
