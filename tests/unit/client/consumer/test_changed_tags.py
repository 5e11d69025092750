"""A push consumer that subscribes to other tags while it runs: they count for the queues it holds,
too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.consumer.popping_consumers import Handled, popping
from tests.unit.client.consumer.popping_consumers import consumer_of as popping_consumer_of
from tests.unit.client.push_consumers import committed, consumer_of
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until, until_count, until_equal, until_some

from turbopump.protocol.requests.pop import PopMessage
from turbopump.protocol.requests.pull import PullMessage


@pytest.mark.parametrize(
    "settings", [{}, {"ordered": True}, {"client_rebalance": False}, {"broadcast": True}]
)
@in_loop(simulated)
async def test_other_tags_count_at_once_for_a_queue_that_is_pulled(
    simulation: Simulation, /, settings: dict[str, Any], tmp_path: Any
) -> None:
    if "broadcast" in settings:
        settings["offsets_directory"] = tmp_path
    handled = Handled()
    async with scripted_cluster(simulation, queues=1) as cluster:
        async with consumer_of(cluster, handler=handled, tags="A", **settings) as consumer:
            cluster.broker.store("orders", 0, b"a0", "TAGS\x01A\x02")
            await until_equal(handled.bodies, [b"a0"])
            # a pull that was sent for A waits at the broker
            await until_some(cluster.broker.held_pulls)
            await consumer.subscribe("orders", "B")
            for body in (b"b0", b"a1", b"b1"):
                cluster.broker.store("orders", 0, body, f"TAGS\x01{body[:1].decode().upper()}\x02")
            await until_count(handled.bodies, 3)
            assert handled.bodies == [b"a0", b"b0", b"b1"]
            wanted = cluster.broker.heartbeats[-1].consumer_data_set[0].subscription_data_set
            version = next(data.sub_version for data in wanted if data.topic == "orders")
            await until(lambda: cluster.broker.requests(PullMessage)[-1].sub_version == version)
        if "broadcast" not in settings:
            assert committed(cluster) == 4


@in_loop(simulated)
async def test_other_tags_count_from_the_next_pop_on(simulation: Simulation, /) -> None:
    handled = Handled()
    async with (
        popping(simulation) as (cluster, pops),
        popping_consumer_of(cluster, handler=handled, tags="A") as consumer,
    ):
        pops.store("orders", 0, b"a0", "TAGS\x01A\x02")
        await until_equal(handled.bodies, [b"a0"])
        await consumer.subscribe("orders", "B")
        await asyncio.sleep(30)  # the pop that was under way has ended
        assert cluster.broker.requests(PopMessage)[-1].exp == "B"
        for body in (b"b0", b"a1", b"b1"):
            pops.store("orders", 0, body, f"TAGS\x01{body[:1].decode().upper()}\x02")
        await until_count(handled.bodies, 3)
        assert handled.bodies == [b"a0", b"b0", b"b1"]
