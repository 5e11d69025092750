"""A consumer that could not handle a message gives it back: to its broker, else as a plain message,
else it keeps it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.client.push_consumers import committed, consumer_of, fill
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_count

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.push_consumer import Retry
from turbopump.errors import ConfigError
from turbopump.message.properties import decode_properties
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2

RETRY = "%RETRY%readers"


def backs(cluster: ScriptedCluster, broker: int = 0) -> list[ConsumerSendMsgBack]:
    return cluster.brokers[broker].requests(ConsumerSendMsgBack)


async def note_and_retry_and_fail(how: str, seen: list[bytes], message: Delivery) -> object:
    seen.append(message.body)
    if message.body != b"m1":
        return None
    if how == "exception":
        raise ValueError("not now")
    if how == "retry(level=-1)":
        message.retry(level=-1)
        return None
    return Retry if how == "Retry" else Retry(level=5)


@pytest.mark.parametrize(
    ("how", "level"),
    [("exception", 0), ("Retry", 0), ("Retry(level=5)", 5), ("retry(level=-1)", -1)],
)
@in_loop(simulated)
async def test_a_message_that_failed_is_sent_back_and_the_offset_goes_on(
    simulation: Simulation, /, how: str, level: int
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.takes_back = True
        seen: list[bytes] = []

        fill(cluster, 3)
        async with consumer_of(
            cluster, handler=partial(note_and_retry_and_fail, how, seen), max_reconsume_times=7
        ):
            await until(lambda: len(seen) == 3 and len(backs(cluster)) == 1)
        (back,) = backs(cluster)
        assert (back.group, back.delay_level, back.max_reconsume_times) == ("readers", level, 7)
        assert (back.offset, back.origin_topic) == (
            len(cluster.broker.entries["orders", 0][0]),
            "orders",
        )
        assert sorted(seen) == [b"m0", b"m1", b"m2"], "it does not come again by itself"
        assert committed(cluster) == 3, "and is given back before the consumer has gone"


async def note_and_fail(handled: list[tuple[str, bytes]], message: Delivery) -> None:
    handled.append((message.topic, message.body))
    if len(handled) == 1:
        raise ValueError("not now")


@in_loop(simulated)
async def test_what_its_broker_refuses_goes_to_the_retry_topic_as_a_plain_message(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route(RETRY, cluster.broker, queues=1)
        cluster.broker.store(
            "orders", 0, b"body", "UNIQ_KEY\x01U1\x02TAGS\x01a\x02TRAN_MSG\x01true\x02"
        )
        handled: list[tuple[str, bytes]] = []

        async with consumer_of(
            cluster, handler=partial(note_and_fail, handled), max_reconsume_times=4
        ):
            await until_count(handled, 2)
        assert handled == [("orders", b"body")] * 2, "by way of the retry topic"
        (plain,) = cluster.broker.requests(SendMessageV2)
        assert (plain.topic, plain.reconsume_times, plain.max_reconsume_times) == (RETRY, 1, 4)
        properties = decode_properties(plain.properties)
        assert properties.pop("ORIGIN_MESSAGE_ID")
        assert properties == {
            "UNIQ_KEY": "U1",
            "TAGS": "a",
            "RETRY_TOPIC": "orders",
            "DELAY": "3",
        } | {"TURBOPUMP_FAILURE": "1 ValueError: not now"}
        assert committed(cluster) == 1


async def handle(seen: list[Any], message: Delivery) -> None:
    seen.append(message.body)
    if len(seen) == 1:
        raise ValueError("not now")


@in_loop(simulated)
async def test_a_broker_that_does_not_answer_is_passed_over_for_another(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2, queues=1) as cluster:
        cluster.name_server.route(RETRY, *cluster.brokers, queues=1)
        first, second = cluster.brokers
        for code in (36, 310):
            first.script[code].append(None)
        first.store("orders", 0, b"body")
        seen: list[Any] = []

        async with consumer_of(cluster, handler=partial(handle, seen)):
            await until_count(seen, 2)
        assert (len(first.requests(SendMessageV2)), len(second.requests(SendMessageV2))) == (1, 1)
        assert len(backs(cluster)) == 1
        assert committed(cluster) == 1


@in_loop(simulated)
async def test_attempts_are_counted_over_the_retry_topic(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.store("orders", 0, b"body")
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.attempt == message.reconsume_times + 1 == 1
                message.done()
                break


def test_a_maximum_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_reconsume_times=-1"):
        simulate(1, lambda simulation: _consumer_with(simulation, -1))


async def _consumer_with(simulation: Simulation, maximum: int) -> None:
    async with scripted_cluster(simulation) as cluster:
        consumer_of(cluster, max_reconsume_times=maximum)
