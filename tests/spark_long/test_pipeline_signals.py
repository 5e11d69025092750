"""`turbopump pipeline archive` on Ctrl-C and SIGTERM: it ends after its batch; later it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.spark_long.conftest import ROOT, Servers

from turbopump import Message
from turbopump.blocking import Producer

MESSAGES = 6000
WAIT_S = 600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_archive_after_its_batch(
    servers: Servers, tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    with Producer(servers.name_server) as producer:
        for begin in range(0, MESSAGES, 100):
            producer.send_batch([Message("T", f"{at}") for at in range(begin, begin + 100)])
    lake = tmp_path / "lake"
    command = [sys.executable, "-m", "turbopump", "pipeline", "archive", "T", str(lake)]
    command += ["-n", servers.name_server, "--output", "json", "--master", "local[2]"]
    process = subprocess.Popen(
        [*command, "--rows-per-batch", "500"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + WAIT_S
    while not list(lake.glob("_manifest/*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # A terminal interrupts Spark's processes too; the signal of a supervisor comes to one.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    said, _ = process.communicate(timeout=WAIT_S)
    stopped = json.loads(said)
    assert process.returncode == 130
    assert stopped["agrees"]
    assert stopped["stopped"]
    assert 0 < stopped["rows"] < MESSAGES
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report["rows"] == MESSAGES - stopped["rows"]
    assert report["lake_rows"] == report["lake_messages"] == MESSAGES
