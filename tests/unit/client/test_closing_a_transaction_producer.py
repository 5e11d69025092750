"""What a close leaves of transactions and of questions about them: nothing that is called, and
nobody is told."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.loops import in_loop
from tests.stand_ins import async_raises, does_nothing, returns
from tests.unit.client.transacting import (
    BROKER,
    COMMIT,
    NAMESRV,
    SELLER,
    UNKNOWN,
    World,
    in_a_world,
    unexpected,
)
from tests.waits import until, until_count

from turbopump import Message, TransactionProducer, TransactionResult, TransactionState
from turbopump.blocking import TransactionProducer as BlockingTransactionProducer
from turbopump.client.hooks import SendContext, SendHook
from turbopump.client.sending.sender import PendingSends
from turbopump.client.transaction_producer import StateQuestion, TransactionAnswers
from turbopump.client.user_function import NotCalledError, UserFunction
from turbopump.errors import NotStartedError
from turbopump.message.message import ReceivedMessage
from turbopump.protocol.requests.send import CheckTransactionState
from turbopump.testing.broker_in_loop import BrokerThread, running_broker

PATIENCE_S = 20.0


async def two_of_one_instance(
    world: World, **settings: Any
) -> tuple[TransactionProducer, TransactionProducer]:
    """The one that a story closes, and another that keeps the connections."""
    clock, source = world.simulation.clock(SELLER), world.simulation.source(SELLER)
    shared: dict[str, Any] = {"clock": clock, "random": source, "local_ip": SELLER}
    closed = TransactionProducer(
        f"{NAMESRV}:9876", **{"group": "sellers", "checker": unexpected, **shared, **settings}
    )
    other = TransactionProducer(
        f"{NAMESRV}:9876", group="others", checker=committing, executor=undecided, **shared
    )
    await other.start()
    await other.send_in_transaction(Message("orders", b"other"))
    await closed.start()
    assert closed.client_id == other.client_id
    return closed, other


async def undecided(_message: Message, _arg: object) -> None:
    return None


async def committing(_message: ReceivedMessage) -> TransactionState:
    return COMMIT


# --- with coroutines, in virtual time
# ----------------------------------------------------------------------------------------


async def note_and_check_slowly(begun: list[bytes], message: ReceivedMessage) -> TransactionState:
    begun.append(message.body)
    await asyncio.sleep(2)
    return COMMIT


@in_loop(in_a_world)
async def test_after_a_close_nobody_is_asked_and_a_check_that_was_under_way_is_answered(
    world: World, /
) -> None:
    begun: list[bytes] = []

    producer, other = await two_of_one_instance(
        world, executor=undecided, checker=partial(note_and_check_slowly, begun), threads=1
    )
    for number in range(20):
        await producer.send_in_transaction(Message("orders", b"%d" % number))
    while len(begun) < 2:
        await asyncio.sleep(0.1)
    before = world.simulation.loop.time()
    await producer.close()
    assert world.simulation.loop.time() - before < 2.1
    await asyncio.sleep(100)
    assert len(begun) == 2
    assert world.delivered() == sorted([*begun, b"other"])
    await other.close()


async def note_ended_and_pause(ended: list[str], _message: ReceivedMessage) -> TransactionState:
    try:
        await asyncio.sleep(50)
    except asyncio.CancelledError:
        ended.append("cancelled")
    return COMMIT


@in_loop(in_a_world)
async def test_a_check_that_outlasts_the_close_is_cancelled_and_not_answered(
    world: World, /
) -> None:
    ended: list[str] = []

    producer, other = await two_of_one_instance(
        world, executor=undecided, checker=partial(note_ended_and_pause, ended), send_timeout=1.0
    )
    await producer.send_in_transaction(Message("orders", b"x"))
    while not producer._answers._workers:
        await asyncio.sleep(0.1)
    before = world.simulation.loop.time()
    await producer.close()
    assert ended == ["cancelled"]
    assert 0.99 < world.simulation.loop.time() - before < 1.2
    await asyncio.sleep(100)
    assert world.delivered() == [b"other"]
    await other.close()


@pytest.mark.parametrize("shared", [True, False])
@in_loop(in_a_world)
async def test_a_checker_may_close_its_own_producer_and_nobody_waits_for_it(
    world: World, /, shared: bool
) -> None:
    took: list[float] = []

    async def check(_message: ReceivedMessage) -> TransactionState:
        before = world.simulation.loop.time()
        await producer.close()
        took.append(world.simulation.loop.time() - before)
        return COMMIT

    producer, other = await two_of_one_instance(world, executor=undecided, checker=check)
    if not shared:
        await other.close()
    await producer.send_in_transaction(Message("orders", b"x"))
    async with asyncio.timeout(100):
        while not took:
            await asyncio.sleep(0.1)
    assert took[0] < 0.5
    await producer.close()
    await other.close()


def patiently(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@in_loop(patiently)
async def test_checks_that_end_in_the_moment_they_begin_leave_room_for_others() -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    checker: Any = UserFunction(committing, threads=1, name="checker")
    told: list[object] = []
    answers = TransactionAnswers(
        checker, lambda *answer: told.append(answer), group="g", namespace=None, concurrency=2
    )
    loop = asyncio.get_running_loop()
    instance = SimpleNamespace(spawn=lambda work, name: loop.create_task(work, name=name))
    sender: Any = SimpleNamespace(under_way=PendingSends(), instance=instance)
    message: Any = SimpleNamespace(topic="orders", properties={}, msg_id="1", broker_name="")
    request = CheckTransactionState(
        topic="orders", tran_state_table_offset=1, commit_log_offset=2, msg_id="1", bname="b"
    )
    for number in range(10):
        answers.add_question(StateQuestion(request, message, cast(Any, None)), sender)
        while len(told) <= number:
            await asyncio.sleep(0)
    assert sender.under_way.count == 0


@in_loop(in_a_world)
async def test_an_executor_that_outlasts_the_close_ends_and_the_broker_is_not_told(
    world: World, /
) -> None:
    async def execute(_message: Message, _arg: object) -> TransactionState:
        await asyncio.sleep(5)
        return COMMIT

    producer, other = await two_of_one_instance(world, executor=execute, send_timeout=1.0)
    sending = asyncio.create_task(producer.send_in_transaction(Message("orders", b"x")))
    await asyncio.sleep(0.5)
    before = world.simulation.loop.time()
    await producer.close()
    assert 0.99 < world.simulation.loop.time() - before < 1.2
    result = await sending
    assert (result.state, result.error, result.told) == (COMMIT, None, False)
    await asyncio.sleep(100)
    assert world.delivered() == [b"other"]
    await other.close()


@in_loop(in_a_world)
async def test_nothing_is_executed_for_a_half_message_whose_answer_comes_after_the_close(
    world: World, /
) -> None:
    producer, other = await two_of_one_instance(
        world, executor=async_raises(AssertionError("not to be executed")), send_timeout=1.0
    )
    world.simulation.network.cut(BROKER, SELLER)
    sending = asyncio.create_task(producer.send_in_transaction(Message("orders", b"x"), timeout=30))
    await asyncio.sleep(0.5)
    await producer.close()
    world.simulation.network.heal(BROKER, SELLER)
    not_called(await sending)
    await other.close()


@in_loop(in_a_world)
async def test_a_close_before_the_start_does_no_harm(world: World, /) -> None:
    producer = world.producer(executor=returns(COMMIT))
    await producer.close()
    async with producer:
        assert producer._executor is not None
        assert producer._executor._pool is not None
        assert not producer._executor._pool.closed


# --- with plain functions, in threads
# ----------------------------------------------------------------------------------------


class Stored(SendHook):
    """Notes half messages that are stored; right after it, each executor is handed to its
    thread."""

    def __init__(self) -> None:
        self.count = 0

    def after(self, context: SendContext) -> None:
        self.count += context.error is None


def not_called(result: TransactionResult) -> None:
    assert (result.state, result.told) == (UNKNOWN, False)
    assert isinstance(result.error, NotStartedError)
    assert "not called" in str(result.error)


def execute_when_released(
    executed: list[bytes],
    goes_on: threading.Event,
    inside: threading.Event,
    message: Message,
    _arg: object,
) -> TransactionState:
    executed.append(message.body)
    inside.set()
    assert goes_on.wait(PATIENCE_S)
    return COMMIT


def start_sending(producer: TransactionProducer, body: bytes) -> asyncio.Task[TransactionResult]:
    return asyncio.create_task(
        producer.send_in_transaction(Message("orders", body), timeout=PATIENCE_S)
    )


async def main(executed: list[bytes], goes_on: threading.Event, inside: threading.Event) -> None:
    async with running_broker() as running:
        hook = Stored()
        producer = TransactionProducer(
            running.namesrv,
            group="sellers",
            checker=committing,
            executor=partial(execute_when_released, executed, goes_on, inside),
            threads=1,
            hooks=[hook],
            send_timeout=1.0,
        )
        await producer.start()

        first = start_sending(producer, b"first")
        await until(inside.is_set)
        others = [start_sending(producer, b"x") for _ in range(3)]
        await until(lambda: hook.count == 4)
        others[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await others[0]
        await producer.close()
        for other in others[1:]:
            not_called(await other)
        goes_on.set()
        result = await first
        assert (result.state, result.error, result.told) == (COMMIT, None, False)
        assert executed == [b"first"]


def test_a_caller_waiting_for_a_thread_at_the_close_gets_a_result_unless_cancelled() -> None:
    inside, goes_on = threading.Event(), threading.Event()
    executed: list[bytes] = []

    try:
        asyncio.run(main(executed, goes_on, inside))
    finally:
        goes_on.set()


def execute_inside(
    goes_on: threading.Event, inside: threading.Event, _message: Message, _arg: object
) -> TransactionState:
    inside.set()
    assert goes_on.wait(PATIENCE_S)
    return COMMIT


def send(producer: BlockingTransactionProducer, results: list[object]) -> None:
    try:
        results.append(producer.send_in_transaction(Message("orders", b"x"), timeout=PATIENCE_S))
    except BaseException as error:
        results.append(error)


def test_without_await_who_still_waits_for_a_thread_at_the_close_gets_a_result() -> None:
    inside, goes_on = threading.Event(), threading.Event()
    results: list[object] = []

    with BrokerThread() as broker:
        hook = Stored()
        producer = BlockingTransactionProducer(
            broker.namesrv,
            group="sellers",
            checker=returns(UNKNOWN),
            executor=partial(execute_inside, goes_on, inside),
            threads=1,
            hooks=[hook],
            send_timeout=1.0,
        )
        producer.start()

        try:
            threads = [
                threading.Thread(target=partial(send, producer, results), daemon=True)
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            assert inside.wait(PATIENCE_S)
            asyncio.run(until(lambda: hook.count == 3))
            producer.close()
            asyncio.run(until_count(results, 2))
            for result in results:
                assert isinstance(result, TransactionResult), repr(result)
                not_called(result)
        finally:
            goes_on.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(results) == 3


@pytest.mark.parametrize("shared", [True, False])
def test_without_await_a_plain_checker_may_close_its_own_producer_and_nobody_waits_for_it(
    shared: bool,
) -> None:
    """It once waited for itself, for the whole ``send_timeout``."""
    closed = threading.Event()
    errors: list[BaseException] = []

    def check(_message: ReceivedMessage) -> TransactionState:
        try:
            producer.close()
        except BaseException as error:
            errors.append(error)
        closed.set()
        return COMMIT

    with BrokerThread(transaction_time_out=100, transaction_check_interval=200) as broker:
        others = BlockingTransactionProducer(
            broker.namesrv, group="others", checker=committing, executor=undecided
        )
        producer = BlockingTransactionProducer(
            broker.namesrv,
            group="sellers",
            checker=check,
            executor=returns(UNKNOWN),
            send_timeout=1000.0,
        )
        if shared:
            others.start()
        producer.start()
        producer.send_in_transaction(Message("orders", b"x"), timeout=PATIENCE_S)
        assert closed.wait(PATIENCE_S)
        producer.close()
        others.close()
    assert errors == []


@in_loop
async def test_a_function_that_is_called_after_the_close_says_so() -> None:
    function = UserFunction(does_nothing, threads=1, name="test")
    function.close()
    with pytest.raises(NotCalledError, match="not called"):
        await function.call()
