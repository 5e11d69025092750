"""The pull consumer against a scripted cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster

from turbopump.client.pull_consumer import PullConsumer, PullStatus
from turbopump.errors import (
    ConfigError,
    ConnectError,
    NotStartedError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.offsets import UpdateConsumerOffset

QUEUE = MessageQueue("orders", "broker-a", 0)


def consumer_of(cluster: ScriptedCluster) -> PullConsumer:
    return PullConsumer(cluster.name_server.address, group="readers", **cluster.settings)


def fill(cluster: ScriptedCluster, count: int) -> None:
    for i in range(count):
        cluster.broker.store(
            "orders", 0, f"m{i}".encode(), f"TAGS\x01{'even' if i % 2 == 0 else 'odd'}\x02"
        )


@in_loop(simulated)
async def test_a_queue_is_read_by_offset_from_end_to_end(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 40)
        assert await consumer.queues("orders") == [QUEUE, MessageQueue("orders", "broker-a", 1)]
        offset, bodies = await consumer.min_offset(QUEUE), []
        while offset < await consumer.max_offset(QUEUE):
            result = await consumer.pull(QUEUE, offset)
            assert result.status is PullStatus.FOUND
            bodies += [message.body for message in result.messages]
            offset = result.next_offset
        assert bodies == [f"m{i}".encode() for i in range(40)]
        assert (result.min_offset, result.max_offset) == (0, 40)
        assert result.messages[0].broker_name == "broker-a"


@in_loop(simulated)
async def test_every_outcome_says_where_to_go_on(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        cluster.broker.min_offset["orders", 0] = 10
        fill(cluster, 3)
        assert [
            (result.status, result.next_offset)
            for result in [
                await consumer.pull(QUEUE, 10, 1),
                await consumer.pull(QUEUE, 13),
                await consumer.pull(QUEUE, 2),
                await consumer.pull(QUEUE, 99),
                await consumer.pull(QUEUE, 10, tags="none"),
            ]
        ] == [
            (PullStatus.FOUND, 11),
            (PullStatus.NO_NEW_MESSAGE, 13),
            (PullStatus.OFFSET_ILLEGAL, 10),
            (PullStatus.OFFSET_ILLEGAL, 13),
            (PullStatus.NO_MATCHED_MESSAGE, 13),
        ]


@in_loop(simulated)
async def test_tags_choose_messages(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 6)
        result = await consumer.pull(QUEUE, 0, tags="odd || rare")
        assert [message.body for message in result.messages] == [b"m1", b"m3", b"m5"]


@in_loop(simulated)
async def test_a_pull_may_wait_for_a_message(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        simulation.loop.call_later(5, fill, cluster, 1)
        result = await consumer.pull(QUEUE, 0, wait=20)
        assert result.status is PullStatus.FOUND
        assert simulation.loop.time() < 6


@in_loop(simulated)
async def test_the_place_of_a_group_is_kept_only_when_told(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with consumer_of(cluster) as consumer:
            assert await consumer.committed(QUEUE) is None
            await consumer.pull(QUEUE, 0)
            await consumer.commit(QUEUE, 2)
            assert await consumer.committed(QUEUE) == 2
            assert await consumer.offset_at(QUEUE, 1) == 1
        assert len(cluster.broker.requests(UpdateConsumerOffset)) == 1
        assert cluster.broker.heartbeats[0].consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"


@in_loop(simulated)
async def test_errors_say_what_is_wrong(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        consumer = consumer_of(cluster)
        with pytest.raises(NotStartedError):
            await consumer.pull(QUEUE, 0)
        async with consumer:
            with pytest.raises(RouteNotFoundError, match="turbopump topic create missing"):
                await consumer.queues("missing")
            with pytest.raises(ConnectError, match="no queue on a broker 'broker-z'"):
                await consumer.pull(MessageQueue("orders", "broker-z", 0), 0)
            cluster.broker.script[RequestCode.PULL_MESSAGE].append(
                refusal(ResponseCode.NO_PERMISSION, "not readable")
            )
            with pytest.raises(ResponseError, match="not readable"):
                await consumer.pull(QUEUE, 0)


def damage(cluster: ScriptedCluster, index: int, byte: int) -> None:
    """One bit of a stored message of the queue changes."""
    entries = cluster.broker.entries["orders", 0]
    entry = bytearray(entries[index])
    entry[byte] ^= 4
    entries[index] = bytes(entry)


@pytest.mark.parametrize("byte", [0, 3, 4, 8, 88, -30, -11, -5])
@pytest.mark.parametrize("index", [0, 2, 4])
@in_loop(simulated)
async def test_a_damaged_message_is_left_out_and_named_and_the_others_come(
    simulation: Simulation, /, byte: int, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        for i in range(5):
            cluster.broker.store("orders", 0, f"m{i}".encode(), "TAGS\x01a\x02", with_crc=True)
        damage(cluster, index, byte)
        result = await consumer.pull(QUEUE, 0)
        assert (result.status, result.next_offset) == (PullStatus.FOUND, 5)
        assert [message.body for message in result.messages] == [
            f"m{i}".encode() for i in range(5) if i != index
        ]
        assert [(one.queue, one.queue_offset) for one in result.damaged] == [(QUEUE, index)]
        assert f"topic=orders broker=broker-a queue=0 offset={index} cause=" in caplog.text
        assert all(message.properties == {"TAGS": "a"} for message in result.messages)


@in_loop(simulated)
async def test_a_body_of_a_wrong_crc_is_left_out_where_entries_have_no_crc_of_their_own(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 3)
        damage(cluster, 1, 88)
        result = await consumer.pull(QUEUE, 0)
        assert [message.body for message in result.messages] == [b"m0", b"m2"]
        assert "bodyCRC does not fit the body" in result.damaged[0].fault
        alone = await consumer.pull(QUEUE, 1, 1)
        assert (alone.status, alone.messages, alone.next_offset) == (
            PullStatus.NO_MATCHED_MESSAGE,
            [],
            2,
        )


@in_loop(simulated)
async def test_what_is_no_queue_or_no_time_is_refused_with_what_to_give(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        asked: list[Awaitable[object]] = [
            consumer.pull("orders", 0),  # type: ignore[arg-type]
            consumer.min_offset("orders"),  # type: ignore[arg-type]
            consumer.committed(None),  # type: ignore[arg-type]
            consumer.commit(0, 0),  # type: ignore[arg-type]
        ]
        for call in asked:
            with pytest.raises(
                ConfigError,
                match=r"must be a MessageQueue: one of `await "
                r"consumer.queues\(topic\)`",
            ):
                await call
        with pytest.raises(
            ConfigError, match="when='yesterday' must be ms since 1970, or a datetime"
        ):
            await consumer.offset_at(QUEUE, "yesterday")  # type: ignore[arg-type]
