"""The source and the sink on clusters: executors in other processes, on several workers, from a
packed environment, and behind a Connect server. Each row arrives once everywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.spark_long.conftest import PATIENCE_S, ROOT, Servers
from tests.spark_long.daemons import (
    SPARK_HOME,
    Standalone,
    bare_environment,
    connect_server,
    spark_home,
)
from tests.spark_long.processes import executor_of, fault_in
from tests.spark_long.topics import bodies, create, fill, once, stored, wait_until_stored

PROGRAM = Path(__file__).with_name("trip_program.py")
ROWS = 40_000
SUBMIT = str(SPARK_HOME / "bin/spark-submit")


class Trip:
    """One run of the program over a topic of its own."""

    def __init__(self, servers: Servers, directory: Path, rows: int = ROWS) -> None:
        self.servers = servers
        self.rows = rows
        self.arguments = [servers.name_server, "flights", str(directory / "checkpoint")]
        create(servers, "flights", "flights-written", "flights-streamed")
        fill(servers, "flights", rows)

    def start(
        self,
        *arguments: str,
        environment: dict[str, str],
        command: tuple[str, ...] = (sys.executable,),
        directory: Path | None = None,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, str(PROGRAM), *self.arguments, *arguments],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finished(self, process: subprocess.Popen[str]) -> tuple[dict[str, int], list[str]]:
        """The rows read in each executor's directory, and where these found Turbopump. Each row
        was read once, and is once in each topic."""
        try:
            said, wrong = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, said[-3000:] + fault_in(wrong)
        report = json.loads(said.splitlines()[-1])
        assert sum(report["read"].values()) == self.rows
        for topic in ("flights-written", "flights-streamed"):
            assert bodies(self.servers, topic) == once(self.rows)
        return report["read"], report["turbopump"]


@pytest.fixture
def trip(servers: Servers, tmp_path: Path) -> Trip:
    return Trip(servers, tmp_path)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def on_both_workers(standalone: Standalone, read: dict[str, int]) -> bool:
    """Both have read some rows, and nobody else any."""
    return {Path(directory).parents[1] for directory in read} == set(standalone.works)


def test_two_executors_of_a_local_cluster_read_write_and_stream(
    trip: Trip, environment: dict[str, str], tmp_path: Path
) -> None:
    home = {"SPARK_HOME": str(spark_home(tmp_path / "spark"))}
    read, _ = trip.finished(
        trip.start("local-cluster[2,1,1024]", environment={**environment, **home})
    )
    assert len(read) == 2


def test_both_workers_of_a_standalone_cluster_read_write_and_stream(
    trip: Trip, standalone: Standalone, environment: dict[str, str]
) -> None:
    read, _ = trip.finished(trip.start(standalone.master, environment=environment))
    assert on_both_workers(standalone, read)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds executors in /proc")
def test_an_executor_that_is_killed_while_it_writes_changes_nothing_in_the_result(
    servers: Servers, standalone: Standalone, environment: dict[str, str], tmp_path: Path
) -> None:
    trip = Trip(servers, tmp_path, rows=400_000)
    process = trip.start(standalone.master, environment=environment)
    try:
        assert wait_until_stored(servers, "flights-written", 20_000, process)
        os.kill(executor_of(standalone.workers[0].pid), signal.SIGKILL)
        assert stored(servers, "flights-written") < trip.rows
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    trip.finished(process)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, so that building leaves nothing in this checkout."""
    copy = tmp_path_factory.mktemp("copy") / "turbopump"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.c")
    shutil.copytree(ROOT / "src", copy / "src", ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    return copy


def install(environment: Path, *packages: str) -> None:
    """Into a virtual environment, in the versions of this checkout."""
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *packages], check=True, timeout=PATIENCE_S, env=bare_environment())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """A directory with ``environment`` and ``environment.tar.gz``, made as the guide says."""
    directory = tmp_path_factory.mktemp("packed")
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    install(environment, str(checkout), "pyarrow", "pandas", "venv-pack")
    pack = [str(environment / "bin/venv-pack"), "-p", "environment", "-o", "environment.tar.gz"]
    subprocess.run(pack, cwd=directory, check=True, timeout=PATIENCE_S, env=bare_environment())
    return directory


def test_a_program_is_submitted_with_a_packed_environment(
    trip: Trip, standalone: Standalone, packed: Path
) -> None:
    archive = ("--archives", "environment.tar.gz#environment")
    read, found = trip.finished(
        trip.start(
            environment=bare_environment(PYSPARK_PYTHON="./environment/bin/python"),
            command=(SUBMIT, "--master", standalone.master, *archive),
            directory=packed,
        )
    )
    assert on_both_workers(standalone, read)
    assert len(found) == 2
    for place in found:  # where each executor has unpacked it
        assert any(place.startswith(f"{directory}/environment/") for directory in read)


def test_a_program_is_submitted_with_a_zip_where_what_is_compiled_is_installed(
    trip: Trip, standalone: Standalone, checkout: Path, tmp_path: Path
) -> None:
    archive = shutil.make_archive(str(tmp_path / "turbopump"), "zip", checkout / "src")
    read, found = trip.finished(
        trip.start(
            environment=bare_environment(PYSPARK_PYTHON=sys.executable),
            command=(SUBMIT, "--master", standalone.master, "--py-files", archive),
        )
    )
    assert on_both_workers(standalone, read)
    assert all("/turbopump.zip/" in place for place in found)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with what Connect's clients need beside the packages of this one."""
    environment = tmp_path_factory.mktemp("client") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install(environment, f"pyspark[connect]=={pyspark.__version__}")
    return str(environment / "bin/python")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[str]:
    server, url = connect_server(tmp_path_factory.mktemp("connect"), environment)
    try:
        yield url
    finally:
        server.end()


@pytest.mark.parametrize("register", [[], ["register"]], ids=["found", "registered"])
def test_a_client_reads_writes_and_streams_through_a_connect_server(
    trip: Trip, connect: str, client: str, environment: dict[str, str], register: list[str]
) -> None:
    # A client that registers nothing need not have Turbopump.
    own = environment if register else bare_environment()
    trip.finished(trip.start(connect, *register, environment=own, command=(client,)))
