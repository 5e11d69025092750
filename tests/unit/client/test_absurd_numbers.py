"""Numbers that a name server or a broker says, and by which a client counts or makes room: one that
cannot be is an error at once, which names who said it, of what, and what to do."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client import push_consumers
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_answers import entry, reply
from tests.unit.client.scripted_cluster import ScriptedNameServer, scripted_cluster
from tests.waits import until, until_none

from turbopump import Producer, RouteNotFoundError
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import PoppedDelivery, popped_messages
from turbopump.client.consumer.pull import pulled_messages
from turbopump.client.topic_route import topic_route
from turbopump.message.batch import COUNT_MAX, UNPACKED_MESSAGE_SIZE, UNPACKED_SIZE_MAX, encode_item
from turbopump.message.message import MessageQueue
from turbopump.message.properties import SysFlag
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.clients import MEMBERS_MAX, ConsumerIdList
from turbopump.protocol.requests.namesrv import (
    ROUTE_QUEUES_MAX,
    BrokerData,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import QUEUES_MAX
from turbopump.remoting.response import Response

MANY = 2**31 - 1
SOON_S = 5.0


@contextmanager
def soon(seconds: float = SOON_S) -> Iterator[None]:
    """Of CPU, however busy the machine is."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def route(*queues: int, ordered: str | None = None) -> TopicRouteData:
    """One broker for each number of queues."""
    return TopicRouteData(
        order_topic_conf=ordered,
        queue_datas=[
            QueueData(broker_name=f"b{i}", read_queue_nums=count, write_queue_nums=count, perm=6)
            for i, count in enumerate(queues)
        ],
        broker_datas=[
            BrokerData(broker_name=f"b{i}", broker_addrs={0: "127.0.0.1:1"})
            for i in range(len(queues))
        ],
    )


ABSURD: dict[str, tuple[TopicRouteData | bytes, str]] = {
    "queues of a broker": (route(4, MANY), rf"'b1' readQueueNums is {MANY}; give a number from 0"),
    "one too many": (
        route(QUEUES_MAX + 1),
        "readQueueNums is 65536; give a number from 0 to 65535",
    ),
    "less than none": (route(-1), "readQueueNums is -1"),
    "queues of all brokers": (
        fastjson.encode_standard(route(*[QUEUES_MAX] * 20_000)),
        "1310700000 queues on all brokers",
    ),
    "queues in order": (route(4, ordered=f"b0:{MANY};b1:4"), rf"'b0' readQueueNums is {MANY}"),
    "digits": (route(4, ordered="b0:" + "9" * 5000), "readQueueNums is 9999999999"),
    "levels": (b'{"queueDatas":' * 1_100_000, "more than 1000000 entries"),
    "fewer levels": (b'{"queueDatas":' * 900_000, "nested too deep"),
    "levels of a map": (b"{0:" * 200_000, "nested too deep"),
    "entries": (b'{"queueDatas":[' + b"{}," * 1_100_000 + b"{}]}", "more than 1000000 entries"),
}


@pytest.mark.parametrize("what", ABSURD)
@in_loop
async def test_a_send_by_a_route_that_cannot_be_fails_in_time_and_says_why(what: str) -> None:
    name_server = ScriptedNameServer()
    name_server.routes["T"], cause = ABSURD[what]
    await name_server.start()
    try:
        async with Producer(name_server.address) as producer:
            with soon(), pytest.raises(RouteNotFoundError, match=cause) as refused:
                await asyncio.wait_for(producer.send("T", b"x"), SOON_S)
            assert name_server.address in str(refused.value)
            assert "'T'" in str(refused.value)
            assert "no name server answers" not in str(refused.value)
    finally:
        await name_server.stop()


@pytest.mark.parametrize(
    "data",
    [route(QUEUES_MAX), route(*[QUEUES_MAX] * 4), route(*[8] * 30_000), route(0)],
    ids=["the most of a broker", "the most of a topic", "many brokers", "none"],
)
def test_a_large_route_that_may_be_is_taken(data: TopicRouteData) -> None:
    with soon():
        taken = topic_route("T", fastjson.decode(fastjson.encode(data), TopicRouteData))
    counts = [one.read_queue_nums for one in data.queue_datas]
    assert len(taken.publish_queues) == len(taken.subscribe_queues) == sum(counts)
    assert sum(counts) <= ROUTE_QUEUES_MAX


@in_loop(simulated)
async def test_a_known_route_stays_when_the_next_one_cannot_be(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"1")
        good = cluster.name_server.routes["orders"]
        cluster.name_server.routes["orders"] = route(MANY)
        asked = cluster.name_server.asked.count("orders")
        await until(lambda: cluster.name_server.asked.count("orders") > asked + 1)
        result = await producer.send("orders", b"2")
        assert result.queue.broker_name == cluster.broker.name
        cluster.name_server.routes["orders"] = good


@in_loop(simulated)
async def test_more_members_than_can_share_queues_are_a_warning_and_queues_stay_as_they_are(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = ConsumerIdList(consumer_id_list=[f"c{i}" for i in range(MEMBERS_MAX + 1)])
    answer = Response(body=fastjson.encode(crowd))
    async with scripted_cluster(simulation) as cluster:
        push_consumers.fill(cluster, 1)
        async with push_consumers.consumer_of(cluster) as consumer:
            (message,) = await consumer.take(1)
            message.done()
            script = cluster.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
            script.extend([answer] * 3)
            await until_none(script)
            push_consumers.fill(cluster, 1)
            (message,) = await consumer.take(1)
            message.done()
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert any(f"lists {MEMBERS_MAX + 1} members" in text for text in said)


QUEUE = MessageQueue("T", "b", 0)


WRAPPED = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED)
FULL_BATCH = entry(0, zlib.compress(encode_item(0, b"", b"") * COUNT_MAX, 9), WRAPPED)
BOMB = entry(0, zlib.compress(bytes(60 << 20), 9), WRAPPED)
TOO_LONG = entry(0, zlib.compress(bytes(80 << 20), 9), WRAPPED)
UNPACKED_MAX = UNPACKED_SIZE_MAX // UNPACKED_MESSAGE_SIZE + COUNT_MAX


@pytest.mark.parametrize("batch", [FULL_BATCH, BOMB, TOO_LONG], ids=["full", "bomb", "too long"])
def test_batches_of_one_answer_are_taken_apart_up_to_a_bound(batch: bytes) -> None:
    answer = batch * 100
    with soon(20):
        messages, damaged = pulled_messages(answer, QUEUE, 0, 100 * COUNT_MAX, Delivery)
        assert len(messages) <= UNPACKED_MAX
        assert f"more than {UNPACKED_SIZE_MAX} bytes" in damaged[-1].fault
        found, out = popped_messages(answer, reply(), QUEUE, PoppedDelivery)
        assert len(found) <= UNPACKED_MAX
        assert f"more than {UNPACKED_SIZE_MAX} bytes" in out[-1].fault


def test_a_pop_with_many_offsets_is_read_in_the_time_of_its_size() -> None:
    count = 50_000
    body = b"".join(entry(offset, b"x") for offset in range(count))
    offsets = "0 0 " + ",".join(map(str, range(count, 2 * count)))
    with soon():
        found, _ = popped_messages(body, reply(offsets), QUEUE, PoppedDelivery)
    assert len(found) == count
