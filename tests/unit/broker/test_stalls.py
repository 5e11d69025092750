"""A broker that stood still says so."""

import logging

import pytest

from turbopump.broker import housekeeping
from turbopump.broker.housekeeping import STALL_CHECK_S, StallWatch


def test_a_turn_of_more_than_a_second_is_logged_and_a_punctual_one_is_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "STALL_S", 1.0)
    now = 100.0
    watch = StallWatch(lambda: now)
    with caplog.at_level(logging.WARNING, "turbopump.broker.housekeeping"):
        for late in (0.0, 0.9, 0.0):
            now += STALL_CHECK_S + late
            watch.check_delay()
        assert caplog.records == []
        now += STALL_CHECK_S + 3.5
        watch.check_delay()
        now += STALL_CHECK_S
        watch.check_delay()
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was blocked: check the latency of the disk and the load of this machine "
        "seconds=3.5"
    ]
