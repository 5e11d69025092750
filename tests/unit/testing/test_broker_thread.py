"""A broker in a thread: for tests that have no loop, and the fixture made of it."""

import importlib.metadata
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from turbopump.client.producer import Producer
from turbopump.errors import ConfigError
from turbopump.testing import BrokerThread


async def send(namesrv: str) -> str:
    async with Producer(namesrv) as producer:
        return (await producer.send("greetings", b"hello")).status.value


def test_synchronous_code_can_use_it_and_nothing_is_left() -> None:
    threads = set(threading.enumerate())
    with BrokerThread() as rocketmq:
        rocketmq.create_topic("greetings", queues=2)
        assert rocketmq.run(send(rocketmq.namesrv)) == "SEND_OK"
        directory = rocketmq.directory
        assert directory.is_dir()
        assert rocketmq.broker_address != rocketmq.namesrv
    assert not directory.exists()
    assert set(threading.enumerate()) <= threads


def test_a_failure_to_start_comes_out_where_it_was_started() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.7"):
        BrokerThread(host="203.0.113.7").start()
    assert set(threading.enumerate()) <= threads


def test_it_may_be_stopped_twice() -> None:
    rocketmq = BrokerThread().start()
    rocketmq.stop()
    rocketmq.stop()
    assert not rocketmq.directory.exists()


USERS_TEST = """
def test_first(rocketmq):
    rocketmq.create_topic("orders", queues=2)
    seen.append(rocketmq.namesrv)

def test_second(rocketmq):
    seen.append(rocketmq.namesrv)
    assert len(set(seen)) == {brokers}

seen = []
"""


@pytest.mark.parametrize(("scope", "brokers"), [("function", 2), ("session", 1)])
def test_the_plugin_gives_users_the_fixture(tmp_path: Path, scope: str, brokers: int) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nrocketmq_scope = {scope}\n")
    (tmp_path / "test_users.py").write_text(USERS_TEST.format(brokers=brokers))
    done = run_pytest(tmp_path, "-q", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_an_unknown_scope_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nrocketmq_scope = week\n")
    (tmp_path / "test_users.py").write_text("def test_first(rocketmq): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "rocketmq_scope is 'week'; expected one of function, class" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_loading_the_plugin_loads_neither_broker_nor_client() -> None:
    program = (
        "import sys, turbopump.testing.pytest_plugin;"
        "print([name for name in sys.modules if name.startswith('turbopump')], 'msgspec' in "
        "sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == (
        "['turbopump', 'turbopump.testing', 'turbopump.testing.pytest_plugin'] False"
    )


def run_pytest(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    installed = importlib.metadata.entry_points(group="pytest11", name="turbopump")
    plugin = [] if installed else ["-p", "turbopump.testing.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, *options],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
