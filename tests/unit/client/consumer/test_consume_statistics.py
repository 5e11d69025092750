"""Times and rates of a consumer: windows of a minute out of slices of ten seconds, and what an
operator is told of them."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.push_consumers import consumer_of, fill
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until_count

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.statistics import TopicStatistics
from turbopump.client.push_consumer import PushConsumer
from turbopump.protocol.requests.consumers import ConsumeStatus


def statuses(consumer: PushConsumer) -> dict[str, ConsumeStatus]:
    running = consumer.lifecycle.running
    assert running is not None
    assert running.member.operated is not None
    return running.member.operated.running_info().status_table


def test_rates_are_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    statistics = TopicStatistics(now=1000.0)
    for second in range(120):
        statistics.pulled(32, 0.004, 1000.0 + second)
        for _ in range(9):
            statistics.handled(0.020, 1000.0 + second, ok=True)
        statistics.handled(0.120, 1000.0 + second, ok=False)
    status = statistics.status(1120.0 - 0.001)
    assert abs(status.pull_rt - 4) < 0.001
    assert abs(status.pull_tps - 32) < 0.001
    assert abs(status.consume_rt - 30) < 0.001
    assert abs(status.consume_ok_tps - 9) < 0.001
    assert abs(status.consume_failed_tps - 1) < 0.001
    assert status.consume_failed_msgs == 120


def test_a_young_consumer_s_rates_are_of_its_life_and_an_idle_one_s_are_zero() -> None:
    statistics = TopicStatistics(now=1000.0)
    for _ in range(50):
        statistics.handled(0.010, 1004.0, ok=True)
    assert statistics.status(1000.5).consume_ok_tps == 50, "never over less than a second"
    assert statistics.status(1005.0).consume_ok_tps == 10
    later = statistics.status(1100.0)
    assert (later.consume_ok_tps, later.pull_tps, later.pull_rt) == (0, 0, 0)
    assert abs(later.consume_rt - 10) < 0.001, (
        "of the last hour, as Apache tells it when a minute had none"
    )
    assert statistics.status(1000.0 + 3700).consume_rt == 0


async def handle(seen: list[bytes], message: Delivery) -> Retry | None:
    await asyncio.sleep(0.5)
    seen.append(message.body)
    return Retry() if message.body in (b"m3", b"m4") else None


@in_loop(simulated)
async def test_an_operator_is_told_what_was_pulled_and_how_handling_went(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.takes_back = True
        fill(cluster, 40)
        seen: list[bytes] = []

        async with consumer_of(cluster, handler=partial(handle, seen), concurrency=40) as consumer:
            await until_count(seen, 40)
            await asyncio.sleep(9)
            table = statuses(consumer)
            assert consumer.statistics()["orders"].consume_failed_msgs == 2
        assert set(table) == {"orders", "%RETRY%readers"}
        status = table["orders"]
        assert 3.5 < status.consume_ok_tps < 4.1, "38 in nearly 10 s"
        assert 0.19 < status.consume_failed_tps < 0.22
        assert status.consume_failed_msgs == 2
        assert 499 < status.consume_rt < 501
        assert 3.8 < status.pull_tps < 4.3
        assert 0 < status.pull_rt < 100
        assert table["%RETRY%readers"] == ConsumeStatus()
