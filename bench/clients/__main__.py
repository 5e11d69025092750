"""`python -m bench.clients`: our producer against Apache's Java producer, both on our broker, in
one run.

A B A B: each pair is one window of the one and one of the other, right after each other; a ratio is
taken within a pair and the median of the pairs is judged. The JVM is warmed until it is compiled.
Exit status 1: a figure was missed; 2: something failed.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from tests.interop.apache import ToolMissingError

from bench.brokers import OURS, running_broker
from bench.clients.programs import (
    HEADINGS,
    Client,
    ClientError,
    Window,
    java_command,
    judged,
    running_client,
)
from bench.cores import Cores, calibration_seconds
from bench.generator import CACHE
from bench.remote import create_topic
from bench.table import exit_status, plain_table

TOPIC = "bench-clients"
QUEUES = 8


class Comparison(NamedTuple):
    """Ours against another: (client, mode) each, body size, and what is wanted of ours / theirs."""

    title: str
    ours: tuple[str, str]
    theirs: tuple[str, str]
    size: int
    wanted: tuple[tuple[str, str, float], ...]


RATE_AND_CPU = (("rate", ">=", 1.0), ("cpu_us", "<=", 1.0))
COMPARISONS = (
    Comparison(
        "asyncio, 64 in flight : Java, 64 threads",
        ("ours", "async-64"),
        ("java", "threads-64"),
        1024,
        RATE_AND_CPU,
    ),
    Comparison(
        "asyncio, 64 in flight : Java asynchronous",
        ("ours", "async-64"),
        ("java", "async-64"),
        1024,
        RATE_AND_CPU,
    ),
    Comparison(
        "blocking : Java, one thread",
        ("ours", "blocking-1"),
        ("java", "threads-1"),
        1024,
        (("p50_us", "<=", 1.2),),
    ),
    Comparison(
        "auto-batching on : off, 128 B",
        ("ours", "auto-batch"),
        ("ours", "no-batch"),
        128,
        (("rate", ">=", 2.0),),
    ),
)


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=4.0,
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--warm",
    type=click.FloatRange(0.5),
    default=15.0,
    show_default=True,
    help="Seconds each way of the JVM is warmed.",
)
@click.option("--only", default="", help="Those comparisons alone whose title has this text in it.")
def main(pairs: int, seconds: float, warm: float, only: str) -> None:
    comparisons = [comparison for comparison in COMPARISONS if only in comparison.title]
    if not comparisons:
        raise click.UsageError(
            f"no comparison has {only!r} in its title: "
            f"{'; '.join(one.title for one in COMPARISONS)}"
        )
    cores = Cores.of_this_machine()
    before = calibration_seconds(min(cores.broker))
    try:
        rows = [
            row
            for comparison in comparisons
            for row in compared(comparison, cores, pairs, seconds, warm)
        ]
    except (ClientError, TimeoutError, ChildProcessError, ToolMissingError) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)
    after = calibration_seconds(min(cores.broker))
    click.echo(
        f"our broker, {pairs} pairs of {seconds} s, JVM warmed {warm} s a mode; calibration loop "
        f"{before:.3f} s and {after:.3f} s"
    )
    click.echo(plain_table(HEADINGS, rows))
    sys.exit(exit_status(rows))


def compared(
    comparison: Comparison, cores: Cores, pairs: int, seconds: float, warm: float
) -> list[tuple[str, ...]]:
    """The rows of one comparison, with a broker and a store of its own: what the one before has
    sent need not be written back to the disk while this one is measured."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
        )
        broker = stack.enter_context(running_broker(OURS, directory, cores))
        create_topic(broker.port, TOPIC, QUEUES)
        program = [sys.executable, "-m", "bench.clients.program"]
        clients = {"ours": stack.enter_context(running_client(*program, broker.namesrv, TOPIC))}
        clients["ours"].measure(comparison.ours[1], comparison.size, 1.0)
        who, mode = comparison.theirs
        if who == "java":
            clients[who] = stack.enter_context(
                running_client(*java_command("ProducerLoad"), broker.namesrv, TOPIC)
            )
            clients[who].measure(mode, comparison.size, warm)
        windows = [one_pair(clients, comparison, seconds) for _ in range(pairs)]
    return judged(comparison.title, comparison.wanted, windows)


def one_pair(
    clients: dict[str, Client], comparison: Comparison, seconds: float
) -> tuple[Window, Window]:
    theirs = clients[comparison.theirs[0]].measure(comparison.theirs[1], comparison.size, seconds)
    ours = clients[comparison.ours[0]].measure(comparison.ours[1], comparison.size, seconds)
    return ours, theirs


main()
