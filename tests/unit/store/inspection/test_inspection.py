"""Verifying a store: what is whole is called clean, and every damage is found and named."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.directory import HOST, Directory
from tests.unit.store.inspected import (
    ENTRIES_AT,
    SMALL_FILES,
    changed,
    flip,
    numbered_store,
    put_numbers,
    tree,
    verified,
    zero,
)

from turbopump.disk.read_only_disk import ReadOnlyDisk, ReadOnlyFile
from turbopump.errors import StoreError
from turbopump.message.entry import topic_span
from turbopump.message.properties import property_value
from turbopump.protocol import fastjson
from turbopump.store.files import StorePaths
from turbopump.store.index.key_index import WAITING_MAX
from turbopump.store.inspection import index_check, inspect_store, log_walk, queue_check
from turbopump.store.inspection.entry_facts import last_value
from turbopump.store.message_store import NewMessage

COUNT = 50


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests of this module leave as it is."""
    return numbered_store(tmp_path_factory.mktemp("whole") / "store", COUNT).paths.root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def indexes(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def entry_places(root: Path) -> list[tuple[Path, int, int]]:
    """(segment, position, size) of every entry."""
    places = []
    for segment in segments(root):
        data, at = segment.read_bytes(), 0
        while at < len(data) and data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
            size = int.from_bytes(data[at : at + 4])
            places.append((segment, at, size))
            at += size
    return places


def test_a_whole_store_is_clean_and_everything_in_it_is_counted(whole: Path) -> None:
    result = verified(whole)
    assert result.findings.kept == []
    assert result.clean
    assert (result.messages, result.units, result.index_entries, result.queues) == (
        COUNT,
        COUNT,
        3 * COUNT,
        2,
    )
    assert (result.log_start, result.segments, result.index_files) == (
        0,
        len(segments(whole)),
        len(indexes(whole)),
    )
    assert result.message_bytes == sum(size for _, _, size in entry_places(whole))


def test_nothing_is_changed_by_looking(root: Path) -> None:
    (root / "commitlog" / "stray").write_bytes(b"x")
    with changed(segments(root)[0], flip(700)):
        before = tree(root)
        assert not verified(root).clean
        inspect_store(StorePaths(root), read_table=fastjson.parse)
        assert tree(root) == before


def test_any_bit_flipped_in_an_entry_is_found_at_its_place(root: Path) -> None:
    for number, (segment, at, size) in enumerate(entry_places(root)):
        for bit in range(number * 7 % 29, size * 8, 331):
            with changed(segment, flip(at + bit // 8, bit % 8)):
                result = verified(root)
            assert result.messages == COUNT - 1, (segment.name, at, bit)
            (found,) = [one for one in result.findings.kept if one.kind.startswith("log_")]
            assert found.offset == int(segment.name) + at
            assert found.kind == ("log_torn_tail" if number == COUNT - 1 else "log_damaged")
            assert found.file == f"commitlog/{segment.name}"


def test_a_damaged_message_leaves_a_unit_and_index_entries_that_point_to_nothing_good(
    root: Path,
) -> None:
    segment, at, _ = entry_places(root)[20]
    with changed(segment, flip(at + 100)):
        result = verified(root)
    assert result.findings.counts == {"log_damaged": 1, "index_wrong": 3, "unit_wrong": 1}
    unit = next(one for one in result.findings.kept if one.kind == "unit_wrong")
    assert (unit.topic, unit.queue_id, unit.index) == ("T", 0, 10)
    assert "no good message" in unit.what


def test_a_torn_tail_ends_the_log(root: Path) -> None:
    segment, at, size = entry_places(root)[-1]
    with changed(segment, zero(at + size // 2, at + size)):
        result = verified(root)
    assert result.log_end == int(segment.name) + at
    assert result.findings.counts == {"log_torn_tail": 1, "unit_beyond_log": 1, "index_wrong": 3}
    assert {one.kind: one.index for one in result.findings.kept}[
        "unit_beyond_log"
    ] == COUNT // 2 - 1


def test_old_bytes_behind_the_end_are_reported_as_a_torn_tail(root: Path) -> None:
    segment, at, size = entry_places(root)[-1]
    old = entry_places(root)[0]
    entry = old[0].read_bytes()[old[1] : old[1] + old[2]]

    def recycled(data: bytearray) -> None:
        data[at + size : at + size + len(entry)] = entry

    with changed(segment, recycled):
        result = verified(root)
    assert result.messages == COUNT
    assert result.findings.counts == {"log_torn_tail": 1}


def test_zeros_in_the_middle_are_passed_over_and_the_rest_is_still_checked(root: Path) -> None:
    first, last = entry_places(root)[3], entry_places(root)[8]
    with changed(first[0], zero(first[1], last[1])):
        result = verified(root)
    assert result.messages == COUNT - 5
    (found,) = [one for one in result.findings.kept if one.kind == "log_damaged"]
    assert (found.offset, found.end) == (first[1], last[1])
    assert found.what == "zeros where a message should begin"


def test_a_damaged_blank_at_the_end_of_a_segment_is_found(root: Path) -> None:
    segment, at, size = [place for place in entry_places(root) if place[0] == segments(root)[0]][-1]
    with changed(segment, flip(at + size + 5)):
        assert verified(root).findings.counts == {"log_damaged": 1}


def test_a_missing_segment_is_a_gap(root: Path) -> None:
    lost = segments(root)[1]
    lost.unlink()
    result = verified(root)
    assert result.findings.counts["log_gap"] == 1
    gap = result.findings.kept[0]
    assert (gap.offset, gap.end) == (int(lost.name), int(lost.name) + SMALL_FILES["segment_size"])
    assert result.findings.counts["unit_wrong"] == COUNT - result.messages


def test_a_deleted_first_segment_is_no_damage_but_retention(root: Path) -> None:
    segments(root)[0].unlink()
    result = verified(root)
    assert result.findings.kept == []
    assert result.log_start == SMALL_FILES["segment_size"]
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert [queue.min_index for queue in summary.queues] == [
        (COUNT - result.messages + 1 - number) // 2 for number in (0, 1)
    ]


def test_a_foreign_file_and_a_segment_of_another_size_are_named(root: Path) -> None:
    (root / "commitlog" / "notes.txt").write_text("x")
    os.truncate(segments(root)[1], 2000)
    found = {one.kind: one.file for one in verified(root).findings.kept}
    assert found["foreign_file"] == "commitlog/notes.txt"
    assert found["segment_size"] == f"commitlog/{segments(root)[1].name}"


def test_any_bit_flipped_in_a_unit_is_found_at_its_place(root: Path) -> None:
    for file in sorted((root / "consumequeue" / "T" / "1").iterdir()):
        units = min(COUNT // 2 - int(file.name) // 20, 10)
        for bit in range(0, units * 160, 23):
            with changed(file, flip(bit // 8, bit % 8)):
                result = verified(root)
            index = int(file.name) // 20 + bit // 160
            assert [(one.kind, one.queue_id, one.index) for one in result.findings.kept] == [
                ("unit_wrong", 1, index)
            ]


def test_missing_units_in_a_row_are_one_finding(root: Path) -> None:
    with changed(root / "consumequeue" / "T" / "0" / f"{200:020}", zero(40, 100)):
        (found,) = verified(root).findings.kept
    assert (found.kind, found.topic, found.queue_id, found.index, found.count) == (
        "unit_missing",
        "T",
        0,
        12,
        3,
    )


def test_a_lost_queue_file_and_a_lost_queue_are_told_by_their_messages(root: Path) -> None:
    (root / "consumequeue" / "T" / "0" / f"{200:020}").unlink()
    shutil.rmtree(root / "consumequeue" / "T" / "1")
    result = verified(root)
    assert result.findings.counts == {"queue_file": 1, "unit_missing": 10 + COUNT // 2}
    assert result.units == COUNT // 2 - 10


def test_a_unit_without_a_message_is_told_apart_by_where_it_points(root: Path) -> None:
    end = verified(root).log_end
    first = entry_places(root)[0]

    def add(data: bytearray) -> None:
        units = [(end + 100, 200), (0, first[2]), (7, 100), (500, 0x7FFFFFFF)]
        data[100:180] = b"".join(struct.pack(">qiq", offset, size, 0) for offset, size in units)

    with changed(root / "consumequeue" / "T" / "0" / f"{400:020}", add):
        found = [(one.kind, one.index, one.what) for one in verified(root).findings.kept]
    assert [one[:2] for one in found] == [
        ("unit_beyond_log", 25),
        ("unit_wrong", 26),
        ("unit_gap", 28),
    ]
    assert "the message of T/0 index 0" in found[1][2]


def test_any_bit_flipped_in_an_index_file_is_found(root: Path) -> None:
    file = indexes(root)[1]
    count = int.from_bytes(file.read_bytes()[36:40])
    # RocketMQ: the seconds of a file's first entry count from where the file before began: they are
    # not judged
    seconds = range(ENTRIES_AT + 32, ENTRIES_AT + 36)
    used = [
        *range(ENTRIES_AT),
        *(at for at in range(ENTRIES_AT + 20, ENTRIES_AT + 20 * count) if at not in seconds),
    ]
    for number, at in enumerate(used):
        if number % 3 == 0:
            with changed(file, flip(at, number % 8)):
                counts = verified(root).findings.counts
            assert counts, f"byte {at}"
            assert set(counts) <= {
                "index_wrong",
                "index_missing",
                "index_chain",
                "index_header",
                "index_layout",
            }


def test_a_lost_index_file_is_told_by_the_messages_that_cannot_be_found(root: Path) -> None:
    indexes(root)[1].unlink()
    result = verified(root)
    assert set(result.findings.counts) == {"index_missing"}
    assert [one.count for one in result.findings.kept] == [result.findings.counts["index_missing"]]


def test_no_index_at_all_is_no_damage(root: Path) -> None:
    shutil.rmtree(root / "index")
    result = verified(root)
    assert result.clean
    assert result.findings.counts == {"no_index": 1}


@pytest.mark.parametrize(("slots", "entries"), [(13, 52), (7, 60), (200, 31)])
def test_the_shape_of_index_files_is_told_by_their_content(
    tmp_path: Path, slots: int, entries: int
) -> None:
    root = numbered_store(
        tmp_path / "store", 30, index_slots=slots, index_entries=entries
    ).paths.root
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert {(one.slots, one.entries) for one in summary.indexes} == {(slots, entries)}
    assert verified(root).findings.kept == []


def test_findings_beyond_the_limit_are_counted(root: Path) -> None:
    for file in (root / "consumequeue" / "T" / "0").iterdir():
        file.write_bytes(
            bytes(data ^ 1 if at % 20 == 7 else data for at, data in enumerate(file.read_bytes()))
        )
    result = verified(root, findings_max=0)
    assert result.findings.kept == []
    assert result.findings.dropped == sum(result.findings.counts.values()) >= COUNT // 2


PROBE = """
import sys, pathlib
from turbopump.disk.read_only_disk import ReadOnlyDisk
print(ReadOnlyDisk().lock_state(pathlib.Path(sys.argv[1])))
"""


def test_a_running_broker_is_noticed_and_what_it_writes_meanwhile_is_not_judged(
    tmp_path: Path,
) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    root = directory.paths.root
    with_store = directory.open()
    try:
        put_numbers(with_store, COUNT, COUNT + 5)
        result = verified(root, on_progress=lambda _done, _size: put_numbers(with_store, 900, 905))
        assert with_store.max_offset("T", 0) > (COUNT + 5) // 2 + 1
        assert result.findings.counts == {"running": 1}
        assert result.messages == COUNT + 5
        # in a process of its own; it also shows that looking from inside has not released the lock
        state = subprocess.run(
            [sys.executable, "-c", PROBE, root / "lock"],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert state.stdout.strip() == f"LockState(held=True, pid={os.getpid()})"
    finally:
        with_store.close()
    assert verified(root).findings.kept == []


def test_segments_and_queues_that_begin_while_the_check_begins_are_no_findings(
    tmp_path: Path,
) -> None:
    directory = numbered_store(tmp_path / "store", 9)
    store = directory.open()

    class Growing(ReadOnlyDisk):
        """A disk on which the broker writes a message, now and then of a new topic, with every file
        that is opened."""

        opened = 0

        def open_file(self, path: Path) -> ReadOnlyFile:
            self.opened += 1
            put_numbers(store, self.opened, self.opened + 1, topic=f"T{self.opened // 4}")
            return super().open_file(path)

    try:
        result = verified(directory.paths.root, Growing())
        assert result.findings.counts == {"running": 1}
        assert result.messages >= 9
    finally:
        store.close()


def environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[4] / "src")}


def test_a_crash_is_noticed_and_a_store_that_was_killed_is_whole(tmp_path: Path) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    put_numbers(store, COUNT, COUNT + 9)
    killed = directory.copy(tmp_path / "killed")
    store.close()
    (tmp_path / "killed" / "abort").write_bytes(b"1 turbopump")
    result = verified(killed.paths.root)
    assert result.findings.counts == {"unclean_stop": 1}, (
        "the last messages waited to be indexed: the next start does it"
    )
    assert result.messages == COUNT + 9


def test_after_a_crash_queues_may_be_behind_the_log_or_ahead_of_it(tmp_path: Path) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    put_numbers(store, COUNT, COUNT + 8)
    put_numbers(store, COUNT + 8, COUNT + 9, topic="New")
    killed = directory.copy(tmp_path / "killed").paths.root
    store.close()
    for queue_id in (0, 1):
        queue_files = sorted((killed / "consumequeue/T" / str(queue_id)).iterdir())
        units = COUNT // 2 + 4
        data = bytearray(queue_files[-1].read_bytes())
        at = (units * 20 - int(queue_files[-1].name)) - 2 * 20
        data[at:] = bytes(len(data) - at)
        queue_files[-1].write_bytes(data)
    shutil.rmtree(killed / "consumequeue/New")
    (killed / "abort").write_bytes(b"1 turbopump")
    result = verified(killed)
    assert result.clean
    assert result.findings.counts == {"unclean_stop": 1, "queue_behind": 5}
    behind = [one for one in result.findings.kept if one.kind == "queue_behind"]
    assert [
        (one.topic, one.queue_id, one.index, one.count)
        for one in sorted(behind, key=lambda one: one.where)
    ] == [("New", 0, 0, 1), ("T", 0, COUNT // 2 + 2, 2), ("T", 1, COUNT // 2 + 2, 2)]
    assert {one.what for one in behind} == {
        f"behind: {count} units will be rebuilt at the next start" for count in (1, 2)
    }
    for name in ("abort", "turbopump.json", "turbopump.json.bak"):
        (killed / name).unlink()
    assert not verified(killed).clean, "after a clean stop it is damage"


def test_a_crash_excuses_only_the_few_last_messages_from_the_index(tmp_path: Path) -> None:
    directory = numbered_store(tmp_path / "store", COUNT)
    store = directory.open()
    assert store.index is not None
    store.index.failed = True  # nothing is indexed from here on
    put_numbers(store, COUNT, COUNT + WAITING_MAX + 1)
    killed = directory.copy(tmp_path / "killed")
    store.close()
    (tmp_path / "killed" / "abort").write_bytes(b"1 turbopump")
    result = verified(killed.paths.root)
    assert result.findings.counts == {"unclean_stop": 1, "index_missing": WAITING_MAX + 1}


def test_a_message_of_ours_without_its_crc_is_damaged_one_of_apaches_is_not(tmp_path: Path) -> None:
    root = numbered_store(tmp_path / "store", 20, with_crc=False).paths.root
    assert verified(root).findings.kept == []
    (root / "turbopump.json").write_text('{"version": 1, "written": [[0, 300]], "indexes": null}')
    found = [one for one in verified(root).findings.kept if one.kind == "log_damaged"]
    assert [one.what for one in found] == ["its CRC (property __CRC32#) is missing"]
    assert found[0].offset == 0


class BadSectors(ReadOnlyDisk):
    """A disk that cannot read some bytes of one file."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._path, self._start, self._end = path, start, end

    def open_file(self, path: Path) -> ReadOnlyFile:
        disk = self

        class BadFile(ReadOnlyFile):
            def read(self, at: int, size: int) -> bytes:
                if self.path == disk._path and at < disk._end and at + size > disk._start:
                    raise OSError(5, "Input/output error", str(path))
                return super().read(at, size)

        return BadFile(path)


def test_bad_sectors_are_reported_and_what_lies_round_them_is_still_checked(tmp_path: Path) -> None:
    root = numbered_store(tmp_path / "store", 100, segment_size=32768).paths.root
    result = verified(root, BadSectors(segments(root)[0], 8192, 8200))
    (unread,) = [one for one in result.findings.kept if one.kind == "unreadable"]
    assert (unread.offset, unread.end, unread.what) == (8192, 12288, "Input/output error")
    assert 100 - 4096 // 100 < result.messages < 100
    assert result.findings.counts["log_damaged"] == 1


def test_a_queue_and_an_index_that_cannot_be_read_are_named(whole: Path) -> None:
    queue = whole / "consumequeue" / "T" / "1" / f"{200:020}"
    (found, missing) = sorted(
        verified(whole, BadSectors(queue, 0, 1)).findings.kept,
        key=lambda one: one.kind != "unreadable",
    )
    assert (found.kind, found.topic, found.queue_id) == ("unreadable", "T", 1)
    assert (missing.kind, missing.index, missing.count) == ("unit_missing", 10, 1)
    index = indexes(whole)[1]
    result = verified(whole, BadSectors(index, ENTRIES_AT + 100, ENTRIES_AT + 101))
    assert {one.file for one in result.findings.kept if one.kind == "unreadable"} == {
        f"index/{index.name}"
    }
    assert set(result.findings.counts) == {"unreadable", "index_missing"}


@pytest.mark.parametrize("size", [40, 111, 1000])
def test_what_is_found_does_not_depend_on_the_pieces_that_are_read(
    root: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage = [
        (entry_places(root)[number][0], entry_places(root)[number][1])
        for number in (0, 13, 14, COUNT - 1)
    ]
    for segment, at in damage:
        with changed(segment, flip(at + 77)):
            expected = [one.as_json() for one in verified(root).findings.kept]
            with monkeypatch.context() as small:
                small.setattr(log_walk, "READ_SIZE", size)
                small.setattr(index_check, "PIECE_SIZE", size // 20 * 20)
                small.setattr("turbopump.store.inspection.index_check.PIECE_SIZE", size // 20 * 20)
                small.setattr("turbopump.store.inspection.index_check._SEARCH_SIZE", size)
                small.setattr(queue_check, "_SCAN_SIZE", size)
                assert [one.as_json() for one in verified(root).findings.kept] == expected


def test_two_segments_of_one_offset_are_an_overlap(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "commitlog", tmp_path / "twin")
    result = verified(root, log_roots=[root / "commitlog", tmp_path / "twin"])
    assert result.findings.counts["segment_size"] == len(segments(root))
    assert result.messages == COUNT


@pytest.mark.parametrize("sign", ["consumequeue/CURRENT", "consumequeue_rocksdb/CURRENT"])
def test_queues_of_other_kinds_are_said_not_to_be_checked(root: Path, sign: str) -> None:
    shutil.rmtree(root / "consumequeue")
    (root / sign).parent.mkdir()
    (root / sign).write_text("MANIFEST-000004\n")
    result = verified(root)
    assert (result.clean, result.findings.counts) == (True, {"not_checked": 1})


def written(root: Path, *messages: tuple[str, str, int, int]) -> Directory:
    """A store of (topic, properties, tagsCode of its unit, sysFlag)."""
    directory = Directory(root, **SMALL_FILES)
    store = directory.open()
    for topic, properties, tags, sys_flag in messages:
        message = NewMessage(
            b"x", properties.replace("=", "\1").replace(";", "\2").encode(), tags, unique="U"
        )
        store.put(
            topic, 0, message, sys_flag=sys_flag, born_timestamp=1, born_host=HOST, store_host=HOST
        )
    store.close()
    return directory


def test_the_units_of_delayed_messages_hold_their_time_of_delivery(tmp_path: Path) -> None:
    delayed = ("SCHEDULE_TOPIC_XXXX", "UNIQ_KEY=U;TAGS=a;DELAY=3;", 1_700_000_010_000, 0)
    assert verified(written(tmp_path / "a", delayed).paths.root).findings.kept == []
    extended = ("T", "UNIQ_KEY=U;TAGS=a;", -(2**63) + 20, 0)  # an address in a ConsumeQueueExt file
    assert verified(written(tmp_path / "b", extended).paths.root).findings.kept == []
    other = ("T", "UNIQ_KEY=U;TAGS=a;", 1_700_000_010_000, 0)
    assert verified(written(tmp_path / "c", other).paths.root).findings.counts == {"unit_wrong": 1}


def test_prepared_and_rolled_back_messages_have_no_unit_and_only_the_first_are_indexed(
    tmp_path: Path,
) -> None:
    pair = [("T", "UNIQ_KEY=U;", 0, flag) for flag in (4, 12, 8)]
    result = verified(written(tmp_path / "a", *pair).paths.root)
    assert result.findings.kept == []
    assert (result.messages, result.units, result.index_entries) == (3, 1, 2)


def test_light_queues_share_the_entries_of_other_topics(tmp_path: Path) -> None:
    names = "UNIQ_KEY=U;INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b;INNER_MULTI_QUEUE_OFFSET=0,0;"
    root = written(tmp_path / "a", ("T", names, 0, 0)).paths.root
    light = root / "consumequeue" / "%LMQ%a" / "0" / ("0" * 20)
    light.parent.mkdir(parents=True)
    light.write_bytes((root / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes())
    assert verified(root).findings.kept == []
    with changed(light, flip(3)):
        (found,) = verified(root).findings.kept
    assert (found.kind, found.topic, found.index) == ("unit_wrong", "%LMQ%a", 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["KEYS", "XKEYS", "KEY", "TAGS"]),
            st.sampled_from(["", "KEYS", "a b", "\1", "é"]),
        )
    )
)
def test_the_quick_look_at_a_property_finds_what_the_plain_one_finds(
    pairs: list[tuple[str, str]],
) -> None:
    text = "".join(f"{name}\1{value}\2" for name, value in pairs)
    for whole_text in (text, text[:-1]):
        assert last_value("\2" + whole_text, "\2KEYS\1") == (
            property_value(whole_text, "KEYS") or ""
        )


class Vanishing(ReadOnlyDisk):
    """A disk where a file that was just listed is gone when it is first opened."""

    def __init__(self) -> None:
        self.opened = 0

    def open_file(self, path: Path) -> ReadOnlyFile:
        self.opened += 1
        if self.opened == 9:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return super().open_file(path)


def test_a_file_that_the_broker_deletes_meanwhile_makes_the_check_begin_anew(whole: Path) -> None:
    disk = Vanishing()
    result = verified(whole, disk)
    assert disk.opened > 9
    assert (result.findings.kept, result.messages, result.segments) == (
        [],
        COUNT,
        len(segments(whole)),
    )


def test_a_topic_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    root = numbered_store(tmp_path / "store", 10, with_crc=False).paths.root
    segment, at, size = entry_places(root)[4]
    topic_at = at + topic_span(segment.read_bytes()[at : at + size])[0]
    with changed(segment, flip(topic_at, 7)):
        result = verified(root)
    assert result.messages == 9
    assert result.findings.counts == {"log_damaged": 1, "unit_wrong": 1, "index_wrong": 3}
    assert result.findings.kept[0].what.startswith("its topic is not UTF-8")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (0, "checkpoint"),
        (8, "checkpoint"),
        (24, "checkpoint"),
        (2, "checkpoint_ahead"),
        (34, "checkpoint_ahead"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_found(root: Path, place: int, kind: str) -> None:
    bit = 7 if kind == "checkpoint" else 1
    with changed(root / "checkpoint", flip(place, bit)):
        assert kind in verified(root).findings.counts


def test_a_checkpoint_of_another_size_is_found(root: Path) -> None:
    os.truncate(root / "checkpoint", 20)
    assert verified(root).findings.counts == {"checkpoint": 1}


def test_tables_are_read_in_apaches_dialect_and_offsets_are_compared_with_the_queues(
    root: Path,
) -> None:
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text('{"topicConfigTable":{"T":{"topicName":"T"},"U":{}}}')
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5,1:26},"gone@g":{0:9}}}')
    (config / "delayOffset.json").write_text('{"offsetTable":{')
    (config / "consumerFilter.json").write_text("")
    result = verified(root)
    assert result.findings.counts == {"table_unreadable": 1, "offset_beyond_queue": 1}
    broken, beyond = result.findings.kept
    assert broken.file == "config/delayOffset.json"
    assert beyond.what == "group g is at 26; the queue ends at 25"
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    counted = {table.path.name: table.entries for table in summary.tables}
    assert counted == {
        "topics.json": 2,
        "consumerOffset.json": 2,
        "delayOffset.json": None,
        "consumerFilter.json": 0,
    }


def test_segments_elsewhere_are_found_when_told(root: Path, tmp_path: Path) -> None:
    roots = [tmp_path / "a" / "log", tmp_path / "b" / "log"]
    for one in roots:
        one.mkdir(parents=True)
    for number, segment in enumerate(segments(root)):
        shutil.move(segment, roots[number % 2] / segment.name)
    (root / "commitlog").rmdir()
    result = verified(root, log_roots=roots)
    assert result.findings.kept == []
    assert result.messages == COUNT


@pytest.mark.parametrize(
    ("made", "asked", "sentence"),
    [
        ("x", "nothing", "is not a directory"),
        (
            "other/x",
            "other",
            "no store directory, because it has no commitlog directory: give the "
            "directory that storePathRootDir",
        ),
        ("up/store/commitlog/x", "up", "did you mean"),
        (
            "commitlog/" + "0" * 20,
            "commitlog",
            "holds segments, but is no store directory: give the directory above it",
        ),
    ],
)
def test_a_wrong_directory_is_one_clear_sentence(
    tmp_path: Path, made: str, asked: str, sentence: str
) -> None:
    path = tmp_path / made
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(StoreError, match=sentence) as refused:
        verified(tmp_path / asked)
    assert "\n" not in str(refused.value)


def test_a_store_that_never_had_a_message_is_clean(tmp_path: Path) -> None:
    root = numbered_store(tmp_path / "store", 0).paths.root
    assert verified(root).findings.kept == []
    summary = inspect_store(StorePaths(root), read_table=fastjson.parse)
    assert (summary.log_start, summary.log_end, summary.queues) == (0, 0, [])


def test_what_is_in_a_store_is_summed_up_without_reading_it_all(whole: Path) -> None:
    summary = inspect_store(StorePaths(whole), read_table=fastjson.parse)
    assert [
        (queue.topic, queue.queue_id, queue.min_index, queue.max_index) for queue in summary.queues
    ] == [("T", 0, 0, 25), ("T", 1, 0, 25)]
    assert summary.log_end == verified(whole).log_end
    assert [one.start for one in summary.segments] == [
        int(segment.name) for segment in segments(whole)
    ]
    assert summary.segments[0].first_stored_ms == 1_700_000_000_000
    assert sum(index.count - 1 for index in summary.indexes) == 3 * COUNT
    assert not summary.state.running
    assert summary.findings.kept == []
