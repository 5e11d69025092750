"""Spark's filters as ranges and tags: only what cannot be wanted is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from tests.fuzzing import examples
from tests.spark.fake_cluster import FakeCluster

from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command
from turbopump.spark.batch import PushingBatchReader
from turbopump.spark.options import read_options
from turbopump.spark.pushed_filters import CLOCK_SLACK_MS, push
from turbopump.spark.reading import RangesPartition

ID, OFFSET, STORED = ("queueId",), ("queueOffset",), ("storeTimestamp",)
TOPIC, BROKER, TAGS = ("topic",), ("brokerName",), ("tags",)
HOUR_MS = 3_600_000


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two queues; the messages of queue 0 are an hour apart and have the tags A and B in turn."""
    with FakeCluster({"T": 2, "U": 1}) as cluster:
        for number in range(20):
            cluster.fill("T", 0, 1, stored_ms=HOUR_MS * number, tag="AB"[number % 2])
        cluster.fill("T", 1, 5, stored_ms=HOUR_MS * 10)
        cluster.fill("U", 0, 5, stored_ms=HOUR_MS * 10)
        yield cluster


def at(hours: float) -> datetime:
    return datetime.fromtimestamp(hours * 3600, UTC)


def planned(
    fake: FakeCluster, *filters: Filter, **options: str
) -> tuple[list[tuple[str, int, int, int]], list[Filter], PushingBatchReader]:
    """The ranges to read (topic, queue, begin, end), and the filters that are left to Spark."""
    reader = PushingBatchReader(
        read_options({"nameServer": fake.address, "topic": "T,U", **options})
    )
    left = list(reader.pushFilters(list(filters)))
    found: list[tuple[str, int, int, int]] = []
    for task in reader.partitions():
        assert isinstance(task, RangesPartition)
        found += (
            (part.queue.topic, part.queue.queue_id, part.begin, part.end) for part in task.ranges
        )
    return found, left, reader


def rows(reader: PushingBatchReader) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            columns = ("topic", "queueId", "queueOffset")
            found += zip(*(batch[name].to_pylist() for name in columns), strict=True)
    return found


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([EqualTo(TOPIC, "U")], [("U", 0, 0, 5)]),
        ([In(TOPIC, ("U", "V"))], [("U", 0, 0, 5)]),
        ([EqualTo(BROKER, "broker-z")], []),
        ([EqualTo(TOPIC, "T"), EqualTo(ID, 1)], [("T", 1, 0, 5)]),
        ([EqualTo(TOPIC, "T"), In(ID, (1, 7))], [("T", 1, 0, 5)]),
        ([GreaterThan(ID, 0)], [("T", 1, 0, 5)]),
        ([LessThan(ID, 1), EqualNullSafe(TOPIC, "T")], [("T", 0, 0, 20)]),
        ([GreaterThanOrEqual(OFFSET, 7), LessThan(OFFSET, 9)], [("T", 0, 7, 9)]),
        ([GreaterThan(OFFSET, 17)], [("T", 0, 18, 20)]),
        ([LessThanOrEqual(OFFSET, 0)], [("T", 0, 0, 1), ("T", 1, 0, 1), ("U", 0, 0, 1)]),
        ([EqualTo(OFFSET, 6)], [("T", 0, 6, 7)]),
        ([EqualTo(OFFSET, 6), EqualTo(OFFSET, 7)], []),
    ],
)
def test_filters_on_a_messages_address_are_dealt_with_by_ranges(
    fake: FakeCluster, filters: list[Filter], ranges: list[tuple[str, int, int, int]]
) -> None:
    not_null: list[Filter] = [IsNotNull(getattr(one, "attribute", ())) for one in filters]
    found, left, _ = planned(fake, *filters, *not_null)
    assert found == ranges
    assert left == []


def test_how_much_filters_narrow_a_read_is_logged(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump"):
        planned(fake, EqualTo(TOPIC, "T"), LessThan(OFFSET, 2), EqualTo(("tags",), "A"))
        said = "filters that Spark pushed: 2 of 3 queues, 4 of their 25 offsets, tags A"
        assert said in caplog.messages
        caplog.clear()
        planned(fake)
    assert not caplog.messages


def test_times_narrow_the_ranges_by_a_margin_and_are_left_to_spark(fake: FakeCluster) -> None:
    wanted = [GreaterThanOrEqual(STORED, at(5)), LessThan(STORED, at(8)), EqualTo(TOPIC, "T")]
    found, left, _ = planned(fake, *wanted)
    # an hour more on both sides
    assert CLOCK_SLACK_MS == HOUR_MS
    assert found == [("T", 0, 4, 10)]
    assert left == wanted[:2]
    found, _, _ = planned(fake, EqualTo(STORED, at(12)), EqualTo(TOPIC, "T"))
    assert found == [("T", 0, 11, 14)]


def test_a_clock_that_was_set_back_hides_no_message(fake: FakeCluster) -> None:
    """Queue 1: the clock goes to 20:50 and is set back to 20:00; 20:30 is wanted."""
    queue = fake.queues["T", 1]
    for minute in (*range(0, 51, 5), *range(0, 51, 5)):
        queue.put(b"x", queue_id=1, stored_ms=20 * HOUR_MS + minute * 60_000)
    wanted = EqualTo(STORED, at(20.5))
    _, _, reader = planned(fake, wanted, EqualTo(ID, 1))
    matching = [
        offset for offset, ms in enumerate(queue.times_ms) if ms == 20 * HOUR_MS + 30 * 60_000
    ]
    assert len(matching) == 2
    assert {("T", 1, offset) for offset in matching} <= set(rows(reader))


def test_times_in_any_zone_are_the_same_instant(fake: FakeCluster) -> None:
    eastern = at(5).astimezone(timezone(timedelta(hours=-5)))
    assert (
        planned(fake, GreaterThan(STORED, eastern))[0]
        == planned(fake, GreaterThan(STORED, at(5)))[0]
    )


def test_tags_are_asked_of_the_broker_and_left_to_spark(fake: FakeCluster) -> None:
    wanted = [EqualTo(TAGS, "A"), IsNotNull(TAGS)]
    found, left, reader = planned(fake, *wanted)
    assert found == [("T", 0, 0, 20), ("T", 1, 0, 5), ("U", 0, 0, 5)]
    assert left == wanted
    assert rows(reader) == [("T", 0, offset) for offset in range(0, 20, 2)]
    asked = [request.ext or {} for request in fake.requests if request.code == 11]
    assert {pull["subscription"] for pull in asked} == {"A"}


def test_tags_of_spark_and_of_the_option_must_both_be_met(fake: FakeCluster) -> None:
    assert rows(planned(fake, In(TAGS, ("A", "C")), tags="A || B")[2]) == [
        ("T", 0, offset) for offset in range(0, 20, 2)
    ]
    assert rows(planned(fake, EqualTo(TAGS, "C"), tags="A || B")[2]) == []


@pytest.mark.parametrize("tag", ["", " A", "A||B", "*"])
def test_tags_that_a_subscription_cannot_say_are_not_asked_for(fake: FakeCluster, tag: str) -> None:
    _, left, reader = planned(fake, EqualTo(TAGS, tag))
    assert left == [EqualTo(TAGS, tag)]
    assert len(rows(reader)) == 30


def test_tags_are_not_asked_for_where_an_entry_may_hold_several_messages(fake: FakeCluster) -> None:
    fake.attributes = {"queue.type": "BatchCQ"}
    assert len(rows(planned(fake, EqualTo(TAGS, "A"))[2])) == 30


@pytest.mark.parametrize(
    ("code", "count"),
    [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 10), (ResponseCode.NO_PERMISSION, 30)],
)
def test_where_the_kind_of_a_topic_is_not_told_tags_are_asked_for_only_of_old_brokers(
    fake: FakeCluster, code: int, count: int
) -> None:
    fake.answer_code(RequestCode.GET_TOPIC_CONFIG, Command(code, remark="no"))
    assert len(rows(planned(fake, EqualTo(TAGS, "A"))[2])) == count


def test_tags_are_not_asked_for_beside_a_sql_filter(fake: FakeCluster) -> None:
    _, _, reader = planned(fake, EqualTo(TAGS, "A"), sqlFilter="a = 1")
    for task in reader.partitions():
        assert isinstance(task, RangesPartition)
        assert task.tags is None


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(ID, 0)),
        IsNull(TOPIC),
        IsNotNull(TAGS),
        EqualTo(ID, None),
        EqualTo(("properties", "queueId"), 1),
        EqualTo(("keys",), "k"),
        In(TOPIC, ("T", None)),
        StringStartsWith(TOPIC, "T"),
        EqualTo(STORED, datetime(2026, 1, 1)),
        In(OFFSET, (1, 5)),
    ],
)
def test_what_is_not_dealt_with_is_left_to_spark(one: Filter) -> None:
    _, left = push([one])
    assert left == [one]


VALUES = st.integers(-2, 7)
FILTERS = st.one_of(
    *(
        st.builds(kind, st.sampled_from((ID, OFFSET)), VALUES)
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ),
    st.builds(In, st.sampled_from((ID, OFFSET)), st.lists(VALUES, max_size=3).map(tuple)),
)


def holds(one: Any, value: int) -> bool:
    return {
        EqualTo: lambda: value == one.value,
        GreaterThan: lambda: value > one.value,
        GreaterThanOrEqual: lambda: value >= one.value,
        LessThan: lambda: value < one.value,
        LessThanOrEqual: lambda: value <= one.value,
        In: lambda: value in one.value,
    }[type(one)]()


def all_hold(some: list[Filter], queue_id: int, offset: int) -> bool:
    return all(
        holds(one, queue_id if one.attribute == ID else offset)  # type: ignore[attr-defined]
        for one in some
    )


@examples()
@given(st.lists(FILTERS, max_size=4))
def test_ranges_and_what_is_left_give_the_rows_of_the_filters(filters: list[Filter]) -> None:
    pushed, left = push(filters)

    for queue_id in range(6):
        for offset in range(6):
            in_ranges = (
                pushed.may_match(MessageQueue("T", "b", queue_id))
                and pushed.offsets[0] <= offset < pushed.offsets[1]
            )
            wanted = all_hold(filters, queue_id, offset)
            assert (in_ranges and all_hold(left, queue_id, offset)) == wanted
