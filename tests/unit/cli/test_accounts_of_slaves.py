"""Users of a cluster with a slave, as an operator works with them: made by `turbopump auth`, read
from the slave, and still there when the slave is the master."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., Any]

ACCESS = """
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={"username":"admin","password":"a"}
innerClientAuthenticationCredentials={"accessKey":"broker","secretKey":"b"}
listenPort=0
"""


def file(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_users_made_on_a_cluster_read_from_its_slave_and_go_on_after_a_promotion(
    run_here: Run, start: Start, tmp_path: Path
) -> None:
    namesrv_conf = file(tmp_path, "n.conf", f"{ACCESS}kvConfigPath={tmp_path / 'n' / 'kv.json'}\n")
    namesrv = start("namesrv", "-c", namesrv_conf).wait_for(r"^ready namesrv=(\S+)$")[1]
    files = "mappedFileSizeCommitLog=8388608\nautoCreateTopicEnable=false\nbrokerName=a\n"

    def broker(name: str, role: str) -> tuple[Any, str]:
        conf = file(tmp_path, f"{name}.conf", ACCESS + files + role)
        running = start("broker", "-c", conf, "-n", namesrv, "--data", str(tmp_path / name))
        return running, running.wait_for(r"^ready broker=(\S+)$")[1]

    master, at_master = broker("a", "brokerRole=ASYNC_MASTER\nbrokerId=0\n")
    slave, at_slave = broker("a-s", "brokerRole=SLAVE\nbrokerId=1\n")
    admin = (
        "-n",
        namesrv,
        "--credentials",
        file(tmp_path, "admin.yml", "accessKey: admin\nsecretKey: a\n"),
    )
    billing = (
        "-n",
        namesrv,
        "--credentials",
        file(tmp_path, "b.yml", "accessKey: billing\nsecretKey: s\n"),
    )

    def done(*command: str, text: str = "") -> str:
        finished = run_here(*command, text=text)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    told = done(
        "auth", "user", "create", "billing", "--password-file", file(tmp_path, "s", "s\n"), *admin
    )  # the copy may come before the request: neither is an error
    assert "all 3 servers  user billing  -    Normal, enabled" in told
    again = run_here(
        "auth", "user", "create", "billing", "--password-file", str(tmp_path / "s"), *admin
    )
    assert again.returncode == 4, again.stdout
    assert again.stderr == "turbopump: all 3 servers: there is a user billing already\n"
    policy = ("--resource", "Topic:orders", "--resource", "Group:billing")
    told = done("auth", "policy", "add", "billing", *policy, "--action", "All", *admin)
    assert told.count("all 3 servers  Custom policy of billing for ") == 2
    done("topic", "create", "orders", "--queues", "1", *admin)
    done("produce", "orders", "--raw", *billing, text="1\n2\n3\n")

    look = ("cluster", "ha", *admin, "--output", "json")
    copied = run_here(*look)
    while '"behind": 0' not in copied.stdout:  # each look takes its time
        copied = run_here(*look)
    assert copied.returncode == 0, copied.stdout
    accounts = tmp_path / "a-s" / "config" / "auth" / "accounts.json"
    assert stat.S_IMODE(accounts.stat().st_mode) == 0o600
    assert (
        accounts.read_bytes() == (tmp_path / "a" / "config" / "auth" / "accounts.json").read_bytes()
    )

    new = ("--password-file", file(tmp_path, "new", "t\n"))
    done("auth", "user", "alter", "billing", *new, "--server", namesrv, *admin)
    done("auth", "user", "create", "spy", *new, "--server", at_slave, *admin)
    told = run_here("doctor", *admin).stdout
    says = f"{at_master} has other users and policies than {namesrv}: billing has another password"
    assert says in told
    old = ("--password-file", file(tmp_path, "s", "s\n"))
    done("auth", "user", "alter", "billing", *old, "--server", namesrv, *admin)

    while "spy" in done("auth", "user", "list", "--server", at_slave, *admin):
        pass  # until the copy: a slave's users are its master's

    master.stop(signal.SIGKILL)
    consume = ("consume", "orders", "--group", "billing", "--from", "first", "--count")
    assert len(done(*consume, "3", *billing).splitlines()) == 3

    promote = ("broker", "promote", "a", "-c", str(tmp_path / "a-s.conf"), "--role", "ASYNC_MASTER")
    assert f"equal to those of {namesrv}" in done(*promote, *admin)
    assert slave.stop()[0] == 0
    slave = start(
        "broker",
        *("-c", str(tmp_path / "a-s.conf")),
        "-n",
        namesrv,
        "--data",
        str(tmp_path / "a-s"),
    )
    slave.wait_for(r"^ready broker=(\S+)$")
    done("produce", "orders", "--raw", *billing, text="4\n5\n6\n")
    assert len(done(*consume, "3", *billing).splitlines()) == 3
    users = json.loads(done("auth", "user", "list", *admin, "--output", "json"))["users"]
    assert {row["user"] for row in users} == {"admin", "broker", "billing"}
