"""`python -m bench.many_topics`: costs of a broker with many topics.

The bench measures:

- disk, descriptors, maps and memory of a store with messages in 5,000 topics x 8 queues;
- CPU of a send to one topic alone, to one topic among the others, and to many in turn;
- memory and descriptors after a million messages, and after minutes of sends and pulls;
- seconds until a broker serves again, after a stop and after a kill.

Apache's broker (not with `--no-apache`) and an older build (`--old`) run beside ours. Apache's
opens a file for each queue, and serves nobody where its limit of open files is lower. The one rule:
each broker has the same table of topics, and each queue has the same number of messages before a
restart. Exit status 1: a figure was missed; 2: something failed.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
import msgspec
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench import generator
from bench.brokers import (
    APACHE,
    OURS,
    SOURCES,
    START_TIMEOUT,
    RunningBroker,
    launched_apache,
    start_ours,
)
from bench.cores import Cores, calibration_seconds, running_on
from bench.generator import CACHE, LoadError, LoadResult
from bench.memory import MIB, memory_of
from bench.remote import wait_for_first_send
from bench.table import exit_status, plain_table

QUEUES = 8
OLD = "old build"
STEM, SINGLE = "many", "single"
SEGMENT_SIZE = 256 * MIB
OUTSTANDING = 64

LOADS = ("one topic alone", "one topic among all", "round some topics", "round all topics")
CPU_GOALS = (1.15, 1.3, 2.0)
"""CPU of a send of the last three loads, in that of the first."""
DISK_GOAL_MIB, DESCRIPTORS_GOAL, MEMORY_GOAL_MIB = 1024, 1000, 1.0
FLAT_GOAL = 8
"""Descriptors more, beside those of new files of the log: of connections that come and go."""
APACHE_GOAL, OLD_GOAL = 1.0, 0.5
"""Maximum seconds of a restart, as a ratio to Apache's and to the older build's."""

PARTS = ("sends", "memory", "restarts")
SETTLE_S = 3.0
FAILURES = (LoadError, TimeoutError, ChildProcessError, ApacheStartError, ToolMissingError)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of a run.

    - ``topics``: number of topics; sends go round all of them, or round ``spread`` of them.
    - ``seconds``: length of a window.
    - ``descriptors``: the broker's limit of open files (0: that of this shell).
    """

    topics: int
    spread: int
    seconds: float
    rounds: int
    descriptors: int
    queue_file_size: int
    mixed_seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of an idle broker: anonymous bytes, open descriptors, and files of the log, each of
    which has a descriptor."""

    anonymous: int
    descriptors: int
    log_files: int


@dataclass(slots=True)
class Figures:
    """Figures of one broker: bytes and counts with a message in each queue; CPU microseconds per
    message and messages per second by load; seconds to serve again."""

    disk: int = 0
    descriptors: int = 0
    maps: int = 0
    anonymous: int = 0
    cpu: dict[str, list[float]] = field(default_factory=dict)
    rate: dict[str, list[float]] = field(default_factory=dict)
    stopped: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Contestant:
    """A broker with a home of its own, which is ended and started again on it. ``topics`` of the
    plan's names are in its table."""

    name: str
    home: Path
    plan: Plan
    cores: Cores
    topics: int
    sources: Path = SOURCES
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        write_topics(self.home / "store", self.topics)

    @contextmanager
    def running(self, *, kill: bool = False) -> Iterator[tuple[RunningBroker, float]]:
        """The broker, and how many seconds after its start it acknowledged a send. Ended by
        SIGTERM, or SIGKILL."""
        settings: dict[str, str | int | bool] = {
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "mappedFileSizeConsumeQueue": self.plan.queue_file_size,
            "flushDiskType": "ASYNC_FLUSH",
            "brokerFastFailureEnable": False,
            "scrubBytesPerSecond": 0,
        }
        with ExitStack() as stack:
            begun = time.monotonic()
            with running_on(self.cores.broker):
                if self.name == APACHE:
                    broker = launched_apache(stack, self.home, settings)
                else:
                    limit = limited(self.plan.descriptors)
                    broker = start_ours(stack, self.home, settings, self.sources, limit)
            wait_for_first_send(broker.port, "bench-first", begun + START_TIMEOUT, broker.complaint)
            yield broker, time.monotonic() - begun
            if kill:
                os.kill(broker.pid, signal.SIGKILL)

    def fill(self, broker: RunningBroker, messages: int) -> None:
        """Send small messages round all topics and queues. Raises LoadError."""
        arguments = [*load_arguments(self.topics, size=1), "--limit", str(messages)]
        generator.fill(broker.port, arguments, core=self.cores.load)

    def window(self, broker: RunningBroker, title: str, topics: int, say: Say) -> None:
        """Sends of 1 KiB, round ``topics`` topics; 0: to the single one. Raises LoadError."""
        load = generator.measure_load(
            broker.port,
            load_arguments(topics),
            core=self.cores.load,
            seconds=self.plan.seconds,
            watch=broker.pid,
        )
        self.figures.cpu.setdefault(title, []).append(load.cpu_us)
        self.figures.rate.setdefault(title, []).append(load.rate)
        say(
            f"{self.name}, {title}: {load.rate:,.0f} messages/s, {load.cpu_us:.2f} µs CPU each, "
            f"p99 {load.p99_us:,.0f} µs, longest {load.max_us:,.0f} µs"
        )

    def settled(self, broker: RunningBroker) -> Held:
        """Return the broker's resources after some seconds without a load."""
        time.sleep(SETTLE_S)
        return Held(
            memory_of(broker.pid).anonymous,
            len(os.listdir(f"/proc/{broker.pid}/fd")),
            len(os.listdir(self.home / "store" / "commitlog")),
        )

    def look(self, broker: RunningBroker, say: Say) -> None:
        """Take what a broker holds that has a message in each queue."""
        found = self.figures
        found.disk = blocks_of(self.home / "store" / "consumequeue")
        found.descriptors = len(os.listdir(f"/proc/{broker.pid}/fd"))
        found.maps = Path(f"/proc/{broker.pid}/maps").read_text().count("\n")
        found.anonymous = memory_of(broker.pid).anonymous
        say(
            f"{self.name}, {self.topics} topics: {found.disk / MIB:,.0f} MiB of queues on the "
            f"disk, {found.descriptors} descriptors, {found.maps} maps, "
            f"{found.anonymous / MIB:.0f} MiB anonymous"
        )


def write_topics(store: Path, count: int) -> None:
    """``config/topics.json`` with the topics of the loads, as Apache's broker saves it."""
    table = {
        name: {
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES,
        }
        for name in (SINGLE, *(f"{STEM}-{number}" for number in range(count)))
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": table})
    )


def load_arguments(topics: int, size: int = 1024) -> list[str]:
    """The load generator's options: sends round ``topics`` topics; 0: to the single one."""
    return [
        *("--mode", "send", "--broker", "broker-a", "--queues", str(QUEUES)),
        *("--topic", STEM if topics else SINGLE, "--topics", str(topics)),
        *("--connections", "1", "--outstanding", str(OUTSTANDING), "--size", str(size)),
    ]


def limited(descriptors: int) -> tuple[str, ...]:
    """Return the start of a command line that limits the number of open files."""
    return ("sh", "-c", 'ulimit -n "$0"; exec "$@"', str(descriptors)) if descriptors else ()


def blocks_of(directory: Path) -> int:
    """Bytes that a directory and all in it have on the disk."""
    total = 0
    for parent, _, names in os.walk(directory):
        total += os.stat(parent).st_blocks * 512
        total += sum(os.lstat(os.path.join(parent, name)).st_blocks * 512 for name in names)
    return total


def measure_sends(plan: Plan, alone: Contestant, among: Contestant, say: Say) -> None:
    """CPU of sends, ``alone`` with its one topic and ``among`` all the others, in turn; and what
    the second holds."""
    with alone.running() as (quiet, _), among.running() as (full, _):
        among.fill(full, plan.topics * QUEUES)
        among.look(full, say)
        for _ in range(plan.rounds):
            alone.window(quiet, LOADS[0], 0, say)
            among.window(full, LOADS[1], 0, say)
            among.window(full, LOADS[2], plan.spread, say)
            among.window(full, LOADS[3], plan.topics, say)


def measure_restarts(plan: Plan, contestants: list[Contestant], say: Say) -> None:
    """Seconds to serve again: each is filled, stopped, started, killed, started, in turn."""
    for one in contestants:
        with one.running() as (broker, _):
            one.fill(broker, one.topics * QUEUES * 4)
    for _ in range(plan.rounds):
        for one in contestants:
            with one.running(kill=True) as (broker, seconds):
                one.figures.stopped.append(seconds)
                say(f"{one.name}, {one.topics} topics: {seconds:.2f} s after a stop")
                one.fill(broker, one.topics * QUEUES)
            with one.running() as (_, seconds):
                one.figures.killed.append(seconds)
                say(f"{one.name}, {one.topics} topics: {seconds:.2f} s after a kill")


def measure_memory(plan: Plan, one: Contestant, messages: int, say: Say) -> list[tuple[str, ...]]:
    """Measure the growth of a broker's memory. It is measured after ``messages`` round the topics,
    compared with a tenth of them, and after sends and pulls side by side for ``mixed_seconds``."""
    with one.running() as (broker, _):
        one.fill(broker, max(messages // 10, one.topics * QUEUES))
        before = one.settled(broker)
        one.fill(broker, messages)
        after = one.settled(broker)
        say(f"{messages:,} messages: {before} before, {after} after")
        sent = mixed_load(plan, one, broker)
        last = one.settled(broker)
        say(f"{sent:,} messages more in {plan.mixed_seconds:.0f} s of mixed load: {last}")
    return memory_rows(before, after, last, messages, sent)


def mixed_load(plan: Plan, one: Contestant, broker: RunningBroker) -> int:
    """Sends round all topics beside pulls of one; how many messages were sent. Raises LoadError."""
    window = ["--seconds", str(plan.mixed_seconds), "--settle", "0"]
    pulls = ["--mode", "pull", "--topic", f"{STEM}-0", "--outstanding", str(QUEUES)]
    loads = [
        [*load_arguments(one.topics, size=1), "--outstanding", "16"],
        ["--broker", "broker-a", "--queues", str(QUEUES), "--size", "1", *pulls],
    ]
    sending, pulling = (
        generator.start_load(broker.port, [*load, *window], core=one.cores.load) for load in loads
    )
    patience = plan.mixed_seconds + 60
    sent = msgspec.json.decode(generator.finish_load(sending, patience), type=LoadResult)
    generator.finish_load(pulling, patience)
    return sent.messages


def memory_rows(
    before: Held, after: Held, last: Held, messages: int, sent: int
) -> list[tuple[str, ...]]:
    """Judged: memory for each million of ``messages``, the same with those of the mixed load that
    followed, and descriptors that no file of the log has."""
    rows = []
    for what, held, count in (
        ("a million messages", after, messages),
        ("a million messages, mixed load behind them", last, messages + sent),
    ):
        more = (held.anonymous - before.anonymous) / MIB / count * 1e6
        title = f"anonymous memory for {what}, MiB"
        rows.append(verdict(title, more, MEMORY_GOAL_MIB, f"{more:.2f}"))
    files = last.log_files - before.log_files
    opened = last.descriptors - before.descriptors - files
    text = f"{opened:+d}, and {files:+d} files of the log"
    rows.append(verdict("descriptors more, at the end", opened, FLAT_GOAL, text))
    return rows


def verdict(what: str, measured: float, goal: float, text: str) -> tuple[str, ...]:
    return what, text, f"<= {goal:g}", "reached" if measured <= goal else "MISSED"


def send_rows(alone: Figures, among: Figures, name: str = OURS) -> list[tuple[str, ...]]:
    """CPU of sends compared with those to one topic alone, and what many queues hold. Goals are
    ours alone."""
    one = median(alone.cpu[LOADS[0]])
    rows = []
    for load, goal in zip(LOADS[1:], CPU_GOALS, strict=True):
        each = median(among.cpu[load])
        text = f"{each / one:.2f} ({each:.1f} µs : {one:.1f} µs)"
        title = f"CPU of a send, {load}: one topic alone"
        rows.append(verdict(title, each / one, goal, text))
    disk = among.disk / MIB
    rows.append(verdict("queues on the disk, MiB", disk, DISK_GOAL_MIB, f"{disk:,.0f}"))
    rows.append(
        verdict("descriptors", among.descriptors, DESCRIPTORS_GOAL, f"{among.descriptors:,}")
    )
    return rows if name == OURS else [(f"{name}: {row[0]}", row[1], "", "") for row in rows]


def restart_rows(ours: Figures, other: Figures, name: str, goal: float) -> list[tuple[str, ...]]:
    """Seconds to serve again, ours and another's of the same rounds."""
    rows = []
    for end, mine, theirs in (
        ("a stop", ours.stopped, other.stopped),
        ("a kill", ours.killed, other.killed),
    ):
        ratio = median(one / two for one, two in zip(mine, theirs, strict=True))
        text = f"{ratio:.2f} ({median(mine):.2f} s : {median(theirs):.2f} s)"
        rows.append(verdict(f"start after {end}, ours : {name}", ratio, goal, text))
    return rows


@click.command(help=__doc__)
@click.option("--topics", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--spread", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=3.0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--messages", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--descriptors", type=click.IntRange(0), default=20_000, show_default=True)
@click.option("--queue-file-size", type=click.IntRange(20), default=6_000_000, show_default=True)
@click.option("--mixed-seconds", type=click.FloatRange(0.5), default=600.0, show_default=True)
@click.option(
    "--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this; repeatable."
)
@click.option(
    "--old",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The src directory of an older build, restarted beside this one.",
)
@click.option("--no-apache", is_flag=True, help="Only our broker.")
def main(
    topics: int,
    spread: int,
    seconds: float,
    rounds: int,
    messages: int,
    descriptors: int,
    queue_file_size: int,
    mixed_seconds: float,
    parts: tuple[str, ...],
    old: Path | None,
    no_apache: bool,
) -> None:
    plan = Plan(
        topics, min(spread, topics), seconds, rounds, descriptors, queue_file_size, mixed_seconds
    )
    cores = Cores.of_this_machine()
    begun = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - begun:6.1f} s  {line}", err=True)

    CACHE.mkdir(parents=True, exist_ok=True)
    say(f"calibration loop {calibration_seconds(min(cores.broker)):.3f} s, {cores}")
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="data-", dir=CACHE) as data:
        home = Path(data)
        try:
            if not parts or "sends" in parts:
                for name in (OURS,) if no_apache else (OURS, APACHE):
                    alone = Contestant(name, home / f"{name}-alone", plan, cores, 0)
                    among = Contestant(name, home / f"{name}-among", plan, cores, plan.topics)
                    try:
                        measure_sends(plan, alone, among, say)
                    except LoadError as problem:
                        if name == OURS:
                            raise
                        rows.append((f"{name}: sends", f"does not serve: {problem}", "", ""))
                    else:
                        rows += send_rows(alone.figures, among.figures, name)
            if not parts or "memory" in parts:
                one = Contestant(OURS, home / "memory", plan, cores, plan.spread)
                rows += measure_memory(plan, one, messages, say)
            if (not parts or "restarts" in parts) and not no_apache:
                ours = Contestant(OURS, home / "ours", plan, cores, plan.spread)
                theirs = Contestant(APACHE, home / "apache", plan, cores, plan.spread)
                measure_restarts(plan, [ours, theirs], say)
                rows += restart_rows(ours.figures, theirs.figures, "Apache's", APACHE_GOAL)
            if (not parts or "restarts" in parts) and old is not None:
                ours = Contestant(OURS, home / "new", plan, cores, plan.topics)
                before = Contestant(OLD, home / "old", plan, cores, plan.topics, old)
                measure_restarts(plan, [ours, before], say)
                rows += restart_rows(ours.figures, before.figures, OLD, OLD_GOAL)
        except FAILURES as problem:
            click.echo(f"bench: {problem}", err=True)
            sys.exit(2)
    say(f"calibration loop {calibration_seconds(min(cores.broker)):.3f} s")
    click.echo(plain_table((f"{topics} topics x {QUEUES}", "measured", "wanted", ""), rows))
    sys.exit(exit_status(rows))


if __name__ == "__main__":
    main()
