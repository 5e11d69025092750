"""The metrics of a broker after a fixed workload of Apache's Java client, as numbers to compare.

`python -m tests.interop.measured apache|ours DIRECTORY` prints them, for a look by hand.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.apache import NEWEST
from tests.interop.foreign import DEADLINE_SECONDS, java_client
from tests.interop.our_clients import make_groups, make_topics
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache
from tests.ports import free_ports

from turbopump.protocol.requests.groups import SubscriptionGroupConfig

PREFIX: Final = "measured"
COUNT: Final = 120
TOPICS: Final = (
    "plain",
    "ordered",
    "delayed",
    "timed",
    "transactions",
    "popped",
    "retried",
    "dead",
    "tagged",
    "selected",
    "asked",
)
Labels = frozenset[tuple[str, str]]

_SERIES: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """Text of a page, as types and values."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.series: dict[str, dict[Labels, float]] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
            elif line and not line.startswith("#"):
                match = _SERIES.match(line)
                assert match is not None, line
                name, labels, value = match.groups()
                found = frozenset(_LABEL.findall(labels or ""))
                self.series.setdefault(name, {})[found] = float(value)

    def names_of(self, name: str) -> list[str]:
        """Names of the series of a metric: its own, or the three of a histogram."""
        parts = (name, *(f"{name}_{part}" for part in ("bucket", "sum", "count")))
        return [part for part in parts if part in self.series]

    def keys_of(self, name: str) -> set[str]:
        """Keys of all labels of a metric."""
        return {
            key for part in self.names_of(name) for labels in self.series[part] for key, _ in labels
        }

    def type_of(self, name: str) -> str | None:
        """Type of a metric. Apache's exporter writes it without the unit."""
        for text in (name, name.removesuffix("_" + name.rpartition("_")[2])):
            if text in self.types:
                return self.types[text]
        return None


def read_page(port: int, host: str = "127.0.0.1") -> Scrape:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
        return Scrape(answer.read().decode())


SETTINGS: Final[dict[str, str | int | bool]] = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": "127.0.0.1",
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    "enablePropertyFilter": True,
    "transactionCheckInterval": 3_600_000,
    "brokerClusterName": "DefaultCluster",
    "enabledAppendPropCRC": False,
}


@contextmanager
def measured_broker(who: str, directory: Path) -> Iterator[tuple[str, str, int]]:
    """A name server and a broker of Apache's or ours. Yield their addresses and the metrics
    port."""
    port = free_ports(0)
    settings = {**SETTINGS, "metricsPromExporterPort": port}
    if who == "apache":
        with patient_apache(NEWEST, directory, **settings) as cluster:
            yield cluster.namesrv, cluster.broker, port
    else:
        with patient_turbopump(directory, broker_only=settings) as servers:
            yield servers.namesrv, servers.broker, port


def metrics_after_the_work(who: str, directory: Path) -> Scrape:
    """Run the workload against a broker, and return its metrics while the consumers are
    connected."""
    command = java_client(NEWEST, program="Measured")
    with measured_broker(who, directory / "servers") as (namesrv, broker, port):
        asyncio.run(make_topics(namesrv, broker, *(f"{PREFIX}-{name}" for name in TOPICS)))
        asyncio.run(make_groups(broker, SubscriptionGroupConfig(group_name=f"{PREFIX}-made")))
        home = directory / "java"
        home.mkdir(parents=True)
        with (home / "errors").open("w") as errors:
            process = subprocess.Popen(
                [*command, namesrv, PREFIX, str(COUNT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                text=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                assert line, (home / "errors").read_text()
                report = json.loads(line)
                assert report["ok"], f"{report}\n{(home / 'errors').read_text()}"
                scrape = settled(port)
                process.stdin.close()
                process.wait(DEADLINE_SECONDS)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
        return scrape


def settled(port: int) -> Scrape:
    """The page once all consumers but one have committed what they got."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        page = read_page(port)
        lags = page.series.get("rocketmq_consumer_lag_messages", {})
        behind = {dict(labels)["consumer_group"] for labels, value in lags.items() if value}
        if len(lags) > len(TOPICS) and behind == {f"{PREFIX}-plain-behind"}:
            return page
        assert time.monotonic() < deadline, lags
        time.sleep(1)


def main() -> None:
    who, directory = sys.argv[1:]
    scrape = metrics_after_the_work(who, Path(directory))
    for name, series in sorted(scrape.series.items()):
        for labels, value in sorted(series.items(), key=lambda item: sorted(item[0])):
            print(name, json.dumps(dict(sorted(labels))), value)
    print(json.dumps(scrape.types))


if __name__ == "__main__":
    main()
