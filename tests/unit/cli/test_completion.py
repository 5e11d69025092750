"""What a shell gets that completes a line which begins with `turbopump`."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patient import PATIENT
from tests.unit.cli.commands import command_environment

from turbopump.blocking import ConsumeFrom, PushConsumer
from turbopump.cli import main
from turbopump.cli.entry import COMMANDS
from turbopump.testing.broker_in_loop import BrokerThread


def answer(
    instruction: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the command writes for a shell, and nothing besides."""
    monkeypatch.setenv("_TURBOPUMP_COMPLETE", instruction)
    with pytest.raises(SystemExit) as ended:
        main([])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    return told.out


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What bash offers at the end of a line."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    return answer("bash_complete", monkeypatch, capsys).replace("plain,", "").splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("turbopump ", list(COMMANDS)),
        ("turbopump cons", ["consume", "consumer"]),
        ("turbopump offset ", ["show", "reset", "clone"]),
        ("turbopump consume T --fr", ["--from"]),
        ("turbopump topic list --output ", ["table", "json", "yaml", "csv"]),
    ],
)
def test_commands_options_and_their_values_are_completed(
    line: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sorted(completed(line, monkeypatch, capsys)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = answer(f"{shell}_source", monkeypatch, capsys)
    assert f"_TURBOPUMP_COMPLETE={shell}_complete" in script


def test_bash_takes_its_script_and_knows_what_completes_turbopump(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = answer("bash_source", monkeypatch, capsys)
    shown = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p turbopump"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "complete -o nosort -F _turbopump_completion turbopump\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """With the topics `orders` and `offers`, and the group `billing`."""
    with BrokerThread() as running:
        for topic in ("orders", "offers"):
            running.create_topic(topic, 1)
        with PushConsumer(
            running.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            consumer.commit(acknowledged=True)
            yield running


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("topic route or", ["orders"]),
        ("topic route -t o", ["offers", "orders"]),
        ("consume o", ["offers", "orders"]),
        ("offset show bil", ["billing"]),
        ("offset reset billing of", ["offers"]),
        ("offset reset -g billing -t of", ["offers"]),
        ("consume orders -g b", ["billing"]),
        ("broker drain b", ["broker-test"]),
        ("topic create T -b bro", ["broker-test"]),
    ],
)
def test_bash_completes_topics_groups_and_brokers_of_a_running_cluster(
    line: str, offered: list[str], broker: BrokerThread, tmp_path: Path
) -> None:
    command = tmp_path / "turbopump"
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, PATIENT])} "$@"\n')
    command.chmod(0o755)
    words = ["turbopump", *line.split()]
    lines = (
        'eval "$(_TURBOPUMP_COMPLETE=bash_source turbopump)"',
        f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
        "_turbopump_completion turbopump",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    environment = command_environment() | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "NAMESRV_ADDR": broker.namesrv,
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert (sorted(done.stdout.split()), done.stderr) == (offered, "")
