"""How often a client polls, beats and commits, and the form of its headers, as its settings say."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop, simulated
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster

from turbopump.client.push_consumer import PushConsumer
from turbopump.message.message import Message
from turbopump.protocol.frame import JSON, ROCKETMQ
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.testing.simulation import Simulation


@in_loop(simulated)
async def test_heartbeats_and_commits_come_as_often_as_asked_for(simulation: Simulation, /) -> None:
    async def handle(message: Message) -> None: ...

    async with scripted_cluster(simulation) as cluster:
        intervals = {"heartbeat_interval": 10.0, "commit_interval": 60.0, "route_interval": 5.0}
        async with PushConsumer(
            cluster.name_server.address,
            group="g",
            topic="orders",
            handler=handle,
            **intervals,
            **cluster.settings,
        ):
            await asyncio.sleep(5)
            beats = len(cluster.broker.heartbeats)
            async with producer_of(cluster) as producer:
                await producer.send("orders", b"x")
            await asyncio.sleep(50)
            assert cluster.broker.requests(UpdateConsumerOffset) == []
            assert len(cluster.broker.heartbeats) - beats >= 5
            await asyncio.sleep(10)
            assert cluster.broker.requests(UpdateConsumerOffset) != []


@pytest.mark.parametrize(("setting", "form"), [("JSON", JSON), ("ROCKETMQ", ROCKETMQ)])
@in_loop(simulated)
async def test_all_requests_have_the_form_of_header_that_is_asked_for(
    simulation: Simulation, /, setting: str, form: int
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, header_form=setting) as producer,
    ):
        await producer.send("orders", Message("orders", "ä€", keys="k").body)
        await producer.send_oneway("orders", b"y")
        await producer.send("orders", b"z")
        assert set(cluster.broker.forms) == {form}
        assert len(cluster.broker.forms) >= 3
