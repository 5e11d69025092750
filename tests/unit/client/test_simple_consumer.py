"""The simple consumer against a scripted cluster, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing
from tests.unit.client.simple_consumers import bodies, consumer_of, popping
from tests.waits import until_equal, until_some

from turbopump import PoppedMessage, SimpleConsumer, Sql
from turbopump.errors import (
    ConfigError,
    ConnectError,
    NotStartedError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.handles import PopHandle
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.clients import ConsumeType
from turbopump.protocol.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    InitMode,
    Notification,
    NotificationReply,
    PopMessage,
)
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.response import Response


@in_loop(simulated)
async def test_a_message_is_received_once_and_gone_when_it_is_acknowledged(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        pops.store("orders", 2, b"book")
        (message,) = await consumer.receive(8, 30)
        assert (message.body, message.attempt, message.topic, message.broker_name) == (
            b"book",
            1,
            "orders",
            "broker-a",
        )
        assert message.visible_at_ms == PopHandle.decode(message.handle).pop_time_ms + 30_000
        assert await consumer.receive(timeout=20) == [], "it is invisible"
        await consumer.ack(message)
        assert pops.acked == [("orders", 2, 0)]
        assert await consumer.receive(timeout=60) == []
        pop = cluster.broker.requests(PopMessage)[0]
        assert (pop.queue_id, pop.max_msg_nums, pop.invisible_time, pop.born_time) == (
            -1,
            8,
            30_000,
            0,
        )
        assert pop.init_mode == InitMode.MIN


@in_loop(simulated)
async def test_what_is_not_acknowledged_comes_again_as_another_attempt_of_its_topic(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        pops.store("orders", 2, b"book", "TAGS\x01new\x02")
        (first,) = await consumer.receive(8, 30)
        started = simulation.loop.time()
        (second,) = await consumer.receive(8, 30, timeout=60)
        assert simulation.loop.time() - started == pytest.approx(30, abs=0.1), (
            "a wait hears of it at once"
        )
        assert (second.body, second.attempt, second.topic, second.tags) == (
            b"book",
            2,
            "orders",
            "new",
        )
        with pytest.raises(ResponseError) as refused:
            await consumer.ack(first)
        assert refused.value.code == ResponseCode.NO_MESSAGE
        await consumer.ack(second)
        assert pops.acked[-1] == ("%RETRY%readers_orders", 0, 0)
        assert pops.invisible == []


@in_loop(simulated)
async def test_a_wait_takes_nothing_and_hears_of_an_arrival_at_once(
    simulation: Simulation, /
) -> None:
    async with popping(simulation, brokers=3) as (cluster, pops), consumer_of(cluster) as consumer:
        started = simulation.loop.time()
        assert await consumer.receive(timeout=3) == []
        assert simulation.loop.time() - started == pytest.approx(3, abs=0.01)
        simulation.loop.call_later(100, pops[2].store, "orders", 0, b"late")
        assert bodies(await consumer.receive(timeout=200)) == [b"late"]
        assert simulation.loop.time() - started == pytest.approx(103, abs=0.01)
        for broker in cluster.brokers:
            assert all(pop.poll_time == 0 for pop in broker.requests(PopMessage))
            assert len(broker.requests(Notification)) < 60


@in_loop(simulated)
async def test_a_cancelled_wait_loses_nothing_and_a_cancelled_pop_gives_back(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await consumer.receive(timeout=60)
        pops.store("orders", 0, b"book")
        receiving = asyncio.create_task(consumer.receive(1, 60))
        pops.on_pop = receiving.cancel
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        await until_some(pops.changed)
        assert pops.changed == [(("orders", 0, 0), 1000)]
        pops.on_pop = does_nothing
        (again,) = await consumer.receive(timeout=5)
        assert again.attempt == 2


@in_loop(simulated)
async def test_a_cancelled_receive_of_many_gives_back_what_earlier_pops_brought(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        for i in range(50):
            pops.store("orders", 0, f"m{i}".encode())
        receiving = asyncio.create_task(consumer.receive(64, 60))

        def first() -> None:
            pops.on_pop = receiving.cancel

        pops.on_pop = first
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        pops.on_pop = does_nothing
        began = simulation.loop.time()
        again: list[PoppedMessage] = []
        while len(again) < 50:
            again += await consumer.receive(64, 300, timeout=120)
        assert sorted(bodies(again)) == sorted(f"m{i}".encode() for i in range(50))
        assert simulation.loop.time() - began < 5, "not only after its 60 s"


@in_loop(simulated)
async def test_topics_and_brokers_take_turns(simulation: Simulation, /) -> None:
    async with popping(simulation, brokers=2) as (cluster, pops), consumer_of(cluster) as consumer:
        cluster.name_server.route("bills", *cluster.brokers)
        await consumer.subscribe("bills")
        for one in pops:
            for topic in ("orders", "bills"):
                for i in range(30):
                    one.store(topic, i % 4, f"{one.broker.name} {topic} {i}".encode())
        sources = set()
        for _ in range(4):
            messages = await consumer.receive(10)
            assert len(messages) == 10
            sources |= {(message.broker_name, message.topic) for message in messages}
        assert len(sources) == 4, "each of the first four comes from another place"
        received = [message for _ in range(8) for message in await consumer.receive(10)]
        await consumer.ack(received)
        assert sum(len(one.acked) for one in pops) == 80
        assert await consumer.receive(timeout=1) == []


@in_loop(simulated)
async def test_more_than_a_broker_gives_at_once_is_fetched_in_pieces(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        for i in range(100):
            pops.store("orders", i % 4, b"%d" % i)
        messages = await consumer.receive(80)
        assert len(messages) == 80
        await consumer.ack(messages)
        assert sorted(pops.acked) == sorted(
            ("orders", m.queue_id, m.queue_offset) for m in messages
        )
        assert len(cluster.broker.requests(BatchAckMessage)) == 1
        assert cluster.broker.requests(AckMessage) == []


@in_loop(simulated)
async def test_a_broker_that_knows_no_batches_is_told_one_by_one(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        pops.batches = False
        for i in range(20):
            pops.store("orders", 0, b"%d" % i)
        await consumer.ack(await consumer.receive(10))
        await consumer.ack(await consumer.receive(10))
        assert len(pops.acked) == 20
        assert len(cluster.broker.requests(BatchAckMessage)) == 1, "it is asked once"


@in_loop(simulated)
async def test_the_invisible_time_can_be_changed_and_the_handle_with_it(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        pops.store("orders", 0, b"book")
        (message,) = await consumer.receive(1, 10)
        before = message.handle
        handle = await consumer.change_invisible_time(message, 100)
        assert handle == message.handle != before
        assert await consumer.receive(timeout=90) == []
        await consumer.ack(message)
        assert pops.invisible == []
        pops.store("orders", 0, b"second")
        (message,) = await consumer.receive(1, 1000)
        await consumer.change_invisible_time(message, 0.5)
        (again,) = await consumer.receive(1, timeout=1)
        assert again.attempt == 2
        assert [
            request.invisible_time for request in cluster.broker.requests(ChangeInvisibleTime)
        ] == [100_000, 500]


@in_loop(simulated)
async def test_a_tag_filter_is_exact_and_a_strangers_message_is_acknowledged(
    simulation: Simulation, /
) -> None:
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, tags="Aa || new") as consumer,
    ):
        pops.store("orders", 0, b"no", "TAGS\x01old\x02")
        pops.store("orders", 0, b"equal hash", "TAGS\x01BB\x02")
        pops.store("orders", 0, b"yes", "TAGS\x01Aa\x02")
        assert bodies(await consumer.receive()) == [b"yes"]
        await until_equal(pops.acked, [("orders", 0, 1)])
        assert cluster.broker.requests(PopMessage)[0].exp == "Aa || new"


@in_loop(simulated)
async def test_an_sql_filter_is_the_brokers(simulation: Simulation, /) -> None:
    filter_ = Sql("price > 10")
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, tags=filter_) as consumer,
    ):
        pops.store("orders", 0, b"cheap", "price\x015\x02")
        pops.store("orders", 0, b"dear", "price\x0150\x02")
        assert bodies(await consumer.receive()) == [b"dear"]
        assert (cluster.broker.requests(PopMessage)[0].exp_type, consumer.subscriptions) == (
            "SQL92",
            {"orders": filter_},
        )


@in_loop(simulated)
async def test_a_namespace_is_on_the_wire_alone(simulation: Simulation, /) -> None:
    async with (
        popping(simulation, topic="ns%orders") as (cluster, (pops,)),
        consumer_of(cluster, namespace="ns") as consumer,
    ):
        pops.store("ns%orders", 0, b"book")
        (message,) = await consumer.receive(1, 10)
        assert message.topic == "orders"
        (again,) = await consumer.receive(1, 10)
        assert (again.topic, again.attempt) == ("orders", 2)
        await consumer.ack(again)
        assert pops.acked == [("%RETRY%ns%readers_ns%orders", 0, 0)]
        assert consumer.subscriptions == {"orders": "*"}


@in_loop(simulated)
async def test_brokers_know_the_group_as_one_that_pops(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, _):
        async with consumer_of(cluster) as consumer:
            await until_some(cluster.broker.heartbeats)
            (data,) = cluster.broker.heartbeats[-1].consumer_data_set
            assert (data.group_name, data.consume_type) == ("readers", ConsumeType.CONSUME_POP)
            await consumer.subscribe("bills", "paid")
            (data,) = cluster.broker.heartbeats[-1].consumer_data_set
            assert {one.topic: one.sub_string for one in data.subscription_data_set} == {
                "orders": "*",
                "bills": "paid",
            }
            await consumer.unsubscribe("bills")
            assert consumer.subscriptions == {"orders": "*"}
        assert cluster.broker.farewells[-1].consumer_group == "readers"


@in_loop(simulated)
async def test_after_its_retries_a_message_becomes_a_dead_letter(simulation: Simulation, /) -> None:
    async with (
        popping(simulation) as (cluster, (pops,)),
        consumer_of(cluster, max_reconsume_times=1) as consumer,
    ):
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        pops.store("orders", 0, b"book")
        assert [message.attempt for _ in range(2) for message in await consumer.receive(1, 5)] == [
            1,
            2,
        ]
        assert await consumer.receive(1, 5, timeout=30) == []
        (sent,) = cluster.broker.requests(SendMessageV2)
        assert (sent.topic, sent.reconsume_times, sent.max_reconsume_times) == (
            "%RETRY%readers",
            3,
            0,
        )
        assert "RETRY_TOPIC\x01orders\x02" in (sent.properties or "")
        assert pops.invisible == [], "acknowledged when the dead letter is there"


@in_loop(simulated)
async def test_a_broker_that_is_down_does_not_keep_the_others_from_giving(
    simulation: Simulation, /
) -> None:
    async with popping(simulation, brokers=2) as (cluster, pops), consumer_of(cluster) as consumer:
        await cluster.brokers[0].stop()
        started = simulation.loop.time()
        for i in range(5):
            pops[1].store("orders", 0, b"%d" % i)
            assert bodies(await consumer.receive()) == [b"%d" % i]
        assert simulation.loop.time() - started < 1
        assert await consumer.receive(timeout=5) == []
        await cluster.brokers[0].start()
        pops[0].store("orders", 0, b"back")
        assert bodies(await consumer.receive()) == [b"back"]


@in_loop(simulated)
async def test_when_nobody_can_be_asked_the_error_is_raised_after_the_time(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        await cluster.broker.stop()
        started = simulation.loop.time()
        with pytest.raises(ConnectError):
            await consumer.receive(timeout=10)
        assert simulation.loop.time() - started == pytest.approx(10, abs=1)
        simulation.loop.call_later(5, asyncio.ensure_future, cluster.broker.start())
        simulation.loop.call_later(6, pops.store, "orders", 0, b"back")
        assert bodies(await consumer.receive(timeout=20)) == [b"back"], (
            "a broker that comes back is found again"
        )


@in_loop(simulated)
async def test_a_refusal_is_raised_with_its_code(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, _), consumer_of(cluster) as consumer:
        no = Response(code=ResponseCode.NO_PERMISSION, remark="forbidden")
        cluster.broker.script[RequestCode.POP_MESSAGE].extend([no] * 20)
        with pytest.raises(ResponseError, match="forbidden"):
            await consumer.receive(timeout=3)


@in_loop(simulated)
async def test_a_full_line_of_waiters_is_not_asked_without_a_pause(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, _), consumer_of(cluster) as consumer:
        answers = [Response(NotificationReply(has_msg=False, polling_full=True))] * 100
        cluster.broker.script[RequestCode.NOTIFICATION].extend(answers)
        assert await consumer.receive(timeout=10) == []
        assert len(cluster.broker.requests(Notification)) <= 11


@in_loop(simulated)
async def test_a_topic_that_is_not_there_yet_is_waited_for(simulation: Simulation, /) -> None:
    async with (
        popping(simulation, topic=None) as (cluster, (pops,)),
        consumer_of(cluster) as consumer,
    ):
        assert await consumer.receive(timeout=3) == []
        simulation.loop.call_later(5, cluster.name_server.route, "orders", cluster.broker)
        simulation.loop.call_later(6, pops.store, "orders", 0, b"first")
        assert bodies(await consumer.receive(timeout=20)) == [b"first"]


@in_loop(simulated)
async def test_close_ends_a_wait_and_may_come_twice(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, _):
        consumer = consumer_of(cluster)
        with pytest.raises(NotStartedError, match="not started"):
            await consumer.receive()
        await consumer.start()
        receiving = asyncio.create_task(consumer.receive(timeout=60))
        started = simulation.loop.time()
        simulation.loop.call_later(1, asyncio.ensure_future, consumer.close())
        assert await receiving == []
        assert simulation.loop.time() - started == pytest.approx(1, abs=0.1)
        await consumer.close()
        with pytest.raises(NotStartedError, match="closed"):
            await consumer.receive()


@in_loop(simulated)
async def test_without_a_name_server_it_does_not_start(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, _):
        await cluster.name_server.stop()
        with pytest.raises(RouteNotFoundError, match="no name server answers"):
            await consumer_of(cluster).start()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group": "a b"}, "group name"),
        ({"topic": "a b"}, "topic name"),
        ({"consume_from": 5}, "consume_from"),
        ({"max_reconsume_times": -1}, "max_reconsume_times"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_where_they_are_given(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        SimpleConsumer("127.0.0.1:1", **{"group": "g", **settings})


@in_loop(simulated)
async def test_calls_that_make_no_sense_are_refused(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, (pops,)), consumer_of(cluster) as consumer:
        pops.store("orders", 0, b"book")
        (message,) = await consumer.receive()
        with pytest.raises(ConfigError, match="max_messages"):
            await consumer.receive(0)
        with pytest.raises(
            ConfigError, match="invisible_seconds=0 must be a number of seconds above 0"
        ):
            await consumer.receive(1, 0)
        with pytest.raises(ConfigError, match=r"seconds=.* must be a number of seconds above 0"):
            await consumer.change_invisible_time(message, -1)
        await consumer.unsubscribe("orders")
        with pytest.raises(ConfigError, match="nothing to receive"):
            await consumer.receive()


@in_loop(simulated)
async def test_what_was_not_received_cannot_be_acknowledged_nor_put_off(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (_,)), consumer_of(cluster) as consumer:
        for wrong in ("a message id", [b"a body"]):
            with pytest.raises(
                TypeError,
                match="is not a message of a SimpleConsumer: pass a message that `receive` "
                "returned",
            ):
                await consumer.ack(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="is not a message of a SimpleConsumer"):
            await consumer.change_invisible_time("a message id", 60)  # type: ignore[arg-type]
