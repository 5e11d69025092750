"""What a read of a queue gives: every status, every limit, and places in time."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import OVERHEAD, Directory, bodies, put
from tests.unit.store.looked_up import offset_at_time

from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.store.queues.read_result import GetStatus, ReadLimits


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path, segment_size=1 << 20, queue_file_size=2000)


def test_a_queue_that_never_had_a_message(directory: Directory) -> None:
    store = directory.open()
    result = store.get("T", 0, 5, 32)
    assert (result.status, result.next_offset, result.max_offset) == (
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        0,
        0,
    )
    store.queues.find_or_make("T", 0)
    result = store.get("T", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.close()


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (-(2**63), GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (2**63 - 1, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_an_offset_outside_a_queue_says_where_to_go_on(
    directory: Directory, offset: int, status: GetStatus, following: int
) -> None:
    store = directory.open()
    for number in range(3):
        put(store, b"%d" % number)
    result = store.get("T", 0, offset, 32)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
        status,
        following,
        0,
        3,
    )
    assert result.count == (3 - offset if status is GetStatus.FOUND else 0)
    store.close()


@pytest.mark.parametrize("crashed", [True, False])
def test_who_comes_from_beyond_a_recovered_queue_gets_what_took_the_lost_offsets(
    tmp_path: Path, *, crashed: bool
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for number in range(3):
        put(store, b"%d" % number)
    directory = directory.copy(tmp_path / "left") if crashed else directory
    store.close()
    store = directory.open()
    put(store, b"3")
    put(store, b"4")
    put(store, b"0", topic="New")
    beyond = store.get("T", 0, 9, 32)
    assert (beyond.status, beyond.next_offset) == (
        GetStatus.OFFSET_OVERFLOW_BADLY,
        3 if crashed else 5,
    )
    assert (beyond.min_offset, beyond.max_offset) == (0, 5)
    assert store.get("New", 0, 9, 32).next_offset == (0 if crashed else 1)
    assert store.get("T", 0, 5, 32).next_offset == 5
    queue = store.queue("T", 0)
    assert queue is not None
    queue.min_index = 4
    assert store.get("T", 0, 9, 32).next_offset == (4 if crashed else 5)
    store.close()


def test_a_queue_whose_first_messages_are_gone_starts_at_its_first_one_left(
    directory: Directory,
) -> None:
    store = directory.open()
    placed = [put(store, b"%d" % number) for number in range(5)]
    queue = store.queue("T", 0)
    assert queue is not None
    queue.raise_min(placed[3].offset)
    result = store.get("T", 0, 0, 32)
    assert (result.status, result.next_offset, result.min_offset) == (
        GetStatus.OFFSET_TOO_SMALL,
        3,
        3,
    )
    assert bodies(store) == [b"3", b"4"]
    store.close()


@pytest.mark.parametrize(
    ("wanted", "given"), [(-1, 1), (0, 1), (1, 1), (7, 7), (32, 32), (33, 32), (2**31 - 1, 32)]
)
def test_a_read_gives_as_many_as_wanted_up_to_the_limit(
    directory: Directory, wanted: int, given: int
) -> None:
    store = directory.open()
    for number in range(50):
        put(store, b"%d" % number)
    result = store.get("T", 0, 4, wanted)
    assert (result.count, result.next_offset) == (given, 4 + given)
    assert [message.body for message in decode_entries(result.data)] == [
        b"%d" % number for number in range(4, 4 + given)
    ]
    store.close()


def limited(tmp_path: Path, **limits: Any) -> Directory:
    return Directory(
        tmp_path, segment_size=1 << 20, queue_file_size=2000, limits=ReadLimits(**limits)
    )


@pytest.mark.parametrize(
    ("bytes_hot", "given"),
    [(1, 1), (200, 1), (2 * (OVERHEAD + 100), 2), (2 * (OVERHEAD + 100) - 1, 1)],
)
def test_a_read_never_splits_a_message_and_always_gives_one(
    tmp_path: Path, bytes_hot: int, given: int
) -> None:
    store = limited(tmp_path, bytes_hot=bytes_hot).open()
    for _ in range(5):
        put(store, b"x" * 100)
    result = store.get("T", 0, 0, 32)
    assert (result.count, result.next_offset, len(result.data)) == (
        given,
        given,
        given * (OVERHEAD + 100),
    )
    store.close()


def test_cold_messages_come_in_smaller_pieces_than_hot_ones(tmp_path: Path) -> None:
    store = limited(
        tmp_path, count_hot=20, count_cold=3, bytes_cold=10_000, hot_size=10 * (OVERHEAD + 2)
    ).open()
    for number in range(40):
        put(store, b"%02d" % number)
    assert store.get("T", 0, 0, 32).count == 3
    assert store.get("T", 0, 30, 32).count == 10
    assert not store.is_hot("T", 0, 0)
    assert store.is_hot("T", 0, 39)
    assert store.is_hot("T", 0, 40), "nothing there yet"
    assert store.is_hot("U", 0, 0)
    by_bytes = limited(tmp_path / "b", bytes_cold=2 * (OVERHEAD + 2), hot_size=0).open()
    for number in range(40):
        put(by_bytes, b"%02d" % number)
    assert by_bytes.get("T", 0, 0, 32).count == 2
    by_bytes.close()
    store.close()


def test_a_filter_skips_messages_and_moves_the_place_on(directory: Directory) -> None:
    store = directory.open()
    for number in range(10):
        put(store, b"%d" % number, tag="ab"[number % 2])
    wanted = frozenset({tags_code("a")}).__contains__
    result = store.get("T", 0, 0, 3, wanted)
    assert [message.body for message in decode_entries(result.data)] == [b"0", b"2", b"4"]
    assert result.next_offset == 5
    assert bodies(store, accept=wanted) == [b"0", b"2", b"4", b"6", b"8"]
    nothing = store.get("T", 0, 0, 32, frozenset({7}).__contains__)
    assert (nothing.status, nothing.next_offset, nothing.data) == (
        GetStatus.NO_MATCHED_MESSAGE,
        10,
        b"",
    )
    store.close()


def test_a_filtered_read_looks_at_800_units_and_at_one_file(tmp_path: Path) -> None:
    store = Directory(tmp_path / "a", segment_size=1 << 20, queue_file_size=20 * 1000).open()
    for _ in range(1200):
        put(store, b"x")
    nothing = frozenset({7}).__contains__
    assert store.get("T", 0, 0, 32, nothing).next_offset == 800
    assert store.get("T", 0, 800, 32, nothing).next_offset == 1000, (
        "the end of the queue's first file"
    )
    assert store.get("T", 0, 1000, 32, nothing).next_offset == 1200
    store.close()


def test_messages_of_several_queues_and_segments_are_read_each_in_its_order(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(120):
        body = b"%d-" % number + b"x" * (number % 5 * 70)
        put(store, body, queue_id=number % 3)
        expected[number % 3].append(body)
    for queue_id, wanted in expected.items():
        assert bodies(store, queue_id=queue_id) == wanted
    store.close()


def test_a_hot_unit_that_points_nowhere_ends_the_read_before_it_and_is_repaired_by_the_next(
    directory: Directory,
) -> None:
    store = directory.open()
    for number in range(3):
        put(store, b"%d" % number)
    queue = store.queue("T", 0)
    assert queue is not None
    queue.append(1, 1 << 40, 50, 0)
    first = store.get("T", 0, 0, 32)
    assert ([message.body for message in decode_entries(first.data)], first.next_offset) == (
        [b"0"],
        1,
    )
    assert bodies(store) == [b"0", b"1", b"2"]
    assert directory.failures[0] == (
        "damaged units of the consume queue of T queue 0 were rebuilt from the log units=1 round=1"
    )
    queue.append(1, -3, -50, 0)
    assert bodies(store) == [b"0", b"1", b"2"]
    store.close()


TIMES = [100, 200, 200, 200, 300]


@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [
        (0, 0, 0),
        (99, 0, 0),
        (100, 0, 0),
        (101, 1, 0),
        (199, 1, 0),
        (200, 1, 3),
        (201, 4, 3),
        (300, 4, 4),
        (301, 5, 4),
        (2**62, 5, 4),
    ],
)
def test_a_place_in_time_is_the_first_not_before_or_the_last_not_after(
    directory: Directory, timestamp: int, lower: int, upper: int
) -> None:
    store = directory.open()
    for now in TIMES:
        directory.clock.now = now
        put(store, b"%d" % now)
    assert offset_at_time(store.lookup, "T", 0, timestamp) == lower
    assert offset_at_time(store.lookup, "T", 0, timestamp, upper=True) == upper
    assert (
        offset_at_time(store.lookup, "U", 0, timestamp)
        == offset_at_time(store.lookup, "U", 0, timestamp, upper=True)
        == 0
    )
    store.close()


def test_places_in_time_of_a_queue_without_its_first_messages(directory: Directory) -> None:
    store = directory.open()
    placed = []
    for now in TIMES:
        directory.clock.now = now
        placed.append(put(store, b"x"))
    queue = store.queue("T", 0)
    assert queue is not None
    queue.raise_min(placed[2].offset)
    assert offset_at_time(store.lookup, "T", 0, 0) == 2
    assert offset_at_time(store.lookup, "T", 0, 150, upper=True) == 0, (
        "RocketMQ: before the first message the answer is 0, not the minimum"
    )
    store.close()
