"""How long appends took, in Apache's classes: exact for the slow ones, free for the others."""

from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, TestClock, put, put_batch

from turbopump.store.append_latency import NAMES


class Stopwatch(TestClock):
    """Each look at the monotonic clock is `step` seconds after the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0.0
        self._passed = 0.0

    def monotonic(self) -> float:
        self._passed += self.step
        return self._passed


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (0.0, "[<=0ms]"),
        (0.000_9, "[<=0ms]"),
        (0.001_1, "[0~10ms]"),
        (0.009_9, "[0~10ms]"),
        (0.010_1, "[10~50ms]"),
        (0.051, "[50~100ms]"),
        (0.101, "[100~200ms]"),
        (0.201, "[200~500ms]"),
        (0.501, "[500ms~1s]"),
        (1.001, "[1~2s]"),
        (2.001, "[2~3s]"),
        (3.001, "[3~4s]"),
        (4.001, "[4~5s]"),
        (9.9, "[5~10s]"),
        (10.1, "[10s~]"),
    ],
)
def test_an_append_falls_into_apache_s_class(tmp_path: Path, seconds: float, name: str) -> None:
    directory = Directory(tmp_path)
    clock = directory.clock = Stopwatch()
    store = directory.open()
    clock.step = seconds
    put(store, b"x")
    clock.step = 0.0
    store.latency.end_minute()
    assert {each: count for each, count in store.latency.last_minute.items() if count} == {name: 1}
    store.close()


def test_a_minute_is_told_on_apache_s_line_and_the_next_begins_with_nothing(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    before = directory.open()
    put(before, b"of another run")
    before.close()
    clock = directory.clock = Stopwatch()
    slow: list[float] = []
    store = directory.open(on_slow_append=slow.append)
    for _ in range(5):
        put(store, b"x")
    clock.step = 0.02
    put(store, b"slow")
    put_batch(store, [b"slow", b"too"])
    assert slow == [pytest.approx(0.02)] * 2
    assert store.latency.end_minute() == (
        "[PAGECACHERT] TotalPut 8, PutMessageDistributeTime [<=0ms]:6 [0~10ms]:0 [10~50ms]:2 "
        "[50~100ms]:0 [100~200ms]:0 "
        "[200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
    )
    assert store.latency.longest == pytest.approx(0.02)
    store.latency.end_minute()
    assert store.latency.last_minute == dict.fromkeys(NAMES, 0)
    store.close()
