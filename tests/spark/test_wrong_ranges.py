"""Every way in which a range of offsets can be wrong, for each trigger and for a batch read:
nothing is skipped unless ``failOnDataLoss`` is false, and then it is said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tests.spark.fake_cluster import FakeCluster, FakeQueue

from turbopump.errors import ClientError, ConfigError, DataLossError, RouteNotFoundError
from turbopump.spark import reading
from turbopump.spark.batch import BatchReader
from turbopump.spark.options import ReadOptions, read_options
from turbopump.spark.reading import RangesPartition
from turbopump.spark.stream import StreamReader

Found = list[tuple[int, int]]
TRIGGERS = ("plain", "limited", "available now")
LIMITED: dict[str, tuple[ReadLimit, dict[str, str]]] = {
    "limited": (ReadMaxRows(10_000), {}),
    # more than waits, so that the store time of the first message is asked for
    "least rows": (ReadMinRows(200), {"minOffsetsPerTrigger": "200"}),
    "most bytes": (ReadMaxBytes(1 << 20), {"maxBytesPerTrigger": "1m"}),
}
FILTERS: tuple[dict[str, str], ...] = ({}, {"tags": "A"}, {"assign": '{"T":[0,1]}'})
"""Other ways to read the same messages."""


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 2}) as cluster:
        cluster.fill("T", 0, 100, tag="A")
        yield cluster


def options(fake: FakeCluster, **given: str) -> ReadOptions:
    if "assign" not in given:
        given = {"topic": "T", **given}
    return read_options({"nameServer": fake.address, "pullTimeoutMs": "1", **given})


def offsets(first: int, second: int | None = 0) -> dict[str, Any]:
    queues = {"0": first} if second is None else {"0": first, "1": second}
    return {"v": 1, "topics": {"T": {"broker-a": queues}}}


def rows(reader: StreamReader | BatchReader, partitions: Any) -> Found:
    found: Found = []
    for partition in partitions:
        assert isinstance(partition, RangesPartition)
        for batch in reader.read(partition):
            found += zip(
                batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True
            )
    return found


def streamed(fake: FakeCluster, trigger: str, begin: dict[str, Any], **given: str) -> Found:
    """Return the result of the first batch of a query that is restarted at ``begin``."""
    limit, more = LIMITED.get(trigger, (ReadAllAvailable(), {}))
    reader = StreamReader(options(fake, **given, **more))
    try:
        if trigger == "available now":
            reader.prepareForTriggerAvailableNow()
        return rows(reader, reader.partitions(begin, reader.latestOffset(begin, limit)))
    finally:
        reader.stop()


def batch(fake: FakeCluster, **given: str) -> Found:
    reader = BatchReader(options(fake, **given))
    return rows(reader, reader.partitions())


def begun_again(fake: FakeCluster) -> None:
    fake.queues["T", 0] = FakeQueue()
    fake.fill("T", 0, 30, tag="A")


def removed(fake: FakeCluster) -> None:
    fake.queues["T", 0].remove_oldest(95)


def unchanged(_fake: FakeCluster) -> None:
    """The checkpoint alone is wrong."""


def fewer_queues(fake: FakeCluster) -> None:
    del fake.queues["T", 1]


LAST_FIVE: Found = [(0, offset) for offset in range(95, 100)]
WRONG: dict[str, tuple[Callable[[FakeCluster], None], int, str, Found]] = {
    # what happened: how, read up to, what is said, what is read with failOnDataLoss=false
    "begun again": (begun_again, 100, "T@broker-a:0 ends at 30, but it was read up to 100", []),
    "beyond the end": (unchanged, 101, "T@broker-a:0 ends at 100, but it was read up to 101", []),
    "removed": (removed, 90, "messages 90 to 94 .* are not there", LAST_FIVE),
    "fewer queues": (fewer_queues, 98, "T@broker-a:1 no longer exists", [(0, 98), (0, 99)]),
}


@pytest.mark.parametrize(
    ("trigger", "more"),
    [
        *((trigger, more) for trigger in TRIGGERS for more in FILTERS),
        *((trigger, {}) for trigger in LIMITED if trigger not in TRIGGERS),
    ],
)
@pytest.mark.parametrize("way", WRONG)
def test_a_stream_fails_rather_than_skip(
    fake: FakeCluster,
    way: str,
    trigger: str,
    more: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    happens, begin, said, rest = WRONG[way]
    happens(fake)
    with pytest.raises(DataLossError, match=said):
        streamed(fake, trigger, offsets(begin), **more)
    with caplog.at_level(logging.WARNING):
        assert streamed(fake, trigger, offsets(begin), failOnDataLoss="false", **more) == rest
    assert "as failOnDataLoss is false" in caplog.text


@pytest.mark.parametrize("way", WRONG)
def test_a_batch_from_the_same_offsets_fails_rather_than_skip(
    fake: FakeCluster, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    happens, begin, _, rest = WRONG[way]
    happens(fake)
    given = {"startingOffsets": json.dumps(offsets(begin))}
    if way == "fewer queues":
        with pytest.raises(ConfigError, match="name T@broker-a:1, but there are only T@broker-a:0"):
            batch(fake, **given)
        return
    with pytest.raises(DataLossError, match=r"broker-a:0.*(ends at|are not there)"):
        batch(fake, **given)
    with caplog.at_level(logging.WARNING):
        assert batch(fake, **given, failOnDataLoss="false") == rest
    assert "as failOnDataLoss is false" in caplog.text


def test_a_stream_refuses_filters_that_spark_would_not_push(fake: FakeCluster) -> None:
    with pytest.raises(
        ConfigError, match=r"filterPushdown is for batch reads; .* pushes no filters"
    ):
        StreamReader(options(fake, filterPushdown="true"))


def deleted(fake: FakeCluster) -> None:
    for queue_id in range(2):
        del fake.queues["T", queue_id]


def test_a_batch_of_a_topic_that_was_deleted_fails_or_reads_the_others(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.queues["U", 0] = FakeQueue()
    fake.fill("U", 0, 3)
    deleted(fake)
    with pytest.raises(RouteNotFoundError, match="know no topic 'T'"):
        batch(fake, topic="T,U")
    assert batch(fake, topic="T,U", failOnDataLoss="false") == [(0, 0), (0, 1), (0, 2)]
    assert "know no topic 'T': it was never written or created there; the others" in caplog.text
    with pytest.raises(RouteNotFoundError, match="know no topic 'T'"):  # a misspelt one, perhaps
        batch(fake, topic="T", failOnDataLoss="false")


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("strategy", [{}, {"brokerOfflineStrategy": "fail"}])
def test_a_stream_goes_on_without_a_topic_that_was_deleted(
    fake: FakeCluster, trigger: str, strategy: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    fake.queues["U", 0] = FakeQueue()
    fake.fill("U", 0, 3)
    begin = offsets(90)
    begin["topics"]["U"] = {"broker-a": {"0": 1}}
    deleted(fake)
    given = {"topic": "T,U", **strategy}
    if trigger == "available now" or strategy:
        with pytest.raises(ClientError, match=r"know no topic 'T'|its topic was deleted"):
            streamed(fake, trigger, begin, **given)
    assert streamed(fake, trigger, begin, **given, failOnDataLoss="false") == [(0, 1), (0, 2)]
    assert "T@broker-a:0 is not in the route at the moment; its offset 90 is kept" in caplog.text


def test_a_task_goes_on_without_a_topic_that_was_deleted_since_it_was_planned(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.queues["U", 0] = FakeQueue()
    fake.fill("U", 0, 3)
    monkeypatch.setattr(reading, "connected", partial(reading.connected, patience=0.0))
    for given in ({}, {"tags": "A"}):
        strict = BatchReader(options(fake, topic="T,U", **given))
        lenient = BatchReader(options(fake, topic="T,U", **given, failOnDataLoss="false"))
        plans = [(reader, reader.partitions()) for reader in (strict, lenient)]
        kept = {queue: fake.queues[queue] for queue in [("T", 0), ("T", 1)]}
        deleted(fake)
        with pytest.raises(ClientError, match="know no topic 'T'"):
            rows(*plans[0])
        caplog.clear()
        assert len(rows(*plans[1])) == (0 if given else 3)
        assert "the rest of T@broker-a:0 is skipped, as failOnDataLoss is false" in caplog.text
        fake.queues |= kept


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_batch_beyond_the_end_of_a_queue_is_refused_when_it_is_planned(
    fake: FakeCluster, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    beyond = '{"T":{"broker-a":{"0":101,"1":-1}}}'
    with pytest.raises(DataLossError, match=f"{option} says 101 for T@broker-a:0, .* ends at 100"):
        batch(fake, **{option: beyond})
    found = batch(fake, **{option: beyond}, failOnDataLoss="false")
    assert len(found) == (0 if option == "startingOffsets" else 100)
    assert "using its end, as failOnDataLoss is false" in caplog.text


def gone_with_its_broker() -> dict[str, Any]:
    """A checkpoint that knows a broker which is not in the route now."""
    begin = offsets(90)
    begin["topics"]["T"]["broker-b"] = {"0": 5}
    return begin


def test_available_now_does_not_leave_out_a_broker_that_is_not_in_the_route(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    said = "T@broker-b:0 is not in the route: .* set the option brokerOfflineStrategy to skip"
    for given in ({}, {"brokerOfflineStrategy": "fail"}):
        with pytest.raises(ClientError, match=said):
            streamed(fake, "available now", gone_with_its_broker(), **given)
    for trigger in TRIGGERS:
        skipping = {"brokerOfflineStrategy": "skip"}
        assert len(streamed(fake, trigger, gone_with_its_broker(), **skipping)) == 10
    assert len(streamed(fake, "plain", gone_with_its_broker())) == 10
    assert "T@broker-b:0 is not in the route at the moment; its offset 5 is kept" in caplog.text


def test_what_is_wrong_with_a_queue_is_said_once_though_spark_asks_all_the_time(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    reader = StreamReader(options(fake, failOnDataLoss="false"))
    for _ in range(3):
        assert reader.latestOffset(offsets(150), ReadAllAvailable()) == offsets(150)
    fake.fill("T", 0, 50)
    assert reader.latestOffset(offsets(150), ReadAllAvailable()) == offsets(150)
    assert reader.latestOffset(offsets(151), ReadAllAvailable()) == offsets(151)
    reader.stop()
    assert caplog.text.count("as failOnDataLoss is false") == 2


def test_a_slave_that_has_less_than_was_read_is_waited_for_as_a_broker_that_is_away(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.broker_id = 1  # its master has gone from the route
    assert streamed(fake, "plain", offsets(105)) == []
    said = (
        "the master of T@broker-a:0 is away, and its slave ends at 100, before the last read offset"
    )
    assert f"{said}; the offset 105 is kept" in caplog.text
    for trigger, given in (("available now", {}), ("plain", {"brokerOfflineStrategy": "fail"})):
        with pytest.raises(ClientError, match=f"{said}. Start the master, or set the option"):
            streamed(fake, trigger, offsets(105), **given)
    assert streamed(fake, "available now", offsets(105), brokerOfflineStrategy="skip") == []


def test_available_now_goes_on_when_the_options_name_fewer_queues_than_before(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fewer = {"assign": '{"T":{"broker-a":[0]}}'}
    assert len(streamed(fake, "available now", gone_with_its_broker(), **fewer)) == 10
    assert (
        "T@broker-b:0 is not selected by the options any more; its offset 5 is kept" in caplog.text
    )


def test_a_stream_that_shall_begin_beyond_the_end_of_a_queue_is_refused(fake: FakeCluster) -> None:
    beyond = '{"T":{"broker-a":{"0":101}}}'
    with pytest.raises(DataLossError, match="startingOffsets says 101 for T@broker-a:0"):
        StreamReader(options(fake, startingOffsets=beyond)).initialOffset()
    lenient = StreamReader(options(fake, startingOffsets=beyond, failOnDataLoss="false"))
    assert lenient.initialOffset() == offsets(100)


@pytest.mark.parametrize("more", FILTERS)
def test_a_batch_of_what_was_removed_fails(fake: FakeCluster, more: dict[str, str]) -> None:
    removed(fake)
    begin = '{"T":{"broker-a":{"0":90}}}'
    with pytest.raises(DataLossError, match=r"messages 90 to 94 .* are not there"):
        batch(fake, startingOffsets=begin, **more)
    found = batch(fake, startingOffsets=begin, failOnDataLoss="false", **more)
    assert found == LAST_FIVE


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "4000000000000"},
        {"topic": "EMPTY"},
    ],
)
def test_a_batch_of_nothing_has_no_rows(fake: FakeCluster, given: dict[str, str]) -> None:
    fake.queues["EMPTY", 0] = FakeQueue()
    assert batch(fake, **given) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {
                "startingOffsets": '{"T":{"broker-a":{"0":50}}}',
                "endingOffsets": '{"T":{"broker-a":{"0":20}}}',
            },
            "startingOffsets 50 of T@broker-a:0 is beyond its endingOffsets 20",
        ),
        (
            {"startingTimestamp": "2", "endingTimestamp": "1"},
            "startingTimestamp 2 of T@broker-a:0 is later than its endingTimestamp 1",
        ),
    ],
)
def test_a_batch_that_ends_before_it_begins_is_refused(
    fake: FakeCluster, given: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        batch(fake, **given)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxOffsetsPerTrigger", "10"),
        ("minOffsetsPerTrigger", "200"),
        ("maxBytesPerTrigger", "10"),
        ("maxTriggerDelay", "1s"),
        ("commitGroup", "g"),
    ],
)
def test_a_batch_says_that_an_option_of_streams_does_nothing(
    fake: FakeCluster, option: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(batch(fake, **{option: value})) == 100
    assert f"{option} has no effect in a batch read" in caplog.text
    assert fake.groups.keys() == {"TURBOPUMP_SPARK"}
