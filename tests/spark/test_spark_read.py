"""The options of a read inside Spark, against our own broker."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from turbopump import Message, MessageQueue, Producer
from turbopump.protocol.requests.offsets import QueryConsumerOffset
from turbopump.remoting.client import RemotingClient
from turbopump.spark import LagListener, LagReport, lag, serve_stream_metrics
from turbopump.testing import BrokerThread

SECRET = "s3cr3t-of-the-test"


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[BrokerThread]:
    """``orders-eu`` has 40 messages in 2 queues, with the tags even and odd; ``orders-us`` 6."""
    with BrokerThread() as running:
        running.create_topic("orders-eu", 2)
        running.create_topic("orders-us", 1)
        running.run(produce(running.namesrv, "orders-eu", 40))
        running.run(produce(running.namesrv, "orders-us", 6))
        yield running


async def produce(name_server: str, topic: str, count: int) -> None:
    async with Producer(name_server) as producer:
        queues = await producer.publish_queues(topic)
        for number in range(count):
            tags = ("even", "odd")[number % 2]
            message = Message(topic, str(number).encode(), tags=tags, properties={"n": str(number)})
            await producer.send(message, queue=queues[number // 2 % len(queues)])


def read(spark: SparkSession, rocketmq: BrokerThread, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return (
        spark.read.format("rocketmq").option("nameServer", rocketmq.namesrv).options(**given).load()
    )


def bodies(rows: DataFrame) -> list[int]:
    return sorted(int(bytes(row.body)) for row in rows.collect())


def test_a_table_takes_its_options_where_it_is_read(
    spark: SparkSession, rocketmq: BrokerThread
) -> None:
    spark.sql("CREATE TABLE orders_table (tags string, queueId int) USING rocketmq")
    try:
        given = f"nameServer='{rocketmq.namesrv}', topic='orders-us'"
        (row,) = spark.sql(f"SELECT count(tags) AS n FROM orders_table WITH ({given})").collect()
        assert row.n == 6
        reader = spark.read.option("nameServer", rocketmq.namesrv).option("topic", "orders-us")
        assert reader.table("orders_table").columns == ["tags", "queueId"]
    finally:
        spark.sql("DROP TABLE orders_table")


def test_patterns_and_filters_choose_what_is_read(
    spark: SparkSession, rocketmq: BrokerThread
) -> None:
    odd = read(spark, rocketmq, subscribePattern="orders-.*", tags="odd", minPartitions=4)
    found = odd.select("topic", "body").rdd.glom().collect()
    assert len(found) == 4
    by_topic: dict[str, list[int]] = {}
    for row in (row for task in found for row in task):
        by_topic.setdefault(row.topic, []).append(int(bytes(row.body)))
    assert {topic: sorted(numbers) for topic, numbers in by_topic.items()} == {
        "orders-eu": list(range(1, 40, 2)),
        "orders-us": [1, 3, 5],
    }


def test_filters_of_spark_are_pushed_down_and_the_rows_are_the_same(
    spark: SparkSession, rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    condition = "topic = 'orders-eu' AND queueId = 1 AND queueOffset >= 5 AND tags = 'odd'"
    pushed, plain = (
        read(spark, rocketmq, subscribePattern="orders-.*", filterPushdown=on).where(condition)
        for on in ("true", "false")
    )
    assert bodies(pushed) == bodies(plain) != []
    pushed.explain("formatted")
    said = capsys.readouterr().out
    assert "EqualTo(queueId,1), GreaterThanOrEqual(queueOffset,5)]" in said
    assert "Condition : (isnotnull(tags" in said  # tags alone are judged again
    plain.explain("formatted")
    assert "PushedFilters" not in capsys.readouterr().out
    by_time = read(spark, rocketmq, topic="orders-eu", filterPushdown="true").where(
        "storeTimestamp > timestamp '2020-01-01' AND storeTimestamp < timestamp '2021-01-01'"
    )
    assert bodies(by_time) == []


def test_queries_of_one_dataframe_do_not_see_each_others_filters(
    spark: SparkSession, rocketmq: BrokerThread
) -> None:
    """Spark 4.3.0 keeps the ranges of a DataFrame's last filters for its other queries."""
    rows = read(spark, rocketmq, topic="orders-eu")
    first, second = rows.where("queueId = 0"), rows.where("queueId = 1")
    assert first.count() == 20
    assert rows.count() == 40
    assert bodies(first.unionAll(second)) == list(range(40))
    pushed = read(spark, rocketmq, topic="orders-eu", filterPushdown="true")
    assert pushed.where("queueId = 0").count() == 20
    assert pushed.count() == 20, "Spark has mended it: let the session push filters down again"


def test_a_secret_is_in_no_plan(
    spark: SparkSession, rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read(spark, rocketmq, topic="orders-us", accessKey="user", secretKey=SECRET)
    plan = rows.where("queueId = 0")
    for mode in ("extended", "formatted", "cost", "codegen"):
        plan.explain(mode)
    streamed = spark.readStream.format("rocketmq").option("nameServer", rocketmq.namesrv)
    streamed.option("topic", "orders-us").option("accessKey", "user").option(
        "secretKey", SECRET
    ).load().explain("extended")
    said = capsys.readouterr().out
    assert "BatchScan rocketmq" in said
    assert "StreamingRelation" in said
    execution = plan._jdf.queryExecution()
    assert SECRET not in f"{said} {execution.logical().toJSON()} {execution.simpleString()}"
    assert rows.count() == 6


def stream(
    spark: SparkSession, rocketmq: BrokerThread, directory: Path, **options: object
) -> StreamingQuery:
    """One AvailableNow query into Parquet, run to its end."""
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", rocketmq.namesrv)
        .options(**{name: str(value) for name, value in options.items()})
        .load()
        .select("topic", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "rows"))
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


async def committed(rocketmq: BrokerThread, group: str, topic: str, queues: int) -> list[int]:
    client = RemotingClient()
    try:
        return [
            (
                await client.call(
                    rocketmq.broker_address,
                    QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id),
                )
            ).offset
            for queue_id in range(queues)
        ]
    finally:
        await client.close()


def test_a_filtered_stream_in_small_batches_gives_every_match_once_and_shows_its_progress(
    spark: SparkSession, rocketmq: BrokerThread, tmp_path: Path
) -> None:
    reports: list[LagReport] = []
    listener = LagListener(on_report=reports.append)
    spark.streams.addListener(listener)
    page = serve_stream_metrics(spark, 0)
    try:
        options: dict[str, Any] = {
            "subscribePattern": "orders-.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 20,
            "minOffsetsPerTrigger": 20,
            "tags": "odd",
            "commitGroup": "spark-orders",
        }
        query = stream(spark, rocketmq, tmp_path, **options)
        found = spark.read.parquet(str(tmp_path / "rows"))
        assert bodies(found.where("topic = 'orders-eu'")) == list(range(1, 40, 2))
        assert bodies(found.where("topic = 'orders-us'")) == [1, 3, 5]
        assert rocketmq.run(committed(rocketmq, "spark-orders", "orders-eu", 2)) == [20, 20]
        progress = [json.loads(each.json) for each in query.recentProgress]
        behind = [sum(lag(each).values()) for each in progress]
        assert behind[:3] == [26, 6, 0]
        last = query.lastProgress
        assert isinstance(last, StreamingQueryProgress)
        assert lag(last)[MessageQueue("orders-eu", "broker-test", 0)] == 0
        labels = f'pipeline="stream",name="{query.id}"'
        shown = ""
        while f"turbopump_pipeline_rows_total{{{labels}}} 23\n" not in shown:  # Spark reports later
            with urllib.request.urlopen(page.url, timeout=60) as answer:
                shown = answer.read().decode()
        assert f"turbopump_pipeline_batch_seconds_count{{{labels}}} 3\n" in shown

        # A topic that is made later is found by the next run.
        rocketmq.create_topic("orders-asia", 1)
        rocketmq.run(produce(rocketmq.namesrv, "orders-asia", 4))
        stream(spark, rocketmq, tmp_path, **options)
        found = spark.read.parquet(str(tmp_path / "rows"))
        assert bodies(found.where("topic = 'orders-asia'")) == [1, 3]
        assert found.count() == 20 + 3 + 2
    finally:
        spark.streams.removeListener(listener)
        page.close()
    assert [report.behind_total for report in reports][:3] == [26, 6, 0]


def test_a_running_stream_finds_a_topic_that_is_made_meanwhile(
    spark: SparkSession, rocketmq: BrokerThread, tmp_path: Path
) -> None:
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", rocketmq.namesrv)
        .option("subscribePattern", "late-.*")
        .load()
        .select("topic", "body")
    )
    query = (
        rows.writeStream.format("memory")
        .queryName("late")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()  # it runs, and there is no such topic
        rocketmq.create_topic("late-one", 1)
        rocketmq.run(produce(rocketmq.namesrv, "late-one", 3))
        deadline = time.monotonic() + 60
        while spark.table("late").count() < 3:
            assert time.monotonic() < deadline
            query.processAllAvailable()
        assert bodies(spark.table("late").where("topic = 'late-one'")) == [0, 1, 2]
    finally:
        query.stop()
