"""`python -m bench.replicas`: a master and its slave, ours beside Apache's.

`sync`: a SYNC_MASTER that waits for its slave (`inSyncReplicas=2`), 64 sends of 1 KiB outstanding;
`group`: the same pair beside a group of two replicas under a controller, ours alone;
`async`: what a slave costs an ASYNC_MASTER, each master with and without one in turn; `behind`: a
slave that is 1 GiB behind, and what its master's senders feel meanwhile; `tables`: what copying
5,000 topics and 1,000 groups costs while nothing changes (ours alone). All of them, unless some are
named. Windows alternate, A B A B. CPU is of the master's process. Exit status 1: a goal was missed,
which on a busy machine says little but for CPU.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click
from tests.interop.apache import NEWEST, ApacheCluster, properties_text
from tests.ports import free_ports

from bench.brokers import (
    APACHE,
    APACHE_JVM,
    HEAP,
    OURS,
    SEGMENT_SIZE,
    RunningBroker,
    spawn,
    start_apache,
    start_ours,
)
from bench.cases import CASES, TOPIC_QUEUES
from bench.cores import Cores, running_on
from bench.cpu_time import process_seconds
from bench.generator import CACHE, LoadResult, fill, measure_load
from bench.remote import ask, create_topic, wait_for_first_send
from bench.table import exit_status, plain_table

START_S = 180.0
HA_STATUS = 907
SEND = next(case for case in CASES if case.name == "send-1k")
GIB = 1 << 30
TOPICS, GROUPS = 5_000, 1_000
SYNC_RATE_MIN, SYNC_CPU_MAX, SYNC_P50_MAX = 2.0, 0.5, 0.5
"""SYNC_MASTER, of Apache's."""
GROUP_CPU_MAX = 1.1
"""CPU of a message in controller mode, of SYNC_MASTER with the same acknowledgements."""
SLAVE_CPU_MAX = 1.15
"""CPU of a message with a slave, of that without one."""
CATCH_UP_MIN, BUSY_P99_MAX = 1.0, 1.3
"""A slave far behind: its rate, of Apache's; p99 of the master's senders meanwhile, of that before.
"""
TABLES_CPU_MAX = 0.01
"""Maximum share of a core, on each side."""
PARTS = ("sync", "group", "async", "behind", "tables")
BATCH = ("--mode", "batch", "--count", "32", "--outstanding", "4")


@dataclass(frozen=True, slots=True)
class Pair:
    """A master, and how to have a slave of it for as long as a block lasts."""

    master: RunningBroker
    directory: Path
    ha_port: int
    controller: str | None = None

    @contextmanager
    def slave(self) -> Iterator[int]:
        """The slave's process; it copies what it has not yet."""
        settings: dict[str, str | int | bool] = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "flushDiskType": "ASYNC_FLUSH",
        }
        home = self.directory / "slave"
        with ExitStack() as stack:
            if self.master.name == APACHE:
                yield self._apache_slave(stack, home, settings)
            else:
                yield self._our_slave(stack, home, settings)

    def _apache_slave(
        self, stack: ExitStack, home: Path, settings: dict[str, str | int | bool]
    ) -> int:
        # Apache's 5.3.3 sets haMasterAddress before there is a client to set it in: it is lost, and
        # the slave would copy nothing. Without it the name server says where the master is.
        cluster = ApacheCluster(
            NEWEST,
            directory=home,
            heap=HEAP,
            jvm_options=APACHE_JVM,
            broker_config={**settings, "namesrvAddr": self.master.namesrv},
        )
        stack.callback(cluster.kill)
        cluster.write_configuration()
        cluster.start_broker(wait=False)
        return cluster.broker_pid

    def _our_slave(
        self, stack: ExitStack, home: Path, settings: dict[str, str | int | bool]
    ) -> int:
        home.mkdir(parents=True, exist_ok=True)
        conf = home / "broker.conf"
        own: dict[str, str | int | bool] = {
            "brokerName": "broker-a",
            "listenPort": free_ports(-2, 0, 1),
            "storePathRootDir": str(home / "store"),
        }
        if self.controller is None:
            own["haMasterAddress"] = f"127.0.0.1:{self.ha_port}"
        else:  # it gives the role
            del settings["brokerRole"], settings["brokerId"]
            own |= group_settings(self.controller)
        conf.write_text(properties_text({**own, **settings}))
        where = ("-c", str(conf), "-n", self.master.namesrv)
        return spawn(stack, home, "broker", *where).pid

    def behind(self) -> int | None:
        """By how many bytes the slave is behind; None: there is none."""
        body = json.loads(ask(self.master.port, HA_STATUS))
        there = body.get("haConnectionInfo") or []
        return max((one["diff"] for one in there), default=None)

    def wait_until_behind(self, most: int) -> None:
        """Until a slave is there and at most so far behind."""
        deadline = time.monotonic() + START_S
        while (behind := self.behind()) is None or behind > most:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the slave of {self.master.name} is {behind} bytes behind")
            time.sleep(0.02)

    def measure(self, cores: Cores, seconds: float, *more: str) -> LoadResult:
        """One window of sends."""
        os.sync()
        arguments = [*SEND.arguments(), *more]
        return measure_load(
            self.master.port, arguments, core=cores.load, seconds=seconds, watch=self.master.pid
        )


@contextmanager
def pair_of(
    name: str, directory: Path, cores: Cores, **settings: str | int | bool
) -> Iterator[Pair]:
    """A master of one kind, without a slave yet; not waited for."""
    directory = directory / name
    with ExitStack() as stack, running_on(cores.broker):
        start = start_apache if name == APACHE else start_ours
        # on a busy machine neither refuses what has waited
        more = {
            "flushDiskType": "ASYNC_FLUSH",
            "brokerFastFailureEnable": False,
            "brokerIP2": "127.0.0.1",
            **settings,
        }
        master = start(stack, directory / "master", more)
        yield Pair(master, directory, master.port + 1)


def ready(pair: Pair) -> None:
    """A send is acknowledged, and the topic is there."""
    until = time.monotonic() + START_S
    wait_for_first_send(pair.master.port, "bench-first", until, pair.master.complaint)
    create_topic(pair.master.port, SEND.topic, TOPIC_QUEUES)


def sync(directory: Path, cores: Cores, pairs: int, seconds: float) -> Iterator[tuple[str, ...]]:
    """Rows of both pairs, and of their ratios."""
    found: dict[str, list[LoadResult]] = {APACHE: [], OURS: []}
    role: dict[str, str | int] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    with ExitStack() as stack:
        both = []
        for name in found:
            pair = stack.enter_context(pair_of(name, directory, cores, **role))
            stack.enter_context(pair.slave())
            ready(pair)
            both.append(pair)
        for pair in both:
            pair.measure(cores, 10.0 if pair.master.name == APACHE else 2.0)
        for _ in range(pairs):
            for pair in both:
                found[pair.master.name].append(pair.measure(cores, seconds))
    for name, results in found.items():
        yield row(f"SYNC_MASTER {name}", results)
    limits = (SYNC_RATE_MIN, SYNC_CPU_MAX, SYNC_P50_MAX)
    yield ratios("ours / Apache's", found[APACHE], found[OURS], limits)


def group_settings(controller: str) -> dict[str, str | int | bool]:
    """Settings of a replica that waits for one other."""
    return {"enableControllerMode": True, "controllerAddr": controller, "minInSyncReplicas": 2}


def in_group(
    directory: Path, cores: Cores, pairs: int, seconds: float
) -> Iterator[tuple[str, ...]]:
    """Rows of a SYNC_MASTER and of the master of a group, each with one other broker."""
    plain, grouped = list[LoadResult](), list[LoadResult]()
    role: dict[str, str | int] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    with ExitStack() as stack:
        one = stack.enter_context(pair_of(OURS, directory / "plain", cores, **role))
        stack.enter_context(one.slave())
        ready(one)
        home = directory / "controller"
        home.mkdir(parents=True)
        conf, port = home / "controller.conf", free_ports(0)
        conf.write_text(properties_text({"listenPort": port}))
        spawn(stack, home, "controller", "-c", str(conf), "--data", str(home / "data"))
        controller = f"127.0.0.1:{port}"
        settings = group_settings(controller)
        pair = stack.enter_context(pair_of(OURS, directory / "group", cores, **settings))
        two = replace(pair, controller=controller)
        until_replica_leads(two)
        stack.enter_context(two.slave())
        ready(two)
        for master in (one, two):
            master.measure(cores, 2.0)
        for _ in range(pairs):
            plain.append(one.measure(cores, seconds))
            grouped.append(two.measure(cores, seconds))
    yield row("SYNC_MASTER, one slave", plain)
    yield row("controller mode, two replicas", grouped)
    yield ratios("controller mode / SYNC_MASTER", plain, grouped, (None, GROUP_CPU_MAX, None))


def until_replica_leads(pair: Pair) -> None:
    """Wait until the first replica is the master, so that the second one is not."""
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError, RuntimeError, ValueError):
            if json.loads(ask(pair.master.port, HA_STATUS)).get("master"):
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the first replica does not become the master")
        time.sleep(0.05)


def asynchronous(
    directory: Path, cores: Cores, pairs: int, seconds: float, names: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Rows of each master with a slave and without one: two masters of a kind, one of them with."""
    for name in names:
        alone, with_slave = list[LoadResult](), list[LoadResult]()
        with ExitStack() as stack:
            one = stack.enter_context(pair_of(name, directory / "alone", cores))
            two = stack.enter_context(pair_of(name, directory / "with", cores))
            stack.enter_context(two.slave())
            for pair in (one, two):
                ready(pair)
            two.wait_until_behind(1 << 20)
            for pair in (one, two):
                pair.measure(cores, 10.0 if name == APACHE else 2.0)
            for _ in range(pairs):
                alone.append(one.measure(cores, seconds))
                with_slave.append(two.measure(cores, seconds))
        yield row(f"ASYNC_MASTER {name}, alone", alone)
        yield row(f"ASYNC_MASTER {name}, one slave", with_slave)
        limits = (None, SLAVE_CPU_MAX if name == OURS else None, None)
        yield ratios(f"with / without, {name}", alone, with_slave, limits)


def far_behind(
    directory: Path, cores: Cores, names: Sequence[str], seconds: float
) -> Iterator[tuple[str, ...]]:
    """A slave starts with 1 GiB to copy; then how fast, and what senders feel meanwhile."""
    rates: dict[str, float] = {}
    for name in names:
        with pair_of(name, directory, cores) as pair:
            ready(pair)
            limit = ("--limit", str(GIB // 1024))
            fill(pair.master.port, [*SEND.arguments(), *BATCH, *limit], core=cores.load)
            calm = pair.measure(cores, seconds, "--outstanding", "8")
            with pair.slave():
                pair.wait_until_behind(GIB * 2)
                begun, first = time.monotonic(), pair.behind() or 0
                busy = pair.measure(cores, min(seconds, 2.0), "--outstanding", "8")
                pair.wait_until_behind(1 << 20)
                rates[name] = first / (time.monotonic() - begun) / 1e6
        slower = busy.p99_us / calm.p99_us
        good = slower <= BUSY_P99_MAX and rates[name] >= CATCH_UP_MIN * rates.get(APACHE, 0.0)
        yield (
            f"1 GiB behind, {name}",
            f"{rates[name]:,.0f} MB/s",
            "",
            f"p99 {calm.p99_us / 1e3:.2f} → {busy.p99_us / 1e3:.2f} ms ({slower:.2f} ×)",
            f"≥ {CATCH_UP_MIN:g} × Apache's, p99 ≤ {BUSY_P99_MAX:g} ×" if name == OURS else "",
            verdict(good) if name == OURS else "",
        )


def tables(directory: Path, cores: Cores, seconds: float) -> Iterator[tuple[str, ...]]:
    """Measure the cost of both sides while nothing changes."""
    with pair_of(OURS, directory, cores) as pair:
        ready(pair)
        port = pair.master.port
        with ThreadPoolExecutor(32) as threads:  # each waits for the disk
            list(threads.map(lambda one: create_topic(port, f"topic-{one}", 1), range(TOPICS)))
            list(threads.map(lambda one: create_group(port, f"group-{one}"), range(GROUPS)))
        with pair.slave() as slave:
            pair.wait_until_behind(0)
            time.sleep(10.0)  # until it has copied them
            pids = {"master": pair.master.pid, "slave": slave}
            before = {name: process_seconds(pid) for name, pid in pids.items()}
            time.sleep(seconds)
            took = {name: process_seconds(pid) - before[name] for name, pid in pids.items()}
    for name, cpu in took.items():
        yield (
            f"{TOPICS} topics, {GROUPS} groups, {name}",
            "",
            f"{cpu / seconds:.2%} of a core",
            "",
            f"≤ {TABLES_CPU_MAX:.0%}",
            verdict(cpu / seconds <= TABLES_CPU_MAX),
        )


def create_group(port: int, name: str) -> None:
    body = json.dumps({"groupName": name, "consumeEnable": True, "retryQueueNums": 1}).encode()
    ask(port, 200, body)


def row(title: str, results: list[LoadResult]) -> tuple[str, ...]:
    def middle(of: Callable[[LoadResult], float]) -> float:
        return statistics.median(map(of, results))

    return (
        title,
        f"{middle(lambda one: one.rate):,.0f}/s",
        f"{middle(lambda one: one.cpu_us):.1f} µs",
        f"p50 {middle(lambda one: one.p50_us) / 1e3:.2f} ms",
        "",
        "",
    )


def ratios(
    title: str,
    one: list[LoadResult],
    other: list[LoadResult],
    limits: tuple[float | None, float | None, float | None],
) -> tuple[str, ...]:
    """Return the ratios of pairs of windows that followed each other: rate, CPU and p50. ``limits``
    of the medians: the lowest rate, and the highest of the others; None: no goal."""
    figures: tuple[Callable[[LoadResult], float], ...] = (
        lambda load: load.rate,
        lambda load: load.cpu_us,
        lambda load: load.p50_us,
    )
    cells, wanted, good = list[str](), list[str](), True
    for figure, limit, sign in zip(figures, limits, "≥≤≤", strict=True):
        found = sorted(figure(b) / figure(a) for a, b in zip(one, other, strict=True))
        middle = statistics.median(found)
        cells.append(f"{middle:.2f} × ({found[0]:.2f}–{found[-1]:.2f})")
        if limit is not None:
            wanted.append(f"{sign} {limit:g}")
            good = good and (middle >= limit if sign == "≥" else middle <= limit)
    return (title, *cells, ", ".join(wanted), verdict(good) if wanted else "")


def verdict(good: bool) -> str:
    return "reached" if good else "MISSED"


@click.command(help=__doc__)
@click.argument("what", type=click.Choice(PARTS), nargs=-1)
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=3.0, show_default=True)
@click.option("--ours-only", is_flag=True, help="Only ours: for `async` and `behind`.")
def main(what: tuple[str, ...], pairs: int, seconds: float, ours_only: bool) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    names = (OURS,) if ours_only else (APACHE, OURS)
    cores = Cores.of_this_machine()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="replicas-") as home:
        directory = Path(home)
        parts = {
            "group": lambda: in_group(directory / "group", cores, pairs, seconds),
            "sync": lambda: sync(directory / "sync", cores, pairs, seconds),
            "async": lambda: asynchronous(directory / "async", cores, pairs, seconds, names),
            "behind": lambda: far_behind(directory / "behind", cores, names, seconds),
            "tables": lambda: tables(directory / "tables", cores, max(seconds, 20.0)),
        }
        load = os.getloadavg()[0]
        rows = [row for part in what or PARTS for row in parts[part]()]
    head = ("", "rate", "CPU of the master", "latency", "wanted", "")
    click.echo(plain_table(head, rows))
    click.echo(f"load of the machine before: {load:.1f}")
    sys.exit(exit_status(rows))


if __name__ == "__main__":
    main()
