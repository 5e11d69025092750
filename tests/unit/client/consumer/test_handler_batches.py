"""A handler that takes several messages at once: which ones it gets together, and what its end
means for each of them; against a scripted cluster, in virtual time. (In order:
``test_ordered_batches.py``; in threads: ``test_handler_batches_in_threads.py``.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing, returns
from tests.unit.client.consumer.handled_lists import Lists, bodies, fails
from tests.unit.client.consumer.popping_consumers import consumer_of as popping_consumer_of
from tests.unit.client.consumer.popping_consumers import popping
from tests.unit.client.push_consumers import (
    broadcasting,
    committed,
    consumer_of,
    fill,
    until_committed,
)
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.unit.client.trace_records import by_message, store
from tests.waits import until, until_count, until_some

from turbopump import IdempotentConsumer, MemoryStore, blocking
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.group_consumer import consume_directly
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.trace import TRACE_TOPIC
from turbopump.errors import ConfigError
from turbopump.protocol.requests.consumers import ConsumeResult
from turbopump.protocol.requests.pop import ChangeInvisibleTime
from turbopump.protocol.requests.send import ConsumerSendMsgBack


def sent_back(cluster: ScriptedCluster) -> list[tuple[int, int]]:
    """Offset in the only queue, and delay level, of each."""
    entries = cluster.broker.entries["orders", 0]
    places = {sum(map(len, entries[:i])): i for i in range(len(entries))}
    return [
        (places[one.offset], one.delay_level)
        for one in cluster.broker.requests(ConsumerSendMsgBack)
    ]


# --- what goes together
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_handler_gets_ordered_lists_of_one_queue_and_all_are_done_when_it_returns(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=3) as cluster:
        for queue_id in range(3):
            fill(cluster, 10, queue_id=queue_id)
        lists = Lists(lambda messages: messages.clear(), seconds=1)  # the list is its own
        async with consumer_of(cluster, handler=lists, handler_batch=4):
            await until(lambda: len(lists.bodies) == 30)
        assert all(len(queues) == 1 for queues in lists.queues)
        for queue_id in range(3):
            of_queue = [
                got
                for got, queues in zip(lists.got, lists.queues, strict=True)
                if queues == {queue_id}
            ]
            assert of_queue == [bodies(0, 4), bodies(4, 8), bodies(8, 10)]
            assert committed(cluster, queue_id) == 10


@in_loop(simulated)
async def test_nobody_waits_for_a_list_to_fill_and_what_came_meanwhile_goes_together(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        lists = Lists(seconds=1)
        async with consumer_of(cluster, handler=lists, handler_batch=50, concurrency=1):
            for i in range(10):
                cluster.broker.store("orders", 0, b"m%d" % i)
                await asyncio.sleep(0.05)  # a pull each
            await until(lambda: len(lists.bodies) == 10)
        assert lists.got == [bodies(0, 1), bodies(1, 10)]
        assert committed(cluster) == 10


@in_loop(simulated)
async def test_a_batch_of_one_is_a_list_too(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        lists = Lists()
        async with consumer_of(cluster, handler=lists, handler_batch=1):
            await until_count(lists.got, 3)
        assert lists.got == [[b"m0"], [b"m1"], [b"m2"]]


async def note(topics: list[set[str]], messages: list[Delivery]) -> None:
    topics.append({message.topic for message in messages})


@in_loop(simulated)
async def test_the_retry_topic_does_not_bring_messages_of_different_topics_in_one_list(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        topics: list[set[str]] = []

        for topic in ("orders", "orders", "bills", "bills"):
            cluster.broker.store("%RETRY%readers", 0, b"x", f"RETRY_TOPIC\x01{topic}\x02")
        async with consumer_of(cluster, handler=partial(note, topics), handler_batch=10):
            await until(lambda: cluster.broker.committed.get(("readers", "%RETRY%readers", 0)) == 4)
        assert topics == [{"orders"}, {"bills"}]


# --- what its end means
# -----------------------------------------------------------------------------------------------


def some_then_fails(messages: list[Delivery]) -> object:
    for message in messages[:2]:
        message.done()
    raise ZeroDivisionError


def one_by_itself(messages: list[Delivery]) -> object:
    messages[1].retry(level=5)
    return None


def from_there_on(messages: list[Delivery]) -> object:
    """Java's ``context.setAckIndex(1)``."""
    for message in messages[2:]:
        message.retry()
    return None


@pytest.mark.parametrize(
    ("fate", "again"),
    [
        (does_nothing, []),
        (returns("whatever"), []),
        (fails, [(0, 0), (1, 0), (2, 0), (3, 0)]),
        (returns(Retry), [(0, 0), (1, 0), (2, 0), (3, 0)]),
        (returns(Retry(level=4)), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        (some_then_fails, [(2, 0), (3, 0)]),
        (one_by_itself, [(1, 5)]),
        (from_there_on, [(2, 0), (3, 0)]),
    ],
)
@in_loop(simulated)
async def test_what_the_end_says_is_for_those_that_were_not_settled_by_themselves(
    simulation: Simulation,
    /,
    fate: Callable[[list[Delivery]], object],
    again: list[tuple[int, int]],
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.takes_back = True
        fill(cluster, 4)
        lists = Lists(fate)
        async with consumer_of(cluster, handler=lists, handler_batch=10) as consumer:
            await until_some(lists.got)
            await until(lambda: sum(info.cached_msg_count for info in infos(consumer)) == 0)
            statistics = consumer.statistics()["orders"]
        assert lists.got == [bodies(0, 4)]
        assert sorted(sent_back(cluster)) == again
        assert committed(cluster) == 4, "what was sent back holds no offset"
        assert statistics.consume_failed_msgs == len(again)
        assert statistics.consume_ok_tps * 60 == pytest.approx((4 - len(again)) * 60)


def infos(consumer: PushConsumer) -> list[Any]:
    return list(consumer.lifecycle.started().assignment.infos().values())


def once(messages: list[Delivery]) -> object:
    for message in messages[2:4]:
        if message.attempt == 1:
            message.retry(delay=30)
    return None


@in_loop(simulated)
async def test_messages_kept_here_hold_the_offset_and_come_again_without_the_done_ones(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)

        lists = Lists(once)
        async with consumer_of(cluster, handler=lists, handler_batch=10):
            await until_some(lists.got)
            await asyncio.sleep(10)
            assert committed(cluster) == 2
            await until_count(lists.got, 2)
        assert lists.got == [bodies(0, 5), bodies(2, 4)]
        assert committed(cluster) == 5


@in_loop(simulated)
async def test_one_line_is_logged_for_a_list_that_failed(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with scripted_cluster(simulation, queues=1) as cluster:
            cluster.broker.takes_back = True
            fill(cluster, 4)
            async with consumer_of(cluster, handler=Lists(some_then_fails), handler_batch=10):
                await until_committed(cluster, 4)
    (line,) = [
        record.getMessage() for record in caplog.records if "handler failed" in record.getMessage()
    ]
    assert "will be delivered again count=2 msg_id=" in line
    assert "offset=2 attempt=1" in line


@in_loop(simulated)
async def test_by_broadcast_nothing_is_retried(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)
        lists = Lists(fails)
        async with broadcasting(cluster, simulation, handler=lists, handler_batch=3) as consumer:
            await until_count(lists.got, 2)
            await until(lambda: sum(info.cached_msg_count for info in infos(consumer)) == 0)
            cluster.broker.store("orders", 0, b"m5")
            await until_count(lists.got, 3)
        assert lists.got == [bodies(0, 3), bodies(3, 5), bodies(5, 6)]
        assert sent_back(cluster) == []


@in_loop(simulated)
async def test_where_it_pops_each_message_is_acknowledged_or_put_off_by_itself(
    simulation: Simulation, /
) -> None:
    lists = Lists(
        lambda messages: [m.retry(delay=40) for m in messages if m.body == b"m1" and m.attempt == 1]
    )
    async with popping(simulation) as (cluster, pops):
        for i in range(6):
            pops.store("orders", i // 3, b"m%d" % i)
        async with popping_consumer_of(cluster, handler=lists, handler_batch=10):
            await until_count(pops.acked, 6)
        assert sorted(lists.got[:2]) == [bodies(0, 3), bodies(3, 6)], "each of one queue"
        assert lists.got[2:] == [[b"m1"]]
        assert [one.invisible_time for one in cluster.broker.requests(ChangeInvisibleTime)] == [
            40_000
        ]


async def done_and_hang(never: asyncio.Event, messages: list[Delivery]) -> None:
    messages[0].done()
    await never.wait()


@in_loop(simulated)
async def test_a_list_whose_handler_hangs_is_given_back_and_its_queue_goes_on(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with scripted_cluster(simulation, queues=1) as cluster:
            cluster.broker.takes_back = True
            fill(cluster, 3)
            never = asyncio.Event()

            async with consumer_of(
                cluster,
                handler=partial(done_and_hang, never),
                handler_batch=3,
                consume_timeout=20,
                close_timeout=0,
            ):
                await until_committed(cluster, 3)
            assert sent_back(cluster) == [(1, 3), (2, 3)]
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "its message was sent back" in record.getMessage()
    ]
    assert "count=2 msg_id=" in line


@in_loop(simulated)
async def test_messages_of_a_handler_cancelled_at_the_close_come_to_the_next_member(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)

        async def hangs(messages: list[Delivery]) -> None:
            messages[0].done()
            await asyncio.Event().wait()

        async with consumer_of(
            cluster, handler=hangs, handler_batch=3, concurrency=1, close_timeout=1
        ):
            await asyncio.sleep(1)
        assert committed(cluster) == 1
        lists = Lists()
        async with consumer_of(cluster, handler=lists, handler_batch=10):
            await until_committed(cluster, 5)
        assert lists.got == [bodies(1, 5)]


@in_loop(simulated)
async def test_a_paused_consumer_hands_out_no_list(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        lists = Lists()
        async with consumer_of(cluster, handler=lists, handler_batch=3) as consumer:
            consumer.pause()
            fill(cluster, 5)
            await asyncio.sleep(60)
            assert lists.got == []
            consumer.resume()
            await until_committed(cluster, 5)
        assert lists.bodies == bodies(0, 5)


# --- what is told of it
# -----------------------------------------------------------------------------------------------


def second_again(messages: list[Delivery]) -> None:
    messages[1].retry(reason="no stock")


@in_loop(simulated)
async def test_each_message_of_a_list_has_a_trace_with_its_share_of_the_time(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        cluster.broker.takes_back = True
        for i in range(4):
            store(cluster, b"x", f"M{i}", TRACE_ON="false" if i == 3 else "true")

        lists = Lists(second_again, seconds=2)
        async with consumer_of(cluster, handler=lists, handler_batch=4, trace=True):
            await until_committed(cluster, 4)
        told = {name: by_message(cluster, name) for name in ("M0", "M1", "M2")}
        assert (
            len(
                {
                    record[4 if record[0] == "SubBefore" else 1]
                    for both in told.values()
                    for record in both
                }
            )
            == 1
        )
        assert {name: (after[3], after[4], after[6]) for name, (_, after) in told.items()} == {
            "M0": ("500", "true", "0"),
            "M1": ("500", "false", "4"),
            "M2": ("500", "true", "0"),
        }, "as Apache's: the time of the call, shared by its messages"
        assert by_message(cluster, "M3") == []


@pytest.mark.parametrize(
    ("fate", "result"),
    [
        (does_nothing, ConsumeResult.CR_SUCCESS),
        (returns(Retry), ConsumeResult.CR_LATER),
        (lambda messages: messages[0].retry(), ConsumeResult.CR_LATER),
        (fails, ConsumeResult.CR_THROW_EXCEPTION),
    ],
)
@in_loop(simulated)
async def test_an_operator_s_message_comes_as_a_list_of_one(
    simulation: Simulation, /, fate: Callable[[list[Delivery]], object], result: ConsumeResult
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.takes_back = True
        fill(cluster, 1)
        kept: list[Delivery] = []
        lists = Lists(lambda messages: kept.extend(messages) if not kept else fate(messages))
        async with consumer_of(cluster, handler=lists, handler_batch=5) as consumer:
            await until_some(kept)
            handlers = consumer.lifecycle.started().handlers
            assert handlers is not None
            clock = simulation.clock("client")
            told = await consume_directly(kept[0], handlers.call, clock, ordered=False)
        assert told.consume_result is result
        assert lists.got == [[b"m0"], [b"m0"]]


# --- what is refused
# -----------------------------------------------------------------------------------------------


def test_a_batch_without_a_handler_is_refused_with_what_to_do() -> None:
    for kind in (PushConsumer, blocking.PushConsumer):
        with pytest.raises(
            ConfigError,
            match=r"handler_batch=5 without handler=… is of no use: "
            r".*take\(count\)",
        ):
            kind("127.0.0.1:9876", group="g", topic="t", handler_batch=5)


async def one(message: Delivery) -> None: ...


def test_a_handler_of_single_messages_with_keys_is_refused_with_what_to_do() -> None:
    idempotent = IdempotentConsumer(key="order_id", store=MemoryStore())
    with pytest.raises(
        ConfigError,
        match=r"handler_batch=5 passes lists, "
        r".*idempotent.handling\(message\)",
    ):
        PushConsumer(
            "127.0.0.1:9876", group="g", topic="t", handler=idempotent(one), handler_batch=5
        )
    PushConsumer("127.0.0.1:9876", group="g", topic="t", handler=idempotent(one))
    # behind a decorator it is found out late
    with pytest.raises(TypeError, match="wraps handlers of single messages"):
        asyncio.run(idempotent(one)([]))  # type: ignore[arg-type, func-returns-value]


async def handle(
    firsts: list[str], idempotent: IdempotentConsumer, messages: list[Delivery]
) -> None:
    for message in messages:
        async with idempotent.handling(message) as first:
            if first:
                firsts.append(message.properties["order_id"])


@in_loop(simulated)
async def test_going_through_the_list_a_handler_can_be_idempotent_by_message(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        for key in ("a", "b", "a", "a"):
            cluster.broker.store("orders", 0, b"x", f"order_id\x01{key}\x02")
        idempotent = IdempotentConsumer(
            key="order_id", store=MemoryStore(clock=simulation.clock("client"))
        )
        firsts: list[str] = []

        async with consumer_of(
            cluster, handler=partial(handle, firsts, idempotent), handler_batch=10
        ):
            await until_committed(cluster, 4)
        assert firsts == ["a", "b"]
