"""`turbopump auth`: users and policies on servers, and in a server's file."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports

from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

Run = Callable[..., tuple[int, str, str]]

ON: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username": "admin", "password": "s"}',
    "inner_client_authentication_credentials": '{"accessKey": "inner", "secretKey": "i"}',
}
PLAIN_ACL = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    admin: false
    defaultTopicPerm: DENY
    topicPerms:
      - topicA=PUB|SUB
"""


def run_command(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str, str]:
    code = main(["auth", *command])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `turbopump auth COMMAND`: its exit code, standard output and standard error."""

    return partial(run_command, capsys)


def cells(out: str) -> list[list[str]]:
    """The cells of a table, without its headings."""
    return [re.split(" {2,}", line) for line in out.splitlines()[1:]]


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("ann's secret\n")
    return str(file)


@pytest.fixture
def servers() -> Iterator[BrokerThread]:
    with BrokerThread(**ON) as running:
        yield running


@pytest.fixture
def admin(servers: BrokerThread, tmp_path: Path) -> list[str]:
    """Options that ask these servers as their administrator."""
    credentials = tmp_path / "admin.yml"
    credentials.write_text("accessKey: admin\nsecretKey: s\n")
    return ["-n", servers.namesrv, "--credentials", str(credentials)]


def test_users_and_policies_are_made_on_every_server(
    servers: BrokerThread, admin: list[str], password: str, run: Run
) -> None:
    both = [servers.namesrv, servers.broker_address]
    create = ("user", "create", "ann", "--password-file", password)
    made = [", ".join(both), "user ann", "-", "Normal, enabled"]
    code, out, _ = run(*create, *admin, "--dry-run")
    assert (code, cells(out)) == (0, [made, ["dry run: nothing was changed"]])
    code, out, _ = run(*create, *admin)
    assert (code, cells(out)) == (0, [made])
    code, out, err = run(*create, *admin)
    assert (code, out) == (4, "")
    assert err == f"turbopump: {', '.join(both)}: there is a user ann already\n"
    for change, words in (
        (("user", "alter", "bob", "--disable"), "there is no user bob"),
        (
            ("policy", "add", "bob", "--resource", "Topic:a", "--action", "Pub"),
            "there is no user bob",
        ),
        (("policy", "delete", "bob"), "there is no such policy"),
    ):
        for more in ((), ("--dry-run",)):
            code, out, err = run(*change, *admin, *more)
            assert (code, out, err) == (3, "", f"turbopump: {', '.join(both)}: {words}\n")
    allow = ("policy", "add", "ann", "--resource", "Topic:ord*", "--action", "Pub")
    assert run(*allow, "--from", "10.0.0.0/8", *admin)[0] == 0
    code, out, _ = run("policy", "list", *admin, "--output", "json")
    assert code == 0
    (row,) = json.loads(out)["policies"]
    assert (row["servers"], row["resource"], row["from"]) == (both, "Topic:ord*", ["10.0.0.0/8"])
    asked = ("test", "--user", "ann", "--action", "Pub", "--topic", "orders")
    code, out, _ = run(*asked, "--from", "10.1.1.1", "--server", both[1], *admin)
    because = "by the Custom policy: Allow Pub on Topic:ord* from 10.0.0.0/8"
    assert (code, cells(out)) == (0, [["yes", because, both[1]]])
    code, out, _ = run(*asked, *admin)
    assert (code, cells(out)) == (5, [["no", "no policy matches", ", ".join(both)]])
    assert run("policy", "delete", "ann", *admin)[0] == 0
    assert run("user", "alter", "ann", "--disable", *admin)[0] == 0
    code, out, _ = run("user", "list", "--server", both[0], *admin)
    assert (code, cells(out)[-1]) == (0, ["ann", "Normal", "disable", both[0]])
    assert "ann is disabled" in run(*asked, *admin)[1]
    assert run("user", "delete", "ann", *admin)[0] == 0
    assert "there is no user ann" in run(*asked, *admin)[1]


def test_equal_answers_are_shown_once_and_servers_that_differ_are_named(
    servers: BrokerThread, admin: list[str], password: str, run: Run
) -> None:
    both = [servers.namesrv, servers.broker_address]
    create = ("user", "create", "ann", "--password-file", password, "--server", both[1])
    assert run(*create, *admin)[0] == 0
    code, out, _ = run("user", "list", *admin)
    assert (code, [row[0] for row in cells(out)]) == (0, ["admin", "inner", "ann"])
    assert [row[-1] for row in cells(out)] == [", ".join(both), ", ".join(both), both[1]]
    alter = ("user", "alter", "ann", "--super", "--password-file", password)
    code, out, err = run(*alter, *admin)
    assert (code, err) == (1, f"turbopump: {both[0]}: there is no user ann\n")
    assert [row[:2] for row in cells(out)] == [
        [both[0], "user ann"],
        [both[1], "user ann"],
        [both[1], "password of ann"],
    ]


def test_who_is_not_known_changes_nothing(
    servers: BrokerThread, password: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("user", "create", "ann", "--password-file", password, "-n", servers.namesrv)
    code, out, err = run(*create)
    assert (code, out) == (1, "")
    assert "access denied" in err
    monkeypatch.setenv("TURBOPUMP_ACCESS_KEY", "admin")
    monkeypatch.setenv("TURBOPUMP_SECRET_KEY", "s")
    assert run(*create)[0] == 0
    for name in ("TURBOPUMP_ACCESS_KEY", "TURBOPUMP_SECRET_KEY"):
        monkeypatch.setenv(name, "")  # as a shell makes of a variable that is not set
    assert "access denied" in run(*create)[2]


def test_a_file_is_changed_beside_its_server(tmp_path: Path, password: str, run: Run) -> None:
    pytest.importorskip("yaml", reason="needs the extra turbopump[acl-import]")
    file = tmp_path / "auth" / "accounts.json"
    at = ("--file", str(file))
    assert run("user", "create", "root", "--super", "--password-file", password, *at)[0] == 0
    again = run("user", "create", "root", "--password-file", password, *at)
    assert (again[0], "there is a user root already" in again[2]) == (4, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    plain = tmp_path / "plain_acl.yml"
    plain.write_text(PLAIN_ACL)
    code, out, err = run("import", str(plain), *at)
    made = [str(file), "user RocketMQ", "-", "Normal, enabled"]
    assert (code, cells(out)) == (0, [made])
    assert "left out: globalWhiteRemoteAddresses" in err
    asked = ("test", "--user", "RocketMQ", "--action", "Sub", *at)
    code, out, _ = run(*asked, "--topic", "topicA")
    because = "by the Custom policy: Allow Pub,Sub on Topic:topicA"
    assert (code, cells(out)) == (0, [["yes", because, str(file)]])
    code, out, _ = run(*asked, "--topic", "topicB")
    assert (code, cells(out)[0][:2]) == (5, ["no", "by the Default policy: Deny All on Topic:*"])
    assert run("import", str(plain), *at)[1] == "nothing changes\n"
    code, exported, _ = run("export", str(file))
    assert (code, exported) == (0, file.read_text())


def test_a_file_that_others_can_read_is_said_to_be_so(
    tmp_path: Path, password: str, run: Run
) -> None:
    file = tmp_path / "accounts.json"
    at = ("--file", str(file))
    run("user", "create", "ann", "--password-file", password, *at)
    assert run("user", "list", *at)[2] == ""
    file.chmod(0o640)
    others = f"{file} has mode 0640: other users can read or change its passwords; run"
    for reading in (("user", "list", *at), ("policy", "list", *at), ("export", str(file))):
        code, _, err = run(*reading)
        assert (code, others in err) == (0, True)
    code, _, err = run("user", "alter", "ann", "--disable", *at)
    assert (code, "could be read by other users and has mode 0600 now" in err) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_server_whose_file_others_can_read_is_named_by_commands_and_the_doctor(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "accounts.json"
    for name, secret in (("admin", "s"), ("inner", "i")):
        secrets = tmp_path / name
        secrets.write_text(secret)
        create = ("user", "create", name, "--super", "--password-file", str(secrets))
        assert run(*create, "--file", str(file))[0] == 0
    file.chmod(0o644)
    credentials = tmp_path / "admin.yml"
    credentials.write_text("accessKey: admin\nsecretKey: s\n")
    with BrokerThread(auth_config_path=str(tmp_path), **ON) as running:
        admin = ["-n", running.namesrv, "--credentials", str(credentials)]
        says = f"{file} has mode 0644: other users can read or change its passwords; run"
        code, _, err = run("user", "list", *admin)
        assert (code, f"{running.broker_address}: {says}" in err) == (0, True)
        assert main(["doctor", *admin]) == 1
        told = capsys.readouterr().out
    assert (says in told, "1 problem" in told) == (True, True)


def test_what_a_file_holds_is_taken_over_by_servers(
    servers: BrokerThread, admin: list[str], tmp_path: Path, password: str, run: Run
) -> None:
    file = tmp_path / "accounts.json"
    at = ("--file", str(file))
    run("user", "create", "ann", "--password-file", password, *at)
    run("policy", "add", "ann", "--resource", "Topic:a", "--action", "Pub", *at)
    both = f"{servers.namesrv}, {servers.broker_address}"
    for more in (["--dry-run"], []):
        code, out, _ = run("import", str(file), *admin, *more)
        assert (code, cells(out)[0]) == (0, [both, "user ann", "-", "Normal, enabled"])
    code, out, _ = run("policy", "list", "--user", "ann", *admin)
    assert cells(out) == [["ann", "Custom", "Allow", "Pub", "Topic:a", "-", both]]


def test_a_server_without_access_control_is_named_so(run: Run, password: str) -> None:
    with BrokerThread() as open_to_all:
        code, _, err = run(
            "user", "create", "ann", "--password-file", password, "-n", open_to_all.namesrv
        )
    assert (code, "no server that was asked has access control" in err) == (1, True)


def test_a_server_that_cannot_be_asked_keeps_no_other_from_being_shown(
    servers: BrokerThread, admin: list[str], password: str, run: Run
) -> None:
    dead = free_ports(0)
    both = ["-n", f"{servers.namesrv};127.0.0.1:{dead}", *admin[2:]]
    code, out, err = run("user", "create", "ann", "--password-file", password, *both)
    assert (code, f"cannot connect to 127.0.0.1:{dead}" in err) == (1, True)
    assert (out.count("Normal, enabled"), out.count("cannot connect")) == (1, 1)
    code, out, err = run("user", "list", *both)
    assert (code, out.count("ann  ")) == (1, 1)
    assert f"not asked: cannot connect to 127.0.0.1:{dead}" in err
    assert run("user", "list", *both, "--server", f"127.0.0.1:{dead}")[:2] == (1, "")
