"""``format("rocketmq")`` inside Spark: batch, streams and restarts, against a broker of lists."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json
from tests.spark.fake_cluster import FakeCluster
from tests.spark.plain_reader import PlainDataSource
from tests.spark.stored_messages import property_bytes

from turbopump import Message, Producer
from turbopump.spark.options import COLUMN_NAMES
from turbopump.spark.reading import keep_what_is_loaded
from turbopump.testing import BrokerThread


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 3, "U": 1}, pull_max=256) as fake:
        yield fake


def read(
    spark: SparkSession, fake: FakeCluster, format_name: str = "rocketmq", **options: object
) -> DataFrame:
    reader = spark.read.format(format_name).option("nameServer", fake.address).option("topic", "T")
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def stream(
    spark: SparkSession, fake: FakeCluster, directory: Path, **options: object
) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    """Run one AvailableNow query into Parquet; all (queue, offset) pairs there so far, and this
    run's progress."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", fake.address)
        .option("topic", "T")
        .option("startingOffsets", "earliest")
        .options(**{name: str(value) for name, value in options.items()})
        .load()
    )
    query = (
        rows.select("queueId", "queueOffset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "rows"))
    )
    try:
        assert query.awaitTermination(180)
    finally:
        query.stop()
    found = spark.read.parquet(str(directory / "rows")).collect()
    return sorted((row.queueId, row.queueOffset) for row in found), [
        json.loads(p.json) for p in query.recentProgress
    ]


def test_a_batch_read_gives_every_message_once_in_few_tasks(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    for queue_id in range(3):
        cluster.fill("T", queue_id, 1000 + queue_id)
    rows = read(
        spark, cluster, columns="queueId,queueOffset,body,brokerName,topic", maxPartitions=2
    )
    assert rows.columns == ["queueId", "queueOffset", "body", "brokerName", "topic"]
    found = rows.rdd.glom().collect()
    assert [len(task) for task in found] == [1501, 1502]
    assert sorted(
        (row.queueId, row.queueOffset, bytes(row.body)) for task in found for row in task
    ) == [
        (queue_id, offset, f"T-{queue_id}-{offset}".encode())
        for queue_id in range(3)
        for offset in range(1000 + queue_id)
    ]
    assert {(row.brokerName, row.topic) for task in found for row in task} == {("broker-a", "T")}


def test_the_session_coalesces_queues_into_its_default_parallelism(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    for queue_id in range(3):
        cluster.fill("T", queue_id, 1000)
    assert spark.sparkContext.defaultParallelism == 2
    assert read(spark, cluster).rdd.getNumPartitions() == 2


def test_the_plain_reader_gives_equal_rows_through_spark(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    spark.dataSource.register(PlainDataSource)
    for number in range(40):
        properties = property_bytes(
            {"TAGS": f"t{number}", "KEYS": "k", "UNIQ_KEY": f"{number:032X}"} if number % 3 else {}
        )
        cluster.fill(
            "T",
            number % 3,
            1,
            properties=properties,
            v2=number % 2 == 0,
            born_host=("::1", 7),
            flag=number,
        )
    # Spark cannot compare maps, so each row comes as JSON, which says everything.
    vectors, plain = (
        sorted(
            row.json
            for row in read(spark, cluster, name)
            .select(to_json(struct("*")).alias("json"))
            .collect()
        )
        for name in ("rocketmq", "rocketmqPlain")
    )
    assert vectors == plain
    assert set(json.loads(vectors[-1])) <= set(COLUMN_NAMES)
    assert len(vectors) == 40


def test_a_batch_read_can_begin_and_end_at_offsets_and_times(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    for offset in range(10):
        cluster.fill("T", 0, 1, stored_ms=1000 * offset)
    offsets = {"columns": "queueOffset", "startingOffsets": '{"T":{"broker-a":{"0":3}}}'}
    by_offset = read(
        spark,
        cluster,
        **offsets,
        endingOffsets='{"v":1,"topics":{"T":{"broker-a":{"0":6,"1":-1,"2":-1}}}}',
    )
    assert [row.queueOffset for row in by_offset.collect()] == [3, 4, 5]
    by_time = read(
        spark, cluster, columns="queueOffset", startingTimestamp=2500, endingTimestamp=7000
    )
    assert [row.queueOffset for row in by_time.collect()] == [3, 4, 5, 6]


def test_a_given_schema_prunes_columns_and_a_wrong_one_is_refused(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    cluster.fill("U", 0, 1)
    reader = (
        spark.read.format("rocketmq").option("nameServer", cluster.address).option("topic", "U")
    )
    for schema in ("body binary, queueId int", "body binary COMMENT 'JSON', queueId int"):
        rows = reader.schema(schema).load().collect()
        assert [tuple(row) for row in rows] == [(b"U-0-0", 0)]
    with pytest.raises(AnalysisException, match="schema has the columns body, but the option col"):
        reader.schema("body binary").option("columns", "body,tags").load().collect()
    for schema in ("body string", "body binary not null"):
        with pytest.raises(
            (AnalysisException, PythonException),
            match=f"given schema has {schema}, but the source has body binary",
        ):
            reader.schema(schema).load().collect()


def test_any_session_finds_the_format_by_itself(spark: SparkSession, cluster: FakeCluster) -> None:
    """A new session knows only what Spark found as ``pyspark_rocketmq``; there a queue is a
    task."""
    for queue_id in range(3):
        cluster.fill("T", queue_id, 5)
    rows = read(spark.newSession(), cluster, columns="queueOffset")
    assert rows.rdd.getNumPartitions() == 3
    assert rows.count() == 15


def test_looking_for_formats_does_not_load_the_reader() -> None:
    program = (
        "import sys, pyspark_rocketmq; pyspark_rocketmq.DefaultSource.name()\n"
        "print(sorted(name for name in sys.modules if name.startswith(('turbopump.', 'numpy', "
        "'pyarrow'))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "turbopump.spark.decode" not in said
    assert "pyarrow" not in said


def test_a_wrong_option_is_told_before_anything_runs(
    spark: SparkSession, cluster: FakeCluster
) -> None:
    with pytest.raises(
        AnalysisException, match="unknown option 'startingofsets'; did you mean 'startingOffsets'"
    ):
        read(spark, cluster, startingOfsets="earliest")


def test_an_error_of_ours_is_shown_without_the_traceback_of_a_worker(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.fill("T", 0, 5)
    beyond = '{"T":{"broker-a":{"0":9}}}'
    rows = read(spark, cluster)
    cluster.fill("T", 1, 5)
    cluster.queues["T", 1].remove_oldest(3)
    removed = '{"T":{"broker-a":{"1":0}}}'
    wrong: dict[str, Callable[[], object]] = {
        "startingOffsets says 9": lambda: read(spark, cluster, startingOffsets=beyond).collect(),
        # told by a task, not when the read is planned
        "messages 0 to 2": lambda: read(spark, cluster, startingOffsets=removed).collect(),
        "option startingTimestamp": partial(read, spark, cluster, startingTimestamp="soon"),
        "endingOffsets is for batch reads": partial(
            stream, spark, cluster, tmp_path, endingOffsets="latest"
        ),
        "no name server is given": lambda: rows.write.format("rocketmq").mode("append").save(),
    }
    for said, act in wrong.items():
        with pytest.raises((AnalysisException, PythonException, StreamingQueryException)) as caught:
            act()
        assert said in str(caught.value)
        assert "Traceback (most recent call last)" not in str(caught.value)


@pytest.mark.parametrize("logging", ["", "import logging; logging.basicConfig(level='ERROR')\n"])
def test_a_warning_of_a_worker_is_on_its_standard_error_unless_logging_is_set_up(
    logging: str,
) -> None:
    program = (
        "from importlib.machinery import ModuleSpec\n"
        "__spec__ = ModuleSpec('pyspark.daemon', None)  # as in Spark's workers\n"
        f"{logging}"
        "from turbopump.spark.batch import BatchReader\n"
        "from turbopump.spark.options import read_options\n"
        "given = {'nameServer': 'localhost:1', 'topic': 'T', 'maxOffsetsPerTrigger': '5'}\n"
        "BatchReader(read_options(given))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    said = (
        "WARNING turbopump.spark.batch: option maxOffsetsPerTrigger has no effect in a batch read"
    )
    assert (said in run.stderr) == (logging == "")


def test_a_batch_read_of_nothing_has_no_rows(spark: SparkSession, cluster: FakeCluster) -> None:
    assert read(spark, cluster).count() == 0
    assert read(spark, cluster, startingOffsets="latest").collect() == []


def test_a_stream_restarted_from_its_checkpoint_gives_each_queue_and_offset_once_and_skips_none(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    for queue_id, count in enumerate((300, 200, 0)):
        cluster.fill("T", queue_id, count)
    found, progress = stream(spark, cluster, tmp_path, maxOffsetsPerTrigger=200)
    assert found == [
        (queue_id, offset) for queue_id, count in enumerate((300, 200)) for offset in range(count)
    ]
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [200, 200, 100]
    place = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert place == {"v": 1, "topics": {"T": {"broker-a": {"0": 120, "1": 80, "2": 0}}}}

    # The crash that hurts most: rows written, the batch not yet marked done. Spark reads the same
    # range again.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    for queue_id, count in enumerate((10, 0, 50)):
        cluster.fill("T", queue_id, count)
    found, _ = stream(spark, cluster, tmp_path)
    everything = [
        (queue_id, offset)
        for queue_id, count in enumerate((310, 200, 50))
        for offset in range(count)
    ]
    assert found == everything

    # What was deleted before it was read is not skipped unless that was asked for.
    cluster.fill("T", 2, 20)
    cluster.queues["T", 2].remove_oldest(60)
    with pytest.raises(
        StreamingQueryException, match=r"messages 50 to 59 .*failOnDataLoss"
    ) as caught:
        stream(spark, cluster, tmp_path)
    assert "Traceback (most recent call last)" not in str(caught.value)
    found, _ = stream(spark, cluster, tmp_path, failOnDataLoss="false")
    assert found == [*everything, *((2, offset) for offset in range(60, 70))]


async def produce(sent: dict[str, Message], name_server: str) -> None:
    async with Producer(name_server) as producer:
        for number in range(20):
            message = Message(
                "own",
                # some large enough to travel compressed
                f"body {number}".encode() * (1 if number % 4 else 2000),
                tags=f"t{number % 3}" if number % 3 else None,
                keys=["k", str(number)] if number % 2 else None,
                properties={"mine": "Ω"},
            )
            sent[(await producer.send(message)).msg_id] = message


def test_messages_of_our_own_broker_come_out_as_they_were_sent(spark: SparkSession) -> None:
    sent: dict[str, Message] = {}

    with BrokerThread() as rocketmq:
        rocketmq.create_topic("own", 3)
        rocketmq.run(produce(sent, rocketmq.namesrv))
        rows = (
            spark.read.format("rocketmq")
            .option("nameServer", rocketmq.namesrv)
            .option("topic", "own")
            .load()
            .collect()
        )
    assert {row.msgId for row in rows} == sent.keys()
    assert len(rows) == 20
    assert {row.queueId for row in rows} == {0, 1, 2}
    for row in rows:
        message = sent[row.msgId]
        assert bytes(row.body) == message.body
        assert row["keys"] == (" ".join(message.keys) or None)
        assert row.tags == message.tags
        assert row.properties["mine"] == "Ω"
        assert row.offsetMsgId.endswith(f"{row.commitLogOffset:016X}")


def left_out(_: int) -> int:
    keep_what_is_loaded()
    return gc.get_freeze_count()


def test_a_worker_does_not_look_through_its_modules_after_each_task(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(left_out).first() > 10_000
    assert left_out(0) == 0, "nobody's collector is touched but that of a worker"
