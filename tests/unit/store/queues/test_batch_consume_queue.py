"""Queues of topics with ``queue.type=BatchCQ``: written, read, cut, recovered, trimmed and
repaired."""

import shutil
from pathlib import Path

import pytest
from tests.unit.store.batches import BatchDirectory, messages, put_inner, queue_of, unit_bytes
from tests.unit.store.directory import put, put_batch

from turbopump.store.message_store import MessageStore
from turbopump.store.queues.batch_consume_queue import BATCH_UNIT_SIZE, BatchUnit
from turbopump.store.queues.checked_entries import GetStatus

BATCHES = [
    [b"%d.%d" % (number, part) * 20 for part in range(number % 4 + 1)] for number in range(45)
]
BODIES = [body for batch in BATCHES for body in batch]
WHOLE = list(enumerate(BODIES))


def fill(store: MessageStore) -> None:
    for batch in BATCHES:
        put_inner(store, batch)


def test_a_unit_has_the_bytes_of_apaches(tmp_path: Path) -> None:
    store = BatchDirectory(tmp_path).open()
    put(store, b"elsewhere")
    put_inner(store, [b"a", b"b", b"c"])
    placed = put_inner(store, [b"d", b"e"])
    store.close()

    (file,) = (tmp_path / "batchconsumequeue" / "B" / "0").iterdir()
    assert file.name == "00000000000000000000"
    data = file.read_bytes()
    second = data[BATCH_UNIT_SIZE : 2 * BATCH_UNIT_SIZE]
    size = placed.log_end - placed.offset
    assert second.hex() == (
        f"{placed.offset:016x}{size:08x}{0:016x}{1_700_000_000_000:016x}"
        + "0000000000000003"
        + "0002"
        + "ffffffff"
        + "00000000"
    )
    assert not any(data[2 * BATCH_UNIT_SIZE :])
    assert not (tmp_path / "consumequeue" / "B").exists()


def test_offsets_count_messages_and_a_read_in_the_middle_of_a_batch_gives_it_whole(
    tmp_path: Path,
) -> None:
    store = BatchDirectory(tmp_path).open()
    assert [put_inner(store, [b"x"] * count).queue_offset for count in (3, 1, 4)] == [0, 3, 4]
    assert (store.min_offset("B", 0), store.max_offset("B", 0)) == (0, 8)
    result = store.get("B", 0, 5, 32)
    assert (result.status, result.next_offset, result.count) == (GetStatus.FOUND, 8, 4)
    assert messages(store, 5) == [(5, b"x"), (6, b"x"), (7, b"x")]
    assert store.get("B", 0, 8, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    store.close()


def test_a_read_ends_before_the_batch_that_would_be_too_much_but_always_gives_one(
    tmp_path: Path,
) -> None:
    store = BatchDirectory(tmp_path).open()
    for count in (20, 10, 5):
        put_inner(store, [b"x"] * count)
    assert (store.get("B", 0, 0, 32).count, store.get("B", 0, 0, 32).next_offset) == (30, 30)
    assert (store.get("B", 0, 0, 1).count, store.get("B", 0, 0, 1).next_offset) == (20, 20)
    store.close()


def test_plain_messages_and_unpacked_batches_are_units_of_one_message(tmp_path: Path) -> None:
    store = BatchDirectory(tmp_path).open()
    put(store, b"a", "B", tag="t")
    put_inner(store, [b"b", b"c"])
    placed, _ = put_batch(store, [b"d", b"e"], "B")
    assert placed.queue_offset == 3
    assert messages(store) == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))
    store.close()


def test_a_filter_of_tags_lets_through_what_has_none_of_its_own(tmp_path: Path) -> None:
    store = BatchDirectory(tmp_path).open()
    put(store, b"not wanted", "B", tag="t")
    put_inner(store, [b"b", b"c"])
    put(store, b"no tag at all", "B")
    result = store.get("B", 0, 0, 32, lambda _code: False)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 3, 4)
    put(store, b"not wanted", "B", tag="t")
    assert store.get("B", 0, 4, 32, lambda _code: False).status is GetStatus.NO_MATCHED_MESSAGE
    store.close()


@pytest.mark.parametrize("how", ["clean", "killed", "queues lost", "directory lost"])
def test_opened_again_it_has_every_message_and_goes_on_behind_them(
    tmp_path: Path, how: str
) -> None:
    directory = BatchDirectory(tmp_path / "a")
    store = directory.open()
    fill(store)
    put(store, b"elsewhere")
    if how == "clean":
        store.close()
        twin = directory
    else:
        twin = directory.copy(tmp_path / "b")  # type: ignore[assignment]
        store.close()
        twin = BatchDirectory(tmp_path / "b")
    if how == "queues lost":
        (tmp_path / "b" / "batchconsumequeue" / "B" / "0" / f"{BATCH_UNIT_SIZE * 10:020d}").unlink()
    if how == "directory lost":
        shutil.rmtree(tmp_path / "b" / "batchconsumequeue")
    again = twin.open()
    assert messages(again) == WHOLE
    assert put_inner(again, [b"x", b"y"]).queue_offset == len(WHOLE)
    assert messages(again, len(WHOLE)) == [(len(WHOLE), b"x"), (len(WHOLE) + 1, b"y")]
    again.close()


def test_a_torn_tail_is_cut_by_whole_batches(tmp_path: Path) -> None:
    directory = BatchDirectory(tmp_path / "a")
    store = directory.open()
    fill(store)
    last = queue_of(store).unit_of(len(WHOLE) - 1)
    assert last is not None
    file = store.log.files.at(last.offset)
    assert file is not None
    file.buffer[last.offset - file.start + 100] ^= 1
    directory.copy(tmp_path / "b")
    store.close()
    again = BatchDirectory(tmp_path / "b").open()
    assert messages(again) == WHOLE[: last.base]
    assert again.queues.units == last.base
    again.close()


def test_a_batch_damaged_in_the_log_becomes_a_gap_of_its_messages(tmp_path: Path) -> None:
    directory = BatchDirectory(tmp_path / "a", with_crc=True)
    store = directory.open()
    fill(store)
    damaged = queue_of(store).unit_at(7)
    assert damaged is not None
    file = store.log.files.at(damaged.offset)
    assert file is not None
    file.buffer[damaged.offset - file.start + 100] ^= 1
    directory.copy(tmp_path / "b")
    store.close()
    twin = BatchDirectory(tmp_path / "b", with_crc=True)
    again = twin.open()
    assert messages(again) == [one for one in WHOLE if not damaged.base <= one[0] < damaged.end]
    result = again.get("B", 0, damaged.base, 32)
    assert result.gaps == damaged.messages
    again.close()


def test_what_lies_across_two_queue_files_is_read_without_a_repair(tmp_path: Path) -> None:
    """A gap, too, is as it should be. A search for what is wrong would look at the whole queue, and
    say that it mended something."""
    directory = BatchDirectory(tmp_path / "a", with_crc=True)
    store = directory.open()
    fill(store)
    damaged = queue_of(store).unit_at(9)
    assert damaged is not None
    file = store.log.files.at(damaged.offset)
    assert file is not None
    file.buffer[damaged.offset - file.start : damaged.offset - file.start + damaged.size] = bytes(
        damaged.size
    )
    directory.copy(tmp_path / "b")
    store.close()
    twin = BatchDirectory(tmp_path / "b", with_crc=True)
    again = twin.open()
    told = list(twin.failures)
    for start in range(len(WHOLE)):
        messages(again, start)
    assert twin.failures == told
    again.close()


def test_queues_begin_where_the_log_does_and_files_before_it_may_go(tmp_path: Path) -> None:
    directory = BatchDirectory(tmp_path / "a")
    store = directory.open()
    fill(store)
    queue = queue_of(store)
    log_start = store.log.files.files[2].start
    first = queue.first_at(log_start)
    old = queue.files_before(log_start)
    assert old
    assert (queue.min_index, store.min_offset("B", 0)) == (first, first)
    assert messages(store) == WHOLE[first:]
    assert store.get("B", 0, first - 1, 32).status is GetStatus.OFFSET_TOO_SMALL
    directory.copy(tmp_path / "b")
    store.close()
    for segment in sorted((tmp_path / "b" / "commitlog").iterdir())[:2]:
        segment.unlink()
    shutil.rmtree(tmp_path / "b" / "batchconsumequeue")
    (tmp_path / "b" / "turbopump.json").unlink()
    again = BatchDirectory(tmp_path / "b").open()
    assert messages(again) == WHOLE[first:]
    assert queue_of(again).first_number == 0
    again.close()


@pytest.mark.parametrize(
    "damage", ["a unit", "a sector", "a base", "a count", "a file", "the first", "where it points"]
)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_damaged_units_are_repaired_by_being_read(tmp_path: Path, damage: str, where: str) -> None:
    directory = BatchDirectory(tmp_path, batch_queue_file_size=BATCH_UNIT_SIZE * 100, with_crc=True)
    store = directory.open()
    fill(store)
    if where == "disk":
        store.close()
        store = directory.open()
    queue = queue_of(store)
    units = [queue.unit_at(number) for number in range(queue.next_number)]
    at, size = {
        "a unit": (20 * BATCH_UNIT_SIZE, BATCH_UNIT_SIZE),
        "a sector": (10 * BATCH_UNIT_SIZE + 7, 700),
        "a base": (20 * BATCH_UNIT_SIZE + 28, 8),
        "a count": (20 * BATCH_UNIT_SIZE + 36, 2),
        "a file": (0, 44 * BATCH_UNIT_SIZE),
        "the first": (0, BATCH_UNIT_SIZE),
        "where it points": (20 * BATCH_UNIT_SIZE, 12),
    }[damage]
    piece = queue.numbered_piece(0, 1)
    assert piece is not None
    piece.segment.buffer[at : at + size] = b"\x5a" * size
    found = {
        offset: body for start in range(0, len(WHOLE), 3) for offset, body in messages(store, start)
    }
    assert found == dict(WHOLE)
    assert [queue.unit_at(number) for number in range(queue.next_number)] == units
    assert directory.failures
    store.close()


@pytest.mark.parametrize("at", [7, 20, 22, 33])
def test_where_a_unit_and_its_entry_are_damaged_only_their_messages_are_passed_over(
    tmp_path: Path, at: int
) -> None:
    directory = BatchDirectory(tmp_path, batch_queue_file_size=BATCH_UNIT_SIZE * 100, with_crc=True)
    store = directory.open()
    fill(store)
    store.close()
    store = directory.open()
    queue = queue_of(store)
    damaged = queue.unit_at(at)
    piece = queue.numbered_piece(at, 1)
    assert damaged is not None
    assert piece is not None
    file = store.log.files.at(damaged.offset)
    assert file is not None
    file.buffer[damaged.offset - file.start + 100] ^= 1
    piece.segment.buffer[piece.at : piece.at + BATCH_UNIT_SIZE] = b"\x33" * BATCH_UNIT_SIZE
    assert messages(store) == [one for one in WHOLE if not damaged.base <= one[0] < damaged.end]
    store.close()


def test_a_topic_made_again_as_another_kind_has_queues_of_that_kind(tmp_path: Path) -> None:
    directory = BatchDirectory(tmp_path)
    store = directory.open()
    queue = store.queues.find_or_make("B", 0)
    assert queue.is_batch
    fill(store)
    assert store.queues.delete("B") == 1
    assert not (tmp_path / "batchconsumequeue" / "B").exists()
    store.queues.is_batch = lambda _topic: False
    assert put(store, b"plain", "B").queue_offset == 0
    assert messages(store) == [(0, b"plain")]
    store.close()


def test_queue_files_of_the_wrong_kind_are_replaced_from_the_log(tmp_path: Path) -> None:
    """An earlier release of ours kept queues of Apache's batch topics as plain ones; Apache's
    broker does not start on such files."""
    directory = BatchDirectory(tmp_path)
    store = directory.open()
    fill(store)
    store.close()
    (tmp_path / "consumequeue" / "B").parent.mkdir(exist_ok=True)
    (tmp_path / "batchconsumequeue" / "B").rename(tmp_path / "consumequeue" / "B")
    again = directory.open()
    assert messages(again) == WHOLE
    assert not (tmp_path / "consumequeue" / "B" / "0").exists()
    again.close()


def test_a_unit_is_packed_as_it_is_read() -> None:
    unit = BatchUnit(1 << 40, 1000, -5, 1_700_000_000_000, 77, 32767)
    assert len(unit_bytes(unit)) == BATCH_UNIT_SIZE
