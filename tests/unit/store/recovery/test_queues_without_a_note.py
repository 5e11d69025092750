"""Killed stores of which nothing is noted, because that is lost or another broker has had them: the
queues are compared with all of the log, so that no offset is given twice, and what nobody damaged
stays as it is."""

import pytest
from tests.crash.in_memory import ROOT, Image, Opened
from tests.fuzzing import crossed
from tests.stand_ins import does_nothing
from tests.unit.store.ended_queues import (
    BACKUP,
    RECORD,
    Damage,
    check,
    encode,
    files_of,
    fill,
    open_store,
    put,
    remove_directory,
    remove_first_file,
    remove_last_file,
    state,
    with_zeros,
    without,
    zero_last_file,
    zero_last_unit,
)

from turbopump.store.queues.queue_ends import decode_known

STILL_THERE = ("busy", "quiet", "packed", "single", "even")
"""Topics of which the trimmed log has messages too."""


@pytest.fixture(scope="module", params=["whole log", "trimmed log"])
def filled(request: pytest.FixtureRequest) -> Opened:
    return fill(trimmed=request.param == "trimmed log")


@pytest.fixture(params=["lost", "another broker's"])
def image(request: pytest.FixtureRequest, filled: Opened) -> Image:
    if request.param == "lost":
        return without(filled.image(), RECORD, BACKUP)
    return {**filled.image(), ROOT / "lock": b"lock"}


def test_a_store_that_lost_nothing_stays_as_it_is_and_is_read_once(
    filled: Opened, image: Image
) -> None:
    found = check(image, state(filled))
    recovery = found.store.recovery
    assert recovery is not None
    assert (recovery.rebuilt, recovery.mismatch) == (False, None)
    assert recovery.compared is not None
    assert recovery.compared > 9 * 4096
    again = open_store(found.image(), at_ms=2_500_000)
    assert again.store.recovery is not None
    assert again.store.recovery.compared is None, "it is noted now"
    again.disk.kill()


@pytest.mark.parametrize(
    ("filled", "topic", "damage"),
    [
        (*queue, damage)
        for queue, damage in crossed(
            [("whole log", topic) for topic in ("gone", "boxed", *STILL_THERE)]
            + [("trimmed log", topic) for topic in STILL_THERE],
            [remove_directory, remove_last_file, zero_last_unit, zero_last_file],
        )
    ],
    indirect=["filled"],
)
def test_a_queue_that_lost_its_end_is_noticed_and_written_again(
    filled: Opened, image: Image, damage: Damage, topic: str
) -> None:
    first, end, _ = state(filled)[topic]
    assert first < end, "the log has messages of it"
    found = check(damage(image, topic), state(filled))
    assert len(found.reports) <= 1


@pytest.mark.parametrize("topic", ["busy", "quiet", "even"])
def test_a_queue_that_lost_its_first_file_is_noticed_and_written_again(
    filled: Opened, image: Image, topic: str
) -> None:
    """Also in a log that has lost its front, where queues begin in the middle."""
    found = check(remove_first_file(image, topic), state(filled))
    assert found.store.recovery is not None
    assert found.store.recovery.rebuilt


def test_the_log_says_which_queue_lacks_which_message(image: Image) -> None:
    found = open_store(remove_last_file(image, "quiet"), at_ms=1_000_000)
    (report,) = found.reports
    assert report.startswith(
        "a consume queue was not as it should be, all queues and indexes are written again: "
        "topic=quiet queue=0"
    )
    assert "its units end at 20, and the log has 24 at " in report
    found.disk.kill()


def test_its_progress_is_told(image: Image) -> None:
    """A log of GiB takes seconds."""
    reached: list[tuple[int, int]] = []
    found = open_store(
        image, at_ms=1_000_000, on_progress=lambda offset, end: reached.append((offset, end))
    )
    assert found.store.recovery is not None
    compared = found.store.recovery.compared
    assert reached[-2:] == [(found.store.log.start, compared), (compared, compared)]
    found.disk.kill()


@pytest.mark.parametrize("topic", ["quiet", "single"])
def test_a_topic_that_nobody_knows_any_more_was_deleted(
    filled: Opened, image: Image, topic: str
) -> None:
    expected = state(filled)
    del expected[topic]
    found = open_store(remove_directory(image, topic), at_ms=1_000_000, unknown={topic})
    assert state(found) == expected
    assert found.reports == []
    found.disk.kill()


def test_a_topic_that_was_deleted_and_made_anew_does_not_get_its_old_messages_back() -> None:
    found = fill(trimmed=False)
    found.store.delete_queues("quiet", does_nothing)
    found.loop.run()
    for _ in range(4):
        put(found, "quiet")
    for _ in range(60):
        put(found, "busy")
        found.flush()
    expected = state(found)
    image = without(found.image(), RECORD, BACKUP)
    found.disk.kill()
    opened = check(image, expected)
    assert opened.store.recovery is not None
    assert opened.store.recovery.compared is not None
    assert not opened.store.recovery.rebuilt


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("topic", ["quiet"])
def test_when_all_is_written_again_such_a_topic_has_what_came_since_it_was_made_anew(
    topic: str, trimmed: bool
) -> None:
    """Before, its messages were set apart in a trimmed log, and in another the old ones came behind
    them."""
    found = fill(trimmed=trimmed)
    found.store.delete_queues(topic, does_nothing)
    found.loop.run()
    for _ in range(4):
        put(found, topic)
    found.flush()
    expected = state(found)
    image = without(found.image(), RECORD, BACKUP)
    found.disk.kill()
    opened = check(without(image, *(path for path in image if "index" in path.parts)), expected)
    assert opened.store.recovery is not None
    assert opened.store.recovery.rebuilt
    assert opened.store.recovery.damages == ()


@pytest.mark.parametrize("lost", ["lost", "another broker's"])
@pytest.mark.parametrize("topic", ["quiet"])
@pytest.mark.parametrize("old_before", [0, 30])
def test_such_a_topic_has_only_its_new_messages_also_where_the_log_is_read_again(
    topic: str, old_before: int, lost: str
) -> None:
    """It was deleted and made anew behind the checkpoint. Before, its old messages came behind the
    new ones, or all was written again after each kill."""
    found = open_store({})
    for _ in range(old_before):
        found.put(topic, 0, b"old", "k")
    for _ in range(60):
        put(found, "busy")
        found.flush()
    found.clock.ms += 60_000
    for _ in range(5):
        found.put(topic, 0, b"old", "k")
    found.store.delete_queues(topic, does_nothing)
    found.loop.run()
    for _ in range(2):
        found.put(topic, 0, b"new", "k")
    found.flush()
    expected = state(found)
    image = (
        without(found.image(), RECORD, BACKUP)
        if lost == "lost"
        else {**found.image(), ROOT / "lock": b"lock"}
    )
    found.disk.kill()
    for start in (1, 2, 3):
        again = open_store(image, at_ms=start * 1_000_000)
        assert again.store.recovery is not None
        assert (again.store.recovery.begun_at > 0, again.store.recovery.rebuilt, again.reports) == (
            True,
            False,
            [],
        )
        assert state(again) == expected
        assert again.bodies(topic, 0) == {0: b"new", 1: b"new"}
        image = again.image()
        again.disk.kill()


@pytest.mark.parametrize("topic", ["quiet"])
def test_an_empty_queue_of_a_topic_that_was_made_anew_does_not_get_its_deleted_messages(
    topic: str,
) -> None:
    """Nothing is lost but the note. Before, all was written again, with the deleted messages of
    that queue."""
    found = open_store({})
    for number in range(12):
        found.put(topic, number % 2, b"old", "k")
    for _ in range(20):
        put(found, "busy")
    found.flush()
    found.store.delete_queues(topic, does_nothing)
    found.loop.run()
    found.put(topic, 1, b"new", "k")
    for _ in range(60):
        put(found, "busy")
        found.flush()
    image = without(found.image(), RECORD, BACKUP)
    found.disk.kill()
    for start in (1, 2):
        again = open_store(image, at_ms=start * 1_000_000)
        assert again.store.recovery is not None
        assert (again.store.recovery.rebuilt, again.reports) == (False, [])
        assert (again.bodies(topic, 0), again.bodies(topic, 1)) == ({}, {0: b"new"})
        image = again.image()
        again.disk.kill()


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("noted", [True, False])
def test_a_queue_an_earlier_release_continued_behind_its_old_messages_keeps_its_offsets(
    noted: bool, goes_on: bool
) -> None:
    """It wrote the new messages in place of the first old ones and went on where those had
    ended."""
    found = fill(trimmed=False)
    found.store.delete_queues("quiet", does_nothing)
    found.loop.run()
    for _ in range(4):
        put(found, "quiet")
    queue = found.store.queue("quiet", 0)
    assert queue is not None
    queue.fill_gap(25, found.store.log.end)
    for number in range(3 if goes_on else 0):
        assert put(found, "quiet") == 25 + number
    for _ in range(40 if noted else 0):
        put(found, "busy")
    found.loop.run()
    found.flush()
    image, end = found.image(), 28 if goes_on else 25 if noted else 4
    if noted:
        known = decode_known(image[RECORD])
        known.deleted.clear()
        image = {**image, RECORD: encode(known)}
    else:
        image = without(image, RECORD, BACKUP)
    found.disk.kill()
    for _ in range(2):
        image = without(image, *(path for path in image if "index" in path.parts))
        again = open_store(image, at_ms=1_000_000)
        assert again.store.recovery is not None
        assert again.store.recovery.rebuilt
        assert again.store.recovery.damages == ()
        assert again.store.max_offset("quiet", 0) == end
        assert sorted(again.bodies("quiet", 0)) == [0, 1, 2, 3, *range(25, end)]
        image = again.image()
        again.disk.kill()


@pytest.mark.parametrize("lost", [None, "quiet"])
def test_a_queue_that_has_no_message_in_the_log_goes_on_where_its_files_tell(
    lost: str | None,
) -> None:
    filled = fill(trimmed=True)
    image = without(filled.image(), RECORD, BACKUP)
    (last,) = files_of(image, "gone")
    image = with_zeros(image, last, 0, len(image[last]))
    if lost is not None:
        image = remove_directory(image, lost)
    found = open_store(image, at_ms=1_000_000)
    assert found.store.recovery is not None
    assert found.store.recovery.rebuilt == (lost is not None)
    assert found.store.max_offset("gone", 0) == 10, "the file begins there"
    assert put(found, "gone") == 10
    filled.disk.kill()
    found.disk.kill()


def test_damage_in_the_log_is_no_reason_to_write_queues_again(filled: Opened, image: Image) -> None:
    expected = state(filled)
    for topic, index in (("quiet", -3), ("busy", -60)):
        offset, size, _ = expected[topic][2][index]
        path = ROOT / "commitlog" / f"{offset // 4096 * 4096:020d}"
        image = with_zeros(image, path, offset % 4096 + 60, offset % 4096 + size)
    found = open_store(image, at_ms=1_000_000)
    assert found.store.recovery is not None
    assert found.store.recovery.compared is not None
    assert (found.store.recovery.rebuilt, found.reports) == (False, [])
    assert {topic: end for topic, (_, end, _) in state(found).items()} == {
        topic: end for topic, (_, end, _) in expected.items()
    }
    found.disk.kill()


def test_without_checkpoint_and_with_an_abort_file_all_of_the_log_is_read(filled: Opened) -> None:
    """What the documentation tells somebody who knows that files were lost after a clean stop of
    Apache's broker."""
    before = open_store(filled.image(), at_ms=1_000_000)
    before.store.close()
    image = {
        **remove_directory(before.image(), "quiet"),
        ROOT / "lock": b"lock",
        ROOT / "abort": b"",
    }
    before.disk.kill()
    check(without(image, ROOT / "checkpoint"), state(filled))


@pytest.mark.parametrize("checkpoint", ["lost", "torn", "empty"])
@pytest.mark.parametrize("topic", ["quiet"])
def test_a_short_log_that_was_stopped_cleanly_is_compared_too_if_its_checkpoint_is_lost(
    topic: str, checkpoint: str
) -> None:
    """Nothing is noted of a log of one segment, and the checkpoint says how many units there
    were."""
    found = open_store({})
    for _ in range(3):
        put(found, topic, 20)
        put(found, "busy", 20)
    expected = state(found)
    found.store.close()
    image = found.image()
    found.disk.kill()
    assert RECORD not in image
    path = ROOT / "checkpoint"
    torn = {"lost": {}, "torn": {path: image[path][:100]}, "empty": {path: bytes(4096)}}[checkpoint]
    for left in (image, {**without(image, path), **torn}):
        check(left, expected)
        check(remove_directory(left, topic), expected)
    whole = open_store({**without(image, path), **torn}, at_ms=1_000_000)
    assert whole.store.recovery is not None
    assert not whole.store.recovery.rebuilt
    whole.disk.kill()
