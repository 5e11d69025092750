"""What the hands of a store directory wrote, and the check that all of it is there: by queue, by
key, by unique id, by offset.

The one rule: every topic is written by every hand in turn, so queue offsets must go on where the
last one ended. Must not know whose broker it talks to.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    check,
    check_queues,
    letter,
    numbers,
    once,
    read_all,
)

from turbopump import (
    Message,
    MessageFinder,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendResult,
)
from turbopump.errors import RemotingError, RouteNotFoundError
from turbopump.message.ids import decode_offset_msg_id

SEGMENT = 512 * 1024
QUEUE_UNITS = 16
BLANK = 8  # the least that is left at the end of a segment
# so that all have four digits, and entries of equal bodies and tags equal sizes
FIRST_NUMBER = 1000
GROUP = "keeper"
QUEUES = 4


class Ledger:
    """Messages by topic in the order of their sending, and what the broker said to each (None for
    those of a batch). `host` is the address of clients and brokers alike, which entries hold.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._sent: dict[str, list[tuple[Message, SendResult | None]]] = {
            "plain": [],
            "batched": [],
            "large": [],
            "edge": [],
        }
        self._commits = [0]
        self._noise = random.Random(3)

    def __str__(self) -> str:
        return f"{sum(map(len, self._sent.values()))} messages"

    # --- writing
    # ----------------------------------------------------------------------------------------------

    async def write(self, namesrv: str) -> None:
        """Messages in each way of sending, more than one file of each kind holds."""
        async with self._producer(namesrv) as producer:
            for _ in range(40):
                await self._send(producer, "plain")
            for _ in range(2):
                batch = [self._next("batched", place=place) for place in range(20)]
                await producer.send_batch(batch)
                self._sent["batched"] += [(message, None) for message in batch]
            for size in (5_000, 150_000, 250_000, 1, 200_000):
                await self._send(producer, "large", self._noise.randbytes(size))
        async with PullConsumer(namesrv, group=GROUP) as consumer:
            self._commits.append(self._commits[-1] + 4)
            for queue in await consumer.queues("plain"):
                await consumer.commit(queue, self._commits[-1] + queue.queue_id)

    async def fill_to_the_brim(self, namesrv: str) -> None:
        """A message fills a queue's file, and a commit log file but for the eight bytes that an end
        needs."""
        async with (
            self._producer(namesrv) as producer,
            PullConsumer(namesrv, group="reader") as reader,
        ):
            first = await self._send(producer, "edge", b"-")  # creates the topic, if need be
            queue = (await producer.publish_queues("edge"))[0]
            result = await self._send(producer, "edge", b"-", queue)
            while result.queue_offset % QUEUE_UNITS != QUEUE_UNITS - 2:
                result = await self._send(producer, "edge", b"-", queue)
            size = await stored_size(reader, result)
            sample = self._sent["edge"][-1][0]
            wanted = self._next("edge", b"-")
            overhead = size - 1 - len(sample.tags or "") + len(wanted.tags or "")
            end = offset_of(result) + size
            while not overhead < SEGMENT - end % SEGMENT - BLANK < SEGMENT // 2:
                filler = await self._send(producer, "large", self._noise.randbytes(100_000))
                end = offset_of(filler) + await stored_size(reader, filler)
            body = self._noise.randbytes(SEGMENT - end % SEGMENT - BLANK - overhead)
            last = await self._send(producer, "edge", body, queue)
            assert offset_of(first) < offset_of(last) == end
            assert (offset_of(last) + await stored_size(reader, last)) % SEGMENT == SEGMENT - BLANK
            assert last.queue_offset % QUEUE_UNITS == QUEUE_UNITS - 1

    async def begin_the_next_files(self, namesrv: str) -> None:
        """One message more: the first of a commit log file and of a queue's."""
        async with self._producer(namesrv) as producer:
            queue = (await producer.publish_queues("edge"))[0]
            result = await self._send(producer, "edge", b"-", queue)
        assert offset_of(result) % SEGMENT == 0
        assert result.queue_offset % QUEUE_UNITS == 0

    def _producer(self, namesrv: str) -> Producer:
        return Producer(namesrv, send_timeout=CALL_SECONDS, compress_from=None)

    def _next(self, topic: str, body: bytes | None = None, *, place: int = 0) -> Message:
        return letter(topic, FIRST_NUMBER + len(self._sent[topic]) + place, body)

    async def _send(
        self,
        producer: Producer,
        topic: str,
        body: bytes | None = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        message = self._next(topic, body)
        result = await producer.send(message, queue=queue)
        self._sent[topic].append((message, result))
        return result

    # --- checking
    # ----------------------------------------------------------------------------------------------

    async def check(self, namesrv: str, *, apache: bool, killed: bool) -> None:
        """Everything that was acknowledged is there as it was sent, once, at its place, and found
        by its keys and ids. `apache`: it is Apache's broker that is asked; `killed`: so was the one
        that had the directory before.
        """
        async with (
            PullConsumer(namesrv, group="reader") as reader,
            MessageFinder(namesrv) as finder,
        ):
            for topic, sent in self._sent.items():
                if sent:
                    received = await read_all(reader, topic, len(sent))
                    check([message for message, _ in sent], received)
                    check_queues(received, in_order=True)
                    by_number = dict(zip(numbers(received), received, strict=True))
                    for message, result in sent:
                        check_place(by_number[numbers([message])[0]], result)
                    assert {(got.born_host[0], got.store_host[0]) for got in received} == {
                        (self._host, self._host)
                    }
                    await self._check_finding(finder, topic, repeats=killed and apache)
        await self._check_commits(namesrv, killed=killed)

    def check_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The same of the rows that Spark reads from the files of the log."""
        by_topic: dict[str, dict[str, Mapping[str, Any]]] = {topic: {} for topic in self._sent}
        for row in rows:
            if row["topic"] in by_topic:
                found = by_topic[row["topic"]]
                assert row["properties"]["n"] not in found, row
                found[row["properties"]["n"]] = row
        for topic, sent in self._sent.items():
            assert len(by_topic[topic]) == len(sent), topic
            for message, result in sent:
                row = by_topic[topic][message.properties["n"]]
                assert bytes(row["body"]) == message.body
                assert (row["tags"], row["keys"].split(" ")) == (message.tags, message.keys)
                assert row["properties"].items() >= message.properties.items()
                assert (row["bornHost"].rpartition(":")[0], row["reconsumeTimes"]) == (
                    self._host,
                    0,
                )
                if result is not None:
                    place = row["queueId"], row["queueOffset"], row["commitLogOffset"]
                    queue_id, offset = result.queue.queue_id, result.queue_offset
                    assert place == (queue_id, offset, offset_of(result))
                    assert row["msgId"] == result.msg_id

    async def _check_commits(self, namesrv: str, *, killed: bool) -> None:
        """The group is where it was; a broker that was killed may have kept an earlier place, for
        it saves them every few seconds."""
        if len(self._commits) == 1:
            return
        async with PullConsumer(namesrv, group=GROUP) as consumer:
            queues = await consumer.queues("plain")
            assert len(queues) == QUEUES
            for queue in queues:
                offset = await consumer.committed(queue)
                if killed:
                    assert offset in {
                        None,
                        0,
                        *(place + queue.queue_id for place in self._commits[1:]),
                    }
                else:
                    assert offset == self._commits[-1] + queue.queue_id

    async def _check_finding(self, finder: MessageFinder, topic: str, *, repeats: bool) -> None:
        """`repeats`: recovering, Apache's broker indexes the last message of an index file again
        (IndexService.buildIndex skips offsets below the file's last, not that one), and finds it
        twice.
        """
        for message, result in self._sent[topic]:
            number = numbers([message])
            by_key = await found(finder, topic, key=f"key-{number[0]}")
            assert numbers(once(by_key) if repeats else by_key) == number
            if result is not None and number[0] % 3 == 0:
                by_id = await found(finder, topic, unique_id=result.msg_id)
                assert numbers(once(by_id) if repeats else by_id) == number
                assert numbers([await finder.view(topic, result.offset_msg_id or "")]) == number
        newest = await found(finder, topic, key="shared")
        assert len(newest) == min(32, len(self._sent[topic]))
        assert repeats or len(once(newest)) == len(newest)


def check_place(got: ReceivedMessage, result: SendResult | None) -> None:
    if result is not None:
        assert (got.queue_id, got.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert (got.msg_id, got.offset_msg_id) == (result.msg_id, result.offset_msg_id)


async def found(
    finder: MessageFinder, topic: str, *, key: str | None = None, unique_id: str | None = None
) -> list[ReceivedMessage]:
    """What is found, asked again while it is nothing: Apache's broker builds its indexes behind its
    answers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if key is not None:
                answer = await finder.by_key(topic, key)
            else:
                answer = await finder.by_unique_id(topic, unique_id or "")
            if answer.messages or time.monotonic() > deadline:
                return list(answer.messages)
        except (RemotingError, RouteNotFoundError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)


async def stored_size(reader: PullConsumer, result: SendResult) -> int:
    """Bytes of a message's entry in the log, as soon as it is to be read. Apache's broker builds
    its queues behind its answers, and 4.9 writes a message of its own (OFFSET_MOVED_EVENT) for a
    pull beyond their ends: nothing is pulled before it is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while await reader.max_offset(result.queue) <= result.queue_offset:
        assert time.monotonic() < deadline, f"{result} never came to be read"
        await asyncio.sleep(0.02)
    (message,) = (await reader.pull(result.queue, result.queue_offset, 1)).messages
    assert message.queue_offset == result.queue_offset
    return message.store_size


def offset_of(result: SendResult) -> int:
    """Where the entry begins in the log."""
    assert result.offset_msg_id is not None
    return decode_offset_msg_id(result.offset_msg_id)[2]
