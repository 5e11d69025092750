"""Metric families: name, type and labels of a metric, and the samples that a read returns.

A family is declared once, as a constant of the module that has its values. A read is a function
that returns the samples. It is called at each scrape, so that nothing is computed before. The forms
that monitors read are unknown here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.StrEnum):
    """Type of a metric, in the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """Metric with its labels, such as ``rocketmq_messages_in_total`` by topic.

    - ``name``: the name that Prometheus reads, with its unit and with ``_total`` for a counter.
    - ``help``: one sentence for people.
    - ``labels``: the names of the labels beside those that all metrics of a server have.
    - ``bounds``: the inclusive upper bounds of a histogram's buckets, without infinity.
    - ``instrument``: the name that OpenTelemetry receives, or empty if it is ``name``.
    - ``unit``: the unit that OpenTelemetry receives.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    instrument: str = ""
    unit: str = ""

    def own_labels(self, values: Sequence[str]) -> dict[str, str]:
        """Return the labels of a series with these values. A label without a value is absent."""
        pairs = zip(self.labels, values, strict=True)
        return {name: text for name, text in pairs if text}


class Distribution(NamedTuple):
    """Value of a histogram: the observations in each bucket, and their sum.

    ``counts`` has one more number than the family has bounds. The last one counts the observations
    above all bounds. The counts are not cumulative.
    """

    counts: Sequence[int]
    total: float


Sample = tuple[tuple[str, ...], "float | Distribution"]
"""Values of the labels, and the value of the metric. An empty value means that the label is
absent."""
Read = Callable[[], "Iterable[Sample | None]"]
"""Function that returns the samples of one family.

The writer may pause after each sample, and goes on in a later run of the event loop. None stands
for a step without a sample. A read that walks over a table must survive its changes in a pause.
"""


class Metrics:
    """All metrics of one server or job. ``labels`` are those that each of its metrics has."""

    def __init__(self, labels: dict[str, str] | None = None) -> None:
        self.labels = labels or {}
        self._reads: dict[Family, list[Read]] = {}

    def add(self, family: Family, read: Read) -> None:
        """Add a source of samples. Two sources of one family must differ in their labels' values.

        A family belongs to one name: the same name with other labels is a mistake of the caller.
        """
        assert all(family is known or family.name != known.name for known in self._reads)
        self._reads.setdefault(family, []).append(read)

    def add_value(self, family: Family, value: Callable[[], float]) -> None:
        """Add a family without labels. ``value`` returns its present value."""
        self.add(family, lambda: [((), value())])

    def families(self) -> list[tuple[Family, list[Read]]]:
        """Return each family with its sources, in the order in which they were added."""
        return [(family, list(reads)) for family, reads in self._reads.items()]
