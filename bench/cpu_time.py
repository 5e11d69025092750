"""CPU time of processes and of the whole machine, from /proc. The one rule: what is not ours shows
as foreign, and is not guessed at."""

import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Measures from its making on: the given processes (by pid), this process with its ended
    children, and the machine."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._started = time.monotonic()
        self._pids = {pid: process_seconds(pid) for pid in pids}
        self._own = own_seconds()
        self._machine = machine_seconds()

    def seconds_of(self, pid: int) -> float:
        """CPU seconds of one of the processes so far, all threads."""
        return process_seconds(pid) - self._pids[pid]

    def foreign_cores(self) -> float:
        """Cores' worth of CPU time that went elsewhere: the machine's, less the processes' and our
        own."""
        ours = sum(map(self.seconds_of, self._pids)) + own_seconds() - self._own
        return max(0.0, machine_seconds() - self._machine - ours) / (
            time.monotonic() - self._started
        )


def process_seconds(pid: int) -> float:
    """User and system time of a process: fields 14 and 15 of /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_seconds() -> float:
    """This process and its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def machine_seconds() -> float:
    """Everything but idle and waiting for the disk, on all cores; stolen time included."""
    name, user, nice, system, _idle, _wait, irq, softirq, steal = (
        Path("/proc/stat").read_text().split()[:9]
    )
    assert name == "cpu"
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / TICKS
