"""A topic that does not exist, and a broker's address where a name server's belongs: said once,
with what was meant."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client import push_consumers, simple_consumers
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster
from tests.waits import until

from turbopump import (
    ConnectError,
    LitePullConsumer,
    NotStartedError,
    PullConsumer,
    ResponseError,
    RouteNotFoundError,
    SendError,
)
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.errors import SEE_DOCTOR
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.topics import TopicQueueMappingInfo

MEANT = "it does not exist (did you mean orders?)"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@in_loop(simulated)
async def test_a_push_consumer_that_waits_for_a_topic_says_so_once_with_the_nearest_name(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        push_consumers.consumer_of(cluster, topic="ordesr"),
    ):
        await asyncio.sleep(300)
        (warning,) = warnings(caplog)
        assert MEANT in warning
        assert "turbopump topic create ordesr" in warning
        assert cluster.name_server.listed == 1


@in_loop(simulated)
async def test_a_topic_that_is_made_between_two_questions_is_not_said_to_be_meant(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        PullConsumer(cluster.name_server.address, group="g", **cluster.settings) as consumer,
    ):
        server = cluster.name_server
        whole = server.routes.pop("orders")
        server.on_asked = lambda topic: server.routes.setdefault(topic, whole)
        with pytest.raises(RouteNotFoundError) as told:
            await consumer.queues("orders")
        assert "did you mean" not in str(told.value)


@in_loop(simulated)
async def test_a_static_topic_is_refused_by_every_client_in_a_sentence(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        info = TopicQueueMappingInfo(topic="orders", bname="broker-a", curr_id_map={0: 3})
        cluster.name_server.routes["orders"].topic_queue_mapping_by_broker = {"broker-a": info}
        sentence = "orders is a static topic .* use another topic, or Apache's client"
        address = cluster.name_server.address
        async with (
            producer_of(cluster) as producer,
            PullConsumer(address, group="g", **cluster.settings) as consumer,
        ):
            with pytest.raises(RouteNotFoundError, match=sentence):
                await producer.send("orders", b"x")
            with pytest.raises(RouteNotFoundError, match=sentence):
                await consumer.queues("orders")
        assert cluster.broker.entries == {}


@in_loop(simulated)
async def test_a_producer_learns_the_routes_of_its_topics_at_the_start_or_does_not_start(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        async with producer_of(cluster, topics=["orders"]) as producer:
            assert cluster.name_server.asked.count("orders") == 1
            await producer.send("orders", b"x")
            assert cluster.name_server.asked.count("orders") == 1
        late = producer_of(cluster, topics=["orders", "ordesr"], latency_faults=LatencyFaults())
        with pytest.raises(RouteNotFoundError, match="turbopump topic create ordesr"):
            await late.start()
        with pytest.raises(NotStartedError):
            await late.send("orders", b"x")
        cluster.name_server.route("ordesr", cluster.broker)
        async with late:
            await late.send("ordesr", b"x")


@in_loop(simulated)
async def test_a_topic_that_comes_into_being_is_consumed(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        push_consumers.consumer_of(cluster, topic="ordesr") as consumer,
    ):
        await until(warnings, caplog)
        push_consumers.fill(cluster, 1, topic="ordesr")
        cluster.name_server.route("ordesr", cluster.broker)
        (message,) = await consumer.take(1)
        assert message.body == b"m0"
        message.done()


@in_loop(simulated)
async def test_a_simple_and_a_lite_pull_consumer_say_it_too(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with simple_consumers.popping(simulation) as (cluster, _):
        async with simple_consumers.consumer_of(cluster, topic="ordesr") as simple:
            assert await simple.receive(1, timeout=30) == []
        assert [MEANT in warning for warning in warnings(caplog)] == [True]
        caplog.clear()
        address = cluster.name_server.address
        lite = LitePullConsumer(address, group="g", topic="ordesr", **cluster.settings)
        async with lite:
            assert await lite.poll(30) == []
        assert [MEANT in warning for warning in warnings(caplog)] == [True]


@in_loop(simulated)
async def test_who_asks_for_a_topic_that_is_not_there_is_told_the_nearest_name(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        PullConsumer(cluster.name_server.address, group="g", **cluster.settings) as consumer,
    ):
        with pytest.raises(RouteNotFoundError) as refused:
            await consumer.queues("ordesr")
        assert MEANT in str(refused.value)
        with pytest.raises(RouteNotFoundError) as refused:
            await consumer.queues("something else")
        assert "did you mean" not in str(refused.value)


@in_loop(simulated)
async def test_a_brokers_address_given_as_a_name_servers_is_called_that(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.address = cluster.broker.address
        called = f"{cluster.broker.address} is not a name server; it answers like a broker"
        with pytest.raises(RouteNotFoundError, match=called):
            await push_consumers.consumer_of(cluster).start()
        async with producer_of(cluster) as producer:
            with pytest.raises(RouteNotFoundError, match=called):
                await producer.send("orders", b"x")


@in_loop(simulated)
async def test_errors_whose_cause_lies_elsewhere_point_at_the_doctor(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster) as producer,
        PullConsumer(cluster.name_server.address, group="g", **cluster.settings) as consumer,
    ):
        with pytest.raises(RouteNotFoundError, match=r"`turbopump doctor -n \S+ -t missing`"):
            await consumer.queues("missing")
        cluster.name_server.denied = {"secret"}
        for topic in ("secret", "%RETRY%g"):  # their texts name no command
            with pytest.raises(RouteNotFoundError, match="no route to topic") as no_route:
                await consumer.queues(topic)
            assert "doctor" not in str(no_route.value)
            assert no_route.value.__notes__ == [SEE_DOCTOR]
        (queue, *_) = await consumer.queues("orders")
        denied = refusal(ResponseCode.NO_PERMISSION, "not you")
        cluster.broker.script[RequestCode.PULL_MESSAGE].append(denied)
        with pytest.raises(ResponseError) as refused:
            await consumer.pull(queue, 0)
        assert refused.value.__notes__ == [SEE_DOCTOR]
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([denied] * 3)
        with pytest.raises(SendError, match="`turbopump doctor -t TOPIC` shows more"):
            await producer.send("orders", b"x")
        await cluster.broker.stop()
        with pytest.raises(SendError, match="`turbopump doctor` shows more"):
            await producer.send("orders", b"x")
        with pytest.raises(ConnectError) as refused:
            await consumer.pull(queue, 0)
        assert refused.value.__notes__ == [SEE_DOCTOR]
