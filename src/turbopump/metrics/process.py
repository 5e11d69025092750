"""Metrics of the process: processor time, memory, descriptors and pauses of Python's collector.

The names are those of Prometheus' client libraries where they have one. On a system other than
Linux some of them are missing.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

from turbopump.metrics.family import Family, Kind, Metrics, Sample

CPU: Final = Family(
    "process_cpu_seconds_total", Kind.COUNTER, "Processor time of the process, in seconds."
)
RESIDENT: Final = Family(
    "process_resident_memory_bytes", Kind.GAUGE, "Resident memory of the process, in bytes."
)
VIRTUAL: Final = Family(
    "process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of the process, in bytes."
)
STARTED: Final = Family(
    "process_start_time_seconds", Kind.GAUGE, "Start of the process, in seconds since 1970."
)
OPEN_FDS: Final = Family("process_open_fds", Kind.GAUGE, "Open file descriptors of the process.")
MAX_FDS: Final = Family(
    "process_max_fds", Kind.GAUGE, "Maximum number of open file descriptors of the process."
)
PAUSES: Final = Family(
    "turbopump_collector_pauses_total",
    Kind.COUNTER,
    "Runs of Python's garbage collector. The process stands still meanwhile.",
)
PAUSE_SECONDS: Final = Family(
    "turbopump_collector_pause_seconds_total",
    Kind.COUNTER,
    "Seconds that runs of Python's garbage collector took.",
)
FDS_AT_ONCE: Final = 500
"""Number of descriptors that are counted in one step. They take about 0.2 ms."""


class CollectorPauses:
    """Counter of the runs of Python's garbage collector between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Begin to count. The method may be called again."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Stop counting. The method may be called twice."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.count += 1
            self.seconds += time.perf_counter() - self._began


def add_process(metrics: Metrics, pauses: CollectorPauses) -> None:
    """Add the metrics of this process."""
    metrics.add_value(CPU, time.process_time)
    metrics.add(RESIDENT, _resident)
    metrics.add(VIRTUAL, _virtual)
    metrics.add(STARTED, _started)
    metrics.add(OPEN_FDS, _open_fds)
    metrics.add(MAX_FDS, _max_fds)
    metrics.add_value(PAUSES, lambda: pauses.count)
    metrics.add_value(PAUSE_SECONDS, lambda: pauses.seconds)


# Fields of /proc/self/stat behind the name of the program, as proc(5) numbers them, minus 3.
_START_TIME: Final = 19
_VIRTUAL_SIZE: Final = 20
_RESIDENT_PAGES: Final = 21


def _resident() -> list[Sample]:
    if sys.platform == "win32":
        return []
    return [((), pages * os.sysconf("SC_PAGE_SIZE")) for pages in _of_stat(_RESIDENT_PAGES)]


def _virtual() -> list[Sample]:
    return [((), size) for size in _of_stat(_VIRTUAL_SIZE)]


def _started() -> list[Sample]:
    if sys.platform == "win32":
        return []
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    return [((), _boot_time() + ticks / ticks_a_second) for ticks in _of_stat(_START_TIME)]


def _of_stat(field: int) -> list[int]:
    """Return a field of /proc/self/stat, in a list. The list is empty on other systems."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return [int(fields[field])]
    except (OSError, IndexError, ValueError):
        return []


def _boot_time() -> int:
    """Return the start of the system in seconds since 1970. Raises OSError or ValueError."""
    with open("/proc/stat", "rb") as file:
        for line in file:
            if line.startswith(b"btime "):
                return int(line.split()[1])
    raise ValueError("no btime in /proc/stat")


def _open_fds() -> Iterator[Sample | None]:
    # Thousands of clients have thousands of descriptors, so they are counted in steps.
    try:
        with os.scandir("/proc/self/fd") as entries:
            count = 0
            for _ in entries:
                count += 1
                if count % FDS_AT_ONCE == 0:
                    yield None
    except OSError:
        return
    yield (), count - 1  # without the one that counts


def _max_fds() -> list[Sample]:
    if sys.platform == "win32":
        return []
    import resource  # Windows has none

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [((), float("inf") if limit == resource.RLIM_INFINITY else limit)]
