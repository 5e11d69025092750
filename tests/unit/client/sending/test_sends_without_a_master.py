"""While a broker has no master, a send waits for the next one until its deadline. It may be stored
twice only where the old master may have stored it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing, returns
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import (
    ScriptedBroker,
    ScriptedCluster,
    refusal,
    scripted_cluster,
)
from tests.waits import until, until_some

from turbopump.client.producer import Producer
from turbopump.client.routes import AWAITED_S
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.errors import ClientErrorCode, RouteNotFoundError, SendError
from turbopump.message.message import Message, MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import EndTransaction, SendBatchMessage, SendMessageV2

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("orders", "broker-a", 1)
ELECTION_S = 1.2


def ends(broker: ScriptedBroker) -> None:
    broker.further.append((EndTransaction, does_nothing))


@asynccontextmanager
async def three_replicas(
    simulation: Simulation, **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, ScriptedBroker]]:
    """A cluster of one broker with two slaves, and one of them that can become its master."""
    replica = ScriptedBroker("broker-a")
    ends(replica)
    async with scripted_cluster(simulation, prepare=ends, **settings) as cluster:
        await replica.start()
        name_master(cluster, cluster.broker)
        try:
            yield cluster, replica
        finally:
            await replica.stop()


def name_master(cluster: ScriptedCluster, master: ScriptedBroker | None) -> None:
    """Make the name server name this master of the broker, or none."""
    cluster.name_server.name_master("broker-a", None if master is None else master.address)


async def stop_master(cluster: ScriptedCluster) -> None:
    """Stop the master, and return when its clients have heard of it."""
    await cluster.broker.stop()
    await asyncio.sleep(0.01)  # virtual


async def kill_master(cluster: ScriptedCluster, next_master: ScriptedBroker) -> None:
    """Stop the master. Another one is elected after a while."""
    name_master(cluster, None)
    await stop_master(cluster)
    asyncio.get_running_loop().call_later(ELECTION_S, name_master, cluster, next_master)


def stored(broker: ScriptedBroker) -> int:
    return sum(map(len, broker.entries.values()))


async def plainly(producer: Producer) -> None:
    await producer.send("orders", b"x")


async def to_a_queue(producer: Producer) -> None:
    await producer.send("orders", b"x", queue=QUEUE)


async def by_sharding_key(producer: Producer) -> None:
    await producer.send("orders", b"x", sharding_key="k")


async def as_a_batch(producer: Producer) -> None:
    await producer.send_batch([Message("orders", b"x")])


async def later(producer: Producer) -> None:
    await (await producer.start_send(Message("orders", b"x")))


async def oneway(producer: Producer) -> None:
    await producer.send_oneway("orders", b"x")


KINDS = (plainly, to_a_queue, by_sharding_key, as_a_batch, later, oneway)


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("send", KINDS)
@in_loop(simulated)
async def test_sends_of_all_kinds_come_through_the_death_of_the_master(
    simulation: Simulation, /, send: Callable[[Producer], Any], retries: int
) -> None:
    async with (
        three_replicas(simulation) as (cluster, replica),
        producer_of(cluster, retries=retries) as producer,
    ):
        await producer.send("orders", b"before")
        await kill_master(cluster, replica)
        began = simulation.loop.time()
        await asyncio.gather(*(send(producer) for _ in range(50)))
        assert simulation.loop.time() - began < ELECTION_S + 2 * AWAITED_S
        await until(lambda: stored(replica) == 50)
        assert len(cluster.name_server.asked) <= 3 + ELECTION_S / AWAITED_S, "shared questions"


@pytest.mark.parametrize("send", KINDS)
@in_loop(simulated)
async def test_a_producer_that_starts_without_a_master_waits_for_one(
    simulation: Simulation, /, send: Callable[[Producer], Any]
) -> None:
    async with three_replicas(simulation) as (cluster, replica), producer_of(cluster) as producer:
        await kill_master(cluster, replica)
        await asyncio.gather(*(send(producer) for _ in range(50)))
        await until(lambda: stored(replica) == 50)
        assert len(cluster.name_server.asked) <= 3 + ELECTION_S / AWAITED_S


@in_loop(simulated)
async def test_automatic_batches_and_requests_wait_too(simulation: Simulation, /) -> None:
    async with (
        three_replicas(simulation) as (cluster, replica),
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        await kill_master(cluster, replica)
        await asyncio.gather(*(plainly(producer) for _ in range(50)))
        assert replica.requests(SendBatchMessage)
        asking = asyncio.ensure_future(producer.request("orders", b"?", timeout=5))
        await until(lambda: b"?" in [body for _, body in replica.received])
        asking.cancel()


@in_loop(simulated)
async def test_a_transaction_waits_and_its_executor_is_called_once(
    simulation: Simulation, /
) -> None:
    calls: list[Message] = []

    async def work(message: Message, _: object) -> TransactionState:
        calls.append(message)
        return TransactionState.COMMIT

    async with (
        three_replicas(simulation) as (cluster, replica),
        TransactionProducer(
            cluster.name_server.address,
            group="sellers",
            checker=returns(TransactionState.UNKNOWN),
            executor=work,
            **cluster.settings,
        ) as producer,
    ):
        await producer.send_in_transaction(Message("orders", b"x"))
        await kill_master(cluster, replica)
        assert (await producer.send_in_transaction(Message("orders", b"y"))).told
        await until(replica.has_got, EndTransaction, 1)
    assert [message.body for message in calls] == [b"x", b"y"]


@in_loop(simulated)
async def test_a_new_topic_waits_for_a_broker_that_can_create_it(simulation: Simulation, /) -> None:
    async with (
        three_replicas(simulation, topic="TBW102") as (cluster, replica),
        producer_of(cluster) as producer,
    ):
        cluster.name_server.routes["TBW102"].queue_datas[0].perm = 7  # type: ignore[union-attr]
        await kill_master(cluster, replica)
        await producer.send("fresh", b"x")
        assert stored(replica) == 1


@in_loop(simulated)
async def test_messages_that_the_dead_master_may_have_stored_are_retried_at_the_next_one(
    simulation: Simulation, /
) -> None:
    async with (
        three_replicas(simulation) as (cluster, replica),
        producer_of(cluster) as producer,
        producer_of(cluster, retries=0) as careful,
    ):
        cluster.broker.script[SEND].extend([None] * 3)
        sends = [
            asyncio.ensure_future(send)
            for send in (plainly(producer), to_a_queue(producer), plainly(careful))
        ]
        await until(cluster.broker.has_got, SendMessageV2, 3)
        await kill_master(cluster, replica)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert outcomes[0] is None
        for refused in outcomes[1:]:
            assert isinstance(refused, SendError)
            assert "1 attempt in" in str(refused)
            assert "may be stored nevertheless" in str(refused)
        assert stored(replica) == 1


@in_loop(simulated)
async def test_waiting_for_a_master_uses_up_no_retries(simulation: Simulation, /) -> None:
    async with (
        three_replicas(simulation) as (cluster, replica),
        producer_of(cluster, retries=1) as producer,
    ):
        await producer.send("orders", b"before")
        await stop_master(cluster)
        replica.script[SEND].append(refusal(ResponseCode.SYSTEM_BUSY))
        simulation.loop.call_later(ELECTION_S, name_master, cluster, replica)
        await producer.send("orders", b"x")
        assert len(replica.requests(SendMessageV2)) == 2


@in_loop(simulated)
async def test_a_broker_without_replicas_that_restarts_costs_no_send(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"before")
        await stop_master(cluster)
        del cluster.name_server.routes["orders"]
        sends = [asyncio.ensure_future(send(producer)) for send in KINDS]
        await asyncio.sleep(2)
        await cluster.broker.start()
        await asyncio.gather(*sends)
        await until(lambda: stored(cluster.broker) == 1 + len(KINDS))


@pytest.mark.parametrize("send", KINDS)
@in_loop(simulated)
async def test_a_send_that_waited_in_vain_says_for_what(
    simulation: Simulation, /, send: Callable[[Producer], Any]
) -> None:
    async with three_replicas(simulation) as (cluster, _), producer_of(cluster) as producer:
        name_master(cluster, None)
        began = simulation.loop.time()
        with pytest.raises(
            RouteNotFoundError, match=r"no broker of it \(broker-a\) got a master within 3\.0 s"
        ) as caught:
            await send(producer)
        assert caught.value.code == ClientErrorCode.BROKER_NOT_EXIST
        name_master(cluster, cluster.broker)
        await producer.send("orders", b"x")
        await stop_master(cluster)
        name_master(cluster, None)
        began = simulation.loop.time()
        waited = r"waited for a master of broker-a, but name servers named none\. Check that"
        with pytest.raises(SendError, match=waited):
            await send(producer)
        assert simulation.loop.time() - began == pytest.approx(3.0, abs=0.01)


@in_loop(simulated)
async def test_a_lost_answer_is_told_also_after_waiting_in_vain(simulation: Simulation, /) -> None:
    async with three_replicas(simulation) as (cluster, _), producer_of(cluster) as producer:
        cluster.broker.script[SEND].append(None)
        sending = asyncio.ensure_future(plainly(producer))
        await until(cluster.broker.has_got, SendMessageV2, 1)
        await stop_master(cluster)
        name_master(cluster, None)
        with pytest.raises(SendError, match=r"1 attempt .* named none\. The message may be stored"):
            await sending


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: the sync state set is [1]"),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is not the master"),
    ],
)
@pytest.mark.parametrize("send", [plainly, to_a_queue])
@in_loop(simulated)
async def test_replicas_that_take_no_sends_yet_are_asked_again_until_the_deadline(
    simulation: Simulation, /, send: Callable[[Producer], Any], code: int, remark: str
) -> None:
    async with three_replicas(simulation) as (cluster, _), producer_of(cluster) as producer:
        script = cluster.broker.script[SEND]
        script.extend([refusal(code, remark)] * 8)
        began = simulation.loop.time()
        await send(producer)
        assert 1 < simulation.loop.time() - began < 2
        script.extend([refusal(code, remark)] * 100)
        with pytest.raises(SendError, match=rf"1\d attempts in 2... ms: .* {remark[:20]}"):
            await send(producer)


@pytest.mark.parametrize(
    ("code", "remark"),
    [(ResponseCode.SERVICE_NOT_AVAILABLE, "disk full"), (ResponseCode.SYSTEM_ERROR, "denied")],
)
@in_loop(simulated)
async def test_other_refusals_end_a_send_after_its_retries(
    simulation: Simulation, /, code: int, remark: str
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        cluster.broker.script[SEND].extend([refusal(code, remark)] * 100)
        with pytest.raises(SendError, match=r"3 attempts in 3.. ms"):
            await producer.send("orders", b"x")


@in_loop(simulated)
async def test_a_topic_that_nobody_may_write_fails_at_once_also_without_a_master(
    simulation: Simulation, /
) -> None:
    async with three_replicas(simulation) as (cluster, _), producer_of(cluster) as producer:
        cluster.name_server.routes["orders"].queue_datas[0].perm = 4  # type: ignore[union-attr]
        name_master(cluster, None)
        began = simulation.loop.time()
        with pytest.raises(RouteNotFoundError, match="no writable queue"):
            await producer.send("orders", b"x")
        assert simulation.loop.time() - began < 0.1


@pytest.mark.parametrize("known", [False, True])
@in_loop(simulated)
async def test_a_close_ends_sends_that_wait_for_a_master(
    simulation: Simulation, /, known: bool
) -> None:
    async with three_replicas(simulation) as (cluster, replica):
        producer = producer_of(cluster, send_timeout=1.0)
        await producer.start()
        if known:
            await producer.send("orders", b"x")
        await stop_master(cluster)
        name_master(cluster, None)
        sending = asyncio.ensure_future(producer.send("orders", b"x", timeout=60))
        await asyncio.sleep(0.5)
        began = simulation.loop.time()
        await producer.close()
        name_master(cluster, replica)
        with pytest.raises((SendError, RouteNotFoundError)):
            await sending
        assert simulation.loop.time() - began < 1.0 + 2 * AWAITED_S
        assert stored(replica) == 0


@in_loop(simulated)
async def test_a_send_uses_another_broker_while_one_has_no_master(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        await until_some(await producer.publish_queues("orders"))
        await stop_master(cluster)
        name_master(cluster, None)
        began = simulation.loop.time()
        for _ in range(8):
            assert (await producer.send("orders", b"x")).queue.broker_name == "broker-b"
        assert simulation.loop.time() - began < 0.2
