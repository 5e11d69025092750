"""What a close waits for, for how long, and what becomes of that which has not ended by then; in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.unit.client.test_producer import producer_of

from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.send_result import SendResult
from turbopump.errors import ConnectError, NotStartedError, RouteNotFoundError, SendError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2
from turbopump.testing.simulation import Simulation, simulate

ROOM: dict[str, Any] = {"back_pressure": BackPressure(messages=4)}
BATCHES: dict[str, Any] = {"auto_batch": AutoBatch(hold=20.0)}


@pytest.mark.parametrize("settings", [ROOM, {**ROOM, **BATCHES}])
def test_a_close_waits_for_sends_that_wait_for_room(settings: dict[str, Any]) -> None:
    async def scenario(simulation: Simulation) -> None:
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

    simulate(1, scenario)


@pytest.mark.parametrize("settings", [{}, ROOM, BATCHES, {**ROOM, **BATCHES}])
def test_a_close_takes_send_timeout_at_most_and_nothing_is_sent_after_it(settings: dict[str, Any]) -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            producer = producer_of(cluster, send_timeout=1.0, **settings)
            await producer.start()
            await producer.send("orders", b"w")
            for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
                cluster.broker.script[code].extend([None] * 20)
            sends = [asyncio.create_task(producer.send("orders", b"x", timeout=30)) for _ in range(20)]
            await asyncio.sleep(0.1)
            asked = len(cluster.broker.requests(SendMessageV2)) + len(cluster.broker.requests(SendBatchMessage))
            before = simulation.loop.time()
            await producer.close()
            assert 0.99 < simulation.loop.time() - before < 1.2
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert simulation.loop.time() - before < 1.3
            assert all(isinstance(error, SendError) and "the producer was closed" in str(error).lower() for error in errors)
            assert len(cluster.broker.requests(SendMessageV2)) + len(cluster.broker.requests(SendBatchMessage)) == asked
            remoting = producer._started().instance.remoting
            assert remoting.connected(cluster.broker.address) is False

    simulate(1, scenario)


def test_a_send_that_still_looks_for_its_route_at_the_close_is_told_so() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            producer = producer_of(cluster, send_timeout=1.0)
            await producer.start()
            cluster.name_server.silent = True
            send = asyncio.create_task(producer.send("orders", b"x", timeout=30))
            await asyncio.sleep(0.1)
            await producer.close()
            with pytest.raises(RouteNotFoundError, match="the client was closed"):
                await send

    simulate(1, scenario)


def test_a_closed_client_opens_no_connection_and_one_that_came_too_late_is_closed() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            producer = producer_of(cluster)
            await producer.start()
            await producer.send(Message("orders", b"x"))
            remoting = producer._started().instance.remoting
            await producer.close()
            with pytest.raises(ConnectError, match="the client was closed"):
                await remoting.call(cluster.name_server.address, GetRouteInfo(topic="orders"))

    simulate(1, scenario)
