"""Environment of a pipeline that runs on the command line.

These are the Spark session and error sentences. A pipeline checks ``stop`` between two complete
pieces of work, so a stop leaves nothing to repair. The work itself is unknown here.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from turbopump import errors
from turbopump.errors import ConfigError, PipelineError, TurbopumpError
from turbopump.spark.session import (
    JVM_IS_AWAY,
    end_session,
    ended_jvm,
    java_fault,
    rocketmq_session,
)

MASTER_PATIENCE_S: Final = 5.0


@contextmanager
def command_session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Open a Spark session for a command. The end of the block stops the session.

    The session logs only errors. If a session is already running, it is used and left running.

    Raises PipelineError for an error of Spark inside the block, or the end of its JVM. Raises
    KeyboardInterrupt on SIGTERM, also while Spark starts, so that no process is left behind.
    """
    with _terminated_as_interrupted(), _without_lines_of_py4j():
        yield from _session_of_command(name, master)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_lines_of_py4j() -> Iterator[None]:
    """Suppress the log lines of py4j inside the block.

    py4j logs each interrupt and each lost JVM with its traceback, partly on the root logger.
    """

    def of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    names = None, "py4j.java_gateway", "py4j.clientserver"
    loggers = [logging.getLogger(name) for name in names]
    for each in loggers:
        each.addFilter(of_others)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(of_others)


def _session_of_command(name: str, master: str | None) -> Iterator[SparkSession]:
    running = SparkSession.getActiveSession() is not None
    master = master or os.environ.get("MASTER") or "local[*]"
    if not running:
        check_master(master)
    # For short work, the second compiler and the parallel collector cost more than they save.
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j.configurationFile=" + _quiet_log()
    spark = None
    try:
        spark = rocketmq_session(
            name,
            master=master,
            conf={
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "8",
                "spark.sql.session.timeZone": "UTC",
                "spark.driver.extraJavaOptions": java,
                # Idle workers with a Unix socket print an error on stderr when Spark ends them.
                "spark.python.unix.domain.socket.enabled": "false",
            },
        )
        # The thread for the workers' accumulators prints a traceback when the JVM has ended.
        sums = spark.sparkContext._accumulatorServer
        vars(sums)["handle_error"] = lambda *_: None
        yield spark
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise _error_of_command(error, None if spark is not None else master) from None
    finally:
        if spark is not None and not running:
            end_session(spark)


_MASTER: Final = re.compile(r"local(-cluster)?(\[|$)|spark://|k8s://|yarn$")


def check_master(master: str) -> None:
    """Check that a Spark master is valid and answers. Call this before Spark starts.

    Spark itself would try for a minute and then report another error. Raises ConfigError for an
    invalid master, and PipelineError if none answers.
    """
    if not _MASTER.match(master):
        raise ConfigError(
            f"{master!r} is not a master of Spark: expected local[*], spark://HOST:PORT, "
            "k8s://URL or yarn (--master, or the variable MASTER)"
        )
    faults = []
    for address in master.removeprefix("spark://").split(",") if "spark://" in master else ():
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdigit()):
            raise ConfigError(f"{master!r} is not a master of Spark: expected spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_PATIENCE_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            faults.append(f"{address}: {error}")
        else:
            return
    if faults:
        raise PipelineError(f"no master of Spark answers at {'; '.join(faults)}")


def _error_of_command(error: Exception, master: str | None) -> Exception:
    """Explain an error of Spark in one sentence. Return the explanation as an error.

    ``master`` is the master if Spark did not start, otherwise None. The end of the JVM has several
    error types, because PySpark or py4j wraps it.
    """
    if master is not None:
        return PipelineError(f"Spark did not start with master {master}: {start_sentence(error)}")
    code = ended_jvm(10 if isinstance(error, JVM_IS_AWAY) else 0.3)
    if code is not None:
        return PipelineError(
            f"Spark's JVM has ended (exit code {code}; -9: killed, perhaps for lack of "
            "memory): finished batches are safe; start the command again"
        )
    return PipelineError(spark_sentence(error))


@contextmanager
def unlogged_errors() -> Iterator[None]:
    """Keep PySpark from logging the errors of queries inside the block.

    The caller still gets each error.
    """
    # The logger must be of PySpark's class, because PySpark uses it by this name.
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def error_inside(error: PySparkException) -> type[TurbopumpError] | None:
    """Find the turbopump error inside an error of Spark. Return the class of the turbopump error.
    Return None for any other error.

    Spark passes on only the text of the error. The text has the name of the class.
    """
    names = re.findall(r"\bturbopump\.errors\.(\w+): ", str(error))
    return getattr(errors, names[-1], None) if names else None


def start_sentence(error: Exception) -> str:
    """Explain in a sentence why Spark did not start."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        said = java_fault()
        return f"Java cannot run: {said}" if said else "Java has ended; its reason is above"
    return spark_sentence(error)


def spark_sentence(error: Exception) -> str:
    """Find the most helpful sentence in Spark's long error text.

    This is the sentence of a turbopump error, else the innermost cause in Python, then in Java,
    else the first line.
    """
    text = str(error)
    ours = re.findall(r"turbopump\.[\w.]+(?:Error|Exception): (.+)", text)
    if ours:
        return str(ours[-1])
    for pattern in (_CAUSE_OF_PYTHON, _CAUSE_OF_JAVA):
        causes = pattern.findall(text)
        if causes:
            kind, said = causes[-1]
            said = _CONDITION.sub("", said)
            if kind.endswith(("SparkException", "ArgumentException")):
                return said
            return f"{kind}: {said}"
    lines = [line for line in text.splitlines() if line.strip()]
    return _CONDITION.sub("", lines[0] if lines else type(error).__name__)


_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_CAUSE_OF_PYTHON: Final = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ ].*\n)+(?:\w+\.)*(\w+): (.+)", re.MULTILINE
)
_CAUSE_OF_JAVA: Final = re.compile(
    r"^(?:Caused by: |: )(?:[\w$]+\.)+([\w$]+(?:Exception|Error)): (.+)", re.MULTILINE
)


def _quiet_log() -> str:
    """Write a log4j configuration for errors only. Return its path.

    The file is removed when this process ends.
    """
    descriptor, path = tempfile.mkstemp(prefix="turbopump-log4j2-", suffix=".properties")
    with os.fdopen(descriptor, "w") as file:
        file.write(_LOG4J)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path


_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short.message}%n
"""
