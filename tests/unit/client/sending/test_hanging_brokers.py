"""A broker that hangs: sends that may go elsewhere do, within their time; those of a broker that is
only slow stay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster

from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import SendError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.send import SendMessageV2


async def connected(producer: Producer) -> None:
    """Let the producer have a connection to every broker."""
    for _ in range(16):
        await producer.send("orders", b"before")


def hang(cluster: ScriptedCluster, number: int = 0) -> None:
    """From now on that broker answers nothing."""
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET):
        cluster.brokers[number].script[code].extend([None] * 100)


@pytest.mark.parametrize("settings", [{}, {"attempt_timeout": 2.9}])
@in_loop(simulated)
async def test_sends_to_a_broker_that_hangs_go_to_another_within_two_thirds_of_their_time(
    simulation: Simulation, /, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        await connected(producer)
        hang(cluster)
        began = simulation.loop.time()
        sent = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(20)))
        assert {result.status for result in sent} == {SendStatus.OK}
        assert {result.queue.broker_name for result in sent} == {"broker-b"}
        assert simulation.loop.time() - began < 2.1
        began = simulation.loop.time()
        for _ in range(20):
            await producer.send("orders", b"y")
        assert simulation.loop.time() - began < 0.1, "it is left alone for ten seconds"
    (line,) = [record.getMessage() for record in caplog.records if "hangs" in record.getMessage()]
    assert "may be stored twice" in line


@in_loop(simulated)
async def test_a_broker_that_is_slow_with_a_send_but_lives_is_waited_for(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        await connected(producer)
        before = [len(broker.requests(SendMessageV2)) for broker in cluster.brokers]
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x")
        after = [len(broker.requests(SendMessageV2)) for broker in cluster.brokers]
        assert sum(after) == sum(before) + 1
        assert sum(len(broker.requests(GetMaxOffset)) for broker in cluster.brokers) in (1, 2, 3)


@pytest.mark.parametrize("brokers", [1, 2])
@in_loop(simulated)
async def test_a_send_that_can_go_nowhere_else_waits_for_the_broker_that_hangs(
    simulation: Simulation, /, brokers: int
) -> None:
    async with (
        scripted_cluster(simulation, brokers=brokers) as cluster,
        producer_of(cluster) as producer,
    ):
        await connected(producer)
        hang(cluster)
        queues = await producer.publish_queues("orders")
        began = simulation.loop.time()
        with pytest.raises(SendError, match="1 attempt in 3"):
            await producer.send("orders", b"x", queue=queues[0] if brokers == 2 else None)
        assert 3.0 <= simulation.loop.time() - began < 3.1


@in_loop(simulated)
async def test_nothing_is_asked_while_brokers_answer(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        for _ in range(100):
            await producer.send("orders", b"x")
            await asyncio.sleep(0.1)
        assert [broker.requests(GetMaxOffset) for broker in cluster.brokers] == [[], []]


@in_loop(simulated)
async def test_when_all_brokers_hang_the_error_lists_them(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        await connected(producer)
        hang(cluster, 0)
        hang(cluster, 1)
        with pytest.raises(SendError, match="hangs: it answers nothing") as caught:
            await producer.send("orders", b"x")
        assert sorted(caught.value.brokers) == ["broker-a", "broker-b"]
        assert 3000 <= caught.value.spent_ms < 3100
