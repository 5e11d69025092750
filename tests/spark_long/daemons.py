"""Spark's own servers, from the wheel of PySpark: a standalone master with workers, and the Connect
server. Each is a process of its own on 127.0.0.1, on ports that it chooses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pyspark
from tests.spark_long.conftest import PATIENCE_S

SPARK_HOME = Path(pyspark.__file__).parent


def spark_home(directory: Path) -> Path:
    """A home like the wheel's, for what Spark puts beside its programs: logs and executors'
    directories."""
    directory.mkdir()
    for entry in SPARK_HOME.iterdir():
        if entry.name not in ("work", "logs"):
            (directory / entry.name).symlink_to(entry)
    return directory


def bare_environment(**more: str) -> dict[str, str]:
    """An environment in which nothing of this checkout is found."""
    mine = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **more}


class Daemon:
    """Process of Spark. Its output goes to a file."""

    def __init__(self, log: Path, command: list[str], environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self, pattern: str) -> str:
        """The group of a pattern, as soon as a line has it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self._process.poll() is not None
            text = self._log.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            assert not ended, text[-4000:]
            assert time.monotonic() < deadline, text[-4000:]
            time.sleep(0.05)

    def end(self) -> None:
        """With all that it has started; they have a while to go in order."""
        os.killpg(self.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(30)


class Standalone:
    """A master and two workers of one core each. Worker n has its executors' directories under
    ``works[n]``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[Daemon] = []
        self.works = [directory / f"worker-{number}" for number in range(2)]

    def start(self) -> None:
        """Start, and wait until both workers have said that they are registered."""
        master = self._spark_class("master", "master.Master")
        self.master = master.said(r"Starting Spark master at (spark://\S+)")
        self.workers = [
            self._spark_class(
                *(work.name, "worker.Worker", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(work), self.master),
            )
            for work in self.works
        ]
        for worker in self.workers:
            worker.said(r"Successfully registered with master (\S+)")

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.end()

    def _spark_class(self, name: str, kind: str, *arguments: str) -> Daemon:
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        daemon = Daemon(self._directory / f"{name}.log", command, bare_environment())
        self._daemons.append(daemon)
        return daemon


def connect_server(directory: Path, environment: dict[str, str]) -> tuple[Daemon, str]:
    """A Connect server on ``local[2]``, and the URL that clients take."""
    command = [str(SPARK_HOME / "sbin/start-connect-server.sh"), "--wait", "--master", "local[2]"]
    for setting in (
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.driver.host=127.0.0.1",
        "spark.ui.enabled=false",
    ):
        command += ["--conf", setting]
    own = {"SPARK_LOG_DIR": str(directory), "SPARK_PID_DIR": str(directory)}
    server = Daemon(directory / "connect.log", command, {**environment, **own})
    try:
        address = server.said(r"Spark Connect server started at: \S*?(127\.0\.0\.1:\d+)")
    except BaseException:
        server.end()
        raise
    return server, f"sc://{address}"
