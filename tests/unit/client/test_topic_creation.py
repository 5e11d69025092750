"""A new topic before its first message, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster

from turbopump.client.sending.send_result import SendStatus
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic

INHERITABLE = 7


@pytest.mark.parametrize(("default_queues", "queues"), [(8, 4), (2, 2)])
@in_loop(simulated)
async def test_a_new_topic_is_made_on_every_master_before_its_first_message(
    simulation: Simulation, /, default_queues: int, queues: int
) -> None:
    async with (
        scripted_cluster(simulation, brokers=2, topic=None) as cluster,
        producer_of(cluster) as producer,
    ):
        cluster.name_server.route(
            "TBW102", *cluster.brokers, queues=default_queues, perm=INHERITABLE
        )
        results = await asyncio.gather(*(producer.send("fresh", b"x") for _ in range(queues * 2)))
        assert {(result.queue.broker_name, result.queue.queue_id) for result in results} == {
            (broker.name, i) for broker in cluster.brokers for i in range(queues)
        }
        for broker in cluster.brokers:
            (created,) = broker.requests(CreateTopic)
            assert (created.topic, created.default_topic, created.perm) == ("fresh", "TBW102", 6)
            assert created.read_queue_nums == created.write_queue_nums == queues
            kinds = [type(request) for request, _ in broker.received]
            assert kinds.index(CreateTopic) < kinds.index(SendMessageV2)


@in_loop(simulated)
async def test_where_it_is_denied_the_send_goes_on_and_one_warning_names_the_broker(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "turbopump.client")
    async with (
        scripted_cluster(simulation, brokers=2, topic=None) as cluster,
        producer_of(cluster) as producer,
    ):
        cluster.name_server.route("TBW102", *cluster.brokers, perm=INHERITABLE)
        for broker in cluster.brokers:
            broker.script[RequestCode.UPDATE_AND_CREATE_TOPIC].append(
                refusal(ResponseCode.NO_PERMISSION, "not you")
            )
        result = await producer.send("fresh", b"x")
        for _ in range(5):
            await producer.send("fresh", b"x")
        assert [len(broker.requests(CreateTopic)) for broker in cluster.brokers] == [1, 1]
    (warning,) = [
        record.getMessage() for record in caplog.records if "topic" in record.getMessage()
    ]
    assert f" broker={result.queue.broker_name} " in warning
    assert "not you" in warning
    assert " topic=fresh " in warning


@in_loop(simulated)
async def test_a_broker_that_lets_nothing_be_inherited_is_not_asked(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "turbopump.client"):
        async with (
            scripted_cluster(simulation, topic="TBW102") as cluster,
            producer_of(cluster) as producer,
        ):
            await producer.send("fresh", b"x")
            assert cluster.broker.requests(CreateTopic) == []
    assert "no broker lets new topics inherit" in caplog.text


@in_loop(simulated)
async def test_a_silent_broker_costs_half_the_time_of_the_first_send_and_no_message(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, topic=None) as cluster,
        producer_of(cluster, send_timeout=2.0) as producer,
    ):
        cluster.name_server.route("TBW102", cluster.broker, perm=INHERITABLE)
        cluster.broker.script[RequestCode.UPDATE_AND_CREATE_TOPIC].append(None)
        before = simulation.loop.time()
        assert (await producer.send("fresh", b"x")).status is SendStatus.OK
        assert 0.9 < simulation.loop.time() - before < 1.2
        before = simulation.loop.time()
        await producer.send("fresh", b"x")
        assert simulation.loop.time() - before < 0.1


@in_loop(simulated)
async def test_a_topic_that_exists_is_left_as_it_is(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        cluster.name_server.route("TBW102", cluster.broker, perm=INHERITABLE)
        await producer.send("orders", b"x")
        assert cluster.broker.requests(CreateTopic) == []
