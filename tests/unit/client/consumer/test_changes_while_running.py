"""A push consumer changed while it runs: how many handlers, paused and resumed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.push_consumers import committed, consumer_of, fill
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_count

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.push_consumer import PushConsumer
from turbopump.errors import ConfigError, NotStartedError
from turbopump.protocol.requests.pull import PullMessage


class Hands:
    """A handler that takes a second; how many of it run now."""

    def __init__(self) -> None:
        self.running = 0
        self.done = 0

    async def __call__(self, message: Delivery) -> None:
        self.running += 1
        await asyncio.sleep(1)
        self.running -= 1
        self.done += 1

    def are_running(self, count: int) -> bool:
        return self.running == count

    def have_done(self, count: int) -> bool:
        return self.done == count


def one_queue(simulation: Simulation) -> AbstractAsyncContextManager[ScriptedCluster]:
    return scripted_cluster(simulation, queues=1)


def reported(consumer: PushConsumer) -> str:
    assert consumer.lifecycle.running is not None
    assert consumer.lifecycle.running.member.operated is not None
    return consumer.lifecycle.running.member.operated.running_info().properties[
        "PROP_THREADPOOL_CORE_SIZE"
    ]


@in_loop(simulated)
async def test_more_and_fewer_handlers_run_from_now_on_and_none_is_disturbed(
    simulation: Simulation, /
) -> None:
    async with one_queue(simulation) as cluster:
        fill(cluster, 100)
        hands = Hands()
        async with consumer_of(cluster, handler=hands, concurrency=3) as consumer:
            await until(hands.are_running, 3)
            consumer.set_concurrency(10)
            await until(hands.are_running, 10)
            assert reported(consumer) == "10"
            consumer.set_concurrency(2)
            await until(hands.are_running, 2)
            done = hands.done
            assert done >= 10, "who was at work has finished"
            await asyncio.sleep(5)
            assert hands.running <= 2
            assert 9 <= hands.done - done <= 11
            consumer.set_concurrency(40)
            await until(hands.have_done, 100)
            await asyncio.sleep(1)
            consumer.set_concurrency(1)  # all of them wait for a message
            fill(cluster, 3)
            await until(hands.have_done, 103)
            with pytest.raises(ConfigError, match="a whole number of calls at once, 1 or more"):
                consumer.set_concurrency(0)
        assert committed(cluster) == 103


def handle(together: threading.Barrier, message: Delivery) -> None:
    together.wait(20)  # only six at once get on


@in_loop
async def test_plain_handlers_get_more_threads() -> None:
    together = threading.Barrier(6)

    ready = ReadyMessages()
    pool = HandlerPool(partial(handle, together), ready, concurrency=2)
    pool.start()
    messages = [delivery(i) for i in range(6)]
    ready.add_messages(messages)
    pool.resize(6)
    await until(lambda: all(message.settled for message in messages))
    ready.close()
    await pool.stop(5)


class Nobody:
    dropped = False

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_abandoned(self, message: Delivery) -> None: ...


def delivery(offset: int) -> Delivery:
    message = Delivery.__new__(Delivery)
    message.queue_offset = offset
    message.deliver(Nobody(), 1)
    return message


@in_loop(simulated)
async def test_a_paused_consumer_pulls_and_hands_out_nothing_and_keeps_its_queues(
    simulation: Simulation, /
) -> None:
    async with one_queue(simulation) as cluster:
        fill(cluster, 100)
        hands = Hands()
        async with consumer_of(cluster, handler=hands, concurrency=5) as consumer:
            await until(hands.are_running, 5)
            assert not consumer.paused
            consumer.pause()
            await until(hands.are_running, 0)
            assert (consumer.paused, hands.done) == (True, 5)
            await asyncio.sleep(20)
            pulls = len(cluster.broker.requests(PullMessage))
            await asyncio.sleep(100)
            assert len(cluster.broker.requests(PullMessage)) == pulls
            assert (hands.done, len(consumer.queues), committed(cluster)) == (5, 1, 5)
            consumer.resume()
            await until(hands.have_done, 100)
        assert committed(cluster) == 100


async def read(consumer: Any, seen: list[bytes]) -> None:
    async for message in consumer:
        seen.append(message.body)
        if message.body == b"m0":
            consumer.pause()


@in_loop(simulated)
async def test_a_reader_waits_while_its_consumer_is_paused_and_a_close_ends_both(
    simulation: Simulation, /
) -> None:
    async with one_queue(simulation) as cluster:
        fill(cluster, 3)
        consumer = consumer_of(cluster)
        with pytest.raises(NotStartedError):
            consumer.pause()
        with pytest.raises(ConfigError, match="no handler"):
            consumer.set_concurrency(3)
        seen: list[bytes] = []
        async with consumer:
            reader = asyncio.create_task(read(consumer, seen))
            await until(lambda: consumer.paused)
            await asyncio.sleep(30)
            assert seen == [b"m0"]
            consumer.resume()
            await until_count(seen, 3)
            consumer.pause()
        await reader
