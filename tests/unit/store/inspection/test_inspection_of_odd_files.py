"""Looking at directories that are odd: files too short, emptied or vanished while they are read,
things that belong to nobody."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, put
from tests.unit.store.inspected import (
    SMALL_FILES,
    changed,
    flip,
    numbered_store,
    put_numbers,
    verified,
    zero,
)

from turbopump.disk.read_only_disk import LockState, ReadOnlyDisk
from turbopump.errors import StoreError
from turbopump.protocol import fastjson
from turbopump.store.files import StoreFile, StorePaths
from turbopump.store.inspection import (
    BadRange,
    Findings,
    Selection,
    inspect_store,
    list_store,
    select_messages,
    verify_store,
)
from turbopump.store.inspection.index_check import read_headers, slot_count
from turbopump.store.inspection.log_walk import LogWalk
from turbopump.store.inspection.queue_check import IndexRuns, QueueUnits

DISK = ReadOnlyDisk()
COUNT = 50


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_store(tmp_path_factory.mktemp("whole") / "store", COUNT).paths.root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def counts(root: Path, disk: ReadOnlyDisk | None = None) -> dict[str, int]:
    return dict(verified(root, disk).findings.counts)


def newest(directory: Path) -> Path:
    return max(directory.iterdir())


# --- the log ---


def test_a_segment_that_was_emptied_since_it_was_listed_ends_where_it_ended(root: Path) -> None:
    store = list_store(DISK, StorePaths(root), Findings())
    last = store.segments[-1]
    before = [
        offset for offset, _ in LogWalk(DISK, store.segments).entries() if offset < last.start
    ]
    last.path.write_bytes(b"")
    bad: list[BadRange] = []
    walk = LogWalk(DISK, store.segments, on_bad=bad.append)
    assert [offset for offset, _ in walk.entries()] == before
    assert bad == []
    assert walk.end == last.start


def test_behind_damage_in_a_segment_that_became_shorter_there_is_nothing_to_go_on_with(
    root: Path,
) -> None:
    store = list_store(DISK, StorePaths(root), Findings())
    first, second = store.segments[:2]
    second.path.write_bytes(b"")
    with changed(first.path, zero(0, first.size)):
        assert list(LogWalk(DISK, [first, second]).entries()) == []


def test_a_segment_cut_a_few_bytes_behind_a_message_has_no_room_for_a_blank(root: Path) -> None:
    store = list_store(DISK, StorePaths(root), Findings())
    entries = list(LogWalk(DISK, store.segments).entries())
    last = store.segments[-1]
    offset, entry = entries[-2]
    end = offset + len(entry) - last.start
    last.path.write_bytes(last.path.read_bytes()[: end + 5])
    found = verified(root).findings.kept
    assert [one.what for one in found if one.kind == "log_torn_tail"] == [
        "5 bytes at the end of a segment are too few for a blank"
    ]


def test_a_last_segment_cut_right_behind_a_message_has_lost_none_that_it_still_has(
    root: Path,
) -> None:
    """As recovery sees it, which makes the file longer again. Another segment must have room for a
    blank behind each message."""
    store = list_store(DISK, StorePaths(root), Findings())
    entries = list(LogWalk(DISK, store.segments).entries())
    for segment, lost in ((store.segments[-1], 0), (store.segments[1], 1)):
        inside = [
            (offset, entry) for offset, entry in entries if segment.start <= offset < segment.end
        ]
        offset, entry = inside[0]
        whole = segment.path.read_bytes()
        segment.path.write_bytes(whole[: offset + len(entry) - segment.start])
        assert verified(root).messages == COUNT - len(inside) + 1 - lost
        segment.path.write_bytes(whole)


def test_a_walk_with_an_end_opens_no_segment_behind_it(root: Path) -> None:
    store = list_store(DISK, StorePaths(root), Findings())
    (root / "commitlog" / store.segments[2].path.name).unlink()
    end = store.segments[2].start
    assert 0 < len(list(LogWalk(DISK, store.segments).entries(0, end))) < COUNT


class RunningDisk(ReadOnlyDisk):
    """A disk on which a broker has the store open."""

    def lock_state(self, path: Path) -> LockState:
        return LockState(True, 1)


def half_a_message(at: Any, data: bytearray) -> None:
    data[at : at + 100] = data[:100]


def test_beside_a_running_broker_a_half_written_message_at_the_end_is_none_of_our_business(
    root: Path,
) -> None:
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    last = newest(root / "commitlog")
    at = summary.log_end - int(last.name)

    with changed(last, partial(half_a_message, at)):
        alone = inspect_store(StorePaths(root), read_table=fastjson.parse)
        beside = inspect_store(StorePaths(root), read_table=fastjson.parse, disk=RunningDisk())
    assert [one.kind for one in alone.findings.kept] == ["log_torn_tail"]
    assert [one.kind for one in beside.findings.kept] == ["running"]


def spread(top: Path) -> Directory:
    """A store with its log in ``a`` and ``b``, two segments in each."""
    directory = Directory(top / "store", **SMALL_FILES)
    directory.paths = StorePaths(top / "store", (top / "a", top / "b"))
    directory.config = replace(directory.config, paths=directory.paths)
    store = directory.open()
    for number in range(12):
        put(store, b"%d" % number * 300)
    store.close()
    return directory


def test_a_log_in_several_directories_is_one_log(tmp_path: Path) -> None:
    paths = spread(tmp_path).paths
    result = verify_store(paths, read_table=fastjson.parse, log_roots=paths.commit_logs)
    assert (result.clean, result.messages, result.segments) == (True, 12, 4)
    summary = inspect_store(paths, read_table=fastjson.parse, log_roots=paths.commit_logs)
    assert [Path(one.file).parent.name for one in summary.segments] == ["a", "b"] * 2
    bad: list[BadRange] = []
    store = list_store(DISK, paths, Findings(), paths.commit_logs)
    found = [
        message.body for message in select_messages(DISK, store, Selection(topic="T"), bad.append)
    ]
    assert found == [b"%d" % number * 300 for number in range(12)]


def test_a_directory_of_the_log_that_is_not_given_is_named(tmp_path: Path) -> None:
    root, a, b = tmp_path / "store", tmp_path / "a", tmp_path / "b"
    spread(tmp_path)
    with pytest.raises(StoreError, match=f"its log was in {a},{b}, give that as --commit-log"):
        verified(root)
    found = {one.kind: one for one in verified(root, log_roots=[a]).findings.kept}
    assert {"log_root_missing", "log_gap"} <= found.keys()
    assert f"segment {2048:020d} was in {b}" in found["log_root_missing"].what
    shutil.move(b, tmp_path / "c")
    result = verified(root, log_roots=[a, tmp_path / "c"])
    assert result.findings.counts == {"no_index": 1}, "moved, and given"


# --- queues ---


def test_what_lies_among_the_queues_and_is_none_is_passed_over_or_named(root: Path) -> None:
    (root / "consumequeue" / "T" / "notes").mkdir()
    (root / "consumequeue" / "T" / "0" / "directory").mkdir()
    assert counts(root) == {}
    (root / "consumequeue" / "T" / "0" / "stray").write_bytes(b"12345")
    (found,) = verified(root).findings.kept
    assert (found.kind, found.file) == ("foreign_file", "consumequeue/T/0/stray")
    assert "'stray' (5 bytes) does not belong to a store" in found.what


def only_file(root: Path, size: int) -> None:
    files = sorted((root / "consumequeue" / "T" / "1").iterdir())
    for other in files[1:]:
        other.unlink()
    files[0].write_bytes(files[0].read_bytes()[:size])


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda root: only_file(root, 50), "its 50 bytes are not whole units of 20"),
        (lambda root: only_file(root, 0), "its 0 bytes are not whole units of 20"),
        (
            lambda root: (root / "consumequeue/T/1" / f"{200:020}").unlink(),
            "it does not follow 00000000000000000000",
        ),
        (
            lambda root: newest(root / "consumequeue/T/1").write_bytes(bytes(100)),
            "it has 100 bytes, the other files",
        ),
    ],
)
def test_files_of_a_queue_that_cannot_belong_together_are_named(
    root: Path, spoil: Callable[[Path], object], what: str
) -> None:
    spoil(root)
    found = [one for one in verified(root).findings.kept if one.kind == "queue_file"]
    assert [one.what[: len(what)] for one in found] == [what]
    assert (found[0].topic, found[0].queue_id) == ("T", 1)


def test_a_queue_without_a_unit_ends_where_it_begins(root: Path) -> None:
    for file in (root / "consumequeue" / "T" / "1").iterdir():
        file.write_bytes(bytes(200))
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert [(one.queue_id, one.min_index, one.max_index) for one in summary.queues] == [
        (0, 0, 25),
        (1, 0, 0),
    ]
    (found,) = verified(root).findings.kept
    assert (found.kind, found.index, found.count) == ("unit_missing", 0, 25), (
        "one finding for all of them"
    )


def mark_as_gap(data: bytearray) -> None:
    data[88:92] = (0x7FFFFFFF).to_bytes(4)  # unit 24, the last


def test_a_queue_that_ends_with_a_gap_has_its_newest_message_elsewhere(root: Path) -> None:
    with changed(newest(root / "consumequeue" / "T" / "1"), mark_as_gap):
        summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert summary.log_end == verified(root).log_end
    assert summary.findings.kept == []


def test_a_unit_emptied_between_others_is_named(root: Path) -> None:
    store = list_store(DISK, StorePaths(root), Findings())
    (offset, entry), *_ = LogWalk(DISK, store.segments).entries(store.segments[0].start)
    with (
        changed(store.segments[0].path, flip(offset + len(entry) - 30)),
        changed(root / "consumequeue" / "T" / "0" / f"{0:020}", zero(0, 20)),
    ):
        found = {one.kind: one for one in verified(root).findings.kept}
    assert found["log_damaged"].offset == offset
    assert found["unit_empty"].index == 0
    second, entry = list(LogWalk(DISK, store.segments).entries())[2]
    with (
        changed(store.segments[0].path, flip(second + len(entry) - 30)),
        changed(root / "consumequeue" / "T" / "0" / f"{0:020}", zero(20, 40)),
    ):
        found = {one.kind: one for one in verified(root).findings.kept}
    assert (found["unit_empty"].topic, found["unit_empty"].queue_id, found["unit_empty"].index) == (
        "T",
        0,
        1,
    )


def test_a_queue_whose_middle_file_is_gone_is_judged_without_it(root: Path) -> None:
    (root / "consumequeue" / "T" / "0" / f"{200:020}").unlink()
    assert counts(root) == {"queue_file": 1, "unit_missing": 10}
    units = QueueUnits(DISK, list_store(DISK, StorePaths(root), Findings()).queues["T", 0])
    assert units.read(12) == b""
    assert units.read(21) != b""


def test_the_ranges_that_a_set_of_indexes_lacks() -> None:
    runs = IndexRuns()
    assert list(runs.gaps(0, 3)) == [range(3)]
    for index in (2, 3, 7, 8, 5, 20):
        runs.add(index)
    assert (runs.first, list(runs.gaps(0, 10))) == (
        2,
        [range(2), range(4, 5), range(6, 7), range(9, 10)],
    )
    assert list(runs.gaps(2, 4)) == []
    assert list(runs.gaps(20, 21)) == []


# --- indexes ---


def test_an_index_file_without_a_head_or_of_no_shape_is_named(root: Path) -> None:
    index = newest(root / "index")
    twin = index.with_name("29991231235959999")
    twin.write_bytes(index.read_bytes()[:39])
    (found,) = verified(root).findings.kept
    assert (found.kind, found.what) == ("index_layout", "the file is too short for a header")
    twin.unlink()
    before = index.read_bytes()
    for size in (41, 45):
        index.write_bytes(before[:size])
        found_ = [one for one in verified(root).findings.kept if one.kind == "index_layout"]
        assert [one.what for one in found_] == [
            f"its {size} bytes fit no number of slots that agrees with its entries"
        ]


def test_an_index_file_without_an_entry_tells_nothing_of_its_slots(tmp_path: Path) -> None:
    directory = Directory(tmp_path, **SMALL_FILES)
    store = directory.open()
    put_numbers(store, 0, 1)
    store.close()
    (index,) = (tmp_path / "index").iterdir()
    data = bytearray(index.read_bytes())
    data[36:40] = (1).to_bytes(4)
    index.write_bytes(data)
    (header,) = read_headers(DISK, [index])
    assert (header.count, header.slots, slot_count(DISK, header)) == (1, 0, 0)


def test_index_entries_of_deleted_messages_are_no_damage_until_their_file_goes(
    tmp_path: Path,
) -> None:
    directory = Directory(tmp_path, **SMALL_FILES)
    store = directory.open()
    put_numbers(store, 0, 8)
    while store.log.end < 2 * SMALL_FILES["segment_size"] + 100:
        put(store, b"without a key")
    store.close()
    (directory.paths.commit_log / f"{0:020}").unlink()
    assert counts(tmp_path) == {}


# --- tables, and files that vanish ---


class Vanishing(ReadOnlyDisk):
    """A disk where files whose name contains ``name`` are listed and gone when they are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried = 0

    def open_file(self, path: Path):  # type: ignore[no-untyped-def]
        self._check(path)
        return super().open_file(path)

    def read_file(self, path: Path) -> bytes | None:
        return None if self.name in str(path) else super().read_file(path)

    def _check(self, path: Path) -> None:
        if self.name in str(path):
            self.tried += 1
            raise FileNotFoundError(2, "No such file or directory", str(path))


def test_a_file_that_is_gone_at_every_try_is_an_error_that_names_it(whole: Path) -> None:
    disk = Vanishing("index")
    with pytest.raises(FileNotFoundError, match="index"):
        verified(whole, disk)
    assert disk.tried == 3


class VanishingLate(Vanishing):
    """The same, but index files can be read until the log was walked: only their own check misses
    them, the first time."""

    def __init__(self, opens: int) -> None:
        super().__init__("index")
        self.opens = opens

    def _check(self, path: Path) -> None:
        if self.name in str(path):
            self.tried += 1
            if self.tried == self.opens:
                raise FileNotFoundError(2, "No such file or directory", str(path))


def test_an_index_file_that_retention_takes_at_any_moment_of_a_check_makes_it_begin_anew(
    whole: Path,
) -> None:
    counting = VanishingLate(0)
    assert verified(whole, counting).findings.kept == []
    for moment in range(1, counting.tried + 1):
        disk = VanishingLate(moment)
        assert verified(whole, disk).findings.kept == []
        assert disk.tried > counting.tried


def test_a_table_that_vanishes_is_not_counted_and_one_that_is_no_object_has_no_entries(
    root: Path,
) -> None:
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text('{"topicConfigTable":{"T":{}}}')
    (config / "list.json").write_text("[1,2,3]")
    (config / "number.json").write_text("7")
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert {table.path.name: table.entries for table in summary.tables} == {
        "list.json": 3,
        "number.json": 0,
        "topics.json": 1,
    }
    summary = inspect_store(
        StorePaths(root), read_table=fastjson.parse, disk=Vanishing("topics.json")
    )
    assert {table.path.name for table in summary.tables} == {"list.json", "number.json"}


# --- picking messages out ---


def picked(root: Path, **wanted: object) -> tuple[list[bytes], list[BadRange]]:
    bad: list[BadRange] = []
    store = list_store(DISK, StorePaths(root), Findings())
    selection = Selection(**wanted)  # type: ignore[arg-type]
    return [message.body for message in select_messages(DISK, store, selection, bad.append)], bad


def test_a_message_whose_texts_are_no_utf8_is_told_and_passed_over(tmp_path: Path) -> None:
    root = numbered_store(tmp_path / "store", 6, with_crc=False).paths.root
    store = list_store(DISK, StorePaths(root), Findings())
    offset, entry = list(LogWalk(DISK, store.segments).entries())[2]
    with changed(store.segments[0].path, flip(offset + 84 + 4 + 6 + 1, 7)):  # the topic
        bodies, bad = picked(root)
    assert bodies == [b"body-0", b"body-1", b"body-3", b"body-4", b"body-5"]
    assert [(one.start, one.end) for one in bad] == [(offset, offset + len(entry))]
    assert isinstance(bad[0].segment, StoreFile)


def test_from_an_offset_that_one_queue_does_not_reach_only_the_others_give(root: Path) -> None:
    files = sorted((root / "consumequeue" / "T" / "1").iterdir())
    for file in files[1:]:
        file.unlink()
    bodies, bad = picked(root, topic="T", start=20)
    assert bodies == [b"body-%d" % number for number in range(40, 50)]
    assert bad == []
    assert picked(root, topic="T", queue_id=0, start=99) == ([], [])
