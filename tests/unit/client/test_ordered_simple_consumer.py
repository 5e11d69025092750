"""The simple consumer of an ordered group, against a scripted cluster and against our broker, in
virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.pop_clients import NAMESRV, TOPIC, World
from tests.simulation.world.simulation import Simulation
from tests.unit.client.simple_consumers import bodies, consumer_of, popping
from tests.waits import until_equal

from turbopump import ConsumeFrom, MessageQueue, Producer, SimpleConsumer
from turbopump.errors import ConfigError
from turbopump.protocol.requests.pop import Notification, PopMessage


@in_loop(simulated)
async def test_of_a_queue_nothing_more_comes_until_all_that_was_received_is_acknowledged(
    simulation: Simulation, /
) -> None:
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, ordered=True) as consumer,
    ):
        for body in (b"a", b"b", b"c"):
            pops.store("orders", 0, body)
        first = await consumer.receive(2, 60)
        assert bodies(first) == [b"a", b"b"]
        assert await consumer.receive(2, 60, timeout=20) == []
        await consumer.ack(first[1])
        assert await consumer.receive(2, 60, timeout=20) == []
        waiting = asyncio.ensure_future(consumer.receive(2, 60))
        await consumer.ack(first[0])
        assert bodies(await waiting) == [b"c"]
        assert {one.order for one in cluster.broker.requests(PopMessage)} == {True}
        assert {one.order for one in cluster.broker.requests(Notification)} == {True}


@in_loop(simulated)
async def test_what_is_not_acknowledged_comes_again_in_place_and_is_counted(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)):
        settings: dict[str, Any] = {"ordered": True, "max_reconsume_times": 1}
        async with consumer_of(cluster, **settings) as consumer:
            for body in (b"a", b"b", b"c"):
                pops.store("orders", 0, body)
            for attempt in (1, 2, 3):
                received = await consumer.receive(2, 10)
                assert [(message.body, message.attempt) for message in received] == [
                    (b"a", attempt),
                    (b"b", attempt),
                ]
            await consumer.ack(received)
            assert bodies(await consumer.receive(2, 10)) == [b"c"]


@in_loop(simulated)
async def test_the_time_of_what_was_received_can_be_changed_more_than_once(
    simulation: Simulation, /
) -> None:
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, ordered=True) as consumer,
    ):
        pops.store("orders", 0, b"a")
        (message,) = await consumer.receive(2, 10)
        for _ in range(3):
            await asyncio.sleep(8)
            await consumer.change_invisible_time(message, 10)
        await consumer.ack(message)
        await until_equal(pops.acked, [("orders", 0, 0)])
        assert await consumer.receive(timeout=30) == []


@in_loop(simulated)
async def test_what_a_lost_answer_brought_comes_without_waiting_for_its_time(
    simulation: Simulation, /
) -> None:
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, ordered=True) as consumer,
    ):
        pops.lose_next_answer(simulation.network)
        pops.store("orders", 0, b"a")
        (message,) = await consumer.receive(1, 300, timeout=60)
        assert (message.body, message.attempt) == (b"a", 1)


async def member(
    got: dict[int, list[bytes]], simulation: Simulation, world: World, host: str
) -> None:
    rng = world.source(host)
    settings = {
        "clock": simulation.clock(host),
        "random": rng,
        "local_ip": host,
        "consume_from": ConsumeFrom.FIRST,
    }
    async with SimpleConsumer(
        f"{NAMESRV}:9876", group="g", topic=TOPIC, ordered=True, **settings
    ) as consumer:
        while sum(map(len, got.values())) < 80:
            messages = await consumer.receive(rng.randint(1, 5), 5, timeout=3)
            done = messages[: rng.randint(0, len(messages))]
            for message in done:
                got[message.queue_id].append(message.body)
            await consumer.ack(done)


@in_loop(simulated)
async def test_two_members_receive_every_message_of_our_broker_in_order(
    simulation: Simulation, /
) -> None:
    world = World(simulation)
    world.keep(NAMESRV, world.name_server)
    world.keep("10.0.0.2", world.run_broker)
    await asyncio.sleep(25)
    got: dict[int, list[bytes]] = {n: [] for n in range(4)}

    host = "10.0.9.1"
    async with Producer(
        f"{NAMESRV}:9876",
        group="p",
        clock=simulation.clock(host),
        random=world.source(host),
        local_ip=host,
    ) as producer:
        for i in range(80):
            await producer.send(TOPIC, b"%d" % i, queue=MessageQueue(TOPIC, "broker-a", i % 4))
    async with asyncio.timeout(3600):
        await asyncio.gather(
            member(got, simulation, world, "10.0.3.1"), member(got, simulation, world, "10.0.3.2")
        )
    await world.end()
    for queue, received in got.items():
        assert received == [b"%d" % i for i in range(queue, 80, 4)]


def test_ordered_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="ordered"):
        SimpleConsumer("127.0.0.1:1", group="g", topic="t", ordered="yes")  # type: ignore[arg-type]
