"""A name server process that is killed and started again while topics are made on two brokers:
within seconds it routes every topic that was made, to both, and goes on to route new ones."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.broker_process import SETTINGS, BrokerProcess, kill_process
from tests.loops import in_loop
from tests.ports import free_ports

from turbopump.errors import RemotingError
from turbopump.protocol.requests.namesrv import GetAllTopicList, GetRouteInfo
from turbopump.remoting.client import RemotingClient

KILLS, SAMPLE = 5, 1
WHOLE_S = 5.0
"""How soon a name server knows every topic after it listens, in full."""
WHOLE_S_SAMPLE = 60.0
"""Beside other tests."""


class NameServerProcess:
    """`turbopump namesrv` in a process of its own, always on the same port."""

    def __init__(self, home: Path) -> None:
        self.port = free_ports(0)
        self.address = f"127.0.0.1:{self.port}"
        (home / "namesrv.conf").write_text(
            f"listenPort={self.port}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n"
        )
        self._home = home
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        with (self._home / "namesrv.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "turbopump", "namesrv", "-c", "namesrv.conf"),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._home,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(180):
            while not (await self._process.stdout.readline()).startswith(b"ready "):
                assert self._process.returncode is None

    async def kill(self) -> None:
        process, self._process = self._process, None
        await kill_process(process)


def broker_process(directory: Path, name: str, server: NameServerProcess) -> BrokerProcess:
    settings = {**SETTINGS, "brokerName": name}
    home, store = directory / name, directory / f"store-{name}"
    return BrokerProcess(home, store, settings, namesrv=server.address)


async def make_topics(made: Any, *brokers: BrokerProcess) -> None:
    while True:
        for broker in brokers:
            await broker.create_topic(f"T{len(made)}", 2)
        made.append(f"T{len(made)}")


@in_loop
async def test_a_killed_name_server_routes_every_topic_within_seconds(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    client, made, seconds = RemotingClient(), list[str](), list[float]()

    async def missing() -> set[str]:
        """Topics that were made, and that the name server does not route, or (of the last twenty)
        to one broker alone."""
        wanted = made.copy()
        try:
            answer = await client.call(server.address, GetAllTopicList())
            routes = [
                await client.call(server.address, GetRouteInfo(topic=topic))
                for topic in wanted[-20:]
            ]
        except RemotingError:
            return set(wanted)
        partial = {
            topic
            for topic, route in zip(wanted[-20:], routes, strict=True)
            if len(route.broker_datas) < 2
        }
        return (set(wanted) - set(answer.topic_list)) | partial

    server = NameServerProcess(tmp_path)
    await server.start()
    try:
        async with (
            broker_process(tmp_path, "broker-a", server) as one,
            broker_process(tmp_path, "broker-b", server) as other,
        ):
            await asyncio.gather(one.start(), other.start())
            making = asyncio.ensure_future(make_topics(made, one, other))
            for _ in range(KILLS if full else SAMPLE):
                count = len(made)
                while len(made) < count + 20:
                    await asyncio.wait({making}, timeout=0.01)
                    assert not making.done(), making
                await server.kill()
                await server.start()
                begun = time.monotonic()
                while left := await missing():
                    assert time.monotonic() - begun < (WHOLE_S if full else WHOLE_S_SAMPLE), left
                seconds.append(time.monotonic() - begun)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            assert await missing() == set()
    finally:
        await server.kill()
        await client.close()
    measured(
        f"{len(seconds)} kills, {len(made)} topics, all routed {max(seconds):.2f} s after a start"
    )
