"""Our LitePullConsumer over Apache's brokers, and in one group with Java's over our broker and
theirs, and with Go's over ours."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST_4
from tests.interop.either_servers import OURS, Servers
from tests.interop.either_servers import servers as servers
from tests.interop.foreign import MESSAGES, ForeignClient, go_client, java_client, run
from tests.interop.members import foreign_member
from tests.interop.our_clients import (
    PATIENCE_SECONDS,
    check,
    eventually,
    letters,
    make_topics,
    numbers,
    patient_producer,
)
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import ConsumeFrom, LitePullConsumer, ReceivedMessage

QUEUES = 4  # as make_topics makes them
FIVE = ForeignClient(
    "java-5.3.3", ("lite_shares",), partial(java_client, "5.3.3", program="LitePulling")
)
FOUR = ForeignClient(
    "java-4.9.8", ("lite_shares",), partial(java_client, "4.9.8", program="LitePulling")
)


def consumer_of(servers: Servers, topic: str) -> LitePullConsumer:
    return LitePullConsumer(
        servers.namesrv, group=f"{topic}-group", topic=topic, consume_from=ConsumeFrom.FIRST
    )


async def receive(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(received) < count:
            received += await consumer.poll(1)
    return received


@in_loop
async def test_ours_reads_seeks_and_commits_over_any_broker(
    servers: Servers, summary: list[str]
) -> None:
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, "lite-ours")
    sent = letters("lite-ours", MESSAGES)
    async with patient_producer(servers.namesrv) as producer:
        for message in sent:
            await producer.send(message)
    async with consumer_of(servers, "lite-ours") as consumer:
        check(sent, await receive(consumer, MESSAGES))
        await consumer.commit()
        places = {queue: await consumer.committed(queue) for queue in consumer.assigned}
        assert sum(place or 0 for place in places.values()) == MESSAGES
        queue = consumer.assigned[1]
        await consumer.seek(queue, 1)
        again = await receive(consumer, (places[queue] or 0) - 1)
        assert [message.queue_offset for message in again] == list(range(1, places[queue] or 0))
        assert await consumer.offset_for_time(queue, again[0].store_timestamp) <= 1
    async with consumer_of(servers, "lite-ours") as consumer:
        rest = await receive(consumer, 1)
        assert {message.queue_id for message in rest} == {queue.queue_id}, (
            "only what was sought again is not done"
        )
    summary.append(f"lite pull of ours, {servers.name}: {time.monotonic() - started:.1f} s")


@in_loop
async def test_ours_and_javas_share_a_group(
    servers: Servers, tmp_path: Path, summary: list[str]
) -> None:
    # Java's 5.x asks by LITE_PULL_MESSAGE (361) alone: "request type 361 not supported", says
    # Apache's 4.9.7, and it gets nothing there.
    client = FOUR if servers.name.endswith(NEWEST_4) else FIVE
    with skipping_without_tools():
        client.command()  # built before anybody waits
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, "lite-beside")
    async with (
        consumer_of(servers, "lite-beside") as consumer,
        patient_producer(servers.namesrv) as producer,
    ):
        theirs = asyncio.create_task(
            asyncio.to_thread(run, client, servers.namesrv, "lite-beside", tmp_path)
        )
        queues = await consumer.queues("lite-beside")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(consumer.assigned) != QUEUES // 2 and not theirs.done():
                await asyncio.sleep(0.1)
        ours_are = consumer.assigned
        for number, message in enumerate(letters("lite-beside", MESSAGES)):
            await producer.send(message, queue=queues[number % QUEUES])
        ours = await receive(consumer, MESSAGES // 2)
        outcome = await theirs
        report = outcome.reports.get("lite_shares", {})
        assert report.get("ok"), (report, outcome.ending(), outcome.stderr)
        assert {message.queue_id for message in ours} == {queue.queue_id for queue in ours_are}
        both = [*numbers(ours), *map(int, str(report["detail"]).split(","))]
        assert sorted(both) == list(range(MESSAGES))
    summary.append(
        f"lite pull of ours and Java's in one group, {servers.name}: "
        f"{time.monotonic() - started:.1f} s"
    )


@pytest.mark.parametrize("servers", [OURS], indirect=True)
@in_loop
async def test_ours_and_gos_share_a_group(
    servers: Servers, tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        command = go_client("polling")
    started = time.monotonic()
    theirs: list[tuple[int, int]] = []
    topic = "lite-beside-go"
    await make_topics(servers.namesrv, servers.broker, topic)
    arguments = (servers.namesrv, topic, f"{topic}-group")
    async with (
        consumer_of(servers, topic) as consumer,
        patient_producer(servers.namesrv) as producer,
        foreign_member(
            *("go", command, *arguments),
            directory=tmp_path,
            said=lambda words: theirs.append((int(words[1]), int(words[2]))),
        ),
    ):
        await eventually("our half of the queues", lambda: len(consumer.assigned) == QUEUES // 2)
        queues = await consumer.queues(topic)
        for number, message in enumerate(letters(topic, MESSAGES)):
            await producer.send(message, queue=queues[number % QUEUES])
        ours = await receive(consumer, MESSAGES // 2)
        await eventually("their half of the messages", lambda: len(theirs) >= MESSAGES // 2)
        assert {message.queue_id for message in ours} == {
            queue.queue_id for queue in consumer.assigned
        }
        both = [*theirs, *((message.queue_id, message.queue_offset) for message in ours)]
        assert sorted(both) == [
            (queue, offset) for queue in range(QUEUES) for offset in range(MESSAGES // QUEUES)
        ]
    summary.append(
        f"lite pull of ours and Go's in one group, {servers.name}: "
        f"{time.monotonic() - started:.1f} s"
    )
