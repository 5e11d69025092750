"""A long recovery says how far it is, a short one is silent."""

import logging

import pytest

from turbopump.broker.recovery_progress import LOGGER, RecoveryProgress

MIB = 1 << 20


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_lines_come_every_few_seconds_with_share_speed_and_time_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 50.0
    progress = RecoveryProgress(lambda: now)
    with caplog.at_level(logging.INFO, LOGGER):
        progress.reached(100 * MIB, 300 * MIB)
        for number in range(1, 10):
            now += 0.5
            progress.reached((100 + number * 20) * MIB, 300 * MIB)
        now += 0.5
        progress.reached(300 * MIB, 300 * MIB)
    assert lines(caplog) == [
        "recovering the store percent=20 MiB=40 of=200 MB/s=42 seconds_left=4",
        "recovering the store percent=80 MiB=160 of=200 MB/s=42 seconds_left=1",
        "store recovered MiB=200 seconds=5.0 MB/s=42",
    ]


def test_a_recovery_of_under_a_second_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    now = 50.0
    progress = RecoveryProgress(lambda: now)
    with caplog.at_level(logging.INFO, LOGGER):
        progress.reached(0, 0)
        progress.reached(0, 0)
        progress.reached(0, 90 * MIB)
        now += 0.9
        progress.reached(80 * MIB, 90 * MIB)
        now += 0.5
        progress.reached(90 * MIB, 90 * MIB)
    assert lines(caplog) == []
