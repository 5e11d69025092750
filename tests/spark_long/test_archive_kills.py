"""Archives are exactly once: driver, executors and broker are killed with SIGKILL, twenty times for
each format, at each step. After each kill every reader finds each committed message once; at the
end every message that was sent is there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.spark_long.conftest import PATIENCE_S, Servers
from tests.spark_long.processes import (
    Pipelines,
    finished,
    kill_all,
    kill_driver,
    kill_executor,
    kill_python_workers,
    killed_itself,
)

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.spark import archive
from turbopump.spark.pipelines.lake import open_lake

KILLS = int(os.environ.get("TURBOPUMP_SPARK_KILLS", "20"))
ROUND = 4000
"""Messages before each run: three batches. Each tenth does not fit its schema."""
CLUSTER = "local-cluster[2,1,1024]"
STEPS = {
    "parquet": ("planned", "written", "committed", "placed"),
    "delta": ("planned", "written", "placed", "rejected committed", "committed"),
}


class Runs:
    """Runs of the archive, and what was sent so far."""

    def __init__(
        self,
        servers: Servers,
        lake: Path,
        pipeline: str,
        format_name: str,
        environment: dict[str, str],
    ) -> None:
        self.pipeline = pipeline
        self.servers = servers
        self.lake = lake
        self.format_name = format_name
        self.sent = 0
        self.pipelines = Pipelines(environment)

    def send(self) -> None:
        with Producer(self.servers.name_server) as producer:
            for begin in range(self.sent, self.sent + ROUND, 100):
                numbers = range(begin, begin + 100)
                producer.send_batch([Message("T", body_of(n)) for n in numbers])
        self.sent += ROUND

    def start(self, *kill: str, master: str = "local[2]") -> subprocess.Popen[str]:
        arguments = str(self.lake), self.servers.name_server, self.format_name, master, *kill
        return self.pipelines.start(self.pipeline, *arguments)

    def writing(self, master: str = "local[2]") -> subprocess.Popen[str]:
        """A run of which a task has begun a file."""
        process = self.start(master=master)
        self.wait_until_it_writes(process)
        return process

    def wait_until_it_writes(self, process: subprocess.Popen[str]) -> None:
        """Until a task has begun a file."""
        deadline = time.monotonic() + PATIENCE_S
        staging = self.lake / "_staging"
        before = set(staging.glob("*")) if staging.exists() else set()
        while not (staging.exists() and set(staging.glob("*")) - before):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def check(self) -> None:
        """Check that each message up to the lake's offsets exists once, for each reader."""
        if not (self.lake / "_lake.json").exists():
            return
        lake = open_lake(self.lake)
        snapshot = lake.snapshot()
        found = 0
        for table in ("data", "_rejected") if self.pipeline == "archive" else ("data",):
            rows = archive.dataset(self.lake, table)
            read = rows.to_table(columns=["queueId", "queueOffset"])
            assert len(places(read)) == read.num_rows
            relation = duckdb.from_arrow(rows)
            counts = relation.aggregate("count(*), count(distinct (queueId, queueOffset))")
            assert counts.fetchall() == [(read.num_rows, read.num_rows)]
            if self.format_name == "delta" and DeltaTable.is_deltatable(str(self.lake / table)):
                of_delta = DeltaTable(self.lake / table).to_pyarrow_table()
                assert places(of_delta) == places(read)
            if table == "data" or not snapshot.unfinished:
                found += read.num_rows
        if not snapshot.unfinished:
            assert found == snapshot.messages == sum(archive.offsets(self.lake).values())
        assert found <= self.sent


def body_of(number: int) -> str:
    return f'{{"n": {number}}}' if number % 10 else f"no JSON {number}"


def places(table: pa.Table) -> set[tuple[int, int]]:
    return set(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def kill_driver_at(step: str, count: int) -> Callable[[Runs], None]:
    return lambda runs: killed_itself(runs.start(step, str(count)))


def kill_driver_while_it_reads(runs: Runs) -> None:
    kill_driver(runs.writing())


def kill_all_while_they_read(runs: Runs) -> None:
    kill_all(runs.writing())


def kill_an_executor(runs: Runs) -> None:
    kill_executor(runs.writing(CLUSTER))


def kill_a_python_worker(runs: Runs) -> None:
    kill_python_workers(runs.writing())


def kill_the_broker(runs: Runs) -> None:
    """Kill the broker. The run waits for it and continues."""
    process = runs.writing()
    runs.servers.kill()
    runs.servers.start()
    finished(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds executors in /proc")
@pytest.mark.parametrize(
    ("pipeline", "format_name"),
    [("archive", "parquet"), ("archive", "delta"), ("archive-as-is", "parquet")],
)
def test_kills_lose_and_double_nothing(
    servers: Servers, tmp_path: Path, environment: dict[str, str], pipeline: str, format_name: str
) -> None:
    runs = Runs(servers, tmp_path / "lake", pipeline, format_name, environment)
    try:
        kill_and_check(runs)
    finally:
        runs.pipelines.end()


def kill_and_check(runs: Runs) -> None:
    format_name = runs.format_name
    kills = [kill_driver_at(step, count) for count in (1, 2) for step in STEPS[format_name]]
    kills[2:2] = [kill_driver_while_it_reads, kill_an_executor, kill_the_broker]
    kills += [kill_all_while_they_read, kill_a_python_worker]
    for number in range(KILLS):
        runs.send()
        kill = kills[number % len(kills)]
        began = time.monotonic()
        kill(runs)
        runs.check()
        name = getattr(kill, "__qualname__", "?").split(".")[0]
        seconds = time.monotonic() - began
        print(f"{runs.pipeline} {format_name} {number + 1}/{KILLS} {name} {seconds:.0f} s")
    report = finished(runs.start())
    runs.check()
    assert report["lake_rows"] == report["lake_messages"] == runs.sent
    if runs.pipeline == "archive-as-is":
        kept = archive.dataset(runs.lake).to_table(columns=["body"])["body"].to_pylist()
        assert sorted(kept) == sorted(body_of(n).encode() for n in range(runs.sent))
        return
    rejected = archive.dataset(runs.lake, "_rejected").to_table(columns=["body", "reason"])
    numbers = archive.dataset(runs.lake).to_table(columns=["n"])["n"].to_pylist()
    assert sorted(numbers) == [n for n in range(runs.sent) if n % 10]
    assert sorted(rejected["body"].to_pylist()) == sorted(
        f"no JSON {n}".encode() for n in range(0, runs.sent, 10)
    )
