"""Handlers that do not come back: their messages are given back after a while, and the queue goes
on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.consumer.popping_consumers import consumer_of as popping_consumer_of
from tests.unit.client.consumer.popping_consumers import popping
from tests.unit.client.handler_threads import PATIENCE_S, Queue, messages_of, threads
from tests.unit.client.push_consumers import committed, consumer_of, fill, until_committed
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until_count, until_equal, until_has, until_none

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.statistics import Consumption
from turbopump.protocol.requests.send import ConsumerSendMsgBack


class Hangs:
    """A handler whose first attempts at ``m1`` wait until ``release`` is set; who was handled, and
    when."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun: list[tuple[bytes, int, float]] = []
        self.ended: list[tuple[bytes, int]] = []

    async def __call__(self, message: Delivery) -> None:
        attempt = message.attempt
        self.begun.append((message.body, attempt, asyncio.get_running_loop().time()))
        if message.body == b"m1" and attempt == 1:
            await self.release.wait()
        self.ended.append((message.body, attempt))


@contextmanager
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        yield told
    told += [
        record.getMessage()
        for record in caplog.records
        if "its message was sent back" in record.message
    ]


@pytest.mark.parametrize(("settings", "seconds"), [({}, 900), ({"consume_timeout": 30}, 30)])
@in_loop(simulated)
async def test_a_message_whose_handler_hangs_is_sent_back_and_its_queue_goes_on(
    simulation: Simulation,
    /,
    settings: dict[str, Any],
    seconds: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings_of(caplog) as told:
        async with scripted_cluster(simulation, queues=1) as cluster:
            cluster.broker.takes_back = True
            fill(cluster, 3)
            hangs = Hangs()
            async with consumer_of(cluster, handler=hangs, **settings):
                await until_count(hangs.ended, 2)
                began = simulation.loop.time()
                while not cluster.broker.requests(ConsumerSendMsgBack):
                    await asyncio.sleep(1)
                assert seconds - 1 <= simulation.loop.time() - began <= seconds + 2
                assert [
                    back.delay_level for back in cluster.broker.requests(ConsumerSendMsgBack)
                ] == [3]
                await until_committed(cluster, 3)
                hangs.release.set()
                await until_count(hangs.ended, 3)
            assert len(cluster.broker.requests(ConsumerSendMsgBack)) == 1, (
                "what it said afterwards did not count"
            )
    assert len(told) == 1
    assert f" seconds={seconds} " in told[0]
    assert "offset=1" in told[0]
    assert "msg_id=" in told[0]


async def note_and_wait(
    attempts: list[int], first: asyncio.Event, second: asyncio.Event, message: Delivery
) -> None:
    if message.body == b"m1":
        attempts.append(message.attempt)
        await (first if message.attempt == 1 else second).wait()


@in_loop(simulated)
async def test_what_such_a_handler_says_later_does_not_count_for_the_next_attempt(
    simulation: Simulation, /
) -> None:
    # its broker takes nothing back: it comes again here
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        first, second = asyncio.Event(), asyncio.Event()
        attempts: list[int] = []

        async with consumer_of(
            cluster, handler=partial(note_and_wait, attempts, first, second), consume_timeout=300
        ):
            await until_equal(attempts, [1, 2])
            first.set()
            await asyncio.sleep(20)
            assert committed(cluster) == 1, "the second attempt has not ended"
            second.set()
            await until_committed(cluster, 2)


@in_loop(simulated)
async def test_in_order_nothing_is_given_back(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        hangs = Hangs()
        async with consumer_of(cluster, handler=hangs, ordered=True, consume_timeout=5):
            await asyncio.sleep(100)
            assert [body for body, _, _ in hangs.begun] == [b"m0", b"m1"]
            hangs.release.set()
            await until_count(hangs.ended, 3)


@in_loop(simulated)
async def test_a_popped_message_is_given_back_when_that_is_before_its_time(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, pops):
        for body in (b"m0", b"m1", b"m2"):
            pops.store("orders", 0, body)
        hangs = Hangs()
        async with popping_consumer_of(
            cluster, handler=hangs, pop_invisible_time=300, consume_timeout=20
        ):
            await until_has(hangs.ended, (b"m1", 2))
            assert hangs.begun[-1][2] - hangs.begun[0][2] < 60
            hangs.release.set()


def handle(release: threading.Event, message: Delivery) -> None:
    if message.queue_offset == 1:
        release.wait(PATIENCE_S)


@in_loop
async def test_a_hanging_plain_handler_is_left_in_its_thread_and_its_message_given_back() -> None:
    release = threading.Event()
    queue = Queue()

    consumption = Consumption(asyncio.get_running_loop().time)
    async with threads(
        partial(handle, release), concurrency=3, on_take=consumption.handling_began
    ) as (pool, ready):
        late = asyncio.create_task(pool.give_back_late(0.2))
        ready.add_messages(messages_of(queue, 5))
        await until_count(queue.said, 5)
        assert queue.said[1].startswith("failed delay=None level=3")
        release.set()
        await until_none(pool.workers)
        late.cancel()
    assert queue.said[1].startswith("failed")
