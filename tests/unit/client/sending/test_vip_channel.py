"""Sends by the port at which brokers take everything but pulls (``vip_channel_enabled``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.push_consumers import consumer_of
from tests.unit.client.scripted_cluster import (
    ScriptedBroker,
    ScriptedCluster,
    scripted_cluster,
    until,
)

from turbopump.errors import SendError
from turbopump.message.message import Message
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2


@asynccontextmanager
async def with_vip_port(cluster: ScriptedCluster) -> AsyncIterator[ScriptedBroker]:
    """What the broker hears at its VIP port."""
    vip = ScriptedBroker(cluster.broker.name)
    vip.port = cluster.broker.port - 2
    await vip.start()
    try:
        yield vip
    finally:
        await vip.stop()


@in_loop(simulated)
async def test_every_kind_of_send_goes_to_the_vip_port(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        with_vip_port(cluster) as vip,
        producer_of(cluster, vip_channel_enabled=True) as producer,
    ):
        await producer.send("orders", b"first")
        await producer.send("orders", b"second")
        await producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])
        await producer.send_oneway("orders", b"oneway")
        await until(lambda: len(vip.requests(SendMessageV2)) == 3)
        assert len(vip.requests(SendBatchMessage)) == 1
        assert cluster.broker.requests(SendMessageV2) == []
        # a broker asks and notifies clients where they have introduced themselves
        assert cluster.broker.heartbeats != []
        assert vip.heartbeats == []


@in_loop(simulated)
async def test_pulls_go_to_the_ordinary_port(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        with_vip_port(cluster) as vip,
        consumer_of(cluster, vip_channel_enabled=True),
    ):
        await until(lambda: cluster.broker.requests(PullMessage) != [])
        assert vip.received == []


@in_loop(simulated)
async def test_where_nobody_listens_there_the_ordinary_port_is_used_and_the_log_says_so_once(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, vip_channel_enabled=True) as producer,
    ):
        for _ in range(3):
            await producer.send("orders", b"x")
        assert len(cluster.broker.requests(SendMessageV2)) == 3
    said = [record.getMessage() for record in caplog.records if "VIP" in record.getMessage()]
    assert len(said) == 1
    assert cluster.broker.address in said[0]


@in_loop(simulated)
async def test_the_vip_port_is_tried_again_when_the_broker_has_come_back(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, vip_channel_enabled=True, retries=0) as producer,
    ):
        await producer.send("orders", b"by the ordinary port")
        await cluster.broker.stop()
        with pytest.raises(SendError, match=cluster.broker.address):
            await producer.send("orders", b"nobody is there")
        await cluster.broker.start()
        async with with_vip_port(cluster) as vip:
            await producer.send("orders", b"by the VIP port")
            assert len(vip.requests(SendMessageV2)) == 1
