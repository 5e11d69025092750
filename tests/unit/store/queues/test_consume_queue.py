"""One queue by itself: which unit may be put where, what a cut takes, and what is not there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stand_ins import returns
from tests.unit.store.directory import Directory, put

from turbopump.disk.system_disk import SystemDisk
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.read_result import GetStatus

UNITS_PER_FILE = 10


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    """Units 0 to 24, unit n at offset 100 n."""
    made = ConsumeQueue(SystemDisk(), tmp_path / "T" / "0", "T", 0, UNITS_PER_FILE * UNIT_SIZE)
    for index in range(25):
        made.append(index, 100 * index, 100, index)
    yield made
    made.close()


def anything(_queue: ConsumeQueue, _index: int, _offset: int, _size: int) -> bool:
    return True


def test_a_unit_is_put_at_the_end_or_where_it_is_already_and_never_behind_a_hole(
    queue: ConsumeQueue,
) -> None:
    assert queue.append(25, 2500, 100, 0)
    assert queue.append(3, 300, 100, 33), "one that is there is written again"
    assert queue.unit(3) == (300, 100, 33)
    assert not queue.append(27, 2700, 100, 0)
    assert (queue.max_index, queue.unit(26)) == (26, None)


def test_a_unit_whose_message_was_deleted_is_not_put_again(queue: ConsumeQueue) -> None:
    queue.raise_min(1200)
    assert queue.min_index == 12
    assert queue.append(5, 500, 100, 99)
    assert queue.unit(5) is None
    queue.min_index = 0
    assert queue.unit(5) == (500, 100, 5), "the file still has what it had"


def test_a_cut_takes_the_last_units_whose_messages_are_not_there(queue: ConsumeQueue) -> None:
    queue.cut_at(2300, lambda _queue, index, _offset, _size: index < 19)
    assert (queue.max_index, queue.unit(18), queue.unit(19)) == (19, (1800, 100, 18), None)
    queue.cut_at(1500, anything)
    assert queue.max_index == 15
    assert queue.append(15, 1500, 100, 7)
    queue.cut_at(1600, returns(False))
    assert queue.max_index == 0


def test_a_cut_stops_at_a_gap_which_has_no_message(queue: ConsumeQueue) -> None:
    queue.fill_gap(28, 2600)
    assert queue.unit(27) == (2600, NO_MESSAGE_SIZE, 0)
    queue.cut_at(9000, returns(False))
    assert queue.max_index == 28
    assert queue.last_unit is None


def test_a_cut_of_a_queue_without_files_changes_nothing(tmp_path: Path) -> None:
    empty = ConsumeQueue(SystemDisk(), tmp_path / "T" / "0", "T", 0, 200)
    empty.load()
    empty.cut_at(0, anything)
    assert (empty.max_index, empty.last_unit, list(tmp_path.iterdir())) == (0, None, [])


def test_a_queue_whose_first_messages_are_gone_begins_within_a_file_as_apaches_does(
    tmp_path: Path,
) -> None:
    queue = ConsumeQueue(SystemDisk(), tmp_path / "T" / "0", "T", 0, UNITS_PER_FILE * UNIT_SIZE)
    assert queue.append(13, 1300, 100, 1)
    assert (queue.min_index, queue.max_index) == (13, 14)
    queue.close()
    (file,) = (tmp_path / "T" / "0").iterdir()
    assert file.name == f"{UNITS_PER_FILE * UNIT_SIZE:020d}"
    assert file.read_bytes()[:UNIT_SIZE] == (0).to_bytes(8) + NO_MESSAGE_SIZE.to_bytes(4) + (
        0
    ).to_bytes(8)
    again = ConsumeQueue(SystemDisk(), tmp_path / "T" / "0", "T", 0, UNITS_PER_FILE * UNIT_SIZE)
    again.load()
    assert (again.min_index, again.max_index) == (13, 14)
    again.close()


def test_a_read_at_a_place_for_which_there_is_no_file_says_where_it_stands(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    put(store, b"one")
    queue = store.queue("T", 0)
    assert queue is not None
    queue.max_index = 60  # as if files had been taken away beneath it
    queue.end.advance(60)
    result = store.get("T", 0, 50, 32)
    assert (result.status, result.next_offset, result.count) == (GetStatus.OFFSET_FOUND_NULL, 50, 0)
    queue.max_index = 1
    store.close()


DAMAGED = [(-1, -1, -1), (0, 0, 0), (1 << 62, 100, 0), (3, 100, 0), (0, -5, 0)]


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(("first", "count"), [(0, 1), (12, 1), (10, 5), (18, 7), (24, 1)])
def test_damaged_units_hide_no_other_when_the_log_loses_its_front(
    queue: ConsumeQueue, damage: tuple[int, int, int], first: int, count: int
) -> None:
    if damage == (3, 100, 0) and count > 1:
        return  # a row of units that point to one message long gone is not told from deleted ones
    for index in range(first, first + count):
        queue.rewrite(index, *damage)
    queue.raise_min(0)
    assert queue.min_index == 0
    queue.raise_min(600)
    assert queue.min_index <= 6
    assert queue.files_before(900) == []
    queue.raise_min(1600)
    assert queue.min_index <= 16


def test_files_go_by_what_the_queue_still_has_and_not_by_their_last_unit(
    queue: ConsumeQueue,
) -> None:
    queue.rewrite(9, -1, -1, -1)
    assert queue.files_before(500) == []
    assert [file.start for file in queue.files_before(1100)] == [0]
