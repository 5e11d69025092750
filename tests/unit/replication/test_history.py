"""History of a log: what is kept of it, and what it proves of two logs."""

import random
from pathlib import Path

import pytest
from tests.stand_ins import raises

from turbopump.disk.system_disk import SystemDisk
from turbopump.replication.history import (
    KNOWN_MAX,
    NO_END,
    KnownLog,
    LogHistory,
    common_until,
    new_id,
)

FIRST, SECOND, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))


def history(directory: Path, own: bytes, end: int, *, unchanged: int | None = None) -> LogHistory:
    path, unchanged = directory / "history.json", end if unchanged is None else unchanged
    return LogHistory(SystemDisk(), path, own, end, unchanged=unchanged)


def test_each_run_that_writes_adds_a_log_and_closes_those_before(tmp_path: Path) -> None:
    for own, end in ((FIRST, 0), (SECOND, 500), (THIRD, 700)):
        one = history(tmp_path, own, end)
        one.begin_own(end)
        one.save_now()
        one.begin_own(end + 1)  # nothing is added twice
    assert one.known == (KnownLog(FIRST, 500), KnownLog(SECOND, 700), KnownLog(THIRD, NO_END))
    assert history(tmp_path, THIRD, 700).known == one.known


def test_what_a_log_lost_with_the_power_it_does_not_have_in_common_any_more(tmp_path: Path) -> None:
    one = history(tmp_path, FIRST, 0)
    one.follow_master((KnownLog(SECOND, 900), KnownLog(THIRD, NO_END)))
    one.save_now()
    again = history(tmp_path, FIRST, 800)
    again.begin_own(800)
    assert again.known == (KnownLog(SECOND, 800), KnownLog(THIRD, 800), KnownLog(FIRST, NO_END))


def test_nothing_is_known_of_what_a_power_cut_may_have_torn(tmp_path: Path) -> None:
    one = history(tmp_path, FIRST, 0)
    one.follow_master((KnownLog(SECOND, 300), KnownLog(THIRD, NO_END)))
    one.save_now()
    holes = (KnownLog(SECOND, 300), KnownLog(THIRD, 400), KnownLog(FIRST, NO_END))
    assert history(tmp_path, FIRST, 900, unchanged=400).known == holes
    assert history(tmp_path, SECOND, 900).known == holes, "a later start does not see that"


@pytest.mark.parametrize(
    ("one", "other", "until"),
    [
        ((), (KnownLog(FIRST, NO_END),), 0),
        ((KnownLog(FIRST, NO_END),), (KnownLog(FIRST, NO_END),), NO_END),
        ((KnownLog(FIRST, 5), KnownLog(SECOND, NO_END)), (KnownLog(FIRST, NO_END),), 5),
        ((KnownLog(FIRST, 5), KnownLog(SECOND, 7)), (KnownLog(SECOND, 6), KnownLog(FIRST, 5)), 6),
        ((KnownLog(FIRST, 5),), (KnownLog(THIRD, 6),), 0),
    ],
)
def test_two_logs_are_the_same_up_to_the_smaller_end_of_one_they_both_know(
    one: tuple[KnownLog, ...], other: tuple[KnownLog, ...], until: int
) -> None:
    assert common_until(one, other) == common_until(other, one) == until


@pytest.mark.parametrize("data", [b"", b"[[", b'[["00", 1]]', b'{"a": 1}', b'[["zz", null]]'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "history.json").write_bytes(data)
    assert history(tmp_path, FIRST, 500).known == ()


def test_an_older_file_is_not_fallen_back_to(tmp_path: Path) -> None:
    one = history(tmp_path, FIRST, 0)
    one.begin_own(0)
    one.save_now()
    one.follow_master((KnownLog(SECOND, NO_END),))
    one.save_now()
    (tmp_path / "history.json").write_bytes(b"torn")
    assert history(tmp_path, FIRST, 500).known == ()


def test_nothing_is_known_of_a_log_that_another_program_has_had(tmp_path: Path) -> None:
    one = history(tmp_path, FIRST, 0)
    one.begin_own(0)
    one.save_now()
    assert history(tmp_path, SECOND, 500, unchanged=0).known == ()
    assert history(tmp_path, SECOND, 0).known == (), "the log was emptied"


def test_what_was_found_different_is_known_up_to_there(tmp_path: Path) -> None:
    one = history(tmp_path, THIRD, 900)
    one.found_different((KnownLog(FIRST, NO_END),), 400)
    assert one.known == (KnownLog(FIRST, 400), KnownLog(THIRD, NO_END))
    one.found_different((KnownLog(FIRST, NO_END),), 300)
    assert one.known == (KnownLog(FIRST, 300), KnownLog(THIRD, NO_END))
    one.follow_master((KnownLog(SECOND, 500), KnownLog(FIRST, NO_END)))
    one.found_different((KnownLog(SECOND, 500), KnownLog(FIRST, NO_END)), 450)
    assert one.known == (KnownLog(SECOND, 450), KnownLog(FIRST, 450), KnownLog(THIRD, NO_END))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    one = history(tmp_path, FIRST, 10**6)
    one.follow_master(
        [KnownLog(number.to_bytes(16), number + 1) for number in range(KNOWN_MAX + 5)]
    )
    one.begin_own(10**6)
    assert len(one.known) == KNOWN_MAX
    assert one.known[-1] == KnownLog(FIRST, NO_END)


def test_a_full_disk_leaves_no_file_that_says_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = history(tmp_path, FIRST, 0)
    one.begin_own(0)
    one.save_now()
    again = history(tmp_path, SECOND, 500)
    again.begin_own(500)

    monkeypatch.setattr(SystemDisk, "replace_file", raises(OSError(28, "No space left on device")))
    again.save_now()
    assert history(tmp_path, SECOND, 500).known == ()


def test_an_id_is_another_one_at_another_time(tmp_path: Path) -> None:
    assert new_id(1, random.Random(1)) != new_id(2, random.Random(1))
    assert len(new_id(1 << 41, random.Random())) == 16
