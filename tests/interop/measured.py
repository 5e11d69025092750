"""The metrics of a broker after a fixed workload of Apache's Java client, as numbers to compare.

`python -m tests.interop.measured apache|ours DIRECTORY` prints them, for a look by hand.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.apache import NEWEST
from tests.interop.foreign import DEADLINE_SECONDS, java_client
from tests.interop.our_clients import make_topics
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache
from tests.ports import free_ports

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
Page = Mapping[str, Mapping[Labels, float]]
"""Values of each series, by the name of the metric and its labels."""

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
    """Return the page once two scrapes agree in the counters of messages, and offsets are
    committed."""
    import time

    last: object = None
    while True:
        page = read_page(port)
        now = [
            page.series.get(name)
            for name in (
                "rocketmq_messages_in_total",
                "rocketmq_messages_out_total",
                "rocketmq_consumer_lag_messages",
            )
        ]
        if now == last:
            return page
        last = now
        time.sleep(6)  # the clients commit their offsets every 5 s


def main() -> None:
    who, directory = sys.argv[1:]
    scrape = metrics_after_the_work(who, Path(directory))
    for name, series in sorted(scrape.series.items()):
        for labels, value in sorted(series.items(), key=lambda item: sorted(item[0])):
            print(name, json.dumps(dict(sorted(labels))), value)
    print(json.dumps(scrape.types))


if __name__ == "__main__":
    main()
