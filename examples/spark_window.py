"""A stream over a topic that counts page views by minute.

Start `turbopump dev`, then run `python examples/spark_window.py` (needs `turbopump[spark]`).
"""

from __future__ import annotations

import json
import os
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, window

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.spark import end_session, rocketmq_session

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "page-views"
SCHEMA = "page string, at timestamp"
FOR_A_LAPTOP = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def send_views() -> None:
    """Send a view for each second of three minutes."""
    views = []
    for second in range(180):
        page = "/books" if second % 3 == 0 else "/"
        at = f"2026-01-01T12:{second // 60:02}:{second % 60:02}Z"
        views.append(Message(TOPIC, json.dumps({"page": page, "at": at})))
    with Producer(NAME_SERVER) as producer:
        producer.send_batch(views)
    print(f"sent {len(views)} page views")


def count_views(spark: SparkSession, since_ms: int) -> None:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", NAME_SERVER)
        .option("topic", TOPIC)
        .option("startingTimestamp", since_ms)  # the topic also has the views of earlier runs
        .load()
    )
    views = messages.select(from_json(col("body").cast("string"), SCHEMA).alias("view"))
    counts = views.groupBy(window("view.at", "1 minute"), "view.page").agg(
        count("*").alias("views")
    )
    query = (
        counts.writeStream.format("memory")
        .queryName("views_by_minute")
        .outputMode("complete")
        .trigger(availableNow=True)  # without this line the query goes on
        .start()
    )
    query.awaitTermination()
    table = spark.table("views_by_minute").selectExpr("window.start as minute", "page", "views")
    table.orderBy("minute", "page").show()


if __name__ == "__main__":
    started_ms = int(time.time() * 1000)
    send_views()
    session = rocketmq_session("page views", conf=FOR_A_LAPTOP)
    count_views(session, started_ms)
    end_session(session)
