"""Plain functions as handlers: which thread handles what and when, and that each message gets its
own word."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing, raises, returns
from tests.unit.client.handler_threads import PATIENCE_S, Queue, message_of, messages_of, threads
from tests.waits import until, until_count, until_equal, until_has

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.message.message import Message
from turbopump.testing import running_broker


@in_loop
async def test_one_call_of_the_executor_handles_many_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, calls = asyncio.get_running_loop(), 0
    run_in_executor = loop.run_in_executor

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return run_in_executor(*args)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    queue = Queue()
    async with threads(does_nothing, concurrency=4) as (_, ready):
        ready.add_messages(messages_of(queue, 5000))
        await until_count(queue.said, 5000)
    assert set(queue.said.values()) == {"done"}
    assert calls < 500


async def later(answer: object) -> object:
    await asyncio.sleep(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


@in_loop
async def test_each_message_gets_what_its_own_call_said() -> None:
    fails = raises(ValueError("five"))

    queue = Queue()
    answers: list[Callable[[Delivery], object]] = [
        does_nothing,
        returns(Retry),
        returns(Retry(7.0, reason="two")),
        returns(False),
        lambda _: later(Retry(level=4)),
        fails,
        lambda _: later(KeyError("six")),
        lambda message: message.retry(level=7),
        lambda message: message.done() or fails(),
        lambda _: later(None),
    ]
    async with threads(lambda message: answers[message.queue_offset](message), concurrency=3) as (
        _,
        ready,
    ):
        ready.add_messages(messages_of(queue, len(answers)))
        await until(lambda: len(queue.said) == len(answers))
    assert queue.said == {
        0: "done",
        1: "failed delay=None level=0 cause=None",
        2: "failed delay=7.0 level=0 cause='two'",
        3: "done",
        4: "failed delay=None level=4 cause=None",
        5: "failed delay=None level=0 cause=ValueError('five')",
        6: "failed delay=None level=0 cause=KeyError('six')",
        7: "failed delay=None level=7 cause=None",
        8: "done",
        9: "done",
    }


def wait_for_release(release: threading.Event, message: Delivery) -> None:
    if message.queue_offset == 1000:
        release.wait(PATIENCE_S)


@in_loop
async def test_no_message_waits_behind_a_slow_one_while_a_thread_is_idle() -> None:
    release = threading.Event()

    queue = Queue()
    async with threads(partial(wait_for_release, release), concurrency=2) as (_, ready):
        ready.add_messages(messages_of(queue, 1000))
        # they are fast: one thread would be enough
        await until_count(queue.said, 1000)
        ready.add_messages(message_of(queue, offset) for offset in range(1000, 1100))
        await until_count(queue.said, 1099)
        assert 1000 not in queue.said
        release.set()
        await until_has(queue.said, 1000)


def wait_together(together: threading.Barrier, message: Delivery) -> None:
    if message.queue_offset >= 1000:
        together.wait(PATIENCE_S)  # only eight at once get on


@in_loop
async def test_handlers_that_become_slow_spread_over_all_threads() -> None:
    together = threading.Barrier(8)

    queue = Queue()
    async with threads(partial(wait_together, together), concurrency=8) as (_, ready):
        ready.add_messages(messages_of(queue, 1000))
        await until_count(queue.said, 1000)
        ready.add_messages(message_of(queue, offset) for offset in range(1000, 1064))
        await until_count(queue.said, 1064)
    assert set(queue.said.values()) == {"done"}


@in_loop
async def test_no_more_than_concurrency_run_at_once_also_when_it_changes() -> None:
    gate, lock = threading.Semaphore(0), threading.Lock()
    running = 0

    def handle(_: Delivery) -> None:
        nonlocal running
        with lock:
            running += 1
        gate.acquire(timeout=PATIENCE_S)
        with lock:
            running -= 1

    queue = Queue()
    async with threads(handle, concurrency=3) as (pool, ready):
        ready.add_messages(messages_of(queue, 40))
        await until(lambda: running == 3)
        pool.resize(6)
        await until(lambda: running == 6)
        pool.resize(2)
        gate.release(6)
        await until(lambda: len(queue.said) == 6 and running == 2)
        gate.release(10)
        await until(lambda: len(queue.said) == 16 and running == 2)
        pool.resize(5)
        await until(lambda: running == 5)
        gate.release(24)
        await until_count(queue.said, 40)


def note_and_wait(
    inside: threading.Event, release: threading.Event, seen: Any, message: Delivery
) -> None:
    seen.append(message.queue_offset)
    inside.set()
    release.wait(PATIENCE_S)


@in_loop
async def test_what_waits_of_a_dropped_queue_is_not_begun() -> None:
    inside, release, seen = threading.Event(), threading.Event(), []

    queue, other = Queue(), Queue()
    async with threads(partial(note_and_wait, inside, release, seen), concurrency=1) as (_, ready):
        ready.add_messages([*messages_of(queue, 5), message_of(other, 77)])
        await until(inside.is_set)
        queue.drop()
        release.set()
        await until_has(other.said, 77)
    assert seen == [0, 77]


@in_loop
async def test_a_message_whose_queue_is_dropped_while_it_is_taken_is_put_down_again() -> None:
    ready, queue = ReadyMessages(), Queue(drop_after=0)
    message = message_of(queue, 5)
    ready.add_messages([message])
    assert await asyncio.to_thread(ready.next_ready) is None
    await until_equal(queue.left, [5])
    assert not message.taken


def wait_inside(inside: threading.Event, release: threading.Event, message: Delivery) -> None:
    if message.queue_offset == 90:
        inside.set()
        release.wait(PATIENCE_S)


@in_loop
async def test_the_loop_does_other_things_between_what_many_messages_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, turn, inside, release = (
        asyncio.get_running_loop(),
        0,
        threading.Event(),
        threading.Event(),
    )
    turns: list[int] = []
    time = iter(range(10**9))
    monkeypatch.setattr("turbopump.client.consumer.handling.monotonic", lambda: next(time) * 0.0005)

    class Slow(Queue):
        def delivery_done(self, message: Delivery) -> None:
            turns.append(turn)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    async with threads(partial(wait_inside, inside, release), concurrency=1) as (_, ready):
        next_turn()
        ready.add_messages(messages_of(Slow(), 91))
        await asyncio.sleep(0)
        while not inside.is_set():
            await asyncio.sleep(0)
        release.set()
        while len(turns) < 91:
            await asyncio.sleep(0)
    assert max(turns.count(each) for each in turns) <= 20


def tell_the_last(all_handled: threading.Event, message: Delivery) -> None:
    if message.queue_offset == 9999:
        all_handled.set()


@in_loop
async def test_a_close_settles_all_that_was_handled_however_much_it_is() -> None:
    all_handled = threading.Event()

    queue, ready = Queue(), ReadyMessages()
    pool = HandlerPool(partial(tell_the_last, all_handled), ready, concurrency=1)
    pool.start()
    ready.add_messages(messages_of(queue, 10_000))
    await asyncio.sleep(0)
    while not all_handled.wait(0.01):
        await asyncio.sleep(0)
    ready.close()
    await pool.stop(PATIENCE_S)
    assert len(queue.said) == 10_000


@in_loop
async def test_while_paused_nothing_is_begun() -> None:
    inside, release = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        inside.set()
        release.wait(PATIENCE_S)

    queue = Queue()
    async with threads(handle, concurrency=1) as (pool, ready):
        ready.add_messages(messages_of(queue, 3))
        await until(inside.is_set)
        ready.pause()
        release.set()
        await until(lambda: len(queue.said) == 1 and not pool.workers)
        ready.add_messages([message_of(queue, 3)])
        assert not pool.workers
        ready.resume()
        await until_count(queue.said, 4)


@in_loop
async def test_an_operators_message_is_handled_although_there_is_always_another_one_ready() -> None:
    loop, queue, ended = asyncio.get_running_loop(), Queue(), threading.Event()

    def handle(message: Delivery) -> object:
        if message.queue_offset == -1:
            return "by hand"
        if not ended.is_set():
            loop.call_soon_threadsafe(
                ready.add_messages, [message_of(queue, 0), message_of(queue, 1)]
            )
        return None

    async with threads(handle, concurrency=1) as (pool, ready):
        ready.add_messages(messages_of(queue, 100))
        async with asyncio.timeout(PATIENCE_S):
            assert await pool.call(message_of(queue, -1)) == "by hand"
        ended.set()


@in_loop
async def test_what_a_handler_says_after_a_close_that_did_not_wait_for_it_does_not_count() -> None:
    inside, release, out = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        inside.set()
        release.wait(PATIENCE_S)
        out.set()

    queue, ready = Queue(), ReadyMessages()
    pool = HandlerPool(handle, ready, concurrency=1)
    pool.start()
    ready.add_messages(messages_of(queue, 2))
    await until(inside.is_set)
    ready.close()
    await pool.stop(0.01)
    release.set()
    await until(out.is_set)
    for thread in threading.enumerate():
        if thread.name.startswith("turbopump-handler"):
            await asyncio.to_thread(thread.join, PATIENCE_S)
    await asyncio.sleep(0)
    assert queue.said == {}


@in_loop
async def test_a_close_waits_for_handlers_and_begins_no_more() -> None:
    inside, release = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        inside.set()
        release.wait(PATIENCE_S)

    queue, ready = Queue(), ReadyMessages()
    pool = HandlerPool(handle, ready, concurrency=1)
    pool.start()
    ready.add_messages(messages_of(queue, 2))
    await until(inside.is_set)
    ready.close()
    asyncio.get_running_loop().call_soon(release.set)
    await pool.stop(PATIENCE_S)
    assert queue.said == {0: "done"}


@in_loop
async def test_the_time_of_each_message_is_its_handlers_not_that_until_the_loop_looks() -> None:
    both = threading.Event()

    def handle(message: Delivery) -> None:
        if message.queue_offset == 1:
            both.set()

    queue = Queue()
    first, second = messages_of(queue, 2)
    consumption = Consumption(time.monotonic)  # a loop's clock may stand still with it
    async with threads(handle, concurrency=1, on_take=consumption.handling_began) as (_, ready):
        ready.add_messages([first, second])
        await asyncio.sleep(0)
        assert both.wait(PATIENCE_S)  # the loop stands still until both are handled
        await until_count(queue.said, 2)
    assert first.handled_s is not None
    assert 0 < first.handled_s <= second.taken_at - first.taken_at


@in_loop
async def test_traces_of_a_message_in_a_thread_are_written_on_the_loop_with_its_time() -> None:
    class Traces:
        def __init__(self) -> None:
            self.records: list[tuple[str, int, int]] = []

        def now_ms(self) -> int:
            return 4711

        def began_at(self, message: Delivery) -> None:
            assert isinstance(message.trace, int)
            self.records.append(("began", message.trace, threading.get_ident()))

    traces, queue = Traces(), Queue()
    consumption = Consumption(asyncio.get_running_loop().time, traces)  # type: ignore[arg-type]
    async with threads(does_nothing, concurrency=1, on_take=consumption.handling_began) as (
        _,
        ready,
    ):
        ready.add_messages(messages_of(queue, 1))
        await until_count(queue.said, 1)
    assert traces.records == [("began", 4711, threading.get_ident())]


@pytest.mark.parametrize("how", ["in order", "popped", "pulled"])
@in_loop
async def test_plain_handlers_get_all_of_a_broker_and_ordered_ones_one_of_a_queue_at_a_time(
    how: str,
) -> None:
    at_work: dict[int, int] = defaultdict(int)
    seen: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
    together = 0

    def handle(message: Delivery) -> object:
        nonlocal together
        at_work[message.queue_id] += 1
        together = max(together, at_work[message.queue_id])
        seen[message.queue_id].append(message.body)
        at_work[message.queue_id] -= 1
        return (
            Retry(delay=0.001)
            if how == "in order" and message.body == b"3" and message.attempt == 1
            else None
        )

    settings: dict[str, Any] = {
        "in order": {"ordered": True, "suspend_time": 0.01},
        "popped": {"client_rebalance": False},
    }
    async with running_broker() as broker:
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
            trace=True,
            **settings.get(how, {}),
        ) as consumer:
            extra = 1 if how == "in order" else 0
            await until(lambda: sum(len(bodies) for bodies in seen.values()) == 200 + extra)
            await until(lambda: consumer.statistics()["orders"].consume_ok_tps > 0)
    if how == "in order":
        assert together == 1
        for bodies in seen.values():
            assert [int(body) for body in bodies] == sorted(int(body) for body in bodies)
    assert {int(body) for bodies in seen.values() for body in bodies} == set(range(200))
