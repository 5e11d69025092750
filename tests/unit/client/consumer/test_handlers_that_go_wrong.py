"""Handlers that end as no handler should: their message has failed and comes again, and everything
else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import raises
from tests.unit.client.handler_threads import Queue, message_of, messages_of, threads
from tests.unit.client.push_consumers import committed, consumer_of, fill
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_count

from turbopump import IdempotentConsumer, PushConsumer, Retry, TransactionProducer
from turbopump.client.consumer import handling
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.group_consumer import consume_directly
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.idempotence import MemoryStore
from turbopump.errors import ConfigError
from turbopump.protocol.requests.consumers import ConsumeResult


async def awaits_what_was_cancelled(_: Delivery) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancels_itself(_: Delivery) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def raises_something_of_its_own(_: Delivery) -> None:
    class Wild(BaseException): ...

    raise Wild("no Exception")


async def retry_with(values: Any, _: Delivery) -> Retry:
    retry = Retry()
    for name, value in values.items():
        setattr(retry, name, value)
    return retry


def wrong_retry(**values: Any) -> Callable[[Delivery], Any]:
    return partial(retry_with, values)


def refused_retry(*values: Any, **named: Any) -> Callable[[Delivery], Any]:
    async def handle(_: Delivery) -> Retry:
        return Retry(*values, **named)

    return handle


def refused_word(*values: Any, **named: Any) -> Callable[[Delivery], Any]:
    async def handle(message: Delivery) -> None:
        message.retry(*values, **named)

    return handle


async def forgets_to_await(message: Delivery) -> object:
    return awaits_what_was_cancelled(message)


async def returns_a_generator(_: Delivery) -> object:
    return (number for number in range(3))


class Later(Retry):
    """Somebody's own."""


async def returns_a_retry_of_its_own(_: Delivery) -> object:
    return Later()


WRONG: dict[str, Callable[[Delivery], Any]] = {
    "what it awaits is cancelled": awaits_what_was_cancelled,
    "it cancels itself": cancels_itself,
    "it raises what is no Exception": raises_something_of_its_own,
    "Retry with another delay": wrong_retry(delay="5"),
    "Retry(delay='5')": refused_retry(delay="5"),
    "Retry(delay=nan)": refused_retry(delay=float("nan")),
    "Retry(delay=inf)": refused_retry(delay=float("inf")),
    "Retry(level='3')": refused_retry(level="3"),
    "Retry(reason=object())": refused_retry(reason=object()),
    "message.retry('x')": refused_word("x"),
    "message.retry(delay=nan)": refused_word(delay=float("nan")),
    "message.retry(level=None)": refused_word(level=None),
    "an await is missing": forgets_to_await,
    "a generator": returns_a_generator,
    "its own Retry": returns_a_retry_of_its_own,
}
wrong = pytest.mark.parametrize("name", WRONG)


async def note(
    fails: Callable[[Delivery], Any], handled: list[tuple[bytes, int]], message: Delivery
) -> object:
    if message.attempt == 1:
        return await fails(message)
    handled.append((message.body, message.attempt))
    return None


async def comes_again(
    cluster: ScriptedCluster, fails: Callable[[Delivery], Any], **settings: Any
) -> None:
    """Three messages fail at their first attempt, with two workers; all are handled at the
    second."""
    handled: list[tuple[bytes, int]] = []

    wrap = settings.pop("wrap", lambda handler: handler)
    fill(cluster, 3)
    async with consumer_of(
        cluster, handler=wrap(partial(note, fails, handled)), concurrency=2, **settings
    ):
        await until_count(handled, 3)
    assert sorted(handled) == [(b"m0", 2), (b"m1", 2), (b"m2", 2)]
    assert committed(cluster) == 3


@wrong
@pytest.mark.parametrize("settings", [{}, {"ordered": True}], ids=["side by side", "in order"])
@in_loop(simulated)
async def test_a_message_whose_handler_goes_wrong_has_failed_and_the_others_are_handled(
    simulation: Simulation, /, name: str, settings: dict[str, Any]
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        await comes_again(cluster, WRONG[name], **settings)


@pytest.mark.parametrize(
    "name", ["what it awaits is cancelled", "a generator", "an await is missing", "its own Retry"]
)
@in_loop(simulated)
async def test_so_it_is_when_a_key_is_handled_once(simulation: Simulation, /, name: str) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        once = IdempotentConsumer(key=lambda message: message.body.decode(), store=MemoryStore())
        await comes_again(cluster, WRONG[name], wrap=once)


async def wrong_too(wrong: Any, message: Delivery) -> None:
    wrong(message)


@pytest.mark.parametrize("plain", [False, True])
@in_loop
async def test_of_failures_of_a_kind_the_first_has_a_traceback_and_the_others_are_counted(
    plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(message: Delivery) -> None:
        if message.queue_offset % 3 == 0:
            raise KeyError("this")
        if message.queue_offset % 3 == 1:
            raise ValueError("that")
        raise ValueError("another place")

    queue, ready = Queue(), ReadyMessages()
    pool = HandlerPool(wrong if plain else partial(wrong_too, wrong), ready, concurrency=2)
    pool.start()
    ready.add_messages(messages_of(queue, 30))
    await until_count(queue.said, 30)
    ready.close()
    await pool.stop(1)
    told = [record for record in caplog.records if "handler failed" in record.getMessage()]
    assert [record.exc_info is not None for record in told] == [True] * 3 + [False] * 3
    assert all("msg_id=" in record.getMessage() for record in told)
    texts = [record.getMessage() for record in told[3:]]
    assert all("more=9 in_seconds=10" in text for text in texts)
    assert sum("ValueError('that')" in text for text in texts) == 1


@in_loop(simulated)
async def test_a_worker_that_was_ended_is_replaced_and_told_of(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with scripted_cluster(simulation, queues=1) as cluster:
            await comes_again(cluster, cancels_itself)
    assert sum("another replaces it" in record.message for record in caplog.records) == 3


@in_loop
async def test_workers_that_are_cancelled_with_everything_else_leave_nothing_behind() -> None:
    async def handle(_: Delivery) -> None:
        await asyncio.sleep(1e6)

    queue = Queue()
    ready = ReadyMessages()
    HandlerPool(handle, ready, concurrency=3).start()  # and nobody stops it
    ready.add_messages(messages_of(queue, 2))
    await asyncio.sleep(0.01)
    assert queue.said == {}


@pytest.mark.parametrize(
    "values", [{"delay": "5"}, {"delay": float("nan")}, {"delay": float("inf")}, {"delay": True}]
)
def test_a_delay_that_is_none_is_refused_before_the_message_is_settled(
    values: dict[str, Any],
) -> None:
    queue = Queue()
    message = message_of(queue, 0)
    with pytest.raises(ConfigError, match=r"delay=.* must be a number of seconds, or a timedelta"):
        message.retry(**values)
    assert (message.settled, queue.said) == (False, {})
    message.done()
    assert queue.said == {0: "done"}


@in_loop(simulated)
async def test_a_delay_may_be_a_timedelta(simulation: Simulation, /) -> None:
    assert Retry(timedelta(minutes=1)).delay == 60.0
    async with scripted_cluster(simulation, queues=1) as cluster:
        await comes_again(cluster, refused_word(timedelta(seconds=2)))


def late(message: Delivery) -> Any:
    return awaits_what_was_cancelled(message)


def generator(_: Delivery) -> object:
    return (number for number in range(3))


@in_loop
async def test_a_plain_function_goes_wrong_as_well() -> None:
    for handle in (raises(asyncio.CancelledError), late, generator):
        queue = Queue()
        async with threads(handle, concurrency=2) as (_, ready):
            ready.add_messages(messages_of(queue, 5))
            await until(lambda queue=queue: len(queue.said) == 5)
        assert all(said != "done" for said in queue.said.values())


@in_loop(simulated)
async def test_an_operator_is_told_how_it_went_wrong(simulation: Simulation, /) -> None:
    for name in (
        "what it awaits is cancelled",
        "an await is missing",
        "a generator",
        "it raises what is no Exception",
    ):
        pool = HandlerPool(WRONG[name], ReadyMessages(), concurrency=1)
        answer = await consume_directly(
            message_of(Queue(), 0), pool.call, simulation.clock("127.0.0.1"), ordered=False
        )
        assert answer.consume_result is ConsumeResult.CR_THROW_EXCEPTION, name


async def asynchronous(_: Delivery) -> Any:
    yield


def test_a_function_with_a_yield_is_refused_as_a_handler() -> None:
    def plain(_: Delivery) -> Any:
        yield

    class Yielding:
        async def __call__(self, _: Delivery) -> Any:
            yield

    for handler in (asynchronous, plain, functools.partial(plain), Yielding()):
        with pytest.raises(ConfigError, match=r"handler=.*without yield"):
            PushConsumer("127.0.0.1:1", group="g", topic="t", handler=handler)
        with pytest.raises(ConfigError, match=r"handler=.*without yield"):
            IdempotentConsumer(key="k", store=MemoryStore())(handler)
        with pytest.raises(ConfigError, match=r"checker=.*without yield"):
            TransactionProducer("127.0.0.1:1", group="g", checker=handler)


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("ordered", [False, True])
@in_loop(simulated)
async def test_a_close_leaves_a_handler_that_goes_on_after_it_was_cancelled_and_names_its_message(
    simulation: Simulation, /, ordered: bool, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with scripted_cluster(simulation, queues=1) as cluster:
            fill(cluster, 2)
            release, inside, out = asyncio.Event(), asyncio.Event(), asyncio.Event()

            async def handle(message: Delivery) -> None:
                if message.body == b"m0":
                    return
                inside.set()
                while not release.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await release.wait()
                out.set()
                if ends == "raises":
                    raise ZeroDivisionError

            consumer = consumer_of(cluster, handler=handle, ordered=ordered, close_timeout=2.0)
            await consumer.start()
            await inside.wait()
            begun = simulation.loop.time()
            try:
                async with asyncio.timeout(60):
                    await consumer.close()
                assert simulation.loop.time() - begun < 7
                assert committed(cluster) == 1
                assert [farewell.consumer_group for farewell in cluster.broker.farewells] == [
                    "readers"
                ]
            finally:
                release.set()
            await out.wait()
            await asyncio.sleep(60)
            assert committed(cluster) == 1
            assert not [
                entry
                for place, entries in cluster.broker.entries.items()
                if place[0] != "orders"
                for entry in entries
            ]
    (told,) = [record.message for record in caplog.records if "still run after" in record.message]
    assert "topic=orders queue=broker-a:0 offset=1 attempt=1" in told
    assert not [record for record in caplog.records if "handler failed" in record.message]


async def goes_on(inside: asyncio.Event, out: asyncio.Event, release: asyncio.Event) -> None:
    inside.set()
    while not release.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await release.wait()
    out.set()


@in_loop
async def test_so_it_does_with_a_coroutine_that_a_plain_handler_returned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "CANCELLED_S", 0.01)
    with caplog.at_level(logging.WARNING):
        release, inside, out = asyncio.Event(), asyncio.Event(), asyncio.Event()

        queue, ready = Queue(), ReadyMessages()
        pool = HandlerPool(lambda _: goes_on(inside, out, release), ready, concurrency=1)
        pool.start()
        ready.add_messages(messages_of(queue, 1))
        await inside.wait()
        ready.close()
        try:
            async with asyncio.timeout(60):
                await pool.stop(0.01)
        finally:
            release.set()
        await out.wait()
        await asyncio.sleep(0)
        assert queue.said == {}
    assert "still run after" in caplog.text
    assert "offset=0 attempt=1" in caplog.text
