"""What the Spark source asks of brokers beyond plain pulls, of ours and of Apache's: patterns,
assigned queues, tags, SQL filters, times, groups, and the bounds of micro-batches. Its readers are
called as Spark calls them; Spark itself need not run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.apache import NEWEST
from tests.interop.either_servers import Servers
from tests.interop.either_servers import servers as servers
from tests.interop.our_clients import patient_producer
from tests.interop.patient_apache import patient_apache

from turbopump import Message, MessageQueue
from turbopump.errors import ConfigError, ResponseError

if TYPE_CHECKING:
    from turbopump.spark.stream import StreamReader

COUNT = 200
TAGS = ("Aa", "BB", "other")
"""The first two have the same hash."""


@pytest.fixture(scope="module")
def filled(servers: Servers) -> Servers:
    """``orders-eu`` holds COUNT messages in its queues in turn, with the tags in turn."""
    pytest.importorskip("pyspark")
    asyncio.run(_produce(servers.namesrv))
    return servers


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


def reader(filled: Servers, **given: str) -> Any:
    from turbopump.spark.batch import PushingBatchReader
    from turbopump.spark.options import read_options

    if not {"subscribePattern", "assign"} & given.keys():
        given["topic"] = "orders-eu"
    return PushingBatchReader(read_options({"nameServer": filled.namesrv, **given}))


def rows(made: Any) -> list[dict[str, Any]]:
    return [
        row for task in made.partitions() for batch in made.read(task) for row in batch.to_pylist()
    ]


def bodies(filled: Servers, **given: str) -> list[int]:
    return sorted(int(row["body"]) for row in rows(reader(filled, columns="body", **given)))


def test_a_pattern_finds_topics_and_none_of_the_brokers_own(filled: Servers) -> None:
    found = rows(reader(filled, columns="topic", subscribePattern=".*"))
    assert [row["topic"] for row in found] == ["orders-eu"] * COUNT


def test_tags_are_exact_where_the_broker_compares_hashes(filled: Servers) -> None:
    assert bodies(filled, tags="Aa") == list(range(0, COUNT, 3))
    assert bodies(filled, tags="BB || other") == [
        number for number in range(COUNT) if number % 3 != 0
    ]
    assert bodies(filled, tags="none-such") == []


def test_a_sql_filter_is_judged_by_the_broker(filled: Servers) -> None:
    assert bodies(filled, sqlFilter="n BETWEEN 50 AND 59") == list(range(50, 60))
    assert bodies(filled, sqlFilter="n > 1000") == []


def matching(middle: Any, some: list[dict[str, Any]]) -> list[Any]:
    return sorted(
        row["body"] for row in some if row["tags"] == "BB" and row["storeTimestamp"] >= middle
    )


def test_what_spark_filters_narrows_the_read_and_loses_nothing(filled: Servers) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    made = reader(filled)
    every = rows(made)
    middle = sorted(row["storeTimestamp"] for row in every)[COUNT // 2]
    wanted = [EqualTo(("tags",), "BB"), GreaterThanOrEqual(("storeTimestamp",), middle)]
    assert list(made.pushFilters(wanted)) == wanted
    narrowed = rows(made)
    assert len(narrowed) < len(every)

    assert matching(middle, narrowed) == matching(middle, every) != []


def test_a_time_is_the_first_message_at_or_after_it(filled: Servers) -> None:
    stored = [int(row["storeTimestamp"].timestamp() * 1000) for row in rows(reader(filled))]
    time_ms = sorted(stored)[COUNT // 2]
    assert len(bodies(filled, startingTimestamp=str(time_ms))) == sum(
        each >= time_ms for each in stored
    )
    assert bodies(filled, startingTimestamp=str(max(stored) + 1)) == []


def test_assigned_queues_alone_are_read(filled: Servers) -> None:
    every = rows(reader(filled))
    wanted = sorted(row["body"] for row in every if row["queueId"] in (0, 2))
    assert (
        sorted(row["body"] for row in rows(reader(filled, assign='{"orders-eu":[0,2]}'))) == wanted
    )
    assert 0 < len(wanted) < COUNT


def test_times_of_queues_begin_and_end_a_read(filled: Servers) -> None:
    every = rows(reader(filled))
    in_queue = sorted(
        (row for row in every if row["queueId"] == 1), key=lambda row: row["queueOffset"]
    )
    time = in_queue[len(in_queue) // 2]["storeTimestamp"]

    def read(time_ms: int, end: str, strategy: str = "latest") -> list[dict[str, Any]]:
        times = json.dumps({"orders-eu": {in_queue[0]["brokerName"]: {"1": time_ms}}})
        name = f"{end}OffsetsByTimestamp"
        return rows(reader(filled, **{name: times, f"{name}Strategy": strategy}))

    time_ms = int(time.timestamp() * 1000)
    for strategy in ("latest", "error"):
        for end, is_wanted in (("starting", time.__le__), ("ending", time.__gt__)):
            assert sorted(row["body"] for row in read(time_ms, end, strategy)) == sorted(
                row["body"]
                for row in every
                if row["queueId"] != 1 or is_wanted(row["storeTimestamp"])
            )
    later_ms = int(max(row["storeTimestamp"] for row in every).timestamp() * 1000) + 1
    assert len(read(later_ms, "starting")) == COUNT - len(in_queue)
    assert len(read(later_ms, "ending")) == COUNT
    for end in ("starting", "ending"):
        with pytest.raises(ConfigError, match=r"orders-eu@.*:1 has no message stored at or after"):
            read(later_ms, end, "error")


def test_a_read_has_at_least_so_many_tasks(filled: Servers) -> None:
    made = reader(filled, minPartitions="11", columns="body")
    tasks = [
        [row["body"] for batch in made.read(task) for row in batch.to_pylist()]
        for task in made.partitions()
    ]
    assert len(tasks) >= 11
    assert sorted(int(body) for task in tasks for body in task) == list(range(COUNT))


def micro_batches(filled: Servers, **given: str) -> list[list[dict[str, Any]]]:
    made = stream(filled, **given)
    try:
        found, begin = [], made.initialOffset()
        while (end := made.latestOffset(begin, made.getDefaultReadLimit())) != begin:
            tasks = made.partitions(begin, end)
            found.append(
                [row for task in tasks for each in made.read(task) for row in each.to_pylist()]
            )
            begin = end
        return found
    finally:
        made.stop()


def test_micro_batches_have_at_most_so_many_messages_or_bytes(filled: Servers) -> None:
    by_count = micro_batches(filled, maxOffsetsPerTrigger="70")
    assert [len(each) for each in by_count] == [70, 70, 60]
    size = max(row["storeSize"] for each in by_count for row in each)
    by_size = micro_batches(filled, maxBytesPerTrigger=str(50 * size))
    assert len(by_size) >= 4
    assert all(sum(row["storeSize"] for row in each) <= 50 * size for each in by_size)
    for found in (by_count, by_size):
        assert sorted(int(row["body"]) for each in found for row in each) == list(range(COUNT))


def test_a_micro_batch_waits_for_more_messages_but_not_for_ever(filled: Servers) -> None:
    oldest = min(row["storeTimestamp"] for row in rows(reader(filled))).timestamp()
    now = oldest + 59
    given = {"minOffsetsPerTrigger": str(COUNT + 1), "maxTriggerDelay": "1m"}
    made = stream(filled, now=lambda: now, **given)
    try:
        begin = made.initialOffset()
        assert made.latestOffset(begin, made.getDefaultReadLimit()) == begin
        now = oldest + 60
        assert made.latestOffset(begin, made.getDefaultReadLimit()) == made.reportLatestOffset()
    finally:
        made.stop()


def stream(filled: Servers, now: Callable[[], float] | None = None, **given: str) -> StreamReader:
    from turbopump.spark.options import read_options
    from turbopump.spark.stream import StreamReader

    chosen = {"nameServer": filled.namesrv, "topic": "orders-eu", "startingOffsets": "earliest"}
    options = read_options({**chosen, **given})
    return StreamReader(options) if now is None else StreamReader(options, now)


def test_progress_is_committed_for_a_group_and_a_read_begins_there(filled: Servers) -> None:
    from turbopump.spark.offsets import decode_offsets, encode_offsets
    from turbopump.spark.options import read_options
    from turbopump.spark.stream import StreamReader

    given = {"nameServer": filled.namesrv, "topic": "orders-eu", "commitGroup": "spark-orders"}
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
    assert len(bodies(filled, startingGroup="spark-orders")) == rest
    assert len(bodies(filled, startingGroup="nobody-yet")) == COUNT


def test_a_broker_that_may_not_filter_by_sql_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("pyspark")
    with patient_apache(NEWEST, tmp_path_factory.mktemp("apache")) as cluster:
        asyncio.run(_produce(cluster.namesrv))
        told = Servers(NEWEST, cluster.namesrv, cluster.broker)
        with pytest.raises(ResponseError, match="SQL92"):
            bodies(told, sqlFilter="n = 1")
