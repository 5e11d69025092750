"""POP: our SimpleConsumer, and our PushConsumer where the broker has it pop, over our broker and
Apache's 5.3.3.

Apache's 4.9.7 has no POP and divides no queues: there only the fallback of the push consumer is
tried.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4
from tests.interop.either_servers import OURS, Servers, set_mode
from tests.interop.either_servers import servers as servers
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    check,
    check_queues,
    eventually,
    letters,
    make_topics,
    numbers,
    patient_producer,
    send_all,
)
from tests.loops import in_loop

from turbopump import (
    ConsumeFrom,
    Message,
    PoppedMessage,
    PushConsumer,
    Retry,
    SendResult,
    SimpleConsumer,
)
from turbopump.client.consumer.delivery import Delivery
from turbopump.errors import RemotingError
from turbopump.protocol.requests.assignment import MessageRequestMode

with_pop = pytest.mark.parametrize("servers", [OURS, NEWEST], indirect=True)
without_pop = pytest.mark.parametrize("servers", [NEWEST_4], indirect=True)

QUEUES = 4  # as make_topics makes them
LETTERS = 60
# nothing comes again by itself while a test runs, however slow the machine
INVISIBLE_SECONDS = 120.0


async def receive(
    consumer: SimpleConsumer, enough: Callable[[list[PoppedMessage]], bool]
) -> list[PoppedMessage]:
    received: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not enough(received):
            try:
                received += await consumer.receive(16, INVISIBLE_SECONDS, timeout=10)
            except RemotingError:  # a broker that had no time: asked again
                continue
    return received


@with_pop
@in_loop
async def test_a_simple_consumer_receives_acknowledges_and_changes_times(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, "pop-a", "pop-b")
    sent = {topic: letters(topic, LETTERS) for topic in ("pop-a", "pop-b")}
    async with (
        patient_producer(servers.namesrv) as producer,
        SimpleConsumer(
            servers.namesrv, group="pop-simple", topic="pop-a", consume_from=ConsumeFrom.FIRST
        ) as consumer,
    ):
        await consumer.subscribe("pop-b")
        results = {topic: await send_all(producer, messages) for topic, messages in sent.items()}
        received = await receive(consumer, lambda so_far: len(so_far) >= 2 * LETTERS)
        for topic, messages in sent.items():
            ours = [message for message in received if message.topic == topic]
            check(messages, ours, results[topic])
            check_queues(ours)
        await consumer.ack(received[0], timeout=CALL_SECONDS)
        await consumer.ack(received[1 : 2 * LETTERS - 3], timeout=CALL_SECONDS)
        rest = received[2 * LETTERS - 3 :]
        for message in rest:
            before = message.handle
            assert before != await consumer.change_invisible_time(message, 2, timeout=CALL_SECONDS)
        again = await receive(consumer, lambda so_far: len(so_far) >= len(rest))
        assert sorted((message.topic, *numbers([message])) for message in again) == sorted(
            (message.topic, *numbers([message])) for message in rest
        )
        assert {message.attempt for message in again} == {2}
        assert {message.msg_id for message in again} == {message.msg_id for message in rest}
        await consumer.ack(again, timeout=CALL_SECONDS)
        assert await consumer.receive(timeout=6) == []
    summary.append(f"simple consumer of ours, {servers.name}: {time.monotonic() - started:.1f} s")


@with_pop
@in_loop
async def test_a_simple_consumer_filters_by_tag(servers: Servers, summary: list[str]) -> None:
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, "pop-tags")
    sent = letters("pop-tags", LETTERS)
    settings = {
        "group": "pop-tags",
        "topic": "pop-tags",
        "tags": "red || blue",
        "consume_from": ConsumeFrom.FIRST,
    }
    async with (
        patient_producer(servers.namesrv) as producer,
        SimpleConsumer(servers.namesrv, **settings) as consumer,
    ):
        await send_all(producer, sent)
        wanted = [message for message in sent if message.tags in ("red", "blue")]
        received = await receive(consumer, lambda so_far: len(so_far) >= len(wanted))
        check(wanted, received)
        await consumer.ack(received, timeout=CALL_SECONDS)
    summary.append(
        f"simple consumer of ours with tags, {servers.name}: {time.monotonic() - started:.1f} s"
    )


def popper(
    servers: Servers, topic: str, handler: Callable[[Delivery], object], **settings: Any
) -> PushConsumer:
    return PushConsumer(
        servers.namesrv,
        group=f"{topic}-group",
        topic=topic,
        handler=handler,
        consume_from=ConsumeFrom.FIRST,
        client_rebalance=False,
        pop_invisible_time=INVISIBLE_SECONDS,
        **settings,
    )


def pops(consumer: PushConsumer) -> bool:
    return [queue.queue_id for queue in consumer.queues] == [-1]


@with_pop
@in_loop
async def test_push_consumers_pop_where_the_broker_has_them_pop(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    topic = "pop-push"
    await make_topics(servers.namesrv, servers.broker, topic)
    await set_mode(servers, topic, f"{topic}-group", MessageRequestMode.POP)
    first_got: list[Delivery] = []
    second_got: list[Delivery] = []

    def handler(got: list[Delivery]) -> Callable[[Delivery], object]:
        async def handle(message: Delivery) -> object:
            got.append(message)
            fails = numbers([message])[0] % 10 == 0 and message.attempt == 1
            return Retry(delay=1) if fails else None

        return handle

    sent = letters(topic, LETTERS)
    async with (
        patient_producer(servers.namesrv) as producer,
        popper(servers, topic, handler(first_got)) as first,
        popper(servers, topic, handler(second_got)) as second,
    ):
        await eventually("both pop all queues", lambda: pops(first) and pops(second))
        results = await send_all(producer, sent)
        await eventually(
            "all came, and again",
            lambda: len(first_got) + len(second_got) >= LETTERS + LETTERS // 10,
        )
    received = [*first_got, *second_got]
    check(sent, [message for message in received if message.attempt == 1], results)
    assert sorted(numbers(message for message in received if message.attempt == 2)) == list(
        range(0, LETTERS, 10)
    )
    async with SimpleConsumer(servers.namesrv, group=f"{topic}-group", topic=topic) as consumer:
        assert await consumer.receive(timeout=6) == [], (
            "everything was acknowledged, or is in nobody's hands"
        )
    summary.append(
        f"push over pop of ours, two members, {servers.name}: {time.monotonic() - started:.1f} s"
    )


@with_pop
@in_loop
async def test_what_was_popped_and_failed_is_pulled_after_a_change_of_the_mode(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    topic = "pop-then-pull"
    await make_topics(servers.namesrv, servers.broker, topic)
    await set_mode(servers, topic, f"{topic}-group", MessageRequestMode.POP)
    done: Counter[int] = Counter()
    failed: Counter[int] = Counter()

    async def handle(message: Delivery) -> object:
        number = numbers([message])[0]
        assert message.topic == topic
        if number % 10 == 0 and pops(consumer):
            failed[number] += 1
            return Retry(delay=2)
        done[number] += 1
        return None

    consumer = popper(servers, topic, handle)
    async with patient_producer(servers.namesrv) as producer, consumer:
        await eventually("it pops", partial(pops, consumer))
        await send_all(producer, letters(topic, LETTERS))
        await eventually(
            "some have failed",
            lambda: len(failed) == LETTERS // 10 and len(done) >= LETTERS - LETTERS // 10,
        )
        await set_mode(servers, topic, f"{topic}-group", MessageRequestMode.PULL)
        await eventually("it pulls", lambda: len(consumer.queues) == QUEUES)
        await eventually("all is done", lambda: len(done) == LETTERS)
    summary.append(f"from pop to pull, {servers.name}: {time.monotonic() - started:.1f} s")


def check_first_time(sent: list[Message], received: list[Any], results: list[SendResult]) -> None:
    """All are there, once, and those that did not come again just as they were sent."""
    assert sorted(numbers(received)) == sorted(numbers(sent))
    once = [message for message in received if message.attempt == 1]
    of_once = [
        (message, result)
        for message, result in zip(sent, results, strict=True)
        if numbers([message])[0] in numbers(once)
    ]
    check([message for message, _ in of_once], once, [result for _, result in of_once])


@with_pop
@in_loop
async def test_an_ordered_simple_consumer_gets_on_when_all_it_received_is_acknowledged(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, "pop-fifo")
    sent = letters("pop-fifo", LETTERS)
    settings = {
        "group": "pop-fifo",
        "topic": "pop-fifo",
        "ordered": True,
        "consume_from": ConsumeFrom.FIRST,
    }
    async with (
        patient_producer(servers.namesrv) as producer,
        SimpleConsumer(servers.namesrv, **settings) as consumer,
    ):
        results = await send_all(producer, sent)
        got: list[PoppedMessage] = []
        postponed = False
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(got) < LETTERS:
                received = await consumer.receive(8, INVISIBLE_SECONDS, timeout=10)
                if received and not postponed:
                    postponed = True
                    queue = received[0].queue_id
                    again = [message for message in received if message.queue_id == queue]
                    for message in again:
                        await consumer.change_invisible_time(message, 2, timeout=CALL_SECONDS)
                    received = [message for message in received if message not in again]
                got += received
                if received:
                    await consumer.ack(received, timeout=CALL_SECONDS)
        check_first_time(sent, got, results)
        for queue in range(QUEUES):
            of_queue = [message for message in got if message.queue_id == queue]
            assert [message.queue_offset for message in of_queue] == list(range(len(of_queue)))
        counted = {message.queue_offset for message in got if message.attempt == 2}
        assert counted == {message.queue_offset for message in again}
        assert await consumer.receive(timeout=6) == []
    summary.append(
        f"ordered simple consumer of ours, {servers.name}: {time.monotonic() - started:.1f} s"
    )


@without_pop
@in_loop
async def test_over_a_broker_that_divides_no_queues_the_group_divides_them(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    topic = "no-pop"
    await make_topics(servers.namesrv, servers.broker, topic)
    got: list[Delivery] = []
    sent = letters(topic, LETTERS)
    async with (
        patient_producer(servers.namesrv) as producer,
        popper(servers, topic, got.append) as consumer,
    ):
        await eventually("it has all queues", lambda: len(consumer.queues) == QUEUES)
        results = await send_all(producer, sent)
        await eventually("all came", lambda: len(got) >= LETTERS)
    check(sent, got, results)
    summary.append(f"the group divides, {servers.name}: {time.monotonic() - started:.1f} s")
