"""A push consumer that gives a topic up while it runs: what is done of it is committed, its queues
are free, and the rest goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.consumer.popping_consumers import POP, Handled
from tests.unit.client.push_consumers import committed, consumer_of, locked, until_committed
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster
from tests.unit.client.scripted_pops import ScriptedPops
from tests.waits import until, until_count, until_equal, until_has, until_some

from turbopump import blocking
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.push_consumer import PushConsumer
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.assignment import UnlockBatchMq
from turbopump.protocol.requests.pop import PopMessage
from turbopump.protocol.requests.pull import PullMessage
from turbopump.testing import BrokerThread

WAYS: dict[str, dict[str, Any]] = {
    "pulled": {},
    "in order": {"ordered": True},
    "broadcast": {"broadcast": True, "offsets_directory": Path("/home/offsets")},
    "divided by brokers": {"client_rebalance": False},
    "popped": {"client_rebalance": False},
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def prepare(way: str, broker: ScriptedBroker) -> None:
    ScriptedPops(broker, modes=dict.fromkeys(("orders", "bills"), POP) if "popped" in way else {})


@asynccontextmanager
async def cluster_of(simulation: Simulation, way: str) -> AsyncIterator[ScriptedCluster]:
    """With the topics orders and bills."""

    async with scripted_cluster(simulation, queues=2, prepare=partial(prepare, way)) as cluster:
        cluster.name_server.route("bills", cluster.broker, queues=2)
        yield cluster


def consumer_by(
    way: str, cluster: ScriptedCluster, simulation: Simulation, handler: object
) -> PushConsumer:
    settings = dict(WAYS[way])
    if way == "broadcast":
        disk = simulation.disk("client")
        settings["disk"] = disk.mounted or disk.mount()
    return consumer_of(cluster, handler=handler, **settings)


def store(cluster: ScriptedCluster, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        cluster.broker.store(topic, 0, body)


def topics_of_the_heartbeat(cluster: ScriptedCluster) -> set[str]:
    (data,) = cluster.broker.heartbeats[-1].consumer_data_set
    return {one.topic for one in data.subscription_data_set if not one.topic.startswith("%RETRY%")}


@EVERY_WAY
@in_loop(simulated)
async def test_a_topic_that_is_given_up_is_left_where_it_is_done_and_taken_up_again_from_there(
    simulation: Simulation, /, way: str
) -> None:
    handled = Handled()
    async with (
        cluster_of(simulation, way) as cluster,
        consumer_by(way, cluster, simulation, handled) as consumer,
    ):
        await consumer.subscribe("bills")
        store(cluster, "orders", b"o0", b"o1")
        store(cluster, "bills", b"b0")
        await until_count(handled.bodies, 3)
        if way != "broadcast" and "popped" not in way:
            assert committed(cluster) != 2, "the pulls have committed a part"
        await consumer.unsubscribe("orders")
        if way != "broadcast" and "popped" not in way:
            await until_committed(cluster, 2)
        assert {queue.topic for queue in consumer.queues} == {"bills"}
        await until(lambda: topics_of_the_heartbeat(cluster) == {"bills"})
        if way == "in order":
            await until(lambda: sorted(unlocked(cluster)) == [0, 1])
        await asyncio.sleep(6)  # a pop that is under way ends
        asked = len(asked_for_orders(cluster))
        store(cluster, "orders", b"o2")
        store(cluster, "bills", b"b1")
        await until_has(handled.bodies, b"b1")
        await asyncio.sleep(60)
        assert (len(asked_for_orders(cluster)), handled.bodies.count(b"o2")) == (asked, 0)
        await consumer.subscribe("orders")
        await until_has(handled.bodies, b"o2")
        assert sorted(handled.bodies) == [b"b0", b"b1", b"o0", b"o1", b"o2"]


def unlocked(cluster: ScriptedCluster) -> list[int]:
    """The queues of the topic that were."""
    return list(chain.from_iterable(locked(cluster, UnlockBatchMq)))


def asked_for_orders(cluster: ScriptedCluster) -> list[object]:
    asked = (*cluster.broker.requests(PullMessage), *cluster.broker.requests(PopMessage))
    return [request for request in asked if request.topic == "orders"]


@EVERY_WAY
@in_loop(simulated)
async def test_however_early_a_topic_is_given_up_after_it_was_taken_up_no_queue_of_it_stays(
    simulation: Simulation, /, way: str
) -> None:
    handled = Handled()
    async with (
        cluster_of(simulation, way) as cluster,
        consumer_by(way, cluster, simulation, handled) as consumer,
    ):
        for turns in range(80):
            await consumer.subscribe("bills")
            for _ in range(turns % 40):
                await asyncio.sleep(0 if turns < 40 else 0.0002)
            await consumer.unsubscribe("bills")
            await asyncio.sleep(5)
            assert {queue.topic for queue in consumer.queues} == {"orders"}
        assert not [queue for _, queue in cluster.broker.holders if queue.topic == "bills"]
        await consumer.subscribe("bills")
        store(cluster, "bills", b"b0")
        await until_equal(handled.bodies, [b"b0"])


async def note_and_wait(begun: list[bytes], go_on: asyncio.Event, message: Delivery) -> None:
    begun.append(message.body)
    await go_on.wait()


@in_loop(simulated)
async def test_in_order_a_queue_is_free_when_its_handler_has_ended_and_is_committed(
    simulation: Simulation, /
) -> None:
    go_on = asyncio.Event()
    begun: list[bytes] = []

    way = "in order"
    async with (
        cluster_of(simulation, way) as cluster,
        consumer_by(way, cluster, simulation, partial(note_and_wait, begun, go_on)) as consumer,
    ):
        store(cluster, "orders", b"o0", b"o1")
        await until_equal(begun, [b"o0"])
        await consumer.unsubscribe("orders")
        await asyncio.sleep(10)
        assert unlocked(cluster) == [1]
        go_on.set()
        await until_committed(cluster, 1)
        await until(lambda: unlocked(cluster) == [1, 0])
        assert begun == [b"o0"]


@EVERY_WAY
@in_loop(simulated)
async def test_a_handler_may_give_up_its_own_topic(simulation: Simulation, /, way: str) -> None:
    got: list[bytes] = []

    async def handle(message: Delivery) -> None:
        got.append(message.body)
        await consumer.unsubscribe(message.topic)

    async with cluster_of(simulation, way) as cluster:
        store(cluster, "orders", b"o0", b"o1")
        consumer = consumer_by(way, cluster, simulation, handle)
        consumer.set_concurrency(1)
        async with consumer:
            await until_some(got)
            await asyncio.sleep(90)
            assert (got, consumer.queues) == ([b"o0"], [])


@in_loop(simulated)
async def test_what_was_not_consumed_can_be_given_up_silently_and_before_the_start(
    simulation: Simulation, /
) -> None:
    async with cluster_of(simulation, "pulled") as cluster:
        consumer = consumer_of(cluster, handler=Handled())
        await consumer.unsubscribe("never")
        await consumer.unsubscribe("orders")
        with pytest.raises(ConfigError, match="nothing to consume"):
            await consumer.start()
        await consumer.subscribe("bills")
        async with consumer:
            await consumer.unsubscribe("never")
            assert consumer.queues == [
                MessageQueue("bills", "broker-a", 0),
                MessageQueue("bills", "broker-a", 1),
            ]


def test_without_await_a_topic_is_given_up_too() -> None:
    with BrokerThread() as broker:
        for topic in ("orders", "bills"):
            broker.create_topic(topic, queues=1)
        consumer = blocking.PushConsumer(broker.namesrv, group="g", topic="orders")
        consumer.subscribe("bills")
        consumer.subscribe("never")
        consumer.unsubscribe("never")
        with consumer:
            assert {queue.topic for queue in consumer.queues} == {"orders", "bills"}
            consumer.unsubscribe("orders")
            assert {queue.topic for queue in consumer.queues} == {"bills"}
