"""How often a client polls, beats and commits, and the form of its headers, as its settings say."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import async_does_nothing
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until

from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.errors import CallTimeoutError, RouteNotFoundError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.frame import JSON, ROCKETMQ
from turbopump.protocol.requests.offsets import UpdateConsumerOffset


@pytest.mark.parametrize(
    ("heartbeat_s", "commit_s", "route_s"), [(10.0, 50.0, 5.0), (30.0, 2.0, 60.0)]
)
@in_loop(simulated)
async def test_a_client_beats_commits_and_polls_routes_as_often_as_asked_for(
    simulation: Simulation, /, heartbeat_s: float, commit_s: float, route_s: float
) -> None:
    async with scripted_cluster(simulation) as cluster:
        async with producer_of(cluster) as producer:
            await producer.send("orders", b"x")
        begun = simulation.loop.time()
        async with PushConsumer(
            cluster.name_server.address,
            group="g",
            topic="orders",
            handler=async_does_nothing,
            consume_from=ConsumeFrom.FIRST,
            heartbeat_interval=heartbeat_s,
            commit_interval=commit_s,
            route_interval=route_s,
            **cluster.settings,
        ):
            await until(cluster.broker.requests, UpdateConsumerOffset)
            assert simulation.loop.time() - begun == pytest.approx(commit_s, abs=0.5)
            beats, asked = len(cluster.broker.heartbeats), len(cluster.name_server.asked)
            await asyncio.sleep(120)
            assert len(cluster.broker.heartbeats) - beats == pytest.approx(120 / heartbeat_s, abs=1)
            topics = {"orders", "%RETRY%g"}
            assert set(cluster.name_server.asked[asked:]) <= topics
            polls = cluster.name_server.asked[asked:].count("orders")
            assert polls == pytest.approx(120 / route_s, abs=1)


@in_loop(simulated)
async def test_a_client_logs_who_it_is_and_each_change_of_a_route(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "turbopump.client")
    async with scripted_cluster(simulation, brokers=2) as cluster:
        one, other = cluster.brokers
        cluster.name_server.route("orders", one, queues=2)
        async with producer_of(cluster) as producer:
            await producer.send("orders", b"x")
            cluster.name_server.route("orders", one, other, queues=2)
            await asyncio.sleep(100)
            client_id = producer.client_id
    lines = [record.getMessage() for record in caplog.records]
    address = cluster.name_server.address
    assert lines.count(f"client started client_id={client_id} namesrv={address}") == 1
    assert [line for line in lines if line.startswith("route ")] == [
        "route found topic=orders brokers=broker-a queues=2",
        "route changed topic=orders brokers=broker-a,broker-b queues=4",
    ]


@pytest.mark.parametrize("seconds", [1.5, 20.0])
@in_loop(simulated)
async def test_what_a_client_asks_of_its_own_accord_is_waited_for_as_long_as_asked_for(
    simulation: Simulation, /, seconds: float
) -> None:
    async with scripted_cluster(simulation) as cluster:
        server, now = cluster.name_server, simulation.loop.time
        async with PullConsumer(
            server.address, group="g", call_timeout=seconds, **cluster.settings
        ) as consumer:
            queue, *_ = await consumer.queues("orders")
            cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET].append(None)
            begun = now()
            with pytest.raises(CallTimeoutError):
                await consumer.committed(queue)
            assert now() - begun == pytest.approx(seconds, abs=0.1)
            cluster.broker.update_delays.append(seconds - 0.5)
            await consumer.commit(queue, 7)
            server.silent, begun = True, now()
            with pytest.raises(RouteNotFoundError):
                await consumer.queues("others")
            assert now() - begun == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize(("setting", "form"), [("JSON", JSON), ("ROCKETMQ", ROCKETMQ)])
@in_loop(simulated)
async def test_all_requests_have_the_form_of_header_that_is_asked_for(
    simulation: Simulation, /, setting: str, form: int
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, header_form=setting) as producer,
    ):
        await producer.send("orders", Message("orders", "ä€", keys="k").body)
        await producer.send_oneway("orders", b"y")
        await producer.send("orders", b"z")
        assert set(cluster.broker.forms) == {form}
        assert len(cluster.broker.forms) >= 3
