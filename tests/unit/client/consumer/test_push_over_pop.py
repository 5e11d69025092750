"""The push consumer where a broker has it pop, against a scripted cluster, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.consumer.popping_consumers import POP, PULL, Handled, consumer_of, popping
from tests.unit.client.scripted_cluster import refusal
from tests.waits import until, until_count, until_equal, until_some

from turbopump import MessageQueue, PushConsumer, Retry
from turbopump.client.allocation import allocate_by_configuration
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.delivery_policy import LADDER_S
from turbopump.errors import ConfigError
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.assignment import QueryAssignment
from turbopump.protocol.requests.pop import AckMessage, BatchAckMessage, PopMessage
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendMessageV2


@in_loop(simulated)
async def test_messages_are_popped_handled_and_acknowledged(simulation: Simulation, /) -> None:
    handled = Handled()
    async with popping(simulation) as (cluster, pops):
        for i in range(100):
            pops.store("orders", i % 4, b"%d" % i)
        async with consumer_of(cluster, handler=handled) as consumer:
            assert consumer.queues == [MessageQueue("orders", "broker-a", -1)]
            await until_count(pops.acked, 100)
            pops.store("orders", 0, b"later")
            await until_count(pops.acked, 101)
        assert sorted(handled.bodies) == sorted([*(b"%d" % i for i in range(100)), b"later"])
        assert pops.invisible == []
        pop = cluster.broker.requests(PopMessage)[0]
        assert (pop.queue_id, pop.max_msg_nums, pop.invisible_time, pop.poll_time) == (
            -1,
            32,
            60_000,
            5_000,
        )
        assert cluster.broker.requests(PullMessage) == []
        acks = len(cluster.broker.requests(AckMessage)) + len(
            cluster.broker.requests(BatchAckMessage)
        )
        assert acks <= 20, "what is done while a request is on its way goes with the next"


@in_loop(simulated)
async def test_async_for_acknowledges_a_message_when_the_next_is_asked_for(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, pops), consumer_of(cluster) as consumer:
        pops.store("orders", 0, b"first")
        pops.store("orders", 0, b"second")
        stream = aiter(consumer)
        first = await anext(stream)
        await asyncio.sleep(5)
        assert (first.body, first.topic, pops.acked) == (b"first", "orders", [])
        assert (await anext(stream)).body == b"second"
        await until_equal(pops.acked, [("orders", 0, 0)])


@in_loop(simulated)
async def test_a_message_that_fails_comes_again_by_the_ladder(simulation: Simulation, /) -> None:
    handled = Handled(lambda message: Retry() if message.attempt <= 5 else None)
    async with popping(simulation) as (cluster, pops), consumer_of(cluster, handler=handled):
        pops.store("orders", 0, b"book")
        await until_some(pops.acked)
        assert handled.attempts == [1, 2, 3, 4, 5, 6]
        gaps = [
            later - earlier
            for earlier, later in zip(handled.times, handled.times[1:], strict=False)
        ]
        assert gaps == pytest.approx(LADDER_S[:5], abs=0.5)
        assert [time for _, time in pops.changed] == [seconds * 1000 for seconds in LADDER_S[:5]]
        assert pops.acked == [("%RETRY%readers_orders", 0, 4)]


@in_loop(simulated)
async def test_a_handler_chooses_when_a_message_comes_again(simulation: Simulation, /) -> None:
    fates = iter([Retry(delay=2), Retry(level=1), Retry(level=4), None])
    handled = Handled(lambda _: next(fates))
    async with popping(simulation) as (cluster, pops), consumer_of(cluster, handler=handled):
        pops.store("orders", 0, b"book")
        await until_some(pops.acked)
        assert [time for _, time in pops.changed] == [2_000, 1_000, 30_000]


@in_loop(simulated)
async def test_after_its_retries_or_on_request_a_message_becomes_a_dead_letter(
    simulation: Simulation, /
) -> None:
    handled = Handled(
        lambda message: Retry(level=-1) if message.body == b"poison" else Retry(delay=1)
    )
    async with popping(simulation) as (cluster, pops):
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        async with consumer_of(cluster, handler=handled, max_reconsume_times=2):
            pops.store("orders", 0, b"poison")
            pops.store("orders", 0, b"hopeless")
            await until_count(pops.acked, 2)
            assert (handled.bodies.count(b"poison"), handled.bodies.count(b"hopeless")) == (1, 3)
            dead = [
                request
                for request, body in cluster.broker.received
                if type(request) is SendMessageV2
            ]
            assert [(one.topic, one.max_reconsume_times) for one in dead] == [
                ("%RETRY%readers", 0)
            ] * 2
            assert all("RETRY_TOPIC\x01orders\x02" in (one.properties or "") for one in dead)
            assert pops.invisible == []


@in_loop(simulated)
async def test_what_was_not_begun_in_its_time_is_let_go_and_comes_again(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        handled = Handled(takes=4)
        async with popping(simulation) as (cluster, pops):
            for i in range(10):
                pops.store("orders", 0, b"%d" % i)
            settings = {
                "handler": handled,
                "concurrency": 1,
                "pop_invisible_time": 15,
                "pop_threshold": 10,
            }
            async with consumer_of(cluster, **settings):
                await until(lambda: len(handled.bodies) >= 10 and len(set(handled.bodies)) == 10)
                await asyncio.sleep(60)
            first_round = [
                body
                for body, attempt in zip(handled.bodies, handled.attempts, strict=True)
                if attempt == 1
            ]
            assert len(first_round) == 4, "15 s are enough to begin with four of them"
            assert set(handled.bodies) == {b"%d" % i for i in range(10)}
            assert pops.invisible == []
    assert "not handled in their invisible time, will be delivered again" in caplog.text


@in_loop(simulated)
async def test_slow_handlers_take_on_less_and_nothing_becomes_a_dead_letter_unhandled(
    simulation: Simulation, /
) -> None:
    handled = Handled(takes=2)
    async with popping(simulation) as (cluster, pops):
        for i in range(100):
            pops.store("orders", 0, b"%d" % i)
        async with consumer_of(cluster, handler=handled, concurrency=1, pop_invisible_time=15):
            await until(lambda: len(set(handled.bodies)) == 100 and not pops.invisible)
        assert len(handled.bodies) <= 115, "few were not finished in their time"
        assert max(handled.attempts) <= 8
        assert cluster.broker.requests(SendMessageV2) == []


@in_loop(simulated)
async def test_nothing_is_popped_while_the_consumer_is_paused(simulation: Simulation, /) -> None:
    handled = Handled()
    async with (
        popping(simulation) as (cluster, pops),
        consumer_of(cluster, handler=handled) as consumer,
    ):
        consumer.pause()
        await asyncio.sleep(6)
        pops.store("orders", 0, b"book")
        await asyncio.sleep(100)
        assert (handled.bodies, pops.invisible) == ([], [])
        consumer.resume()
        await until_equal(handled.bodies, [b"book"])
        assert handled.attempts == [1]


async def wait_to_go_on(go_on: asyncio.Event, _message: Delivery) -> None:
    await go_on.wait()


@in_loop(simulated)
async def test_popping_waits_while_too_many_are_in_hand(simulation: Simulation, /) -> None:
    go_on = asyncio.Event()

    async with popping(simulation) as (cluster, pops):
        for i in range(200):
            pops.store("orders", 0, b"%d" % i)
        async with consumer_of(
            cluster,
            handler=partial(wait_to_go_on, go_on),
            concurrency=200,
            pop_threshold=50,
            pop_invisible_time=300,
        ):
            await asyncio.sleep(30)
            assert len(pops.invisible) == 50
            go_on.set()
            await until_count(pops.acked, 200)


@in_loop(simulated)
async def test_at_close_running_handlers_finish_and_what_was_not_begun_is_given_back(
    simulation: Simulation, /
) -> None:
    handled = Handled(takes=2)
    async with popping(simulation) as (cluster, pops):
        for i in range(10):
            pops.store("orders", 0, b"%d" % i)
        async with consumer_of(cluster, handler=handled, concurrency=3):
            await until_count(handled.bodies, 3)
        assert len(pops.acked) == 3
        assert [time for _, time in pops.changed] == [1_000] * 7
        await asyncio.sleep(1.1)
        others = Handled()
        async with consumer_of(cluster, handler=others):
            await until_count(others.bodies, 7)
        assert set(others.attempts) == {2}


@in_loop(simulated)
async def test_what_a_pop_brings_during_a_close_is_given_back_but_nothing_being_handled(
    simulation: Simulation, /
) -> None:
    handled = Handled(takes=3)
    async with popping(simulation) as (cluster, pops):
        pops.store("orders", 0, b"handled")
        async with consumer_of(cluster, handler=handled):
            await until_equal(handled.bodies, [b"handled"])
            await until(cluster.broker.has_got, PopMessage, 2)
            simulation.loop.call_later(1, pops.store, "orders", 0, b"late")
        assert pops.acked == [("orders", 0, 0)]
        assert pops.changed == [(("orders", 0, 1), 1_000)]


@in_loop(simulated)
async def test_a_message_left_in_async_for_is_given_back_at_close(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, pops):
        pops.store("orders", 0, b"left")
        async with consumer_of(cluster) as consumer:
            async for _ in consumer:
                break
            (again,) = await consumer.take(1)
            assert (again.body, again.attempt) == (b"left", 1)
        assert (pops.acked, pops.changed) == ([], [(("orders", 0, 0), 1_000)])


@in_loop(simulated)
async def test_a_strangers_message_is_acknowledged_and_not_handed_over(
    simulation: Simulation, /
) -> None:
    handled = Handled()
    async with (
        popping(simulation) as (cluster, pops),
        consumer_of(cluster, handler=handled, tags="Aa"),
    ):
        pops.store("orders", 0, b"equal hash", "TAGS\x01BB\x02")
        pops.store("orders", 0, b"wanted", "TAGS\x01Aa\x02")
        await until_count(pops.acked, 2)
        assert handled.bodies == [b"wanted"]


async def note_and_retry(seen: list[str], message: Delivery) -> object:
    seen.append(message.topic)
    return Retry(delay=1) if message.attempt == 1 else None


@in_loop(simulated)
async def test_a_namespace_is_on_the_wire_alone(simulation: Simulation, /) -> None:
    seen: list[str] = []

    async with popping(simulation, topic="ns%orders") as (cluster, pops):
        pops.modes["ns%orders"] = POP
        pops.store("ns%orders", 0, b"book")
        async with consumer_of(
            cluster, handler=partial(note_and_retry, seen), namespace="ns"
        ) as consumer:
            await until_some(pops.acked)
            assert consumer.queues == [MessageQueue("orders", "broker-a", -1)]
        assert seen == ["orders", "orders"]
        assert pops.acked == [("%RETRY%ns%readers_ns%orders", 0, 0)]


@in_loop(simulated)
async def test_an_acknowledgement_that_does_not_get_through_is_repeated(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, pops):
        cluster.broker.script[RequestCode.ACK_MESSAGE].extend(
            [refusal(ResponseCode.SYSTEM_BUSY), None]
        )
        async with consumer_of(cluster, handler=Handled()):
            pops.store("orders", 0, b"book")
            await until_equal(pops.acked, [("orders", 0, 0)])
        assert len(cluster.broker.requests(AckMessage)) == 3


@in_loop(simulated)
async def test_a_broker_that_fails_is_asked_again_until_it_works(simulation: Simulation, /) -> None:
    handled = Handled()
    async with popping(simulation) as (cluster, pops), consumer_of(cluster, handler=handled):
        await cluster.broker.stop()
        await asyncio.sleep(30)
        await cluster.broker.start()
        cluster.broker.script[RequestCode.POP_MESSAGE].extend(
            [refusal(ResponseCode.FLOW_CONTROL)] * 3
        )
        cluster.broker.script[RequestCode.POP_MESSAGE].extend(
            [refusal(ResponseCode.SYSTEM_ERROR)] * 3
        )
        cluster.broker.script[RequestCode.POP_MESSAGE].extend(
            [refusal(ResponseCode.POLLING_FULL)] * 3
        )
        pops.store("orders", 0, b"book")
        await until_equal(handled.bodies, [b"book"])


@in_loop(simulated)
async def test_a_broker_may_have_it_pull_and_change_its_mind_both_ways(
    simulation: Simulation, /
) -> None:
    handled = Handled(lambda message: Retry() if message.body == b"retried" else None)
    async with (
        popping(simulation, queues=1) as (cluster, pops),
        consumer_of(cluster, handler=handled) as consumer,
    ):
        pops.store("orders", 0, b"popped")
        pops.store("orders", 0, b"retried")
        await until_count(handled.bodies, 2)
        pops.modes["orders"] = PULL
        cluster.broker.committed["readers", "orders", 0] = 2
        cluster.broker.notify("readers")
        await until(lambda: consumer.queues == [MessageQueue("orders", "broker-a", 0)])
        pops.store("orders", 0, b"pulled")
        await until(lambda: handled.bodies[-1] == b"pulled")
        wanted = [one.topic for one in consumer.consumer_data().subscription_data_set]
        assert "%RETRY%readers_orders" in wanted, "what was popped before and failed is pulled too"
        pops.modes["orders"] = POP
        cluster.broker.notify("readers")
        await until(lambda: consumer.queues == [MessageQueue("orders", "broker-a", -1)])
        wanted = [one.topic for one in consumer.consumer_data().subscription_data_set]
        assert "%RETRY%readers_orders" not in wanted


async def handle(topics: list[str], message: Delivery) -> None:
    topics.append(message.topic)


@in_loop(simulated)
async def test_what_was_popped_before_and_failed_is_pulled_when_the_broker_has_it_pull(
    simulation: Simulation, /
) -> None:
    topics: list[str] = []

    async with popping(simulation, queues=1) as (cluster, pops):
        pops.modes["orders"] = PULL
        pops.modes["%RETRY%readers_orders"] = PULL
        cluster.name_server.route("%RETRY%readers_orders", cluster.broker, queues=1)
        pops.store("%RETRY%readers_orders", 0, b"failed once")
        async with consumer_of(cluster, handler=partial(handle, topics)):
            await until_equal(topics, ["orders"])


@in_loop(simulated)
async def test_a_broker_that_cannot_say_changes_nothing(simulation: Simulation, /) -> None:
    async with (
        popping(simulation) as (cluster, pops),
        consumer_of(cluster, handler=Handled()) as consumer,
    ):
        before = consumer.queues
        pops.modes["orders"] = None
        cluster.broker.notify("readers")
        asked = len(cluster.broker.requests(QueryAssignment))
        await until(lambda: len(cluster.broker.requests(QueryAssignment)) > asked + 3)
        assert consumer.queues == before != []


@in_loop(simulated)
async def test_with_a_broker_that_divides_nothing_the_group_does(simulation: Simulation, /) -> None:
    handled = Handled()
    async with popping(simulation) as (cluster, pops):
        refused = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        cluster.broker.script[RequestCode.QUERY_ASSIGNMENT].extend([refused] * 1000)
        pops.store("orders", 2, b"book")
        async with consumer_of(cluster, handler=handled) as consumer:
            assert len(consumer.queues) == 4
            await until_equal(handled.bodies, [b"book"])
        assert cluster.broker.requests(PopMessage) == []


@in_loop(simulated)
async def test_broadcasting_consumers_divide_by_themselves(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, _):
        async with consumer_of(cluster, handler=Handled(), broadcast=True) as consumer:
            assert len(consumer.queues) == 4
        assert cluster.broker.requests(QueryAssignment) == []


@in_loop(simulated)
async def test_an_operator_sees_what_is_in_hand(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, pops), consumer_of(cluster) as consumer:
        pops.store("orders", 0, b"book")
        await consumer.take(1)
        assert consumer.lifecycle.running is not None
        operated = consumer.lifecycle.running.member.operated
        assert operated is not None
        (info,) = operated.running_info().mq_pop_table.values()
        assert (info.wait_ack_count, info.droped) == (1, False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pop_invisible_time": 4}, "pop_invisible_time=4"),
        ({"pop_invisible_time": 301}, "from 5 to 300"),
        ({"pop_batch": 33}, "pop_batch=33"),
        ({"pop_threshold": 0}, "pop_threshold=0"),
        ({"pop_invisible_time": 30}, "pop_invisible_time=30 is for client_rebalance=False"),
        ({"pop_batch": 16}, "pop_batch=16 is for client_rebalance=False"),
        (
            {"pop_threshold": 10, "client_rebalance": False, "broadcast": True},
            "pop_threshold=10 is for .* without broadcast",
        ),
        ({"client_rebalance": False, "allocation": "CONSISTENT_HASH"}, "not known to brokers"),
        ({"client_rebalance": False, "ordered": True}, r"use SimpleConsumer\(ordered=True\)"),
        (
            {"client_rebalance": False, "allocation": allocate_by_configuration([])},
            "not known to brokers",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused_where_they_are_given(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        PushConsumer("127.0.0.1:1", group="g", topic="t", **settings)
