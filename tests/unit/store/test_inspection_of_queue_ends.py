"""Verifying a store of which queues end too early: what is said of the next start is what it does."""

import shutil
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from tests.unit.store.directory import Directory
from tests.unit.store.inspected import SMALL_FILES, numbered_store, put_numbers, verified

from turbopump.store.queue_ends import decode_known

COUNT = 50


def killed_behind_its_checkpoint(tmp_path: Path) -> Path:
    """Both queues have messages far before the checkpoint, and only queue 1 of T has one behind it."""
    directory = numbered_store(tmp_path / "store", COUNT)
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
def test_units_that_the_next_start_would_not_miss_are_damage(tmp_path: Path, noted: bool) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    assert verified(root).findings.counts == {"unclean_stop": 1}
    shutil.rmtree(root / "consumequeue/T/0")
    if not noted:
        (root / "turbopump.queues.json").write_bytes(b"not what was noted")
        (root / "turbopump.queues.json.bak").unlink()
    result = verified(root)
    (finding,) = [one for one in result.findings.kept if one.kind != "unclean_stop"]
    assert (finding.topic, finding.queue_id, finding.index, finding.count) == ("T", 0, 0, COUNT // 2)
    assert finding.kind == ("queue_behind" if noted else "unit_missing")
    assert ("will be rebuilt at the next start" in finding.what) == noted
    directory = Directory(root, **SMALL_FILES)
    store = directory.open()
    assert store.max_offset("T", 0) == (COUNT // 2 if noted else 0), "as it was said"
    store.close()
    if not noted:
        assert "it will not miss them. Stop the broker and remove the file checkpoint" in finding.what


def test_a_queue_of_whose_end_only_the_note_tells_is_found(tmp_path: Path) -> None:
    root = killed_behind_its_checkpoint(tmp_path)
    record = root / "turbopump.queues.json"
    known = decode_known(record.read_bytes())
    for place in known.places:
        place.ends["Gone"] = {3: 7}
    data = msgspec.json.encode(known)
    record.write_bytes(b'{"crc":%d,"ends":%s}' % (crc32(data), data))
    result = verified(root)
    (finding,) = [one for one in result.findings.kept if one.kind != "unclean_stop"]
    assert (finding.kind, finding.topic, finding.queue_id) == ("queue_end", "Gone", 3)
    assert finding.what.startswith("it ends at 0, and ended at 7 when the log was at ")


def test_messages_of_a_deleted_topic_need_no_units(tmp_path: Path) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    put_numbers(store, COUNT, COUNT + 4, topic="New")
    store.delete_queues("T", lambda _count: None)
    put_numbers(store, COUNT + 4, COUNT + 6)
    store.close()
    assert verified(directory.paths.root).clean
