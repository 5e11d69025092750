"""What a session tells the Java that it starts, and which one is taken."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from turbopump.spark.session import java_environment, socket_environment


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
