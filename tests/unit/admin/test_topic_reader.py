"""Reading a topic without a group, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.push_consumers import fill
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster

from turbopump import ConfigError, ConsumeFrom, MessageQueue
from turbopump.admin.topic_reader import Batch, TopicReader
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.offsets import UpdateConsumerOffset

QUEUE = MessageQueue("orders", "broker-a", 0)


def reader_of(cluster: ScriptedCluster) -> TopicReader:
    return TopicReader(cluster.name_server.address, **cluster.settings)


async def bodies(batches: AsyncGenerator[Batch], count: int) -> list[bytes]:
    """Those of the next messages."""
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await anext(batches)]
    return found


@in_loop(simulated)
async def test_every_message_is_read_in_its_queues_order_and_nobody_hears_of_it(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        fill(cluster, 100)
        starts = await reader.starts(await reader.queues("orders"), ConsumeFrom.FIRST)
        async with aclosing(reader.read("orders", starts)) as batches:
            assert await bodies(batches, 100) == [b"m%d" % number for number in range(100)]
            cluster.broker.store("orders", 3, b"later")
            assert await bodies(batches, 1) == [b"later"]
        assert cluster.broker.requests(Heartbeat) == []
        assert cluster.broker.requests(UpdateConsumerOffset) == []


@pytest.mark.parametrize(
    ("where", "first"), [(ConsumeFrom.FIRST, b"m0"), (ConsumeFrom.LAST, b"new"), (7, b"m7")]
)
@in_loop(simulated)
async def test_reading_begins_where_it_was_asked_to(
    simulation: Simulation, /, where: ConsumeFrom | int, first: bytes
) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        fill(cluster, 10)
        starts = await reader.starts((await reader.queues("orders"))[:1], where)
        cluster.broker.store("orders", 0, b"new")
        async with aclosing(reader.read("orders", starts)) as batches:
            assert (await bodies(batches, 1))[0] == first


@in_loop(simulated)
async def test_an_offset_that_the_queue_has_not_is_refused(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        fill(cluster, 10)
        with pytest.raises(ConfigError, match="offset 11 is outside of orders@broker-a:0"):
            await reader.starts((await reader.queues("orders"))[:1], 11)


@in_loop(simulated)
async def test_a_queue_that_cannot_be_read_is_named_once_and_read_again(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        fill(cluster, 1)
        cluster.broker.script[RequestCode.PULL_MESSAGE].extend(
            [refusal(ResponseCode.SYSTEM_BUSY, "busy")] * 3
        )
        async with aclosing(reader.read("orders", {QUEUE: 0})) as batches:
            assert await bodies(batches, 1) == [b"m0"]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert said[0].startswith(
        "queue cannot be read, trying again queue=orders@broker-a:0 cause=code 2"
    )
    assert said[1] == "queue can be read again queue=orders@broker-a:0"


@in_loop(simulated)
async def test_messages_that_went_while_it_was_read_are_named(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        cluster.broker.min_offset["orders", 0] = 20
        fill(cluster, 1)
        async with aclosing(reader.read("orders", {QUEUE: 5})) as batches:
            assert await bodies(batches, 1) == [b"m0"]
    assert "messages are gone queue=orders@broker-a:0 from=5 to=20" in caplog.text


@in_loop(simulated)
async def test_queues_that_the_topic_gets_later_are_read_too(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        reader_of(cluster) as reader,
        aclosing(reader.read("orders", {QUEUE: 0}, more=True)) as batches,
    ):
        next_one = asyncio.ensure_future(bodies(batches, 1))
        cluster.name_server.route("orders", cluster.broker, queues=2)
        cluster.broker.store("orders", 1, b"in the new queue")
        assert await next_one == [b"in the new queue"]


@in_loop(simulated)
async def test_only_the_wanted_tags_are_read(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, reader_of(cluster) as reader:
        for tag in "ABA":
            cluster.broker.store("orders", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        async with aclosing(reader.read("orders", {QUEUE: 0}, "A || C")) as batches:
            assert await bodies(batches, 2) == [b"A", b"A"]
