"""`python -m bench.sql_pulls`: pulls with a SQL92 filter from our broker and from Apache's, in
turn.

Both hold the same messages of 1 KiB, each with a property `n` from 0 to 99; `n < 1` takes 1 % of
them, `n < 50` half. One connection, a pull outstanding for each queue, from the beginning of the
queues again and again. A B A B; every answer is counted, message by message: at the end of a queue
exactly what matches must have come. Exit status 1: a figure was missed; 2: something failed.
"""

import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median

import click
import msgspec
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench import wire
from bench.brokers import APACHE, OURS, RunningBroker, running_broker
from bench.cores import Cores, calibration_seconds, running_on
from bench.cpu_time import CpuMeter
from bench.generator import CACHE
from bench.remote import create_topic
from bench.table import exit_status, plain_table

TOPIC, GROUP = "bench-sql", "bench-sql-readers"
QUEUES = 4
VALUES = 100
SELECTIVITIES = {"1 %": "n < 1", "50 %": "n < 50"}
BATCH = 50
BODY = b"x" * 1024
PATIENCE_S = 60.0
INTRODUCED_S = 10.0
GOAL = 0.5


class PullError(Exception):
    """A broker answered with something else than what matches."""


class Window(msgspec.Struct, frozen=True):
    """``matches`` came in ``seconds``, out of ``read`` that the broker looked at; its CPU
    seconds."""

    matches: int
    read: int
    seconds: float
    broker_cpu_s: float

    @property
    def rate(self) -> float:
        return self.matches / self.seconds


class Reader:
    """One connection with a pull outstanding for each queue."""

    def __init__(self, broker: RunningBroker, filter_text: str, in_each: int) -> None:
        self._broker = broker
        self._filter = filter_text
        self._in_each = in_each
        self._wanted = sum(1 for number in range(in_each) if matches(filter_text, number))
        self._socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)
        self._answers = wire.Answers()
        self._opaques = count(1)
        self._queue_of: dict[int, int] = {}
        self._got = [0] * QUEUES
        self._offsets = [0] * QUEUES

    def close(self) -> None:
        self._socket.close()

    def introduce(self) -> None:
        """Say which filter the group has: brokers compile it once."""
        subscription = {"topic": TOPIC, "subString": self._filter, "expressionType": "SQL92"}
        body = wire.heartbeat("127.0.0.1@sql", self._group, subscription)
        self._socket.sendall(wire.request(wire.HEART_BEAT, next(self._opaques), {}, body))
        (answer,) = self._receive()
        if answer.code != wire.SUCCESS:
            raise PullError(f"the heartbeat was answered by code {answer.code}")
        deadline = time.monotonic() + INTRODUCED_S
        while True:  # Apache's broker compiles it beside its answer to the heartbeat
            fields = wire.pull_fields(self._group, TOPIC, 0, 0, sys_flag=0) | {
                "expressionType": "SQL92"
            }
            self._socket.sendall(wire.request(wire.PULL_MESSAGE, next(self._opaques), fields))
            (answer,) = self._receive()
            if answer.code != wire.FILTER_DATA_NOT_EXIST or time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def window(self, seconds: float) -> Window:
        """Pull for ``seconds``. Raises PullError."""
        meter = CpuMeter([self._broker.pid])
        begun = time.perf_counter()
        found = read = 0
        for queue in range(QUEUES):
            if queue not in self._queue_of.values():
                self._pull(queue)
        while time.perf_counter() - begun < seconds:
            for answer in self._receive():
                matched, moved = self._take(self._queue_of.pop(answer.opaque), answer)
                found += matched
                read += moved
        return Window(found, read, time.perf_counter() - begun, meter.seconds_of(self._broker.pid))

    @property
    def _group(self) -> str:
        return f"{GROUP}-{self._wanted}"

    def _pull(self, queue: int) -> None:
        opaque = next(self._opaques)
        self._queue_of[opaque] = queue
        fields = wire.pull_fields(self._group, TOPIC, queue, self._offsets[queue], sys_flag=0)
        fields["expressionType"] = "SQL92"
        self._socket.sendall(wire.request(wire.PULL_MESSAGE, opaque, fields))

    def _take(self, queue: int, answer: wire.Answer) -> tuple[int, int]:
        """Return the number of received messages and of messages that the broker has checked, and
        send the next pull."""
        if answer.code not in (wire.SUCCESS, wire.PULL_RETRY_IMMEDIATELY):
            raise PullError(f"a pull was answered by code {answer.code} {answer.fields}")
        matched = len(wire.entry_sizes(answer.body)) if answer.code == wire.SUCCESS else 0
        following = int(answer.fields["nextBeginOffset"])
        moved = following - self._offsets[queue]
        self._got[queue] += matched
        self._offsets[queue] = following
        if following >= self._in_each:
            if self._got[queue] != self._wanted:
                raise PullError(
                    f"{self._filter}: {self._got[queue]} messages of queue {queue} "
                    f"came, {self._wanted} match"
                )
            self._got[queue] = self._offsets[queue] = 0
        self._pull(queue)
        return matched, moved

    def _receive(self) -> list[wire.Answer]:
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise PullError("the broker closed the connection")
            if answers := self._answers.feed(data):
                return answers


def matches(filter_text: str, number: int) -> bool:
    return number % VALUES < int(filter_text.rpartition(" ")[2])


def fill(port: int, in_each: int) -> None:
    """The messages, in batches of our own client's making: property `n` goes round in each
    queue."""
    create_topic(port, TOPIC, QUEUES)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        answers, opaques = wire.Answers(), count(1)
        for queue in range(QUEUES):
            for first in range(0, in_each, BATCH):
                numbers = range(first, min(first + BATCH, in_each))
                while True:
                    connection.sendall(
                        wire.batch(
                            next(opaques),
                            TOPIC,
                            queue,
                            [(BODY, {"n": str(n % VALUES)}) for n in numbers],
                        )
                    )
                    while not (found := answers.feed(connection.recv(1 << 16))):
                        pass
                    if found[0].code == wire.SUCCESS:
                        break
                    time.sleep(0.05)  # "busy", the disk is slow: nothing was stored


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=4.0,
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--warm",
    type=click.FloatRange(0.1),
    default=12.0,
    show_default=True,
    help="Seconds Apache's is warmed, each filter.",
)
@click.option(
    "--messages", type=click.IntRange(QUEUES * VALUES), default=160_000, show_default=True
)
@click.option("--ours-only", is_flag=True, help="Without Apache's: while working on the filter.")
def main(pairs: int, seconds: float, warm: float, messages: int, ours_only: bool) -> None:
    try:
        compare(pairs, seconds, warm, messages // QUEUES, ours_only=ours_only)
    except (
        PullError,
        ApacheStartError,
        TimeoutError,
        ChildProcessError,
        ToolMissingError,
    ) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)


def compare(pairs: int, seconds: float, warm: float, in_each: int, *, ours_only: bool) -> None:
    cores = Cores.of_this_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
        )
        before = calibration_seconds(min(cores.broker))
        names = (OURS,) if ours_only else (APACHE, OURS)
        settings = {"enablePropertyFilter": True}
        brokers = {
            name: stack.enter_context(
                running_broker(name, directory / name, cores, settings=settings)
            )
            for name in names
        }
        for broker in brokers.values():
            fill(broker.port, in_each)
        stack.enter_context(running_on(frozenset({cores.load})))
        for selectivity, filter_text in SELECTIVITIES.items():
            readers = {
                name: Reader(broker, filter_text, in_each) for name, broker in brokers.items()
            }
            for name, reader in readers.items():
                stack.callback(reader.close)
                reader.introduce()
                reader.window(warm if name == APACHE else 0.5)
            windows = [
                {
                    name: measured(name, selectivity, reader, seconds)
                    for name, reader in readers.items()
                }
                for _ in range(pairs)
            ]
            if not ours_only:
                rows.append(judged(selectivity, [(pair[OURS], pair[APACHE]) for pair in windows]))
    after = calibration_seconds(min(cores.broker))
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    click.echo(
        f"{in_each * QUEUES:,} messages of 1 KiB, {pairs} pairs of {seconds} s; calibration loop "
        f"{before:.3f} s and {after:.3f} s;"
        f" load average {load}"
    )
    if rows:
        click.echo(
            plain_table(("matches/s at", "ours", "Apache's", "ratio (spread)", "wanted", ""), rows)
        )
    sys.exit(exit_status(rows))


def measured(name: str, selectivity: str, reader: Reader, seconds: float) -> Window:
    window = reader.window(seconds)
    cpu = window.broker_cpu_s / max(window.read, 1) * 1e6
    click.echo(
        f"{name} {selectivity}: {window.rate:,.0f} matches/s, broker CPU {cpu:.2f} µs a "
        "message looked at",
        err=True,
    )
    return window


def judged(title: str, windows: list[tuple[Window, Window]]) -> tuple[str, ...]:
    ratios = sorted(ours.rate / theirs.rate for ours, theirs in windows)
    return (
        title,
        f"{median(ours.rate for ours, _ in windows):,.0f}",
        f"{median(theirs.rate for _, theirs in windows):,.0f}",
        f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        f">= {GOAL}",
        "reached" if median(ratios) >= GOAL else "MISSED",
    )


if __name__ == "__main__":
    main()
