"""Plain functions that take several messages at once: what goes together when many threads take,
and that each message gets its word."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing
from tests.unit.client.handler_threads import PATIENCE_S, Queue, messages_of
from tests.waits import until, until_count

from turbopump import Retry, blocking
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.pop import PoppedDelivery
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.config.broker_config import DefaultRequestMode
from turbopump.message.message import Message
from turbopump.testing import running_broker


@asynccontextmanager
async def threads(
    handle: Callable[[list[Delivery]], object], count: int, *, concurrency: int, on_take: Any = None
) -> AsyncIterator[tuple[HandlerPool, ReadyMessages]]:
    ready = ReadyMessages(on_take, batch=count)
    pool = HandlerPool(handle, ready, concurrency=concurrency)
    pool.start()
    try:
        yield pool, ready
    finally:
        ready.close()
        await pool.stop(PATIENCE_S)


def note(got: list[list[int]], messages: list[Delivery]) -> None:
    got.append([message.commit_log_offset for message in messages])


@in_loop
async def test_however_many_threads_take_what_lies_together_stays_together() -> None:
    got: list[list[int]] = []
    owners = [Queue() for _ in range(300)]

    async with threads(partial(note, got), 8, concurrency=16) as (_, ready):
        for number, owner in enumerate(owners):
            messages = messages_of(owner, 8)
            for message in messages:
                message.commit_log_offset += number * 8
            ready.add_messages(messages)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: all(len(owner.said) == 8 for owner in owners))
    assert sorted(got) == [list(range(first, first + 8)) for first in range(0, 2400, 8)]


@in_loop
async def test_each_message_gets_the_word_that_was_said_of_it_or_else_of_the_call() -> None:
    def handle(messages: list[Delivery]) -> object:
        if messages[0].queue_offset == 0:
            messages[1].retry(level=5)
            return None
        messages[0].done()
        raise ValueError("no stock")

    queue = Queue()
    async with threads(handle, 3, concurrency=1) as (_, ready):
        ready.add_messages(messages_of(queue, 6))
        await until_count(queue.said, 6)
    assert queue.said == {
        0: "done",
        1: "failed delay=None level=5 cause=None",
        2: "done",
        3: "done",
        4: "failed delay=None level=0 cause=ValueError('no stock')",
        5: "failed delay=None level=0 cause=ValueError('no stock')",
    }


async def later(messages: list[Delivery]) -> object:
    await asyncio.sleep(0)
    return Retry if messages[0].queue_offset == 0 else None


@in_loop
async def test_a_plain_function_may_return_a_coroutine() -> None:
    queue = Queue()
    async with threads(lambda messages: later(messages), 2, concurrency=2) as (_, ready):
        ready.add_messages(messages_of(queue, 4))
        await until_count(queue.said, 4)
    assert [queue.said[offset][:6] for offset in range(4)] == ["failed", "failed", "done", "done"]


def wait_to_go_on(begun: threading.Event, go_on: threading.Event, messages: list[Delivery]) -> None:
    begun.set()
    go_on.wait(PATIENCE_S)


@in_loop
async def test_what_is_in_hand_at_a_close_that_does_not_wait_is_not_settled() -> None:
    begun, go_on = threading.Event(), threading.Event()

    queue, ready = Queue(), ReadyMessages(batch=2)
    pool = HandlerPool(partial(wait_to_go_on, begun, go_on), ready, concurrency=1)
    pool.start()
    ready.add_messages(messages_of(queue, 3))
    await until(begun.is_set)
    (in_hand,) = pool.handled_now()
    assert (in_hand.taken, in_hand.settled) == (True, False)
    ready.close()
    await pool.stop(0)
    go_on.set()
    await asyncio.sleep(0)
    assert queue.said == {}


@in_loop
async def test_messages_of_a_queue_that_is_dropped_are_not_handed_out() -> None:
    queue, other = Queue(), Queue()
    got: list[int] = []
    async with threads(lambda messages: got.append(len(messages)), 5, concurrency=1) as (_, ready):
        ready.pause()
        ready.add_messages(messages_of(queue, 3))
        ready.add_messages(messages_of(other, 2))
        queue.drop()
        ready.resume()
        await until_count(other.said, 2)
    assert (got, queue.said) == ([2], {})


@in_loop
async def test_the_time_of_a_list_is_its_handlers_and_its_messages_have_one_request_id() -> None:
    class Traces:
        def __init__(self) -> None:
            self.begun: list[tuple[list[int], int]] = []

        def together(self, count: int) -> object:
            return f"{count} together"

        def began_all(self, messages: list[Delivery]) -> None:
            assert {message.trace for message in messages} == {f"{len(messages)} together"}
            self.begun.append(
                ([message.queue_offset for message in messages], threading.get_ident())
            )

    traces, queue = Traces(), Queue()
    messages = messages_of(queue, 3)
    consumption = Consumption(asyncio.get_running_loop().time, traces)  # type: ignore[arg-type]
    async with threads(does_nothing, 2, concurrency=1, on_take=consumption.handling_began) as (
        _,
        ready,
    ):
        ready.add_messages(messages)
        await until_count(queue.said, 3)
    assert traces.begun == [([0, 1], threading.get_ident()), ([2], threading.get_ident())]
    assert messages[0].handled_s == messages[1].handled_s is not None


@pytest.mark.parametrize("how", ["in order", "popped", "pulled"])
@in_loop
async def test_plain_handlers_get_all_of_a_broker_and_ordered_ones_one_list_of_a_queue_at_a_time(
    how: str,
) -> None:
    at_work: dict[int, int] = defaultdict(int)
    seen: dict[int, list[int]] = defaultdict(list)
    most = 0

    def handle(messages: list[Delivery]) -> None:
        nonlocal most
        (queue,) = {message.queue_id for message in messages}
        assert {isinstance(message, PoppedDelivery) for message in messages} == {"popped" in how}
        at_work[queue] += 1
        most = max(most, at_work[queue])
        for message in messages:
            if message.body == b"3" and message.attempt == 1:
                message.retry(delay=0.001)
                if "order" in how:
                    break
            else:
                seen[queue].append(int(message.body))
        at_work[queue] -= 1

    settings: dict[str, Any] = {"handler_batch": 7, "ordered": "order" in how}
    async with running_broker(
        **({"default_message_request_mode": DefaultRequestMode.POP} if "popped" in how else {})
    ) as broker:
        await broker.create_topic("orders", 4)
        async with Producer(broker.namesrv) as producer:
            for number in range(200):
                await producer.send(Message("orders", str(number).encode()))
        async with PushConsumer(
            *(broker.namesrv,),
            group="g",
            topic="orders",
            handler=handle,
            consume_from=ConsumeFrom.FIRST,
            client_rebalance="popped" not in how,
            trace=True,
            **settings,
        ):
            await until(lambda: sum(map(len, seen.values())) >= 200)
    if "order" in how:
        assert most == 1
        for numbers in seen.values():
            assert numbers == sorted(numbers)
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(200))


async def sent(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for number in range(30):
            await producer.send(Message("orders", str(number).encode()))


def note_all_here(all_here: threading.Event, got: list[int], messages: list[Delivery]) -> None:
    got.extend(int(message.body) for message in messages)
    if len(got) == 30:
        all_here.set()


def consume(all_here: threading.Event, got: list[int], namesrv: str) -> None:
    with blocking.PushConsumer(
        namesrv,
        group="g",
        topic="orders",
        handler=partial(note_all_here, all_here, got),
        handler_batch=10,
        consume_from=ConsumeFrom.FIRST,
    ):
        assert all_here.wait(PATIENCE_S)


@in_loop
async def test_without_await_a_handler_gets_lists_too() -> None:
    got: list[int] = []
    all_here = threading.Event()

    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        await sent(broker.namesrv)
        await asyncio.to_thread(partial(consume, all_here, got), broker.namesrv)
    assert sorted(got) == list(range(30))
