"""Dividing ranges among tasks, and admitting a limited number of messages: nothing lost, nothing
twice, always the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples

from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import (
    TASK_ROWS_MIN,
    OffsetRange,
    limit_ends,
    ranges_between,
    split_ranges,
)

QUEUES = [
    MessageQueue(topic, broker, number)
    for topic in "TU"
    for broker in ("broker-a", "broker-b")
    for number in range(3)
]
PLACES = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 20_000))


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


@examples()
@given(PLACES, PLACES, st.integers(1, 9))
def test_tasks_hold_every_message_once_in_order_and_evenly(
    begins: dict[MessageQueue, int], ends: dict[MessageQueue, int], tasks_max: int
) -> None:
    ranges = ranges_between(begins, ends)
    tasks = split_ranges(ranges, tasks_max)
    assert len(tasks) <= tasks_max
    joined: list[OffsetRange] = []
    for piece in (piece for task in tasks for piece in task):
        if joined and joined[-1].queue == piece.queue and joined[-1].end == piece.begin:
            joined[-1] = OffsetRange(piece.queue, joined[-1].begin, piece.end)
        else:
            joined.append(piece)
    assert joined == ranges
    sizes = [sum(piece.count for piece in task) for task in tasks]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(sizes) < 2 or min(sizes) >= TASK_ROWS_MIN // 2


def test_many_small_queues_are_read_by_few_tasks() -> None:
    ranges = [OffsetRange(queue(number), 0, 100) for number in range(8)]
    assert split_ranges(ranges, 4) == [ranges]
    assert [
        len(task) for task in split_ranges([OffsetRange(queue(n), 0, 5000) for n in range(8)], 2)
    ] == [4, 4]


def test_one_large_queue_is_cut_for_all_tasks() -> None:
    assert split_ranges([OffsetRange(queue(0), 100, 4100)], 2) == [
        [OffsetRange(queue(0), 100, 2100)],
        [OffsetRange(queue(0), 2100, 4100)],
    ]


def test_no_task_has_more_messages_than_the_limit() -> None:
    ranges = [OffsetRange(queue(0), 0, 10), OffsetRange(queue(1), 5, 15)]
    assert split_ranges(ranges, None, rows_max=10) == [[ranges[0]], [ranges[1]]]
    for tasks_max in (None, 1):
        tasks = split_ranges(ranges, tasks_max, rows_max=7)
        assert [sum(piece.count for piece in task) for task in tasks] == [6, 7, 7]
    assert split_ranges([], None, rows_max=7) == []


def test_without_a_number_of_tasks_each_queue_is_one() -> None:
    ranges = [OffsetRange(queue(0), 0, 1), OffsetRange(queue(1), 0, 9000)]
    assert split_ranges(ranges, None) == [[ranges[0]], [ranges[1]]]


@examples()
@given(PLACES, PLACES, st.integers(1, 30_000))
def test_as_many_messages_are_admitted_as_the_limit_allows(
    begins: dict[MessageQueue, int], ends: dict[MessageQueue, int], rows_max: int
) -> None:
    waiting = {piece.queue: piece.count for piece in ranges_between(begins, ends)}
    admitted = limit_ends(begins, ends, rows_max)
    assert admitted.keys() == ends.keys()
    taken = {piece.queue: piece.count for piece in ranges_between(begins, admitted)}
    assert sum(taken.values()) == min(rows_max, sum(waiting.values()))
    assert all(count <= waiting[name] for name, count in taken.items())
    if rows_max >= len(waiting):
        assert taken.keys() == waiting.keys()  # nobody starves
    assert (
        limit_ends(dict(reversed(begins.items())), dict(reversed(ends.items())), rows_max)
        == admitted
    )


def test_shares_follow_what_is_waiting_after_one_for_each() -> None:
    begins = {queue(0): 0, queue(1): 0, queue(2): 50}
    assert limit_ends(begins, {queue(0): 9000, queue(1): 1000, queue(2): 50}, 100) == {
        queue(0): 89,
        queue(1): 11,
        queue(2): 50,
    }


def test_with_too_little_room_the_longest_lines_go_first() -> None:
    begins = {queue(0): 0, queue(1): 0, queue(2): 0}
    assert limit_ends(begins, {queue(0): 5, queue(1): 7, queue(2): 6}, 2) == {
        queue(0): 0,
        queue(1): 1,
        queue(2): 1,
    }
