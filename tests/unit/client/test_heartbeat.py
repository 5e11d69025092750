"""What a broker says of our heartbeat beside code 0."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.push_consumers import consumer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster
from tests.waits import until

from turbopump.protocol.codes import RequestCode, ResponseCode


@in_loop(simulated)
async def test_what_a_broker_says_against_a_heartbeat_is_logged_once(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        script = cluster.broker.script[RequestCode.HEART_BEAT]
        script += [refusal(ResponseCode.SUCCESS, "you differ") for _ in range(3)]
        async with consumer_of(cluster):
            await until(lambda: len(script) < 3)
            count = len(cluster.broker.heartbeats)
            await asyncio.sleep(100)
            assert not script
            assert len(cluster.broker.heartbeats) > count
    assert [
        record.levelname for record in caplog.records if "you differ" in record.getMessage()
    ] == ["WARNING"]
