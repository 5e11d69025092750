"""`turbopump broker promote`: a slave whose master was killed becomes the master, with processes as
an operator runs them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.patient import PATIENT
from tests.ports import free_ports
from tests.unit.cli.commands import DEADLINE_S, Running

from turbopump import SendStatus
from turbopump.blocking import Producer, PullConsumer

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMON = """
brokerName=a
inSyncReplicas=2
mappedFileSizeCommitLog=8388608
diskFreeSpaceMin=67108864
"""
RESTART = """
import os, signal, subprocess, sys
pid, new_pid, *command = sys.argv[1:]
os.kill(int(pid), signal.SIGTERM)
ready = False
while not ready:  # the old process may still have the store
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    ready = any(line.startswith(b"ready ") for line in running.stdout)
with open(new_pid, "w") as file:
    file.write(str(running.pid))
"""
"""As `systemctl restart` does: stop the broker, wait until it is gone, start it again."""


@dataclass
class Pair:
    """A name server, a master and its slave, each a process."""

    home: Path
    start: Callable[..., Running]
    run: Run
    namesrv: str
    master: Running
    slave: Running

    @property
    def file(self) -> Path:
        return self.home / "a-s.conf"

    def promote(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Runs `broker promote a` with the slave's file: exit code, JSON, standard error."""
        done = self.run(
            "broker", "promote", "a", "-c", str(self.file), "--output", "json", *options
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    @property
    def restart(self) -> str:
        """A command that restarts the slave."""
        script = self.home / "restart.py"
        script.write_text(RESTART)
        started = [sys.executable, PATIENT, "broker", "-c", str(self.file)]
        words = [str(script), str(self.slave.pid), str(self.home / "new.pid"), *started]
        return shlex.join([sys.executable, *words])

    def until_in_sync(self) -> None:
        look = ("cluster", "ha", "-n", self.namesrv, "--output", "json")
        deadline = time.monotonic() + DEADLINE_S
        in_sync = False
        while not in_sync:  # each look takes its time
            assert time.monotonic() < deadline
            brokers = json.loads(self.run(*look).stdout)["brokers"]
            slaves = [slave for one in brokers for slave in one.get("slaves", ())]
            in_sync = any(one["in_sync"] and one["behind"] == 0 for one in slaves)


@pytest.fixture
def pair(tmp_path: Path, start: Callable[..., Running], run_here: Run) -> Iterator[Pair]:
    namesrv = start("namesrv", "--port", "0").wait_for(r"^ready namesrv=(\S+)$")[1]

    def broker(name: str, role: str) -> Running:
        file = tmp_path / f"{name}.conf"
        file.write_text(
            f"# of {name}\n{COMMON}{role}listenPort={free_ports(-2, 0, 1)}\n"
            f"namesrvAddr={namesrv}\nstorePathRootDir={tmp_path / name}\n"
        )
        running = start("broker", "-c", str(file))
        running.wait_for(r"^ready broker=(\S+)$")
        return running

    master = broker("a", "brokerRole=SYNC_MASTER\nbrokerId=0\n")
    slave = broker("a-s", "brokerRole=SLAVE\nbrokerId=1\n")
    pair = Pair(tmp_path, start, run_here, namesrv, master, slave)
    pair.until_in_sync()
    assert run_here("topic", "create", "orders", "--queues", "1", "-n", namesrv).returncode == 0
    yield pair
    if (new := tmp_path / "new.pid").exists():
        os.kill(int(new.read_text()), signal.SIGKILL)


def verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["verdict"] for one in answer["checks"]}


def send(producer: Producer, count: int) -> set[str]:
    """Ids of the messages that were acknowledged."""
    return {
        result.msg_id
        for result in (producer.send("orders", b"x") for _ in range(count))
        if result.status is SendStatus.OK
    }


def test_a_slave_of_a_killed_master_goes_on_as_the_master_and_nothing_is_lost(pair: Pair) -> None:
    before = pair.file.read_text()
    with Producer(pair.namesrv, send_timeout=60.0) as producer:
        acknowledged = send(producer, 200)
        assert len(acknowledged) == 200

        code, answer, err = pair.promote("--dry-run")
        assert (code, verdicts(answer)["old master"], answer["promoted"]) == (1, "wrong", False)
        assert verdicts(answer)["copy"] == "ok"
        assert "--yes does not change that" in err
        assert pair.promote("--yes")[0] == 1
        assert pair.file.read_text() == before

        pair.master.stop(signal.SIGKILL)
        code, answer, _ = pair.promote("--dry-run")
        assert (code, answer["promoted"]) == (0, False)
        assert set(verdicts(answer).values()) == {"ok"}
        assert pair.file.read_text() == before

        code, answer, err = pair.promote("--restart", pair.restart)
        assert (code, answer["promoted"]) == (0, True), err
        assert Path(answer["copy"]).read_text() == before
        assert pair.file.read_text() == before.replace("=SLAVE", "=SYNC_MASTER").replace(
            "brokerId=1", "brokerId=0"
        )
        later = {producer.send("orders", b"later").msg_id for _ in range(3)}
    with PullConsumer(pair.namesrv, group="readers") as reader:
        (queue,) = reader.queues("orders")
        found: list[str] = []
        offset = 0
        while offset < reader.max_offset(queue):
            pulled = reader.pull(queue, offset)
            found += [message.msg_id for message in pulled.messages]
            offset = pulled.next_offset
    assert set(found) == acknowledged | later


def test_without_a_command_to_restart_the_next_steps_are_told(pair: Pair) -> None:
    pair.master.stop(signal.SIGKILL)
    done = pair.run("broker", "promote", "a", "-c", str(pair.file))
    assert done.returncode == 0
    assert "next: restart this broker; it starts as the master" in done.stdout
    assert "brokerRole=SLAVE and brokerId=1" in done.stdout
    again = pair.run("broker", "promote", "a", "-c", str(pair.file))
    assert again.returncode == 2
    assert "this broker is a master already" in again.stderr


def test_a_master_that_is_listed_and_does_not_answer_is_a_risk(pair: Pair) -> None:
    pair.master.send(signal.SIGSTOP)
    try:
        code, answer, err = pair.promote()
    finally:
        pair.master.send(signal.SIGCONT)
    assert (code, answer["promoted"]) == (1, False)
    assert verdicts(answer)["old master"] == "risk"
    assert "--yes accepts the risk" in err


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("b", "", "", "is of the broker a, not of b"),
        ("a", "brokerRole=SLAVE", "brokerRole=ASYNC_MASTER", "this broker is a master already"),
        ("a", "inSyncReplicas=2\n", "", "give --role SYNC_MASTER"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_a_server_is_asked(
    tmp_path: Path, run_here: Run, name: str, old: str, new: str, told: str
) -> None:
    file = tmp_path / "a-s.conf"
    text = f"{COMMON}brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=127.0.0.1:{free_ports(0)}\n"
    file.write_text(text.replace(old, new))
    done = run_here("broker", "promote", name, "-c", str(file))
    assert done.returncode == 2
    assert told in done.stderr
