"""Ordered push consumers against a scripted cluster, in virtual time: one message at a time, under
a lock, retried in place."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.push_consumers import committed, consumer_of, fill, locked
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_count, until_has, until_some

from turbopump.client.allocation import allocate_by_configuration
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.queue_locks import RELIANCE_S, RENEWAL_INTERVAL_S
from turbopump.client.push_consumer import PushConsumer
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.message.properties import decode_properties
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.assignment import UnlockBatchMq
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2


def ordered(cluster: ScriptedCluster, **settings: object) -> PushConsumer:
    return consumer_of(cluster, ordered=True, **settings)


class Hands:
    """A handler that notes what it gets and when, and lets a test decide how it ends."""

    def __init__(self, *, seconds: float = 0.0, failing: dict[bytes, int] | None = None) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self.times: list[float] = []
        self.running = 0
        self.most = 0
        self.seconds = seconds
        self.failing = dict(failing or {})

    async def __call__(self, message: Delivery) -> Retry | None:
        self.seen.append((message.body, message.reconsume_times))
        self.times.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.failing.get(message.body, 0):
            self.failing[message.body] -= 1
            return Retry()
        return None


@in_loop(simulated)
async def test_one_message_of_a_queue_at_a_time_and_many_queues_at_once(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=4) as cluster:
        for queue_id in range(4):
            fill(cluster, 10, queue_id=queue_id)
        hands = Hands(seconds=1.0)
        begun = simulation.loop.time()
        async with ordered(cluster, handler=hands):
            await until_count(hands.seen, 40)
            assert hands.most == 4
            assert 9 <= simulation.loop.time() - begun < 11
            for queue in range(4):
                assert sorted(hands.seen[queue::4]) == hands.seen[queue::4]


@in_loop(simulated)
async def test_async_for_gets_the_queue_in_order_and_the_next_only_when_the_last_is_done(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 5)
        async with ordered(cluster) as consumer:
            first, *others = await consumer.take(10)
            assert (first.body, others) == (b"m0", [])
            first.done()
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if message.body == b"m4":
                    message.done()
                    break
            assert bodies == [b"m1", b"m2", b"m3", b"m4"]
        assert committed(cluster) == 5


@in_loop(simulated)
async def test_a_failed_message_is_handled_again_in_place_after_a_second_without_limit(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        hands = Hands(failing={b"m1": 20})
        async with ordered(cluster, handler=hands):
            await until_count(hands.seen, 23)
        assert hands.seen == [(b"m0", 0), *((b"m1", n) for n in range(21)), (b"m2", 0)]
        assert all(0.999 <= hands.times[n + 1] - hands.times[n] < 1.1 for n in range(1, 21))
        assert cluster.broker.requests(ConsumerSendMsgBack) == []
        assert committed(cluster) == 3


async def note_and_retry(
    simulation: Simulation, times: list[float], message: Delivery
) -> Retry | None:
    times.append(simulation.loop.time())
    return {1: Retry(), 2: Retry(delay=7)}.get(message.attempt)


@in_loop(simulated)
async def test_the_pause_is_settable_and_retry_may_ask_for_its_own(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        times: list[float] = []

        async with ordered(
            cluster, handler=partial(note_and_retry, simulation, times), suspend_time=0.25
        ):
            await until_count(times, 3)
        assert [round(times[1] - times[0], 1), round(times[2] - times[1], 1)] == [0.2, 7.0]


@in_loop(simulated)
async def test_after_its_last_attempt_a_message_is_a_dead_letter_and_the_next_follows(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        fill(cluster, 2)
        hands = Hands(failing={b"m0": 99})
        async with ordered(cluster, handler=hands, max_reconsume_times=2):
            await until_has(hands.seen, (b"m1", 0))
        assert hands.seen[:3] == [(b"m0", 0), (b"m0", 1), (b"m0", 2)]
        # this broker knows no dead letters and brings it again
        sent, *_ = cluster.broker.requests(SendMessageV2)
        assert (sent.topic, sent.reconsume_times, sent.max_reconsume_times) == (
            "%RETRY%readers",
            3,
            2,
        )
        assert decode_properties(sent.properties)["RETRY_TOPIC"] == "orders"


@in_loop(simulated)
async def test_a_dead_letter_that_nobody_takes_is_handled_on_in_place(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        hands = Hands(failing={b"m0": 5})
        async with ordered(cluster, handler=hands, max_reconsume_times=1):
            await until_has(hands.seen, (b"m1", 0))
        assert [body for body, _ in hands.seen] == [b"m0"] * 6 + [b"m1"]


@in_loop(simulated)
async def test_locks_are_taken_before_a_pull_renewed_every_20_seconds_and_given_back(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        async with ordered(cluster, handler=Hands()) as consumer:
            assert consumer.queues == [MessageQueue("orders", "broker-a", n) for n in range(2)]
            assert locked(cluster) == [[0, 1]]
            await asyncio.sleep(2 * RENEWAL_INTERVAL_S + 5)
            assert locked(cluster) == [[0, 1]] * 3
        assert sorted(locked(cluster, UnlockBatchMq)) == [[0], [1]]
        codes = [int(request.code) for request, _ in cluster.broker.received]
        assert codes.index(RequestCode.LOCK_BATCH_MQ) < codes.index(RequestCode.PULL_MESSAGE)


@in_loop(simulated)
async def test_configured_queues_are_consumed_in_order_while_their_locks_are_renewed(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        hands = Hands()
        allocation = allocate_by_configuration([MessageQueue("orders", "broker-a", 1)])
        async with ordered(cluster, handler=hands, allocation=allocation):
            for minute in range(3):
                cluster.broker.store("orders", 1, b"%d" % minute)
                await until_count(hands.seen, minute + 1)
                await asyncio.sleep(60)
        assert [body for body, _ in hands.seen] == [b"0", b"1", b"2"]
        assert set(map(tuple, locked(cluster))) == {(1,)}


@in_loop(simulated)
async def test_a_queue_that_another_has_locked_is_waited_for(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        cluster.broker.holders["readers", MessageQueue("orders", "broker-a", 0)] = "another"
        hands = Hands()
        async with ordered(cluster, handler=hands):
            await asyncio.sleep(30)
            assert hands.seen == []
            cluster.broker.holders.clear()
            await asyncio.sleep(2.5)
            assert hands.seen == [(b"m0", 0)]


@in_loop(simulated)
async def test_a_queue_given_back_after_a_notice_is_begun_at_once_however_long_the_wait(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        cluster.broker.holders["readers", MessageQueue("orders", "broker-a", 0)] = "another"
        hands = Hands()
        async with ordered(cluster, handler=hands) as consumer:
            await asyncio.sleep(30)
            cluster.broker.notify("readers")
            await asyncio.sleep(0.1)
            cluster.broker.holders.clear()
            await asyncio.sleep(0.3)
            assert consumer.queues == [MessageQueue("orders", "broker-a", 0)]


@in_loop(simulated)
async def test_without_a_lock_answer_for_30_seconds_nothing_is_handled_until_it_is_locked(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 200)
        hands = Hands(seconds=1.0)
        async with ordered(cluster, handler=hands) as consumer:
            await asyncio.sleep(0.5)
            cluster.broker.script[RequestCode.LOCK_BATCH_MQ].extend([None] * 10_000)
            await asyncio.sleep(60)
            seen = len(hands.seen)
            assert RELIANCE_S - 1 <= seen <= RELIANCE_S + 1
            assert consumer.queues == []
            cluster.broker.script.clear()
            await until(lambda: len(hands.seen) >= 200)
        assert [body for body, _ in hands.seen] == [b"m%d" % n for n in range(200)], (
            "none twice, for what was done is committed"
        )


@in_loop(simulated)
async def test_a_queue_whose_lock_is_refused_is_left_at_once_and_its_offset_untouched(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 100)
        hands = Hands(seconds=1.0)
        async with ordered(cluster, handler=hands):
            await until_count(hands.seen, 18)
            cluster.broker.holders["readers", MessageQueue("orders", "broker-a", 0)] = "another"
            await asyncio.sleep(6)  # over the renewal
            cluster.broker.committed["readers", "orders", 0] = 77
            seen = len(hands.seen)
            await asyncio.sleep(30)
            assert len(hands.seen) == seen
            assert committed(cluster) == 77
        assert committed(cluster) == 77


@in_loop(simulated)
async def test_a_queue_is_unlocked_only_when_its_last_handler_ended_and_is_committed(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 5, queue_id=1)
        slow = Hands(seconds=15)
        async with ordered(cluster, handler=slow, instance_name="a") as first:
            await until_some(slow.seen)
            quick = Hands()
            async with ordered(cluster, handler=quick, instance_name="b") as second:
                await until(lambda: len(first.queues) == 1)
                await asyncio.sleep(5)
                assert (quick.seen, second.queues) == ([], [])
                await until(lambda: len(second.queues) == 1)
                await until_count(quick.seen, 4)
        assert [body for body, _ in slow.seen + quick.seen] == [b"m0", b"m1", b"m2", b"m3", b"m4"]


@in_loop(simulated)
async def test_a_close_does_not_wait_for_ever_and_leaves_the_lock_of_a_running_handler(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        consumer = ordered(cluster, close_timeout=2.0)
        await consumer.start()
        (message,) = await consumer.take(1)
        begun = simulation.loop.time()
        await consumer.close()
        assert simulation.loop.time() - begun < 3
        assert locked(cluster, UnlockBatchMq) == []
        message.done()  # too late: nobody hears of it
        await asyncio.sleep(1)
        assert committed(cluster) in (None, 0)


@in_loop(simulated)
async def test_a_handler_that_a_close_cancels_holds_its_lock_no_longer(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        hands = Hands(seconds=100)
        async with ordered(cluster, handler=hands, close_timeout=1.0):
            await until_some(hands.seen)
        assert locked(cluster, UnlockBatchMq) == [[0]]


@in_loop(simulated)
async def test_where_the_broker_moves_the_offset_the_message_in_hand_ends_first(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        hands = Hands(seconds=5)
        async with ordered(cluster, handler=hands):
            await until_some(hands.seen)
            cluster.broker.entries["orders", 0].clear()
            cluster.broker.min_offset["orders", 0] = 10
            fill(cluster, 2)
            await until_count(hands.seen, 3)
        assert hands.most == 1
        assert committed(cluster) == 12


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="suspend_time"):
        PushConsumer("127.0.0.1:9876", group="g", ordered=True, suspend_time=0)
    with pytest.raises(
        ConfigError,
        match=r"suspend_time=5 requires ordered=True.* "
        r"Retry\(delay=seconds\)",
    ):
        PushConsumer("127.0.0.1:9876", group="g", suspend_time=5)


@in_loop(simulated)
async def test_who_comes_again_under_the_name_that_holds_the_lock_has_its_queues_at_once(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        left = ordered(cluster, instance_name="me", close_timeout=0.1)
        await left.start()
        await left.take(1)
        await left.close()  # nobody says what became of the message: the lock stays
        heir = Hands()
        begun = simulation.loop.time()
        async with ordered(cluster, handler=heir, instance_name="me"):
            await until_count(heir.seen, 3)
        assert simulation.loop.time() - begun < 1
        assert [body for body, _ in heir.seen] == [b"m0", b"m1", b"m2"]


@in_loop(simulated)
async def test_a_reset_holds_while_the_message_in_hand_ends_and_if_the_queue_is_lost(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 10)
        queue = MessageQueue("orders", "broker-a", 0)
        hands = Hands(seconds=10)
        async with ordered(cluster, handler=hands, close_timeout=60) as consumer:
            await until_count(hands.seen, 4)
            assert consumer.lifecycle.running is not None
            consumer.lifecycle.running.assignment.reset({queue: 1})
            consumer.lifecycle.running.assignment.reset({queue: 2})
            await asyncio.sleep(6)
            assert (committed(cluster), hands.running) == (2, 1)
            await until_count(hands.seen, 5)
            assert (hands.seen[4], hands.most) == ((b"m2", 0), 1)
            consumer.lifecycle.running.assignment.reset({queue: 0})
        assert committed(cluster) == 0


async def handle(seen: list[tuple[bytes, int]], message: Delivery) -> Retry | None:
    seen.append((message.body, message.attempt))
    if len(seen) == 1:
        message.retry(delay=0.1)
        await asyncio.sleep(1)
    elif len(seen) == 2:
        await asyncio.sleep(5)
        return Retry(delay=0.1)
    return None


@in_loop(simulated)
async def test_a_result_after_a_request_for_a_retry_does_not_count_for_the_next_attempt(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        seen: list[tuple[bytes, int]] = []

        async with ordered(cluster, handler=partial(handle, seen), concurrency=2):
            await until_count(seen, 4)
        assert seen == [(b"m0", 1), (b"m0", 2), (b"m0", 3), (b"m1", 1)]
