"""Plan of a read: its queues, their begins and ends, and its tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.fake_cluster import FakeCluster, FakeQueue

from turbopump.errors import ClientError, ConfigError, DataLossError, RemotingError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.command import Command
from turbopump.spark.batch import BatchReader
from turbopump.spark.offsets import decode_offsets
from turbopump.spark.options import ReadOptions, read_options
from turbopump.spark.reading import RangesPartition
from turbopump.spark.stream import StreamReader

Range = tuple[str, int, int, int]


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"orders-eu": 2, "orders-us": 1, "%DLQ%g": 1}) as cluster:
        for offset in range(10):
            for queue_id in (0, 1):
                cluster.fill("orders-eu", queue_id, 1, stored_ms=1000 * offset)
        cluster.fill("orders-us", 0, 5)
        cluster.fill("%DLQ%g", 0, 2)
        yield cluster


def options(fake: FakeCluster, **given: str) -> ReadOptions:
    named = {"subscribePattern", "assign", "topic"} & given.keys()
    return read_options(
        {"nameServer": fake.address, **given, **({} if named else {"topic": "orders-eu"})}
    )


def planned(fake: FakeCluster, **given: str) -> list[Range]:
    """The ranges of a batch read: topic, queue, begin, end."""
    found: list[Range] = []
    for task in BatchReader(options(fake, **given)).partitions():
        assert isinstance(task, RangesPartition)
        found += (
            (part.queue.topic, part.queue.queue_id, part.begin, part.end) for part in task.ranges
        )
    return found


def begun(fake: FakeCluster, **given: str) -> dict[str, Any]:
    """The topics of a new stream's first offsets."""
    topics: dict[str, Any] = StreamReader(options(fake, **given)).initialOffset()["topics"]
    return topics


def test_a_pattern_must_match_the_whole_name_of_a_topic(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert {topic for topic, *_ in planned(fake, subscribePattern="orders-.*")} == {
        "orders-eu",
        "orders-us",
    }
    assert planned(fake, subscribePattern="orders-u") == []
    assert "subscribePattern 'orders-u' matches no topic now" in caplog.text


def write_only(fake: FakeCluster, request: Command) -> Command:
    answer = fake.usual_answer(request)
    answer.body = (answer.body or b"").replace(b'"perm":6', b'"perm":2')
    return answer


def test_a_topic_that_may_not_be_read_is_not_empty(fake: FakeCluster) -> None:
    fake.answer = partial(write_only, fake)
    with pytest.raises(ConfigError, match=r"'orders-eu' has no queue to read: .* \(perm\)"):
        planned(fake)


def test_it_is_said_that_a_slave_is_read(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(fake)
    assert "slave" not in caplog.text
    fake.broker_id = 1
    assert planned(fake)
    assert "the master of broker broker-a is away: its slave is read" in caplog.text


def test_a_pattern_finds_dead_letters_only_if_it_names_them(fake: FakeCluster) -> None:
    fake.queues["broker-a", 0] = fake.queues["TBW102", 0] = FakeQueue([b""], [0])
    assert {topic for topic, *_ in planned(fake, subscribePattern=".*")} == {
        "orders-eu",
        "orders-us",
    }
    for pattern in ("%DLQ%.*", "^%DLQ%.*$", "(%RETRY%|%DLQ%)g"):
        assert planned(fake, subscribePattern=pattern) == [("%DLQ%g", 0, 0, 2)]


def test_a_topic_that_is_made_while_a_stream_runs_is_read_from_its_first_message(
    fake: FakeCluster,
) -> None:
    stream = StreamReader(options(fake, subscribePattern="orders-.*"))
    try:
        start = stream.initialOffset()
        fake.queues["orders-asia", 0] = FakeQueue()
        fake.fill("orders-asia", 0, 3)
        seen = stream.latestOffset(start, ReadAllAvailable())
        assert seen["topics"]["orders-asia"] == {"broker-a": {"0": 0}}
        end = stream.latestOffset(seen, ReadAllAvailable())
        assert end["topics"]["orders-asia"] == {"broker-a": {"0": 3}}
    finally:
        stream.stop()


def test_available_now_reads_a_topic_that_came_before_it(fake: FakeCluster) -> None:
    start = StreamReader(options(fake, subscribePattern="orders-.*")).initialOffset()
    fake.queues["orders-asia", 0] = FakeQueue()
    fake.fill("orders-asia", 0, 3)
    stream = StreamReader(options(fake, subscribePattern="orders-.*"))
    try:
        stream.prepareForTriggerAvailableNow()
        fake.fill("orders-asia", 0, 3)  # too late
        ends = [start]
        while len(ends) < 2 or ends[-1] != ends[-2]:
            ends.append(stream.latestOffset(ends[-1], ReadAllAvailable()))
        assert ends[-1]["topics"]["orders-asia"] == {"broker-a": {"0": 3}}
        assert len(ends) == 4
    finally:
        stream.stop()


def test_assigned_queues_alone_are_read(fake: FakeCluster) -> None:
    assert planned(fake, assign='{"orders-eu":{"broker-a":[1]},"orders-us":[0]}') == [
        ("orders-eu", 1, 0, 10),
        ("orders-us", 0, 0, 5),
    ]
    assert begun(fake, assign='{"orders-eu":[1]}') == {"orders-eu": {"broker-a": {"1": 10}}}


def test_an_assigned_queue_that_is_not_there_is_refused(fake: FakeCluster) -> None:
    said = (
        "assign names queue 2 of 'orders-eu' on broker 'broker-a', but there are only "
        "orders-eu@broker-a:0, orders-eu@broker-a:1"
    )
    with pytest.raises(ConfigError, match=said):
        planned(fake, assign='{"orders-eu":{"broker-a":[0,2]}}')
    with pytest.raises(ConfigError, match="assign names queue 0 of 'orders-eu' on broker 'b'"):
        begun(fake, assign='{"orders-eu":{"b":[0]}}')


def test_queues_that_are_not_assigned_may_come_and_go(fake: FakeCluster) -> None:
    stream = StreamReader(options(fake, assign='{"orders-eu":[0]}'))
    try:
        start = stream.initialOffset()
        fake.queues["orders-eu", 2] = FakeQueue()
        del fake.queues["orders-eu", 1]
        assert stream.latestOffset(start, ReadAllAvailable()) == start
    finally:
        stream.stop()


def test_times_may_be_given_by_queue_and_the_others_begin_as_their_offsets_say(
    fake: FakeCluster,
) -> None:
    found = planned(
        fake,
        startingOffsetsByTimestamp='{"orders-eu":{"broker-a":{"0":3500}}}',
        startingOffsets='{"orders-eu":{"broker-a":{"0":1,"1":2}}}',
        endingOffsetsByTimestamp='{"orders-eu":{"broker-a":{"1":5000}}}',
    )
    assert found == [("orders-eu", 0, 4, 10), ("orders-eu", 1, 2, 5)]


def test_one_time_for_all_goes_before_times_by_queue(fake: FakeCluster) -> None:
    by_queue = '{"orders-eu":{"broker-a":{"0":3500}}}'
    found = planned(fake, startingOffsetsByTimestamp=by_queue, startingTimestamp="8000")
    assert found == [("orders-eu", 0, 8, 10), ("orders-eu", 1, 8, 10)]


@pytest.mark.parametrize("end", ["starting", "ending"])
def test_a_time_after_which_nothing_was_stored_is_the_end_or_an_error(
    fake: FakeCluster, end: str
) -> None:
    late = {f"{end}OffsetsByTimestamp": '{"orders-eu":{"broker-a":{"1":9001}}}'}
    assert planned(fake, **late)[0] == ("orders-eu", 0, 0, 10)
    strict = {**late, f"{end}OffsetsByTimestampStrategy": "error"}
    with pytest.raises(ConfigError, match="orders-eu@broker-a:1 has no message stored at or aft"):
        planned(fake, **strict)
    strict[f"{end}OffsetsByTimestamp"] = '{"orders-eu":{"broker-a":{"1":9000}}}'
    assert ("orders-eu", 0, 0, 10) in planned(fake, **strict)


def test_times_of_a_queue_that_is_not_there_are_refused(fake: FakeCluster) -> None:
    with pytest.raises(ConfigError, match="offsets name orders-eu@broker-a:7, but there are only"):
        planned(fake, startingOffsetsByTimestamp='{"orders-eu":{"broker-a":{"7":1}}}')


def test_a_group_says_where_to_begin_and_its_other_queues_begin_at_earliest(
    fake: FakeCluster,
) -> None:
    fake.groups["g"] = {("orders-eu", 0): 4}
    assert planned(fake, startingGroup="g") == [("orders-eu", 0, 4, 10), ("orders-eu", 1, 0, 10)]
    assert begun(fake, startingGroup="g") == {"orders-eu": {"broker-a": {"0": 4, "1": 0}}}
    latest = begun(fake, startingGroup="g", startingOffsets="latest")
    assert latest == {"orders-eu": {"broker-a": {"0": 4, "1": 10}}}


def test_a_group_that_stands_beyond_the_end_of_a_queue_is_loss(fake: FakeCluster) -> None:
    fake.groups["g"] = {("orders-eu", 0): 11}
    with pytest.raises(
        DataLossError, match="group g has committed 11 for orders-eu@broker-a:0, which ends at 10"
    ):
        planned(fake, startingGroup="g")
    lenient = begun(fake, startingGroup="g", failOnDataLoss="false")
    assert lenient == {"orders-eu": {"broker-a": {"0": 10, "1": 0}}}


def test_there_are_at_least_so_many_tasks(fake: FakeCluster) -> None:
    tasks = BatchReader(options(fake, minPartitions="4")).partitions()
    sizes = [sum(part.count for part in task.ranges) for task in tasks]  # type: ignore[attr-defined]
    assert sizes == [5, 5, 5, 5]
    assert len(BatchReader(options(fake, minPartitions="50")).partitions()) == 20


def break_at_codes(codes: Any, fake: FakeCluster, request: Command) -> Command | None:
    return None if request.code in codes else fake.usual_answer(request)


def broken(fake: FakeCluster, *codes: int) -> None:
    """The broker breaks the connection when asked for these; the name server answers."""

    fake.answer = partial(break_at_codes, codes, fake)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("batch", "stream"):
        monkeypatch.setattr(f"turbopump.spark.{module}.PLANNING_PATIENCE_S", 0.01)


@pytest.mark.usefixtures("hurried")
def test_a_batch_read_fails_or_goes_on_without_a_broker_that_is_away(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broken(fake, RequestCode.GET_MAX_OFFSET)
    with pytest.raises(RemotingError):
        planned(fake)
    with caplog.at_level(logging.WARNING):
        assert planned(fake, brokerOfflineStrategy="skip") == []
    assert "broker broker-a is away" in caplog.text
    assert "is left out, because brokerOfflineStrategy is skip" in caplog.text


@pytest.mark.usefixtures("hurried")
def test_a_stream_keeps_the_offsets_of_a_broker_that_is_away_and_reads_on_when_it_is_back(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    stream = StreamReader(options(fake), now=lambda: now[0])
    try:
        start = stream.initialOffset()
        fake.fill("orders-eu", 0, 3)
        broken(fake, RequestCode.GET_MAX_OFFSET)
        with caplog.at_level(logging.WARNING):
            assert stream.latestOffset(start, ReadAllAvailable()) == start
            asked = len(fake.requests)
            assert stream.latestOffset(start, ReadAllAvailable()) == start
        # The second time it is only looked up, not asked, and nothing more is said.
        assert {request.code for request in fake.requests[asked:]} == {
            RequestCode.GET_ROUTEINFO_BY_TOPIC
        }
        assert caplog.text.count("its offset 10 is kept") == 2
        fake.answer = fake.usual_answer
        now[0] += 6
        end = decode_offsets(stream.latestOffset(start, ReadAllAvailable()))
        assert sorted(end.values()) == [10, 13]
    finally:
        stream.stop()


@pytest.mark.usefixtures("hurried")
def test_a_stream_may_be_told_to_fail_without_a_broker(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbopump.spark.reading.READING_PATIENCE_S", 0.01)
    stream = StreamReader(options(fake, brokerOfflineStrategy="fail"))
    try:
        start = stream.initialOffset()
        gone = {**start, "topics": {"orders-eu": {"broker-z": {"0": 1}}}}
        with pytest.raises(ClientError, match="orders-eu@broker-z:0 is not in the route"):
            stream.latestOffset(gone, ReadAllAvailable())
    finally:
        stream.stop()
