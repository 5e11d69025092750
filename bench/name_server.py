"""`python -m bench.name_server`: cost of routes for a name server, Apache's and ours in turn.

200 brokers with 50 topics each register every 30 s by 103, with both servers all the time. 64
clients, with a connection each, ask one of the two servers for routes, one after another at a fixed
rate. Both get the same requests at the same pace, A B A B. There are two layouts: each topic is on
all brokers, as `mqadmin updateTopic -c` makes it; or each broker has topics of its own. The bench
measures the CPU time of the server's process, and the time from the write of a request to its
answer. Exit status 1: a goal was missed.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median

import click
import msgspec
from tests.interop.apache import ApacheCluster, properties_text
from tests.ports import free_ports

from bench.brokers import APACHE, APACHE_JVM, OURS, spawn
from bench.cores import Cores, running_on
from bench.cpu_time import CpuMeter
from bench.generator import CACHE
from bench.table import plain_table
from turbopump.protocol import fastjson
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.namesrv import (
    GetRouteInfo,
    RegisterBroker,
    RegisterBrokerBody,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from turbopump.remoting.client import RemotingClient

BROKERS, TOPICS, CLIENTS = 200, 50, 64
REGISTER_S = 30.0
GOAL_RATIO, GOAL_P99_MS = 3.0, 20.0
PATIENCE_S = 120.0
SHARED, OWN = "each topic on all brokers", "each broker has its own topics"


class Part(msgspec.Struct, frozen=True):
    """Result of one server in one part of the run."""

    server: str
    layout: str
    requests: int
    cpu_seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_cpu_second(self) -> float:
        return self.requests / self.cpu_seconds


def topics_of(layout: str, broker: int) -> list[str]:
    prefix = "shared" if layout == SHARED else f"own-{broker}"
    return [f"{prefix}-{number}" for number in range(TOPICS)]


def registration(layout: str, broker: int) -> tuple[RegisterBroker, bytes]:
    table = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=8, write_queue_nums=8)
        for topic in topics_of(layout, broker)
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(
        topic_config_table=table, data_version=DataVersion(timestamp=1_700_000_000_000, counter=1)
    )
    request = RegisterBroker(
        cluster_name="DefaultCluster",
        broker_name=f"broker-{broker}",
        broker_id=0,
        broker_addr=f"10.0.{broker // 250}.{broker % 250 + 1}:10911",
        ha_server_addr=f"10.0.{broker // 250}.{broker % 250 + 1}:10912",
    )
    return request, fastjson.encode(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


@asynccontextmanager
async def registered(layout: str, addresses: list[str]) -> AsyncIterator[None]:
    """200 brokers are registered with each of the servers, and register again every 30 s."""
    clients = [RemotingClient() for _ in range(BROKERS)]

    async def register(broker: int) -> None:
        request, body = registration(layout, broker)
        for address in addresses:
            await clients[broker].call(address, request, body, timeout=30)

    async def go_on(broker: int) -> None:
        await asyncio.sleep(REGISTER_S * broker / BROKERS)
        while True:
            await register(broker)
            await asyncio.sleep(REGISTER_S)

    for broker in range(BROKERS):
        await register(broker)
    tasks = [asyncio.ensure_future(go_on(broker)) for broker in range(BROKERS)]
    try:
        yield
        assert not any(task.done() for task in tasks), "a broker's registration failed"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()


class Asker(asyncio.Protocol):
    """A client: one connection, and one question at a time."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self.took: list[float] = []
        self._frames = frames
        self._left = 0
        self._head = b""
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        if not self._left:
            self._head += data
            if len(self._head) < 4:
                return
            self._left, data, self._head = 4 + int.from_bytes(self._head[:4]), self._head, b""
        self._left -= len(data)
        if not self._left:
            assert self._answered is not None
            self._answered.set_result(None)

    async def ask(self, rate: float, until: float) -> None:
        """``rate``: questions a second, as long as answers come in time."""
        now = self._loop.time
        due = now() + 1 / rate * (id(self) % 997) / 997
        while due < until:
            await asyncio.sleep(due - now())
            self._answered = self._loop.create_future()
            began = now()
            self._transport.write(next(self._frames))
            await self._answered
            self.took.append(now() - began)
            due = max(due + 1 / rate, began)

    def close(self) -> None:
        self._transport.close()


async def check_route(address: str, topic: str, brokers: int) -> int:
    """Return the size of a route's body. The route must name ``brokers`` brokers."""
    client = RemotingClient()
    answer = await client.exchange(address, GetRouteInfo(topic=topic), timeout=30)
    route = fastjson.decode(answer.body, TopicRouteData)
    assert len(route.broker_datas) == len(route.queue_datas) == brokers, (address, topic, route)
    await client.close()
    return len(answer.body)


async def poll(server: str, layout: str, address: str, pid: int, rate: int, seconds: float) -> Part:
    names = [
        topic
        for broker in range(1 if layout == SHARED else BROKERS)
        for topic in topics_of(layout, broker)
    ]
    frames = [encode_command(request_command(GetRouteInfo(topic=name), opaque=1)) for name in names]
    loop = asyncio.get_running_loop()
    host, port = address.split(":")
    askers: list[Asker] = []
    for number in range(CLIENTS):
        mine = islice(cycle(frames), number * len(frames) // CLIENTS, None)
        _, asker = await loop.create_connection(lambda mine=mine: Asker(mine), host, int(port))
        askers.append(asker)
    until = loop.time() + seconds
    meter = CpuMeter([pid])
    await asyncio.gather(*(asker.ask(rate / CLIENTS, until) for asker in askers))
    spent = meter.seconds_of(pid)
    took = sorted(time for asker in askers for time in asker.took)
    for asker in askers:
        asker.close()
    return Part(
        server,
        layout,
        len(took),
        spent,
        took[len(took) // 2] * 1000,
        took[len(took) * 99 // 100] * 1000,
    )


def start_both(stack: ExitStack, directory: Path, cores: Cores) -> dict[str, tuple[str, int]]:
    """Address and pid of each name server."""
    apache = ApacheCluster(directory=directory / "apache", namesrv_heap="1g")
    apache.namesrv_options = ("-Xms1g", *APACHE_JVM)
    stack.callback(apache.kill_namesrv)
    port = free_ports(0)
    ours = directory / "ours"
    ours.mkdir()
    settings = {"listenPort": port, "kvConfigPath": str(ours / "kv.json")}
    (ours / "namesrv.conf").write_text(properties_text(settings))
    with running_on(cores.broker):
        apache.write_configuration()
        apache.start_namesrv()
        process = spawn(stack, ours, "namesrv", "-c", str(ours / "namesrv.conf"))
    return {APACHE: (apache.namesrv, apache.namesrv_pid), OURS: (f"127.0.0.1:{port}", process.pid)}


async def measure(
    servers: dict[str, tuple[str, int]], layout: str, rate: int, seconds: float, rounds: int
) -> list[Part]:
    loop = asyncio.get_running_loop()
    for address, _pid in servers.values():
        deadline = loop.time() + PATIENCE_S
        host, port = address.split(":")
        for _ in count():
            try:
                transport, _ = await loop.create_connection(asyncio.Protocol, host, int(port))
            except OSError:
                assert loop.time() < deadline, f"{address} does not listen"
                await asyncio.sleep(0.2)
            else:
                transport.close()
                break
    parts = []
    async with registered(layout, [address for address, _ in servers.values()]):
        for name, (address, _pid) in servers.items():
            topic = topics_of(layout, 0)[0]
            size = await check_route(address, topic, BROKERS if layout == SHARED else 1)
            click.echo(f"{layout}: a route of {name} has {size:,} bytes")
        for name, (address, pid) in servers.items():  # until the JVM has compiled
            await poll(name, layout, address, pid, rate, seconds)
        for _ in range(rounds):
            for name, (address, pid) in servers.items():
                parts.append(await poll(name, layout, address, pid, rate, seconds))
    return parts


@click.command(help=__doc__)
@click.option("--rate", default=1000, help="requests a second, all clients together")
@click.option("--seconds", default=10.0, help="for each part")
@click.option("--rounds", default=2)
def main(rate: int, seconds: float, rounds: int) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    cores = Cores.of_this_machine()
    parts: list[Part] = []
    for layout in (SHARED, OWN):
        with (
            tempfile.TemporaryDirectory(prefix="names-", dir=CACHE) as directory,
            ExitStack() as stack,
        ):
            servers = start_both(stack, Path(directory), cores)
            os.sched_setaffinity(0, {cores.load})
            parts += asyncio.run(measure(servers, layout, rate, seconds, rounds))
    rows = [
        (
            part.layout,
            part.server,
            f"{part.requests:,}",
            f"{part.cpu_seconds:.2f}",
            f"{part.per_cpu_second:,.0f}",
            f"{part.p50_ms:.2f}",
            f"{part.p99_ms:.2f}",
        )
        for part in parts
    ]
    click.echo(plain_table(("layout", "", "requests", "CPU s", "per CPU s", "p50", "p99 ms"), rows))
    goals, missed = [], False
    for layout in (SHARED, OWN):
        of = {
            name: [part for part in parts if (part.server, part.layout) == (name, layout)]
            for name in (APACHE, OURS)
        }
        pairs = zip(of[OURS], of[APACHE], strict=True)
        ratio = median(ours.per_cpu_second / apache.per_cpu_second for ours, apache in pairs)
        p99 = median(part.p99_ms for part in of[OURS])
        for what, measured, wanted, reached in (
            ("requests per CPU second", f"{ratio:.2f} x", f">= {GOAL_RATIO:.0f} x", ratio >= 3),
            ("p99", f"{p99:.2f} ms", f"<= {GOAL_P99_MS:.0f} ms", p99 <= GOAL_P99_MS),
        ):
            goals.append((layout, what, measured, wanted, "reached" if reached else "MISSED"))
            missed = missed or not reached
    click.echo(plain_table(("layout", "", "measured", "wanted", ""), goals))
    sys.exit(missed)


if __name__ == "__main__":
    main()
