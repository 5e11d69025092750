"""Fixtures of the long Spark runs: servers that can be killed and started again, and the
environment in which a separate program finds this checkout.

`make spark` runs them. Each starts Spark in processes of its own, never in pytest's, because these
can be killed, and a cluster has several. A run may take minutes; `make test` leaves this folder
out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1800.0
"""Maximum seconds of a program. Other work on the machine may make it ten times slower, so only a
program that hangs reaches this."""


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment for a program that imports ``turbopump`` and ``tests`` of this checkout."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    return {
        **os.environ,
        "PYTHONPATH": path.rstrip(os.pathsep),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Servers:
    """Process of ``turbopump dev``. It keeps its ports and its directory when it is killed and
    started again."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._ports = ("0", "0")
        self._process: subprocess.Popen[str] | None = None
        self.name_server = ""

    def start(self) -> None:
        """Start, and wait until clients are served."""
        assert self._process is None
        namesrv, broker = self._ports
        command = [sys.executable, "-m", "turbopump", "dev", "--data", str(self._data)]
        command += ["--namesrv-port", namesrv, "--broker-port", broker]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready "):
                ready = dict(part.split("=", 1) for part in line.split()[1:])
                self.name_server = ready["namesrv"]
                self._ports = (
                    ready["namesrv"].rpartition(":")[2],
                    ready["broker"].rpartition(":")[2],
                )
                return
        raise AssertionError("the servers did not start; what they said stands above")

    def kill(self) -> None:
        """kill -9, and wait until they are gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop in order; nothing if they do not run."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A name server and a broker, running."""
    found = Servers(tmp_path / "store")
    found.start()
    try:
        yield found
    finally:
        found.stop()
