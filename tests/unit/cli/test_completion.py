"""What a shell gets that completes a line which begins with `turbopump`."""

import subprocess

import pytest

from turbopump.cli import main
from turbopump.cli.entry import COMMANDS


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
