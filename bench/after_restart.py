"""`python -m bench.after_restart`: pulls of a backlog that a broker has not written itself since
its start.

Three loads. Messages of 1 KiB that lie interleaved over their queues, from the kernel's cache: ours
and Apache's broker. Messages of 100 bytes that lie side by side, from the kernel's cache: our
broker after a restart and one that has written them itself, and both of an older build where
`--old` names one. The first again, from the disk: every page of the files was dropped before the
start, and each window pulls a topic that nobody has read since.

Its one rule: A B A B among brokers that all run; what was read from the device is counted, and a
window "from the disk" that was not ends the run. Exit status 1: a figure was missed; 2: something
failed.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench import generator
from bench.brokers import APACHE, OURS, SOURCES, RunningBroker, running_broker
from bench.cases import FILL, FILL_ONE_BY_ONE, TOPIC_QUEUES, Case
from bench.clients.programs import HEADINGS, judged
from bench.cold_reader import device_reads, drop_from_memory
from bench.comparison import attempt, fill, warm_up
from bench.cores import Cores, calibration_seconds
from bench.generator import LoadError, LoadResult
from bench.remote import create_topic
from bench.table import exit_status, plain_table

MIB = 1024 * 1024
SEGMENT_SIZE = 64 * MIB
"""Size of a CommitLog segment in the test. Apache's broker reads the last three segments when it
starts, so the topics that must come from the disk lie before them."""
CACHED = Case(
    "cached",
    "1 KiB, interleaved, from the kernel's cache, 4 pulls outstanding",
    mode="pull",
    outstanding=4,
    count=32,
    interleaved=True,
)
SMALL = Case(
    "small",
    "100 B, neighbours, from the kernel's cache, 4 pulls outstanding",
    mode="pull",
    outstanding=4,
    body_size=100,
    count=32,
)
DISK = Case(
    "disk",
    "1 KiB, interleaved, from the disk, 8 pulls outstanding",
    mode="pull",
    outstanding=TOPIC_QUEUES,
    count=32,
)
DEVICE_SHARE_MIN = 0.8
"""Minimum share of a window "from the disk" that the device must have delivered."""

RATE, CPU = "rate", "cpu_us"
CACHED_GOALS = ((RATE, ">=", 1.0), (CPU, "<=", 0.6))
RESTARTED_GOALS = ((CPU, "<=", 1.2),)
OLD_GOALS = ((CPU, "<=", 0.25),)
OLD_WRITTEN_GOALS = ((CPU, "<=", 1.05),)
"""No slower, but for what two runs of the same build differ by."""
DISK_GOALS = ((RATE, ">=", 1.0),)

RESTARTED, WRITTEN = "restarted", "not restarted"
OLD_RESTARTED, OLD_WRITTEN = "old build, restarted", "old build, not restarted"
SETTLE_S = 0.5

Say = Callable[[str], None]
Results = dict[str, list[LoadResult]]
"""The windows of each broker, in the order in which they were measured."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of a run: seconds of windows and of warm-up, messages per topic."""

    pairs: int = 3
    seconds: float = 3.0
    apache_warm_s: float = 45.0
    our_warm_s: float = 3.0
    cached_messages: int = 240_000
    small_messages: int = 160_000
    disk_messages: int = 96_000

    def disk_topics(self) -> list[str]:
        """One for each pair, because a topic is on the disk alone until it is read."""
        return [f"bench-disk-{pair}" for pair in range(self.pairs)]


QUICK = Plan(pairs=1, seconds=1.0, apache_warm_s=10.0, our_warm_s=1.0)


@dataclass(frozen=True, slots=True)
class BrokerSetup:
    """Directories and cores of the brokers in one run. The brokers end with the stack."""

    data: Path
    cores: Cores
    stack: ExitStack

    @contextmanager
    def running(self, name: str, home: str, sources: Path = SOURCES) -> Iterator[RunningBroker]:
        """A broker of one kind on a directory of its own, which may hold a store already."""
        settings: dict[str, str | int | bool] = {"mappedFileSizeCommitLog": SEGMENT_SIZE}
        if name == OURS:  # the scrub would read the log into memory meanwhile
            settings["scrubBytesPerSecond"] = 0
        with running_broker(
            name, self.data / home, self.cores, settings=settings, sources=sources
        ) as broker:
            yield broker

    def start(self, name: str, home: str, sources: Path = SOURCES) -> RunningBroker:
        """The same, until the run ends."""
        return self.stack.enter_context(self.running(name, home, sources))

    def fill(self, broker: RunningBroker, how: Case, topic: str, size: int, messages: int) -> None:
        """Send this many messages of ``size`` bytes to a new topic. Raises LoadError."""
        create_topic(broker.port, topic, TOPIC_QUEUES)
        arguments = [*how.arguments(), "--topic", topic, "--size", str(size)]
        fill(broker, arguments, messages, core=self.cores.load)

    def forget(self, home: str) -> None:
        """Drop a stopped broker's files from the page cache."""
        drop_from_memory(self.data / home / "store")


def measure(setup: BrokerSetup, plan: Plan, old: Path | None, say: Say) -> list[tuple[str, ...]]:
    """The whole run; a row a figure. ``old``: the modules of an older build."""
    for name in (APACHE, OURS):
        say(f"filling {name}")
        with setup.running(name, name) as broker:
            fill_large(setup, broker, plan)
            if name == OURS:
                fill_small(setup, broker, plan)
            say(f"stopping {name}")
        setup.forget(name)
    say("starting both again")
    apache, ours = setup.start(APACHE, APACHE), setup.start(OURS, OURS)
    written = setup.start(OURS, "written")
    fill_small(setup, written, plan)
    small = {RESTARTED: ours, WRITTEN: written}
    if old is not None:
        with setup.running(OURS, "old", old) as broker:
            fill_small(setup, broker, plan)
        small[OLD_RESTARTED] = setup.start(OURS, "old", old)
        small[OLD_WRITTEN] = setup.start(OURS, "old-written", old)
        fill_small(setup, small[OLD_WRITTEN], plan)
    say("reading into the kernel's cache what is to come from there")
    for broker in (apache, ours):
        pulled_once(setup, broker, CACHED.topic)
    say(f"warming Apache's for {plan.apache_warm_s:.0f} s")
    warm_up(apache, (CACHED,), setup.cores, plan.apache_warm_s)
    warm_up(ours, (CACHED, SMALL), setup.cores, plan.our_warm_s)
    for name, broker in small.items():
        say(f"warming {name}")
        warm_up(broker, (SMALL,), setup.cores, plan.our_warm_s)
    cached = in_turn(setup, plan, CACHED, {OURS: ours, APACHE: apache}, say)
    smalls = in_turn(setup, plan, SMALL, small, say)
    disk = from_disk(setup, plan, {OURS: ours, APACHE: apache}, say)
    return rows(cached, smalls, disk)


def fill_large(setup: BrokerSetup, broker: RunningBroker, plan: Plan) -> None:
    for topic in plan.disk_topics():
        setup.fill(broker, FILL_ONE_BY_ONE, topic, DISK.body_size, plan.disk_messages)
    setup.fill(broker, FILL_ONE_BY_ONE, CACHED.topic, CACHED.body_size, plan.cached_messages)


def fill_small(setup: BrokerSetup, broker: RunningBroker, plan: Plan) -> None:
    setup.fill(broker, FILL, SMALL.topic, SMALL.body_size, plan.small_messages)


def in_turn(
    setup: BrokerSetup, plan: Plan, case: Case, brokers: dict[str, RunningBroker], say: Say
) -> Results:
    """Windows of one case on each broker, and again."""
    results: Results = {name: [] for name in brokers}
    for _ in range(plan.pairs):
        for name, broker in brokers.items():
            os.sync()
            load, _ = attempt(
                broker, case, core=setup.cores.load, seconds=plan.seconds, settle=SETTLE_S
            )
            results[name].append(load)
            say(sentence(case, name, load))
    return results


def from_disk(
    setup: BrokerSetup, plan: Plan, brokers: dict[str, RunningBroker], say: Say
) -> Results:
    """Each topic on the disk once through, by each broker."""
    results: Results = {name: [] for name in brokers}
    for topic in plan.disk_topics():
        for name, broker in brokers.items():
            os.sync()
            before = device_reads(broker.pid)
            load = pulled_once(setup, broker, topic)
            device = device_reads(broker.pid) - before
            say(f"{sentence(DISK, name, load)}, {device / load.seconds / MIB:.0f} MiB/s of device")
            if device < DEVICE_SHARE_MIN * load.bytes_in:
                raise LoadError(
                    f"{name} read {device / MIB:.0f} MiB from the device for "
                    f"{load.bytes_in / MIB:.0f} MiB of {topic}: the rest was in memory; give the "
                    "bench a directory on a disk, and nothing that reads its files"
                )
            results[name].append(load)
    return results


def pulled_once(setup: BrokerSetup, broker: RunningBroker, topic: str) -> LoadResult:
    """Every queue of a topic from its start to its end. Raises LoadError."""
    arguments = [*DISK.arguments(), "--topic", topic, "--once", "--watch", str(broker.pid)]
    out = generator.finish_load(generator.start_load(broker.port, arguments, core=setup.cores.load))
    return msgspec.json.decode(out, type=LoadResult)


def sentence(case: Case, name: str, load: LoadResult) -> str:
    return (
        f"{case.title}: {name} {load.rate:,.0f} messages/s, {load.cpu_us:.2f} µs CPU each, "
        f"p99 {load.p99_us:,.0f} µs"
    )


def rows(cached: Results, small: Results, disk: Results) -> list[tuple[str, ...]]:
    """Every figure that was measured, judged by its median pair."""
    compared = [
        ("1 KiB, from the cache: ours : Apache's", CACHED_GOALS, cached, OURS, APACHE),
        ("1 KiB, from the disk: ours : Apache's", DISK_GOALS, disk, OURS, APACHE),
        ("100 B: restarted : not", RESTARTED_GOALS, small, RESTARTED, WRITTEN),
    ]
    if OLD_RESTARTED in small:
        compared += [
            ("100 B, restarted: ours : old build", OLD_GOALS, small, RESTARTED, OLD_RESTARTED),
            ("100 B, not restarted: the same", OLD_WRITTEN_GOALS, small, WRITTEN, OLD_WRITTEN),
        ]
    return [
        row
        for title, goals, results, one, other in compared
        for row in judged(title, goals, list(zip(results[one], results[other], strict=True)))
    ]


def modules_of(checkout: Path) -> Path:
    """Return the directory of a checkout's modules. Raises click.BadParameter if there are none, or
    if the compiled module is missing, because a comparison without it says nothing."""
    sources = checkout.resolve() / "src"
    if not list((sources / "turbopump").glob("_hot*.so")):
        raise click.BadParameter(
            f"{checkout} has no compiled module src/turbopump/_hot*.so: run `python setup.py "
            "build_ext --inplace` there"
        )
    return sources


@click.command(help=__doc__)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=3.0,
    show_default=True,
    help="Length of a window from the cache.",
)
@click.option(
    "--old",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout of an older build, to compare our broker with.",
)
@click.option("--quick", is_flag=True, help="1 pair of 1 s, little warmed: not a result.")
def main(pairs: int, seconds: float, old: Path | None, quick: bool) -> None:
    plan = QUICK if quick else Plan(pairs=pairs, seconds=seconds)
    sources = None if old is None else modules_of(old)
    cores, begun = Cores.of_this_machine(), time.monotonic()
    generator.CACHE.mkdir(parents=True, exist_ok=True)
    calibration = [calibration_seconds(min(cores.broker))]
    with (
        tempfile.TemporaryDirectory(prefix="restart-", dir=generator.CACHE) as data,
        ExitStack() as stack,
    ):
        try:
            found = measure(
                BrokerSetup(Path(data), cores, stack),
                plan,
                sources,
                lambda line: click.echo(f"{time.monotonic() - begun:6.1f} s  {line}", err=True),
            )
        except (
            LoadError,
            TimeoutError,
            ChildProcessError,
            ApacheStartError,
            ToolMissingError,
        ) as problem:
            click.echo(f"bench.after_restart: {problem}", err=True)
            sys.exit(2)
    calibration.append(calibration_seconds(min(cores.broker)))
    click.echo(plain_table(("one : other", "", "one", "other", *HEADINGS[4:]), found))
    click.echo(
        f"{plan.pairs} pairs of {plan.seconds} s, {cores}; calibration loop "
        f"{calibration[0]:.3f} s and {calibration[1]:.3f} s",
        err=True,
    )
    sys.exit(exit_status(found))


if __name__ == "__main__":
    main()
