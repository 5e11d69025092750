"""`python -m bench.clients.end_to_end`: how long a message takes from its send to its handler,
through our broker and through Apache's.

The same client, ours, at a fixed number of messages a second on the one broker, then on the other:
A B A B. Apache's broker is warmed with the same load. The client has a core that the brokers keep
off (bench/cores.py says why). Exit status 1: a figure was missed; 2: something failed.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench.brokers import APACHE, OURS, RunningBroker, running_broker
from bench.clients.programs import Client, ClientError, Window, judged, running_client
from bench.cores import Cores, calibration_seconds, held_to, running_on
from bench.generator import CACHE
from bench.remote import create_topic
from bench.table import exit_status, plain_table

TOPIC = "bench-latency"
QUEUES = 4
WANTED = (("p50_us", "<=", 0.7), ("p99_us", "<=", 1.0))
HEADINGS = ("our client through", "", "ours", "Apache's", "ratio (spread)", "wanted", "")


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Messages a second."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=8.0,
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--warm",
    type=click.FloatRange(0.5),
    default=30.0,
    show_default=True,
    help="Seconds Apache's broker is warmed.",
)
@click.option(
    "--ours-only", is_flag=True, help="Without Apache's: while working on the client or the broker."
)
def main(pairs: int, rate: float, seconds: float, warm: float, ours_only: bool) -> None:
    try:
        compare(pairs, rate, seconds, warm, ours_only=ours_only)
    except (
        ClientError,
        ApacheStartError,
        TimeoutError,
        ChildProcessError,
        ToolMissingError,
    ) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)


def compare(pairs: int, rate: float, seconds: float, warm: float, *, ours_only: bool) -> None:
    cores = Cores.of_this_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
        )
        before = calibration_seconds(min(cores.broker))
        brokers: dict[str, tuple[RunningBroker, Client]] = {}
        for name in (OURS,) if ours_only else (APACHE, OURS):
            broker = stack.enter_context(running_broker(name, directory / name, cores))
            stack.enter_context(held_to(broker.pid, cores.apart))
            create_topic(broker.port, TOPIC, QUEUES)
            with running_on(frozenset({cores.load})):
                program = [
                    sys.executable,
                    "-m",
                    "bench.clients.latency_program",
                    broker.namesrv,
                    TOPIC,
                ]
                brokers[name] = broker, stack.enter_context(running_client(*program))
            brokers[name][1].measure(rate, warm if name == APACHE else 1.0)
        windows: list[tuple[Window, Window]] = []
        for _ in range(pairs):
            pair = {
                name: measured(name, client, rate, seconds) for name, (_, client) in brokers.items()
            }
            windows.append((pair[OURS], pair.get(APACHE, pair[OURS])))
        after = calibration_seconds(min(cores.broker))
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    click.echo(
        f"{rate:,.0f} messages/s of 1 KiB, {pairs} pairs of {seconds} s; calibration loop "
        f"{before:.3f} s and {after:.3f} s;"
        f" load average {load}"
    )
    rows = judged("end to end", WANTED, windows)
    click.echo(plain_table(HEADINGS, rows))
    sys.exit(exit_status(rows))


def measured(name: str, client: Client, rate: float, seconds: float) -> Window:
    window = client.measure(rate, seconds)
    click.echo(f"{name}: p50 {window.p50_us:,.0f} µs, p99 {window.p99_us:,.0f} µs", err=True)
    return window


if __name__ == "__main__":
    main()
