"""What a close waits for, for how long, and what becomes of that which has not ended by then; in
virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import a_request, producer_of
from tests.unit.client.scripted_cluster import deaf_to_sends, scripted_cluster
from tests.waits import until

from turbopump.client.instance import FAREWELL_TIMEOUT_S
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.send_result import SendResult
from turbopump.client.trace import TRACE_TOPIC
from turbopump.errors import (
    ConnectError,
    NotStartedError,
    ReplyError,
    RouteNotFoundError,
    SendError,
)
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.send import (
    SendBatchMessage,
    SendMessageReply,
    SendMessageV2,
    SendReplyMessageV2,
)
from turbopump.remoting.response import Response

ROOM: dict[str, Any] = {"back_pressure": BackPressure(messages=4)}
BATCHES: dict[str, Any] = {"auto_batch": AutoBatch(hold=20.0)}


@pytest.mark.parametrize("settings", [ROOM, {**ROOM, **BATCHES}])
@in_loop(simulated)
async def test_a_close_waits_for_sends_that_wait_for_room(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster, **settings)
        await producer.start()
        await producer.send("orders", b"w")
        sends = [asyncio.create_task(producer.send("orders", b"x")) for _ in range(200)]
        await asyncio.sleep(0)
        await producer.close()
        assert [send.done() for send in sends] == [True] * 200
        assert all(isinstance(send.result(), SendResult) for send in sends)
        with pytest.raises(NotStartedError, match="is closed"):
            await producer.send("orders", b"x")


@pytest.mark.parametrize("settings", [{}, ROOM, BATCHES, {**ROOM, **BATCHES}])
@in_loop(simulated)
async def test_a_close_takes_send_timeout_at_most_and_nothing_is_sent_after_it(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster, send_timeout=1.0, **settings)
        await producer.start()
        await producer.send("orders", b"w")
        for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            cluster.broker.script[code].extend([None] * 20)
        sends = [asyncio.create_task(producer.send("orders", b"x", timeout=30)) for _ in range(20)]
        await asyncio.sleep(0.1)
        asked = len(cluster.broker.requests(SendMessageV2)) + len(
            cluster.broker.requests(SendBatchMessage)
        )
        before = simulation.loop.time()
        await producer.close()
        assert 0.99 < simulation.loop.time() - before < 1.2
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert simulation.loop.time() - before < 1.3
        assert all(
            isinstance(error, SendError) and "the producer was closed" in str(error).lower()
            for error in errors
        )
        assert (
            len(cluster.broker.requests(SendMessageV2))
            + len(cluster.broker.requests(SendBatchMessage))
            == asked
        )
        remoting = producer._started().instance.remoting
        assert remoting.is_connected(cluster.broker.address) is False


@pytest.mark.parametrize("pending", [0, 1])
@in_loop(simulated)
async def test_traces_get_what_is_left_of_send_timeout_and_then_a_second_goes_to_the_farewells(
    simulation: Simulation, /, pending: int
) -> None:
    """They once had five seconds of their own, and each of the two producers its own second."""
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, send_timeout=1.0, trace=True) as producer:
            await producer.send("orders", b"w")
            cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([None] * 20)
            cluster.broker.script[RequestCode.UNREGISTER_CLIENT].extend([None] * 20)
            sends = [
                asyncio.create_task(producer.send("orders", b"x", timeout=30))
                for _ in range(pending)
            ]
            await asyncio.sleep(0)
            before = simulation.loop.time()
        assert 1.0 <= simulation.loop.time() - before <= FAREWELL_TIMEOUT_S + 1.1
        asked = len(cluster.broker.received)
        await asyncio.sleep(30)
        assert len(cluster.broker.received) == asked
        assert [send.done() for send in sends] == [True] * pending
        await asyncio.gather(*sends, return_exceptions=True)


@in_loop(simulated)
async def test_a_send_that_still_looks_for_its_route_at_the_close_is_told_so(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster, send_timeout=1.0)
        await producer.start()
        cluster.name_server.silent = True
        send = asyncio.create_task(producer.send("orders", b"x", timeout=30))
        await asyncio.sleep(0.1)
        await producer.close()
        with pytest.raises(RouteNotFoundError, match="the client was closed"):
            await send


@in_loop(simulated)
async def test_a_closed_client_opens_no_connection_and_one_that_came_too_late_is_closed(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster)
        await producer.start()
        await producer.send(Message("orders", b"x"))
        remoting = producer._started().instance.remoting
        await producer.close()
        with pytest.raises(ConnectError, match="the client was closed"):
            await remoting.call(cluster.name_server.address, GetRouteInfo(topic="orders"))


@in_loop(simulated)
async def test_a_close_waits_for_replies_and_oneway_sends_that_look_for_their_route(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("c_REPLY_TOPIC", cluster.broker, queues=1)
        cluster.broker.script[RequestCode.SEND_REPLY_MESSAGE_V2].append(
            Response(SendMessageReply(msg_id="m", queue_id=0, queue_offset=0))
        )
        producer = producer_of(cluster, send_timeout=10.0)
        await producer.start()
        cluster.name_server.silent = True
        oneway = asyncio.create_task(producer.send_oneway("orders", b"x"))
        reply = asyncio.create_task(producer.reply(a_request(), b"that"))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(1)
        cluster.name_server.silent = False  # it will be asked again after three seconds
        await closing
        await oneway
        assert (await reply).queue.topic == "c_REPLY_TOPIC"
        await until(
            lambda: (
                [request.topic for request in cluster.broker.requests(SendMessageV2)] == ["orders"]
            )
        )


@pytest.mark.parametrize("reads_again", [True, False])
@in_loop(simulated)
async def test_a_close_waits_for_a_oneway_send_that_waits_for_a_broker_to_read(
    simulation: Simulation, /, reads_again: bool
) -> None:
    async with scripted_cluster(simulation) as cluster, deaf_to_sends(cluster) as made:
        producer = producer_of(cluster, compress_from=None, send_timeout=2.0)
        await producer.start()
        sends = [
            asyncio.create_task(producer.send_oneway("orders", b"x" * 1_000_000)) for _ in range(20)
        ]
        await made
        await asyncio.sleep(0.1)
        sends.append(asyncio.create_task(producer.send_oneway("orders", b"x" * 1_000_000)))
        await asyncio.sleep(0.1)
        before = simulation.loop.time()
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(1)
        assert not closing.done()
        if reads_again:
            made.result().resume_reading()
        await closing
        assert simulation.loop.time() - before < 2.1
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert simulation.loop.time() - before < 2.2
        if reads_again:
            assert ends == [None] * 21
        else:
            assert isinstance(ends[-1], SendError)
            made.result().abort()


@in_loop(simulated)
async def test_a_reply_that_nobody_takes_ends_with_the_close(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("c_REPLY_TOPIC", cluster.broker, queues=1)
        cluster.broker.script[RequestCode.SEND_REPLY_MESSAGE_V2].extend([None] * 20)
        producer = producer_of(cluster, send_timeout=1.0)
        await producer.start()
        reply = asyncio.create_task(producer.reply(a_request(), b"that", timeout=30))
        await until(cluster.broker.requests, SendReplyMessageV2)
        before = simulation.loop.time()
        await producer.close()
        assert 0.99 < simulation.loop.time() - before < 1.2
        with pytest.raises(ReplyError, match="The producer was closed meanwhile"):
            await reply
        assert simulation.loop.time() - before < 1.3
        assert len(cluster.broker.requests(SendReplyMessageV2)) == 1


@in_loop(simulated)
async def test_after_a_close_nothing_is_sent_on_connections_that_another_producer_keeps(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as other:
        producer = producer_of(cluster, send_timeout=1.0)
        await producer.start()
        assert producer.client_id == other.client_id
        cluster.name_server.silent = True
        send = asyncio.create_task(producer.send("orders", b"x", timeout=30))
        await asyncio.sleep(0.1)
        await producer.close()
        cluster.name_server.silent = False
        with pytest.raises(SendError, match="The producer was closed meanwhile"):
            await send
        await other.send("orders", b"y")
        assert [
            body for request, body in cluster.broker.received if isinstance(request, SendMessageV2)
        ] == [b"y"]
