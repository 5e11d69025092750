"""`python -m bench.cold_reader`: effect of a consumer with a cold backlog on the latency of
producers.

The bench stores a backlog, stops the broker, drops its files from the page cache, and starts the
broker again. Then it measures the same sends alone, and beside a reader that pulls the backlog from
its start. The one rule: A B A B, each time on a fresh start with nothing in memory, and medians of
the rounds. The bench also measures that the reader's bytes came from the device. Exit status 1: the
ratio of the p99s is above 1.3.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from bench import generator
from bench.brokers import OURS, running_broker
from bench.cases import FILL, PULL_TOPIC, TOPIC_QUEUES, Case
from bench.comparison import BUSY, attempt
from bench.cores import Cores
from bench.generator import LoadError, LoadResult
from bench.remote import create_topic

KIB = 1024
ENTRY_SIZE = 1200
"""Bytes that one message of 1 KiB takes in the log, about."""
READER = Case(
    "cold-reader",
    "pull 32 x 1 KiB, 8 queues, 1 outstanding each",
    mode="pull",
    outstanding=TOPIC_QUEUES,
    count=32,
)
SENDS = (
    Case("one", "send 1 KiB, 1 outstanding", outstanding=1),
    Case("many", "send 1 KiB, 64 outstanding"),
)
GOAL = 1.3
LEAD_S = 0.3
"""Seconds by which the reader begins before the sends, and ends after them."""
SETTLE_S = 0.5
FILL_STEP = 32_000


class Window(msgspec.Struct):
    """One measured window: the sends, and the reader beside them, if there was one."""

    sends: LoadResult
    reader: LoadResult | None
    read_from_device: int


def drop_from_memory(directory: Path) -> None:
    """Let the system forget its copy of every file below; all of them must be synced, and mapped by
    nobody."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def fill(directory: Path, cores: Cores, size: int) -> None:
    """Make the directory of a cleanly stopped broker with a backlog of ``size`` bytes."""
    with running_broker(OURS, directory, cores) as broker:
        for case in (READER, *SENDS):
            create_topic(broker.port, case.topic, TOPIC_QUEUES)
        arguments = [*FILL.arguments(), "--topic", PULL_TOPIC, "--limit", str(FILL_STEP)]
        stored = 0
        while stored < size // ENTRY_SIZE:
            try:
                stored += generator.fill(broker.port, arguments, core=cores.load)
            except LoadError as problem:
                if BUSY not in str(problem):
                    raise


def measure(
    directory: Path, cores: Cores, case: Case, seconds: float, *, reading: bool, cold: bool
) -> Window:
    if cold:
        drop_from_memory(directory / "store")
    with running_broker(OURS, directory, cores) as broker:
        reader = None
        if reading:
            length = ["--settle", "0", "--seconds", str(seconds + 2 * LEAD_S + SETTLE_S)]
            reader = generator.start_load(
                broker.port, [*READER.arguments(), *length], core=cores.load
            )
            time.sleep(LEAD_S)
        before = device_reads(broker.pid)
        sends, _ = attempt(broker, case, core=cores.load, seconds=seconds, settle=SETTLE_S)
        read = device_reads(broker.pid) - before
        if reader is None:
            return Window(sends, None, read)
        return Window(
            sends, msgspec.json.decode(generator.finish_load(reader), type=LoadResult), read
        )


def device_reads(pid: int) -> int:
    """Bytes that a process has had read from devices."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def sentence(window: Window, case: Case) -> str:
    sends, reader = window.sends, window.reader
    text = (
        f"{case.title}: p50 {sends.p50_us:,.0f} µs, p99 {sends.p99_us:,.0f} µs, {sends.rate:,.0f}/s"
    )
    if reader is None:
        return f"{text}, alone"
    device = f"{window.read_from_device / sends.seconds / 2**20:.0f} MiB/s from the device"
    return f"{text}, beside a reader of {reader.rate:,.0f} messages/s, {device}"


def p99(windows: Sequence[Window]) -> float:
    return statistics.median(window.sends.p99_us for window in windows)


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=2.0,
    show_default=True,
    help="Length of a measured window.",
)
@click.option(
    "--mib", type=click.IntRange(16), default=512, show_default=True, help="Size of the backlog."
)
@click.option(
    "--warm",
    is_flag=True,
    help="Leave everything in memory: what the reader costs that is not the device's.",
)
def main(rounds: int, seconds: float, mib: int, warm: bool) -> None:
    cores = Cores.of_this_machine()
    generator.CACHE.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="cold-", dir=generator.CACHE) as data:
        fill(Path(data), cores, mib * KIB * KIB)
        for case in SENDS:
            alone, beside = list[Window](), list[Window]()
            for _ in range(rounds):
                for windows, reading in ((alone, False), (beside, True)):
                    windows.append(
                        measure(Path(data), cores, case, seconds, reading=reading, cold=not warm)
                    )
                    click.echo(sentence(windows[-1], case))
            ratio = p99(beside) / p99(alone)
            worst = max(worst, ratio)
            click.echo(
                f"{case.title}: p99 {p99(beside):,.0f} µs beside the reader, {p99(alone):,.0f} "
                f"µs alone: ratio {ratio:.2f}"
            )
    sys.exit(worst > GOAL)


if __name__ == "__main__":
    main()
