"""The push consumer against a scripted cluster, in virtual time: when a message is done, and what
survives what."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import START_MS, Simulation
from tests.stand_ins import async_does_nothing, async_raises
from tests.unit.client.push_consumers import committed, consumer_of, fill
from tests.unit.client.scripted_cluster import refusal, scripted_cluster
from tests.waits import until, until_count, until_some

from turbopump.client.allocation import allocate_by_configuration
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.queue_table import Assignment, QueueChange
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer, Retry
from turbopump.errors import ConfigError, NotStartedError, RouteNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.clients import GetConsumerListByGroup
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag


async def fail_at(consumer: PushConsumer, body: bytes) -> None:
    async for message in consumer:
        if message.body == body:
            raise ZeroDivisionError


# --- when is a message done?
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_message_is_done_when_the_next_is_asked_for_not_committed_after_a_break(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                if message.body == b"m2":
                    break
        assert committed(cluster) == 2


@in_loop(simulated)
async def test_after_an_exception_in_the_loop_the_message_comes_again(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with consumer_of(cluster) as consumer:
            with pytest.raises(ZeroDivisionError):
                await fail_at(consumer, b"m1")
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if message.body == b"m2":
                    message.done()
                    break
            assert bodies == [b"m1", b"m2"]
        assert committed(cluster) == 3


@in_loop(simulated)
async def test_what_was_not_committed_comes_to_the_next_consumer(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.body == b"m0"
                break
        async with consumer_of(cluster, consume_from=ConsumeFrom.LAST) as consumer:
            async for message in consumer:
                assert message.body == b"m0"
                break


async def note(answer: object, seen: Any, message: Delivery) -> object:
    seen.append(message.body)
    return answer


@pytest.mark.parametrize("answer", [None, True, False, 0, "later", object()])
@in_loop(simulated)
async def test_a_handler_that_returns_anything_but_retry_has_succeeded(
    simulation: Simulation, /, answer: object
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        seen = []

        fill(cluster, 3)
        async with consumer_of(cluster, handler=partial(note, answer, seen)):
            await until_count(seen, 3)
        assert committed(cluster) == 3


async def note_and_retry_and_fail(
    attempts: list[tuple[int, float]], how: str, simulation: Simulation, message: Delivery
) -> object:
    if message.body != b"m0":
        return None
    attempts.append((message.attempt, simulation.loop.time()))
    if message.attempt == 4:
        return None
    if how == "exception":
        raise ValueError("not now")
    if how == "message.retry()":
        message.retry()
        return None
    return Retry if how == "Retry" else Retry()


@pytest.mark.parametrize("how", ["exception", "Retry", "Retry()", "message.retry()"])
@in_loop(simulated)
async def test_a_failed_message_holds_the_offset_and_comes_again_after_a_growing_delay(
    simulation: Simulation, /, how: str
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        attempts: list[tuple[int, float]] = []

        fill(cluster, 3)
        async with consumer_of(
            cluster, handler=partial(note_and_retry_and_fail, attempts, how, simulation)
        ):
            await until_count(attempts, 3)
            await asyncio.sleep(0)
            assert committed(cluster) in (None, 0)
            await until_count(attempts, 4)
        assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4]
        times = [at for _, at in attempts]
        assert [round(later - at) for at, later in pairwise(times)] == [1, 2, 5]
        assert committed(cluster) == 3


async def note_and_retry(simulation: Simulation, times: Any, message: Delivery) -> object:
    times.append(simulation.loop.time())
    return Retry(delay=42) if message.attempt == 1 else None


@in_loop(simulated)
async def test_a_retry_may_name_its_delay(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        times = []

        fill(cluster, 1)
        async with consumer_of(cluster, handler=partial(note_and_retry, simulation, times)):
            await until_count(times, 2)
        assert 42 <= times[1] - times[0] < 42.1


async def note_calls_and_retry_and_fail(calls: Any, message: Delivery) -> None:
    calls.append(message.body)
    message.done()
    message.retry()
    raise ValueError("too late")


@in_loop(simulated)
async def test_the_first_word_about_a_message_counts(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        calls = []

        fill(cluster, 1)
        async with consumer_of(cluster, handler=partial(note_calls_and_retry_and_fail, calls)):
            await until_some(calls)
            await asyncio.sleep(60)
        assert calls == [b"m0"]
        assert committed(cluster) == 1


async def pause_and_count(running: Any, message: Delivery) -> None:
    running[0] += 1
    running[1] = max(running)
    await asyncio.sleep(1)
    running[0] -= 1


@in_loop(simulated)
async def test_only_so_many_handlers_run_at_once(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster:
        running = [0, 0]

        for queue_id in range(4):
            fill(cluster, 10, queue_id=queue_id)
        async with consumer_of(cluster, handler=partial(pause_and_count, running), concurrency=7):
            await asyncio.sleep(20)
        assert running == [0, 7]
        assert [committed(cluster, queue_id) for queue_id in range(4)] == [10] * 4


async def note_and_pause(finished: Any, message: Delivery) -> None:
    await asyncio.sleep(2)
    finished.append(message.body)


@in_loop(simulated)
async def test_closing_lets_running_handlers_finish_and_begins_no_new_ones(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        finished = []

        fill(cluster, 10)
        async with consumer_of(cluster, handler=partial(note_and_pause, finished), concurrency=2):
            await asyncio.sleep(1)
        assert sorted(finished) == [b"m0", b"m1"]
        assert committed(cluster) == 2


@in_loop(simulated)
async def test_a_handler_that_does_not_end_is_cancelled_at_close_and_its_message_kept(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:

        async def handle(message: Delivery) -> None:
            if message.body == b"m1":
                await asyncio.sleep(1e9)

        fill(cluster, 3)
        async with consumer_of(cluster, handler=handle, close_timeout=3.0):
            await asyncio.sleep(1)
        assert committed(cluster) == 1


async def read(consumer: Any) -> int:
    return len([message async for message in consumer])


@in_loop(simulated)
async def test_an_iteration_ends_when_the_consumer_is_closed(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        consumer = consumer_of(cluster)
        await consumer.start()

        fill(cluster, 3)
        reading = asyncio.create_task(read(consumer))
        await asyncio.sleep(1)
        await consumer.close()
        assert await reading == 3


# --- what it gets
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_tags_are_compared_exactly_though_their_hashes_collide(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        for tag in ("Aa", "BB", "C", ""):  # "Aa" and "BB" have one hash in Java
            cluster.broker.store(
                "orders", 0, tag.encode() or b"none", f"TAGS\x01{tag}\x02" if tag else ""
            )
        async with consumer_of(cluster, tags="Aa || C") as consumer:
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if message.body == b"C":
                    break
        assert bodies == [b"Aa", b"C"]
        data = cluster.broker.heartbeats[-1].consumer_data_set[0]
        subscription = next(s for s in data.subscription_data_set if s.topic == "orders")
        assert subscription.sub_string == "Aa || C"
        assert set(subscription.tags_set) == {"Aa", "C"}
        assert set(subscription.code_set) == {2112, 67}


@in_loop(simulated)
async def test_what_a_filter_leaves_out_does_not_hold_the_offset(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 40)
        async with consumer_of(cluster, tags="none"):
            await asyncio.sleep(10)
            assert committed(cluster) == 40


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [
        (ConsumeFrom.FIRST, b"m0"),
        (ConsumeFrom.LAST, b"new"),
        (datetime(2020, 1, 1, tzinfo=UTC), b"m1"),
    ],
)
@in_loop(simulated)
async def test_a_new_group_begins_where_it_wants(
    simulation: Simulation, /, consume_from: ConsumeFrom | datetime, expected: bytes
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with consumer_of(cluster, consume_from=consume_from) as consumer:
            cluster.broker.store("orders", 0, b"new")
            async for message in consumer:
                assert message.body == expected
                break


@pytest.mark.parametrize("lives_for", [1, 40])
@pytest.mark.parametrize("answers_zero", [True, False])
@in_loop(simulated)
async def test_where_a_group_began_is_its_place_though_nothing_came(
    simulation: Simulation, /, answers_zero: bool, lives_for: float
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        cluster.broker.answers_zero = answers_zero  # the queues are young
        async with consumer_of(cluster, consume_from=ConsumeFrom.LAST):
            await asyncio.sleep(lives_for)
        assert (committed(cluster), committed(cluster, 1)) == (0, 0)
        told = [
            one for one in cluster.broker.requests(UpdateConsumerOffset) if one.topic == "orders"
        ]
        assert sorted(one.queue_id for one in told) == [0, 1], "once is enough"
        fill(cluster, 2)
        cluster.broker.answers_zero = False  # they are not any more: LAST would be their end
        async with consumer_of(cluster, consume_from=ConsumeFrom.LAST) as consumer:
            assert [message.body for message in await consumer.take(2)] == [b"m0", b"m1"]


@in_loop(simulated)
async def test_a_held_pull_brings_a_message_at_once(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        await asyncio.sleep(40)  # two long polls have come back empty
        stored = simulation.loop.time()
        cluster.broker.store("orders", 0, b"x")
        async for _ in consumer:
            break
        assert simulation.loop.time() - stored < 0.01
        pulls = [p for p in cluster.broker.requests(PullMessage) if p.topic == "orders"]
        assert len(pulls) < 6
        assert {p.suspend_timeout_millis for p in pulls} == {15000}


@in_loop(simulated)
async def test_pulling_waits_when_too_much_is_in_flight(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 3000)
        await asyncio.sleep(5)
        pulled = max(p.queue_offset for p in cluster.broker.requests(PullMessage))
        assert 900 <= pulled < 1032
        count = 0
        async for _ in consumer:
            count += 1
            if count == 3000:
                break
        assert count == 3000


@in_loop(simulated)
async def test_messages_of_the_retry_topic_carry_the_topic_they_came_from(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        cluster.broker.store("%RETRY%readers", 0, b"again", "RETRY_TOPIC\x01orders\x02")
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert (message.topic, message.body) == ("orders", b"again")
                message.done()
                break
            assert consumer.queues == [
                queue for queue in consumer.queues if queue.topic == "orders"
            ]
        assert cluster.broker.committed["readers", "%RETRY%readers", 0] == 1


@in_loop(simulated)
async def test_a_member_with_configured_queues_gets_what_has_failed_again(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        cluster.broker.store("%RETRY%readers", 0, b"once more", "RETRY_TOPIC\x01orders\x02")
        configured = [MessageQueue("orders", "broker-a", 1)]
        async with consumer_of(
            cluster, allocation=allocate_by_configuration(configured)
        ) as consumer:
            assert consumer.queues == configured
            async with asyncio.timeout(60):
                (message,) = await consumer.take(1)
            assert (message.topic, message.body) == ("orders", b"once more")


@in_loop(simulated)
async def test_several_topics_and_one_more_while_running(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        for topic in ("invoices", "returns"):
            cluster.name_server.route(topic, cluster.broker, queues=1)
        for topic in ("orders", "invoices", "returns"):
            cluster.broker.store(topic, 0, topic.encode())
        consumer = consumer_of(cluster)
        await consumer.subscribe("invoices")
        async with consumer:
            seen = set()
            async for message in consumer:
                seen.add(message.body)
                if len(seen) == 2:
                    await consumer.subscribe("returns")
                if len(seen) == 3:
                    break
        assert seen == {b"orders", b"invoices", b"returns"}


# --- sharing
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_two_members_share_the_queues_within_two_seconds_and_the_last_gets_them_all(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster, consumer_of(cluster) as one:
        assert [queue.queue_id for queue in one.queues] == [0, 1, 2, 3]
        other = consumer_of(cluster)
        await other.start()
        await asyncio.sleep(2)
        first, second = sorted((one, other), key=lambda consumer: consumer.client_id)
        assert [queue.queue_id for queue in first.queues] == [0, 1]
        assert [queue.queue_id for queue in second.queues] == [2, 3]
        await other.close()
        await asyncio.sleep(2)
        assert [queue.queue_id for queue in one.queues] == [0, 1, 2, 3]


@in_loop(simulated)
async def test_a_change_of_the_group_without_a_notice_is_seen_within_20_s(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster, consumer_of(cluster) as consumer:
        members = cluster.broker.members["readers"]
        members["zzz"] = members[consumer.client_id]
        await asyncio.sleep(20.5)
        assert len(consumer.queues) == 2
        del members["zzz"]
        await asyncio.sleep(20.5)
        assert len(consumer.queues) == 4


@in_loop(simulated)
async def test_a_consumer_that_a_broker_has_forgotten_introduces_itself_again(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster, consumer_of(cluster) as consumer:
        cluster.broker.members["readers"].clear()
        await asyncio.sleep(22)
        assert list(cluster.broker.members["readers"]) == [consumer.client_id]
        assert len(consumer.queues) == 4


@in_loop(simulated)
async def test_what_is_done_before_a_queue_moves_is_not_done_again(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster:
        seen: list[tuple[int, bytes]] = []

        async def handle(message: Delivery) -> None:
            seen.append((message.queue_id, message.body))

        for queue_id in range(4):
            fill(cluster, 20, queue_id=queue_id)
        async with consumer_of(cluster, handler=handle):
            await until_count(seen, 80)
            await asyncio.sleep(6)  # who joins may ask before the former owner hears of it
            async with consumer_of(cluster, handler=handle):
                await asyncio.sleep(30)
        assert len(seen) == len(set(seen)) == 80


@in_loop(simulated)
async def test_a_message_in_hand_when_its_queue_moves_no_longer_counts_here(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        for queue_id in range(2):
            fill(cluster, 1, queue_id=queue_id)
        async with consumer_of(cluster) as one:
            held = await one.take(2)
            async with consumer_of(cluster) as other:
                await asyncio.sleep(2)
                (mine,) = await other.take(1)
                twin = next(message for message in held if message.queue_id == mine.queue_id)
                twin.done()  # too late
                await one.commit(acknowledged=True)
                assert committed(cluster, mine.queue_id) in (None, 0)
                mine.done()
                await other.commit(acknowledged=True)
                assert committed(cluster, mine.queue_id) == 1


@in_loop(simulated)
async def test_a_topic_that_does_not_exist_yet_is_waited_for(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, topic=None) as cluster:
        cluster.name_server.known_brokers["broker-a"] = cluster.broker.data
        async with consumer_of(cluster) as consumer:
            await asyncio.sleep(60)
            assert consumer.queues == []
            cluster.name_server.route("orders", cluster.broker, queues=2)
            await asyncio.sleep(3)
            assert len(consumer.queues) == 2


# --- trouble
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_broker_that_restarts_is_introduced_again_and_nothing_is_lost(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 1)
        stream = aiter(consumer)
        assert (await anext(stream)).body == b"m0"
        await cluster.broker.stop()
        await asyncio.sleep(30)
        beats = len(cluster.broker.heartbeats)
        await cluster.broker.start()
        back = simulation.loop.time()
        cluster.broker.store("orders", 0, b"after")
        assert (await anext(stream)).body == b"after"
        assert simulation.loop.time() - back < 2
        assert len(cluster.broker.heartbeats) > beats


@in_loop(simulated)
async def test_after_a_silent_loss_of_the_connection_messages_flow_again_within_a_minute(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        await asyncio.sleep(7)
        cluster.broker.go_deaf()
        silent_since = simulation.loop.time()
        fill(cluster, 1)
        async for message in consumer:
            assert message.body == b"m0"
            break
        assert simulation.loop.time() - silent_since < 60


@in_loop(simulated)
async def test_offsets_are_committed_again_after_the_connection_was_lost(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)

        async with consumer_of(cluster, handler=async_does_nothing):
            await asyncio.sleep(6)
            assert committed(cluster) == 3
            await cluster.broker.stop()
            cluster.broker.committed.clear()  # killed before it had saved them
            await cluster.broker.start()
            await asyncio.sleep(8)
            assert committed(cluster) == 3


@in_loop(simulated)
async def test_a_pull_commits_only_in_a_queue_whose_place_has_been_answered_for(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        async with consumer_of(cluster, handler=async_does_nothing):
            for _ in range(12):
                fill(cluster, 2)
                fill(cluster, 2, queue_id=1)
                await asyncio.sleep(1)
        for queue_id in range(2):
            told = [
                type(one)
                for one, _ in cluster.broker.received
                if (
                    isinstance(one, UpdateConsumerOffset)
                    or (isinstance(one, PullMessage) and one.sys_flag & PullSysFlag.COMMIT_OFFSET)
                )
                and (one.topic, one.queue_id) == ("orders", queue_id)
            ]
            assert told[0] is UpdateConsumerOffset
            assert PullMessage in told


@in_loop(simulated)
async def test_a_broker_that_has_forgotten_all_places_is_told_the_first_one_alone_again(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=4) as cluster,
        consumer_of(cluster, handler=async_does_nothing),
    ):
        for queue_id in range(4):
            fill(cluster, 3, queue_id=queue_id)
        await asyncio.sleep(6)
        await cluster.broker.stop()
        cluster.broker.committed.clear()  # killed before it had saved them
        cluster.broker.update_delays += [0.4, 0.3, 0.2, 0.1]
        await cluster.broker.start()
        await asyncio.sleep(12)
        assert [committed(cluster, queue_id) for queue_id in range(4)] == [3, 3, 3, 3]


@pytest.mark.parametrize("code", [24, 25, 1, 2, 14, 16, 215])
@in_loop(simulated)
async def test_a_pull_that_is_refused_is_tried_again_from_the_same_place(
    simulation: Simulation, /, code: int
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        cluster.broker.script[RequestCode.PULL_MESSAGE].extend([refusal(code)] * 3)
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.body == b"m0"
                break
            assert simulation.loop.time() < 5


@in_loop(simulated)
async def test_an_offset_outside_of_the_queue_goes_on_where_the_broker_says(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.min_offset["orders", 0] = 100
        fill(cluster, 2)
        cluster.broker.committed["readers", "orders", 0] = 7
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.queue_offset == 100
                break
        cluster.broker.committed["readers", "orders", 0] = 5000
        async with consumer_of(cluster) as consumer:
            await asyncio.sleep(1)
            cluster.broker.store("orders", 0, b"new")
            async for message in consumer:
                assert message.body == b"new"
                break


@in_loop(simulated)
async def test_an_answer_that_cannot_be_read_does_not_end_the_consumer(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        broken = cluster.broker.pulled(
            PullMessage(consumer_group="readers", topic="orders", queue_id=0, queue_offset=0), 0, 1
        )
        broken.body = b"\x00" * 50
        cluster.broker.script[RequestCode.PULL_MESSAGE].append(broken)
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.body == b"m0"
                break


@in_loop(simulated)
async def test_a_message_that_stays_damaged_is_left_out_and_the_others_are_delivered(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 4)
        entries = cluster.broker.entries["orders", 0]
        entries[1] = entries[1].replace(b"m1", b"x1")
        found = []
        async for message in consumer:
            found.append(message.body)
            if len(found) == 3:
                break
        assert found == [b"m0", b"m2", b"m3"]
        assert (
            "damaged message left out topic=orders broker=broker-a queue=0 offset=1 cause=bodyCRC"
        ) in caplog.text
        fill(cluster, 1)
        async for message in consumer:
            assert message.queue_offset >= 3, (
                "the damaged one does not hold up what comes behind it"
            )
            if message.queue_offset == 4:
                break


@in_loop(simulated)
async def test_when_members_cannot_be_asked_everything_stays_and_is_looked_at_again_soon(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster, consumer_of(cluster) as consumer:
        cluster.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP].extend(
            [refusal(ResponseCode.SYSTEM_ERROR)] * 2
        )
        await asyncio.sleep(21)
        asked = len(cluster.broker.requests(GetConsumerListByGroup))
        assert len(consumer.queues) == 2
        await asyncio.sleep(2)
        assert len(cluster.broker.requests(GetConsumerListByGroup)) > asked


@in_loop(simulated)
async def test_the_offset_query_that_fails_is_repeated_before_the_queue_is_begun(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        cluster.broker.committed["readers", "orders", 0] = 1
        cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET].append(
            refusal(ResponseCode.SYSTEM_ERROR)
        )
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                assert message.body == b"m1"
                break


@in_loop(simulated)
async def test_without_any_name_server_the_start_fails_with_the_cause(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        await cluster.name_server.stop()
        with pytest.raises(RouteNotFoundError, match="no name server answers"):
            await consumer_of(cluster).start()


@in_loop(simulated)
async def test_leaving_unregisters_and_commits(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        async with consumer_of(cluster) as consumer:
            client_id = consumer.client_id
            (message,) = await consumer.take(10)
            message.done()
        assert committed(cluster) == 1
        assert [
            (f.client_id, f.consumer_group, f.producer_group) for f in cluster.broker.farewells
        ] == [(client_id, "readers", None)]


@in_loop(simulated)
async def test_wrong_use_is_said_in_a_sentence(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        consumer = consumer_of(cluster)
        with pytest.raises(NotStartedError, match="async with PushConsumer"):
            aiter(consumer)

        async with consumer_of(cluster, handler=async_does_nothing) as handling:
            with pytest.raises(ConfigError, match="has a handler"):
                aiter(handling)
        with pytest.raises(ConfigError, match="nothing to consume"):
            await consumer_of(cluster, topic=None).start()
        for settings, fault in (
            ({"tags": "||"}, "names no tag"),
            ({"topic": "a b"}, "outside a-z"),
            ({"group": ""}, "group name is empty"),
            ({"concurrency": 0}, "a whole number of calls at once, 1 or more"),
            ({"allocation": "FAIR"}, "there (is|are) AVG"),
        ):
            with pytest.raises(ConfigError, match=fault):
                consumer_of(cluster, **settings)


async def note_handled_and_pause(handled: list[bytes], message: Delivery) -> None:
    if len(handled) == 3:
        await asyncio.sleep(60)
    handled.append(message.body)


@in_loop(simulated)
async def test_a_close_whose_caller_gave_up_waiting_goes_on_and_the_next_one_waits_for_it(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)
        handled: list[bytes] = []

        consumer = consumer_of(
            cluster,
            handler=partial(note_handled_and_pause, handled),
            concurrency=1,
            close_timeout=5.0,
        )
        await consumer.start()
        await until_count(handled, 3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.5)
        assert not cluster.broker.farewells
        await consumer.close()
        assert committed(cluster) == 3
        assert [farewell.consumer_group for farewell in cluster.broker.farewells] == ["readers"]
        await consumer.wait_closed()


@in_loop(simulated)
async def test_a_handler_may_close_its_consumer_and_its_message_is_done(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 10)
        handled: list[bytes] = []

        async def handle(message: Delivery) -> None:
            handled.append(message.body)
            if len(handled) == 3:
                await consumer.close()

        consumer = consumer_of(cluster, handler=handle, concurrency=1, close_timeout=5.0)
        await consumer.start()
        began = simulation.loop.time()
        await consumer.wait_closed()
        assert simulation.loop.time() - began < 1
        assert (handled, committed(cluster)) == ([b"m0", b"m1", b"m2"], 3)
        assert [farewell.consumer_group for farewell in cluster.broker.farewells] == ["readers"]


@in_loop(simulated)
async def test_a_consumer_leaves_its_group_though_closing_it_fails(
    simulation: Simulation, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        consumer = consumer_of(cluster)
        await consumer.start()
        monkeypatch.setattr(Assignment, "close", async_raises(ZeroDivisionError))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await consumer.close()
        assert [farewell.consumer_group for farewell in cluster.broker.farewells] == ["readers"]


# --- how much is in hand
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "in_hand"),
    [
        ({"queue_messages_max": 4, "pull_batch": 2}, [4, 4]),
        ({"topic_messages_max": 12, "pull_batch": 3}, [6, 6]),
        ({"queue_span_max": 2, "pull_batch": 2}, [4, 4]),
        ({"queue_bytes_max": 1, "pull_batch": 1}, [1, 1]),
        ({"topic_bytes_max": 2, "pull_batch": 1}, [1, 1]),
    ],
)
@in_loop(simulated)
async def test_pulling_waits_while_as_much_is_in_hand_as_was_allowed(
    simulation: Simulation, /, limits: dict[str, int], in_hand: list[int]
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 50)
        fill(cluster, 50, queue_id=1)
        waits, handled = asyncio.Event(), 0

        async def handle(message: Delivery) -> None:
            nonlocal handled
            await waits.wait()
            handled += 1

        async with consumer_of(cluster, handler=handle, concurrency=1, **limits) as consumer:
            await asyncio.sleep(5)
            infos = consumer.lifecycle.ready().assignment.infos()
            mine = [infos[queue] for queue in sorted(infos) if queue.topic == "orders"]
            assert [info.cached_msg_count for info in mine] == in_hand
            assert [info.cached_msg_max_offset for info in mine] == [count - 1 for count in in_hand]
            assert all(
                info.last_pull_timestamp and not info.last_consume_timestamp for info in mine
            )
            waits.set()
            await until(lambda: handled == 100)
            infos = consumer.lifecycle.ready().assignment.infos()
            assert all(
                info.last_consume_timestamp
                for queue, info in infos.items()
                if queue.topic == "orders"
            )


@in_loop(simulated)
async def test_a_queue_may_hold_more_when_another_of_its_topic_goes(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 50)
        async with consumer_of(cluster, topic_messages_max=10, pull_batch=1) as consumer:
            await asyncio.sleep(5)
            assignment = consumer.lifecycle.ready().assignment
            first = MessageQueue("orders", "broker-a", 0)
            assert assignment.infos()[first].cached_msg_count == 5
            await assignment.apply(
                QueueChange(gained=(), lost=(MessageQueue("orders", "broker-a", 1),))
            )
            await asyncio.sleep(5)
            assert assignment.infos()[first].cached_msg_count == 10


@pytest.mark.parametrize(
    "setting",
    ["pull_batch", "queue_messages_max", "queue_bytes_max", "queue_span_max", "topic_messages_max"],
)
def test_limits_that_allow_nothing_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        PushConsumer("127.0.0.1:9876", group="g", topic="t", **{setting: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, "2", None, 1.5])
@in_loop(simulated)
async def test_a_batch_of_no_size_is_refused_and_takes_nothing(
    simulation: Simulation, /, count: object
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 2)
        with pytest.raises(ConfigError, match="count="):
            await consumer.take(count)  # type: ignore[arg-type]
        assert [message.body for message in await consumer.take(5)] == [b"m0"]


@in_loop(simulated)
async def test_a_member_with_a_maximum_of_its_own_tells_it_and_when_it_was_started(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        async with consumer_of(cluster, max_reconsume_times=3):
            await until_some(cluster.broker.heartbeats)
            (told,) = cluster.broker.heartbeats[-1].consumer_data_set
            assert (told.max_reconsume_times, told.started_at) == (3, START_MS)
        async with consumer_of(cluster):
            await until(
                lambda: (
                    cluster.broker.heartbeats[-1].consumer_data_set[0].max_reconsume_times is None
                )
            )
