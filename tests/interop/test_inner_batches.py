"""Topics with ``queue.type=BatchCQ``: one store directory with inner batches of Apache's broker,
which ours serves but for that topic, and gives back.

What is sent is what a Java 5 producer sends for a batch: the request has a UNIQ_KEY of its own.
Our consumers read it from Apache's broker.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import NEWEST
from tests.interop.either_servers import Servers
from tests.interop.either_servers import servers as servers
from tests.interop.shared_directory import SharedDirectory
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import (
    ConsumeFrom,
    Message,
    MessageQueue,
    PoppedMessage,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from turbopump.errors import ResponseError, SendError
from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageReply
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

TOPIC = "inner-batches"
BATCHED = "+queue.type=BatchCQ"
PLAIN = "plain"
UNITS_A_FILE = 7
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 14,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "mapperFileSizeBatchConsumeQueue": 46 * UNITS_A_FILE,
    "maxMessageSize": 1 << 13,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "messageIndexSafe": True,
    "diskFreeSpaceMin": 64 << 20,
    "waitTimeMillsInSendQueue": 30_000,
    "osPageCacheBusyTimeOutMills": 30_000,
}


async def create(
    remoting: RemotingClient,
    broker: str,
    topic: str,
    *,
    queues: int = 1,
    attributes: str | None = BATCHED,
) -> None:
    request = CreateTopic(
        topic=topic, read_queue_nums=queues, write_queue_nums=queues, attributes=attributes
    )
    answer = await remoting.exchange(broker, request, timeout=60)
    assert answer.code == ResponseCode.SUCCESS, answer


async def send_inner(
    remoting: RemotingClient, broker: str, topic: str, messages: Iterable[Message], unique_id: str
) -> SendMessageReply:
    """As one batch with this id, to the first queue."""
    request = SendBatchMessage(
        topic=topic, queue_id=0, batch=True, properties=f"UNIQ_KEY\x01{unique_id}\x02"
    )
    answer = await remoting.exchange(broker, request, encode_batch(messages), timeout=60)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.header(SendMessageReply)


async def pull_raw(
    remoting: RemotingClient, broker: str, topic: str, queue_id: int, offset: int
) -> list[ReceivedMessage]:
    """The entries as they are stored, batches whole."""
    request = PullMessage(
        consumer_group="raw",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        subscription="*",
    )
    return list(decode_entries((await remoting.exchange(broker, request, timeout=60)).body))


class Hands:
    """The directory, and what must be in its one queue: a body for each queue offset."""

    def __init__(self, directory: Path) -> None:
        self.shared = SharedDirectory(NEWEST, directory, SETTINGS)
        self.bodies: list[bytes] = []
        self.plain: list[bytes] = []
        self._batches = 0

    def batch_files(self) -> dict[str, bytes]:
        """The files of the BatchCQ topic's queues, and what they hold."""
        root = self.shared.cluster.store / "batchconsumequeue"
        return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def turn_of_apache(self, end: signal.Signals) -> None:
        """All there is is read, and more is written."""

        async def work(namesrv: str) -> None:
            remoting = RemotingClient()
            try:
                await self._create(remoting)
                await self._check(namesrv)
                await self._write(remoting, namesrv)
                await self._check(namesrv)
                await self._check_raw(remoting)
            finally:
                await remoting.close()

        self.shared.turn("apache", work, end)

    def turn_of_ours(self, end: signal.Signals) -> None:
        """The topic is refused, and another one is served."""

        async def work(namesrv: str) -> None:
            async with Producer(namesrv, group="inner-batches", send_timeout=60) as producer:
                with pytest.raises(SendError, match="is a BatchCQ topic"):
                    await producer.send(TOPIC, b"refused")
                self.plain.append(b"plain %d" % len(self.plain))
                await producer.send(PLAIN, self.plain[-1])
            async with PullConsumer(namesrv, group="readers") as consumer:
                with pytest.raises(ResponseError, match="is a BatchCQ topic"):
                    await consumer.pull(MessageQueue(TOPIC, self.shared.cluster.broker_name, 0), 0)
                found: list[bytes] = []
                for queue in await consumer.queues(PLAIN):
                    offset = 0
                    while offset < await consumer.max_offset(queue):
                        result = await consumer.pull(queue, offset)
                        found += [message.body for message in result.messages]
                        offset = result.next_offset
            assert sorted(found) == sorted(self.plain)

        files = self.batch_files()
        self.shared.turn("ours", work, end)
        assert self.batch_files() == files

    async def _create(self, remoting: RemotingClient) -> None:
        await create(
            remoting, self.shared.cluster.broker, TOPIC, attributes=None if self.bodies else BATCHED
        )

    async def _write(self, remoting: RemotingClient, namesrv: str) -> None:
        for size in (1, 3, 2, 5, 4, 1, 7, 2, 6):
            self._batches += 1
            bodies = [b"batch %d, message %d" % (self._batches, number) for number in range(size)]
            messages = [
                Message(
                    TOPIC,
                    body,
                    tags="ab"[number % 2],
                    properties={"UNIQ_KEY": f"ID-{self._batches}-{number}"},
                )
                for number, body in enumerate(bodies)
            ]
            reply = await send_inner(
                remoting, self.shared.cluster.broker, TOPIC, messages, f"BATCH{self._batches}"
            )
            assert (reply.queue_offset, reply.batch_uniq_id) == (
                len(self.bodies),
                f"BATCH{self._batches}",
            )
            self.bodies += bodies
        async with Producer(namesrv, group="inner-batches", send_timeout=60) as producer:
            sent = await producer.send(TOPIC, b"alone %d" % len(self.bodies))
            assert sent.queue_offset == len(self.bodies)
            self.bodies.append(b"alone %d" % len(self.bodies))
            bodies = [b"ours %d.%d" % (self._batches, number) for number in range(3)]
            await producer.send_batch([Message(TOPIC, body) for body in bodies])
            self.bodies += bodies

    async def _check(self, namesrv: str) -> None:
        if not self.bodies:
            return
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + 120
        async with PullConsumer(namesrv, group="readers") as consumer:
            queue = MessageQueue(TOPIC, self.shared.cluster.broker_name, 0)
            offset = 0
            while len(found) < len(self.bodies) and time.monotonic() < deadline:
                result = await consumer.pull(queue, offset, wait=1)
                found.update((message.queue_offset, message.body) for message in result.messages)
                offset = result.next_offset
            middle = len(self.bodies) // 2
            first = (await consumer.pull(queue, middle, wait=1)).messages[0]
            assert (first.queue_offset, first.body) == (middle, self.bodies[middle])
        assert found == dict(enumerate(self.bodies))

    async def _check_raw(self, remoting: RemotingClient) -> None:
        entry = (await pull_raw(remoting, self.shared.cluster.broker, TOPIC, 0, 1))[0]
        assert (entry.queue_offset, entry.sys_flag & 0xC0, entry.properties["INNER_NUM"]) == (
            1,
            0xC0,
            "3",
        )
        assert entry.properties["INNER_BASE"] == "1"


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    made = Hands(tmp_path)
    with skipping_without_tools(), made.shared:
        yield made


def test_a_directory_with_a_batch_cq_topic_goes_from_apache_to_ours_and_back(hands: Hands) -> None:
    hands.turn_of_apache(signal.SIGTERM)
    hands.turn_of_ours(signal.SIGTERM)
    hands.turn_of_apache(signal.SIGKILL)
    hands.turn_of_ours(signal.SIGKILL)
    hands.turn_of_ours(signal.SIGTERM)
    hands.turn_of_apache(signal.SIGTERM)


async def send(bodies: Any, servers: Servers, remoting: RemotingClient) -> None:
    await create(remoting, servers.broker, "popped")
    for first in range(0, len(bodies), 4):
        batch = (Message("popped", body, tags="a") for body in bodies[first : first + 4])
        await send_inner(remoting, servers.broker, "popped", batch, f"POPPED{first}")


@pytest.mark.parametrize("servers", [NEWEST], indirect=True)
@in_loop
async def test_a_popped_batch_is_taken_apart_and_the_broker_takes_what_is_said_of_it(
    servers: Servers,
) -> None:
    bodies = [
        b"batch %d, message %d" % (batch, number) for batch in range(3) for number in range(4)
    ]

    remoting = RemotingClient()
    try:
        await send(bodies, servers, remoting)
    finally:
        await remoting.close()
    consumer = SimpleConsumer(
        servers.namesrv, group="popped", topic="popped", consume_from=ConsumeFrom.FIRST
    )
    async with consumer, asyncio.timeout(240):
        came: list[PoppedMessage] = []
        while len(came) < len(bodies):
            came += await consumer.receive(16, 600)
        assert [(one.body, one.queue_offset) for one in came] == [
            (body, place) for place, body in enumerate(bodies)
        ]
        assert len({one.handle for one in came}) == 3
        handle = await consumer.change_invisible_time(came[1], 700, timeout=60)
        assert [one.handle == handle for one in came] == [True] * 4 + [False] * 8
        await consumer.ack(came[:6], timeout=60)
        await consumer.ack(came[6:], timeout=60)
