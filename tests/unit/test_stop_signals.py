"""Programs that are asked to stop by a signal: with an event loop, and without one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.loops import in_loop

from turbopump import ConsumeFrom, Delivery, Producer, PushConsumer, blocking, stop_on_signals
from turbopump.event_loop import loop_factory
from turbopump.stop_signals import STOP_SIGNALS
from turbopump.testing import BrokerThread, running_broker

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[object]]:
    """The handlers that each test finds, and has to leave as they were."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def kill(number: signal.Signals) -> None:
    """Send a signal from outside, to the main thread: it may wait for something else by now."""
    signal.pthread_kill(threading.main_thread().ident or 0, number)


async def wait_for(number: signal.Signals) -> list[object]:
    called: list[object] = []
    async with stop_on_signals(lambda: called.append("called")) as stop:
        assert (stop.is_set(), stop.signal) == (False, None)
        threading.Thread(target=kill, args=[number]).start()
        await stop.wait()
        called.append(stop.signal)
    return called


@pytest.mark.parametrize("factory", [None, loop_factory()], ids=["asyncio", "uvloop"])
@BOTH
def test_a_signal_sets_the_event_of_a_loop_that_waits(
    number: signal.Signals, factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(wait_for(number)) == ["called", number]


@BOTH
def test_a_signal_ends_the_wait_of_a_thread(number: signal.Signals) -> None:
    called: list[str] = []
    with blocking.stop_on_signals(lambda: called.append("called")) as stop:
        assert (stop.is_set(), stop.signal, stop.wait(0)) == (False, None, False)
        threading.Thread(target=kill, args=[number]).start()
        assert stop.wait()
        assert (stop.is_set(), stop.signal, stop.wait(0)) == (True, number, True)
    assert called == ["called"]


def test_several_threads_may_wait_for_the_same_signal() -> None:
    seen: list[bool] = []
    with blocking.stop_on_signals() as stop:
        threads = [threading.Thread(target=lambda: seen.append(stop.wait())) for _ in range(3)]
        for thread in threads:
            thread.start()
        signal.raise_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
    assert seen == [True] * 3


def test_the_same_signal_from_two_senders_counts_once() -> None:
    """A terminal and `timeout` both pass it on."""
    with blocking.stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.wait()


def test_a_second_signal_has_the_effect_that_it_has_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turbopump.stop_signals.IMPATIENCE_S", -1.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with blocking.stop_on_signals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.wait()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@in_loop
async def test_a_second_ctrl_c_cancels_the_main_task_as_without_the_helper() -> None:
    runner = asyncio.current_task()
    assert runner is not None
    async with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        await stop.wait()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("turbopump.stop_signals.IMPATIENCE_S", -1.0)
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        runner.uncancel()


def test_other_threads_cannot_be_asked() -> None:
    failed: list[Exception] = []

    def ask() -> None:
        try:
            with blocking.stop_on_signals():
                pass
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "main thread" in str(failed[0])


# --- consumers


def reader(namesrv: str) -> PushConsumer:
    return PushConsumer(namesrv, group="G", topic="T", consume_from=ConsumeFrom.FIRST)


async def bodies_until_a_signal(namesrv: str) -> list[bytes]:
    """The bodies that a loop gets which the first of them asks to stop."""
    bodies = []
    consumer = reader(namesrv)
    async with stop_on_signals(consumer.stop), consumer:
        async for message in consumer:
            bodies.append(message.body)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
    return bodies


@in_loop
async def test_a_loop_over_a_consumer_ends_after_its_message_which_is_done() -> None:
    async with running_broker() as broker:
        async with Producer(broker.namesrv) as producer:
            for body in ("first", "second"):
                await producer.send("T", body, sharding_key="one queue")
        assert await bodies_until_a_signal(broker.namesrv) == [b"first"]
        assert await bodies_until_a_signal(broker.namesrv) == [b"second"]


@in_loop
async def test_a_loop_that_waits_for_messages_ends() -> None:
    async with running_broker() as broker, Producer(broker.namesrv) as producer:
        await producer.send("T", "makes the topic")
        consumer = PushConsumer(broker.namesrv, group="G", topic="T", tags="none")
        async with stop_on_signals(consumer.stop), consumer:
            threading.Thread(target=kill, args=[signal.SIGTERM]).start()
            assert [message async for message in consumer] == []


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def test_a_blocking_loop_ends_after_its_message_which_is_done(broker: BrokerThread) -> None:
    with blocking.Producer(broker.namesrv) as producer:
        for body in ("first", "second"):
            producer.send("T", body, sharding_key="one queue")
    for body in (b"first", b"second"):
        seen = []
        consumer = blocking.PushConsumer(
            broker.namesrv, group="G", topic="T", consume_from=ConsumeFrom.FIRST
        )
        with blocking.stop_on_signals(consumer.stop), consumer:
            for message in consumer:
                seen.append(message.body)
                signal.raise_signal(signal.SIGTERM)
        assert seen == [body]


def test_a_blocking_loop_that_waits_for_messages_ends(broker: BrokerThread) -> None:
    consumer = blocking.PushConsumer(broker.namesrv, group="waits", topic="T", tags="none")
    with blocking.stop_on_signals(consumer.stop), consumer:
        threading.Thread(target=kill, args=[signal.SIGTERM]).start()
        assert [message.body for message in consumer] == []


@in_loop
async def test_a_signal_before_the_start_ends_the_loop_at_once() -> None:
    async with running_broker() as broker:
        async with Producer(broker.namesrv) as producer:
            await producer.send("T", "waits")
        consumer = reader(broker.namesrv)
        async with stop_on_signals(consumer.stop) as stop:
            signal.raise_signal(signal.SIGTERM)
            await stop.wait()
            async with consumer:
                assert [message async for message in consumer] == []


def test_a_signal_before_the_start_ends_a_blocking_loop_at_once(broker: BrokerThread) -> None:
    consumer = blocking.PushConsumer(
        broker.namesrv, group="late", topic="T", consume_from=ConsumeFrom.FIRST
    )
    with blocking.stop_on_signals(consumer.stop):
        signal.raise_signal(signal.SIGTERM)
        with consumer:
            assert list(consumer) == []


@in_loop
async def test_handlers_that_run_when_the_signal_comes_end_and_no_other_begins() -> None:
    handled: list[bytes] = []
    may_end = asyncio.Event()

    async def handle(message: Delivery) -> None:
        signal.raise_signal(signal.SIGTERM)
        await may_end.wait()
        handled.append(message.body)

    async with running_broker() as broker, Producer(broker.namesrv) as producer:
        for body in ("first", "second"):
            await producer.send("T", body, sharding_key="one queue")
        consumer = PushConsumer(
            broker.namesrv,
            group="G",
            topic="T",
            handler=handle,
            concurrency=1,
            consume_from=ConsumeFrom.FIRST,
        )
        async with stop_on_signals(consumer.stop) as stop, consumer:
            await stop.wait()
            may_end.set()
        assert handled == [b"first"]
        assert await bodies_until_a_signal(broker.namesrv) == [b"second"]
