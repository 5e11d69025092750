"""Queues of which files are lost or damaged, also where recovery does not read their messages: they
are noticed, and written again."""

import random
from pathlib import Path

import pytest
from tests.crash.in_memory import ROOT, Image, Opened
from tests.fuzzing import crossed
from tests.unit.store.ended_queues import (
    BACKUP,
    RECORD,
    Damage,
    State,
    check,
    encode,
    files_of,
    fill,
    open_store,
    remove_directory,
    remove_first_file,
    remove_last_file,
    state,
    with_zeros,
    without,
    zero_last_file,
    zero_last_unit,
)

from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.queues.queue_ends import EndsSnapshot, decode_known


@pytest.fixture(scope="module", params=["whole log", "trimmed log"])
def filled(request: pytest.FixtureRequest) -> Opened:
    return fill(trimmed=request.param == "trimmed log")


@pytest.fixture(params=["kill", "clean stop"])
def stopped(request: pytest.FixtureRequest, filled: Opened) -> tuple[Image, State]:
    image = filled.image()
    if request.param == "clean stop":
        before = open_store(image, at_ms=1_000_000)
        before.store.close()
        image = before.image()
        before.disk.kill()
    return image, state(filled)


DAMAGES = [remove_directory, remove_last_file, remove_first_file, zero_last_unit, zero_last_file]
TOPICS = ["gone", "boxed", "busy", "quiet", "packed", "single", "even"]


def test_a_kill_reads_from_the_checkpoint_on_and_a_clean_stop_nothing(
    stopped: tuple[Image, State],
) -> None:
    image, expected = stopped
    found = check(image, expected)
    assert found.store.recovery is not None
    assert found.store.recovery.begun_at > 9 * 4096
    assert not found.store.recovery.rebuilt
    assert found.reports == []


@pytest.mark.parametrize(("topic", "damage"), crossed(TOPICS, DAMAGES))
def test_a_queue_that_lost_files_or_units_is_noticed_and_written_again(
    stopped: tuple[Image, State], damage: Damage, topic: str
) -> None:
    image, expected = stopped
    damaged = damage(image, topic)
    assert damaged != image
    found = check(damaged, expected)
    assert found.store.recovery is not None
    assert len(found.reports) <= 1
    if found.store.recovery.rebuilt and found.reports:
        assert "queue" in found.reports[0]


@pytest.mark.parametrize(
    ("damage", "done", "end"),
    [
        (remove_directory, "all queues and indexes are written again", 0),
        (remove_last_file, "queues are written again from", 20),
    ],
)
def test_the_log_says_which_queue_ended_too_early_and_where_it_ended(
    damage: Damage, done: str, end: int
) -> None:
    filled = fill(trimmed=False)
    found = open_store(damage(filled.image(), "quiet"), at_ms=1_000_000)
    (report,) = found.reports
    assert report.startswith(f"a consume queue was not as it should be, {done}")
    assert (
        f"topic=quiet queue=0: its units end at {end}, and ended at 25 when the log was at "
        in report
    )
    found.disk.kill()
    filled.disk.kill()


@pytest.mark.parametrize(
    "lost", [[RECORD], [BACKUP], [RECORD, BACKUP]], ids=["file", "backup", "both"]
)
def test_the_record_itself_may_be_deleted(stopped: tuple[Image, State], lost: list[Path]) -> None:
    image, expected = stopped
    check(without(image, *lost), expected)
    if lost != [RECORD, BACKUP]:
        check(remove_directory(without(image, *lost), "quiet"), expected)


def test_the_record_may_be_damaged_at_every_byte(stopped: tuple[Image, State]) -> None:
    image, expected = stopped
    data = image[RECORD]
    source = random.Random(1)
    for at in range(len(data)):
        for wrong in (
            data[:at],
            data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
            data[:at] + bytes(len(data) - at),
        ):
            with pytest.raises(ValueError, match=r"."):
                decode_known(wrong)
            if source.random() < 0.01:  # a start takes some 30 ms
                found = open_store(
                    {**source.choice([image, remove_directory(image, "quiet")]), RECORD: wrong},
                    at_ms=2_000_000,
                )
                assert state(found) == expected, f"at {at}"
                found.disk.kill()


def test_a_record_and_its_backup_that_cannot_be_read_are_told_of_and_cost_nothing_else(
    filled: Opened,
) -> None:
    found = open_store({**filled.image(), RECORD: b"{", BACKUP: b"{"}, at_ms=1_000_000)
    assert state(found) == state(filled)
    assert found.reports[0].startswith(f"{RECORD} cannot be read (")
    found.disk.kill()


@pytest.mark.parametrize("known", [False, True])
def test_a_record_that_another_broker_has_outlived_counts_for_nothing(
    filled: Opened, known: bool
) -> None:
    """Apache's broker begins the lock file with "lock"; what it deleted is no damage, and it no
    longer knows it."""
    image = {**filled.image(), ROOT / "lock": b"lock"}
    found = open_store(
        remove_directory(image, "quiet"), at_ms=1_000_000, unknown=() if known else {"quiet"}
    )
    assert found.store.recovery is not None
    assert found.store.recovery.rebuilt == known
    assert found.store.max_offset("quiet", 0) == (25 if known else 0)
    snapshots = decode_known(found.image()[RECORD]).snapshots
    assert [snapshot.at for snapshot in snapshots] == [found.store.log.end], "and is replaced"
    found.disk.kill()


@pytest.mark.parametrize("wrong", [-3, 5])
def test_a_record_that_says_something_else_of_a_queue_costs_a_rebuild_and_nothing_else(
    filled: Opened, wrong: int
) -> None:
    image = filled.image()
    known = decode_known(image[RECORD])
    for snapshot in known.snapshots:
        snapshot.ends["quiet"][0] += wrong
    found = check({**image, RECORD: encode(known)}, state(filled))
    assert found.store.recovery is not None
    assert found.store.recovery.rebuilt


def test_an_older_place_is_begun_at_where_the_units_before_it_are_good(filled: Opened) -> None:
    """The checkpoint says that a queue was on the disk which was not."""
    image = filled.image()
    snapshot = decode_known(image[RECORD]).snapshots[-4]
    units = (snapshot.ends["busy"][0] + 1) * UNIT_SIZE
    for path in files_of(image, "busy"):
        start = int(path.name)
        if start + len(image[path]) > units:
            image = with_zeros(image, path, max(units - start, 0), len(image[path]))
    found = check(image, state(filled))
    assert found.store.recovery is not None
    assert not found.store.recovery.rebuilt
    assert found.store.recovery.begun_at <= snapshot.at
    assert found.store.recovery.mismatch is not None


def test_damaged_last_messages_of_a_queue_keep_their_offsets(filled: Opened) -> None:
    """They were given; whoever read them must not get others there."""
    image, expected = filled.image(), state(filled)
    offset, size, _ = expected["single"][2][0] if expected["single"][2] else expected["even"][2][-1]
    path = ROOT / "commitlog" / f"{offset // 4096 * 4096:020d}"
    image = with_zeros(image, path, offset % 4096 + 60, offset % 4096 + size)
    for without_its_units in (False, True):
        found = open_store(
            remove_directory(image, "single") if without_its_units else image, at_ms=1_000_000
        )
        assert {topic: end for topic, (_, end, _) in state(found).items()} == {
            topic: end for topic, (_, end, _) in expected.items()
        }
        again = open_store(found.image(), at_ms=2_000_000)
        assert again.store.recovery is not None
        assert not again.store.recovery.rebuilt
        assert again.store.max_offset("single", 0) == 1
        again.disk.kill()
        found.disk.kill()


def test_eight_places_are_kept_and_the_record_stays_small(filled: Opened) -> None:
    known = decode_known(filled.image()[RECORD])
    assert len(known.snapshots) == 8
    assert [snapshot.at % 4096 for snapshot in known.snapshots] == [0] * 8
    assert all(isinstance(snapshot, EndsSnapshot) for snapshot in known.snapshots)


def test_a_store_without_a_record_gets_one_at_its_first_start(filled: Opened) -> None:
    found = open_store(without(filled.image(), RECORD, BACKUP), at_ms=1_000_000)
    assert [snapshot.at for snapshot in decode_known(found.image()[RECORD]).snapshots] == [
        found.store.log.end
    ]
    damaged = remove_last_file(found.image(), "quiet")
    expected = state(found)
    found.disk.kill()
    check(damaged, expected)
