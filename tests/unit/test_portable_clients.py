"""Clients need nothing that Windows lacks, and servers say in words that they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.as_windows import PATCHED, missing_modules, missing_names, typeshed
from tests.client_kinds import PROGRAM, check, servers_with_tls
from tests.patient import PATIENT

pytest.importorskip("mypy", reason="its stubs say what Windows lacks; tried on the main Python")
TESTS = Path(__file__).parents[1]


def run(program: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TESTS / program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def as_windows(program: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run("as_windows.py", program, *arguments)


@pytest.mark.parametrize("program", [[], ["as_windows.py"]], ids=["as it is", "as Windows"])
def test_every_client_works(program: list[str], tmp_path: Path) -> None:
    with servers_with_tls(tmp_path) as (name_server, certificate):
        check(run(*program, PROGRAM, name_server, str(certificate), str(tmp_path)))


def test_that_much_is_taken_away() -> None:
    stubs = typeshed()
    assert {"fcntl", "grp", "pwd", "resource", "termios"} < missing_modules(stubs)
    missing = {module: missing_names(stubs, module) for module in PATCHED}
    assert {"O_CLOEXEC", "fdatasync", "fork", "geteuid", "pread", "uname"} < missing[os]
    assert {"SIGHUP", "SIGKILL", "pthread_kill"} < missing[signal]
    assert not {"replace", "fsync", "getpid", "link"} & missing[os]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["broker"], "turbopump broker"),
        (["namesrv"], "turbopump namesrv"),
        (["dev"], "turbopump dev"),
        (["store", "verify", "."], "turbopump store"),
        (
            ["auth", "user", "delete", "bob", "--file", "accounts.json"],
            "--file, which changes a server's own file,",
        ),
    ],
)
def test_a_server_says_that_it_needs_another_system(arguments: list[str], what: str) -> None:
    done = as_windows(PATIENT, *arguments)
    assert done.stderr.startswith(f"turbopump: {what} needs Linux or macOS: run it in WSL, ")
    assert (done.stderr.count("\n"), done.returncode, done.stdout) == (1, 2, "")


def test_a_broker_for_tests_says_that_it_needs_another_system(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from turbopump.testing import running_broker\n")
    done = as_windows(program)
    assert "ConfigError: a broker for tests needs Linux or macOS" in done.stderr


def test_names_that_windows_allows_for_no_directory_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import asyncio
from turbopump.client.consumer.local_offsets import LocalOffsets
from pathlib import Path

async def make(client_id):
    LocalOffsets(None, Path("offsets"), client_id, "group")

for client_id in ("10.0.0.1@DEFAULT", "::1@DEFAULT"):
    asyncio.run(make(client_id))
""")
    done = as_windows(program)
    assert done.stderr.endswith(
        "ConfigError: '::1@DEFAULT' cannot be the name of the directory for offsets; choose a "
        'group, instance_name and local_ip without / < > : " \\ | ? *\n'
    )
