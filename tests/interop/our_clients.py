"""What our own client sends in these tests, and the comparison of what came back with it, message
by message.

The one rule: a message is known by its number (a user property), and everything about it must be as
it was sent.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence

from turbopump import (
    ClientTls,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from turbopump.errors import RemotingError, ResponseError, RouteNotFoundError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.offsets import QueryConsumerOffset
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

TAGS = ("red", "green", "blue")
TEXT = 'plain é 漢字 🚀 "quoted" \\ \n\t'
PATIENCE_SECONDS = 180.0  # only a failure waits that long, or a machine busy with much else
CALL_SECONDS = 60.0


def patient_producer(namesrv: str, tls: ClientTls | bool = False) -> Producer:
    """A producer that does not send again after the usual 3 s on a busy machine: the message would
    be there twice."""
    return Producer(namesrv, send_timeout=CALL_SECONDS, tls=tls)


def letter(topic: str, number: int, body: bytes | None = None, **times: int) -> Message:
    """Message `number` of a topic, with a tag, two keys and properties beyond ASCII. `times`: of a
    `Message`."""
    return Message(
        topic,
        f"letter {number} {TEXT}" if body is None else body,
        tags=TAGS[number % 3],
        keys=[f"key-{number}", "shared"],
        properties={"n": str(number), "text": TEXT.strip() + str(number), "größe": f"ü{number}"},
        **times,  # type: ignore[arg-type]
    )


def letters(topic: str, count: int) -> list[Message]:
    return [letter(topic, number) for number in range(count)]


def large_letters(topic: str) -> list[Message]:
    """Compressible and not, small and up to 3 MiB."""
    source = random.Random(7)
    bodies = [
        b"compressible " * 500,
        b"compressible " * 80_000,
        source.randbytes(5_000),
        source.randbytes(1 << 20),
    ]
    return [
        letter(topic, number, body)
        for number, body in enumerate([*bodies, source.randbytes(3 << 20), b"\0"])
    ]


def numbers(messages: Iterable[Message | ReceivedMessage]) -> list[int]:
    return [int(message.properties["n"]) for message in messages]


def check(
    sent: Sequence[Message],
    received: Sequence[ReceivedMessage],
    results: Sequence[SendResult] | None = None,
) -> None:
    """Every message that was sent is there once, unchanged, and where the send result says; and
    nothing else."""
    assert sorted(numbers(received)) == sorted(numbers(sent))
    by_number = dict(zip(numbers(received), received, strict=True))
    for index, (number, wanted) in enumerate(zip(numbers(sent), sent, strict=True)):
        got = by_number[number]
        assert got.topic == wanted.topic
        assert got.body == wanted.body, (
            f"body of {number}: {len(got.body)} bytes, {len(wanted.body)} sent"
        )
        assert (got.tags, got.keys) == (wanted.tags, wanted.keys)
        assert {name: got.properties.get(name) for name in wanted.properties} == wanted.properties
        assert got.reconsume_times == 0
        if results is not None:
            result = results[index]
            assert result.status is SendStatus.OK
            assert (got.queue_id, got.queue_offset) == (result.queue.queue_id, result.queue_offset)
            assert (got.msg_id, got.offset_msg_id) == (result.msg_id, result.offset_msg_id)


def check_queues(received: Sequence[ReceivedMessage], *, in_order: bool = False) -> None:
    """Offsets of each queue run from 0 without a gap; with `in_order` numbers ascend along them."""
    by_queue = sorted(received, key=lambda message: (message.queue_id, message.queue_offset))
    for _, entries in itertools.groupby(by_queue, key=lambda message: message.queue_id):
        queue = list(entries)
        assert [message.queue_offset for message in queue] == list(range(len(queue)))
        if in_order:
            assert numbers(queue) == sorted(numbers(queue))


async def make_topics(namesrv: str, broker: str, *topics: str) -> None:
    """Topics of four queues that the name server routes, which Apache's broker now and then tells
    it behind its answer: who sends to one that is not there is told so, and who consumes one looks
    again only after half a minute.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    client = RemotingClient()
    try:
        for topic in topics:
            await client.call(
                broker,
                CreateTopic(topic=topic, read_queue_nums=4, write_queue_nums=4),
                timeout=CALL_SECONDS,
            )
        for topic in topics:
            request = GetRouteInfo(topic=topic)
            while (
                await client.exchange(namesrv, request, timeout=CALL_SECONDS)
            ).code != ResponseCode.SUCCESS:
                assert time.monotonic() < deadline, f"{topic} is never routed"
                await asyncio.sleep(0.02)
    finally:
        await client.close()


async def make_groups(broker: str, *groups: SubscriptionGroupConfig) -> None:
    client = RemotingClient()
    try:
        for group in groups:
            await client.call(broker, CreateGroup(), fastjson.encode(group), timeout=CALL_SECONDS)
    finally:
        await client.close()


async def read_all(consumer: PullConsumer, topic: str, wanted: int) -> list[ReceivedMessage]:
    """Every message of a topic, by pulls from the beginning of each queue to its end; asked again
    until `wanted` are there.

    Apache's broker builds its queues, and now and then tells the name server of a new topic, behind
    its answers: what was acknowledged is not at once to be read.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            received = await read_once(consumer, topic)
            if len(received) >= wanted or time.monotonic() > deadline:
                return received
        except (RouteNotFoundError, RemotingError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)


async def read_once(consumer: PullConsumer, topic: str) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    for queue in await consumer.queues(topic):
        offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset)
            assert result.next_offset > offset, f"no progress at {queue} {offset}: {result.status}"
            received += result.messages
            offset = result.next_offset
    return received


async def send_all(
    producer: Producer, messages: Iterable[Message], queue: MessageQueue | None = None
) -> list[SendResult]:
    return [await producer.send(message, queue=queue) for message in messages]


def once(received: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """Without repeats of the same stored message: delivery is at least once when a queue changes
    hands. The same letter stored twice stays twice.
    """
    return list(
        {(message.queue_id, message.queue_offset): message for message in received}.values()
    )


async def settled(
    broker: str, topic: str, messages: int, *members: PushConsumer, queues: int = 4
) -> None:
    """Wait until the group's offsets at the broker are past `messages` messages: who takes over a
    queue gets none of them again. Asked as nobody's member: a pull consumer of the group would be
    given queues of its own.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    client = RemotingClient()
    try:
        while True:
            for member in members:
                await member.commit(acknowledged=True)
            if (
                sum(
                    [
                        await committed(client, broker, members[0].group, topic, queue)
                        for queue in range(queues)
                    ]
                )
                == messages
            ):
                return
            assert time.monotonic() < deadline, (
                f"the offsets of {messages} messages never came to the broker"
            )
            await asyncio.sleep(0.02)
    finally:
        await client.close()


async def committed(
    client: RemotingClient, broker: str, group: str, topic: str, queue_id: int
) -> int:
    request = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
    try:
        return (await client.call(broker, request, timeout=CALL_SECONDS)).offset
    except ResponseError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return 0


async def eventually(what: str | Callable[[], str], question: Callable[[], bool]) -> None:
    """Ask until it is true: for what another process does in its own time. ``what`` is that in
    words, or says it when it never came."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not question():
        assert time.monotonic() < deadline, (
            f"never came true: {what if isinstance(what, str) else what()}"
        )
        await asyncio.sleep(0.02)
