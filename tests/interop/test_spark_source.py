"""What the Spark source asks of Apache's brokers beyond plain pulls: patterns, tags, SQL filters,
times and groups. Its readers are called as Spark calls them; Spark itself need not run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.our_clients import patient_producer
from tests.interop.patient_apache import patient_apache

from turbopump import Message, MessageQueue
from turbopump.errors import ResponseError

COUNT = 200
TAGS = ("Aa", "BB", "other")
"""The first two have the same hash."""


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    """``orders-eu`` holds COUNT messages in its queues in turn, with the tags in turn."""
    pytest.importorskip("pyspark")
    directory = tmp_path_factory.mktemp("apache")
    with patient_apache(request.param, directory, enablePropertyFilter=True) as cluster:
        asyncio.run(_produce(cluster.namesrv))
        yield cluster


async def _produce(name_server: str) -> None:
    async with patient_producer(name_server) as producer:
        for number in range(COUNT):
            await producer.send(
                Message(
                    "orders-eu",
                    str(number).encode(),
                    tags=TAGS[number % 3],
                    properties={"n": str(number)},
                )
            )


def reader(apache: ApacheCluster, **given: str) -> Any:
    from turbopump.spark.batch import PushingBatchReader
    from turbopump.spark.options import read_options

    if not {"subscribePattern", "assign"} & given.keys():
        given["topic"] = "orders-eu"
    return PushingBatchReader(read_options({"nameServer": apache.namesrv, **given}))


def rows(made: Any) -> list[dict[str, Any]]:
    return [
        row for task in made.partitions() for batch in made.read(task) for row in batch.to_pylist()
    ]


def bodies(apache: ApacheCluster, **given: str) -> list[int]:
    return sorted(int(row["body"]) for row in rows(reader(apache, columns="body", **given)))


def test_a_pattern_finds_topics_and_none_of_the_brokers_own(apache: ApacheCluster) -> None:
    found = rows(reader(apache, columns="topic", subscribePattern=".*"))
    assert [row["topic"] for row in found] == ["orders-eu"] * COUNT


def test_tags_are_exact_where_the_broker_compares_hashes(apache: ApacheCluster) -> None:
    assert bodies(apache, tags="Aa") == list(range(0, COUNT, 3))
    assert bodies(apache, tags="BB || other") == [
        number for number in range(COUNT) if number % 3 != 0
    ]
    assert bodies(apache, tags="none such") == []


def test_a_sql_filter_is_judged_by_the_broker(apache: ApacheCluster) -> None:
    assert bodies(apache, sqlFilter="n BETWEEN 50 AND 59") == list(range(50, 60))
    assert bodies(apache, sqlFilter="n > 1000") == []


def test_what_spark_filters_narrows_the_read_and_loses_nothing(apache: ApacheCluster) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    made = reader(apache)
    every = rows(made)
    middle = sorted(row["storeTimestamp"] for row in every)[COUNT // 2]
    wanted = [EqualTo(("tags",), "BB"), GreaterThanOrEqual(("storeTimestamp",), middle)]
    assert list(made.pushFilters(wanted)) == wanted
    narrowed = rows(made)
    assert len(narrowed) < len(every)

    def matching(some: list[dict[str, Any]]) -> list[Any]:
        return sorted(
            row["body"] for row in some if row["tags"] == "BB" and row["storeTimestamp"] >= middle
        )

    assert matching(narrowed) == matching(every) != []


def test_a_time_is_the_first_message_at_or_after_it(apache: ApacheCluster) -> None:
    stored = [int(row["storeTimestamp"].timestamp() * 1000) for row in rows(reader(apache))]
    time_ms = sorted(stored)[COUNT // 2]
    assert len(bodies(apache, startingTimestamp=str(time_ms))) == sum(
        each >= time_ms for each in stored
    )
    assert bodies(apache, startingTimestamp=str(max(stored) + 1)) == []


def test_progress_is_committed_for_a_group_and_a_read_begins_there(apache: ApacheCluster) -> None:
    from turbopump.spark.offsets import decode_offsets, encode_offsets
    from turbopump.spark.options import read_options
    from turbopump.spark.stream import StreamReader

    given = {"nameServer": apache.namesrv, "topic": "orders-eu", "commitGroup": "spark-orders"}
    stream = StreamReader(read_options({**given, "startingOffsets": "earliest"}))
    try:
        ends: dict[MessageQueue, int] = decode_offsets(stream.reportLatestOffset() or {})
        half = {queue: end // 2 for queue, end in ends.items()}
        stream.commit(encode_offsets(half))
    finally:
        stream.stop()
    begun = StreamReader(read_options({**given, "startingGroup": "spark-orders"})).initialOffset()
    assert begun == encode_offsets(half)
    rest = sum(ends[queue] - half[queue] for queue in ends)
    assert len(bodies(apache, startingGroup="spark-orders")) == rest
    assert len(bodies(apache, startingGroup="nobody-yet")) == COUNT


def test_a_broker_that_may_not_filter_by_sql_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("pyspark")
    with patient_apache(NEWEST, tmp_path_factory.mktemp("apache")) as cluster:
        asyncio.run(_produce(cluster.namesrv))
        with pytest.raises(ResponseError, match="SQL92"):
            bodies(cluster, sqlFilter="n = 1")
