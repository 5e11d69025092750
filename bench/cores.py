"""Cores of the brokers and of the load generator, and the present speed of a core.

The one rule: each measured broker has the same cores. Both brokers may use all of `Cores.broker`,
because Apache's has threads for more than one. The generator has one core, the last. On a machine
with two cores they share that core, and the generator's own CPU time is recorded with each result.
With three or more cores, the generator has a core to itself.

With one request outstanding, the broker stays off the generator's core. Otherwise the scheduler
would sometimes put both on one core, where they wake each other in half the time: a round trip of
26 or of 60 µs by chance. No client on another machine could do that. One core is no loss for the
broker: Apache's round trip was the same on one core as on two.
"""

import os
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass

CALIBRATION_STEPS = 5_000_000


@dataclass(frozen=True, slots=True)
class Cores:
    """Core numbers as the kernel counts them."""

    broker: frozenset[int]
    load: int

    @classmethod
    def of_this_machine(cls) -> "Cores":
        usable = sorted(os.sched_getaffinity(0))
        return cls(broker=frozenset(usable[:2]), load=usable[min(2, len(usable) - 1)])

    @property
    def apart(self) -> frozenset[int]:
        """The broker's cores without the generator's, if that leaves any."""
        return self.broker - {self.load} or self.broker

    def __str__(self) -> str:
        return f"broker on {','.join(map(str, sorted(self.broker)))}, load on {self.load}"


@contextmanager
def running_on(cores: frozenset[int]) -> Iterator[None]:
    """Processes started inside run on these cores alone (children inherit them)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def held_to(pid: int, cores: frozenset[int]) -> Iterator[None]:
    """All threads of a running process keep to these cores for a while."""
    before = os.sched_getaffinity(pid)
    pin_threads(pid, cores)
    try:
        yield
    finally:
        pin_threads(pid, before)


def pin_threads(pid: int, cores: Set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # a thread may end meanwhile
            os.sched_setaffinity(int(thread), cores)


def calibration_seconds(core: int) -> float:
    """Seconds that a fixed loop over integers takes in this Python on that core; the best of
    three."""
    with running_on(frozenset({core})):
        return min(one_calibration() for _ in range(3))


def one_calibration() -> float:
    start = time.perf_counter()
    total = 0
    for step in range(CALIBRATION_STEPS):
        total += step & 7
    assert total == CALIBRATION_STEPS // 8 * 28
    return time.perf_counter() - start
