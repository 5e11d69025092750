"""A replay sends each message once: driver, executors, workers and broker are killed with SIGKILL,
at each step and in the middle of a batch. After each kill the target has no message twice; at the
end it has all."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.fake_cluster import FakeCluster
from tests.spark_long.conftest import Servers
from tests.spark_long.processes import (
    Pipelines,
    finished,
    kill_all,
    kill_driver,
    kill_executor,
    kill_python_workers,
    killed_itself,
)
from tests.spark_long.topics import bodies, create, store_in_seconds, stored, wait_until_stored

BATCHES, BATCH = 16, 3000
"""Numbers of batches and of messages per batch. Each batch is stored in a second of its own."""
STEPS = ("begun", "looked", "sent", "noted")
TARGET = "again"


class Replay:
    """Runs of the replay of a lake, whose messages are the numbers from 0 up."""

    def __init__(
        self, servers: Servers, origin: FakeCluster, lake: Path, pipelines: Pipelines
    ) -> None:
        self.servers = servers
        self.pipelines = pipelines
        self.messages = 0
        self.cut = 0
        """Number of kills after which a part of a batch was in the target."""
        self._lake = str(lake)
        self._origin = origin

    def extend(self, batches: int) -> None:
        """Add this many batches to the lake."""
        before, self.messages = self.messages, self.messages + batches * BATCH
        store_in_seconds(self._origin, range(before, self.messages), BATCH)
        arguments = self._lake, self._origin.address, "parquet", "local[2]"
        report = finished(self.pipelines.start("archive", *arguments))
        assert report["lake_rows"] == self.messages

    def start(self, *kill: str, master: str = "local[2]") -> subprocess.Popen[str]:
        arguments = self._lake, self.servers.name_server, TARGET, master, *kill
        return self.pipelines.start("replay", *arguments)

    def sending(self, master: str = "local[2]") -> subprocess.Popen[str]:
        """A run that has sent a part of what it will."""
        wanted = stored(self.servers, TARGET) + BATCH // 4
        process = self.start(master=master)
        assert wait_until_stored(self.servers, TARGET, wanted, process)
        return process

    def check(self) -> None:
        """No message is there twice."""
        found = bodies(self.servers, TARGET)
        assert set(found.values()) <= {1}
        self.cut += len(found) % BATCH > 0


def kill_driver_at(step: str, count: int) -> Callable[[Replay], None]:
    return lambda replay: killed_itself(replay.start(step, str(count)))


def kill_in_the_middle(kill: Callable[[subprocess.Popen[str]], None]) -> Callable[[Replay], None]:
    return lambda replay: kill(replay.sending())


def kill_an_executor(replay: Replay) -> None:
    kill_executor(replay.sending("local-cluster[2,1,1024]"))


def kill_the_broker(replay: Replay) -> None:
    """Kill the broker. The run waits for it and continues."""
    process = replay.sending()
    replay.servers.kill()
    replay.servers.start()
    finished(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds executors in /proc")
def test_kills_lose_and_double_nothing(
    servers: Servers, tmp_path: Path, environment: dict[str, str]
) -> None:
    pipelines = Pipelines(environment)
    try:
        with FakeCluster({"T": 2}, pull_max=1024) as origin:
            kill_and_check(Replay(servers, origin, tmp_path / "lake", pipelines))
    finally:
        pipelines.end()


def kill_and_check(replay: Replay) -> None:
    create(replay.servers, TARGET)
    kills = [kill_driver_at(step, count) for count in (1, 2) for step in STEPS]
    for position, kill in enumerate((kill_driver, kill_all, kill_python_workers, kill_driver)):
        kills.insert(2 * position + 1, kill_in_the_middle(kill))
    replay.extend(BATCHES)
    for kill in (*kills, kill_an_executor):
        began = time.monotonic()
        kill(replay)
        replay.check()
        print(f"{kill.__qualname__} {time.monotonic() - began:.0f} s")
    assert replay.cut >= 2, "no kill came in the middle of a batch"
    assert bodies(replay.servers, TARGET) == numbered(replay.messages)
    replay.extend(2)
    kill_the_broker(replay)
    assert bodies(replay.servers, TARGET) == numbered(replay.messages)
    report = finished(replay.start())
    assert (report["sent"], report["done"]) == (0, replay.messages)


def numbered(count: int) -> dict[str, int]:
    """Return the result of `bodies` if each number exists once."""
    return {f'{{"n": {number}}}': 1 for number in range(count)}
