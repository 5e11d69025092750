"""`turbopump pipeline archive` and `replay` on Ctrl-C and SIGTERM: they end after their batch, and
continue when started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.spark.fake_cluster import FakeCluster
from tests.spark_long.conftest import PATIENCE_S, ROOT, Servers
from tests.spark_long.topics import bodies, create, store_in_seconds, stored

from turbopump import Message
from turbopump.blocking import Producer

MESSAGES = 6000
BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])

Report = dict[str, Any]


class Pipeline:
    """`turbopump pipeline …`."""

    def __init__(self, environment: dict[str, str], name_server: str, *arguments: str) -> None:
        self._environment = environment
        self._command = [sys.executable, "-m", "turbopump", "pipeline", *arguments]
        self._command += ["-n", name_server, "--output", "json", "--master", "local[2]"]

    def stopped(self, number: signal.Signals, has_begun: Callable[[], bool]) -> Report:
        """Its report, if it gets a signal once it has begun."""
        with self._started() as process:
            wait_until(has_begun, process)
            # A terminal interrupts Spark's processes too; the signal of a supervisor comes to one.
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            return self._report(process, 130)

    def bereft(self, has_begun: Callable[[], bool]) -> str:
        """Kill the JVM of a run that has begun. Return its output on standard error."""
        with self._started(stderr=subprocess.PIPE) as process:
            wait_until(has_begun, process)
            of_session = ["pgrep", "--session", str(process.pid), "java"]
            found = subprocess.run(of_session, capture_output=True, text=True, check=True)
            os.kill(int(found.stdout), signal.SIGKILL)
            said, complained = process.communicate(timeout=PATIENCE_S)
            assert (said, process.returncode) == ("", 1)
            return complained

    def finished(self) -> Report:
        with self._started() as process:
            return self._report(process, 0)

    @contextmanager
    def _started(self, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
        """Killed at the end of the block, with what it has started, if it still runs."""
        with subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _report(self, process: subprocess.Popen[str], code: int) -> Report:
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code
        report: Report = json.loads(said)
        assert report["agrees"]
        assert report["stopped"] == (code == 130)
        return report


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send(servers: Servers) -> None:
    with Producer(servers.name_server) as producer:
        for begin in range(0, MESSAGES, 100):
            producer.send_batch([Message("T", f"{at}") for at in range(begin, begin + 100)])


@BOTH
def test_a_signal_ends_an_archive_after_its_batch(
    servers: Servers, tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    send(servers)
    lake = tmp_path / "lake"
    given = "archive", "T", str(lake), "--rows-per-batch", "500"
    archive = Pipeline(environment, servers.name_server, *given)
    stopped = archive.stopped(number, lambda: bool(list(lake.glob("_manifest/*.json"))))
    assert 0 < stopped["rows"] < MESSAGES
    report = archive.finished()
    assert report["rows"] == MESSAGES - stopped["rows"]
    assert report["lake_rows"] == report["lake_messages"] == MESSAGES


@BOTH
def test_a_signal_ends_a_replay_after_its_batch(
    servers: Servers, tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    lake = str(tmp_path / "lake")
    with FakeCluster({"T": 2}) as origin:
        store_in_seconds(origin, range(MESSAGES), MESSAGES // 30)
        Pipeline(environment, origin.address, "archive", "T", lake).finished()
    create(servers, "again")
    given = "replay", lake, "T", "again", "--rows-per-batch", "1"
    replay = Pipeline(environment, servers.name_server, *given)
    stopped = replay.stopped(number, lambda: stored(servers, "again") > 0)
    assert 0 < stopped["sent"] < MESSAGES
    report = replay.finished()
    assert report["sent"] == MESSAGES - stopped["sent"]
    assert sorted(bodies(servers, "again").values()) == [1] * MESSAGES


def test_a_jvm_that_is_killed_ends_the_command_with_a_sentence_and_the_next_run_goes_on(
    servers: Servers, tmp_path: Path, environment: dict[str, str]
) -> None:
    send(servers)
    lake = tmp_path / "lake"
    given = "archive", "T", str(lake), "--rows-per-batch", "500"
    archive = Pipeline(environment, servers.name_server, *given)
    complained = archive.bereft(lambda: bool(list(lake.glob("_manifest/*.json"))))
    assert complained.rstrip().splitlines()[-1].startswith("turbopump: Spark's JVM has ended (exit")
    assert "Traceback" not in complained
    assert archive.finished()["lake_rows"] == MESSAGES
