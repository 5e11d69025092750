"""Spark beside Apache's broker: rows into its topics, its topics into a lake and back, and the
files of its log without it. What arrives is counted and compared body by body, by a client that is
not Spark where Spark has written.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.apache import NEWEST, ApacheCluster
from tests.interop.directories_handed_over import Hands, Kind
from tests.interop.our_clients import make_topics, patient_producer, read_all
from tests.interop.patient_apache import patient_apache
from tests.interop.tools import skipping_without_tools

from turbopump import Message, PullConsumer, ReceivedMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = (0, 20, 300, 5_000, 200_000)
COUNT = 300


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    from tests.spark.spark_session import quick_session

    with quick_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """``orders`` holds COUNT messages, some of them compressed, some sent as batches."""
    directory = tmp_path_factory.mktemp("apache")
    topics = "orders", "written", "streamed", "repeated", "late"
    with patient_apache(NEWEST, directory) as cluster:
        asyncio.run(make_topics(cluster.namesrv, cluster.broker, *topics))
        asyncio.run(_produce(cluster.namesrv, 0, COUNT))
        yield cluster


def body_of(number: int) -> bytes:
    """Each its own; every other one of the large is worth compressing."""
    source, size = random.Random(number), SIZES[number % len(SIZES)]
    text = f"{number:06d} é ".encode()
    return text + (source.randbytes(size) if number % 2 else text * (size // len(text)))


async def _produce(name_server: str, begin: int, end: int) -> None:
    async with patient_producer(name_server) as producer:
        for number in range(begin, end):
            message = Message(
                "orders",
                body_of(number),
                tags=f"t{number % 3}",
                keys=[f"k{number}", "every"],
                properties={"n": str(number), "größe": f"ü{number}"},
                flag=number,
            )
            if number % 10:
                await producer.send(message)
            else:
                await producer.send_batch([message])


async def pull(apache: ApacheCluster, topic: str, wanted: int) -> list[ReceivedMessage]:
    async with PullConsumer(apache.namesrv, group="reader") as consumer:
        return await read_all(consumer, topic, wanted)


def pulled(apache: ApacheCluster, topic: str, wanted: int) -> list[ReceivedMessage]:
    """All of a topic, by a client of ours, when so much is there; sorted by its numbers."""

    found = asyncio.run(pull(apache, topic, wanted))
    return sorted(found, key=lambda message: int(message.properties["n"]))


def reader(spark: SparkSession, apache: ApacheCluster, topic: str, **options: str) -> DataFrame:
    given = {"nameServer": apache.namesrv, "topic": topic, **options}
    return spark.read.format("rocketmq").options(**given).load()


def check_orders(found: list[ReceivedMessage], count: int = COUNT) -> None:
    """The first so many of ``orders``, each once."""
    assert [int(message.properties["n"]) for message in found] == list(range(count))
    for number, message in enumerate(found):
        assert message.body == body_of(number), number
        assert (message.tags, message.keys) == (f"t{number % 3}", [f"k{number}", "every"])
        assert (message.properties["größe"], message.flag) == (f"ü{number}", number)


def digests(bodies: list[bytes]) -> Counter[str]:
    return Counter(hashlib.sha256(body).hexdigest() for body in bodies)


def expected(count: int = COUNT) -> Counter[str]:
    return digests([body_of(number) for number in range(count)])


def test_rows_are_written_in_a_batch(spark: SparkSession, apache: ApacheCluster) -> None:
    rows = reader(spark, apache, "orders")
    writer = rows.write.format("rocketmq").option("nameServer", apache.namesrv)
    writer.option("topic", "written").mode("append").save()
    found = pulled(apache, "written", COUNT)
    check_orders(found)
    assert {message.msg_id for message in found} == {
        message.msg_id for message in pulled(apache, "orders", COUNT)
    }
    assert len({message.queue_id for message in found}) == 4


def test_delays_and_times_of_rows_are_kept_by_the_broker(
    spark: SparkSession, apache: ApacheCluster
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    columns = "body string, properties map<string,string>, delayLevel int, deliverAt timestamp"
    given = [("by level", {"n": "0"}, 1, None), ("by time", {"n": "1"}, None, due)]
    rows = spark.createDataFrame(given, columns)
    writer = rows.write.format("rocketmq").option("nameServer", apache.namesrv)
    writer.option("topic", "late").mode("append").save()
    by_level, by_time = pulled(apache, "late", 2)
    assert (by_level.body, by_time.body) == (b"by level", b"by time")
    assert by_level.store_timestamp - by_level.born_timestamp >= 900
    # the broker's timer goes by whole seconds
    assert by_time.store_timestamp / 1000 >= due.timestamp() - 1


def test_a_stream_is_written_and_goes_on_where_its_checkpoint_says(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path
) -> None:
    _stream(spark, apache, "streamed", tmp_path)
    check_orders(pulled(apache, "streamed", COUNT))
    _stream(spark, apache, "streamed", tmp_path)
    check_orders(pulled(apache, "streamed", COUNT))


def test_a_micro_batch_that_is_repeated_sends_nothing_twice(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path
) -> None:
    _stream(spark, apache, "repeated", tmp_path, onConflict="skip")
    pulled(apache, "repeated", COUNT)
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    _stream(spark, apache, "repeated", tmp_path, onConflict="skip")
    check_orders(pulled(apache, "repeated", COUNT))


def _stream(
    spark: SparkSession, apache: ApacheCluster, topic: str, checkpoint: Path, **options: str
) -> None:
    """What ``orders`` has that this checkpoint has not."""
    source = {"nameServer": apache.namesrv, "topic": "orders", "startingOffsets": "earliest"}
    rows = spark.readStream.format("rocketmq").options(**source).load()
    given = {"nameServer": apache.namesrv, "topic": topic, "checkpointLocation": str(checkpoint)}
    query = rows.writeStream.format("rocketmq").options(**given, **options)
    assert query.trigger(availableNow=True).start().awaitTermination(300)


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_topics_go_into_a_lake_and_from_there_into_another_topic(
    spark: SparkSession, apache: ApacheCluster, tmp_path: Path, format_name: str
) -> None:
    from turbopump.spark import archive as lakes
    from turbopump.spark.pipelines import archive, replay

    def archived() -> Any:
        given = {"name_server": apache.namesrv, "spark": spark, "rows_per_batch": 170}
        return archive(tmp_path, ["orders"], format=format_name, **given)

    first = archived()
    assert (first.rows, first.lake_rows, first.batches, first.agrees) == (COUNT, COUNT, 2, True)
    again = archived()
    assert (again.rows, again.lake_rows, again.agrees) == (0, COUNT, True)
    rows = lakes.dataset(tmp_path).to_table(columns=["queueId", "queueOffset", "body"])
    assert digests(rows["body"].to_pylist()) == expected()
    there = {(each["queueId"], each["queueOffset"]): each["body"] for each in rows.to_pylist()}
    assert there == {
        (message.queue_id, message.queue_offset): message.body
        for message in pulled(apache, "orders", COUNT)
    }

    target = f"again-{format_name}"  # Apache's broker makes it when it is sent to
    for sent in (COUNT, 0):
        report = replay(tmp_path, "orders", target, name_server=apache.namesrv, spark=spark)
        assert (report.sent, report.found, report.distinct) == (sent, COUNT, COUNT)
        assert report.agrees
    copies = pulled(apache, target, COUNT)
    check_orders(copies)
    originals = pulled(apache, "orders", COUNT)
    for one, copy in zip(originals, copies, strict=True):
        assert copy.msg_id == one.msg_id
        origin = f"{apache.broker_name}/orders/{one.queue_id}/{one.queue_offset}"
        assert copy.properties["REPLAYED_FROM"] == origin


def test_the_log_of_a_broker_that_runs_is_read_beside_it(
    spark: SparkSession, apache: ApacheCluster
) -> None:
    log = spark.read.format("rocketmqCommitlog").option("topic", "orders").load(str(apache.store))
    rows = log.select("queueId", "queueOffset", "msgId", "body", "status").collect()
    assert {row.status for row in rows} == {"ok"}
    assert digests([bytes(row.body) for row in rows]) == expected()
    assert {(row.queueId, row.queueOffset): row.msgId for row in rows} == {
        (message.queue_id, message.queue_offset): message.msg_id
        for message in pulled(apache, "orders", COUNT)
    }


def test_the_log_that_a_killed_broker_has_left_is_read_without_it(tmp_path: Path) -> None:
    """In files so small that a log has several, filled to their last byte; in tasks as Spark has
    them, with ConsumeQueues and without. Spark itself need not run."""
    pytest.importorskip("pyspark")
    from tests.spark.stored_log import read_log

    hands = Hands(Kind(NEWEST), tmp_path)
    with skipping_without_tools(), hands.shared:
        hands.apache(signal.SIGKILL, brim=True)
    store = hands.shared.cluster.store
    for walked in (False, True):
        if walked:
            (store / "consumequeue").rename(store / "put-away")
        rows = read_log(store, 4)
        assert {row["status"] for row in rows} == {"ok"}
        assert len({row["segment"] for row in rows}) > 1
        hands.ledger.check_rows(rows)
