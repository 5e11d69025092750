"""Edges of batch queues: empty files, what is appended out of turn, gaps, devices that cannot
read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.store.batches import BatchDirectory, messages, put_inner, queue_of, unit_bytes
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.message.codec import decode_entries
from turbopump.store.disk import SystemDisk
from turbopump.store.log.cold_reads import Steps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.batch_consume_queue import BATCH_UNIT_SIZE, BatchConsumeQueue, BatchUnit
from turbopump.store.queues.checked_entries import GetStatus
from turbopump.store.queues.consume_queue import pack_unit

COUNTS = [3, 1, 4]
"""Messages of the units of a queue: they begin at 0, 3 and 4."""


def opened(directory: Path) -> BatchConsumeQueue:
    queue = BatchConsumeQueue(SystemDisk(), directory, "B", 0, 10 * BATCH_UNIT_SIZE)
    queue.load()
    return queue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[BatchConsumeQueue]:
    queue = opened(tmp_path / "queue")
    for number, count in enumerate(COUNTS):
        assert queue.append(queue.max_index, 1000 * (number + 1), 500, number, 77, count)
    yield queue
    queue.close()


def units_of(queue: BatchConsumeQueue) -> list[BatchUnit | None]:
    return [queue.unit_at(number) for number in range(queue.first_number, queue.next_number)]


def test_files_made_ahead_are_not_the_end_of_the_queue(
    queue: BatchConsumeQueue, tmp_path: Path
) -> None:
    queue.make_room(25)
    units = units_of(queue)
    queue.close()
    again = opened(tmp_path / "queue")
    assert (again.next_number, again.max_index, units_of(again)) == (3, 8, units)
    again.close()


def test_a_queue_whose_files_are_all_empty_begins_with_its_first_message(tmp_path: Path) -> None:
    queue = opened(tmp_path / "queue")
    queue.make_room(15)
    queue.close()
    again = opened(tmp_path / "queue")
    assert (again.min_index, again.max_index, again.next_number) == (0, 0, 0)
    assert again.append(0, 100, 200, 0, 0, 2)
    assert units_of(again) == [BatchUnit(100, 200, 0, 0, 0, 2)]
    again.close()


def test_plain_units_from_the_middle_of_a_batch_have_no_size_until_the_next_begins(
    queue: BatchConsumeQueue,
) -> None:
    assert queue.units(1, 4) == pack_unit(1000, 0, 0) * 2 + pack_unit(2000, 500, 1) + pack_unit(
        3000, 500, 2
    )


def test_a_cut_takes_units_whose_entries_are_not_there_and_stops_at_one_that_is(
    queue: BatchConsumeQueue,
) -> None:
    asked: list[tuple[int, int, int]] = []

    def is_there(_queue: object, index: int, offset: int, size: int) -> bool:
        asked.append((index, offset, size))
        return index < 3

    queue.cut_at(1 << 40, is_there)
    assert asked == [(4, 3000, 500), (3, 2000, 500), (0, 1000, 500)]
    assert (queue.next_number, queue.max_index) == (1, 3)


def test_cutting_a_queue_without_files_leaves_it_empty(tmp_path: Path) -> None:
    queue = opened(tmp_path / "queue")
    queue.cut_at(0, lambda *_: True)
    assert (queue.min_index, queue.max_index, queue.next_number) == (0, 0, 0)
    assert queue.append(0, 0, 100, 0)
    queue.close()


def test_a_unit_of_messages_that_retention_took_is_not_written_again(
    queue: BatchConsumeQueue,
) -> None:
    queue.raise_min(2000)
    units = units_of(queue)
    assert queue.append(0, 9000, 500, 0, 0, 3)
    assert (queue.min_index, queue.max_index, units_of(queue)) == (3, 8, units)


def test_a_unit_behind_missing_messages_is_refused(queue: BatchConsumeQueue) -> None:
    units = units_of(queue)
    assert not queue.append(9, 9000, 500, 0, 0, 3)
    assert (queue.max_index, units_of(queue)) == (8, units)


def test_a_unit_that_is_there_already_is_written_in_its_place(queue: BatchConsumeQueue) -> None:
    before = units_of(queue)
    assert queue.append(3, 2222, 600, 9, 88, 1)
    assert units_of(queue) == [before[0], BatchUnit(2222, 600, 9, 88, 3, 1), before[2]]
    assert queue.max_index == 8


def test_a_unit_of_another_count_takes_the_place_of_all_behind_it(queue: BatchConsumeQueue) -> None:
    first = queue.unit_at(0)
    assert queue.append(3, 2222, 600, 9, 88, 2)
    assert units_of(queue) == [first, BatchUnit(2222, 600, 9, 88, 3, 2)]
    assert queue.max_index == 5


def test_a_unit_that_begins_in_the_middle_of_another_leaves_a_gap_before_it(
    queue: BatchConsumeQueue,
) -> None:
    assert queue.append(5, 3333, 600, 9, 88, 2)
    gap = BatchUnit(3333, 0x7FFFFFFF, 0, 0, 4, 1)
    assert units_of(queue)[2:] == [gap, BatchUnit(3333, 600, 9, 88, 5, 2)]
    assert queue.max_index == 7


# --- reading
# -----------------------------------------------------------------------------------------------


class Reopened:
    """A store of batches, stopped and opened again: all of it is cold."""

    def __init__(self, root: Path) -> None:
        self.directory = BatchDirectory(root, with_crc=True, segment_size=1 << 16)
        store = self.directory.open()
        for count in COUNTS:
            put_inner(store, [b"%d" % count * 50] * count)
        store.close()
        self.store: MessageStore = self.directory.open()
        self.queue = queue_of(self.store)

    def unit(self, number: int) -> BatchUnit:
        unit = self.queue.unit_at(number)
        assert unit is not None
        return unit

    def damage_entry(self, number: int) -> None:
        (file,) = self.store.log.files
        file.buffer[self.unit(number).offset + 110] ^= 1

    def offsets(self) -> list[int]:
        return [index for index, _ in messages(self.store)]

    def repair_all(self) -> int:
        return self.store.cold_reads.finish(self.store.unit_repair.repair_all(self.queue))


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Reopened]:
    reopened = Reopened(tmp_path)
    yield reopened
    reopened.store.close()


def refuse_reads(monkeypatch: pytest.MonkeyPatch, of: str, start: int = 0) -> None:
    """From now on the device cannot read files below a directory ``of`` from byte ``start`` on."""

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        if of in segment.path.parts and at + size > start:
            raise OSError(5, "Input/output error")
        return plain(segment, at, size)

    replace(monkeypatch, "read_cold", read)


def test_a_batch_queue_that_cannot_be_read_is_no_end_of_the_queue(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        refuse_reads(patched, "batchconsumequeue")
        result = reopened.store.get("B", 0, 3, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 3)
    assert result.unreadable == "the queue cannot be read now (Input/output error): check the disk"
    assert reopened.offsets() == list(range(8)), "the device is back"


def test_a_batch_that_cannot_be_read_now_is_not_passed_over(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_reads(monkeypatch, "commitlog")
    result = reopened.store.get("B", 0, 5, 32)
    assert (result.status, result.next_offset, result.count, result.gaps) == (
        GetStatus.NO_MATCHED_MESSAGE,
        5,
        0,
        0,
    )
    assert result.unreadable is not None
    assert (
        f"the message at {reopened.unit(2).offset} of the commit log cannot be read now"
        in result.unreadable
    )


def test_a_read_from_the_files_counts_the_messages_of_each_batch(reopened: Reopened) -> None:
    result = reopened.store.get("B", 0, 0, 32)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 8, 8)


def test_batches_before_one_that_cannot_be_read_are_given(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_reads(monkeypatch, "commitlog", reopened.unit(1).offset + 1)
    result = reopened.store.get("B", 0, 0, 32)
    assert (result.status, result.count, result.next_offset, result.unreadable) == (
        GetStatus.FOUND,
        3,
        3,
        None,
    )


def test_a_read_of_a_damaged_batch_alone_tells_of_all_its_messages(reopened: Reopened) -> None:
    reopened.damage_entry(2)
    result = reopened.store.get("B", 0, 4, 32)
    assert (result.status, result.next_offset, result.gaps, result.data) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        8,
        4,
        b"",
    )
    assert [one.queue_offset for one in result.damages] == [4]


def test_a_read_that_finds_nothing_but_gaps_goes_on_behind_them(reopened: Reopened) -> None:
    reopened.queue.fill_gap(13, reopened.store.log.end)
    reopened.queue.end.advance(13)
    result = reopened.store.get("B", 0, 8, 32)
    assert (result.status, result.next_offset, result.gaps, result.data) == (
        GetStatus.MESSAGE_WAS_REMOVING,
        13,
        5,
        b"",
    )


def test_a_batch_behind_the_end_that_readers_may_see_is_not_given(reopened: Reopened) -> None:
    unit = reopened.unit(2)
    reopened.queue.append(8, unit.offset, unit.size, 0, 0, 4)
    result = reopened.store.get("B", 0, 0, 32)
    assert (len(list(decode_entries(result.data))), result.next_offset, result.max_offset) == (
        3,
        8,
        8,
    )


def test_a_new_unit_that_points_behind_the_files_of_the_log_is_repaired_by_being_read(
    tmp_path: Path,
) -> None:
    directory = BatchDirectory(tmp_path, with_crc=True)
    store = directory.open()
    for count in COUNTS:
        put_inner(store, [b"x"] * count)
    queue = queue_of(store)
    unit = queue.unit_at(1)
    assert unit is not None
    queue.rewrite_at(1, unit._replace(offset=store.log.files.files[-1].end))
    assert [index for index, _ in messages(store)] == list(range(8))
    assert queue.unit_at(1) == unit
    (line,) = directory.failures
    assert f"it is repaired, its message is at {unit.offset}" in line
    store.close()


def test_a_damaged_unit_of_a_damaged_batch_hides_only_its_own_messages(reopened: Reopened) -> None:
    unit = reopened.unit(1)
    reopened.damage_entry(1)
    reopened.queue.rewrite_at(1, unit._replace(messages=2))
    result = reopened.store.get("B", 0, 3, 32)
    assert (result.status, result.next_offset, result.gaps) == (GetStatus.FOUND, 8, 1)
    assert reopened.offsets() == [0, 1, 2, 4, 5, 6, 7]


# --- repairing
# -----------------------------------------------------------------------------------------------


def test_repairing_a_queue_whose_file_is_gone_changes_nothing(reopened: Reopened) -> None:
    files = list(reopened.queue.files.files)
    reopened.queue.files.files.clear()
    assert reopened.repair_all() == 0
    reopened.queue.files.files.extend(files)
    assert reopened.offsets() == list(range(8))


def test_a_queue_that_cannot_be_read_is_repaired_when_it_can(
    reopened: Reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = reopened.unit(1)
    reopened.queue.rewrite_at(1, unit._replace(base=77))
    with monkeypatch.context() as patched:
        refuse_reads(patched, "batchconsumequeue")
        assert reopened.repair_all() == 0
    assert reopened.unit(1).base == 77
    assert reopened.repair_all() == 1
    assert reopened.unit(1) == unit


def test_a_unit_whose_entry_goes_while_it_is_repaired_is_left_as_it_is(reopened: Reopened) -> None:
    damaged = reopened.unit(0)._replace(base=-1)
    reopened.queue.rewrite_at(0, damaged)
    start = reopened.unit(1).offset
    steps = reopened.store.unit_repair.repair_all(reopened.queue)
    pieces = next(steps)
    while not any("commitlog" in piece.segment.path.parts and piece.at == 0 for piece in pieces):
        pieces = steps.send([piece.segment.read(piece.at, piece.size) for piece in pieces])
    reopened.queue.raise_min(start)
    repaired: list[int] = []

    def rest() -> Steps[None]:
        following = pieces
        while True:
            try:
                following = steps.send((yield following))
            except StopIteration as over:
                repaired.append(over.value)
                return

    reopened.store.cold_reads.finish(rest())
    assert repaired == [0]
    assert (reopened.queue.first_number, reopened.queue.min_index) == (1, 3)
    (file,) = reopened.queue.files.files
    assert file.buffer[:BATCH_UNIT_SIZE] == unit_bytes(damaged)
