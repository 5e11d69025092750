"""`turbopump pipeline mirror` between Apache's brokers and ours, both ways, with kills."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.interop.apache import NEWEST, ApacheCluster
from tests.interop.our_clients import PATIENCE_SECONDS, make_topics, patient_producer
from tests.interop.patient_apache import patient_apache
from tests.loops import in_loop
from tests.unit.cli.commands import command_environment

from turbopump import Admin, Message, MessageQueue, PullConsumer
from turbopump.message.message import ReceivedMessage
from turbopump.testing import running_broker

COUNT, QUEUES = 6000, 4  # ``make_topics`` makes four
OFFSET = 700


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with patient_apache(NEWEST, tmp_path_factory.mktemp("apache")) as cluster:
        yield cluster


async def run_mirror(topic: str, source: str, target: str, *, kill: bool = False) -> int | None:
    """Run the command to its end. With ``kill``, kill it once some copies are in the target."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turbopump", "pipeline", "mirror", topic, "--groups"),
        *("--from", source, "--to", target, "--from-name", source, "--to-name", target),
        env=command_environment(),
    )
    if kill:
        async with Admin(target) as admin:
            before = await stored(admin, topic)
            while process.returncode is None and await stored(admin, topic) < before + 100:
                await asyncio.sleep(0.01)
        with suppress(ProcessLookupError):
            process.kill()
    return await process.wait()


async def stored(admin: Admin, topic: str) -> int:
    """Number of messages that a cluster has of a topic."""
    if not await admin.topics.settings(topic):
        return 0
    return sum(queue.messages for queue in await admin.topics.queues(topic))


async def messages(namesrv: str, queue: MessageQueue) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, group="looker") as consumer:
        offset, end = 0, await consumer.max_offset(queue)
        while offset < end:
            pulled = await consumer.pull(queue, offset)
            found += pulled.messages
            offset = pulled.next_offset
    return found


async def fill(namesrv: str, topic: str) -> None:
    """Messages of several kinds, in all queues, and a group that has consumed some of queue 1."""
    async with patient_producer(namesrv) as producer:
        queues = await producer.publish_queues(topic)
        for begin in range(0, COUNT, 200):
            await asyncio.gather(
                *(
                    producer.send_batch(
                        [
                            Message(topic, b"%d" % number, tags="t", keys=f"k{number}")
                            for number in range(begin + at, begin + 200, QUEUES)
                        ],
                        queue=queue,
                    )
                    for at, queue in enumerate(queues)
                )
            )
        large = Message(topic, b"compressed " * 1000, properties={"kind": "large"}, flag=7)
        await producer.send(large, queue=queues[0])
        await producer.send(Message(topic, b"later", delay_level=1), queue=queues[0])
    async with PullConsumer(namesrv, group="billing") as consumer:
        await consumer.commit(queues[1], OFFSET)
        while await consumer.max_offset(queues[0]) < COUNT // QUEUES + 2:
            await asyncio.sleep(0.1)


async def compare(topic: str, source: str, target: str) -> None:
    """Every message is in the target, in order, and the group continues where it was."""
    async with Admin(source) as admin, Admin(target) as other:
        (there,) = {one.broker for one in await admin.topics.queues(topic)}
        (here,) = {one.broker for one in await other.topics.queues(topic)}
        lag = await other.offsets.show("billing", topic)
    (position,) = [one.offset for one in lag.queues if one.queue_id == 1]
    for number in range(QUEUES):
        originals = await messages(source, MessageQueue(topic, there, number))
        copies = await messages(target, MessageQueue(topic, here, number))
        first = {copy.msg_id: copy for copy in reversed(copies)}
        assert [*dict.fromkeys(copy.msg_id for copy in copies)] == [
            original.msg_id for original in originals
        ]
        for original in originals:
            copy = first[original.msg_id]
            assert (copy.body, copy.flag) == (original.body, original.flag)
            for name in ("TAGS", "KEYS", "kind"):
                assert copy.properties.get(name) == original.properties.get(name)
        if number == 1:
            assert copies[position].msg_id == originals[OFFSET].msg_id
        print("queue", number, len(originals), "messages", len(copies), "copies")


@in_loop
async def test_a_topic_of_apache_s_broker_is_mirrored_to_ours_through_two_kills(
    apache: ApacheCluster,
) -> None:
    await make_topics(apache.namesrv, apache.broker, "leaving")
    async with running_broker() as ours, asyncio.timeout(3 * PATIENCE_SECONDS):
        await fill(apache.namesrv, "leaving")
        for _ in range(2):
            await run_mirror("leaving", apache.namesrv, ours.namesrv, kill=True)
        assert await run_mirror("leaving", apache.namesrv, ours.namesrv) == 0
        await compare("leaving", apache.namesrv, ours.namesrv)


@in_loop
async def test_a_topic_of_our_broker_is_mirrored_to_apache_s_through_two_kills(
    apache: ApacheCluster,
) -> None:
    async with running_broker() as ours, asyncio.timeout(3 * PATIENCE_SECONDS):
        await ours.create_topic("returning", QUEUES)
        await fill(ours.namesrv, "returning")
        for _ in range(2):
            await run_mirror("returning", ours.namesrv, apache.namesrv, kill=True)
        assert await run_mirror("returning", ours.namesrv, apache.namesrv) == 0
        await compare("returning", ours.namesrv, apache.namesrv)
