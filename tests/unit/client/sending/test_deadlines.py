"""Deadlines that cannot be kept, in virtual time: what leaves no time, or finds no room, is told
so, and nothing was sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster

from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.errors import ConfigError, RouteNotFoundError, SendError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2


async def started(message: Message, producer: Any, timeout: float) -> SendResult:
    return await (await producer.start_send(message, timeout=timeout))


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"back_pressure": BackPressure()},
        {"auto_batch": AutoBatch()},
        {"back_pressure": BackPressure(), "auto_batch": AutoBatch()},
    ],
)
@in_loop(simulated)
async def test_a_deadline_that_has_passed_is_refused_before_anything_is_sent(
    simulation: Simulation, /, settings: dict[str, Any], timeout: float
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        message = Message("orders", b"x")

        for sending in (
            producer.send(message, timeout=timeout),
            producer.send(message, sharding_key="k", timeout=timeout),
            producer.send_batch([message], timeout=timeout),
            producer.request(message, timeout=timeout),
            started(message, producer, timeout),
        ):
            with pytest.raises(SendError, match=r"leaves no time for it\. Nothing was stored"):
                await sending
        assert (
            cluster.broker.requests(SendMessageV2) + cluster.broker.requests(SendBatchMessage) == []
        )
        assert (await producer.send(message)).status is SendStatus.OK


@in_loop(simulated)
async def test_a_number_of_seconds_beyond_all_numbers_is_refused(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(ConfigError, match="must be a number of seconds"):
            await producer.send("orders", b"x", timeout=10**400)
        with pytest.raises(ConfigError, match="must be a number of seconds"):
            producer_of(cluster, send_timeout=10**400)


@pytest.mark.parametrize("settings", [{}, {"auto_batch": AutoBatch()}])
@in_loop(simulated)
async def test_the_error_of_who_found_no_room_names_the_message_and_how_long_it_waited(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    settings["back_pressure"] = BackPressure(messages=1)
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
        stuck = asyncio.create_task(producer.send("orders", b"x"))
        await asyncio.sleep(0)
        with pytest.raises(
            SendError,
            match=r"message mine to topic 'orders' was not sent: "
            r"within 0\.4 s",
        ) as caught:
            await producer.send("orders", b"x", properties={"UNIQ_KEY": "mine"}, timeout=0.4)
        assert (caught.value.topic, caught.value.brokers) == ("orders", ())
        assert 400 <= caught.value.spent_ms < 500
        stuck.cancel()


@in_loop(simulated)
async def test_the_error_of_an_overdue_send_in_a_batch_names_brokers_asked_and_time_spent(
    simulation: Simulation, /
) -> None:
    settings: dict[str, Any] = {"auto_batch": AutoBatch(hold=1.0), "attempt_timeout": 0.2}
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_BATCH_MESSAGE].append(None)
        patient = asyncio.create_task(producer.send("orders", b"x", timeout=10))
        with pytest.raises(SendError, match=r"within its timeout, .* ms") as caught:
            await producer.send("orders", b"y", timeout=0.3)
        assert sorted(caught.value.brokers) == ["broker-a", "broker-b"]
        assert 300 <= caught.value.spent_ms < 400
        assert caught.value.topic == "orders"
        with pytest.raises(SendError, match="held for a batch") as caught:
            await producer.send("orders", b"z", timeout=0.1)
        assert caught.value.brokers == ()
        assert 100 <= caught.value.spent_ms < 200
        await patient


@in_loop(simulated)
async def test_too_little_time_for_a_route_is_reported_as_such_not_as_name_servers_down(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        cluster.name_server.silent = True
        with pytest.raises(
            RouteNotFoundError,
            match=r"in 0\.001 s .*timeout is short .* more "
            r"seconds",
        ) as caught:
            await producer.send("orders", b"x", timeout=1e-6)
        assert "Check the name server" not in str(caught.value)


@in_loop(simulated)
async def test_a_send_without_room_is_told_what_was_in_flight_though_all_gave_up_at_once(
    simulation: Simulation, /
) -> None:
    bound = BackPressure(messages=2)
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, back_pressure=bound, retries=0) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([None] * 10)
        sends = (producer.send("orders", b"x" * 50, timeout=0.5) for _ in range(6))
        errors = await asyncio.gather(*sends, return_exceptions=True)
        without_room = [str(error) for error in errors if "no room" in str(error)]
        assert without_room
        assert all("among the 2 messages (100 bytes) in flight" in text for text in without_room)
