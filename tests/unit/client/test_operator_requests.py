"""What consumers do when an operator speaks to them, by way of a broker of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.waits import until, until_count

from turbopump import LitePullConsumer, Message, MessageQueue, Producer, PushConsumer, Retry
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.protocol import fastjson
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectly,
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerRunningInfo,
)
from turbopump.protocol.requests.offsets import (
    GetConsumerStatus,
    GetConsumerStatusBody,
    ResetOffset,
)
from turbopump.remoting.client import RemotingClient
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

COUNT = 50
Ask = Callable[[Request[Any]], Awaitable[Command]]


async def main(
    config: Any,
    scene: Callable[[RunningBroker, Ask, str], Awaitable[None]],
    use_server_side_reset_offset: bool,
) -> None:
    config["use_server_side_reset_offset"] = use_server_side_reset_offset
    async with running_broker(**config) as running, Producer(running.namesrv) as producer:
        await running.create_topic("T")
        results = [await producer.send(Message("T", b"%d" % i)) for i in range(COUNT)]
        operator = RemotingClient()
        try:
            async with asyncio.timeout(60):
                await scene(
                    running,
                    lambda request: operator.exchange(running.broker_address, request, timeout=15),
                    results[0].offset_msg_id or "",
                )
        finally:
            await operator.close()


def with_a_broker(
    scene: Callable[[RunningBroker, Ask, str], Awaitable[None]],
    use_server_side_reset_offset: bool = True,
    **config: Any,
) -> None:
    """``scene(running, ask, offset_msg_id)`` with fifty messages in the one queue of T; the id is
    the first one's."""

    asyncio.run(main(config, scene, use_server_side_reset_offset))


def consumer_of(running: RunningBroker, **settings: Any) -> PushConsumer:
    return PushConsumer(
        running.namesrv, group="g", topic="T", consume_from=ConsumeFrom.FIRST, **settings
    )


def reset_to(offset: int) -> ResetOffset:
    return ResetOffset(group="g", topic="T", timestamp=-1, queue_id=0, offset=offset)


def offsets_of(running: RunningBroker) -> ConsumerOffsets:
    """The places that the broker knows."""
    tables = running.broker.tables
    assert tables is not None
    return tables.offsets


async def note(seen: list[bytes], message: Delivery) -> None:
    seen.append(message.body)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("use_server_side_reset_offset", [True, False])
@in_loop(with_a_broker)
async def test_a_running_consumer_goes_back_and_forth_with_resets(
    running: RunningBroker,
    ask: Ask,
    first: str,
    /,
    ordered: bool,
    use_server_side_reset_offset: bool,
) -> None:
    seen: list[bytes] = []

    async with consumer_of(running, handler=partial(note, seen), ordered=ordered) as consumer:
        await until_count(seen, COUNT)
        await consumer.commit(acknowledged=True)
        assert (await ask(reset_to(40))).code == 0
        await until_count(seen, COUNT + 10)
        assert sorted(seen[COUNT:]) == [b"%d" % i for i in range(40, 50)]
        assert (await ask(reset_to(0))).code == 0
        await until_count(seen, 2 * COUNT + 10)
        await consumer.commit(acknowledged=True)
        assert offsets_of(running).find("g", "T", 0) == COUNT


async def note_and_wait(
    blocked: asyncio.Event, go: asyncio.Event, seen: list[bytes], message: Delivery
) -> None:
    seen.append(message.body)
    if message.body == b"30":
        blocked.set()
        await go.wait()


@in_loop(with_a_broker)
async def test_a_reset_wins_over_commits_on_their_way_and_over_handlers_that_run(
    running: RunningBroker, ask: Ask, first: str, /
) -> None:
    blocked, go = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async with consumer_of(
        running, handler=partial(note_and_wait, blocked, go, seen), concurrency=1
    ) as consumer:
        await blocked.wait()
        commits = [asyncio.ensure_future(consumer.commit()) for _ in range(20)]
        assert (await ask(reset_to(5))).code == 0
        commits += [asyncio.ensure_future(consumer.commit()) for _ in range(20)]
        await asyncio.gather(*commits)
        assert offsets_of(running).find("g", "T", 0) == 5
        go.set()
        await until(lambda: seen.count(b"5") == seen.count(b"30") == 2 and seen[-1] == b"49")
        assert seen.count(b"4") == 1


@in_loop(with_a_broker)
async def test_a_reset_sticks_though_the_consumer_closes_at_the_same_moment(
    running: RunningBroker, ask: Ask, first: str, /
) -> None:
    seen: list[bytes] = []

    async def handle(message: Delivery) -> None:
        seen.append(message.body)

    consumer = consumer_of(running, handler=handle)
    await consumer.start()
    await until_count(seen, COUNT)
    offsets_of(running).reset("g", "T", 0, 7)  # nobody has been told yet
    await consumer.close()
    assert offsets_of(running).find("g", "T", 0) == 7
    del seen[:]
    async with consumer_of(running, handler=handle):
        await until_count(seen, COUNT - 7)


@pytest.mark.parametrize("use_server_side_reset_offset", [True, False])
@in_loop(with_a_broker)
async def test_a_lite_pull_consumer_obeys_too(
    running: RunningBroker, ask: Ask, first: str, /, use_server_side_reset_offset: bool
) -> None:
    async with LitePullConsumer(
        running.namesrv, group="g", topic="T", consume_from=ConsumeFrom.FIRST
    ) as consumer:
        count = 0
        while count < COUNT:
            count += len(await consumer.poll())
        assert (await ask(reset_to(45))).code == 0
        again: list[int] = []
        while len(again) < 5:
            again += [message.queue_offset for message in await consumer.poll()]
        assert again == list(range(45, 50))


async def wait_for_ever(waiting: asyncio.Event, message: Delivery) -> None:
    if message.body == b"3":
        waiting.set()
        await asyncio.Event().wait()


@in_loop(with_a_broker)
async def test_a_consumer_tells_where_it_stands_and_what_it_does(
    running: RunningBroker, ask: Ask, first: str, /
) -> None:
    waiting = asyncio.Event()

    async with consumer_of(
        running, handler=partial(wait_for_ever, waiting), concurrency=1, close_timeout=0.1
    ) as consumer:
        await waiting.wait()
        queue = MessageQueue("T", "broker-test", 0)
        status = fastjson.decode(
            (await ask(GetConsumerStatus(topic="T", group="g"))).body, GetConsumerStatusBody
        )
        assert status.consumer_table == {consumer.client_id: {queue: 3}}
        asked = GetConsumerRunningInfo(
            consumer_group="g", client_id=consumer.client_id, jstack_enable=True
        )
        info = fastjson.decode((await ask(asked)).body, ConsumerRunningInfo)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_NAMESERVER_ADDR"] == running.namesrv
        assert {one.topic for one in info.subscription_set} == {"T", "%RETRY%g"}
        assert info.mq_table[queue].commit_offset == 3
        assert info.mq_table[queue].cached_msg_count == COUNT - 3
        assert "thread MainThread" in (info.jstack or "")
        assert "wait_for_ever" in (info.jstack or "")
        answer = await ask(GetConsumerRunningInfo(consumer_group="g", client_id="nobody"))
        assert (answer.code, answer.remark) == (1, "The Consumer <g> <nobody> not online")


def note_and_fail(returned: Any, seen: list[bytes], message: Delivery) -> object:
    seen.append(message.body)
    if len(seen) <= COUNT:
        return None
    if isinstance(returned, Exception):
        raise returned
    return returned


@pytest.mark.parametrize(
    ("returned", "result", "remark"),
    [
        (None, ConsumeResult.CR_SUCCESS, None),
        (Retry, ConsumeResult.CR_LATER, None),
        (Retry(5), ConsumeResult.CR_LATER, None),
        (
            ZeroDivisionError("by hand"),
            ConsumeResult.CR_THROW_EXCEPTION,
            "ZeroDivisionError: by hand",
        ),
    ],
)
@in_loop(with_a_broker)
async def test_a_message_is_handled_on_request_and_what_came_of_it_is_told(
    running: RunningBroker,
    ask: Ask,
    first: str,
    /,
    returned: Any,
    result: ConsumeResult,
    remark: str | None,
) -> None:
    seen: list[bytes] = []

    async with consumer_of(running, handler=partial(note_and_fail, returned, seen)) as consumer:
        await until_count(seen, COUNT)
        asked = ConsumeMessageDirectly(
            consumer_group="g", client_id=consumer.client_id, msg_id=first, topic="T"
        )
        told = fastjson.decode((await ask(asked)).body, ConsumeMessageDirectlyResult)
        assert (told.consume_result, told.remark) == (result, remark)
        assert seen[COUNT:] == [b"0"]


@in_loop(with_a_broker)
async def test_what_cannot_be_handled_on_request_is_refused_with_the_cause(
    running: RunningBroker, ask: Ask, first: str, /
) -> None:
    async with consumer_of(running) as consumer:
        asked = ConsumeMessageDirectly(
            consumer_group="g", client_id=consumer.client_id, msg_id=first
        )
        told = fastjson.decode((await ask(asked)).body, ConsumeMessageDirectlyResult)
        assert "no handler" in (told.remark or "")
        answer = await ask(
            ConsumeMessageDirectly(consumer_group="g", client_id=consumer.client_id, msg_id="x")
        )
        assert "not an offset message id" in (answer.remark or "")
