"""Messages of a server to the systemd that has started it, at a real socket."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation

from turbopump.cli import service_manager
from turbopump.cli.service_manager import STATUS_S, ServiceManager
from turbopump.cli.serving import serve


class Listener:
    """A socket as systemd has it. ``messages`` returns what has come since the last call."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": address}

    def messages(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    path = str(tmp_path / "notify")
    listening = Listener(path if request.param == "path" else f"@turbopump-test-{os.getpid()}")
    yield listening
    listening.close()


def test_a_server_reports_progress_readiness_and_its_end(listener: Listener) -> None:
    service = ServiceManager(listener.environment)
    reasons = ["the store is\nbeing recovered, 7 %"]
    service.reasons = lambda: reasons

    @asynccontextmanager
    async def server() -> AsyncIterator[None]:
        service.report_progress()
        reasons[:] = ["registered with no name server", "the disk is full"]
        yield
        reasons[:] = ["stopping"]

    async def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    @asynccontextmanager
    async def ended_server() -> AsyncIterator[None]:
        async with server():
            task = asyncio.ensure_future(end())
            yield
            await task

    serve(ended_server(), service)
    assert listener.messages() == [
        "STATUS=the store is being recovered, 7 %\nEXTEND_TIMEOUT_USEC=90000000",
        "READY=1\nSTATUS=registered with no name server; the disk is full",
        "STOPPING=1\nSTATUS=stopping",
    ]


@in_loop(simulated)
async def test_the_loop_feeds_the_watchdog_twice_in_its_time(
    simulation: Simulation, /, listener: Listener
) -> None:
    environment = listener.environment | {"WATCHDOG_USEC": "10000000"}
    ServiceManager(environment | {"WATCHDOG_PID": str(os.getpid())}).report_ready()
    assert listener.messages() == ["READY=1\nSTATUS=ready", "WATCHDOG=1"]
    await asyncio.sleep(4.9)
    assert listener.messages() == []
    await asyncio.sleep(0.2)
    assert listener.messages() == ["WATCHDOG=1"]
    await asyncio.sleep(50)
    assert listener.messages() == ["WATCHDOG=1"] * 10


@in_loop(simulated)
async def test_the_watchdog_of_another_process_is_not_fed(
    simulation: Simulation, /, listener: Listener
) -> None:
    environment = listener.environment | {"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}
    ServiceManager(environment).report_ready()
    await asyncio.sleep(60)
    assert listener.messages() == ["READY=1\nSTATUS=ready"]


@in_loop(simulated)
async def test_a_changed_status_is_reported_once_within_a_second(
    simulation: Simulation, /, listener: Listener
) -> None:
    service = ServiceManager(listener.environment)
    reasons: list[str] = []
    service.reasons = lambda: reasons
    service.report_ready()
    listener.messages()
    reasons.append("the disk is full")
    await asyncio.sleep(STATUS_S + 0.1)
    assert listener.messages() == ["STATUS=the disk is full"]
    await asyncio.sleep(60)
    assert listener.messages() == []
    reasons.clear()
    await asyncio.sleep(STATUS_S + 0.1)
    assert listener.messages() == ["STATUS=ready"]


def test_without_a_service_manager_nothing_is_sent_and_nothing_fails() -> None:
    service = ServiceManager({})
    service.report_progress()
    service.report_stopping()


def test_a_socket_that_does_not_take_messages_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    for _ in range(3):
        service.report_stopping()
    (line,) = caplog.messages
    assert line.startswith(
        f"the service manager cannot be notified socket={tmp_path}/nobody cause="
    )


def test_a_socket_that_is_full_holds_a_server_up_only_for_a_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_manager, "SEND_S", 0.001)
    listening = Listener(str(tmp_path / "notify"))
    try:
        service = ServiceManager(listening.environment)
        while not caplog.messages:
            service.report_stopping()
        assert "timed out" in caplog.text
    finally:
        listening.close()
