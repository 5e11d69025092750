"""A broker of its own process says within a second that it is not ready, and why: while its store
is recovered, after its disk refuses, without a name server, and while its store closes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.crash import fill_store, held_broker
from tests.crash.broker_process import BrokerProcess
from tests.loops import in_loop
from tests.ports import free_ports
from tests.waits import until

import turbopump
from turbopump.client.producer import Producer
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.store.log.scanner import PROGRESS_STEP

NOT_READY_S = 1.0
PATIENCE_S = 120.0
PROBE_S = 10.0
SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Answer(NamedTuple):
    """Answer that a probe got, with the status 0 if there was none."""

    status: int
    body: str = ""


class Probed:
    """A broker with a health port, and the files that hold it."""

    def __init__(self, process: BrokerProcess, port: int, files: Path) -> None:
        self.process = process
        self.files = files
        self._port = port

    async def get(self, path: str = "/readyz") -> Answer:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionRefusedError:
            return Answer(0)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            async with asyncio.timeout(PROBE_S):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        except (ConnectionResetError, TimeoutError):
            return Answer(0)
        finally:
            writer.close()
        return Answer(int(head.split(b" ")[1]), body.decode()) if head else Answer(0)

    async def wait_for(self, status: int, words: str) -> float:
        """Probe until this answer comes; returns the wall-clock time of its request."""
        answer = Answer(0)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            asked = time.time()
            answer = await self.get()
            if answer.status == status and words in answer.body:
                return asked
            await asyncio.sleep(0.005)
        raise AssertionError(f"last answer {answer}:\n{self.process.log_tail()}")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the files that hold a broker, emptied at the end so that none waits."""
    directory = tmp_path / "held-by"
    directory.mkdir()
    monkeypatch.setenv(held_broker.HELD_BY, str(directory))
    yield directory
    for file in directory.iterdir():
        file.unlink()


@asynccontextmanager
async def probed(
    home: Path, files: Path, *, settings: dict[str, object] = SMALL, namesrv: str = ""
) -> AsyncIterator[Probed]:
    port = free_ports(0)
    async with BrokerProcess(
        home,
        home / "store",
        settings | {"healthPort": port},
        script=Path(held_broker.__file__),
        namesrv=namesrv,
    ) as process:
        yield Probed(process, port, files)


@pytest.fixture
def filled(tmp_path: Path) -> None:
    """The store of a killed broker, of some steps of progress."""
    source = str(Path(turbopump.__file__).parent.parent)
    subprocess.run(
        [sys.executable, fill_store.__file__, str(tmp_path / "store"), str(4 * PROGRESS_STEP)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=True,
    )


@in_loop
async def test_a_broker_answers_probes_while_its_store_is_recovered(
    tmp_path: Path, files: Path, filled: None
) -> None:
    hold = files / held_broker.RECOVERY
    hold.touch()
    async with probed(tmp_path, files, settings={}) as broker:
        await broker.process.spawn()
        await until((files / held_broker.REACHED).exists)
        for _ in range(20):
            answer = await broker.get()
            assert answer.status == 503
            words, percent, _ = re.split("([0-9]+) %", answer.body)
            assert words == "the broker is starting: its store is being recovered, "
            assert 0 < int(percent) < 100
        assert await broker.get("/livez") == Answer(200, "alive\n")
        hold.unlink()
        await broker.wait_for(200, "ready")


@in_loop
async def test_a_broker_is_not_ready_within_a_second_after_its_disk_refuses(
    tmp_path: Path, files: Path, measured: Callable[[str], None]
) -> None:
    async with probed(tmp_path, files) as broker:
        await broker.process.start()
        await broker.wait_for(200, "ready")
        await broker.process.create_topic("orders", 1)
        (files / held_broker.REFUSING).touch()
        async with Producer(broker.process.namesrv) as producer:
            await producer.send("orders", b"x")
        told = await broker.wait_for(503, "the store accepts no messages: fdatasync of the commit")
        seconds = told - (files / held_broker.REACHED).stat().st_mtime
        measured(f"not ready {seconds:.3f} s after the sync that failed")
        assert seconds <= NOT_READY_S
        assert await broker.get("/livez") == Answer(200, "alive\n")


@in_loop
async def test_a_broker_is_not_ready_within_a_second_after_its_name_server_is_gone(
    tmp_path: Path, files: Path, measured: Callable[[str], None]
) -> None:
    port = free_ports(0)
    config = NamesrvConfig(listen_port=port)
    name_server = NameServer(config)
    await name_server.start()
    try:
        async with probed(tmp_path, files, namesrv=f"127.0.0.1:{port}") as broker:
            await broker.process.start()
            await broker.wait_for(200, "ready")
            await name_server.close()
            closed = time.time()
            told = await broker.wait_for(503, "the broker is registered with no name server")
            measured(f"not ready {told - closed:.3f} s after the last connection was closed")
            assert told - closed <= NOT_READY_S
            name_server = NameServer(config)
            await name_server.start()
            await broker.wait_for(200, "ready")
    finally:
        await name_server.close()


@in_loop
async def test_a_broker_is_not_ready_and_lives_while_its_store_closes(
    tmp_path: Path, files: Path, measured: Callable[[str], None]
) -> None:
    hold = files / held_broker.CLOSING
    hold.touch()
    async with probed(tmp_path, files) as broker:
        await broker.process.start()
        await broker.wait_for(200, "ready")
        os.kill(broker.process.pid, signal.SIGTERM)
        began = time.time()
        seconds = await broker.wait_for(503, "the broker is stopping") - began
        measured(f"not ready {seconds:.3f} s after SIGTERM")
        assert seconds <= NOT_READY_S
        await until((files / held_broker.REACHED).exists)
        for _ in range(20):
            assert await broker.get() == Answer(503, "the broker is stopping\n")
        assert await broker.get("/livez") == Answer(200, "alive\n")
        hold.unlink()
        assert await broker.process.wait(PATIENCE_S) == 0
        assert await broker.get() == Answer(0)
