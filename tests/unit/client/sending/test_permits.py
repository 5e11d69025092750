"""How many sends and calls may be under way at once (``async_permits``, ``oneway_permits``)."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedBroker, scripted_cluster
from tests.waits import until, until_some

from turbopump.client.producer import Producer
from turbopump.errors import CallTimeoutError, ClientErrorCode, SendError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.permits import Permits

SILENCE = None


def sends(producer: Producer, count: int) -> list[asyncio.Task[object]]:
    loop = asyncio.get_running_loop()
    return [loop.create_task(producer.send("orders", b"%d" % one)) for one in range(count)]


def heard(broker: ScriptedBroker) -> list[bytes]:
    return [body for request, body in broker.received if isinstance(request, SendMessageV2)]


@in_loop(simulated)
async def test_sends_beyond_the_permits_wait_their_turn_and_all_arrive_in_order(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        producer_of(cluster, async_permits=2) as producer,
    ):
        await producer.send("orders", b"the connection is there")
        await asyncio.gather(*sends(producer, 7))
        assert heard(cluster.broker)[1:] == [b"%d" % one for one in range(7)]


@in_loop(simulated)
async def test_a_send_that_gets_no_permit_in_time_says_what_holds_them(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, async_permits=2, send_timeout=3.0) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2] += [SILENCE, SILENCE]
        silent = sends(producer, 2)
        await asyncio.sleep(0)
        with pytest.raises(
            SendError, match=r"500 ms: 2 sends .*async_permits.* Nothing was stored"
        ) as late:
            await producer.send("orders", b"late", timeout=0.5)
        assert late.value.code == ClientErrorCode.ACCESS_BROKER_TIMEOUT
        assert b"late" not in heard(cluster.broker)
        failed = await asyncio.gather(*silent, return_exceptions=True)
        assert [type(one) for one in failed] == [SendError, SendError]
        await producer.send("orders", b"after them")


@in_loop(simulated)
async def test_who_gives_up_waiting_takes_no_permit_with_it(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, async_permits=1) as producer,
    ):
        await producer.send("orders", b"x")
        first, second, third = sends(producer, 3)
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)
        assert heard(cluster.broker) == [b"x", b"0", b"2"]


@in_loop(simulated)
async def test_oneway_sends_have_permits_of_their_own(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, async_permits=1, oneway_permits=1) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2] += [SILENCE]
        (silent,) = sends(producer, 1)
        await until(lambda: len(heard(cluster.broker)) == 2)
        await asyncio.gather(*(producer.send_oneway("orders", b"oneway") for _ in range(5)))
        await until(lambda: heard(cluster.broker).count(b"oneway") == 5)
        silent.cancel()


@in_loop(simulated)
async def test_calls_of_a_client_have_permits_too(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        client = RemotingClient(permits=1)
        question = GetMaxOffset(topic="orders", queue_id=0)
        cluster.broker.script[question.code] += [SILENCE]
        first = asyncio.ensure_future(client.call(cluster.broker.address, question, timeout=2))
        await until_some(cluster.broker.received)
        with pytest.raises(CallTimeoutError, match=r"nothing was sent .* 1 calls .*async_permits"):
            await client.call(cluster.broker.address, question, timeout=1)
        second = asyncio.ensure_future(client.call(cluster.broker.address, question, timeout=3))
        with pytest.raises(CallTimeoutError):
            await first
        assert (await second).offset == 0
        await client.close()


@in_loop(simulated)
async def test_what_is_only_waited_for_takes_no_permit(simulation: Simulation, /) -> None:
    del simulation
    permits = Permits(limit=1)
    with permits:
        permits.count += 1
        assert permits.count <= permits.limit
        idle = asyncio.ensure_future(permits.wait_idle())
        await asyncio.sleep(0)
        permits.count -= 1
        assert permits.watched
        permits.wake_waiting()
        await asyncio.sleep(0)
        assert not idle.done()
    await idle
    assert (permits.count, permits.limit, permits.watched) == (0, 1, False)
