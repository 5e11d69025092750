"""Pairs of Apache's brokers and ours: one of each as a slave or a master, on a name server that is
given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.interop.apache import ApacheCluster, properties_text
from tests.interop.our_servers import turbopump
from tests.interop.patient_apache import PATIENT
from tests.interop.tools import skipping_without_tools
from tests.ports import free_ports
from tests.unit.broker.talking import Client

from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.offsets import GetMaxOffset, OffsetReply

TOPIC = "pairs"
PATIENCE_S = 120.0
SEGMENT = 1 << 20
"""So that the log has several files."""


async def eventually(what: str, ask: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Ask again and again; a broker may not be there yet."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            if await ask():
                return
        except TurbopumpError:
            pass
        assert time.monotonic() < until, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.2)


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[Client]:
    client = Client(address)
    try:
        yield client
    finally:
        await client.close()


async def has(client: Client, count: int) -> bool:
    """Whether a broker has so many messages in the queue."""
    answer = await client.ask(GetMaxOffset(topic=TOPIC, queue_id=0))
    return answer.code == 0 and answer.header(OffsetReply).offset == count


@contextmanager
def our_broker(directory: Path, namesrv: str, **settings: str | int | bool) -> Iterator[str]:
    """`turbopump broker` with these lines of broker.conf; its address."""
    directory.mkdir(parents=True, exist_ok=True)
    conf = directory / "broker.conf"
    conf.write_text(
        properties_text(
            {
                "brokerName": "broker-a",
                "bindAddress": "127.0.0.1",
                "listenPort": free_ports(-2, 0, 1),
                "storePathRootDir": str(directory / "store"),
                "mappedFileSizeCommitLog": SEGMENT * 4,
                "maxMessageSize": 100_000,
                "mappedFileSizeConsumeQueue": 30_000 * 20,
                "diskFreeSpaceMin": 64 << 20,
                "brokerFastFailureEnable": False,
                "namesrvAddr": namesrv,
                **settings,
            }
        )
    )
    arguments = ["broker", "-c", str(conf), "--log-file", str(directory / "broker.log")]
    with turbopump(arguments, r"ready broker=(\S+)", directory) as (broker,):
        yield broker


@contextmanager
def apache_slave(
    version: str, directory: Path, namesrv: str, **settings: str | int | bool
) -> Iterator[ApacheCluster]:
    """Apache's broker alone, as a slave; not waited for."""
    cluster = ApacheCluster(
        version,
        directory=directory,
        heap="384m",
        broker_config={
            **PATIENT,
            "namesrvAddr": namesrv,
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "mappedFileSizeCommitLog": SEGMENT * 4,
            "maxMessageSize": 100_000,
            **settings,
        },
    )
    try:
        with skipping_without_tools():
            cluster.write_configuration()
            cluster.start_broker(wait=False)
        yield cluster
    finally:
        cluster.kill()
