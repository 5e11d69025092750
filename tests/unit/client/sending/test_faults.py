"""Which brokers are left alone, and for how long: the tables, and the producer in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from tests.fuzzing import crossed
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster
from tests.waits import until

from turbopump.client.hooks import SendContext, SendHook
from turbopump.client.producer import Producer
from turbopump.client.sending.queue_chooser import FaultStrategy, LatencyFaults
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import ConfigError, SendError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendMessageV2


@pytest.mark.parametrize(
    ("latency_ms", "duration_ms"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (550, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10000),
        (99999, 30000),
    ],
)
def test_the_table_says_how_long_a_slow_broker_is_left_alone(
    latency_ms: int, duration_ms: int
) -> None:
    assert LatencyFaults().not_available_for(latency_ms) == duration_ms


def test_tables_of_ones_own() -> None:
    faults = FaultStrategy(LatencyFaults((10, 20), (1000, 7000)))
    faults.succeeded("a", 15, now=100)
    faults.succeeded("b", 5, now=100)
    assert (
        faults.available("a", 100.9),
        faults.available("b", 100.9),
        faults.available("a", 101),
    ) == (False, True, True)
    for latency, duration in [((20, 10), (1, 2)), ((1,), (1, 2)), ((), ())]:
        with pytest.raises(ConfigError, match="must rise"):
            LatencyFaults(latency, duration)


def test_a_shorter_isolation_does_not_cut_a_longer_one_but_an_answer_does() -> None:
    faults = FaultStrategy(LatencyFaults())
    faults.failed("a", now=0, connection=False)
    faults.failed("a", now=1, connection=True)
    assert (faults.available("a", 10.9), faults.empty) == (False, False)
    faults.succeeded("a", 600, now=2)  # slow, but it answers
    assert (faults.available("a", 3.9), faults.available("a", 4.0), faults.empty) == (
        False,
        True,
        True,
    )


def test_without_the_latency_setting_only_connections_count() -> None:
    faults = FaultStrategy()
    faults.failed("a", now=0, connection=False)
    faults.succeeded("a", 20_000, now=0)
    assert faults.empty
    faults.failed("a", now=0, connection=True)
    assert (faults.available("a", 9.9), faults.available("a", 10.0)) == (False, True)


@in_loop(simulated)
async def test_a_broker_that_refuses_connections_is_left_alone_for_ten_seconds(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(8)))
        await cluster.brokers[0].stop()
        first = [await producer.send("orders", b"y") for _ in range(16)]
        assert {result.queue.broker_name for result in first} == {"broker-b"}
        asked = len(cluster.brokers[0].requests(SendMessageV2))
        await cluster.brokers[0].start()
        again = [await producer.send("orders", b"y") for _ in range(8)]
        assert {result.queue.broker_name for result in again} == {"broker-b"}
        assert len(cluster.brokers[0].requests(SendMessageV2)) == asked
        await asyncio.sleep(10)
        late = [await producer.send("orders", b"y") for _ in range(8)]
        assert {result.queue.broker_name for result in late} == {"broker-a", "broker-b"}


@in_loop(simulated)
async def test_when_every_broker_is_left_alone_all_are_used(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, retries=0) as producer,
    ):
        await producer.publish_queues("orders")
        for broker in cluster.brokers:
            await broker.stop()
        for _ in range(8):
            with pytest.raises(SendError):
                await producer.send("orders", b"x")
        for broker in cluster.brokers:
            await broker.start()
        assert (await producer.send("orders", b"x")).status is SendStatus.OK


@in_loop(simulated)
async def test_an_attempt_that_failed_and_was_repeated_is_logged(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.client"):
        async with (
            scripted_cluster(simulation, brokers=2) as cluster,
            producer_of(cluster) as producer,
        ):
            await busy_once(producer, cluster)
    (line,) = [line for line in caplog.messages if "tried again" in line]
    assert "topic=orders broker=broker-a" in line


async def busy_once(producer: Producer, cluster: ScriptedCluster) -> None:
    """Broker-a refuses one message, which another gets."""
    script = cluster.brokers[0].script[RequestCode.SEND_MESSAGE_V2]
    script.append(refusal(ResponseCode.SYSTEM_BUSY))
    while script:
        await producer.send("orders", b"x")


@in_loop(simulated)
async def test_a_refusal_counts_only_if_latency_does(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster:
        async with producer_of(cluster, latency_faults=LatencyFaults()) as producer:
            await producer.send("orders", b"x")
            await busy_once(producer, cluster)
            assert {(await producer.send("orders", b"y")).queue.broker_name for _ in range(8)} == {
                "broker-b"
            }
        async with producer_of(cluster) as producer:
            await producer.send("orders", b"x")
            await busy_once(producer, cluster)
            assert (
                len({(await producer.send("orders", b"y")).queue.broker_name for _ in range(8)})
                == 2
            )


@pytest.mark.parametrize("settings", [{}, {"latency_faults": LatencyFaults()}])
@in_loop(simulated)
async def test_no_attempt_goes_to_the_broker_that_has_just_failed_while_there_is_another(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, retries=4, **settings) as producer,
    ):
        await producer.publish_queues("orders")
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].extend(
                [refusal(ResponseCode.SYSTEM_BUSY)] * 100
            )
        for _ in range(8):
            with pytest.raises(SendError) as failed:
                await producer.send("orders", b"x")
            way = "".join(name[-1] for name in failed.value.brokers)
            assert way in ("ababa", "babab")


@in_loop(simulated)
async def test_with_a_detector_a_broker_stays_out_until_it_answers_again(
    simulation: Simulation, /
) -> None:
    faults = LatencyFaults(detector=True)
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, latency_faults=faults) as producer,
    ):
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(8)))
        await cluster.brokers[0].stop()
        for _ in range(8):
            await producer.send("orders", b"y")
        await asyncio.sleep(15)
        assert {(await producer.send("orders", b"y")).queue.broker_name for _ in range(8)} == {
            "broker-b"
        }
        await cluster.brokers[0].start()
        before = simulation.loop.time()
        await until(lambda: producer._faults.unreachable == [])
        assert simulation.loop.time() - before < 2.5
        assert len({(await producer.send("orders", b"y")).queue.broker_name for _ in range(8)}) == 2


@in_loop(simulated)
async def test_the_queue_id_is_that_of_the_broker_tried_next(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2, queues=2) as cluster,
        producer_of(cluster) as producer,
    ):
        # broker-b has queue 0 alone
        cluster.name_server.routes["orders"].queue_datas[1].write_queue_nums = 1
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(ResponseCode.SYSTEM_BUSY))
        for _ in range(6):
            result = await producer.send("orders", b"x")
            request = cluster.brokers[result.queue.broker_name == "broker-b"].requests(
                SendMessageV2
            )[-1]
            assert (request.queue_id, request.broker_name) == (
                result.queue.queue_id,
                result.queue.broker_name,
            )
        assert {request.queue_id for request in cluster.brokers[1].requests(SendMessageV2)} == {0}


@in_loop(simulated)
async def test_less_safe_than_promised_is_retried_elsewhere_on_request_and_is_no_error(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, retry_unless_ok=True) as producer,
    ):
        await producer.send("orders", b"x")
        slave_gone = refusal(ResponseCode.SLAVE_NOT_AVAILABLE)
        slave_gone.ext = {"msgId": "AB", "queueId": "0", "queueOffset": "7"}
        cluster.brokers[0].script[RequestCode.SEND_MESSAGE_V2].extend([slave_gone] * 20)
        results = [await producer.send("orders", b"x") for _ in range(8)]
        assert {(result.status, result.queue.broker_name) for result in results} == {
            (SendStatus.OK, "broker-b")
        }
        cluster.brokers[1].script[RequestCode.SEND_MESSAGE_V2].extend([slave_gone] * 20)
        assert (await producer.send("orders", b"x")).status is SendStatus.SLAVE_NOT_AVAILABLE


@in_loop(simulated)
async def test_a_queue_of_an_ordered_topic_whose_broker_is_not_there_costs_an_attempt(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        cluster.name_server.routes["orders"].order_topic_conf = "broker-a:2;gone:2"
        results = [await producer.send("orders", b"x") for _ in range(8)]
        assert {result.queue.broker_name for result in results} == {"broker-a"}
        with pytest.raises(SendError, match="broker gone has no master at the moment"):
            await producer.send("orders", b"x", queue=MessageQueue("orders", "gone", 1))
        with pytest.raises(SendError, match="broker gone has no master at the moment"):
            await producer.send("orders", b"x", sharding_key="2")  # 50 % 4: the third of the four


@in_loop(simulated)
async def test_codes_of_ones_own_are_retried(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, retry_codes={13}) as producer,
    ):
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(13))
        assert (await producer.send("orders", b"x")).status is SendStatus.OK
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(2))
        with pytest.raises(SendError, match="1 attempt") as caught:
            await producer.send("orders", b"x")
        assert (caught.value.code, caught.value.topic, len(caught.value.brokers)) == (
            2,
            "orders",
            1,
        )


@in_loop(simulated)
async def test_one_attempt_may_take_only_part_of_the_time(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, attempt_timeout=0.5) as producer,
    ):
        await producer.send("orders", b"x")
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
        before = simulation.loop.time()
        assert (await producer.send("orders", b"x")).status is SendStatus.OK
        assert 0.9 < simulation.loop.time() - before < 1.3


class Failures(SendHook):
    """How often each message failed."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def after(self, context: SendContext) -> None:
        if context.error is not None:
            self.of[context.msg_id] += 1


@pytest.mark.parametrize(("seed", "watched"), crossed(range(2), [True, False]))
@in_loop(simulated)
async def test_killing_one_of_three_brokers_under_load_costs_one_attempt_per_message_in_flight(
    simulation: Simulation, /, watched: bool, seed: int
) -> None:
    failures = Failures()
    hooks = [failures] if watched else []
    async with (
        scripted_cluster(simulation, brokers=3) as cluster,
        producer_of(cluster, hooks=hooks) as producer,
    ):
        going = True

        async def send_on() -> int:
            sent = 0
            while going:
                assert (await producer.send("orders", b"x")).status is SendStatus.OK
                sent += 1
            return sent

        senders = [asyncio.create_task(send_on()) for _ in range(16)]
        await asyncio.sleep(simulation.random.uniform(0.01, 0.05))
        await cluster.brokers[simulation.random.randrange(3)].stop()
        await asyncio.sleep(0.04)
        going = False
        counts = await asyncio.gather(*senders)
        assert min(counts) > 3
        assert set(failures.of.values()) == ({1} if watched else set())
        assert sum(failures.of.values()) <= 16
