"""`python -m bench.metrics_cost`: what the metrics of a broker cost.

Two parts:

- `sends`: sends of 1 KiB with metrics off and with a scrape each second, in turns, and the longest
  wait of a bystander meanwhile.
- `series`: a broker with 10,000 topics, and 100 groups on 100 topics each. Duration of a scrape,
  its number of series, p99 of 64 sends at a time with and without a scrape each second, the longest
  wait of a bystander, memory, and a deleted topic.

The one rule: both brokers of a pair run in one minute on the same cores. Waits of a bystander count
in CPU time of the broker too, because other work on the machine delays everybody. Exit status 1: a
figure was missed; 2: something failed.
"""

import json
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
from tests.ports import free_ports

from bench import wire
from bench.brokers import OURS, SOURCES, RunningBroker, running_broker
from bench.bystander import TOPIC, Window, running_bystander, window_of
from bench.cases import CASES
from bench.cores import Cores
from bench.generator import CACHE, LoadError, LoadResult, measure_load
from bench.limits_requests import UPDATE_CONSUMER_OFFSET, Client
from bench.memory import MIB, anonymous_of
from bench.remote import SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC, create_topic, topic_fields
from bench.stalls import peak_memory
from bench.table import exit_status, plain_table

PARTS = ("sends", "series")
SENDS = CASES[0]
LOSS_GOAL = 0.02
"""Share of the send rate, and of the CPU of a send, that metrics and a scrape each second may
cost."""
STALL_GOAL_MS = 20.0
SCRAPE_GOAL_S = 5.0
P99_GOAL = 1.5
MEMORY_GOAL_MIB = 50.0
DELETED_GOAL_S = 300.0
FAILURES = (LoadError, TimeoutError, ChildProcessError, OSError)


@dataclass(slots=True)
class Scraper:
    """Monitor that fetches the page each second, in a thread."""

    port: int
    times: list[float] = field(default_factory=list)
    lines: int = 0

    def fetch(self) -> str:
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as page:
            text = str(page.read().decode())
        self.times.append(time.monotonic() - began)
        self.lines = sum(not line.startswith("#") for line in text.splitlines())
        return text

    def pull(self) -> None:
        """Fetch the page and drop it. This costs the machine little beside what is measured."""
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            buffer = bytearray(1 << 18)
            while connection.recv_into(buffer):
                pass
        self.times.append(time.monotonic() - began)

    @contextmanager
    def each_second(self) -> Iterator[None]:
        ended = threading.Event()

        def repeat() -> None:
            due = time.monotonic()
            while not ended.wait(max(due - time.monotonic(), 0)):
                self.pull()
                due += 1

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def broker_with_metrics(
    cores: Cores, *, on: bool, sources: Path = SOURCES
) -> Iterator[tuple[RunningBroker, Scraper]]:
    """A broker that was just started, and a scraper of its page. Without ``on`` it has no page."""
    CACHE.mkdir(parents=True, exist_ok=True)
    port = free_ports(0)
    settings: dict[str, str | int | bool] = {"metricsPromExporterPort": port}
    if on:
        settings["metricsExporterType"] = "PROM"
    with (
        tempfile.TemporaryDirectory(prefix="metrics-", dir=CACHE, ignore_cleanup_errors=True) as at,
        running_broker(OURS, Path(at), cores, settings=settings, sources=sources) as broker,
    ):
        yield broker, Scraper(port)


# --- part: sends


def measured_sends(
    cores: Cores, seconds: float, *, on: bool, sources: Path = SOURCES
) -> tuple[LoadResult, Window]:
    with (
        broker_with_metrics(cores, on=on, sources=sources) as (broker, scraper),
        ExitStack() as stack,
    ):
        create_topic(broker.port, TOPIC, 1)
        create_topic(broker.port, SENDS.topic, 8)
        if on:
            stack.enter_context(scraper.each_second())
        load = [*SENDS.arguments()]
        found = measure_load(
            broker.port, load, core=cores.load, seconds=seconds, settle=1.0, watch=broker.pid
        )
        with running_bystander(broker.port, broker.pid) as bystander:
            time.sleep(0.5)
            window_of(bystander)
            time.sleep(seconds)
            window = window_of(bystander)
    return found, window


def rows_of_sends(cores: Cores, pairs: int, seconds: float, off_sources: Path) -> list[list[str]]:
    rates: list[float] = []
    costs: list[float] = []
    stalls: list[float] = []
    for number in range(pairs):
        off, _ = measured_sends(cores, seconds, on=False, sources=off_sources)
        on, window = measured_sends(cores, seconds, on=True)
        rates.append(on.rate / off.rate)
        costs.append(on.cpu_us / off.cpu_us)
        stalls.append(window.cpu_ms)
        click.echo(
            f"pair {number + 1}: {off.rate:,.0f} and {on.rate:,.0f} messages/s, "
            f"{off.cpu_us:.2f} and {on.cpu_us:.2f} us of CPU, "
            f"longest wait {window.longest_ms:.1f} ms ({window.cpu_ms:.1f} ms of CPU)"
        )
    return judged_sends(rates, costs, stalls)


def judged_sends(
    rates: Sequence[float], costs: Sequence[float], stalls: Sequence[float]
) -> list[list[str]]:
    """Judge the medians of the ratios, and the longest stall."""
    rate, cost, stall = median(rates), median(costs), max(stalls)
    return [
        _row("send rate beside metrics off", f">= {1 - LOSS_GOAL}", rate, rate >= 1 - LOSS_GOAL),
        _row("CPU of a send beside off", f"<= {1 + LOSS_GOAL}", cost, cost <= 1 + LOSS_GOAL),
        _row("longest stall, ms of CPU", f"<= {STALL_GOAL_MS}", stall, stall <= STALL_GOAL_MS),
    ]


# --- part: series


DELETE_TOPIC = 215
AT_ONCE = 20


def ask_all(client: Client, code: int, requests: Sequence[tuple[dict[str, str], bytes]]) -> None:
    """Send requests, a few at a time. Raises ChildProcessError if one is refused."""
    for first in range(0, len(requests), AT_ONCE):
        part = requests[first : first + AT_ONCE]
        client.send([b"".join(client.request(code, fields, body) for fields, body in part)])
        for answer in client.receive(len(part)):
            if answer.code:
                raise ChildProcessError(f"request {code} was answered {answer.code}")


def fill(
    broker: RunningBroker, topics: int, used: int, groups: int, topics_of_group: int
) -> list[Client]:
    """Make topics, of which ``used`` have a message, and groups with an offset in each of their
    topics. Return the connections of the groups' members."""
    client = Client(broker)
    ask_all(
        client,
        UPDATE_AND_CREATE_TOPIC,
        [(topic_fields(f"topic-{number}", 1), b"") for number in range(topics)],
    )
    now = str(time.time_ns() // 1_000_000)
    sent = {"a": "bench", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": now, "h": "0"}
    sent |= {"j": "0", "k": "false", "m": "false"}
    ask_all(
        client,
        SEND_MESSAGE_V2,
        [
            ({**sent, "b": f"topic-{number}", "i": f"UNIQ_KEY\x01{number:032X}\x02"}, b"x" * 100)
            for number in range(used)
        ],
    )
    members = []
    for group in range(groups):
        mine = [f"topic-{(group * topics_of_group + n) % topics}" for n in range(topics_of_group)]
        member = Client(broker)
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": f"group-{group}",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
                for topic in mine
            ],
        }
        beat = {"clientID": f"10.0.0.1@{group}", "consumerDataSet": [consumer]}
        ask_all(member, wire.HEART_BEAT, [({}, json.dumps(beat).encode())])
        offsets = {"consumerGroup": f"group-{group}", "queueId": "0", "commitOffset": "0"}
        ask_all(
            member, UPDATE_CONSUMER_OFFSET, [({**offsets, "topic": topic}, b"") for topic in mine]
        )
        members.append(member)
    return members


def measured_p99(broker: RunningBroker, cores: Cores, seconds: float) -> LoadResult:
    """Sends of 1 KiB to one topic, 64 outstanding."""
    load = SENDS.arguments()
    return measure_load(broker.port, load, core=cores.load, seconds=seconds, watch=broker.pid)


def rows_of_series(
    cores: Cores,
    topics: int,
    used: int,
    groups: int,
    topics_of_group: int,
    pairs: int,
    seconds: float,
) -> list[list[str]]:
    with broker_with_metrics(cores, on=True) as (broker, scraper):
        create_topic(broker.port, TOPIC, 1)
        create_topic(broker.port, SENDS.topic, 8)
        members = fill(broker, topics, used, groups, topics_of_group)
        with running_bystander(broker.port, broker.pid) as bystander:
            ratios: list[float] = []
            stalls: list[float] = []
            time.sleep(12)  # the statistics are sampled each 10 s
            before = anonymous_of(broker.pid)
            with peak_memory(broker.pid) as peak:
                for number in range(pairs):
                    calm = measured_p99(broker, cores, seconds)
                    with scraper.each_second():
                        beside = measured_p99(broker, cores, seconds)
                    ratios.append(beside.p99_us / calm.p99_us)
                    window_of(bystander)
                    with scraper.each_second():
                        time.sleep(seconds)
                    waits = window_of(bystander)
                    stalls.append(waits.cpu_ms)
                    click.echo(
                        f"pair {number + 1}: {calm.rate:,.0f} and {beside.rate:,.0f} messages/s, "
                        f"p99 {calm.p99_us / 1000:.2f} and {beside.p99_us / 1000:.2f} ms; "
                        f"a bystander's longest wait {waits.longest_ms:.1f} ms "
                        f"({waits.cpu_ms:.1f} ms of CPU)"
                    )
        client = members[0]
        grown = (max(peak) - before) / MIB
        ask_all(client, DELETE_TOPIC, [({"topic": "topic-7"}, b"")])
        deleted = time.monotonic()
        while '"topic-7"' in scraper.fetch():
            time.sleep(1)
            if time.monotonic() - deleted > DELETED_GOAL_S:
                break
        gone = time.monotonic() - deleted
    longest, ratio, stall = max(scraper.times), median(ratios), max(stalls)
    return [
        _row("series", "-", scraper.lines, None),
        _row("longest scrape, s", f"<= {SCRAPE_GOAL_S}", longest, longest <= SCRAPE_GOAL_S),
        _row("p99 of sends beside without scrapes", f"<= {P99_GOAL}", ratio, ratio <= P99_GOAL),
        _row("longest stall, ms of CPU", f"<= {STALL_GOAL_MS}", stall, stall <= STALL_GOAL_MS),
        _row("memory, MiB more", f"<= {MEMORY_GOAL_MIB}", grown, grown <= MEMORY_GOAL_MIB),
        _row("a deleted topic leaves, s", f"<= {DELETED_GOAL_S}", gone, gone <= DELETED_GOAL_S),
    ]


def _row(name: str, wanted: str, measured: float, reached: bool | None) -> list[str]:
    word = {True: "reached", False: "MISSED", None: ""}[reached]
    return [name, wanted, f"{measured:,.3f}".rstrip("0").rstrip("."), word]


@click.command(help=__doc__)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part.")
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=8.0, show_default=True)
@click.option("--topics", default=10_000, show_default=True)
@click.option(
    "--used",
    default=1000,
    show_default=True,
    help="Topics with a message. Each has 11 series more.",
)
@click.option("--groups", default=100, show_default=True)
@click.option("--topics-of-group", default=100, show_default=True)
@click.option(
    "--old",
    type=click.Path(path_type=Path, exists=True),
    help="Sources (src) of an older build, which runs instead of ours with metrics off.",
)
def main(
    parts: tuple[str, ...],
    pairs: int,
    seconds: float,
    topics: int,
    used: int,
    groups: int,
    topics_of_group: int,
    old: Path | None,
) -> None:
    cores = Cores.of_this_machine()
    rows: list[list[str]] = []
    try:
        if "sends" in (parts or PARTS):
            rows += rows_of_sends(cores, pairs, seconds, old or SOURCES)
        if "series" in (parts or PARTS):
            rows += rows_of_series(cores, topics, used, groups, topics_of_group, pairs, seconds)
    except FAILURES as error:
        click.echo(f"the measurement failed: {error!r}", err=True)
        sys.exit(2)
    click.echo(plain_table(("figure", "wanted", "measured", ""), rows))
    sys.exit(exit_status(rows))


if __name__ == "__main__":
    main()
