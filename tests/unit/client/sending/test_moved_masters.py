"""A broker name gets another master while sends to the old one have no answer: they go there. While
the route stays the same they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster

from turbopump.client.producer import Producer
from turbopump.client.routes import DOUBT_S
from turbopump.errors import SendError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.send import SendMessageV2


@asynccontextmanager
async def two_replicas(
    simulation: Simulation,
) -> AsyncIterator[tuple[ScriptedCluster, ScriptedBroker]]:
    """A cluster whose broker answers no send from now on, and another replica of that broker."""
    replica = ScriptedBroker("broker-a")
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("more", cluster.broker)
        await replica.start()
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([None] * 1000)
        try:
            yield cluster, replica
        finally:
            await replica.stop()


def move(cluster: ScriptedCluster, replica: ScriptedBroker) -> None:
    """Make the other replica the master of both topics."""
    for topic in ("orders", "more"):
        cluster.name_server.route(topic, replica)


async def ask_for_routes(producer: Producer) -> None:
    """Let the producer know both topics."""
    for topic in ("orders", "more"):
        await producer.publish_queues(topic)


@in_loop(simulated)
async def test_sends_of_all_topics_go_to_the_new_master_soon_after_the_route_names_it(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_replicas(simulation) as (cluster, replica), producer_of(cluster) as producer:
        await ask_for_routes(producer)
        simulation.loop.call_later(1.7, move, cluster, replica)
        sends = [producer.send(topic, b"x") for topic in ("orders", "more") for _ in range(50)]
        began = simulation.loop.time()
        await asyncio.gather(*sends)
        assert simulation.loop.time() - began < 1.7 + 0.5 + 0.2
        assert len(cluster.broker.requests(SendMessageV2)) == 100
        assert len(replica.requests(SendMessageV2)) == 100
        assert len(cluster.name_server.asked) < 10, "not a question for each send"
    (line,) = [text for text in caplog.messages if "has another master" in text]
    assert "may be stored twice" in line
    assert "messages=100" in line


@in_loop(simulated)
async def test_a_producer_that_sends_one_after_the_other_is_over_soon_after_an_election(
    simulation: Simulation, /
) -> None:
    async with two_replicas(simulation) as (cluster, replica), producer_of(cluster) as producer:
        simulation.loop.call_later(3.6, move, cluster, replica)
        began = simulation.loop.time()
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x")
        await producer.send("orders", b"x")
        assert simulation.loop.time() - began < 3.6 + 0.5 + 0.2


@in_loop(simulated)
async def test_a_route_that_was_renewed_for_another_reason_is_seen_too(
    simulation: Simulation, /
) -> None:
    async with (
        two_replicas(simulation) as (cluster, replica),
        producer_of(cluster, route_interval=1.4) as producer,
    ):
        await ask_for_routes(producer)
        sending = asyncio.ensure_future(producer.send("orders", b"x"))
        await asyncio.sleep(1.3)
        move(cluster, replica)
        async with asyncio.timeout(DOUBT_S):
            await sending
        assert len(replica.requests(SendMessageV2)) == 1


@in_loop(simulated)
async def test_a_slow_master_that_stays_master_is_waited_for(simulation: Simulation, /) -> None:
    async with two_replicas(simulation) as (cluster, _), producer_of(cluster) as producer:
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x")
        assert len(cluster.broker.requests(SendMessageV2)) == 1
        assert 3 <= len(cluster.name_server.asked) <= 7, "each half second, after the first"


@in_loop(simulated)
async def test_an_acting_master_that_only_reads_gets_no_sends(simulation: Simulation, /) -> None:
    async with two_replicas(simulation) as (cluster, replica), producer_of(cluster) as producer:
        await ask_for_routes(producer)
        for topic in ("orders", "more"):
            cluster.name_server.route(topic, replica, perm=4)
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x")
        assert len(replica.requests(SendMessageV2)) == 0


@in_loop(simulated)
async def test_a_send_to_a_chosen_queue_keeps_its_one_attempt(simulation: Simulation, /) -> None:
    async with two_replicas(simulation) as (cluster, replica), producer_of(cluster) as producer:
        queues = await producer.publish_queues("orders")
        simulation.loop.call_later(1.0, move, cluster, replica)
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x", queue=queues[0])
        assert len(replica.requests(SendMessageV2)) == 0


@in_loop(simulated)
async def test_no_name_server_is_asked_while_the_master_answers(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        for _ in range(100):
            await producer.send("orders", b"x")
            await asyncio.sleep(0.1)
        assert cluster.name_server.asked == ["orders"]
