"""Size and time of micro-batches, and the progress that other tools see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tests.spark.fake_cluster import FakeCluster

from turbopump.protocol.codes import RequestCode
from turbopump.spark.options import read_options
from turbopump.spark.stream import StreamReader

Maker = Callable[..., StreamReader]
NOW_S = 1_700_000_100.0


class Clock:
    """Seconds since 1970, moved by the test."""

    def __init__(self) -> None:
        self.now = NOW_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 2}) as cluster:
        yield cluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, fake: FakeCluster, stack: ExitStack, **options: str) -> StreamReader:
    given = {"nameServer": fake.address, "topic": "T", **options}
    made = StreamReader(read_options(given), now=clock)
    stack.callback(made.stop)
    return made


@pytest.fixture
def reader(fake: FakeCluster, clock: Clock) -> Iterator[Maker]:
    """``reader(option=value)`` makes a stream reader, which is stopped after the test."""
    with ExitStack() as stack:
        yield partial(make, clock, fake, stack)


def offsets(first: int, second: int = 0) -> dict[str, Any]:
    return {"v": 1, "topics": {"T": {"broker-a": {"0": first, "1": second}}}}


def test_too_few_messages_wait_until_there_are_enough(fake: FakeCluster, reader: Maker) -> None:
    stream = reader(minOffsetsPerTrigger="10")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    fake.fill("T", 0, 9, stored_ms=int(NOW_S * 1000))
    assert stream.latestOffset(offsets(0), limit) == offsets(0)
    fake.fill("T", 1, 1, stored_ms=int(NOW_S * 1000))
    assert stream.latestOffset(offsets(0), limit) == offsets(9, 1)


def test_a_message_waits_for_others_no_longer_than_the_delay(
    fake: FakeCluster, reader: Maker, clock: Clock
) -> None:
    stream = reader(minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    fake.fill("T", 0, 1, stored_ms=int(NOW_S * 1000))
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(0)
    clock.now += 59
    fake.fill("T", 1, 1, stored_ms=int(clock.now * 1000))
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(0)
    clock.now += 1
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(1, 1)
    # and what comes then waits as long again
    fake.fill("T", 0, 1, stored_ms=int(clock.now * 1000))
    assert stream.latestOffset(offsets(1, 1), ReadMinRows(10)) == offsets(1, 1)


def test_a_restart_does_not_begin_to_wait_anew(
    fake: FakeCluster, reader: Maker, clock: Clock
) -> None:
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
    fake.fill("T", 0, 1, stored_ms=int(NOW_S * 1000))
    assert reader(**options).latestOffset(offsets(0), ReadMinRows(10)) == offsets(0)
    clock.now += 61
    assert reader(**options).latestOffset(offsets(0), ReadMinRows(10)) == offsets(1)


def test_a_broker_whose_clock_is_ahead_delays_no_longer(
    fake: FakeCluster, reader: Maker, clock: Clock
) -> None:
    stream = reader(minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    fake.fill("T", 0, 1, stored_ms=int(NOW_S * 1000) + 3_600_000)
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(0)
    clock.now += 60
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(1)


def test_a_minimum_and_a_maximum_go_together(fake: FakeCluster, reader: Maker) -> None:
    stream = reader(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="12")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(12)
    fake.fill("T", 0, 9, stored_ms=int(NOW_S * 1000))
    assert stream.latestOffset(offsets(0), limit) == offsets(0)
    fake.fill("T", 0, 9)
    assert stream.latestOffset(offsets(0), limit) == offsets(12)


def test_available_now_and_a_single_batch_take_what_there_is(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 3, stored_ms=int(NOW_S * 1000))
    stream = reader(minOffsetsPerTrigger="10")
    assert stream.latestOffset(offsets(0), ReadAllAvailable()) == offsets(3)
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(offsets(0), ReadMinRows(10)) == offsets(3)


def test_a_batch_has_about_so_many_bytes(fake: FakeCluster, reader: Maker) -> None:
    for queue_id in (0, 1):
        for _ in range(500):
            fake.queues["T", queue_id].put(b"x" * 1000, queue_id=queue_id)
    size = len(fake.queues["T", 0].entries[0])
    stream = reader(maxBytesPerTrigger=str(100 * size))
    assert stream.getDefaultReadLimit() == ReadMaxBytes(100 * size)
    assert stream.latestOffset(offsets(0), ReadMaxBytes(100 * size)) == offsets(50, 50)
    both = reader(maxBytesPerTrigger=str(100 * size), maxOffsetsPerTrigger="60")
    assert both.latestOffset(offsets(0), ReadMaxRows(60)) == offsets(30, 30)


def test_messages_that_grow_are_seen_before_they_make_a_batch_too_large(
    fake: FakeCluster, reader: Maker
) -> None:
    for number in range(200):
        fake.queues["T", 0].put(b"x" * (100 if number < 100 else 10_000))
    size_max = 50_000
    stream = reader(maxBytesPerTrigger=str(size_max))
    end = stream.latestOffset(offsets(0), ReadMaxBytes(size_max))["topics"]["T"]["broker-a"]["0"]
    assert 0 < sum(map(len, fake.queues["T", 0].entries[:end])) <= size_max


def test_a_message_larger_than_a_batch_may_be_is_a_batch(fake: FakeCluster, reader: Maker) -> None:
    fake.fill("T", 0, 3)
    stream = reader(maxBytesPerTrigger="1")
    assert stream.latestOffset(offsets(0), ReadMaxBytes(1)) == offsets(1)
    assert stream.latestOffset(offsets(3), ReadMaxBytes(1)) == offsets(3)


def test_what_was_read_is_committed_for_a_group_that_tools_can_show(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 9)
    stream = reader(commitGroup="g")
    stream.commit(offsets(4))
    assert fake.groups["g"] == {("T", 0): 4, ("T", 1): 0}
    # The end of the last batch is committed when Spark asks for the next.
    stream.latestOffset(offsets(7), ReadAllAvailable())
    assert fake.groups["g"] == {("T", 0): 7, ("T", 1): 0}


def test_what_has_not_moved_is_not_committed_again(fake: FakeCluster, reader: Maker) -> None:
    stream = reader(commitGroup="g")
    for end in (4, 4, 5):
        stream.commit(offsets(end))
    commits = [
        (request.ext or {})["commitOffset"]
        for request in fake.requests
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET
    ]
    # the first was refused: the broker did not know the group
    assert commits == ["4", "4", "0", "5"]


def test_a_stream_goes_on_where_its_progress_cannot_be_committed(
    fake: FakeCluster,
    reader: Maker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("turbopump.spark.stream.PLANNING_PATIENCE_S", 0.01)
    stream = reader(commitGroup="g")
    fake.answer_code(RequestCode.UPDATE_CONSUMER_OFFSET, None)
    with caplog.at_level(logging.WARNING):
        assert stream.latestOffset(offsets(0), ReadAllAvailable()) == offsets(0)
    assert "the offsets of group g could not be committed" in caplog.text


def test_no_group_is_told_of_a_stream_unless_asked(fake: FakeCluster, reader: Maker) -> None:
    stream = reader()
    stream.commit(offsets(0))
    stream.latestOffset(offsets(0), ReadAllAvailable())
    assert fake.groups == {}
