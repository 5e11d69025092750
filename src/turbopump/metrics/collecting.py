"""Values of all metrics at one time, for exporters that send or write them at intervals.

The values are read in steps, because some tables are large. With ``in_delta``, a counter and a
histogram have only their growth since the last report that arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from turbopump.metrics.family import Distribution, Family, Kind, Metrics, Sample
from turbopump.metrics.tables import Values

SAMPLES_A_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class Report:
    """Samples of all metrics at the time ``at_ns``, in nanoseconds since 1970.

    - ``since_ns``: begin of the time that counters and histograms cover.
    - ``in_delta``: True if these have only their growth since the report before.
    - ``totals``: whole values of the counters and histograms. The next growth is counted from here.
    """

    labels: dict[str, str]
    since_ns: int
    at_ns: int
    in_delta: bool
    families: list[tuple[Family, list[Sample]]]
    totals: dict[tuple[str, Values], float | Distribution]


class Collector:
    """Reads all metrics of a server, one report after another."""

    def __init__(
        self, metrics: Metrics, *, in_delta: bool = False, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._metrics = metrics
        self._in_delta = in_delta
        self._now_ns = now_ns
        self._since_ns = now_ns()
        self._arrived: dict[tuple[str, Values], float | Distribution] = {}

    def steps(self) -> Generator[None, None, Report]:
        """Read all metrics in steps, and return the report."""
        families: list[tuple[Family, list[Sample]]] = []
        totals: dict[tuple[str, Values], float | Distribution] = {}
        for family, reads in self._metrics.families():
            samples: list[Sample] = []
            grows = self._in_delta and family.kind is not Kind.GAUGE
            for read in reads:
                for sample in read():
                    if sample is not None:
                        values, value = sample
                        if not isinstance(value, Distribution):
                            sample = values, _number(value)
                        if grows:
                            key = family.name, values
                            totals[key] = value
                            sample = values, growth(value, self._arrived.get(key))
                        samples.append(sample)
                    if sample is None or len(samples) % SAMPLES_A_STEP == 0:
                        yield
            families.append((family, samples))
            yield
        labels = self._metrics.labels
        return Report(labels, self._since_ns, self._now_ns(), self._in_delta, families, totals)

    def note_arrival(self, report: Report) -> None:
        """Note that a report has arrived. In delta, the next report has the growth since then.

        A report that did not arrive is not noted, so its growth is in the next one.
        """
        if self._in_delta:
            self._arrived = report.totals
            self._since_ns = report.at_ns


def _number(value: float) -> float:
    return int(value) if isinstance(value, int) else value  # True and False are numbers too


def growth(
    value: float | Distribution, before: float | Distribution | None
) -> float | Distribution:
    """Return how much a counter or histogram grew.

    A smaller value than before means that the series was deleted and has begun again at zero.
    """
    if isinstance(value, Distribution):
        if not isinstance(before, Distribution) or sum(value.counts) < sum(before.counts):
            return value
        counts = [now - then for now, then in zip(value.counts, before.counts, strict=True)]
        return Distribution(counts, value.total - before.total)
    if before is None or isinstance(before, Distribution) or value < before:
        return value
    return value - before
