"""Results of a comparison as values, written to JSON, and read by the table and the plot. The
measuring is unknown here.

The one rule: brokers are compared within a pair (two neighbouring runs). A ratio is ours /
Apache's, and its spread is the lowest and the highest pair.
"""

from statistics import median

import msgspec

from bench.brokers import APACHE, OURS
from bench.generator import LoadResult
from bench.memory import Memory

METRICS = {
    "rate": "messages/s",
    "cpu_us": "broker CPU µs/message",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
}


class Run(msgspec.Struct, frozen=True):
    """One measured window on one broker. `idle_cpu_s` is what the other broker used meanwhile;
    `foreign_cores` how many cores were busy with anything but brokers and generator; `refused`
    counts the attempts before this one that the broker ended with "system busy" (flow control), as
    Apache's may when the disk stalls.
    """

    case: str
    pair: int
    broker: str
    load: LoadResult
    idle_cpu_s: float = 0.0
    foreign_cores: float = 0.0
    refused: int = 0

    def value(self, metric: str) -> float:
        return float(getattr(self.load, metric))


class Spread(msgspec.Struct, frozen=True):
    """The middle of several values and their lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


class Report(msgspec.Struct):
    """Everything that one `make bench` measured."""

    machine: dict[str, str]
    settings: dict[str, str]
    calibration_s: list[float] = []
    generator_rate: dict[str, float] = {}
    runs: list[Run] = []
    memory: dict[str, list[Memory]] = {}
    start_s: dict[str, list[float]] = {}

    def cases(self) -> list[str]:
        """Names of the cases that were run, in order."""
        return list(dict.fromkeys(run.case for run in self.runs))

    def spread(self, case: str, broker: str, metric: str) -> Spread | None:
        """Over all pairs; None when this broker was not run."""
        values = [
            run.value(metric) for run in self.runs if run.case == case and run.broker == broker
        ]
        return Spread.of(values) if values else None

    def ratio(self, case: str, metric: str) -> Spread | None:
        """Ours to Apache's, pair by pair; None when one of them was not run."""
        by_pair: dict[int, dict[str, float]] = {}
        for run in self.runs:
            if run.case == case:
                by_pair.setdefault(run.pair, {})[run.broker] = run.value(metric)
        ratios = [
            both[OURS] / both[APACHE]
            for both in by_pair.values()
            if len(both) == 2 and both[APACHE] > 0
        ]
        return Spread.of(ratios) if ratios else None

    def start_spread(self, broker: str) -> Spread | None:
        values = self.start_s.get(broker)
        return Spread.of(values) if values else None

    def anonymous_mib(self, broker: str) -> float | None:
        """The most that was seen under load."""
        seen = self.memory.get(broker)
        return max(memory.anonymous for memory in seen) / 2**20 if seen else None

    def resident_mib(self, broker: str) -> float | None:
        seen = self.memory.get(broker)
        return max(memory.resident for memory in seen) / 2**20 if seen else None


class Target(msgspec.Struct, frozen=True):
    """A figure to reach and what was measured; `reached` is None when it was not measured."""

    name: str
    wanted: str
    measured: str
    reached: bool | None


RATIO_TARGETS = (
    ("send 1 KiB, 64 outstanding: messages/s", "send-1k", "rate", ">=", 1.0),
    ("send 1 KiB, 64 outstanding: broker CPU per message", "send-1k", "cpu_us", "<=", 0.65),
    ("the same over TLS: messages/s", "tls-1k", "rate", ">=", 1.0),
    ("the same over TLS: broker CPU per message", "tls-1k", "cpu_us", "<=", 0.7),
    ("the same with SYNC_FLUSH: messages/s", "sync-flush", "rate", ">=", 1.5),
    ("pull 1 KiB: messages/s", "pull-32", "rate", ">=", 0.6),
    ("pull 1 KiB, interleaved: messages/s", "pull-interleaved", "rate", ">=", 1.2),
    ("pull 1 KiB, interleaved: broker CPU per message", "pull-interleaved", "cpu_us", "<=", 0.5),
    ("batches of 32: messages/s", "batch-32", "rate", ">=", 0.5),
    ("round trip p50", "round-trip", "p50_us", "<=", 0.8),
)
START_TARGET_S = 1.0
ANONYMOUS_TARGET_MIB = 80.0


def targets(report: Report) -> list[Target]:
    """The figures of the project's plan against this report; a ratio is judged by its median
    pair."""
    found = []
    for name, case, metric, sign, bound in RATIO_TARGETS:
        ratio = report.ratio(case, metric)
        reached = (
            None
            if ratio is None
            else ratio.median >= bound
            if sign == ">="
            else ratio.median <= bound
        )
        measured = (
            "-" if ratio is None else (f"{ratio.median:.2f} x ({ratio.low:.2f}-{ratio.high:.2f})")
        )
        found.append(Target(name, f"{sign} {bound} x", measured, reached))
    start, memory = report.start_spread(OURS), report.anonymous_mib(OURS)
    found.append(
        Target(
            "start to first acknowledged send (turbopump dev)",
            f"<= {START_TARGET_S:.0f} s",
            "-" if start is None else f"{start.median:.2f} s ({start.low:.2f}-{start.high:.2f})",
            None if start is None else start.median <= START_TARGET_S,
        )
    )
    found.append(
        Target(
            "anonymous memory of the broker under that load",
            f"<= {ANONYMOUS_TARGET_MIB:.0f} MiB",
            "-" if memory is None else f"{memory:.0f} MiB",
            None if memory is None else memory <= ANONYMOUS_TARGET_MIB,
        )
    )
    return found
