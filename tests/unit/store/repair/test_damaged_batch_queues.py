"""Batch queues in which more is damaged than units that can be told from the log: what is lost is
told of, and all else is given."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.unit.store.batches import BatchDirectory, messages, put_inner, queue_of, unit_bytes
from tests.unit.store.directory import put

from turbopump.message.codec import decode_entries
from turbopump.store.disk import SystemDisk
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.batch_consume_queue import (
    BATCH_UNIT_SIZE,
    COUNT_MAX,
    BatchConsumeQueue,
    BatchUnit,
)
from turbopump.store.queues.checked_entries import GetStatus
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.repair.unit_repair import units_between

COUNTS = [2, 1, 3, 1, 2, 4, 1, 1, 2, 3, 1, 2]


@pytest.fixture
def directory(tmp_path: Path) -> BatchDirectory:
    return BatchDirectory(
        tmp_path, batch_queue_file_size=BATCH_UNIT_SIZE * 40, segment_size=1 << 16, with_crc=True
    )


def filled(directory: BatchDirectory) -> MessageStore:
    """A store that was filled, stopped and opened again."""
    store = directory.open()
    for number, count in enumerate(COUNTS):
        put_inner(store, [b"%d.%d" % (number, part) * 20 for part in range(count)])
    store.close()
    return directory.open()


def unit_of(queue: BatchConsumeQueue, number: int) -> BatchUnit:
    unit = queue.unit_at(number)
    assert unit is not None
    return unit


def overwrite(queue: BatchConsumeQueue, number: int, data: bytes) -> None:
    piece = queue.numbered_piece(number, 1)
    assert piece is not None
    piece.segment.buffer[piece.at : piece.at + BATCH_UNIT_SIZE] = data


def damage_entry(store: MessageStore, unit: BatchUnit) -> None:
    file = store.log.files.at(unit.offset)
    assert file is not None
    file.buffer[unit.offset - file.start + 110] ^= 1


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    units=st.sets(st.integers(0, len(COUNTS) - 1)),
    entries=st.sets(st.integers(0, len(COUNTS) - 1), max_size=4),
    seed=st.integers(0, 1 << 32),
    start=st.integers(0, sum(COUNTS) - 1),
)
def test_messages_whose_entries_are_damaged_are_passed_over_and_all_others_given(
    tmp_path_factory: pytest.TempPathFactory,
    units: set[int],
    entries: set[int],
    seed: int,
    start: int,
) -> None:
    root = tmp_path_factory.mktemp("batch")
    store = filled(
        BatchDirectory(
            root, batch_queue_file_size=BATCH_UNIT_SIZE * 40, segment_size=1 << 16, with_crc=True
        )
    )
    queue, chance = queue_of(store), random.Random(seed)
    whole = messages(store)
    lost = {
        index
        for number in entries
        for index in range(unit_of(queue, number).base, unit_of(queue, number).end)
    }
    for number in entries:
        damage_entry(store, unit_of(queue, number))
    for number in units:
        overwrite(
            queue,
            number,
            chance.choice([bytes(BATCH_UNIT_SIZE), chance.randbytes(BATCH_UNIT_SIZE)]),
        )
    for begin in (start, 0):
        assert messages(store, begin) == [
            one for one in whole if one[0] >= begin and one[0] not in lost
        ]
    assert put_inner(store, [b"next"]).queue_offset == len(whole)
    store.close()


def test_who_reads_while_a_queue_is_being_repaired_is_told_to_come_again(
    directory: BatchDirectory,
) -> None:
    store = filled(directory)
    queue = queue_of(store)
    whole = messages(store)
    overwrite(queue, 4, bytes(BATCH_UNIT_SIZE))
    repairing = store.unit_repair.repair_for_message(queue, 7, 4, lambda _directory, _offset: False)
    pieces = next(repairing)
    result = store.get("B", 0, unit_of(queue, 5).base - 1, 32)
    assert (result.status, result.next_offset) == (
        GetStatus.OFFSET_FOUND_NULL,
        unit_of(queue, 5).base - 1,
    )
    assert result.unreadable is not None
    assert "being repaired" in result.unreadable

    def rest() -> None:
        found = pieces
        try:
            while True:
                found = repairing.send(
                    [piece.segment.read(piece.at, piece.size) for piece in found]
                )
        except StopIteration:
            return

    rest()
    assert messages(store) == whole
    store.close()


def test_what_was_repaired_is_told_once_a_search(directory: BatchDirectory) -> None:
    store = filled(directory)
    overwrite(queue_of(store), 3, bytes(BATCH_UNIT_SIZE))
    overwrite(queue_of(store), 8, bytes(BATCH_UNIT_SIZE))
    assert len(messages(store)) == sum(COUNTS)
    assert directory.failures == [
        "2 units of the consume queue of B queue 0 were damaged; they are repaired from the log"
    ]
    store.close()


@pytest.mark.parametrize(
    ("data", "told"), [(b"\xff" * BATCH_UNIT_SIZE, True), (bytes(BATCH_UNIT_SIZE), False)]
)
def test_a_queue_tells_of_damage_where_its_files_end(
    tmp_path: Path, data: bytes, told: bool
) -> None:
    queue = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 10 * BATCH_UNIT_SIZE)
    queue.load()
    for number in range(5):
        assert queue.append(queue.max_index, 1000 * number, 500, 0, 77, 2)
    overwrite(queue, 4, data)
    queue.close()
    again = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 10 * BATCH_UNIT_SIZE)
    again.load()
    assert (again.min_index, again.max_index, again.tail_damaged, again.suspect) == (
        0,
        8,
        told,
        False,
    )
    again.cut_at(1 << 40, lambda *_: True)
    assert (again.max_index, again.tail_damaged) == (8, told)
    again.close()


def test_a_queue_tells_when_its_last_units_are_not_in_the_log(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 10 * BATCH_UNIT_SIZE)
    queue.load()
    for number in range(5):
        assert queue.append(queue.max_index, 1000 * number, 500, 0, 77, 2)
    queue.cut_at(1 << 40, lambda _queue, _index, offset, _size: offset < 3000)
    assert (queue.max_index, queue.tail_damaged) == (6, True)
    queue.close()


@pytest.mark.parametrize("number", [0, 3, 6, 7, 9])
def test_a_queue_of_which_one_unit_points_too_far_is_cut_where_the_others_say(
    tmp_path: Path, number: int
) -> None:
    queue = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 20 * BATCH_UNIT_SIZE)
    queue.load()
    for at in range(10):
        assert queue.append(queue.max_index, 1000 * at, 500, 0, 77, 2)
    queue.rewrite_at(number, unit_of(queue, number)._replace(offset=1 << 50))
    queue.cut_at(7000, lambda _queue, _index, offset, _size: offset < 1 << 40)
    assert queue.max_index == (12 if number == 6 else 14)
    assert queue.tail_damaged or number not in (6, 7)
    queue.close()


def test_an_empty_batch_queue_goes_on_where_it_is_told_to(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 10 * BATCH_UNIT_SIZE)
    queue.load()
    queue.begin_empty_at(17)
    assert (queue.min_index, queue.max_index) == (17, 17)
    queue.close()
    again = BatchConsumeQueue(SystemDisk(), tmp_path / "queue", "B", 0, 10 * BATCH_UNIT_SIZE)
    again.load()
    again.cut_at(5000, lambda *_: True)
    again.raise_min(4096)
    assert (again.min_index, again.max_index, again.suspect) == (17, 17, False)
    assert again.append(17, 5000, 500, 0, 77, 2)
    assert (again.first_at(4096), again.max_index) == (17, 19)
    again.close()


def test_a_queue_of_which_the_log_has_nothing_goes_on_where_it_ended(tmp_path: Path) -> None:
    directory = BatchDirectory(tmp_path, with_crc=True)
    store = directory.open()
    put_inner(store, [b"a", b"b", b"c"])
    while len(store.log.files.files) < 3:
        put(store, b"elsewhere" * 50)
    for queue in store.queues:
        queue.raise_min(store.log.files.files[1].start)
    assert (store.min_offset("B", 0), store.max_offset("B", 0)) == (3, 3)
    assert put_inner(store, [b"d"]).queue_offset == 3
    assert [one.queue_offset for one in decode_entries(store.get("B", 0, 3, 32).data)] == [3]
    store.close()


# --- rows of units
# -----------------------------------------------------------------------------------------------


def entry(base: int, messages: int, offset: int = 500) -> BatchUnit:
    return BatchUnit(offset, 100, 0, 77, base, messages)


def gap(base: int, messages: int, offset: int) -> BatchUnit:
    return BatchUnit(offset, NO_MESSAGE_SIZE, 0, 0, base, messages)


def test_a_row_has_gaps_for_what_is_missing_in_as_many_places_as_are_left() -> None:
    a, b = entry(2, 1, 500), entry(5, 2, 600)
    assert units_between([a, b], 7, 2, 3, 9) == [a, gap(3, 2, 500), b]
    assert units_between([a, b], 7, 2, 4, 9) == [a, gap(3, 1, 500), gap(4, 1, 500), b]
    assert units_between([a, b], 9, 0, 5, 9) == [gap(0, 2, 9), a, gap(3, 2, 500), b, gap(7, 2, 600)]
    assert units_between([a, b], 7, 2, 2, 9) is None, "nothing is left for the gap"
    assert units_between([a, b], 7, 2, 5, 9) is None, "two messages have no three units"


def test_a_row_that_begins_with_what_was_found_takes_as_many_places_as_it_needs() -> None:
    a, b = entry(2, 1), entry(5, 2)
    assert units_between([a, b], 7, None, None, 9) == [a, gap(3, 2, 500), b]
    assert units_between([], 7, None, None, 9) == []


def test_of_entries_with_the_same_messages_the_last_counts() -> None:
    old, older, new = entry(0, 3, 100), entry(3, 4, 200), entry(0, 2, 300)
    assert units_between([old, older, new], 2, 0, 1, 9) == [new]


def test_a_gap_of_more_messages_than_a_unit_can_count_takes_several() -> None:
    row = units_between([], 3 * COUNT_MAX, 0, 4, 9)
    assert row is not None
    assert [unit.messages for unit in row] == [COUNT_MAX, COUNT_MAX, COUNT_MAX - 1, 1]
    assert all(len(unit_bytes(unit)) == BATCH_UNIT_SIZE for unit in row)
    assert units_between([], 3 * COUNT_MAX, 0, 2, 9) is None
