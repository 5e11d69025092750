"""The producer of transactions, against real brokers: what becomes of a message when its
transaction succeeds, fails, or is undecided."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from tests.loops import in_loop
from tests.stand_ins import async_does_nothing, async_raises, async_returns, raises
from tests.unit.client.transacting import COMMIT, OTHER, ROLLBACK, UNKNOWN, World, in_a_world

from turbopump import Message, TransactionProducer, TransactionResult, TransactionState
from turbopump.blocking import TransactionProducer as BlockingTransactionProducer
from turbopump.client.hooks import EndTransactionContext, SendHook
from turbopump.errors import ConfigError, MessageError, SendError
from turbopump.message.message import ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.testing.broker_in_loop import BrokerThread, running_broker

# --- with coroutines, in virtual time
# ----------------------------------------------------------------------------------------


async def note_and_execute(
    seen: list[tuple[str, object]], world: World, message: Message, arg: object
) -> TransactionState:
    seen.append((message.properties["__transactionId__"], arg))
    assert world.delivered() == [b"one"] * (len(seen) - 1)
    return COMMIT if arg == "good" else ROLLBACK


@in_loop(in_a_world)
async def test_a_message_is_delivered_if_the_executor_commits_and_never_if_it_rolls_back(
    world: World, /
) -> None:
    seen: list[tuple[str, object]] = []

    async with world.producer(executor=partial(note_and_execute, seen, world)) as producer:
        good = await producer.send_in_transaction(
            Message("orders", b"one", tags="t", keys="k"), "good"
        )
        await asyncio.sleep(1)
        bad = await producer.send_in_transaction(Message("orders", b"two"), "bad")
        assert seen == [(good.transaction_id, "good"), (bad.transaction_id, "bad")]
        assert (good.state, bad.state) == (COMMIT, ROLLBACK)
        assert good.told
        assert good.transaction_id == good.sent.msg_id
        await asyncio.sleep(600)
    assert world.delivered() == [b"one"]


async def note_and_check(
    asked: list[ReceivedMessage], message: ReceivedMessage
) -> TransactionState:
    asked.append(message)
    return {b"a": COMMIT, b"b": ROLLBACK}[message.body]


@in_loop(in_a_world)
async def test_a_broker_that_was_told_nothing_asks_the_checker(world: World, /) -> None:
    asked: list[ReceivedMessage] = []

    async def execute(_message: Message, arg: object) -> TransactionState | None:
        if arg is None:
            return None
        raise OSError("the data base is away")

    async with world.producer(executor=execute, checker=partial(note_and_check, asked)) as producer:
        first = await producer.send_in_transaction(Message("orders", b"a", keys="k1"))
        second = await producer.send_in_transaction(Message("orders", b"b"), "raise")
        assert (first.state, first.error) == (UNKNOWN, None)
        assert second.state is UNKNOWN
        assert isinstance(second.error, OSError)
        await asyncio.sleep(70)
        assert {message.properties["__transactionId__"] for message in asked} == {
            first.transaction_id,
            second.transaction_id,
        }
        assert asked[0].topic == "orders"
        assert asked[0].broker_name == "broker-a"
        assert world.delivered() == [b"a"]


async def dying(world: World) -> None:
    producer = world.producer(OTHER, executor=async_does_nothing)
    await producer.start()
    await producer.send_in_transaction(Message("orders", b"orphan"))


@in_loop(in_a_world)
async def test_another_producer_of_the_group_answers_for_a_dead_one_even_if_it_never_sent(
    world: World, /
) -> None:
    await world.simulation.boot(OTHER).start(dying(world))
    world.simulation.end(OTHER, power_cut=False)

    async with world.producer(checker=async_returns(COMMIT)):
        await asyncio.sleep(100)
    assert world.delivered() == [b"orphan"]


@in_loop(in_a_world)
async def test_a_checker_that_fails_is_asked_again(world: World, /) -> None:
    times = 0

    async def check(_message: ReceivedMessage) -> object:
        nonlocal times
        times += 1
        if times == 1:
            raise OSError("away")
        return "yes" if times == 2 else COMMIT

    async with world.producer(executor=async_does_nothing, checker=check) as producer:
        await producer.send_in_transaction(Message("orders", b"x"))
        await asyncio.sleep(130)
    assert times == 3
    assert world.delivered() == [b"x"]


@in_loop(in_a_world)
async def test_hooks_and_traces_tell_how_transactions_end(world: World, /) -> None:
    ended: list[EndTransactionContext] = []

    class Hook(SendHook):
        def end_transaction(self, context: EndTransactionContext) -> None:
            ended.append(context)

    async def execute(_message: Message, arg: object) -> object:
        return arg

    async with world.producer(
        executor=execute, checker=async_returns(ROLLBACK), hooks=[Hook()], trace=True
    ) as producer:
        done = await producer.send_in_transaction(
            Message("orders", b"x", keys="k", tags="t"), COMMIT
        )
        await producer.send_in_transaction(Message("orders", b"y"))
        await asyncio.sleep(70)
    assert [(context.state, context.from_check) for context in ended] == [
        ("COMMIT_MESSAGE", False),
        ("UNKNOW", False),
        ("ROLLBACK_MESSAGE", True),
    ]
    assert ended[0].transaction_id == done.transaction_id
    records = b"".join(world.delivered("RMQ_SYS_TRACE_TOPIC")).decode().split("\x02")
    fields = [record.split("\x01") for record in records if record.startswith("EndTransaction")]
    states = {field[11]: field for field in fields}
    assert sorted(states) == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    assert states["COMMIT_MESSAGE"][4:8] == ["orders", done.sent.msg_id, "t", "k"]


@in_loop(in_a_world)
async def test_what_cannot_be_a_transaction_is_refused_before_anything_is_sent(
    world: World, /
) -> None:
    async with world.producer() as producer:
        with pytest.raises(ConfigError, match="needs an executor"):
            await producer.send_in_transaction(Message("orders", b"x"))
        with pytest.raises(MessageError, match="cannot be delayed"):
            await producer.send_in_transaction(
                Message("orders", b"x", delay_level=3),
                executor=async_raises(AssertionError("not to be executed")),
            )


@in_loop(in_a_world, reject_transaction_message=True)
async def test_nothing_is_executed_for_a_half_message_that_the_broker_refuses(
    world: World, /
) -> None:
    async with world.producer(
        executor=async_raises(AssertionError("not to be executed")), retries=0
    ) as producer:
        with pytest.raises(SendError) as refused:
            await producer.send_in_transaction(Message("orders", b"x"))
    assert str(int(ResponseCode.NO_PERMISSION)) in str(refused.value)


async def note_topics(topics: list[str], message: Message, _arg: object) -> None:
    topics.append(message.topic)


async def note_topic_and_commit(topics: list[str], message: ReceivedMessage) -> TransactionState:
    topics.append(message.topic)
    return COMMIT


@in_loop(in_a_world)
async def test_a_namespace_wraps_topic_and_group_and_the_user_sees_neither(world: World, /) -> None:
    topics: list[str] = []

    async with world.producer(
        executor=partial(note_topics, topics),
        checker=partial(note_topic_and_commit, topics),
        namespace="ns",
    ) as producer:
        result = await producer.send_in_transaction(Message("orders", b"x"))
        assert result.sent.queue.topic == "orders"
        await asyncio.sleep(70)
    assert topics == ["orders", "orders"]
    assert world.delivered("ns%orders") == [b"x"]


@in_loop(in_a_world)
async def test_closing_waits_for_transactions_under_way(world: World, /) -> None:
    async def execute(_message: Message, _arg: object) -> TransactionState:
        await asyncio.sleep(2)
        return COMMIT

    producer = world.producer(executor=execute)
    await producer.start()
    sending = asyncio.ensure_future(producer.send_in_transaction(Message("orders", b"x")))
    await asyncio.sleep(1)
    await producer.close()
    assert (await sending).told
    await asyncio.sleep(1)
    assert world.delivered() == [b"x"]


# --- with plain functions, in threads
# ----------------------------------------------------------------------------------------


def execute_in_thread(
    inside: threading.Event, threads: list[int], _message: Message, _arg: object
) -> TransactionState:
    threads.append(threading.get_ident())
    assert inside.wait(60), "the loop is held"
    return COMMIT


@in_loop
async def test_plain_functions_run_in_threads_and_never_hold_the_loop() -> None:
    async with running_broker() as running:
        inside, loops = threading.Event(), threading.get_ident()
        threads: list[int] = []

        async with TransactionProducer(
            running.namesrv,
            group="sellers",
            checker=raises(AssertionError("not asked")),
            executor=partial(execute_in_thread, inside, threads),
        ) as producer:
            sending = asyncio.ensure_future(producer.send_in_transaction(Message("orders", b"x")))
            async with asyncio.timeout(60):
                while not threads:
                    await asyncio.sleep(0.01)
            inside.set()
            result: TransactionResult = await sending
            assert result.state is COMMIT
            assert threads != [loops]


def check_and_tell(checked: threading.Event, _message: ReceivedMessage) -> TransactionState:
    checked.set()
    return COMMIT


def test_the_blocking_producer_does_the_same_without_await() -> None:
    with BrokerThread(transaction_time_out=200, transaction_check_interval=200) as broker:
        checked = threading.Event()

        def execute(_message: Message, arg: object) -> object:
            return arg

        with BlockingTransactionProducer(
            broker.namesrv,
            group="sellers",
            checker=partial(check_and_tell, checked),
            executor=execute,
        ) as producer:
            assert producer.send_in_transaction(Message("orders", b"a"), COMMIT).state is COMMIT
            assert producer.send_in_transaction(Message("orders", b"b")).state is UNKNOWN
            assert checked.wait(60)
            assert producer.send(Message("orders", b"plain")).queue.topic == "orders"
