"""Users' functions that raise what no Future or task can carry: it is their failure, and everything
else goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import async_returns, does_nothing, returns
from tests.unit.client.handler_threads import PATIENCE_S, Queue, message_of, messages_of
from tests.waits import until_count

from turbopump import Message, TransactionState
from turbopump.blocking import Producer, TransactionProducer
from turbopump.client import loop_thread
from turbopump.client import producer as asyncio_producer
from turbopump.client.consumer.handling import HandlerPool
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.loop_thread import LoopThread, the_loop_thread
from turbopump.client.user_function import UserFunction
from turbopump.event_loop import new_event_loop
from turbopump.testing import BrokerThread

WILD = [StopIteration("no such row"), SystemExit(3), KeyboardInterrupt()]
names = pytest.mark.parametrize("error", WILD, ids=lambda error: type(error).__name__)


def fail_with(error: BaseException, *_: object) -> None:
    raise error


def plain(error: BaseException) -> Callable[..., Any]:
    return partial(fail_with, error)


async def fail_later_with(error: BaseException, *_: object) -> None:
    raise error


def coroutine(error: BaseException) -> Callable[..., Any]:
    return partial(fail_later_with, error)


def late(error: BaseException) -> Callable[..., Any]:
    return lambda *_: coroutine(error)()


forms = pytest.mark.parametrize("form", [plain, coroutine, late], ids=lambda form: form.__name__)


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "ours"])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    monkeypatch.setattr(loop_thread, "new_event_loop", request.param)
    thread = LoopThread()
    yield thread
    loop = thread.loop
    if not thread.ended:
        loop.call_soon_threadsafe(loop.stop)
    thread._thread.join(PATIENCE_S)
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def run(failures: list[BaseException], story: Callable[[], Any]) -> None:
    try:
        asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    except BaseException as error:
        failures.append(error)


def on_a_loop_thread(story: Callable[[], Any]) -> None:
    """Not on the main thread, where a KeyboardInterrupt is Ctrl-C."""
    failures: list[BaseException] = []

    thread = threading.Thread(target=partial(run, failures, story), daemon=True)
    thread.start()
    thread.join(2 * PATIENCE_S)
    assert not thread.is_alive()
    for failure in failures:
        raise failure


@names
@forms
@in_loop(on_a_loop_thread)
async def test_a_function_that_raises_it_has_failed_and_whoever_asked_is_told(
    form: Any, error: BaseException
) -> None:
    function = UserFunction(form(error), threads=1, name="test")
    with pytest.raises(RuntimeError) as failure:
        await function.call("a")
    function.close()
    assert failure.value.__cause__ is error


@names
@forms
@in_loop(on_a_loop_thread)
async def test_a_handler_that_raises_it_gets_the_message_again_and_the_next_one_too(
    form: Any, error: BaseException
) -> None:
    wild, queue, ready = form(error), Queue(), ReadyMessages(None)

    if form is coroutine:

        async def handle(message: Any) -> None:
            if message.queue_offset == 1:
                await wild(message)
    else:

        def handle(message: Any) -> Any:
            return wild(message) if message.queue_offset == 1 else None

    pool = HandlerPool(handle, ready, concurrency=1)
    pool.start()
    ready.add_messages(messages_of(queue, 3))
    await until_count(queue.said, 3)
    with pytest.raises((RuntimeError, StopIteration)):  # as when an operator has one handled
        await pool.call(message_of(queue, 1))
    ready.close()
    await pool.stop(PATIENCE_S)
    assert (queue.said[0], queue.said[2]) == ("done", "done")
    assert queue.said[1].startswith("failed")
    assert type(error).__name__ in queue.said[1]


def test_ctrl_c_in_a_coroutine_on_the_main_thread_is_nobodys_failure() -> None:
    function = UserFunction(coroutine(KeyboardInterrupt()), threads=1, name="test")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(function.call())


def check(
    answers: list[BaseException | None], asked: threading.Event, _message: object
) -> TransactionState:
    answer = answers.pop(0)
    if answer is not None:
        raise answer
    asked.set()
    return TransactionState.COMMIT


def test_a_transaction_is_decided_in_the_end_and_the_other_clients_live() -> None:
    asked = threading.Event()
    answers: list[BaseException | None] = [SystemExit(1), StopIteration(), None]

    settings = {"transaction_time_out": 100, "transaction_check_interval": 200}
    with (
        BrokerThread(**settings) as broker,
        Producer(broker.namesrv, instance_name="other") as other,
    ):
        with TransactionProducer(
            broker.namesrv, group="sellers", checker=partial(check, answers, asked)
        ) as producer:
            result = producer.send_in_transaction(
                Message("T", b"x"), executor=plain(StopIteration("no such row"))
            )
            assert result.state is TransactionState.UNKNOWN
            assert isinstance(result.error, RuntimeError)
            assert isinstance(result.error.__cause__, StopIteration)
            assert asked.wait(PATIENCE_S)
        other.send("T", b"y")


async def broken(thread: LoopThread) -> None:
    thread.post(does_nothing)  # another call comes as it breaks
    asyncio.get_running_loop().call_soon(plain(SystemExit(3)))


def test_the_loop_of_all_blocking_clients_goes_on_and_says_who_broke_out(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    answer = async_returns(42)

    thread.call(partial(broken, thread))
    assert thread.call(answer) == 42  # uvloop may still answer this one before it lets go
    assert thread.call(answer) == 42
    told = [record for record in caplog.records if record.name == loop_thread.log.name]
    assert [record.levelno for record in told] == [logging.ERROR]
    assert "SystemExit(3)" in caplog.text


async def stop_and_wait() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


def test_a_call_on_a_loop_that_was_stopped_fails_instead_of_waiting_for_ever(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="was stopped"):
        thread.call(stop_and_wait)
    with pytest.raises(RuntimeError, match="was stopped"):
        thread.call(stop_and_wait)
    monkeypatch.setattr(loop_thread, "_loop_thread", thread)
    monkeypatch.setattr(loop_thread, "LoopThread", returns("another"))
    assert the_loop_thread() == "another"


async def start_and_stop() -> None:
    await asyncio_producer.Producer("127.0.0.1:1", instance_name="stopped").start()
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


def test_a_name_is_free_again_when_the_loop_of_all_blocking_clients_was_stopped(
    thread: LoopThread,
) -> None:
    with pytest.raises(RuntimeError, match="was stopped"):
        thread.call(start_and_stop)
    with Producer("127.0.0.1:1", instance_name="stopped"):
        pass
