"""Ways to choose a queue, as pure functions and through the producer. What they must equal in Java
is in tests/golden/test_clients.py."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster

from turbopump.client.selectors import HashRing, at_random, by_hash, in_rooms
from turbopump.errors import ConfigError, SendError
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message, MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendMessageV2

QUEUES = [
    MessageQueue("t", broker, i) for broker in ("near@a", "near@b", "far@c") for i in range(4)
]
MESSAGE = Message("t", b"x")


def test_an_equal_key_means_the_same_queue() -> None:
    assert by_hash("order-1")(QUEUES, MESSAGE) == by_hash("order-1")(QUEUES, MESSAGE)
    assert len({by_hash(f"order-{i}")(QUEUES, MESSAGE) for i in range(200)}) == len(QUEUES)
    with pytest.raises(TypeError, match="a key of type object has no hash that others share"):
        by_hash(object())


def test_chance_is_fair() -> None:
    select = at_random(random.Random(1))
    counts = Counter(select(QUEUES, MESSAGE) for _ in range(12_000))
    assert all(800 < counts[queue] < 1200 for queue in QUEUES)


def test_a_room_is_kept_to_while_it_has_a_broker() -> None:
    select = in_rooms("near")
    chosen = [select(QUEUES, MESSAGE) for _ in range(16)]
    assert chosen == [queue for queue in QUEUES if queue.broker_name != "far@c"] * 2
    assert in_rooms("nowhere")(QUEUES, MESSAGE) in QUEUES


def test_only_the_keys_of_a_queue_that_goes_move_on_the_ring() -> None:
    ring = HashRing(virtual_nodes=50)
    keys = [f"k{i}" for i in range(1000)]
    before = {key: ring.by(key)(QUEUES, MESSAGE) for key in keys}
    after = {key: ring.by(key)(QUEUES[1:], MESSAGE) for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert moved == [key for key in keys if before[key] == QUEUES[0]]
    assert 20 < len(moved) < 300


@in_loop(simulated)
async def test_messages_with_one_sharding_key_lie_in_one_queue_in_order(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        results = [await producer.send("orders", f"{i}", sharding_key="order-42") for i in range(6)]
        (queue,) = {result.queue for result in results}
        assert [result.queue_offset for result in results] == list(range(6))
        broker = cluster.brokers[queue.broker_name == "broker-b"]
        stored = decode_entry(broker.entries["orders", queue.queue_id][0])
        assert stored.properties["__SHARDINGKEY"] == "order-42"


@in_loop(simulated)
async def test_a_selector_chooses_for_every_way_to_send_and_has_one_attempt(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        queue = MessageQueue("orders", "broker-b", 3)
        assert (
            await producer.send("orders", b"x", selector=lambda queues, _: queues[-1])
        ).queue == queue
        await producer.send_oneway(Message("orders", b"y"), selector=lambda queues, _: queues[-1])
        await producer.send("orders", b"z", queue=queue)
        assert [request.queue_id for request in cluster.brokers[1].requests(SendMessageV2)] == [
            3,
            3,
            3,
        ]
        cluster.brokers[1].script[RequestCode.SEND_MESSAGE_V2].append(
            refusal(ResponseCode.SYSTEM_BUSY)
        )
        with pytest.raises(SendError, match="1 attempt"):
            await producer.send("orders", b"x", selector=lambda queues, _: queues[-1])
        with pytest.raises(ConfigError, match="not among the 8 queues"):
            await producer.send(
                "orders", b"x", selector=lambda *_: MessageQueue("orders", "broker-z", 0)
            )
        with pytest.raises(TypeError, match="give one of them"):
            await producer.send("orders", b"x", queue=queue, sharding_key="k")
