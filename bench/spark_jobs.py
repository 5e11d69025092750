"""Spark in a benchmark: a session of two cores, and the cost of one job.

The one rule: CPU is counted process by process. Spark ends Python workers that were idle for a
minute, and their CPU time is then in no sum. Linux only: CPU times come from /proc. The compared
jobs are unknown here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from tests.spark.measure_read import jvm_pid

from bench.cpu_time import process_seconds
from turbopump.spark import end_session, rocketmq_session


class Used(NamedTuple):
    """µs a row. ``python``: the workers, and this process, which is the driver."""

    wall: float
    jvm: float
    python: float
    broker: float

    @property
    def spark(self) -> float:
        return self.jvm + self.python


@contextmanager
def session(name: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A quiet session with more settings of Spark, ended on leaving."""
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
    }
    spark = rocketmq_session(name, master="local[2]", conf={**quiet, **(conf or {})})
    try:
        yield spark
    finally:
        end_session(spark)


def spent(broker_pid: int, rows: int, job: Callable[[], object]) -> Used:
    """Measure the cost of a job with this many rows."""
    java = jvm_pid()
    before, broker_before = cpu_by_process(java), process_seconds(broker_pid)
    began = time.monotonic()
    job()
    wall = time.monotonic() - began
    more = {pid: used - before.get(pid, 0.0) for pid, used in cpu_by_process(java).items()}
    jvm = more.pop(java)
    used = (wall, jvm, sum(more.values()), process_seconds(broker_pid) - broker_before)
    return Used(*(value / rows * 1e6 for value in used))


def cpu_by_process(java: int) -> dict[int, float]:
    """CPU seconds so far of the JVM, of each process below it and of this one."""
    found = {}
    for pid in (java, os.getpid(), *descendants(java)):
        with contextlib.suppress(OSError):  # it has just ended
            found[pid] = process_seconds(pid)
    return found


def descendants(pid: int) -> set[int]:
    """The processes below one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    todo = {pid}
    while todo:
        todo = {child for child, parent in parents.items() if parent in todo}
        found |= todo
    return found
