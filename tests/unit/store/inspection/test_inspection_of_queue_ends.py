"""Verifying a store of which queues end too early: units that are reported as behind are those that
the next start writes."""

import shutil
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from tests.stand_ins import does_nothing
from tests.unit.store.directory import Directory
from tests.unit.store.inspected import SMALL_FILES, changed, numbered_store, put_numbers, verified

from turbopump.broker.topics import QueueKinds
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore
from turbopump.store.provenance import LOCK_MARK
from turbopump.store.queues.queue_ends import decode_known

COUNT = 50


def killed_behind_its_checkpoint(tmp_path: Path, directory: Directory | None = None) -> Path:
    """Both queues have messages far before the checkpoint, and only queue 1 of T has one behind
    it."""
    directory = directory or numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    for number in range(COUNT, COUNT + 41, 2):
        put_numbers(store, number + 1, number + 2)
        directory.clock.now += 1000
    store.flusher.flush_log()
    store.flusher.flush_queues()
    killed = directory.copy(tmp_path / "killed")
    store.close()
    (killed.paths.abort).write_bytes(b"1 turbopump")
    return killed.paths.root


@pytest.mark.parametrize("noted", [True, False])
def test_units_that_the_next_start_writes_again_are_behind(tmp_path: Path, noted: bool) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    assert verified(root).findings.counts == {"unclean_stop": 1}
    shutil.rmtree(root / "consumequeue/T/0")
    if not noted:
        forget(root)
    result = verified(root)
    (finding,) = [one for one in result.findings.kept if one.kind != "unclean_stop"]
    assert (finding.topic, finding.queue_id, finding.index, finding.count) == (
        "T",
        0,
        0,
        COUNT // 2,
    )
    if noted:
        assert finding.kind == "queue_behind"
        assert "will be rebuilt at the next start" in finding.what
    else:
        assert finding.kind == "unit_missing"
        assert "remove the file checkpoint" in finding.what
    store = Directory(root, **SMALL_FILES).open()
    assert store.max_offset("T", 0) == COUNT // 2, "it compares what it does not read"
    store.close()


def test_a_killed_store_whose_abort_file_was_removed_is_a_killed_store(tmp_path: Path) -> None:
    """So it is for the next start: what was noted says that our run has not ended."""
    root = killed_behind_its_checkpoint(tmp_path)
    (root / "abort").unlink()
    (finding,) = verified(root).findings.kept
    assert (finding.kind, finding.file) == ("unclean_stop", "turbopump.json")
    shutil.rmtree(root / "consumequeue/T/0")
    assert [(one.kind, one.count) for one in verified(root).findings.kept] == [
        ("unclean_stop", 1),
        ("queue_behind", COUNT // 2),
    ]
    store = Directory(root, **SMALL_FILES).open()
    assert store.recovery is not None
    assert not store.recovery.clean
    assert store.max_offset("T", 0) == COUNT // 2, "as it was said"
    store.close()


@pytest.mark.parametrize("abort", [True, False])
def test_the_entries_of_a_killed_run_of_ours_need_their_crc_with_or_without_the_abort_file(
    tmp_path: Path, *, abort: bool
) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    segment = sorted((root / "commitlog").iterdir())[-1]
    at = segment.read_bytes().rindex(b"__CRC32#")
    if not abort:
        (root / "abort").unlink()
    with changed(segment, lambda data: data.__setitem__(slice(at, at + 8), b"__other#")):
        assert {"log_damaged", "log_torn_tail"} & set(verified(root).findings.counts)


def forget(root: Path) -> None:
    """Nothing is noted of where queues end."""
    (root / "turbopump.queues.json").write_bytes(b"not what was noted")
    (root / "turbopump.queues.json.bak").unlink()


TOPICS = '{"topicConfigTable": {"%s": {"topicName": "%s"}}}'


@pytest.mark.parametrize(
    ("tables", "written_again"),
    [
        ({}, False),
        ({"topics.json": TOPICS % ("Early", "Early")}, True),
        ({"topics.json": TOPICS % ("T", "T")}, False),
        ({"topics.json": "{", "topics.json.bak": TOPICS % ("Early", "Early")}, True),
        ({"topics.json": "{"}, False),
    ],
)
@pytest.mark.parametrize("kept", [None, "0", "1"])
def test_where_nothing_is_noted_a_topic_that_nobody_knows_counts_as_deleted(
    tmp_path: Path, tables: dict[str, str], written_again: bool, kept: str | None
) -> None:
    """Unless one of its queues is there, which a deletion would have taken along."""
    directory = numbered_store(tmp_path / "store", 4)
    store = directory.open()
    put_numbers(store, 4, 10, topic="Early")
    put_numbers(store, 10, 60)
    store.close()
    killed_behind_its_checkpoint(tmp_path, directory)
    root = tmp_path / "killed"
    forget(root)
    assert verified(root).findings.counts == {"unclean_stop": 1}
    for queue in {"0", "1"} - {kept}:
        shutil.rmtree(root / "consumequeue/Early" / queue)
    (root / "config").mkdir(exist_ok=True)
    for name, text in tables.items():
        (root / "config" / name).write_text(text)
    findings = [
        one
        for one in verified(root).findings.kept
        if one.kind not in ("unclean_stop", "table_unreadable")
    ]
    assert {one.queue_id for one in findings} == {0, 1} - {int(kept or -1)}
    assert {(one.kind, one.topic, one.count) for one in findings} == {("unit_missing", "Early", 3)}
    assert all("If the topic was not deleted" in one.what for one in findings)
    paths, disk = StorePaths(root), SystemDisk()
    store = MessageStore.open(
        Directory(root, **SMALL_FILES).config,
        disk,
        directory.clock,
        print,
        is_batch=QueueKinds(disk, paths).is_batch,
    )
    assert store.recovery is not None
    assert store.recovery.compared is not None
    assert [store.max_offset("Early", queue) for queue in (0, 1)] == (
        [3, 3] if written_again or kept is not None else [0, 0]
    )
    store.close()


@pytest.mark.parametrize("lost", [None, "index/*", "consumequeue/T/1/*0", "consumequeue/T/1/*200"])
def test_a_topic_that_counts_as_deleted_comes_back_where_other_files_have_all_written_again(
    tmp_path: Path, lost: str | None
) -> None:
    directory = numbered_store(tmp_path / "store", 4)
    store = directory.open()
    put_numbers(store, 4, 10, topic="Early")
    put_numbers(store, 10, 60)
    store.close()
    killed_behind_its_checkpoint(tmp_path, directory)
    root = tmp_path / "killed"
    forget(root)
    (root / "lock").write_bytes(LOCK_MARK)  # as no Apache broker has had it
    shutil.rmtree(root / "consumequeue/Early")
    if lost is not None:
        min(root.glob(lost)).unlink()
    (finding,) = {one.kind for one in verified(root).findings.kept if one.topic == "Early"}
    assert finding == "unit_missing"
    store = Directory(root, **SMALL_FILES).open()
    assert store.recovery is not None
    assert store.recovery.begun_at > 0 or lost is not None
    assert [store.max_offset("Early", queue) for queue in (0, 1)] == (
        [0, 0] if lost is None else [3, 3]
    )
    store.close()


def test_old_messages_of_an_empty_queue_of_a_topic_that_was_made_anew_are_not_behind(
    tmp_path: Path,
) -> None:
    directory = numbered_store(tmp_path / "store", 4)
    store = directory.open()
    put_numbers(store, 4, 10, topic="Early")
    store.delete_queues("Early", does_nothing)
    put_numbers(store, 11, 12, topic="Early")
    put_numbers(store, 12, 60)
    store.close()
    killed_behind_its_checkpoint(tmp_path, directory)
    root = tmp_path / "killed"
    assert verified(root).findings.counts == {"unclean_stop": 1}
    forget(root)
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text(TOPICS % ("Early", "Early"))
    kinds = {
        (one.kind, one.queue_id) for one in verified(root).findings.kept if one.topic == "Early"
    }
    assert ("unit_missing", 0) in kinds
    assert "queue_behind" not in {kind for kind, _ in kinds}
    paths, disk = StorePaths(root), SystemDisk()
    store = MessageStore.open(
        Directory(root, **SMALL_FILES).config,
        disk,
        directory.clock,
        print,
        is_batch=QueueKinds(disk, paths).is_batch,
    )
    assert store.recovery is not None
    assert not store.recovery.rebuilt
    assert [store.max_offset("Early", queue) for queue in (0, 1)] == [0, 1]
    store.close()


def test_units_of_a_topic_that_is_taken_for_deleted_come_back_without_the_checkpoint(
    tmp_path: Path,
) -> None:
    directory = numbered_store(tmp_path / "store", 4)
    store = directory.open()
    put_numbers(store, 4, 10, topic="Early")
    put_numbers(store, 10, 60)
    store.close()
    killed_behind_its_checkpoint(tmp_path, directory)
    root = tmp_path / "killed"
    forget(root)
    shutil.rmtree(root / "consumequeue/Early")
    (root / "checkpoint").unlink()
    assert {one.kind for one in verified(root).findings.kept} == {"unclean_stop", "queue_behind"}
    store = Directory(root, **SMALL_FILES).open()
    assert [store.max_offset("Early", queue) for queue in (0, 1)] == [3, 3]
    store.close()


def test_a_queue_of_whose_end_only_the_note_tells_is_found(tmp_path: Path) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    record = root / "turbopump.queues.json"
    known = decode_known(record.read_bytes())
    for snapshot in known.snapshots:
        snapshot.ends["Gone"] = {3: 7}
    data = msgspec.json.encode(known)
    record.write_bytes(b'{"crc":%d,"ends":%s}' % (crc32(data), data))
    result = verified(root)
    (finding,) = [one for one in result.findings.kept if one.kind != "unclean_stop"]
    assert (finding.kind, finding.topic, finding.queue_id) == ("queue_end", "Gone", 3)
    assert finding.what.startswith("it ends at 0, and ended at 7 when the log was at ")


def test_a_queue_that_ends_before_it_was_noted_to_begin_is_found(tmp_path: Path) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    record = root / "turbopump.queues.json"
    known = decode_known(record.read_bytes())
    known.firsts["Gone"] = {3: 7}
    data = msgspec.json.encode(known)
    record.write_bytes(b'{"crc":%d,"ends":%s}' % (crc32(data), data))
    (finding,) = [one for one in verified(root).findings.kept if one.kind != "unclean_stop"]
    assert (finding.kind, finding.topic, finding.queue_id) == ("queue_end", "Gone", 3)
    store = Directory(root, **SMALL_FILES).open()
    assert store.recovery is not None
    assert store.recovery.rebuilt, "it is noticed"
    store.close()


def test_messages_of_a_deleted_topic_need_no_units(tmp_path: Path) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    put_numbers(store, COUNT, COUNT + 4, topic="New")
    store.delete_queues("T", does_nothing)
    put_numbers(store, COUNT + 4, COUNT + 6)
    store.close()
    assert verified(directory.paths.root).clean
