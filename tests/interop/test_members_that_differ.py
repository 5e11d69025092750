"""A Java consumer and one of ours in one group, of which one keeps an order or broadcasts and the
other does not: our broker says so by Java's heartbeats and locks, and `turbopump consumer status`
by both consumers' own word, on Apache's brokers, too.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import NEWEST
from tests.interop.either_servers import OURS, Servers
from tests.interop.either_servers import servers as servers
from tests.interop.foreign import java_client
from tests.interop.members import foreign_member
from tests.interop.our_clients import PATIENCE_SECONDS, make_topics
from tests.interop.tools import skipping_without_tools

from turbopump import PushConsumer
from turbopump.cli.consumer import consumer_status
from turbopump.protocol import fastjson
from turbopump.protocol.requests.consumers import ConsumerConnection, GetConsumerConnectionList
from turbopump.remoting.client import RemotingClient


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("ordered", "{ours} not in order; {java} in order"),
        ("broadcast", "{java} broadcasting; {ours} clustering"),
    ],
)
def test_a_java_consumer_that_differs_from_ours_is_told(
    mode: str,
    wanted: str,
    servers: Servers,
    tmp_path: Path,
    summary: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with skipping_without_tools():
        command = java_client(
            NEWEST if servers.name.endswith(NEWEST) else "4.9.8", program="Ordering"
        )
    started = time.monotonic()
    asyncio.run(story(mode, wanted, command, servers, tmp_path))
    if servers.name == OURS:
        warned = [
            record.getMessage()
            for record in caplog.records
            if "broker warns" in record.getMessage()
        ]
        assert warned, "our consumer says in its log what the broker told it"
    summary.append(f"java {mode} and ours not, {servers.name}: {time.monotonic() - started:.1f} s")


async def status(
    client: RemotingClient, group: Any, servers: Servers, enough: Any
) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not enough(found := await consumer_status(client, [servers.broker], group)):
            await asyncio.sleep(0.1)
    return found


async def story(
    mode: str, wanted: str, command: list[str], servers: Servers, directory: Path
) -> None:
    topic = group = f"differing-{mode}"
    await make_topics(servers.namesrv, servers.broker, topic)
    client = RemotingClient()

    try:
        async with foreign_member(
            "java", command, servers.namesrv, topic, group, mode, directory=directory, said=print
        ):
            alone = await status(
                client,
                group,
                servers,
                lambda found: any(
                    one["queues"] for row in found["clients"] for one in row["topics"]
                ),
            )
            assert alone["conflicts"] == []
            (java,) = [row["client_id"] for row in alone["clients"]]
            async with PushConsumer(
                servers.namesrv, group=group, topic=topic, handler=print
            ) as ours:
                told = wanted.format(java=java, ours=ours.client_id)
                found = await status(
                    client,
                    group,
                    servers,
                    lambda found: any(told in sentence for sentence in found["conflicts"]),
                )
                assert not any(row["fault"] for row in found["clients"])
                if servers.name == OURS:
                    answer = await client.exchange(
                        servers.broker, GetConsumerConnectionList(consumer_group=group)
                    )
                    sentences = fastjson.decode(answer.body, ConsumerConnection).conflicts or ()
                    assert any(told in sentence for sentence in sentences), sentences
    finally:
        await client.close()
