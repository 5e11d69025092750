"""What the rows of the goals came to: each test tells its own numbers, over all its seeds, and
pytest prints them at the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial


@dataclass
class Figures:
    """The numbers of one test. Names are printed as they are, with spaces for underscores; ``runs``
    and ``cpu_s`` are of its calls."""

    counts: dict[str, int] = field(default_factory=partial(defaultdict, int))
    highest: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=partial(defaultdict, list))
    runs: int = 0
    cpu_s: float = 0.0

    def count(self, **numbers: int) -> None:
        """These are added up."""
        for name, number in numbers.items():
            self.counts[name] += number

    def most(self, **numbers: float) -> None:
        """Of these the highest counts."""
        for name, number in numbers.items():
            self.highest[name] = max(number, self.highest.get(name, number))

    def sample(self, **numbers: list[float]) -> None:
        """Of all these together p50, p99 and the highest."""
        for name, values in numbers.items():
            self.samples[name] += values

    def __str__(self) -> str:
        said = [f"{number:,} {_words(name)}" for name, number in self.counts.items()]
        said += [f"{_words(name)} {number:g} at most" for name, number in self.highest.items()]
        for name, values in self.samples.items():
            ordered = sorted(values)
            marks = (
                [
                    ordered[min(int(len(ordered) * part), len(ordered) - 1)]
                    for part in (0.5, 0.99, 1.0)
                ]
                if ordered
                else []
            )
            said.append(
                f"{_words(name)} p50, p99, most: {', '.join(f'{mark:g}' for mark in marks)}"
            )
        return "; ".join(said)


def _words(name: str) -> str:
    return name.replace("_", " ")
