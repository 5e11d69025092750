"""Ratios are taken within a pair, and a figure is reached or missed by its median pair."""

import os

import pytest

from bench.brokers import APACHE, OURS
from bench.generator import LoadResult
from bench.memory import Memory, memory_of
from bench.results import Report, Run, Spread, targets
from bench.table import as_markdown, as_text, exit_status, target_rows


def run(
    case: str, pair: int, broker: str, *, rate: int, cpu_us: float = 10.0, p50_us: float = 100.0
) -> Run:
    load = LoadResult(
        messages=rate,
        requests=rate,
        seconds=1.0,
        broker_cpu_s=rate * cpu_us / 1e6,
        generator_cpu_s=0.1,
        p50_us=p50_us,
        p99_us=200.0,
        p999_us=300.0,
        max_us=400.0,
        bytes_in=1,
        bytes_out=1,
    )
    return Run(case, pair, broker, load)


def report(*runs: Run) -> Report:
    machine = {"cpu": "a machine", "cores": "2", "kernel": "6", "python": "3"}
    settings = {
        "pairs": "3",
        "seconds": "5",
        "cores": "broker on 0,1, load on 1",
        "apache": "5.3.3",
    }
    return Report(machine=machine, settings=settings, runs=list(runs))


def three_pairs() -> Report:
    pairs = ((0, 10_000, 20_000), (1, 20_000, 30_000), (2, 10_000, 30_000))
    return report(
        *(run("send-1k", pair, APACHE, rate=theirs, cpu_us=40) for pair, theirs, _ in pairs),
        *(run("send-1k", pair, OURS, rate=ours, cpu_us=30) for pair, _, ours in pairs),
    )


def test_a_ratio_is_ours_to_apaches_of_the_same_pair() -> None:
    assert three_pairs().ratio("send-1k", "rate") == Spread(median=2.0, low=1.5, high=3.0)


def test_without_a_second_broker_there_is_no_ratio() -> None:
    alone = report(run("send-1k", 0, OURS, rate=10_000))
    assert alone.ratio("send-1k", "rate") is None
    assert {target.reached for target in targets(alone)} == {None}


def test_figures_are_judged_by_their_direction() -> None:
    found = {target.name: target.reached for target in targets(three_pairs())}
    assert found["send 1 KiB, 64 outstanding: messages/s"] is True
    assert found["send 1 KiB, 64 outstanding: broker CPU per message"] is False


def test_the_most_memory_and_the_median_start_are_what_counts() -> None:
    measured = three_pairs()
    measured.memory = {OURS: [Memory(200 << 20, 81 << 20), Memory(100 << 20, 50 << 20)]}
    measured.start_s = {OURS: [0.2, 3.0, 0.4]}
    found = {target.name: (target.measured, target.reached) for target in targets(measured)}
    assert found["anonymous memory of the broker under that load"] == ("81 MiB", False)
    assert found["start to first acknowledged send (turbopump dev)"] == ("0.40 s (0.20-3.00)", True)


@pytest.mark.parametrize("show", [as_text, as_markdown])
def test_both_tables_show_the_case_its_ratio_and_the_calibration(show: object) -> None:
    measured = three_pairs()
    measured.calibration_s = [0.1234, 0.1239]
    assert callable(show)
    text = show(measured)
    assert "2.00 (1.50-3.00)" in text
    assert "calibration loop 0.123 s and 0.124 s" in text
    assert "MISSED" in text


def test_a_figure_that_was_missed_is_an_exit_status_and_one_that_was_not_measured_is_none() -> None:
    measured = three_pairs()
    assert exit_status(target_rows(measured)) == 1
    measured.runs.clear()
    assert {row[-1] for row in target_rows(measured)} == {"not measured"}
    assert exit_status(target_rows(measured)) == 0
    measured.start_s = {OURS: [0.2, 0.3, 0.4]}
    assert exit_status(target_rows(measured)) == 0
    measured.start_s = {OURS: [1.2, 1.3, 1.4]}
    assert exit_status(target_rows(measured)) == 1


def test_memory_of_a_process_is_less_anonymous_than_resident() -> None:
    memory = memory_of(os.getpid())
    assert 0 < memory.anonymous < memory.resident
