"""Rows to topics, through Spark and without it, against our own broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from tests.spark.fake_cluster import FakeCluster

from turbopump import Message, Producer
from turbopump.errors import WriteError
from turbopump.protocol.codes import RequestCode
from turbopump.spark import sink
from turbopump.spark.cluster import Cluster
from turbopump.spark.read_back import Planned, attempt_of
from turbopump.spark.sink import write_task
from turbopump.spark.write_options import layout, write_options
from turbopump.testing import BrokerThread

ROW = (
    "topic string, body binary, keys string, tags string, properties map<string,string>, "
    "shardingKey string, flag int, msgId string"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def read(spark: SparkSession, broker: BrokerThread, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", broker.namesrv)
    return reader.option("topic", topic).load()


def write(rows: DataFrame, broker: BrokerThread, **options: object) -> None:
    writer = rows.write.format("rocketmq").option("nameServer", broker.namesrv).mode("append")
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def wait_for(broker: BrokerThread, topic: str, count: int) -> None:
    """Wait until a topic has had this many messages."""
    with Cluster([broker.namesrv]) as cluster:
        queues = cluster.queues(topic)
        deadline = time.monotonic() + 60
        while sum(map(cluster.offset_max, queues)) < count:
            assert time.monotonic() < deadline, f"{topic} does not get {count} messages"


def task(broker: BrokerThread, columns: dict[str, Any], **options: object) -> int:
    """Write a record batch as a task does; how many rows it says it has sent."""
    batch = pa.record_batch(columns)
    given = {"nameServer": broker.namesrv, **{name: str(v) for name, v in options.items()}}
    plan = write_options(given)
    attempt = attempt_of(None, plan, Planned("w", 0), 0)
    return write_task(iter([batch]), plan, layout(batch.schema, plan), attempt).rows


def test_rows_are_in_the_topics_that_they_name(spark: SparkSession, broker: BrokerThread) -> None:
    broker.create_topic("batch-a", 3)
    broker.create_topic("batch-b", 1)
    rows = [
        (
            "batch-a" if n % 2 else "batch-b",
            b"body %d" % n,
            f"k{n}",
            None,
            {"n": str(n)},
            None,
            n,
            None,
        )
        for n in range(500)
    ]
    write(spark.createDataFrame(rows, ROW).repartition(2), broker)
    found = read(spark, broker, "batch-a").union(read(spark, broker, "batch-b")).collect()
    assert sorted(
        (row.topic, bytes(row.body), row["keys"], row.properties["n"], row.flag) for row in found
    ) == sorted(
        (topic, body, keys, str(flag), flag) for topic, body, keys, _, _, _, flag, _ in rows
    )
    assert len({row.msgId for row in found}) == 500
    assert {row.queueId for row in found if row.topic == "batch-a"} == {0, 1, 2}


async def produce(broker: BrokerThread) -> None:
    async with Producer(broker.namesrv) as producer:
        for number in range(30):
            message = Message(
                "origin",
                f"body {number}".encode() * (1 if number % 4 else 2000),  # some compressed
                tags=f"t{number % 3}" if number % 3 else None,
                keys=["k", str(number)] if number % 2 else None,
                properties={"mine": "Ω", "UNIQ_KEY": f"own {number}"} if number % 5 else None,
                flag=number - 15,
                delay_level=1 if number == 7 else 0,
                deliver_at=datetime.now(UTC) if number == 8 else None,
                wait_store_ok=number != 9,
            )
            await producer.send(message, sharding_key="s" if number % 7 == 0 else None)
        await producer.send_batch([Message("origin", b"one of two")] * 2)


def test_what_is_read_is_written_as_it_was_but_for_places_and_times(
    spark: SparkSession, broker: BrokerThread
) -> None:
    broker.create_topic("origin", 2)
    broker.create_topic("copy", 5)
    broker.run(produce(broker))
    wait_for(broker, "origin", 32)  # the delayed one takes a second
    origin = read(spark, broker, "origin")
    write(origin, broker, topic="copy")
    kept = "msgId", "keys", "tags", "body", "flag"
    copies = {row.msgId: row for row in read(spark, broker, "copy").collect()}
    sources = {row.msgId: row for row in origin.collect()}
    assert copies.keys() == sources.keys()
    assert len(copies) == 32
    brokers_own = {"MSG_REGION", "TRACE_ON", "CLUSTER", "WAIT", "REAL_TOPIC", "REAL_QID"}
    for msg_id, copy in copies.items():
        source = sources[msg_id]
        assert [copy[name] for name in kept] == [source[name] for name in kept]
        own = {
            name: value
            for name, value in source.properties.items()
            if name not in brokers_own and not name.startswith(("DELAY", "TIMER_"))
        }
        added = {"MSG_REGION", "TRACE_ON", "CLUSTER"}
        assert {n: v for n, v in copy.properties.items() if n not in added} == own


def test_rows_of_a_key_are_in_one_queue_in_their_order(
    spark: SparkSession, broker: BrokerThread
) -> None:
    broker.create_topic("ordered", 4)
    rows = [(f"k{n % 10}", f"{n:05d}") for n in range(3000)]
    frame = spark.createDataFrame(rows, "customer string, body string")
    ordered = frame.repartition(2, "customer").sortWithinPartitions("body")
    write(ordered, broker, topic="ordered", orderingKey="customer", sendBatchSize=50)
    bodies: dict[str, list[tuple[int, int, str]]] = {}
    for row in read(spark, broker, "ordered").collect():
        body = bytes(row.body).decode()
        bodies.setdefault(f"k{int(body) % 10}", []).append((row.queueId, row.queueOffset, body))
    assert len(bodies) == 10
    for found in bodies.values():
        found.sort()
        assert len({queue_id for queue_id, _, _ in found}) == 1
        assert [body for _, _, body in found] == sorted(body for _, _, body in found)
        assert len(found) == 300


def test_a_stream_goes_on_where_its_checkpoint_says(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("stream-in", 2)
    broker.create_topic("stream-out", 3)
    sent = 0
    for _ in range(2):
        task(broker, {"body": [f"{n}" for n in range(sent, sent + 100)]}, topic="stream-in")
        sent += 100
        stream = spark.readStream.format("rocketmq").option("nameServer", broker.namesrv)
        rows = stream.option("topic", "stream-in").option("startingOffsets", "earliest").load()
        query = (
            rows.writeStream.format("rocketmq")
            .option("nameServer", broker.namesrv)
            .option("topic", "stream-out")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        found = read(spark, broker, "stream-out").collect()
        assert sorted(int(row.body) for row in found) == list(range(sent))


def run(broker: BrokerThread, spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rocketmq").option("nameServer", broker.namesrv)
    rows = stream.option("topic", "again-in").option("startingOffsets", "earliest").load()
    query = (
        rows.writeStream.format("rocketmq")
        .option("nameServer", broker.namesrv)
        .option("topic", "again-out")
        .option("onConflict", "skip")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_a_micro_batch_that_is_repeated_after_a_crash_sends_nothing_twice(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    """The crash that hurts most: all rows sent, the batch not yet marked done."""
    broker.create_topic("again-in", 2)
    broker.create_topic("again-out", 3)
    task(broker, {"body": [f"{n}" for n in range(300)]}, topic="again-in")

    run(broker, spark, tmp_path)
    found = read(spark, broker, "again-out").collect()
    assert sorted(int(row.body) for row in found) == list(range(300))
    origin = {f"broker-test:again-in:{q}:{n}" for q in (0, 1) for n in range(150)}
    assert {row.properties["SPARK_KEY"] for row in found} == origin
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    run(broker, spark, tmp_path)
    assert read(spark, broker, "again-out").count() == 300


def test_a_wrong_write_is_told_before_anything_is_sent(
    spark: SparkSession, broker: BrokerThread
) -> None:
    broker.create_topic("untouched", 1)
    rows = spark.range(10).select(col("id").cast("string").alias("body"))
    said = {
        "column 'tag'; did you mean 'tags'": rows.withColumn("tag", lit("x")),
        "the column flag must be int, not bigint": rows.withColumn("flag", lit(1).cast("bigint")),
    }
    for sentence, wrong in said.items():
        with pytest.raises((AnalysisException, PythonException)) as caught:
            write(wrong, broker, topic="untouched")
        assert sentence in str(caught.value)
        assert "Traceback (most recent call last)" not in str(caught.value)
    with pytest.raises((AnalysisException, PythonException), match="a topic is only appended to"):
        rows.write.format("rocketmq").option("nameServer", broker.namesrv).option(
            "topic", "untouched"
        ).mode("overwrite").save()
    assert read(spark, broker, "untouched").count() == 0


def test_a_row_that_cannot_be_sent_fails_the_write_with_its_content(
    spark: SparkSession, broker: BrokerThread
) -> None:
    broker.create_topic("bad-row", 1)
    rows = spark.createDataFrame([("a",), (None,), ("c",)], "body string").coalesce(1)
    with pytest.raises(PythonException) as caught:
        write(rows, broker, topic="bad-row")
    assert (
        "row 1 of task 0, attempt 0, was not sent: (body=None): its body is null; a message needs "
        "one (0 rows of this task are stored)"
    ) in str(caught.value)
    assert "Traceback (most recent call last)" not in str(caught.value)


def test_delays_times_and_queues_of_rows_reach_the_broker(
    spark: SparkSession, broker: BrokerThread
) -> None:
    broker.create_topic("placed", 3)
    due = datetime.now(UTC) + timedelta(seconds=2)
    rows: list[tuple[Any, ...]] = [
        (b"queue", None, None, 2),
        (b"level", 1, None, None),
        (b"time", None, due, None),
    ]
    columns = "body binary, delayLevel int, deliverAt timestamp, queueId int"
    write(spark.createDataFrame(rows, columns).coalesce(1), broker, topic="placed")
    came_from = spark.createDataFrame(
        [(b"kept", 1, 7)], "body binary, queueId int, queueOffset long"
    )
    write(came_from, broker, topic="placed", keepQueueId="true")
    wait_for(broker, "placed", 4)
    found = {bytes(row.body): row for row in read(spark, broker, "placed").collect()}
    assert (found[b"queue"].queueId, found[b"kept"].queueId) == (2, 1)
    level = found[b"level"]
    assert level.storeTimestamp - level.bornTimestamp >= timedelta(seconds=0.9)
    assert level.properties["DELAY"] == "1"
    # the broker's timer goes by whole seconds
    assert found[b"time"].storeTimestamp.timestamp() >= due.timestamp() - 1


def test_speculation_is_refused_beside_a_key(spark: SparkSession, broker: BrokerThread) -> None:
    """The setting is changed in the session, as if Spark had been started with it."""
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set("spark.speculation", "true")
    broker.create_topic("one-attempt", 1)
    rows = session.createDataFrame([("a",)], "body string")
    with pytest.raises(PythonException, match=r"needs spark\.speculation=false"):
        write(rows, broker, topic="one-attempt", idempotencyKey="body")
    write(rows, broker, topic="one-attempt")
    assert read(spark, broker, "one-attempt").count() == 1


def test_a_write_that_runs_out_of_time_names_what_went_wrong_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker closes the connection, and looking whether the row is there takes the rest."""
    monkeypatch.setattr(sink, "SETTLE_S", 0.2)
    with FakeCluster({"T": 1}) as cluster:
        sends = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        usual = cluster.answer
        cluster.answer = lambda request: None if request.code in sends else usual(request)
        given = {"nameServer": cluster.address, "topic": "T", "sendTimeoutMs": "150"}
        plan = write_options({**given, "idempotencyKey": "keys"})
        batch = pa.record_batch({"body": ["x"], "keys": ["k"]})
        attempt = attempt_of(None, plan, Planned("w", 0), 0)
        with pytest.raises(WriteError, match=r"connection .*\(0 rows of this task are stored\)"):
            write_task(iter([batch]), plan, layout(batch.schema, plan), attempt)


def test_the_row_that_a_broker_refuses_is_found_among_its_neighbours(broker: BrokerThread) -> None:
    """The broker adds properties of its own: a text just short of the bound is too long for it."""
    broker.create_topic("refused", 1)
    tags = ["t"] * 200
    tags[77] = "x" * (32767 - len("TAGS\x01\x02UNIQ_KEY\x01\x02") - 32)
    with pytest.raises(WriteError, match=r"row 77 of task 0, attempt 0, was not sent: .*\bcode\b"):
        task(broker, {"body": ["x"] * 200, "tags": tags}, topic="refused")
