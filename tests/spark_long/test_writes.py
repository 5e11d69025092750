"""Writes that are cut off: tasks that fail, a driver and a broker that are killed in the middle.
With keys each row is there once; without, at least once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.spark_long.conftest import PATIENCE_S, Servers
from tests.spark_long.processes import fault_in
from tests.spark_long.topics import bodies, create, fill, once, wait_until_stored

PROGRAM = Path(__file__).with_name("write_program.py")
KILLS = 8


def program(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> None:
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, fault_in(errors)
    assert said.splitlines()[-1] == "done"


def of_tasks(servers: Servers, topic: str) -> list[Counter[str]]:
    """The rows of each of the four tasks."""
    found = [bodies(servers, f"{topic}-{partition}") for partition in range(4)]
    return [Counter({body.strip(): count for body, count in each.items()}) for each in found]


def test_tasks_that_fail_and_run_again_send_nothing_twice(
    servers: Servers, environment: dict[str, str]
) -> None:
    create(servers, *(f"{topic}-{number}" for topic in ("keyed", "plain") for number in range(4)))
    finished(program(environment, "failing", servers.name_server, "keyed", "id"))
    keyed = of_tasks(servers, "keyed")
    assert sum(keyed, Counter()) == once(40_000)
    assert [len(each) for each in keyed] == [10_000] * 4
    finished(program(environment, "failing", servers.name_server, "plain", "none"))
    plain = of_tasks(servers, "plain")
    assert [each.keys() for each in plain] == [each.keys() for each in keyed]
    # These two have failed when some of their rows were there.
    assert [set(each.values()) for each in plain] == [{1}, {1, 2}, {1, 2}, {1}]


def test_a_write_goes_on_when_its_broker_is_killed_and_comes_back(
    servers: Servers, environment: dict[str, str]
) -> None:
    create(servers, "interrupted")
    process = program(environment, "rows", servers.name_server, "interrupted", "id")
    try:
        assert wait_until_stored(servers, "interrupted", 100_000, process)
        servers.kill()
        servers.start()
        finished(process)
    finally:
        process.kill()
    assert bodies(servers, "interrupted") == once(1_000_000)


def test_a_stream_whose_driver_is_killed_again_and_again_sends_each_row_once(
    servers: Servers, environment: dict[str, str], tmp_path: Path
) -> None:
    rows = 200_000
    create(servers, "origin", "copy")
    fill(servers, "origin", rows)
    source = random.Random(7)
    # Each kill comes when a number of rows is there that is anywhere in a micro-batch.
    moments = sorted(source.randrange(1, rows) for _ in range(KILLS))
    arguments = "stream", servers.name_server, "origin", "copy", str(tmp_path / "checkpoint")
    killed = 0
    for moment in moments:
        process = program(environment, *arguments)
        try:
            if not wait_until_stored(servers, "copy", moment, process):
                break
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
        killed += 1
    finished(program(environment, *arguments))
    assert killed == KILLS
    assert bodies(servers, "copy") == once(rows)
