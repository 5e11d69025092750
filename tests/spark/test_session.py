"""Settings of a session for its JVM, the choice of a Java, and the imports of its Python
workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from turbopump.spark.session import java_environment, socket_environment, worker_python


def pretended_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_the_machines_own_java_is_taken_as_it_is(tmp_path: Path, version: str) -> None:
    home = pretended_java(tmp_path / "java", version)
    assert java_environment({"PATH": f"{home}/bin:/bin:/usr/bin"}) == {}
    assert java_environment({"JAVA_HOME": str(home), "PATH": "/nowhere"}) == {}


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(tmp_path: Path) -> None:
    old, new = (
        pretended_java(tmp_path / "old", "1.8.0_402"),
        pretended_java(tmp_path / "new", "17.0.1"),
    )
    assert java_environment({"JAVA_HOME": str(old), "PATH": f"{new}/bin"}) == {
        "JAVA_HOME": str(new)
    }


def test_without_java_the_wheels_runtime_is_offered_through_a_launcher(tmp_path: Path) -> None:
    old = pretended_java(tmp_path / "old", "11.0.2")
    home = java_environment({"JAVA_HOME": str(old), "PATH": "/nowhere"})["JAVA_HOME"]
    answer = subprocess.run(
        [
            f"{home}/bin/java",
            "--add-modules=jdk.incubator.vector",
            "-Dsaid=a b",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "said = a b" in answer.stderr


def test_python_workers_are_reached_through_unix_sockets(spark: SparkSession) -> None:
    tasks = spark.sparkContext.parallelize(["PYTHON_UNIX_DOMAIN_ENABLED"], 1)
    (said,) = tasks.map(os.getenv).collect()
    assert str(said).lower() == "true"


@pytest.mark.parametrize("name", ["PYSPARK_UDS_MODE", "PYSPARK_GATEWAY_PORT"])
def test_the_sockets_stay_as_the_user_or_spark_submit_has_them(name: str) -> None:
    assert socket_environment({"PATH": "/bin"}) == {"PYSPARK_UDS_MODE": "true"}
    assert socket_environment({"PATH": "/bin", name: "false"}) == {}


class Whereabouts(DataSource):
    """Source that shows the paths of PySpark and py4j in each process of a read: the one that makes
    the source, the one that plans, and the one that reads."""

    @classmethod
    def name(cls) -> str:
        return "whereabouts"

    def schema(self) -> str:
        return f"`{pyspark.__file__}` string, `{py4j.__file__}` string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return WhereaboutsReader()


class WhereaboutsReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(pyspark.__file__)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield partition.value, pyspark.__file__


def test_workers_of_a_session_take_pyspark_from_where_it_is_compiled(spark: SparkSession) -> None:
    spark.dataSource.register(Whereabouts)
    rows = spark.read.format("whereabouts").load()
    assert rows.columns == [pyspark.__file__, py4j.__file__]
    assert [tuple(row) for row in rows.collect()] == [(pyspark.__file__, pyspark.__file__)]


SPARK_HOME = "/a home/pyspark"
SPARKS = ":".join(
    f"{SPARK_HOME}/{name}"
    for name in ("python/lib/pyspark.zip", "python/lib/py4j-1.2-src.zip", "jars/spark-core_9.jar")
)


@pytest.mark.parametrize("own", ["", "/own:/other one", f"/own:{SPARK_HOME}/python/lib/x.zip:/z"])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_worker_keeps_of_its_path_what_the_user_has_put_there(own: str, times: int) -> None:
    program = worker_python({})
    assert program is not None
    path = ":".join(filter(None, [*[SPARKS] * times, own]))
    environment = {"SPARK_HOME": SPARK_HOME, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    code = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    answer = subprocess.check_output([program, "-Sc", code, "a b"], env=environment, text=True)
    assert answer == f"{own}|a b\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYSPARK_PYTHON", "/usr/bin/python3"),
        ("SPARK_HOME", "/opt/spark"),
        ("PYSPARK_GATEWAY_PORT", "4040"),
    ],
)
def test_the_python_of_workers_stays_as_the_user_or_spark_submit_has_it(
    name: str, value: str
) -> None:
    assert worker_python({}) is not None
    assert worker_python({name: value}) is None
