"""`python -m bench.recovery`: how soon a killed broker serves again: 1 GiB of 1 KiB messages to
recover, all of it from the log.

A directory is filled and left as a kill leaves it. In-process: the store is opened on copies of it
without queues and index files, with and without the key index. Then processes: from the start of a
name server and a broker to the first acknowledged send, Apache's and ours in turn (A B A B) on
fresh copies of the same directory. Its one rule: every copy is whole and written back before the
clock starts. Exit status 1: slower than what issue 3 wants.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
from tests.crash import fill_store

from bench.brokers import (
    APACHE,
    OURS,
    SEGMENT_SIZE,
    SOURCES,
    START_TIMEOUT,
    launch_apache,
    start_ours,
)
from bench.cores import Cores, calibration_seconds, running_on
from bench.generator import CACHE
from bench.remote import wait_for_first_send
from turbopump.clock import SystemClock
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore
from turbopump.store.store_config import StoreConfig

LOG_ONLY_GOAL, WITH_INDEX_GOAL = 120.0, 70.0
"""MB/s of log."""
PRODUCTION_FILES: dict[str, str | int | bool] = {
    "mappedFileSizeCommitLog": SEGMENT_SIZE,
    "mappedFileSizeConsumeQueue": 6_000_000,
}
INDEX_SLOTS, INDEX_ENTRIES = 5_000_000, 20_000_000


@click.command(help=__doc__)
@click.option(
    "--size",
    "mebibytes",
    type=click.IntRange(16),
    default=1024,
    show_default=True,
    help="MiB of log.",
)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
def main(mebibytes: int, pairs: int) -> None:
    cores = Cores.of_this_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-", dir=CACHE) as data:
        directory = Path(data)
        origin = filled(directory / "origin", mebibytes << 20)
        before = calibration_seconds(min(cores.broker))
        log_only = [opened(directory, origin, with_index=False) for _ in range(pairs)]
        with_index = [opened(directory, origin, with_index=True) for _ in range(pairs)]
        starts: dict[str, list[float]] = {APACHE: [], OURS: []}
        for _ in range(pairs):
            for name, seconds in starts.items():
                seconds.append(seconds_to_serve(name, directory, origin, cores))
        after = calibration_seconds(min(cores.broker))
    size = mebibytes << 20
    ratios = [ours / theirs for ours, theirs in zip(starts[OURS], starts[APACHE], strict=True)]
    rates = [size / 1e6 / median(seconds) for seconds in (log_only, with_index)]
    click.echo(
        f"{mebibytes} MiB of log, {pairs} pairs; calibration loop {before:.3f} s and {after:.3f} s"
    )
    click.echo(f"log and ConsumeQueue: {rates[0]:.0f} MB/s (wanted {LOG_ONLY_GOAL:.0f})")
    click.echo(f"with Index: {rates[1]:.0f} MB/s (wanted {WITH_INDEX_GOAL:.0f})")
    for name, seconds in starts.items():
        click.echo(
            f"{name}, process start to first acknowledged send: {median(seconds):.2f} s "
            f"({min(seconds):.2f}-{max(seconds):.2f})"
        )
    click.echo(
        f"ours : Apache's {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), wanted <= 1"
    )
    if rates[0] < LOG_ONLY_GOAL or rates[1] < WITH_INDEX_GOAL or median(ratios) > 1:
        sys.exit(1)


def filled(origin: Path, size: int) -> Path:
    """A store directory as a kill leaves it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    subprocess.run(
        [sys.executable, fill_store.__file__, str(origin), str(size)],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return origin


def copied(origin: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(origin, to)
    os.sync()
    return to


def opened(directory: Path, origin: Path, *, with_index: bool) -> float:
    """Seconds that opening takes when queues and index are to be made from the log."""
    copy = copied(origin, directory / "copy")
    for derived in ("consumequeue", "index"):
        shutil.rmtree(copy / derived)
    config = StoreConfig(
        StorePaths(copy),
        with_crc=True,
        index_slots=INDEX_SLOTS,
        index_entries=INDEX_ENTRIES if with_index else 0,
    )
    begun = time.perf_counter()
    store = MessageStore.open(config, SystemDisk(), SystemClock(), click.echo)
    seconds = time.perf_counter() - begun
    assert store.recovery is not None
    assert store.recovery.entries > 0
    assert not store.recovery.clean
    store.close()
    shutil.rmtree(copy)
    return seconds


def seconds_to_serve(name: str, directory: Path, origin: Path, cores: Cores) -> float:
    home = directory / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    copied(origin, home / "store")
    with ExitStack() as stack:
        with running_on(cores.broker):
            begun = time.monotonic()
            if name == APACHE:
                port, complaint = launch_apache(stack, home, PRODUCTION_FILES)
            else:
                broker = start_ours(stack, home, {"flushDiskType": "ASYNC_FLUSH"})
                port, complaint = broker.port, broker.complaint
        wait_for_first_send(port, "bench-first", begun + START_TIMEOUT, complaint)
        seconds = time.monotonic() - begun
    shutil.rmtree(home)
    return seconds


main()
