"""What was begun and still looks for its route when its client is closed: the close waits for it,
and what takes longer is not sent afterwards, though another client keeps the connections; in
virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import async_raises, returns
from tests.unit.client.producers import a_request, producer_of
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster

from turbopump import Message, Producer, PushConsumer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.errors import ReplyError, TurbopumpError
from turbopump.message.handles import RecallHandle
from turbopump.protocol.requests.send import (
    RecallMessage,
    RecallMessageReply,
    SendBatchMessage,
    SendMessageV2,
    SendReplyMessageV2,
)
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.response import Response

Begin = Callable[[Producer], Coroutine[Any, Any, object]]
PATIENCE_S = 30.0
RECALL = RecallHandle("orders", "broker-a", "1795318199001", "U1").encode()
SENT = (SendMessageV2, SendBatchMessage, SendReplyMessageV2, RecallMessage, CreateTopic)


async def start_send(producer: Producer) -> None:
    await (await producer.start_send(Message("orders", b"x"), timeout=PATIENCE_S))


CALLS: dict[str, Begin] = {
    "send": lambda producer: producer.send("orders", b"x", timeout=PATIENCE_S),
    "send_new": lambda producer: producer.send("fresh", b"x", timeout=PATIENCE_S),
    "send_batch": lambda producer: producer.send_batch(
        [Message("orders", b"x")], timeout=PATIENCE_S
    ),
    "start_send": start_send,
    "send_oneway": lambda producer: producer.send_oneway("orders", b"x"),
    "request": lambda producer: producer.request(Message("orders", b"x"), timeout=PATIENCE_S),
    "reply": lambda producer: producer.reply(a_request(), b"x", timeout=PATIENCE_S),
    "recall": lambda producer: producer.recall("orders", RECALL, timeout=PATIENCE_S),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "auto_batch": {"auto_batch": AutoBatch()},
    "back_pressure": {"back_pressure": BackPressure(messages=2)},
    "attempt_timeout": {"attempt_timeout": 2.0},
}


def prepare(cluster: ScriptedCluster) -> None:
    cluster.name_server.route("c_REPLY_TOPIC", cluster.broker, queues=1)
    cluster.name_server.route("TBW102", cluster.broker, perm=7)


def recalling(broker: ScriptedBroker) -> None:
    broker.further.append((RecallMessage, returns(Response(RecallMessageReply(msg_id="U1")))))


def sent(cluster: ScriptedCluster) -> list[str]:
    return [
        type(request).__name__
        for request, _ in cluster.broker.received
        if isinstance(request, SENT)
    ]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("call", CALLS)
@in_loop(simulated)
async def test_a_producer_sends_nothing_after_its_close(
    simulation: Simulation, /, call: str, settings: str
) -> None:
    async with (
        scripted_cluster(simulation, prepare=recalling) as cluster,
        producer_of(cluster) as other,
    ):
        prepare(cluster)
        await other.send("other", b"x")  # the connection to the broker is there
        cluster.broker.received.clear()
        producer = producer_of(cluster, send_timeout=1.0, **SETTINGS[settings])
        await producer.start()
        assert producer.client_id == other.client_id
        cluster.name_server.silent = True
        begun = asyncio.create_task(CALLS[call](producer))
        await asyncio.sleep(0.1)
        before = simulation.loop.time()
        await producer.close()
        assert simulation.loop.time() - before < 1.1
        cluster.name_server.silent = False
        with pytest.raises(TurbopumpError):
            await begun
        await asyncio.sleep(PATIENCE_S)
        assert sent(cluster) == []
        await other.send("orders", b"x")


@in_loop(simulated)
async def test_a_close_waits_for_a_recall_that_looks_for_its_route(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, prepare=recalling) as cluster:
        producer = producer_of(cluster, send_timeout=10.0)
        await producer.start()
        cluster.name_server.silent = True
        recall = asyncio.create_task(producer.recall("orders", RECALL))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(1)
        cluster.name_server.silent = False  # it will be asked again after three seconds
        await closing
        assert await recall == "U1"


@in_loop(simulated)
async def test_a_consumer_replies_nothing_after_its_close(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as other:
        prepare(cluster)
        await other.send("other", b"x")

        consumer = PushConsumer(
            cluster.name_server.address,
            group="g",
            topic="orders",
            handler=async_raises(AssertionError("there is nothing to consume")),
            **cluster.settings,
        )
        await consumer.start()
        assert consumer.client_id == other.client_id
        cluster.name_server.silent = True
        reply = asyncio.create_task(consumer.reply(a_request(), b"x", timeout=PATIENCE_S))
        await asyncio.sleep(0.1)
        await consumer.close()
        cluster.broker.received.clear()
        cluster.name_server.silent = False
        with pytest.raises(ReplyError, match="closed meanwhile"):
            await reply
        assert sent(cluster) == []
