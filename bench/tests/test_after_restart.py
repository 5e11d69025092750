"""Counts and verdicts of the bench of pulls after a restart, without its speeds."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from bench import after_restart
from bench.after_restart import (
    OLD_RESTARTED,
    OLD_WRITTEN,
    RESTARTED,
    SMALL,
    WRITTEN,
    BrokerSetup,
    Plan,
    Results,
    from_disk,
    in_turn,
    modules_of,
    pulled_once,
    rows,
)
from bench.brokers import APACHE, OURS, RunningBroker
from bench.cases import TOPIC_QUEUES
from bench.cores import Cores
from bench.generator import LoadError, LoadResult

PLAN = Plan(
    pairs=2, seconds=0.2, cached_messages=320, small_messages=640, disk_messages=40 * TOPIC_QUEUES
)


def load(rate: float, cpu_us: float) -> LoadResult:
    return LoadResult(
        messages=int(rate),
        requests=1,
        seconds=1.0,
        broker_cpu_s=rate * cpu_us / 1e6,
        generator_cpu_s=0.1,
        p50_us=1.0,
        p99_us=2.0,
        p999_us=3.0,
        max_us=4.0,
        bytes_in=1,
        bytes_out=1,
    )


def small(**old: list[LoadResult]) -> Results:
    return {RESTARTED: [load(1e6, 0.6)], WRITTEN: [load(1e6, 0.4)], **old}


def test_a_figure_is_judged_by_its_median_pair() -> None:
    ours = [load(900, 1.0), load(1200, 1.0), load(5000, 1.0)]
    theirs = [load(1000, 2.0), load(1000, 2.0), load(1000, 1.0)]
    large = {OURS: ours, APACHE: theirs}
    verdicts = {(row[0], row[1]): (row[4], row[-1]) for row in rows(large, small(), large)}
    assert verdicts == {
        ("1 KiB, from the cache: ours : Apache's", "rate"): ("1.20 (0.90-5.00)", "reached"),
        ("1 KiB, from the cache: ours : Apache's", "cpu_us"): ("0.50 (0.50-1.00)", "reached"),
        ("1 KiB, from the disk: ours : Apache's", "rate"): ("1.20 (0.90-5.00)", "reached"),
        ("100 B: restarted : not", "cpu_us"): ("1.50 (1.50-1.50)", "MISSED"),
    }


def test_an_older_build_is_compared_where_it_was_measured() -> None:
    large = {OURS: [load(1, 1)], APACHE: [load(1, 1)]}
    both = small(**{OLD_RESTARTED: [load(1e6, 4.0)], OLD_WRITTEN: [load(1e6, 0.4)]})
    judged = {row[0]: row[-1] for row in rows(large, both, large)}
    assert judged["100 B, restarted: ours : old build"] == "reached"
    assert judged["100 B, not restarted: the same"] == "reached"


def test_a_checkout_without_the_compiled_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    package = tmp_path / "src" / "turbopump"
    package.mkdir(parents=True)
    with pytest.raises(click.BadParameter, match=r"setup\.py build_ext --inplace"):
        modules_of(tmp_path)
    (package / "_hot.cpython-311-x86_64-linux-gnu.so").touch()
    assert modules_of(tmp_path) == tmp_path / "src"


@pytest.fixture
def setup(tmp_path: Path) -> BrokerSetup:
    return BrokerSetup(tmp_path, Cores.of_this_machine(), ExitStack())


@pytest.fixture
def restarted(setup: BrokerSetup) -> RunningBroker:
    """Our broker on topics that it was filled with before it was stopped."""
    with setup.running(OURS, "home") as broker:
        after_restart.fill_large(setup, broker, PLAN)
        after_restart.fill_small(setup, broker, PLAN)
    setup.forget("home")
    return setup.start(OURS, "home")


def test_a_backlog_is_pulled_after_a_restart_whole_and_once(
    setup: BrokerSetup, restarted: RunningBroker
) -> None:
    with setup.stack:
        for topic in PLAN.disk_topics():
            assert pulled_once(setup, restarted, topic).messages == PLAN.disk_messages
        lines: list[str] = []
        results = in_turn(setup, PLAN, SMALL, {"one": restarted, "other": restarted}, lines.append)
        assert [len(windows) for windows in results.values()] == [PLAN.pairs, PLAN.pairs]
        assert len(lines) == 2 * PLAN.pairs


def test_a_window_that_did_not_come_from_the_disk_ends_the_run(
    setup: BrokerSetup, restarted: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device_reads(_pid: int) -> int:
        return 0

    monkeypatch.setattr(after_restart, "device_reads", device_reads)
    say: Callable[[str], None] = print
    with setup.stack, pytest.raises(LoadError, match="read 0 MiB from the device"):
        from_disk(setup, PLAN, {OURS: restarted}, say)
