"""`python -m bench.clients`: our producer against Apache's Java producer, both on our broker, in one run.

A B A B: each pair is one window of the one and one of the other, right after each other; a ratio is taken within a pair and the
median of the pairs is judged. The JVM is warmed until it is compiled. Exit status 1: a figure was missed; 2: something failed.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from tests.interop.apache import ToolMissingError

from bench.brokers import OURS, running_broker
from bench.clients.programs import HEADINGS, Client, ClientError, Window, java_command, judged, running_client
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
    Comparison("asyncio, 64 in flight : Java, 64 threads", ("ours", "async-64"), ("java", "threads-64"), 1024, RATE_AND_CPU),
    Comparison("asyncio, 64 in flight : Java asynchronous", ("ours", "async-64"), ("java", "async-64"), 1024, RATE_AND_CPU),
    Comparison("blocking : Java, one thread", ("ours", "blocking-1"), ("java", "threads-1"), 1024, (("p50_us", "<=", 1.2),)),
    Comparison("auto-batching on : off, 128 B", ("ours", "auto-batch"), ("ours", "no-batch"), 128, (("rate", ">=", 2.0),)),
)


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=4.0, show_default=True, help="Length of a window.")
@click.option(
    "--warm", type=click.FloatRange(0.5), default=15.0, show_default=True, help="Seconds each way of the JVM is warmed."
)
def main(pairs: int, seconds: float, warm: float) -> None:
    try:
        compare(pairs, seconds, warm)
    except (ClientError, TimeoutError, ChildProcessError, ToolMissingError) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)


def compare(pairs: int, seconds: float, warm: float) -> None:
    cores = Cores.of_this_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE)))
        broker = stack.enter_context(running_broker(OURS, directory, cores))
        create_topic(broker.port, TOPIC, QUEUES)
        before = calibration_seconds(min(cores.broker))
        clients = {
            "java": stack.enter_context(running_client(*java_command("ProducerLoad"), broker.namesrv, TOPIC)),
            "ours": stack.enter_context(running_client(sys.executable, "-m", "bench.clients.program", broker.namesrv, TOPIC)),
        }
        for mode in ("threads-64", "async-64", "threads-1"):
            clients["java"].measure(mode, 1024, warm)
        clients["ours"].measure("async-64", 1024, 1.0)
        rows: list[tuple[str, ...]] = []
        for comparison in COMPARISONS:
            rows += judged(comparison.title, comparison.wanted, [one_pair(clients, comparison, seconds) for _ in range(pairs)])
        after = calibration_seconds(min(cores.broker))
    click.echo(
        f"our broker, {pairs} pairs of {seconds} s, JVM warmed {warm} s a mode; calibration loop {before:.3f} s and {after:.3f} s"
    )
    click.echo(plain_table(HEADINGS, rows))
    sys.exit(exit_status(rows))


def one_pair(clients: dict[str, Client], comparison: Comparison, seconds: float) -> tuple[Window, Window]:
    theirs = clients[comparison.theirs[0]].measure(comparison.theirs[1], comparison.size, seconds)
    ours = clients[comparison.ours[0]].measure(comparison.ours[1], comparison.size, seconds)
    return ours, theirs


main()
