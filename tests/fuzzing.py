"""How hard the tests of arbitrary input try: the same few examples each time in ``make test``, many
new ones in ``make fuzz``.

One rule: who wants a number of examples says it with ``examples``, so that ``TURBOPUMP_FUZZ=50``
means fifty times as many everywhere. A failure prints what reproduces it (hypothesis' blob, or the
seed in the test's name).
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

FACTOR: Final = max(int(os.environ.get("TURBOPUMP_FUZZ", "1")), 1)
FUZZES: Final = FACTOR > 1


def examples(count: int = 100) -> settings:
    """``count`` examples, the same each time; in ``make fuzz`` as many times more as it says, new
    ones."""
    return settings(
        max_examples=count * FACTOR,
        derandomize=not FUZZES,
        deadline=None,
        print_blob=FUZZES,
        suppress_health_check=[HealthCheck.too_slow] if FUZZES else [],
    )


def seeds() -> list[int]:
    """For tests that draw from ``random.Random(seed)`` themselves."""
    return list(range(1, 3 if not FUZZES else 2 + FACTOR))
