"""A store directory changes hands: written by Apache's broker, opened by ours, and back, with one broker.conf for both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.conftest import skipping_without_tools
from tests.interop.our_clients import check, check_queues, large_letters, letter, letters, patient_producer, read_all, send_all
from tests.interop.our_servers import turbopump_broker

from turbopump import Message, PullConsumer

SMALL_FILES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 20 * 16, "maxMessageSize": 3_500_000}
COUNT = 90
GROUP = "keeper"


@pytest.fixture(params=(NEWEST, NEWEST_4))
def cluster(request: pytest.FixtureRequest, tmp_path: Path, summary: list[str]) -> Iterator[ApacheCluster]:
    """Not started; killed at the end."""
    started = time.monotonic()
    made = ApacheCluster(request.param, directory=tmp_path / "apache", heap="384m", broker_config=SMALL_FILES)
    try:
        with skipping_without_tools():
            yield made
    finally:
        made.kill()
    name = request.node.name.removeprefix("test_").partition("[")[0]
    summary.append(f"apache-{request.param:10} {time.monotonic() - started:6.2f} s  {name}")


async def fill(namesrv: str, part: int) -> list[Message]:
    """Messages of three topics in each way of sending, more than one commit log file holds; returns them."""
    plain, batched, large = (f"{kind}-{part}" for kind in ("plain", "batched", "large"))
    sent = letters(plain, COUNT)
    groups = [letter(batched, number) for number in range(COUNT)]
    bodies = large_letters(large)
    async with patient_producer(namesrv) as producer:
        await send_all(producer, sent)
        await send_all(producer, bodies)
        for start in range(0, COUNT, 30):
            await producer.send_batch(groups[start : start + 30])
        await send_all(producer, [letter("grows", part * COUNT + number) for number in range(COUNT)])
    return [*sent, *groups, *bodies]


async def check_all(namesrv: str, parts: Sequence[Sequence[Message]]) -> None:
    """Every message of every part is there as it was sent; the topic that all parts wrote to has no gap."""
    async with PullConsumer(namesrv, group="reader") as reader:
        for sent in parts:
            for topic in dict.fromkeys(message.topic for message in sent):
                wanted = [message for message in sent if message.topic == topic]
                received = await read_all(reader, topic, len(wanted))
                check(wanted, received)
                check_queues(received, in_order=True)
        grown = [letter("grows", number) for number in range(COUNT * len(parts))]
        received = await read_all(reader, "grows", len(grown))
        check(grown, received)
        check_queues(received, in_order=True)


async def commit(namesrv: str, offset: int) -> None:
    async with PullConsumer(namesrv, group=GROUP) as consumer:
        for queue in await consumer.queues("grows"):
            await consumer.commit(queue, offset + queue.queue_id)


async def check_committed(namesrv: str, offset: int) -> None:
    async with PullConsumer(namesrv, group=GROUP) as consumer:
        queues = await consumer.queues("grows")
        assert [await consumer.committed(queue) for queue in queues] == [offset + queue.queue_id for queue in queues]
        assert len(queues) == 4


def test_a_directory_goes_from_apache_to_ours_and_back_and_back(cluster: ApacheCluster, tmp_path: Path) -> None:
    conf = cluster.directory / "conf" / "broker.conf"

    cluster.start()
    parts = [asyncio.run(fill(cluster.namesrv, 0))]
    asyncio.run(commit(cluster.namesrv, 3))
    cluster.stop_broker()
    assert len(list((cluster.store / "commitlog").iterdir())) > 1, "several files were to be written"

    with turbopump_broker(tmp_path / "ours", conf) as servers:
        asyncio.run(check_all(servers.namesrv, parts))
        asyncio.run(check_committed(servers.namesrv, 3))
        parts.append(asyncio.run(fill(servers.namesrv, 1)))
        asyncio.run(commit(servers.namesrv, 5))

    cluster.start_broker()
    asyncio.run(check_all(cluster.namesrv, parts))
    asyncio.run(check_committed(cluster.namesrv, 5))
    parts.append(asyncio.run(fill(cluster.namesrv, 2)))
    cluster.kill_broker()

    with turbopump_broker(tmp_path / "ours again", conf) as servers:
        asyncio.run(check_all(servers.namesrv, parts))
    assert "Traceback" not in servers.log()


def test_a_directory_made_by_ours_opens_in_apaches(cluster: ApacheCluster, tmp_path: Path) -> None:
    cluster.write_configuration()

    with turbopump_broker(tmp_path / "ours", cluster.directory / "conf" / "broker.conf") as servers:
        parts = [asyncio.run(fill(servers.namesrv, 0))]
        asyncio.run(commit(servers.namesrv, 4))

    cluster.start()
    asyncio.run(check_all(cluster.namesrv, parts))
    asyncio.run(check_committed(cluster.namesrv, 4))
    parts.append(asyncio.run(fill(cluster.namesrv, 1)))
    asyncio.run(check_all(cluster.namesrv, parts))
