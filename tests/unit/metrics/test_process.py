"""Metrics of the process, which agree with what the system says."""

import gc
import os
import sys
import time

import pytest
from tests.unit.metrics.reading import value_of

from turbopump.metrics.family import Family, Metrics
from turbopump.metrics.process import (
    CPU,
    FDS_AT_ONCE,
    MAX_FDS,
    OPEN_FDS,
    PAUSE_SECONDS,
    PAUSES,
    RESIDENT,
    STARTED,
    VIRTUAL,
    CollectorPauses,
    add_process,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def read(family: Family, pauses: CollectorPauses | None = None) -> float:
    metrics = Metrics()
    add_process(metrics, pauses or CollectorPauses())
    return value_of(metrics, family)


@on_linux
def test_memory_start_and_processor_time_are_those_of_this_process() -> None:
    with open("/proc/self/statm") as file:
        pages = [int(one) * os.sysconf("SC_PAGE_SIZE") for one in file.read().split()[:2]]
    assert read(VIRTUAL) == pytest.approx(pages[0], rel=0.1)
    assert read(RESIDENT) == pytest.approx(pages[1], rel=0.1)
    assert time.time() - 3600 * 24 < read(STARTED) <= time.time() + 1
    assert 0 < read(CPU) <= time.process_time()


@on_linux
def test_open_descriptors_are_counted_in_steps() -> None:
    before = read(OPEN_FDS)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    try:
        assert read(OPEN_FDS) == before + 10
        assert before < FDS_AT_ONCE
    finally:
        for one in opened:
            os.close(one)
    assert read(MAX_FDS) > before


def test_runs_of_the_collector_are_counted_between_start_and_stop() -> None:
    pauses = CollectorPauses()
    assert read(PAUSES, pauses) == 0
    pauses.start()
    pauses.start()
    gc.collect()
    pauses.stop()
    pauses.stop()
    counted = read(PAUSES, pauses)
    assert counted >= 1
    assert read(PAUSE_SECONDS, pauses) > 0
    gc.collect()
    assert read(PAUSES, pauses) == counted
