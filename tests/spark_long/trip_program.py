"""Program that reads, writes and streams with Spark, for tests that run it on clusters:

``python trip_program.py NAME_SERVER ORIGIN CHECKPOINT [MASTER [register]]``

It reads ORIGIN, writes it to ORIGIN-written, and streams that to ORIGIN-streamed. Without MASTER,
the settings of ``spark-submit`` count; ``sc://…`` is a Connect server, which finds the format by
itself unless ``register`` is given. The last line printed is JSON: the number of rows of ORIGIN
that were read in each directory of executors, and the place of Turbopump there.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def session(master: str, *register: str) -> SparkSession:
    if master.startswith("sc://"):
        spark = SparkSession.builder.remote(master).getOrCreate()
        if register:
            from turbopump.spark.source import RocketMQDataSource

            spark.dataSource.register(RocketMQDataSource)
        return spark

    from turbopump.spark import rocketmq_session

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.log.level": "ERROR",
        # No task before both executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master:  # started as a plain program: the executors see what it sees
        conf["spark.executorEnv.PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    return rocketmq_session("trip", master=master or None, conf=conf)


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the executor that has read these rows."""
    import turbopump

    for batch in batches:
        found = {"directory": [os.getcwd()], "turbopump": [turbopump.__file__]}
        yield pa.RecordBatch.from_pydict({**found, "rows": [batch.num_rows]})


def rows_of(name_server: str, spark: SparkSession, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    return reader.option("topic", topic).load()


def trip(spark: SparkSession, name_server: str, origin: str, checkpoint: str) -> dict[str, object]:
    schema = "directory string, turbopump string, rows long"
    found = rows_of(name_server, spark, origin).mapInArrow(where, schema).collect()
    read: Counter[str] = Counter()
    for row in found:
        read[row["directory"]] += row["rows"]

    written, streamed = f"{origin}-written", f"{origin}-streamed"
    writer = (
        rows_of(name_server, spark, origin)
        .write.format("rocketmq")
        .option("nameServer", name_server)
    )
    writer.options(topic=written, idempotencyKey="auto").mode("append").save()

    stream = spark.readStream.format("rocketmq").option("nameServer", name_server)
    query = (
        stream.option("topic", written)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20000")
        .load()
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=streamed, idempotencyKey="auto")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"read": read, "turbopump": sorted({row["turbopump"] for row in found})}


if __name__ == "__main__":
    of_server, topic_read, checkpoints, *of_session = sys.argv[1:]
    running = session(*(of_session or [""]))
    report = trip(running, of_server, topic_read, checkpoints)
    running.stop()
    print(json.dumps(report), flush=True)
