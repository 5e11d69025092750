"""Our broker beside Apache's name servers: what it registers, when they start again, and while an
operator drains it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster, connects
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, talking

from turbopump.protocol import fastjson
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.namesrv import (
    AddWritePerm,
    GetAllTopicList,
    GetRouteInfo,
    TopicRouteData,
    WipeWritePerm,
)
from turbopump.protocol.requests.topics import TopicList
from turbopump.remoting.client import RemotingClient

WHOLE_S = 5.0
"""How soon a name server knows everything after it listens."""


class Asking:
    """Asks Apache's name server, and starts it again."""

    def __init__(self, cluster: ApacheCluster) -> None:
        self.cluster = cluster
        self.remoting = RemotingClient()

    async def up(self) -> None:
        self.cluster.start_namesrv()
        async with asyncio.timeout(60):
            while not connects("127.0.0.1", self.cluster.namesrv_port):
                await asyncio.sleep(0.05)

    async def topics(self) -> set[str]:
        answer = await self.remoting.exchange(self.cluster.namesrv, GetAllTopicList(), timeout=30)
        return set(fastjson.decode(answer.body, TopicList).topic_list)

    async def permission(self, topic: str) -> int | None:
        """4 read, 2 write; None: there is no route."""
        answer = await self.remoting.exchange(
            self.cluster.namesrv, GetRouteInfo(topic=topic), timeout=30
        )
        if answer.code:
            return None
        (queues,) = fastjson.decode(answer.body, TopicRouteData).queue_datas
        return queues.perm


@asynccontextmanager
async def beside_apache(version: str, directory: Path) -> AsyncIterator[tuple[Asking, Talk]]:
    """Apache's name server, and a broker of ours that registers there."""
    cluster = ApacheCluster(version, directory=directory / "apache")
    cluster.write_configuration()
    asking = Asking(cluster)
    try:
        await asking.up()
        async with talking(directory / "store", namesrv_addr=cluster.namesrv) as talk:
            yield asking, talk
    finally:
        await asking.remoting.close()
        cluster.kill_namesrv()


@pytest.mark.parametrize("version", [NEWEST, NEWEST_4])
@in_loop
async def test_a_name_server_of_apache_s_has_every_topic_at_once_and_again_after_a_restart(
    tmp_path: Path, version: str, summary: list[str]
) -> None:
    async with beside_apache(version, tmp_path) as (asking, talk):
        for number in range(20):
            await talk.client.create(f"T{number}", 3)
            assert await asking.permission(f"T{number}") == 6
        asking.cluster.kill_namesrv()
        await asyncio.gather(*(talk.client.create(f"U{number}") for number in range(20)))
        await asking.up()
        begun = asyncio.get_running_loop().time()
        while not await asking.topics() >= set(talk.broker.tables.topics.names()):
            await asyncio.sleep(0.05)
        took = asyncio.get_running_loop().time() - begun
        assert took < WHOLE_S
        summary.append(f"Apache's name server {version} started again: whole after {took:.1f} s")
        await talk.client.create("T0", 8)
        assert await asking.permission("T0") == 6


@pytest.mark.parametrize("version", [NEWEST, NEWEST_4])
@in_loop
async def test_topics_that_stay_as_they_are_stay_drained_at_a_name_server_of_apache_s(
    tmp_path: Path, version: str
) -> None:
    async with beside_apache(version, tmp_path) as (asking, talk):
        for topic in ("T", "U"):
            await talk.client.create(topic)
        wiped = await asking.remoting.exchange(
            asking.cluster.namesrv, WipeWritePerm(broker_name="broker-a"), timeout=30
        )
        assert wiped.code == 0
        assert [await asking.permission(topic) for topic in ("T", "U")] == [4, 4]
        await talk.client.create("new")
        beat = {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}
        assert (await talk.client.ask(Heartbeat(), fastjson.encode(beat))).code == 0
        await talk.client.create("U", 8)
        async with asyncio.timeout(10):
            while await asking.permission("%RETRY%g") is None:
                await asyncio.sleep(0.05)
        permissions = [await asking.permission(topic) for topic in ("T", "new", "U")]
        assert permissions == [4, 6, 6], "RocketMQ: what changes can be written to again"
        added = await asking.remoting.exchange(
            asking.cluster.namesrv, AddWritePerm(broker_name="broker-a"), timeout=30
        )
        assert added.code == 0
        assert await asking.permission("T") == 6
