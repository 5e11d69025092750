"""A cluster of ours with metrics and an exporter, traffic of every kind, and a real Prometheus that
scrapes all of it.

The one rule: Prometheus gets the files of deploy/monitoring, with other addresses and a shorter
interval. What it finds is unknown here.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.interop.apache import ToolMissingError, properties_text
from tests.interop.our_clients import make_groups, make_topics
from tests.interop.our_servers import PATIENT_BROKER, turbopump
from tests.ports import free_ports
from tests.unit.remoting.certificates import Pair

from turbopump import (
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.topics import GetTopicConfig
from turbopump.remoting.client import RemotingClient

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
SCRAPE_S = 1
QUICK_LEVELS = " ".join(["1s"] * 18)
"""Delays of all levels, so that retries become dead letters within seconds."""


@dataclass(frozen=True, slots=True)
class MonitoredCluster:
    """Addresses of a name server and a master, and of the page of each job, HOST:PORT.

    Closing ``slave`` stops the slave.
    """

    namesrv: str
    broker: str
    pages: Mapping[str, list[str]]
    slave: ExitStack


def a_moment_ago(expression: str) -> str:
    """The expression with another time in the past, two seconds ago."""
    return re.sub(r"offset \d+[smhd]", "offset 2s", expression)


def tool(name: str) -> str:
    """The path of a program of Debian's package ``prometheus``; raises ToolMissingError."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissingError(f"{name} is not installed (apt-get install prometheus)")
    return found


@contextmanager
def monitored_cluster(directory: Path) -> Iterator[MonitoredCluster]:
    """A name server, a master, its slave and an exporter, each a process with a page."""
    pages = [free_ports(0) for _ in range(3)]
    ports = [free_ports(-2, 0, 1) for _ in range(2)]
    name_server = directory / "namesrv.conf"
    name_server.write_text(
        properties_text(
            {
                "kvConfigPath": str(directory / "kvConfig.json"),
                "metricsExporterType": "PROM",
                "namesrvMetricsPort": pages[0],
            }
        )
    )
    (directory / "tls").mkdir()
    pair = Pair(directory / "tls")
    files = []
    for number, (port, page) in enumerate(zip(ports, pages[1:], strict=True)):
        file = directory / f"broker-{number}.conf"
        file.write_text(
            properties_text(
                {
                    **PATIENT_BROKER,
                    "brokerId": number,
                    "brokerRole": "SLAVE" if number else "ASYNC_MASTER",
                    "listenPort": port,
                    "storePathRootDir": str(directory / f"store-{number}"),
                    "messageDelayLevel": QUICK_LEVELS,
                    "metricsExporterType": "PROM",
                    "metricsPromExporterPort": page,
                    "tls.server.mode": "permissive",
                    "tls.server.certPath": str(pair.certificate),
                    "tls.server.keyPath": str(pair.key),
                }
            )
        )
        files.append(file)
    with (
        turbopump(
            ["namesrv", "-c", str(name_server), "--port", "0"], r"ready namesrv=(\S+)", directory
        ) as (namesrv,),
        turbopump(
            ["broker", "-c", str(files[0]), "-n", namesrv], r"ready broker=(\S+)", directory / "0"
        ) as (broker,),
        ExitStack() as slave,
        turbopump(
            ["exporter", "-n", namesrv, "--port", "0", "--interval", str(SCRAPE_S)],
            r"ready exporter=(\S+)",
            directory,
        ) as (exporter,),
    ):
        command = ["broker", "-c", str(files[1]), "-n", namesrv]
        slave.enter_context(turbopump(command, r"ready broker=(\S+)", directory / "1"))
        found = {
            "rocketmq-namesrv": [f"127.0.0.1:{pages[0]}"],
            "rocketmq-broker": [f"127.0.0.1:{page}" for page in pages[1:]],
            "rocketmq-exporter": [exporter],
        }
        yield MonitoredCluster(namesrv, broker, found, slave)


@asynccontextmanager
async def traffic(cluster: MonitoredCluster) -> AsyncIterator[None]:
    """Messages of every kind, again and again until the end of the block.

    Plain, ordered, delayed and timed ones, transactions that end both ways and one that does not
    end, pops with and without an acknowledgement, retries, dead letters, and a group that reads no
    further.
    """
    topics = ("orders", "later", "booked", "popped", "failing")
    await make_topics(cluster.namesrv, cluster.broker, *topics)
    await make_groups(cluster.broker, SubscriptionGroupConfig(group_name="billing"))

    def fail(_message: ReceivedMessage) -> None:
        raise ValueError("this handler always fails")

    async def hang(_message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    async def take(_message: ReceivedMessage) -> None:
        pass

    def decide(_message: Message, argument: Any) -> TransactionState:
        return TransactionState(argument)

    def unknown(_message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    def consumer(group: str, topic: str, **settings: Any) -> PushConsumer:
        first = {"consume_from": ConsumeFrom.FIRST, "close_timeout": 0.0}
        return PushConsumer(cluster.namesrv, group=group, topic=topic, **first | settings)

    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(cluster.namesrv, group="shop"))
        bookings = await stack.enter_async_context(
            TransactionProducer(cluster.namesrv, group="bookings", executor=decide, checker=unknown)
        )
        for one in (
            consumer("billing", "orders", handler=take),
            consumer("lagging", "orders", handler=hang),
            consumer("reminders", "later", handler=take),
            consumer("seats", "booked", handler=take),
            consumer("broken", "failing", handler=fail, max_reconsume_times=1),
        ):
            await stack.enter_async_context(one)
        popping = await stack.enter_async_context(
            SimpleConsumer(
                cluster.namesrv, group="pops", topic="popped", consume_from=ConsumeFrom.FIRST
            )
        )
        first_queue = MessageQueue("orders", "broker-a", 0)

        client = RemotingClient()
        stack.push_async_callback(client.close)

        async def send_all_kinds() -> None:
            states = [*TransactionState]
            number = 0
            while True:
                number += 1
                await producer.send("orders", b"a book" * 20)
                await producer.send(Message("orders", b"in order"), queue=first_queue)
                await producer.send(Message("later", b"delayed", delay_level=1))
                await producer.send(Message("later", b"timed", delay=1.5))
                await producer.send("popped", b"pop me")
                await producer.send("failing", b"no")
                state = states[number % len(states)]
                await bookings.send_in_transaction(Message("booked", b"seat"), state)
                await client.exchange(cluster.broker, GetTopicConfig(topic="absent"))
                await asyncio.sleep(0.1)

        async def pop() -> None:
            while True:
                for number, message in enumerate(
                    await popping.receive(8, invisible_seconds=10, timeout=1)
                ):
                    if number % 4:
                        await popping.ack(message)

        tasks = [asyncio.create_task(work()) for work in (send_all_kinds, pop)]
        try:
            yield
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class Prometheus:
    """HTTP interface of a running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; raises AssertionError with Prometheus' own words."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        return found["data"]

    def count(self, expression: str) -> int:
        """Number of series with a number that an expression has now."""
        found = self.ask("query", query=expression)["result"]
        return sum(series["value"][1] != "NaN" for series in found)


@contextmanager
def prometheus(directory: Path, cluster: MonitoredCluster) -> Iterator[Prometheus]:
    """A Prometheus with our example's jobs and rules. Its alerts do not wait, and compare with a
    moment ago, because the cluster is young."""
    directory.mkdir()
    for rules in MONITORING.glob("alerts-*.yml"):
        text = re.sub(r"\bfor: \d+m", "for: 0s", a_moment_ago(rules.read_text("utf-8")))
        (directory / rules.name).write_text(text)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text("utf-8"))
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_S}s")
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": cluster.pages[job["job_name"]]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(0)}"
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(60)
