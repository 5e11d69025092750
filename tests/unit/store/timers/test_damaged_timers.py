"""A timer wheel or timer log that is no longer as it was written: it is noticed, and nothing that
waits is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.timers.pending_timers import UNITS, Timers, seconds

from turbopump.errors import StoreDamagedError
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.timers.timer_log import TIMER_UNIT_SIZE


@pytest.fixture
def one(tmp_path: Path) -> Timers:
    return Timers(tmp_path / "store")


@pytest.mark.parametrize("damage", ["time", "first", "last", "zeros", "another's"])
@pytest.mark.parametrize("later", [False, True])
def test_a_wheel_that_is_not_as_it_was_written_is_made_again_from_the_log(
    one: Timers, tmp_path: Path, damage: str, later: bool
) -> None:
    for number in range(30):
        one.add(seconds(5 + number % 3))
    one.save()
    if later:  # and then the broker was killed
        for number in range(30, 40):
            one.add(seconds(5 + number % 5))
        one.timers.passed(seconds(5))
    twin = one.kill(tmp_path / "twin")
    twin.open()
    assert (len(twin.pending()), twin.reports) == (3, [])
    twin.timers.close()
    twin = one.kill(tmp_path / "again")
    wheel = bytearray(twin.config.paths.timer_wheel.read_bytes())
    at, other = seconds(6) // 1000 % 400 * 32, seconds(7) // 1000 % 400 * 32
    if damage == "zeros":
        wheel[at : at + 32] = bytes(32)
    elif damage == "another's":
        wheel[at : at + 32] = wheel[other : other + 32]
    else:
        wheel[at + {"time": 6, "first": 14, "last": 22}[damage]] ^= 1
    twin.config.paths.timer_wheel.write_bytes(wheel)
    twin.open()
    assert twin.pending() == {
        5 + rest: [n for n in range(30) if n % 3 == rest] for rest in range(3)
    }
    assert twin.timers.queue_offset == 30
    assert "rebuilt from the timer log" in twin.reports[0]


def test_a_chain_that_ends_before_the_first_unit_of_its_slot_is_damaged(one: Timers) -> None:
    for _ in range(2 * UNITS):
        one.add(seconds(5))
    log = one.timers.log
    (gone,) = log.drop_before(20_001)
    log.files.forget_first(gone)
    assert one.pending() == {5: list(range(20, 40))}, "what is gone is no damage"
    one.timers.passed(seconds(5))
    for _ in range(3):
        one.add(seconds(9))
    place = log.piece(log.end - TIMER_UNIT_SIZE)
    assert place is not None
    place[0].segment.buffer[place[0].at + place[1] + 4 : place[0].at + place[1] + 12] = (
        7
    ).to_bytes(8)
    with pytest.raises(StoreDamagedError, match="does not reach its first unit"):
        finish_now(one.timers.due(seconds(9)))


def test_a_checkpoint_of_an_earlier_release_says_nothing_of_the_wheel(
    one: Timers, tmp_path: Path
) -> None:
    one.add(seconds(5))
    one.timers.write_checkpoint(replace(one.save(), wheel_sum=None))
    twin = one.kill(tmp_path / "twin")
    twin.open()
    assert (twin.timers.saved.ours, twin.timers.saved.wheel_sum) == (True, None)
    assert (twin.pending(), twin.reports) == ({5: [0]}, [])
