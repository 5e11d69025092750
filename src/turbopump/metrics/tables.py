"""Counters and histograms by the values of their labels.

A count is one addition in a dictionary. The hot path of a message has cheaper counters of its own,
which a read turns into samples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from turbopump.metrics.family import Distribution, Family, Sample

Values = tuple[str, ...]
"""Values of the labels of one series, in the order of the family's labels."""


class CounterTable:
    """Counts of one family, by the values of its labels."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._counts: dict[Values, float] = {}

    def add(self, values: Values, amount: float = 1) -> None:
        """Add ``amount`` to the series with these label values."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def read(self) -> Iterator[Sample]:
        """Return the samples of all series."""
        # A copy of all pairs would make Python's collector run.
        for values in list(self._counts):
            count = self._counts.get(values)
            if count is not None:
                yield values, count

    def forget(self, gone: Callable[[Values], bool]) -> None:
        """Delete the series for which ``gone`` returns True, such as those of a deleted topic."""
        for values in [values for values in self._counts if gone(values)]:
            del self._counts[values]


class HistogramTable:
    """Distributions of one family, by the values of its labels."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._counts: dict[Values, list[int]] = {}
        self._totals: dict[Values, float] = {}

    def observe(self, values: Values, value: float, times: int = 1) -> None:
        """Count ``value`` in the series with these label values, ``times`` times."""
        counts = self._counts.get(values)
        if counts is None:
            counts = self._counts[values] = [0] * (len(self.family.bounds) + 1)
            self._totals[values] = 0.0
        counts[bisect_left(self.family.bounds, value)] += times
        self._totals[values] += value * times

    def read(self) -> Iterator[Sample]:
        """Return the samples of all series."""
        for values in list(self._counts):
            counts = self._counts.get(values)
            if counts is not None:
                yield values, Distribution(tuple(counts), self._totals[values])

    def forget(self, gone: Callable[[Values], bool]) -> None:
        """Delete the series for which ``gone`` returns True."""
        for values in [values for values in self._counts if gone(values)]:
            del self._counts[values], self._totals[values]
