"""What a producer counts of its sends. In virtual time."""

from __future__ import annotations

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster

from turbopump.client.sending.send_result import SendStatistics
from turbopump.errors import RouteNotFoundError, SendError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode, ResponseCode


@in_loop(simulated)
async def test_attempts_are_counted_by_broker_and_a_batch_is_one(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        for _ in range(3):
            await producer.send("orders", b"x")
        await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
        await producer.send_oneway("orders", b"not answered, not counted")
        statistics = producer.statistics
        broker = statistics.brokers["broker-a"]
        assert (broker.stored, broker.failed, statistics.given_up) == (4, 0, 0)
        assert 0 < broker.mean_ms <= broker.longest_s * 1000
        assert list(statistics.brokers) == ["broker-a"]


@in_loop(simulated)
async def test_a_retry_is_an_attempt_and_only_what_ends_in_an_error_is_given_up(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x")
        script = cluster.broker.script[RequestCode.SEND_MESSAGE_V2]
        script.append(refusal(ResponseCode.SYSTEM_BUSY))
        await producer.send("orders", b"again")
        assert (
            producer.statistics.stored,
            producer.statistics.failed,
            producer.statistics.given_up,
        ) == (2, 1, 0)
        script.append(refusal(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(SendError):
            await producer.send("orders", b"odd")
        assert (
            producer.statistics.stored,
            producer.statistics.failed,
            producer.statistics.given_up,
        ) == (2, 2, 1)
        with pytest.raises(RouteNotFoundError):
            await producer.send("nowhere", b"x", timeout=0.5)
        assert producer.statistics.given_up == 2


def test_statistics_add_up_and_show_themselves() -> None:
    statistics = SendStatistics()
    for seconds in (0.001, 0.003):
        statistics.count_stored("a", seconds)
    statistics.count_failed("b")
    assert (statistics.stored, statistics.failed, statistics.brokers["b"].mean_ms) == (2, 1, 0.0)
    assert (statistics.brokers["a"].mean_ms, statistics.brokers["a"].longest_s) == (
        pytest.approx(2.0),
        0.003,
    )
    assert "stored=2, failed=1, given_up=0" in repr(statistics)
    assert "mean=2.000 ms longest=3.0 ms" in repr(statistics)


@in_loop(simulated)
async def test_a_batch_tells_the_id_of_each_message(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        result = await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
        assert result.msg_ids == tuple(result.msg_id.split(","))
        ((request, body),) = [
            pair
            for pair in cluster.broker.received
            if pair[0].code == RequestCode.SEND_BATCH_MESSAGE
        ]
        assert "UNIQ_KEY" not in request.properties, (
            "brokers before 5.3.4 would give all messages that one id"
        )
        assert [f"UNIQ_KEY\x01{each}\x02".encode() in body for each in result.msg_ids] == [
            True,
            True,
        ]
        assert (await producer.send("orders", b"x")).msg_ids[1:] == ()
