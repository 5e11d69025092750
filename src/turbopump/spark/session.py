"""A Spark session in which ``format("rocketmq")`` works as it should, and its end.

The one rule: what the user has set stays. It settles the three things that go wrong otherwise: the
Python that Spark's workers run, the Java that Spark runs on, and the number of tasks (the planner
process cannot see how many cores there are). It must not know how reading works.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from turbopump.spark.java import java_environment
from turbopump.spark.source import RocketMQDataSource


def rocketmq_session(
    app_name: str = "turbopump",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    partitions_max: int | None = None,
) -> SparkSession:
    """The running session, or a new one, ready for RocketMQ.

    ``master`` as Spark takes it (``local[*]`` unless set in Spark's own configuration), ``conf``
    more Spark settings; ``partitions_max`` is the default of the option ``maxPartitions``, itself
    by default Spark's ``defaultParallelism``. A new session starts a JVM, which takes some seconds.
    Raises ConfigError if there is no Java for it.
    """
    if SparkSession.getActiveSession() is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master is None or master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java_environment())
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    default = partitions_max or spark.sparkContext.defaultParallelism
    # A class made here travels to Spark's processes by value, and takes the number with it.
    spark.dataSource.register(
        type("SessionDataSource", (RocketMQDataSource,), {"partitions_max_default": default})
    )
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its JVM is gone; ``spark.stop()`` alone leaves that running until
    Python ends. A new session may follow."""
    spark.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = getattr(gateway, "proc", None)  # None where the JVM was started by spark-submit
    if process is not None:
        process.stdin.close()  # what the JVM takes as the sign to go
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
