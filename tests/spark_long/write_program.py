"""A program that writes with Spark, for tests that kill it: ``python write_program.py KIND …``.

``failing NAME_SERVER TOPIC KEY``: 40,000 rows in four tasks, each to a topic of its own
(TOPIC-0 to TOPIC-3). Two tasks end in the middle of their first attempt, when some of their rows
are stored: one raises, one dies.
``rows NAME_SERVER TOPIC KEY``: a million rows, none fails.
``stream NAME_SERVER ORIGIN TOPIC CHECKPOINT``: what ORIGIN has, in micro-batches of 20,000.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.cluster import Cluster

Batches = Iterator[pa.RecordBatch]


def pass_on(name_server: str, topic: str, batches: Batches) -> Batches:
    context = TaskContext.get()
    assert context is not None
    partition, passed = context.partitionId(), 0
    for batch in batches:
        yield batch
        passed += batch.num_rows
        if passed >= 8000 and context.attemptNumber() == 0 and partition in (1, 2):
            with Cluster([name_server]) as cluster:
                queues = cluster.queues(f"{topic}-{partition}")
                while not any(map(cluster.offset_max, queues)):
                    pass
            if partition == 1:
                raise RuntimeError("this attempt fails")
            os._exit(1)


def failing(name_server: str, topic: str) -> Callable[[Batches], Batches]:
    """Passes the rows of a task on, and fails in two first attempts."""

    return partial(pass_on, name_server, topic)


def save(rows: DataFrame, name_server: str, key: str, **options: str) -> None:
    if key == "none":
        rows = rows.drop("id")
    writer = rows.write.format("rocketmq").option("nameServer", name_server).mode("append")
    writer.option("idempotencyKey", key).options(**options).save()


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count, numPartitions=4).selectExpr("id", "cast(id as string) as body")


def run(spark: SparkSession, kind: str, name_server: str, *arguments: str) -> None:
    if kind == "failing":
        topic, key = arguments
        rows = numbered(spark, 40_000).selectExpr(
            "id",
            "rpad(body, 1000, ' ') as body",  # more than what pipes hold back
            f"concat('{topic}-', spark_partition_id()) as topic",
        )
        save(rows.mapInArrow(failing(name_server, topic), rows.schema), name_server, key)
    elif kind == "rows":
        topic, key = arguments
        save(numbered(spark, 1_000_000), name_server, key, topic=topic)
    else:
        origin, topic, checkpoint = arguments
        stream = spark.readStream.format("rocketmq").option("nameServer", name_server)
        stream = stream.option("topic", origin).option("startingOffsets", "earliest")
        query = (
            stream.option("maxOffsetsPerTrigger", "20000")
            .load()
            .writeStream.format("rocketmq")
            .option("nameServer", name_server)
            .option("topic", topic)
            .option("onConflict", "skip")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    session = rocketmq_session(
        "write",
        master="local[2,4]",
        conf={
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        },
    )
    run(session, *sys.argv[1:])
    print("done", flush=True)
    end_session(session)
