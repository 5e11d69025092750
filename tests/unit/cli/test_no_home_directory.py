"""A user without a home directory, as in a container that runs as any uid: what needs no place
there starts, and what does says in a sentence what to set."""

import asyncio
import pwd
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from turbopump.blocking import PushConsumer
from turbopump.cli import serving
from turbopump.errors import ConfigError
from turbopump.testing import BrokerThread

Run = Callable[..., subprocess.CompletedProcess[str]]
SENTENCE = "this user has no home directory (no HOME, no entry in /etc/passwd): set HOME or "


def no_entry(uid: int) -> object:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture(autouse=True)
def _homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)


async def start_and_stop(servers: AbstractAsyncContextManager[None]) -> None:
    async with servers:
        pass


def serve(servers: AbstractAsyncContextManager[None], _service: object) -> None:
    asyncio.run(start_and_stop(servers))


@pytest.fixture
def _serving_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers stop as soon as they are ready."""
    monkeypatch.setattr(serving, "serve", serve)


@pytest.mark.usefixtures("_serving_shortly")
def test_dev_and_servers_with_directories_start(run_here: Run, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text(f"kvConfigPath={tmp_path}/kv.json\nstorePathRootDir={tmp_path}/store\n")
    for command in (
        ("dev", "--namesrv-port", "0", "--broker-port", "0"),
        ("namesrv", "-c", str(conf), "--port", "0"),
        ("broker", "-c", str(conf), "--port", "0"),
    ):
        done = run_here(*command)
        assert (done.returncode, "ready" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("namesrv", "kvConfigPath"),
        ("namesrv -p", "kvConfigPath"),
        ("broker", "storePathRootDir"),
        ("broker -p", "storePathRootDir"),
        ("dlq resend g --all -n 127.0.0.1:1", "--journal"),
    ],
)
def test_what_is_to_lie_there_is_asked_for_in_a_sentence(
    run_here: Run, command: str, instead: str
) -> None:
    done = run_here(*command.split())
    assert done.returncode != 0
    assert done.stderr.endswith(f"{SENTENCE}{instead}\n")
    assert "Traceback" not in done.stderr


def test_a_broker_for_tests_starts_and_a_broadcasting_consumer_asks_for_a_directory(
    tmp_path: Path,
) -> None:
    with BrokerThread() as broker:
        broker.create_topic("T", 1)
        consumer = PushConsumer(broker.namesrv, group="g", topic="T", broadcast=True)
        with pytest.raises(ConfigError) as refused, consumer:
            pass
        assert str(refused.value) == f"{SENTENCE}offsets_directory"
        with PushConsumer(
            broker.namesrv, group="g", topic="T", broadcast=True, offsets_directory=tmp_path
        ):
            pass
