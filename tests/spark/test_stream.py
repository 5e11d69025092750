"""The stream reader as Spark's driver calls it, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.fake_cluster import FakeCluster, FakeQueue

from turbopump.errors import ConfigError, DataLossError, RouteNotFoundError
from turbopump.protocol.command import Command
from turbopump.remoting.blocking_connection import BlockingConnection
from turbopump.spark.options import read_options
from turbopump.spark.reading import RangesPartition
from turbopump.spark.stream import StreamReader

Maker = Callable[..., StreamReader]


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 2}) as cluster:
        yield cluster


def make(fake: FakeCluster, stack: ExitStack, **options: str) -> StreamReader:
    made = StreamReader(read_options({"nameServer": fake.address, "topic": "T", **options}))
    stack.callback(made.stop)
    return made


@pytest.fixture
def reader(fake: FakeCluster) -> Iterator[Maker]:
    """``reader(option=value)`` makes a stream reader, which is stopped after the test."""
    with ExitStack() as stack:
        yield partial(make, fake, stack)


def place(*offsets: int) -> dict[str, Any]:
    return {
        "v": 1,
        "topics": {"T": {"broker-a": {str(queue): offset for queue, offset in enumerate(offsets)}}},
    }


def offsets_between(
    stream: StreamReader, begin: dict[str, Any], end: dict[str, Any]
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for partition in stream.partitions(begin, end):
        assert isinstance(partition, RangesPartition)
        for batch in stream.read(partition):
            found += zip(
                batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True
            )
    return found


def test_a_new_query_begins_at_the_latest_offset_unless_told_otherwise(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 5)
    fake.queues["T", 1].offset_min = 3
    assert reader().initialOffset() == place(5, 3)
    assert reader(startingOffsets="earliest").initialOffset() == place(0, 3)
    assert reader(startingOffsets='{"T":{"broker-a":{"0":2,"1":-1}}}').initialOffset() == place(
        2, 3
    )
    assert reader(startingOffsets='{"T":{"broker-a":{"0":-1}}}').initialOffset() == place(5, 3)


def test_starting_offsets_of_queues_that_are_not_there_are_refused(
    fake: FakeCluster, reader: Maker
) -> None:
    with pytest.raises(
        ConfigError, match="name T@broker-b:0, but there are only T@broker-a:0, T@broker-a:1"
    ):
        reader(startingOffsets='{"T":{"broker-b":{"0":2}}}').initialOffset()


def test_a_micro_batch_goes_as_far_as_the_limit_given_allows(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 30)
    fake.fill("T", 1, 10)
    stream = reader(maxOffsetsPerTrigger="20")
    assert stream.getDefaultReadLimit() == ReadMaxRows(20)
    assert stream.latestOffset(place(0, 0), ReadMaxRows(20)) == place(15, 5)
    assert stream.latestOffset(place(0, 0), ReadAllAvailable()) == place(30, 10)
    assert stream.reportLatestOffset() == place(30, 10)
    assert isinstance(reader().getDefaultReadLimit(), ReadAllAvailable)


def test_the_same_two_places_give_the_same_rows_whatever_came_since(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 10)
    stream = reader()
    before = offsets_between(stream, place(2, 0), place(7, 0))
    fake.fill("T", 0, 10)
    fake.fill("T", 1, 10)
    assert (
        offsets_between(stream, place(2, 0), place(7, 0))
        == before
        == [(0, offset) for offset in range(2, 7)]
    )
    assert offsets_between(stream, place(7, 0), place(7, 0)) == []


def test_available_now_stops_at_what_was_there_when_it_began(
    fake: FakeCluster, reader: Maker
) -> None:
    fake.fill("T", 0, 10)
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    fake.fill("T", 0, 10)
    assert stream.latestOffset(place(0, 0), ReadMaxRows(8)) == place(8, 0)
    assert stream.latestOffset(place(8, 0), ReadMaxRows(8)) == place(10, 0)
    assert stream.latestOffset(place(10, 0), ReadMaxRows(8)) == place(10, 0)
    # a batch that a restart repeats may end beyond the target: 12 of the 20 that are there
    assert stream.latestOffset(place(12, 0), ReadMaxRows(8)) == place(12, 0)


def test_a_queue_added_later_is_read_from_its_first_message_one_batch_later(
    fake: FakeCluster, reader: Maker
) -> None:
    stream = reader()
    begin = stream.initialOffset()
    fake.queues["T", 2] = FakeQueue(offset_min=4)
    fake.fill("T", 2, 3)
    seen = stream.latestOffset(begin, ReadAllAvailable())
    assert seen == place(0, 0, 4)
    assert offsets_between(stream, begin, seen) == []
    after = stream.latestOffset(seen, ReadAllAvailable())
    assert offsets_between(stream, seen, after) == [(2, 4), (2, 5), (2, 6)]


def test_a_topic_that_left_the_route_keeps_its_places_with_a_warning(
    fake: FakeCluster, reader: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader()
    fake.answer_code(105, Command(17, remark="No topic route info"))
    with caplog.at_level(logging.WARNING):
        assert stream.latestOffset(place(3, 4), ReadAllAvailable()) == place(3, 4)
    assert "T@broker-a:1 is not in the route at the moment; its offset 4 is kept" in caplog.text
    # but "read all there is now" is not answered by "nothing"
    with pytest.raises(RouteNotFoundError):
        stream.prepareForTriggerAvailableNow()


def test_a_queue_that_ends_before_what_was_read_is_loss(
    fake: FakeCluster, reader: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fill("T", 0, 5)
    with pytest.raises(
        DataLossError,
        match=r"T@broker-a:0 ends at 5, but it was read up to 9 "
        r"already.*new checkpoint",
    ):
        reader().latestOffset(place(9, 0), ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        assert reader(failOnDataLoss="false").latestOffset(
            place(9, 0), ReadAllAvailable()
        ) == place(9, 0)
    assert "waiting until it grows beyond" in caplog.text


def test_ending_options_are_refused_for_streams(fake: FakeCluster, reader: Maker) -> None:
    with pytest.raises(ConfigError, match="endingOffsets is for batch reads; a stream ends by its"):
        reader(endingOffsets="latest")


def test_a_route_counts_for_a_second_but_a_queue_that_goes_meanwhile_is_noticed(
    fake: FakeCluster, reader: Maker
) -> None:
    stream = reader()
    begin = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    routes = [request for request in fake.requests if request.code == 105]
    stream.latestOffset(begin, ReadAllAvailable())
    assert [request for request in fake.requests if request.code == 105] == routes
    del fake.queues["T", 1]
    with pytest.raises(
        DataLossError, match="T@broker-a:1 no longer exists, because its topic has fewer queues"
    ):
        stream.latestOffset(begin, ReadAllAvailable())


def test_queues_of_one_broker_are_asked_for_their_ends_together(
    fake: FakeCluster, reader: Maker
) -> None:
    for queue_id in range(2, 100):
        fake.queues["T", queue_id] = FakeQueue()
    fake.fill("T", 70, 3)
    sent: list[int] = []
    send_all = BlockingConnection.send

    def send(link: BlockingConnection, requests: Sequence[Any], *, timeout: float) -> None:
        sent.append(len(requests))
        send_all(link, requests, timeout=timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingConnection, "send", send)
        end = reader().reportLatestOffset()
    assert sent == [1, 64, 36]  # the route, then 100 queues
    assert end is not None
    assert end["topics"]["T"]["broker-a"]["70"] == 3
