"""The course of a comparison: calibrate, time the starts, warm up, then each case on the one broker
and the other in turn.

The one rule: A B A B. Both brokers run all the time and only one has load, so that a slow minute of
the machine meets both; dirty pages are written back before each window. A failure of a run ends the
comparison, but for "system busy", which is counted.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.interop.apache import NEWEST

from bench import generator
from bench.brokers import (
    APACHE,
    APACHE_JVM,
    HEAP,
    OURS,
    RunningBroker,
    running_broker,
    seconds_to_first_send,
)
from bench.cases import CASES, FILLS, PULL_FILL, TOPIC_QUEUES, Case, fill_arguments
from bench.cores import Cores, calibration_seconds, held_to
from bench.cpu_time import CpuMeter
from bench.generator import LoadError, LoadResult
from bench.memory import memory_of
from bench.remote import create_topic
from bench.results import Report, Run

BUSY = '"code":2,'  # flow control: the broker's own word for "not now"
BUSY_ATTEMPTS = 3
FILL_STEP = 16_000
"""Messages that one load of a fill sends; whole rounds of the queues and of batches."""
FILL_ATTEMPTS = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases of a run, and the seconds of each."""

    cases: tuple[Case, ...] = CASES
    brokers: tuple[str, ...] = (APACHE, OURS)
    pairs: int = 3
    seconds: float = 5.0
    apache_warm_s: float = 45.0
    our_warm_s: float = 5.0
    starts: int = 3

    def warm_s(self, broker: str) -> float:
        return self.apache_warm_s if broker == APACHE else self.our_warm_s


def compare(plan: Plan, say: Callable[[str], None]) -> Report:
    """Run the whole plan. Raises LoadError, TimeoutError, and what the launchers raise."""
    cores = Cores.of_this_machine()
    report = Report(machine=machine(), settings=settings(plan, cores))
    generator.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-", dir=generator.CACHE) as data:
        directory = Path(data)
        report.calibration_s.append(calibration_seconds(min(cores.broker)))
        say(f"calibration loop {report.calibration_s[0]:.3f} s, {cores}")
        measure_generator(report, cores, say)
        measure_starts(plan, report, cores, directory, say)
        for sync_flush in (False, True):
            cases = tuple(case for case in plan.cases if case.sync_flush == sync_flush)
            if cases:
                name = "sync" if sync_flush else "async"
                measure_cases(plan, cases, report, cores, directory / name, say)
        report.calibration_s.append(calibration_seconds(min(cores.broker)))
    return report


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def settings(plan: Plan, cores: Cores) -> dict[str, str]:
    return {
        "pairs": str(plan.pairs),
        "seconds": str(plan.seconds),
        "cores": str(cores),
        "apache": f"{NEWEST}, heap {HEAP}, warmed {plan.apache_warm_s:.0f} s, "
        f"{' '.join(APACHE_JVM)}",
    }


def measure_generator(report: Report, cores: Cores, say: Callable[[str], None]) -> None:
    """Measure the generator's rate against a peer that only answers."""
    for name in ("send-1k", "send-128"):
        case = next(case for case in CASES if case.name == name)
        with generator.echo_server(min(cores.broker)) as port:
            result = generator.measure_load(
                port, case.arguments(), core=cores.load, seconds=1.0, settle=0.2
            )
        report.generator_rate[name] = result.rate
        say(f"generator alone, {case.title}: {result.rate:,.0f} messages/s")


def measure_starts(
    plan: Plan, report: Report, cores: Cores, directory: Path, say: Callable[[str], None]
) -> None:
    for turn in range(plan.starts):
        for broker in plan.brokers:
            seconds = seconds_to_first_send(broker, directory / f"start-{turn}-{broker}", cores)
            report.start_s.setdefault(broker, []).append(seconds)
            say(f"{broker}: first send acknowledged {seconds:.2f} s after the start")


def measure_cases(
    plan: Plan,
    cases: tuple[Case, ...],
    report: Report,
    cores: Cores,
    directory: Path,
    say: Callable[[str], None],
) -> None:
    with ExitStack() as stack:
        brokers = {}
        for name in plan.brokers:
            start = running_broker(name, directory / name, cores, sync_flush=cases[0].sync_flush)
            brokers[name] = stack.enter_context(start)
            prepare(brokers[name], cases, cores)
        for name, broker in brokers.items():
            say(f"{name}: warming up for {plan.warm_s(name):.0f} s")
            warm_up(broker, cases, cores, plan.warm_s(name))
        for case in cases:
            for pair in range(plan.pairs):
                for broker in brokers.values():
                    run = measure_run(case, pair, broker, brokers, cores, plan.seconds, say)
                    report.runs.append(run)
                    say(sentence(run))
            if case.name == "send-1k":
                measure_memory(case, brokers, report, cores, say)


def prepare(broker: RunningBroker, cases: tuple[Case, ...], cores: Cores) -> None:
    for topic in {case.topic for case in cases}:
        create_topic(broker.port, topic, TOPIC_QUEUES)
    for topic in FILLS:
        if any(case.topic == topic for case in cases):
            fill(broker, fill_arguments(topic), PULL_FILL, core=cores.load)


def fill(broker: RunningBroker, arguments: Sequence[str], messages: int, *, core: int) -> None:
    """Send this many messages in short loads. A load that the broker refuses as busy is repeated;
    its stored messages stay in the topic. Raises LoadError."""
    refused = 0
    while messages > 0:
        limit = str(min(messages, FILL_STEP))
        try:
            messages -= generator.fill(broker.port, [*arguments, "--limit", limit], core=core)
        except LoadError as problem:
            refused += 1
            if BUSY not in str(problem) or refused == FILL_ATTEMPTS:
                raise LoadError(f"{broker.name}, filling a topic: {problem}") from problem


def warm_up(broker: RunningBroker, cases: tuple[Case, ...], cores: Cores, seconds: float) -> None:
    """All cases in short turns, so that every path is compiled."""
    turn = max(1.0, seconds / 3 / len(cases))
    stop = time.monotonic() + seconds
    for case in endless(cases):
        attempt(broker, case, core=cores.load, seconds=turn, settle=0.0)
        if time.monotonic() >= stop:
            return


def endless(cases: tuple[Case, ...]) -> Iterator[Case]:
    while True:
        yield from cases


def attempt(
    broker: RunningBroker, case: Case, *, core: int, seconds: float, settle: float
) -> tuple[LoadResult, int]:
    """The window, and how often the broker refused it as busy before. Raises LoadError for anything
    else."""
    for refused in range(BUSY_ATTEMPTS):
        try:
            load = generator.measure_load(
                broker.port,
                case.arguments(),
                core=core,
                seconds=seconds,
                settle=settle,
                watch=broker.pid,
            )
            return load, refused
        except LoadError as problem:
            if BUSY not in str(problem) or refused == BUSY_ATTEMPTS - 1:
                raise LoadError(f"{broker.name}, {case.name}: {problem}") from problem
    raise AssertionError("unreachable")


def measure_run(
    case: Case,
    pair: int,
    broker: RunningBroker,
    brokers: Mapping[str, RunningBroker],
    cores: Cores,
    seconds: float,
    say: Callable[[str], None],
) -> Run:
    os.sync()
    others = [other.pid for other in brokers.values() if other.pid != broker.pid]
    meter = CpuMeter((broker.pid, *others))
    with held_to(broker.pid, cores.apart if case.apart else cores.broker):
        load, refused = attempt(broker, case, core=cores.load, seconds=seconds, settle=0.5)
    if refused:
        say(f"{broker.name} refused {case.name} {refused} times as busy")
    idle = round(sum(map(meter.seconds_of, others)), 3)
    return Run(case.name, pair, broker.name, load, idle, round(meter.foreign_cores(), 3), refused)


def measure_memory(
    case: Case,
    brokers: Mapping[str, RunningBroker],
    report: Report,
    cores: Cores,
    say: Callable[[str], None],
) -> None:
    """In a run of its own, because reading the page tables holds the process up."""
    for broker in brokers.values():
        window = [*case.arguments(), "--seconds", "2", "--settle", "0"]
        load = generator.start_load(broker.port, window, core=cores.load)
        try:
            time.sleep(1.0)
            memory = memory_of(broker.pid)
        finally:
            generator.finish_load(load)
        report.memory.setdefault(broker.name, []).append(memory)
        say(
            f"{broker.name}: {memory.anonymous / 2**20:.0f} MiB anonymous, "
            f"{memory.resident / 2**20:.0f} MiB resident"
        )


def sentence(run: Run) -> str:
    load = run.load
    return (
        f"{run.case} {run.pair + 1} {run.broker}: {load.rate:,.0f} messages/s, {load.cpu_us:.2f} "
        "µs CPU each, "
        f"p50 {load.p50_us:.0f} µs, p99 {load.p99_us:.0f} µs, generator "
        f"{load.generator_cpu_s / load.seconds:.0%} of its core"
    )
