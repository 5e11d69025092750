"""`python -m bench.clients.consuming`: our push consumer against Apache's Java one, each working
through the same backlog of our broker.

A B A B: the one consumes all of it as a new group, then the other. The JVM has consumed it before,
until it is compiled. Handlers do nothing but count, 20 at once (Java: 20 threads). Exit status 1: a
figure was missed; 2: something failed.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from tests.interop.apache import ToolMissingError

from bench import generator
from bench.brokers import OURS, running_broker
from bench.cases import FILL
from bench.clients.programs import (
    HEADINGS,
    Client,
    ClientError,
    Window,
    java_command,
    judged,
    running_client,
)
from bench.comparison import BUSY
from bench.cores import Cores, calibration_seconds
from bench.cpu_time import CpuMeter
from bench.generator import CACHE, LoadError
from bench.remote import create_topic
from bench.table import exit_status, plain_table

TOPIC = "bench-backlog"
QUEUES = 4
WANTED = (("rate", ">=", 0.8), ("cpu_us", "<=", 1.0))
MODES = ("coroutine", "thread", "iterate")
FILL_STEP = 32_000


def fill(port: int, messages: int, core: int) -> int:
    """Store at least this many messages of 1 KiB, the same number in each queue. Return the
    number."""
    arguments = [*FILL.arguments(), "--topic", TOPIC, "--queues", str(QUEUES)]
    stored = 0
    while stored < messages:
        try:
            stored += generator.fill(
                port, [*arguments, "--limit", str(min(FILL_STEP, messages - stored))], core=core
            )
        except LoadError as problem:
            if BUSY not in str(problem):
                raise
    return stored


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--messages",
    type=click.IntRange(100),
    default=1_000_000,
    show_default=True,
    help="Size of the backlog.",
)
@click.option(
    "--warm",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Times that the JVM consumes it before.",
)
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="Kinds of our handler; all unless told.",
)
@click.option("--ours-only", is_flag=True, help="Without Java: while working on the consumer.")
def main(pairs: int, messages: int, warm: int, modes: tuple[str, ...], ours_only: bool) -> None:
    try:
        compare(pairs, messages, warm, modes or MODES, ours_only=ours_only)
    except (ClientError, LoadError, TimeoutError, ChildProcessError, ToolMissingError) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)


def compare(
    pairs: int, messages: int, warm: int, modes: tuple[str, ...], *, ours_only: bool
) -> None:
    cores = Cores.of_this_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
        )
        broker = stack.enter_context(running_broker(OURS, directory, cores))
        create_topic(broker.port, TOPIC, QUEUES)
        stored = fill(broker.port, messages, cores.load)
        before = calibration_seconds(min(cores.broker))
        program = [sys.executable, "-m", "bench.clients.consumer_program"]
        ours = stack.enter_context(running_client(*program, broker.namesrv, TOPIC))
        java = None
        if not ours_only:
            java = stack.enter_context(
                running_client(*java_command("ConsumerLoad"), broker.namesrv, TOPIC)
            )
            for _ in range(warm):
                java.measure("listener", stored)
        rows: list[tuple[str, ...]] = []
        for mode in modes:
            windows = [one_pair(ours, java, mode, stored, broker.pid) for _ in range(pairs)]
            rows += judged(f"{mode} : Java, 20 threads", WANTED, windows)
        after = calibration_seconds(min(cores.broker))
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    click.echo(
        f"our broker, {stored:,} messages, {pairs} pairs; calibration loop {before:.3f} s and "
        f"{after:.3f} s; load average {load}"
    )
    click.echo(plain_table(HEADINGS, rows))
    sys.exit(exit_status(rows))


def one_pair(
    ours: Client, java: Client | None, mode: str, messages: int, broker: int
) -> tuple[Window, Window]:
    theirs = measured(java, "listener", messages, broker) if java is not None else None
    window = measured(ours, mode, messages, broker)
    return window, theirs or window


def measured(client: Client, mode: str, messages: int, broker: int) -> Window:
    meter = CpuMeter([broker])
    window = client.measure(mode, messages)
    per_message = meter.seconds_of(broker) / messages * 1e6
    click.echo(
        f"{mode}: {window.rate:,.0f}/s, {window.cpu_us:.2f} µs CPU a message, broker "
        f"{per_message:.2f} µs",
        err=True,
    )
    return window


if __name__ == "__main__":
    main()
