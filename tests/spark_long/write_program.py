"""A program that writes with Spark, for tests that kill it: ``python write_program.py KIND …``.

``failing NAME_SERVER TOPIC KEY``: 40,000 rows in four tasks, of which one raises and one dies in
the middle of its first attempt. ``rows NAME_SERVER TOPIC KEY``: a million rows, none fails.
``stream NAME_SERVER ORIGIN TOPIC CHECKPOINT``: what ORIGIN has, in micro-batches of 20,000.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from turbopump.spark import end_session, rocketmq_session


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    passed = 0
    for batch in batches:
        yield batch
        passed += batch.num_rows
        if passed > 4000 and context.attemptNumber() == 0:
            if context.partitionId() == 1:
                raise RuntimeError("this attempt fails")
            if context.partitionId() == 2:
                os._exit(1)


def save(rows: DataFrame, name_server: str, topic: str, key: str) -> None:
    rows = rows if key == "id" else rows.drop("id")
    writer = rows.write.format("rocketmq").option("nameServer", name_server).mode("append")
    writer.option("topic", topic).option("idempotencyKey", key).save()


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count, numPartitions=4).selectExpr("id", "cast(id as string) as body")


def run(spark: SparkSession, kind: str, name_server: str, *arguments: str) -> None:
    if kind == "failing":
        rows = numbered(spark, 40_000)
        save(rows.mapInArrow(failing, rows.schema), name_server, *arguments)
    elif kind == "rows":
        save(numbered(spark, 1_000_000), name_server, *arguments)
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
