"""The lite pull consumer against a scripted cluster, in virtual time, and against a broker of
ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster
from tests.waits import until, until_none

from turbopump import Message, MessageQueue, Producer, PullConsumer, Sql
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.lite_pull_consumer import LitePullConsumer
from turbopump.errors import ConfigError, NotStartedError, ResponseError
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.pull import PullMessage
from turbopump.testing.broker_in_loop import running_broker

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


def consumer_of(cluster: ScriptedCluster, **settings: Any) -> LitePullConsumer:
    defaults = {"group": "readers", "topic": "orders", "consume_from": ConsumeFrom.FIRST}
    return LitePullConsumer(
        cluster.name_server.address, **{**defaults, **cluster.settings, **settings}
    )


def fill(cluster: ScriptedCluster, count: int, *, queue_id: int = 0, start: int = 0) -> None:
    for i in range(start, start + count):
        tag = "even" if i % 2 == 0 else "odd"
        cluster.broker.store("orders", queue_id, f"{queue_id}:{i}".encode(), f"TAGS\x01{tag}\x02")


def committed(cluster: ScriptedCluster, queue_id: int = 0) -> int | None:
    return cluster.broker.committed.get(("readers", "orders", queue_id))


async def bodies(consumer: LitePullConsumer, count: int, **poll: Any) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = await consumer.poll(60, **poll)
        assert messages, f"only {found}"
        found += [message.body for message in messages]
    return found


@in_loop(simulated)
async def test_a_subscription_is_read_from_all_its_queues_each_in_order(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 50)
        fill(cluster, 50, queue_id=1)
        found = await bodies(consumer, 100, max_messages=7)
        for queue_id in (0, 1):
            ours = [body for body in found if body.startswith(b"%d:" % queue_id)]
            assert ours == [b"%d:%d" % (queue_id, i) for i in range(50)]
        assert consumer.assigned == [QUEUE, OTHER]
        assert (consumer.position(QUEUE), consumer.position(OTHER)) == (50, 50)


@in_loop(simulated)
async def test_a_poll_waits_for_a_message_and_gives_none_after_its_time(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        started = simulation.loop.time()
        assert await consumer.poll(3) == []
        assert simulation.loop.time() - started == pytest.approx(3, abs=0.01)
        simulation.loop.call_later(100, fill, cluster, 1)
        assert [message.body for message in await consumer.poll(200)] == [b"0:0"]
        assert simulation.loop.time() - started < 103.1, "a held pull brings it at once"


@in_loop(simulated)
async def test_what_was_polled_is_done_at_the_next_poll_and_committed_within_five_seconds(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 10)
        async with consumer_of(cluster) as consumer:
            await consumer.poll(max_messages=4)
            await asyncio.sleep(11)
            assert committed(cluster) == 0, "nobody says yet that the four are done"
            await consumer.poll(max_messages=4)
            await asyncio.sleep(5.1)
            assert committed(cluster) == 4
        assert committed(cluster) == 4, "the last poll's messages come to the next consumer"


@in_loop(simulated)
async def test_without_auto_commit_only_commit_moves_the_group(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 10)
        async with consumer_of(cluster, auto_commit=False) as consumer:
            await consumer.poll(max_messages=4)
            await consumer.poll(max_messages=4)
            await asyncio.sleep(20)
            assert committed(cluster) is None
            await consumer.commit({QUEUE: 3})
            assert (committed(cluster), await consumer.committed(QUEUE)) == (3, 3)
            await consumer.commit()
            assert committed(cluster) == 8
            await consumer.poll()
            await consumer.commit(acknowledged=False)
            await until(lambda: committed(cluster) == 10)
            with pytest.raises(
                ConfigError, match=r"done up to 10; offset=5 is before that: use seek"
            ):
                await consumer.commit({QUEUE: 5})
        assert committed(cluster) == 10


@pytest.mark.parametrize("auto_commit", [True, False])
@in_loop(simulated)
async def test_a_place_that_the_broker_names_because_the_queue_is_young_is_committed_once(
    simulation: Simulation, /, auto_commit: bool
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        cluster.broker.answers_zero = True
        async with consumer_of(cluster, consume_from=ConsumeFrom.LAST, auto_commit=auto_commit):
            await asyncio.sleep(30)
            assert sorted(
                one.queue_id for one in cluster.broker.requests(UpdateConsumerOffset)
            ) == [0, 1]
        fill(cluster, 3)
        cluster.broker.answers_zero = False  # from now on the queue is old: LAST is its end
        async with consumer_of(cluster, consume_from=ConsumeFrom.LAST) as consumer:
            assert await bodies(consumer, 3) == [b"0:0", b"0:1", b"0:2"]


@in_loop(simulated)
async def test_a_commit_not_waited_for_is_kept_though_the_consumer_is_closed_at_once(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 3)
        fill(cluster, 3, queue_id=1)
        async with consumer_of(cluster, auto_commit=False) as consumer:
            await bodies(consumer, 6)
            cluster.broker.update_delays += [0.4, 0.3]
            await consumer.commit(acknowledged=False)
        assert (committed(cluster), committed(cluster, 1)) == (3, 3)


@in_loop(simulated)
async def test_a_commit_that_was_refused_without_anybody_waiting_is_told_again(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        consumer_of(cluster, auto_commit=False) as consumer,
    ):
        fill(cluster, 5)
        await bodies(consumer, 3, max_messages=3)
        cluster.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(
            refusal(ResponseCode.SYSTEM_ERROR)
        )
        await consumer.commit(acknowledged=False)
        await bodies(consumer, 2)
        await asyncio.sleep(6)
        assert committed(cluster) == 3, "what was polled after it is not done"


@in_loop(simulated)
async def test_a_commit_that_a_broker_refuses_is_told_to_the_caller(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        consumer_of(cluster, auto_commit=False) as consumer,
    ):
        fill(cluster, 1)
        await consumer.poll()
        cluster.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(
            refusal(ResponseCode.SYSTEM_ERROR)
        )
        with pytest.raises(ResponseError):
            await consumer.commit()
        await consumer.commit()
        assert committed(cluster) == 1


@pytest.mark.parametrize("acknowledged", [True, False])
@in_loop(simulated)
async def test_a_commit_is_not_undone_by_an_older_one_that_the_broker_was_slow_with(
    simulation: Simulation, /, acknowledged: bool
) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        consumer_of(cluster, auto_commit=False) as consumer,
    ):
        fill(cluster, 10)
        await consumer.poll(max_messages=4)
        cluster.broker.update_delays += [0.5, 0.0]
        await consumer.commit(acknowledged=False)
        await until(
            lambda: (
                not cluster.broker.update_delays
                or bool(cluster.broker.requests(UpdateConsumerOffset))
            )
        )
        await consumer.poll(max_messages=4)
        await consumer.commit(acknowledged=acknowledged)
        await until_none(cluster.broker.update_delays)
        await asyncio.sleep(2)
        assert committed(cluster) == 8


@pytest.mark.parametrize("acknowledged", [True, False])
@in_loop(simulated)
async def test_first_offsets_of_all_queues_are_kept_by_a_broker_that_makes_their_table_unlocked(
    simulation: Simulation, /, acknowledged: bool
) -> None:
    async with (
        scripted_cluster(simulation, queues=4) as cluster,
        consumer_of(cluster, auto_commit=False) as consumer,
    ):
        for queue_id in range(4):
            fill(cluster, 3, queue_id=queue_id)
        await bodies(consumer, 12)
        cluster.broker.update_delays += [0.4, 0.3, 0.2, 0.1]
        await consumer.commit(acknowledged=acknowledged)
        await until_none(cluster.broker.update_delays)
        await asyncio.sleep(2)
        assert [committed(cluster, queue_id) for queue_id in range(4)] == [3, 3, 3, 3]


@in_loop(simulated)
async def test_a_first_place_that_the_broker_refused_does_not_hold_up_the_others(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=2) as cluster,
        consumer_of(cluster, auto_commit=False) as consumer,
    ):
        fill(cluster, 3)
        fill(cluster, 3, queue_id=1)
        await bodies(consumer, 6)
        cluster.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(
            refusal(ResponseCode.SYSTEM_ERROR)
        )
        with pytest.raises(ResponseError):
            await consumer.commit()
        await until(lambda: 3 in (committed(cluster), committed(cluster, 1)))
        await consumer.commit()
        assert (committed(cluster), committed(cluster, 1)) == (3, 3)


@in_loop(simulated)
async def test_a_seek_wins_over_what_was_pulled_ahead_and_over_the_pull_under_way(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 100)
        await consumer.poll(max_messages=5)
        await consumer.seek(QUEUE, 90)
        assert await bodies(consumer, 3, max_messages=3) == [b"0:90", b"0:91", b"0:92"]
        await consumer.seek_to_begin(QUEUE)
        assert await bodies(consumer, 1, max_messages=1) == [b"0:0"]
        await consumer.seek_to_end(QUEUE)
        fill(cluster, 1, start=100)
        assert await bodies(consumer, 1) == [b"0:100"]
        await consumer.seek(QUEUE, 7)
        await asyncio.sleep(5.1)
        assert committed(cluster) == 7, "a seek may go back, and the group goes with it"
        with pytest.raises(ConfigError, match=r"offset=500 is outside of .* 0 to 101"):
            await consumer.seek(QUEUE, 500)


@in_loop(simulated)
async def test_a_paused_queue_gives_nothing_until_it_is_resumed(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 3)
        fill(cluster, 3, queue_id=1)
        await asyncio.sleep(1)
        consumer.pause([QUEUE])
        assert await bodies(consumer, 3) == [b"1:0", b"1:1", b"1:2"]
        assert await consumer.poll(30) == []
        asked = len(cluster.broker.requests(PullMessage))
        await asyncio.sleep(100)
        assert {pull.queue_id for pull in cluster.broker.requests(PullMessage)[asked:]} == {1}
        waiting = asyncio.ensure_future(consumer.poll(10))
        await asyncio.sleep(1)
        consumer.resume([QUEUE])
        assert [message.body for message in await waiting] == [b"0:0", b"0:1", b"0:2"]


@pytest.mark.parametrize("named", [True, False])
@in_loop(simulated)
async def test_a_queue_stays_paused_when_other_tags_are_wanted_of_its_topic(
    simulation: Simulation, /, named: bool
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        consumer = consumer_of(cluster, topic=None)
        await (
            consumer.assign([QUEUE, OTHER], "odd") if named else consumer.subscribe("orders", "odd")
        )
        async with consumer:
            fill(cluster, 4)
            fill(cluster, 4, queue_id=1)
            await asyncio.sleep(1)
            consumer.pause([QUEUE])
            await (
                consumer.assign([QUEUE, OTHER], "even")
                if named
                else consumer.subscribe("orders", "even")
            )
            assert await bodies(consumer, 2) == [b"1:0", b"1:2"]
            assert await consumer.poll(30) == []
            consumer.resume([QUEUE])
            assert await bodies(consumer, 2) == [b"0:0", b"0:2"]


async def ahead(simulation: Simulation, expected: int, **settings: Any) -> None:
    async with (
        scripted_cluster(simulation, queues=2) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        fill(cluster, 300)
        fill(cluster, 300, queue_id=1)
        await asyncio.sleep(5)
        pulls = cluster.broker.requests(PullMessage)
        far = (
            sum(max(pull.queue_offset for pull in pulls if pull.queue_id == i) for i in (0, 1)) + 20
        )
        assert expected <= far <= expected + 40, far
        assert len(await bodies(consumer, 600)) == 600


@in_loop(simulated)
async def test_no_more_is_pulled_ahead_than_the_bounds_allow(simulation: Simulation, /) -> None:
    await ahead(simulation, 200, queue_messages_max=100, pull_batch=10)
    await ahead(simulation, 150, messages_max=150, pull_batch=10)
    await ahead(simulation, 40, queue_bytes_max=2000, pull_batch=10)


@in_loop(simulated)
async def test_two_members_share_the_queues_and_go_on_where_the_other_was(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster, consumer_of(cluster) as one:
        for queue_id in range(4):
            fill(cluster, 10, queue_id=queue_id)
        first = await bodies(one, 40)
        assert await one.poll(1) == []
        async with consumer_of(cluster) as other:
            await until(lambda: len(one.assigned) == len(other.assigned) == 2)
            for queue_id in range(4):
                fill(cluster, 5, queue_id=queue_id, start=10)
            theirs = await bodies(other, 10)
            ours = await bodies(one, 10)
            assert set(theirs).isdisjoint(ours)
        await until(lambda: len(one.assigned) == 4)
        assert len(first) + len(set(ours + theirs)) == 60


@in_loop(simulated)
async def test_assigned_queues_are_read_whoever_else_is_there_and_may_be_exchanged(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=2) as cluster,
        consumer_of(cluster, topic=None) as consumer,
    ):
        fill(cluster, 4)
        fill(cluster, 4, queue_id=1)
        assert await consumer.queues("orders") == [QUEUE, OTHER]
        await consumer.assign([QUEUE])
        async with consumer_of(cluster, topic=None) as other:
            await other.assign([QUEUE])
            assert (
                await bodies(consumer, 4)
                == await bodies(other, 4)
                == [b"0:0", b"0:1", b"0:2", b"0:3"]
            )
        await consumer.assign([OTHER], tags="odd")
        assert await bodies(consumer, 2) == [b"1:1", b"1:3"]
        with pytest.raises(
            ConfigError,
            match=r"is not assigned .* its queues: "
            r"orders@broker-a:1",
        ):
            consumer.pause([QUEUE])
        with pytest.raises(ConfigError, match="queues assigned by name"):
            await consumer.subscribe("orders")
        assert cluster.broker.heartbeats[-1].consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"


@in_loop(simulated)
async def test_a_subscription_may_change_its_tags_and_end(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        consumer_of(cluster, tags="even") as consumer,
    ):
        fill(cluster, 4)
        assert await bodies(consumer, 2) == [b"0:0", b"0:2"]
        await consumer.poll(0.5)
        await consumer.subscribe("orders", "odd")
        fill(cluster, 4, start=4)
        assert await bodies(consumer, 2) == [b"0:5", b"0:7"]
        await consumer.unsubscribe("orders")
        fill(cluster, 4, start=8)
        assert await consumer.poll(30) == []
        assert consumer.assigned == []
        await consumer.subscribe("orders")
        with pytest.raises(ConfigError, match="make another one to assign"):
            await consumer.assign([QUEUE])


@in_loop(simulated)
async def test_a_broker_that_is_away_for_a_while_costs_no_message(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 5)
        assert len(await bodies(consumer, 5)) == 5
        await cluster.broker.stop()
        assert await consumer.poll(40) == []
        cluster.broker.committed.clear()
        await cluster.broker.start()
        fill(cluster, 5, start=5)
        assert await bodies(consumer, 5) == [b"0:%d" % i for i in range(5, 10)]
        await consumer.poll(6)
        assert committed(cluster) == 10, "what a killed broker may have forgotten is told again"


@in_loop(simulated)
async def test_an_offset_that_the_broker_does_not_have_goes_on_where_it_says(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.committed["readers", "orders", 0] = 99
        fill(cluster, 3)
        async with consumer_of(cluster) as consumer:
            assert await consumer.poll(6) == []
            fill(cluster, 2, start=3)
            assert await bodies(consumer, 2) == [b"0:3", b"0:4"]


async def listen(heard: list[tuple[str, int]], topic: str, queues: Sequence[MessageQueue]) -> None:
    heard.append((topic, len(queues)))
    raise ZeroDivisionError


@in_loop(simulated)
async def test_a_listener_hears_of_new_queues_within_half_a_minute(
    simulation: Simulation, /
) -> None:
    heard: list[tuple[str, int]] = []

    async with scripted_cluster(simulation, queues=1) as cluster:
        consumer = consumer_of(cluster)
        await consumer.on_queue_change("orders", partial(listen, heard))
        async with consumer:
            await asyncio.sleep(70)
            assert heard == []
            cluster.name_server.route("orders", cluster.broker, queues=3)
            await asyncio.sleep(31)
            assert heard == [("orders", 3)]
            assert len(consumer.assigned) == 3
            cluster.name_server.route("orders", cluster.broker, queues=2)
            await asyncio.sleep(31)
            assert heard == [("orders", 3), ("orders", 2)], "one that failed is called again"


@in_loop(simulated)
async def test_a_position_never_goes_back_by_itself(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        async with consumer_of(cluster) as one:
            for step in range(10):
                fill(cluster, 3, start=step * 3)
                fill(cluster, 3, queue_id=1, start=step * 3)
                async with consumer_of(cluster) as other:
                    for consumer in (one, other):
                        await consumer.poll(2)
                        await consumer.poll(1)
                    await asyncio.sleep(simulation.source("test").random() * 6)
        for queue_id in (0, 1):
            told = [
                request.commit_offset
                for request in cluster.broker.requests(UpdateConsumerOffset)
                if request.queue_id == queue_id
            ]
            assert told == sorted(told)
            assert len(told) > 3


def test_unusable_settings_and_uses_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match="messages_max=0 must be a whole number of messages, 1 or more"
    ):
        LitePullConsumer("127.0.0.1:1", group="g", messages_max=0)
    with pytest.raises(ConfigError, match="there are AVG, AVG_BY_CIRCLE"):
        LitePullConsumer("127.0.0.1:1", group="g", allocation="AGV")
    with pytest.raises(NotStartedError, match="async with LitePullConsumer"):
        asyncio.run(LitePullConsumer("127.0.0.1:1", group="g").poll())


@in_loop
async def test_a_real_broker_filters_finds_times_and_keeps_the_place_of_the_group() -> None:
    async with running_broker() as running, Producer(running.namesrv) as producer:
        await running.create_topic("prices", 2)
        for price in range(10):
            await producer.send(Message("prices", b"%d" % price, properties={"price": str(price)}))
        settings: dict[str, Any] = {
            "group": "g",
            "topic": "prices",
            "consume_from": ConsumeFrom.FIRST,
        }
        async with LitePullConsumer(running.namesrv, tags=Sql("price > 6"), **settings) as consumer:
            assert sorted(await bodies(consumer, 3)) == [b"7", b"8", b"9"]
            queue = consumer.assigned[0]
            assert await consumer.offset_for_time(queue, 0) == 0
            await consumer.commit()
            assert await consumer.committed(queue) == 5
        async with LitePullConsumer(running.namesrv, **settings) as consumer:
            assert await consumer.poll(0.2) == []
            await consumer.seek_to_begin(queue)
            assert len(await bodies(consumer, 5)) == 5


@in_loop
async def test_a_group_that_begins_at_a_time_is_not_given_what_came_before_it() -> None:
    async with (
        running_broker() as running,
        Producer(running.namesrv) as producer,
        PullConsumer(running.namesrv, group="x") as pulls,
    ):
        await running.create_topic("prices", 1)
        queue, count, times = MessageQueue("prices", "broker-test", 0), 0, set[int]()
        while len(times) < 2:  # until the clock has moved between two of them
            await producer.send("prices", b"%d" % count)
            count += 1
            times = {message.store_timestamp for message in (await pulls.pull(queue, 0)).messages}
        begin = datetime.fromtimestamp(max(times) / 1000, UTC)
        settings: dict[str, Any] = {"group": "g", "topic": "prices", "consume_from": begin}
        async with LitePullConsumer(running.namesrv, **settings) as consumer:
            assert await bodies(consumer, 1) == [b"%d" % (count - 1)]


@pytest.mark.parametrize("offset", ["3", 1.5, True, None, -1, 2**63])
@in_loop(simulated)
async def test_what_is_no_place_in_a_queue_is_refused_and_changes_nothing(
    simulation: Simulation, /, offset: Any
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 10)
        await consumer.poll(max_messages=2)
        with pytest.raises(ConfigError, match="offset="):
            await consumer.seek(QUEUE, offset)
        with pytest.raises(ConfigError, match="offset="):
            await consumer.commit({QUEUE: offset})
        with pytest.raises(ConfigError, match="was read up to 10; offset=11 is beyond: use seek"):
            await consumer.commit({QUEUE: 11})
        assert await bodies(consumer, 8) == [b"0:%d" % number for number in range(2, 10)]
