"""The key index: what is put is found, and whatever becomes of its files, the log brings them
back."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import crossed, some
from tests.unit.store.directory import Directory, bodies
from tests.unit.store.indexed import ALWAYS, ENTRIES, SLOTS, answers, fill, indexed, put
from tests.unit.store.looked_up import find_by_key, message_at

from turbopump.disk.system_disk import SystemDisk
from turbopump.message.java import java_hash
from turbopump.message.properties import SysFlag
from turbopump.store.index.index_file import index_file_size, index_hash, key_hash
from turbopump.store.index.key_index import WAITING_MAX
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.log.scanner import entry_at
from turbopump.store.message_store import MessageStore
from turbopump.store.recovery.checkpoint import StoreCheckpoint


def offsets_of(store: Any, topic: str, key: str) -> list[int]:
    return [hit.offset for hit in find_by_key(store.lookup, topic, key, *ALWAYS)]


def test_a_message_is_found_by_its_unique_id_and_by_each_of_its_keys(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    first = put(store, b"a", "red green", "ID1")
    second = put(store, b"b", "green", "ID2")
    other = put(store, b"c", "green", "ID3", topic="U")

    assert offsets_of(store, "T", "ID1") == [first]
    assert offsets_of(store, "T", "red") == [first]
    assert offsets_of(store, "T", "green") == [second, first], "newest first"
    assert offsets_of(store, "U", "green") == [other]
    assert offsets_of(store, "T", "blue") == []
    store.close()


def test_rolled_back_messages_are_not_indexed(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    put(store, b"a", "k", sys_flag=SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMIT)
    prepared = put(store, b"b", "k", sys_flag=SysFlag.TRANSACTION_PREPARED)
    assert [hit.offset for hit in find_by_key(store.lookup, "T", "k", *ALWAYS)] == [prepared]
    store.close()


def test_keys_that_share_a_slot_do_not_hide_each_other(tmp_path: Path) -> None:
    """One slot for all; \"Aa\" and \"BB\" have even the same hash, so the index names both; the
    messages tell."""
    store = indexed(tmp_path, index_slots=1).open()
    aa, bb, cc = (put(store, key.encode(), key) for key in ("Aa", "BB", "cc"))
    assert index_hash("T#Aa") == index_hash("T#BB")
    assert store.index is not None
    walk = store.index.walk("T", "Aa", *ALWAYS)
    assert [finish_now(walk.next_offset()) for _ in range(3)] == [bb, aa, None]
    assert [hit.offset for hit in find_by_key(store.lookup, "T", "Aa", *ALWAYS)] == [aa]
    assert [hit.offset for hit in find_by_key(store.lookup, "T", "BB", *ALWAYS)] == [bb]
    assert [hit.offset for hit in find_by_key(store.lookup, "T", "cc", *ALWAYS)] == [cc]
    store.close()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a",
        "T#0A0B0C",
        "T#Stra\u00dfe",
        "T#\U0001f600\U0001f600",
        "x" * 300,
        "polygenelubricants",
    ],
)
def test_a_key_hashes_as_in_java(key: str) -> None:
    value = abs(java_hash(key))
    assert index_hash(key) == (0 if value == 1 << 31 else value)


@given(topic=st.text(max_size=3), key=st.text(max_size=9))
def test_a_key_s_hash_is_the_same_whether_its_start_is_remembered_or_not(
    topic: str, key: str
) -> None:
    assert key_hash(topic, key) == key_hash(topic, key) == index_hash(f"{topic}#{key}")


def test_the_one_hash_without_a_positive_twin_is_zero_when_its_start_is_remembered_too() -> None:
    key = "jllgvmc"
    assert java_hash(f"T#{key}") == -(1 << 31)
    assert key_hash("T", key) == 0 == index_hash(f"T#{key}")


def test_what_waits_to_be_indexed_is_found_at_once_and_written_by_the_flush(tmp_path: Path) -> None:
    directory = indexed(tmp_path, index_entries=1000)
    store = directory.open()
    assert store.index is not None
    for number in range(WAITING_MAX - 1):
        put(store, b"%d" % number, f"key-{number}")
    assert store.index.names == [], "they wait"
    twin = directory.copy(tmp_path.with_name(tmp_path.name + "-crashed"))
    (hit,) = find_by_key(store.lookup, "T", "key-7", *ALWAYS)
    assert hit.offset == entry_at(store.log, hit.offset).offset  # type: ignore[union-attr]
    assert store.index.files[-1].count == WAITING_MAX
    put(store, b"x", "last")
    store.flusher.flush_queues()
    assert store.index.files[-1].count == WAITING_MAX + 1
    for _ in range(WAITING_MAX):
        put(store, b"more", "more")
    assert store.index.files[-1].count == 2 * WAITING_MAX + 1, "so many are written by themselves"
    store.close()
    again = twin.open()
    assert len(find_by_key(again.lookup, "T", "key-7", *ALWAYS)) == 1
    again.close()


def test_a_full_file_is_followed_by_another_even_between_two_keys_of_a_message(
    tmp_path: Path,
) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 40)  # three keys each: 31 entries a file
    assert store.index is not None
    store.index.write_waiting()
    files = sorted(directory.paths.index.iterdir())
    assert len(files) == 4
    assert {path.stat().st_size for path in files} == {index_file_size(SLOTS, ENTRIES)}
    assert all(len(path.name) == 17 and path.name.isdigit() for path in files)
    for number in range(40):
        (hit,) = find_by_key(store.lookup, "T", f"ID{number:04d}", *ALWAYS)
        message = message_at(store.lookup, hit.offset)
        assert message is not None
        assert message.body == b"%d" % number
        assert hit.message.body == message.body
    assert len(find_by_key(store.lookup, "T", "every", *ALWAYS)) == 40
    assert len(find_by_key(store.lookup, "T", "every", *ALWAYS, 5)) == 5
    fill(directory, store, 40, 40)
    assert len(find_by_key(store.lookup, "T", "every", *ALWAYS, 1000)) == 64, (
        "as many as RocketMQ gives at most"
    )
    store.close()


def walked(index: Any, behind: int) -> list[int]:
    walk = index.walk("T", "every", *ALWAYS, behind)
    return list(iter(lambda: finish_now(walk.next_offset()), None))


def test_files_that_end_before_an_offset_of_the_log_are_not_looked_into(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    offsets = [put(store, b"x", "every", f"ID{number:04d}") for number in range(40)]
    index = store.index
    assert index is not None

    assert walked(index, 0) == offsets[::-1]
    for behind in offsets:
        newer = [offset for offset in walked(index, behind) if offset >= behind]
        assert newer == [offset for offset in offsets[::-1] if offset >= behind]
        assert len(walked(index, behind)) - len(newer) < ENTRIES, (
            "of the file that the offset is in"
        )
    assert len(index.files) > 2
    store.close()


def test_times_count_to_the_millisecond_and_both_ends_are_in(tmp_path: Path) -> None:
    directory = indexed(tmp_path)
    store = directory.open()
    begin = directory.clock.now
    offsets = []
    for _ in range(5):
        offsets.append(put(store, b"x", "k"))
        directory.clock.now += 10_000

    def between(start: int, end: int) -> list[int]:
        return [
            offsets.index(hit.offset)
            for hit in find_by_key(store.lookup, "T", "k", begin + start, begin + end)
        ]

    assert between(0, 40_000) == [4, 3, 2, 1, 0]
    assert between(10_000, 30_000) == [3, 2, 1]
    assert between(10_000, 10_000) == [1]
    assert between(10_001, 19_999) == []
    assert between(1000, 9000) == []
    assert between(-50_000, -1000) == []
    store.close()


def whole(_directory: Directory) -> None:
    pass


def without_the_first(directory: Directory) -> None:
    min(directory.paths.index.iterdir()).unlink()


def without_the_last(directory: Directory) -> None:
    max(directory.paths.index.iterdir()).unlink()


def without_all(directory: Directory) -> None:
    shutil.rmtree(directory.paths.index)


def with_a_short_one(directory: Directory) -> None:
    path = max(directory.paths.index.iterdir())
    path.write_bytes(path.read_bytes()[:-1])


def with_strange_names(directory: Directory) -> None:
    (directory.paths.index / "notes.txt").write_text("hello")
    (directory.paths.index / "20261121").mkdir()


def without_queues_either(directory: Directory) -> None:
    shutil.rmtree(directory.paths.index)
    shutil.rmtree(directory.paths.consume_queues)


@pytest.mark.parametrize(
    ("harm", "clean"),
    crossed(
        [
            whole,
            without_the_first,
            without_the_last,
            without_all,
            with_a_short_one,
            with_strange_names,
            without_queues_either,
        ],
        [True, False],
    ),
)
def test_every_key_and_time_has_the_same_answer_after_a_restart(
    tmp_path: Path, harm: Callable[[Directory], None], clean: bool
) -> None:
    directory = indexed(tmp_path / "a")
    store = directory.open()
    fill(directory, store)
    wanted = answers(store)
    twin = directory.copy(tmp_path / "b")
    store.close()
    left = directory if clean else twin
    harm(left)
    found = left.open()
    assert answers(found) == wanted
    fill(left, found, 5, 60)
    more = answers(found)
    assert [len(more[f"ID{number:04d}"]) for number in range(60, 66)] == [1, 1, 1, 1, 1, 0]
    found.close()
    again = left.open()
    assert answers(again) == more
    again.close()


@pytest.mark.parametrize("fill_byte", [b"\0", b"\x5a", b"\xff"])
def test_whatever_a_crash_leaves_of_the_newest_entries_every_key_is_found_again(
    tmp_path: Path, fill_byte: bytes
) -> None:
    """From any byte on the newest file may not be what was written, also where the checkpoint says
    that it is."""
    directory = indexed(tmp_path / "a", index_entries=300)
    store = directory.open()
    fill(directory, store)
    directory.clock.now += 60_000
    put(store, b"late", "late")
    store.flusher.flush_log()
    store.flusher.flush_queues()
    wanted = answers(store)
    twin = directory.copy(tmp_path / "b")
    store.close()
    (path,) = twin.paths.index.iterdir()
    data = path.read_bytes()
    used = 40 + SLOTS * 4 + 20 * 182
    for cut in some([*range(40, 90, 7), *range(90, used, 117)]):
        copy = twin.copy(tmp_path / "c")
        (copy.paths.index / path.name).write_bytes(data[:cut] + fill_byte * (len(data) - cut))
        found = copy.open()
        assert answers(found) == wanted, f"cut at {cut}"
        found.close()
        shutil.rmtree(tmp_path / "c")


def test_after_a_crash_the_index_is_cut_where_the_log_was_cut(tmp_path: Path) -> None:
    directory = indexed(tmp_path / "a")
    store = directory.open()
    fill(directory, store, 10)
    wanted = answers(store)
    kept = store.log.end
    fill(directory, store, 30, 10)
    twin = directory.copy(tmp_path / "b")
    store.close()
    for path in sorted(twin.paths.commit_log.iterdir()):
        data = path.read_bytes()
        start = int(path.name)
        rest = max(min(kept - start, len(data)), 0)
        path.write_bytes(data[:rest] + bytes(len(data) - rest))
    found = twin.open()
    assert bodies(found) == [b"%d" % number for number in range(10)]
    assert answers(found) == wanted
    found.close()


def test_an_index_switched_on_later_has_every_message_that_was_sent_before(tmp_path: Path) -> None:
    directory = indexed(tmp_path / "a")
    without = Directory(tmp_path / "a")
    without.clock = directory.clock
    reference = indexed(tmp_path / "reference")
    both = []
    for each in (directory, reference):
        store = each.open()
        fill(each, store, 20)
        if each is directory:
            store.close()
            store = without.open()
            assert find_by_key(store.lookup, "T", "every", *ALWAYS) == []
        fill(each, store, 20, 20)
        store.close()
        store = each.open()
        both.append(answers(store))
        store.close()
    assert both[0] == both[1]


def test_an_index_that_cannot_grow_refuses_no_message_and_is_filled_at_the_next_start(
    tmp_path: Path,
) -> None:
    directory = indexed(tmp_path)
    full = True

    class Disk(SystemDisk):
        def create_sparse(self, path: Path, size: int) -> Any:
            if full and path.parent.name == "index" and len(list(path.parent.iterdir())) == 1:
                raise OSError(errno.EIO, "Input/output error")
            return super().create_sparse(path, size)

    store = MessageStore.open(directory.config, Disk(), directory.clock, directory.failures.append)
    fill(directory, store, 30)
    assert bodies(store) == [b"%d" % number for number in range(30)]
    assert len(find_by_key(store.lookup, "T", "every", *ALWAYS)) == 10
    (failure,) = directory.failures
    assert "Input/output error" in failure
    twin = directory.copy(tmp_path.with_name(tmp_path.name + "-crashed"))
    store.close()
    full = False
    for each in (directory, twin):
        again = each.open()
        assert len(find_by_key(again.lookup, "T", "every", *ALWAYS)) == 30
        again.close()


def test_after_a_crash_no_file_reaches_across_the_time_apaches_broker_refills_from(
    tmp_path: Path,
) -> None:
    """Its own index, after a crash of its own, has messages twice; ours has not, so that all files
    behind end elsewhere."""
    directory = indexed(tmp_path)
    store = directory.open()
    assert store.index is not None
    fill(directory, store)
    store.index.write_waiting()
    newest = store.index.files[-1]
    newest.append_entries([(1, newest.end_offset, newest.end_timestamp)])
    fill(directory, store, start=60)
    store.index.write_waiting()
    full = [file.end_timestamp for file in store.index.files[:-1]]
    store.index.dirty_segments()
    twin = directory.copy(tmp_path.with_name(tmp_path.name + "-crashed"))
    store.close()
    point = StoreCheckpoint(SystemDisk(), twin.paths.checkpoint)
    point.index_timestamp = full[-1]
    point.write()
    point.close()

    store = twin.open()

    assert store.index is not None
    store.index.write_waiting()
    point = StoreCheckpoint(SystemDisk(), twin.paths.checkpoint)
    assert 0 <= point.index_timestamp < full[-1]
    for file in store.index.files:
        assert (
            file.begin_timestamp >= point.index_timestamp
            or file.end_timestamp <= point.index_timestamp
        )
    point.close()
    store.close()


def test_the_newest_messages_come_first_after_a_restart_too_though_the_clock_went_back(
    tmp_path: Path,
) -> None:
    """Index files have the local time as name, and are read in order of names: so it is each
    autumn."""
    directory = indexed(tmp_path)
    store = directory.open()
    fill(directory, store, 40)
    directory.clock.now -= 3_600_000
    fill(directory, store, 40, start=40)
    before = answers(store)
    newest = before["every"][0]
    assert newest == max(before["every"])
    store.close()
    store = directory.open()
    assert answers(store) == before
    store.close()
