"""Programs that a test starts and kills, and the processes below them, found in /proc: Spark starts
its executors itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.spark_long.conftest import PATIENCE_S, ROOT


class Pipelines:
    """Runs of ``pipeline_once``, each with a session of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_long.pipeline_once", *arguments],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End all processes of the run."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def fault_in(errors: str) -> str:
    """Return the sentence of a program's error. Spark may write much more after it, as it ends."""
    found = errors.rfind("Traceback (most recent call last)")
    begin = max(found - 3000, 0) if found >= 0 else max(len(errors) - 6000, 0)
    return errors[begin : begin + 6000]


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The report of a run that ends well."""
    said, wrong = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, fault_in(wrong)
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert report["agrees"]
    return report


def killed_itself(process: subprocess.Popen[str]) -> None:
    """Wait until a run has, and all that it had started is gone."""
    _, wrong = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, fault_in(wrong)
    wait_until_all_is_gone(process)


def kill_driver(process: subprocess.Popen[str]) -> None:
    """SIGKILL to it alone, and wait until all that it had started is gone."""
    process.kill()
    process.wait(PATIENCE_S)
    wait_until_all_is_gone(process)


def kill_all(process: subprocess.Popen[str]) -> None:
    """SIGKILL to it and all below."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


def kill_python_workers(process: subprocess.Popen[str]) -> None:
    """SIGKILL to those of a ``local[…]`` session. A task has one attempt there, so the run
    fails."""
    for pid in children_of(process.pid, b"pyspark.daemon"):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


def kill_executor(process: subprocess.Popen[str]) -> None:
    """SIGKILL to one of a cluster. Spark gives its tasks to the other; the run ends well."""
    os.kill(executor_of(process.pid), signal.SIGKILL)
    finished(process)


def wait_until_all_is_gone(process: subprocess.Popen[str]) -> None:
    """Wait for the JVM, which ends by itself after its driver."""
    deadline = time.monotonic() + PATIENCE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
        raise AssertionError("Spark goes on without its driver")


def is_below(parents: Any, process: int, pid: int) -> bool:
    while pid > 1 and pid != process:
        pid = parents.get(pid, 0)
    return pid == process


def children_of(process: int, name: bytes) -> list[int]:
    """Processes below one whose command line has a name in it."""
    parents, named = {}, []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            line = (directory / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(directory.name)] = int(fields[1])
        if name in line:
            named.append(int(directory.name))

    return [pid for pid in named if is_below(parents, process, pid)]


def executor_of(process: int) -> int:
    """The JVM of an executor below a driver or a worker."""
    found = children_of(process, b"CoarseGrainedExecutorBackend")
    assert found
    return found[0]
