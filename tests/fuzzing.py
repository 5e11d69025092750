"""How hard the tests of arbitrary input try: the same examples each time, a quarter of them in
``make test`` and all in continuous integration (or with ``TURBOPUMP_FUZZ=1``); many new ones in
``make fuzz``.

One rule: who wants a number of examples says it with ``examples``, so that ``TURBOPUMP_FUZZ=50``
means fifty times as many everywhere. A failure prints what reproduces it (hypothesis' blob, or the
seed in the test's name).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
U = TypeVar("U")
FACTOR: Final = float(os.environ.get("TURBOPUMP_FUZZ") or (1 if os.environ.get("CI") else 0.25))
FUZZES: Final = FACTOR > 1


def examples(count: int = 100) -> settings:
    """``count`` examples, times FACTOR: the same each time, or in ``make fuzz`` new ones."""
    return settings(
        max_examples=max(round(count * FACTOR), 1),
        derandomize=not FUZZES,
        deadline=None,
        print_blob=FUZZES,
        suppress_health_check=[HealthCheck.too_slow] if FUZZES else [],
    )


def seeds() -> list[int]:
    """For tests that draw from ``random.Random(seed)`` themselves."""
    return list(range(1, 2 + round(FACTOR)))


def some(cases: Iterable[T]) -> list[T]:
    """All of them; in ``make test`` every fourth, from the first on."""
    return list(cases)[:: max(round(1 / FACTOR), 1)]


def crossed(cases: Iterable[T], ways: Sequence[U]) -> list[tuple[T, U]]:
    """Every case in every way; in ``make test`` every case in one of the ways, in turn. Each round
    begins one way later, for cases that come in rounds themselves."""
    if FACTOR < 1:
        count = len(ways)
        return [
            (case, ways[(number + number // count) % count]) for number, case in enumerate(cases)
        ]
    return [(case, way) for case in cases for way in ways]
