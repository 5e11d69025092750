"""In order, several messages at a time: of each queue one list, the next when all of it is dealt
with; what failed comes again together. Against a scripted cluster, in virtual time. (With brokers
that fail: ``tests/simulation/test_handler_batches.py``.)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import returns
from tests.unit.client.consumer.handled_lists import Lists, bodies, fails
from tests.unit.client.push_consumers import committed, consumer_of, fill, locked
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_count

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.push_consumer import PushConsumer
from turbopump.protocol.requests.assignment import UnlockBatchMq
from turbopump.protocol.requests.send import SendMessageV2


@dataclass
class Place:
    """Where messages come from."""

    cluster: ScriptedCluster

    def fill(self, count: int, *, queue_id: int = 0) -> None:
        fill(self.cluster, count, queue_id=queue_id)

    def done(self, queue_id: int = 0) -> int:
        """How many messages of the queue are done."""
        return committed(self.cluster, queue_id) or 0

    def consumer(self, handler: object, count: int, **settings: Any) -> PushConsumer:
        return consumer_of(
            self.cluster, handler=handler, handler_batch=count, ordered=True, **settings
        )

    def dead(self) -> list[bytes]:
        """What was sent to be a dead letter."""
        return [
            body for request, body in self.cluster.broker.received if type(request) is SendMessageV2
        ]


@asynccontextmanager
async def place_of(simulation: Simulation, queues: int = 1) -> AsyncIterator[Place]:
    async with scripted_cluster(simulation, queues=queues) as cluster:
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        yield Place(cluster)


def once(*failing: bytes, **retry: Any) -> Callable[[list[Delivery]], None]:
    """The first time, each of these is wanted again."""
    failed: set[bytes] = set()

    def fate(messages: list[Delivery]) -> None:
        for message in messages:
            if message.body in failing and message.body not in failed:
                failed.add(message.body)
                message.retry(**retry)

    return fate


async def note_and_pause(
    got: dict[int, list[list[bytes]]], most: set[int], running: set[int], messages: list[Delivery]
) -> None:
    (queue_id,) = {message.queue_id for message in messages}
    assert queue_id not in running
    running.add(queue_id)
    most.add(len(running))
    got[queue_id].append([message.body for message in messages])
    await asyncio.sleep(1)
    running.remove(queue_id)


@in_loop(simulated)
async def test_of_each_queue_one_list_at_a_time_in_order_and_the_queues_side_by_side(
    simulation: Simulation, /
) -> None:
    got: dict[int, list[list[bytes]]] = {0: [], 1: [], 2: []}
    running: set[int] = set()
    most: set[int] = set()

    async with place_of(simulation, queues=3) as place:
        for queue_id in range(3):
            place.fill(10, queue_id=queue_id)
        async with place.consumer(partial(note_and_pause, got, most, running), 4):
            await until(lambda: sum(len(list_) for lists in got.values() for list_ in lists) == 30)
            await asyncio.sleep(2)
        for queue_id in range(3):
            assert got[queue_id] == [bodies(0, 4), bodies(4, 8), bodies(8, 10)]
            assert place.done(queue_id) == 10
        assert max(most) == 3


def twice(
    attempts: list[int],
    fate: Callable[[list[Delivery]], object],
    times: list[float],
    messages: list[Delivery],
) -> object:
    times.append(asyncio.get_running_loop().time())
    attempts.append(messages[0].attempt)
    return fate(messages) if messages[0].body == b"m0" and messages[0].attempt <= 2 else None


@pytest.mark.parametrize("fate", [fails, returns(Retry())], ids=["raises", "Retry"])
@in_loop(simulated)
async def test_a_list_that_fails_is_handled_again_in_place_as_a_whole(
    simulation: Simulation, /, fate: Callable[[list[Delivery]], object]
) -> None:
    times: list[float] = []
    attempts: list[int] = []

    lists = Lists(partial(twice, attempts, fate, times))
    async with place_of(simulation) as place:
        place.fill(5)
        async with place.consumer(lists, 3, suspend_time=7):
            await until_count(lists.got, 4)
            await asyncio.sleep(1)
        assert lists.got == [*[bodies(0, 3)] * 3, bodies(3, 5)]
        assert attempts == [1, 2, 3, 1]
        assert [round(later - earlier) for earlier, later in pairwise(times)] == [7, 7, 0]
        assert place.done() == 5


@in_loop(simulated)
async def test_messages_before_a_failed_one_are_done_and_those_behind_come_again_with_it(
    simulation: Simulation, /
) -> None:
    lists = Lists(once(b"m2"))
    async with place_of(simulation) as place:
        place.fill(6)
        async with place.consumer(lists, 4, suspend_time=30):
            await until_count(lists.got, 1)
            await asyncio.sleep(10)
            assert place.done() == 2
            await until_count(lists.got, 2)
            await asyncio.sleep(1)
        assert lists.got == [bodies(0, 4), bodies(2, 6)], "filled up with what follows"
        assert place.done() == 6


def first_again(messages: list[Delivery]) -> None:
    if messages[0].attempt == 1 and messages[0].body == b"m0":
        messages[0].retry()
        messages[2].done()


@in_loop(simulated)
async def test_who_says_that_one_behind_is_done_does_not_get_it_again(
    simulation: Simulation, /
) -> None:
    lists = Lists(first_again)
    async with place_of(simulation) as place:
        place.fill(4)
        async with place.consumer(lists, 4):
            await until_count(lists.got, 2)
            await asyncio.sleep(1)
        assert lists.got == [bodies(0, 4), [b"m0", b"m1", b"m3"]]
        assert place.done() == 4


def two_again(times: list[float], messages: list[Delivery]) -> None:
    times.append(asyncio.get_running_loop().time())
    if len(times) == 1:
        messages[0].retry(delay=5)
        messages[1].retry(delay=20)


@in_loop(simulated)
async def test_of_several_delays_the_longest_counts_for_all(simulation: Simulation, /) -> None:
    times: list[float] = []

    lists = Lists(partial(two_again, times))
    async with place_of(simulation) as place:
        place.fill(2)
        async with place.consumer(lists, 4):
            await until_count(lists.got, 2)
        assert lists.got == [bodies(0, 2)] * 2
        assert 20 <= times[1] - times[0] < 20.1


async def note_and_retry(got: list[list[bytes]], messages: list[Delivery]) -> Retry | None:
    if "RETRY_TOPIC" in messages[0].properties:
        return None  # this broker makes no dead letters: it brings them again
    got.append([message.body for message in messages])
    return Retry() if messages[0].body == b"m0" else None


@in_loop(simulated)
async def test_after_its_retries_a_list_becomes_dead_letters_and_the_next_goes_on(
    simulation: Simulation, /
) -> None:
    got: list[list[bytes]] = []

    async with place_of(simulation) as place:
        place.fill(4)
        async with place.consumer(partial(note_and_retry, got), 2, max_reconsume_times=2):
            await until_count(got, 4)
            await asyncio.sleep(1)
        assert got == [*[bodies(0, 2)] * 3, bodies(2, 4)]
        assert place.dead() == bodies(0, 2)
        assert place.done() == 4


async def note_and_retry_and_pause_and_wait(
    go_on: asyncio.Event, got: list[list[bytes]], messages: list[Delivery]
) -> Retry | None:
    got.append([message.body for message in messages])
    if len(got) == 1:
        for message in messages:
            message.retry()
        await go_on.wait()
        for message in messages:
            message.done()
        return None
    if len(got) == 2:
        go_on.set()
        await asyncio.sleep(5)
        return Retry()
    return None


@in_loop(simulated)
async def test_a_handler_that_goes_on_after_asking_for_all_again_has_no_say_in_the_next_delivery(
    simulation: Simulation, /
) -> None:
    go_on = asyncio.Event()
    got: list[list[bytes]] = []

    async with place_of(simulation) as place:
        place.fill(2)
        async with place.consumer(partial(note_and_retry_and_pause_and_wait, go_on, got), 2):
            await until(lambda: place.done() == 2)
        assert got == [bodies(0, 2)] * 3


@in_loop(simulated)
async def test_a_queue_that_is_left_is_free_when_the_whole_list_is_dealt_with(
    simulation: Simulation, /
) -> None:
    async with place_of(simulation) as place:
        place.fill(4)

        async def handle(messages: list[Delivery]) -> None:
            messages[0].done()
            await asyncio.sleep(3)

        consumer = place.consumer(handle, 3, close_timeout=10)
        await consumer.start()
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(1)
        assert locked(place.cluster, UnlockBatchMq) == []
        await closing
        assert locked(place.cluster, UnlockBatchMq) == [[0]]
        assert place.done() == 3
