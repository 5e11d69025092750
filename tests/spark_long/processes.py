"""Processes below one of ours, found in /proc: Spark starts its executors itself."""

from __future__ import annotations

from pathlib import Path


def children_of(process: int, name: bytes) -> list[int]:
    """Processes below one whose command line has a name in it."""
    parents, named = {}, []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            line = (directory / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(directory.name)] = int(fields[1])
        if name in line:
            named.append(int(directory.name))

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != process:
            pid = parents.get(pid, 0)
        return pid == process

    return [pid for pid in named if is_below(pid)]


def executor_of(process: int) -> int:
    """The JVM of an executor below a driver or a worker."""
    found = children_of(process, b"CoarseGrainedExecutorBackend")
    assert found
    return found[0]
