"""Metrics of a server: its connections, their memory, its certificate, and its process."""

import asyncio
from pathlib import Path

from tests.loops import in_loop
from tests.unit.metrics.reading import series_of
from tests.unit.remoting.certificates import Pair

from turbopump.config.tls import ServerTls
from turbopump.metrics.family import Distribution, Family, Metrics
from turbopump.remoting.router import Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.server_metrics import (
    CERTIFICATE_EXPIRY,
    CONNECTIONS,
    CONNECTIONS_MAX,
    LONG_TURNS,
    LOOP_DELAY,
    MEMORY,
    MEMORY_MAX,
    ServerMetrics,
)


def read(metrics: Metrics, family: Family) -> list[float | Distribution]:
    return [*series_of(metrics, family).values()]


@in_loop
async def test_a_server_shows_its_connections_and_their_memory() -> None:
    server = RemotingServer(Router(), memory_max=1 << 20, connections_max=7)
    _, port = await server.listen("127.0.0.1", 0)
    metrics = Metrics()
    ServerMetrics(server).add_to(metrics)
    assert read(metrics, CONNECTIONS) == [0]
    assert read(metrics, CONNECTIONS_MAX) == [7]
    assert read(metrics, MEMORY_MAX) == [1 << 20]
    assert read(metrics, CERTIFICATE_EXPIRY) == [], "it has no certificate"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\0\0\x10\0\0\0\0\x64" + b"x" * 100)  # a part of a frame
    async with asyncio.timeout(30):
        while read(metrics, MEMORY) < [100]:
            await asyncio.sleep(0)
    assert read(metrics, CONNECTIONS) == [1]
    writer.close()
    await server.close()


@in_loop
async def test_the_loop_is_watched_from_the_first_read_on() -> None:
    metrics = Metrics()
    measuring = ServerMetrics(RemotingServer(Router()))
    measuring.add_to(metrics)
    async with asyncio.timeout(30):
        while not sum(read(metrics, LOOP_DELAY)[0].counts):  # type: ignore[union-attr]
            await asyncio.sleep(0)
    assert len(read(metrics, LONG_TURNS)) == 1
    measuring.stop()


@in_loop
async def test_the_end_of_the_certificate_is_a_time(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    server = RemotingServer(
        Router(), tls=ServerTls(certificate=str(pair.certificate), key=str(pair.key))
    )
    metrics = Metrics()
    ServerMetrics(server).add_to(metrics)
    (end,) = read(metrics, CERTIFICATE_EXPIRY)
    assert server.certificate_end is not None
    assert end == server.certificate_end.timestamp()
