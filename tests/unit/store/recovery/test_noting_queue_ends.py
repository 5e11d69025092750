"""Where queues end is noted, kept true while topics are deleted and files go, and saved without
hurting anybody."""

import errno

import pytest
from tests.stand_ins import does_nothing
from tests.unit.store.ended_queues import (
    BACKUP,
    RECORD,
    check,
    clean,
    encode,
    files_of,
    fill,
    open_store,
    put,
    remove_directory,
    state,
    without,
)

from turbopump.disk.json_table import JsonTable
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.queues.queue_ends import decode_known
from turbopump.store.retention import NextStep


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("ending", ["kill", "clean stop"])
def test_a_deleted_topic_stays_deleted_and_is_no_reason_to_read_the_log_again(
    ending: str, made_again: bool
) -> None:
    found = fill(trimmed=False)
    counts: list[int | OSError] = []
    found.store.delete_queues("quiet", counts.append)
    found.store.delete_queues("busy", counts.append)
    found.store.delete_queues("never was", counts.append)
    found.loop.run()
    assert sorted(map(str, counts)) == ["0", "1", "1"]
    if made_again:
        for number in range(12):
            assert put(found, "busy") == number
    found.flush()
    expected = state(found)
    assert "quiet" not in expected
    if ending == "clean stop":
        found.store.close()
    opened = check(found.image(), expected)
    assert opened.store.recovery is not None
    assert not opened.store.recovery.rebuilt
    check(remove_directory(found.image(), "even"), expected)
    found.disk.kill()


def test_a_kill_between_the_note_and_the_deletion_of_a_topic_finishes_it() -> None:
    found = fill(trimmed=False)
    before = found.image()
    found.store.delete_queues("quiet", does_nothing)
    found.loop.run()
    after = found.image()
    expected = state(found)
    found.disk.kill()
    kept = {path: before[path] for path in files_of(before, "quiet")}
    check({**after, **kept}, expected)
    check({**after, **dict(list(kept.items())[:1])}, expected)


def test_queue_files_go_only_once_it_is_noted_that_they_may() -> None:
    """A kill at any moment of a round: nothing is built again, whatever of the files is gone."""
    found = fill(trimmed=False)
    retention, images = found.store.retention, [found.image()]
    retention.begin_round()
    for step in (retention.delete_next, retention.trim_next):
        following = [NextStep.AT_ONCE]
        while following[-1] is not NextStep.NOTHING:
            step(following.append)
            while found.loop.due:
                found.loop.due.pop(0).run()
                images.append(found.image())
    files = [len(files_of(image, "quiet")) for image in images]
    assert files[0] > files[-1]
    expected = state(found)
    found.disk.kill()
    for image in images:
        opened = open_store(image, at_ms=1_000_000)
        assert opened.store.recovery is not None
        assert (opened.store.recovery.rebuilt, opened.reports) == (False, [])
        assert {topic: end for topic, (_, end, _) in state(opened).items()} == {
            topic: end for topic, (_, end, _) in expected.items()
        }
        opened.disk.kill()


@pytest.mark.parametrize(
    ("first_fault", "report"),
    [(1, "00000000000000000000 is not deleted"), (5, "turbopump.queues.json could not be saved")],
    ids=["start of the log", "ends of queues"],
)
def test_queue_files_stay_while_it_cannot_be_noted_and_go_with_the_next_round(
    first_fault: int, report: str
) -> None:
    found = fill(trimmed=False)
    files = len(files_of(found.image(), "busy"))
    found.disk.fail("rename", nth=first_fault, times=100)
    clean(found)
    assert len(files_of(found.image(), "busy")) == files
    assert any(report in each for each in found.reports)
    found.disk.clear_faults()
    found.store.queue_ends.file.repeat_save()
    found.loop.run()
    clean(found)
    assert len(files_of(found.image(), "busy")) < files
    expected = state(found)
    check(found.image(), expected)
    found.disk.kill()


def test_a_save_that_fails_hurts_no_send_and_is_repeated() -> None:
    found = open_store({})
    found.disk.fail("write", times=3)
    for number in range(60):
        assert put(found, "busy") == number
    found.loop.run()
    put(found, "busy", 3000)
    put(found, "busy", 3000)
    found.loop.run()
    found.disk.clear_faults()
    found.store.queue_ends.file.repeat_save()
    found.loop.run()
    assert (
        decode_known(found.image()[RECORD]).snapshots[-1].at
        == found.store.log.files.files[-1].start
    )
    found.disk.kill()


def test_a_rebuild_keeps_where_emptied_queues_ended_also_by_their_own_files() -> None:
    found = fill(trimmed=True)
    image, expected = without(found.image(), RECORD, BACKUP), state(found)
    found.disk.kill()
    check(without(image, *(path for path in image if "index" in path.parts)), expected)


def test_what_the_log_says_wins_against_the_end_of_an_emptied_queue() -> None:
    found = fill(trimmed=True)
    image = found.image()
    for _ in range(3):
        put(found, "gone")
    found.flush()
    expected = state(found)
    later = found.image()
    found.disk.kill()
    check(remove_directory({**later, RECORD: image[RECORD]}, "gone"), expected)


def test_a_queue_goes_on_at_its_end_although_its_last_messages_after_the_note_are_gone() -> None:
    """The kill came before that place was saved, the start after it had nothing to note, and
    retention then removed the messages."""
    found = open_store({})
    for _ in range(20):
        put(found, "gone")
        found.flush()
    while found.store.log.end < 5 * 4096 - 200:
        put(found, "busy")
        found.flush()
    found.loop.run()
    saved = {path: data for path, data in found.image().items() if path in (RECORD, BACKUP)}
    assert put(found, "gone") == 20
    segments = len(found.store.log.files.files)
    while len(found.store.log.files.files) == segments:
        put(found, "busy")
    for _ in range(3):
        put(found, "busy")
    found.flush()
    image = {**found.image(), **saved}
    found.disk.kill()
    found = open_store(image, at_ms=1_000_000)
    found.clock.ms += 10**9
    clean(found)
    image = found.image()
    known = decode_known(image[RECORD])
    assert known.snapshots[-1].ends["gone"] == {0: 20}
    assert (known.firsts["gone"], found.store.min_offset("gone", 0)) == ({0: 21}, 21)
    found.disk.kill()
    again = open_store(remove_directory(image, "gone"), at_ms=2 * 10**9)
    assert put(again, "gone") == 21
    again.disk.kill()


def refuse(*_arguments: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_record_that_the_disk_cannot_read_or_write_stops_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled = fill(trimmed=False)
    with monkeypatch.context() as patched:
        patched.setattr(
            JsonTable, "load", lambda table, *_rest: setattr(table, "_loaded", True) or refuse()
        )
        patched.setattr(JsonTable, "save_now", refuse)
        found = open_store(filled.image(), at_ms=1_000_000)
    assert state(found) == state(filled)
    assert found.reports == [
        "where the queues ended cannot be read (Input/output error): the next start will know"
    ]
    found.loop.run()
    assert [snapshot.at for snapshot in decode_known(found.image()[RECORD]).snapshots] == [
        found.store.log.end
    ], "saved beside the start"
    found.disk.kill()


def test_queues_that_cannot_be_deleted_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fill(trimmed=False)
    monkeypatch.setattr(ConsumeQueueTable, "delete", refuse)
    told: list[int | OSError] = []
    found.store.delete_queues("quiet", told.append)
    found.loop.run()
    assert [str(one) for one in told] == ["[Errno 5] Input/output error"]
    found.disk.kill()


@pytest.mark.parametrize("noted_again", [False, True])
def test_messages_that_came_while_their_topic_was_deleted_go_with_it(noted_again: bool) -> None:
    found = fill(trimmed=False)
    found.store.delete_queues("quiet", does_nothing)
    for _ in range(3):
        put(found, "quiet")
    while found.store.queue("quiet", 0) is not None:
        found.loop.due.pop(0).run()
    expected = state(found)
    if noted_again:
        found.loop.run()
    image = found.image()
    found.disk.kill()
    opened = check(image, expected)
    assert opened.reports == []
    again = open_store(image, at_ms=1_000_000)
    for number in range(4):
        assert put(again, "quiet") == number
    again.flush()
    expected = state(again)
    check(again.image(), expected)
    check(remove_directory(again.image(), "even"), expected)
    again.disk.kill()


@pytest.mark.parametrize("ending", ["kill", "clean stop"])
def test_a_log_that_lost_its_end_in_a_power_cut_does_not_delete_what_comes_to_its_place(
    ending: str,
) -> None:
    """The topic was deleted when the log was longer."""
    filled = fill(trimmed=False)
    known = decode_known(filled.image()[RECORD])
    known.deleted["new"] = filled.store.log.end + 10_000
    found = open_store({**filled.image(), RECORD: encode(known)}, at_ms=1_000_000)
    filled.disk.kill()
    assert all(
        decode_known(found.image()[path]).deleted["new"] == found.store.log.end
        for path in (RECORD, BACKUP)
    )
    for number in range(5):
        assert put(found, "new") == number
    found.flush()
    expected = state(found)
    if ending == "clean stop":
        found.store.close()
    check(found.image(), expected)
    check(remove_directory(found.image(), "even"), expected)
    found.disk.kill()


def test_such_a_start_is_refused_if_that_cannot_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill(trimmed=False)
    known = decode_known(filled.image()[RECORD])
    known.deleted["new"] = filled.store.log.end + 10_000
    image = {**filled.image(), RECORD: encode(known)}
    filled.disk.kill()
    monkeypatch.setattr(JsonTable, "save_now", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        open_store(image, at_ms=1_000_000)
