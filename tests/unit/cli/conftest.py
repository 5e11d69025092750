"""Commands run as users run them, in a process of their own, each ended by the test that started
it; or, where a process is not what a test is about, in the test's own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.patient import PATIENT, wait_for_servers
from tests.unit.cli.commands import DEADLINE_S, Running, command_environment

from turbopump.cli import main


@pytest.fixture(autouse=True)
def _patience_with_servers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_servers(patch.setitem)
        yield


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts `turbopump ARGUMENTS` in the background; killed at the end of the test if it still
    runs."""
    yield from _starting()


@pytest.fixture(scope="module")
def start_for_module() -> Iterator[Callable[..., Running]]:
    """As `start`, until the last test of the module."""
    yield from _starting()


def begin(running: list[Running], *arguments: str) -> Running:
    running.append(Running(arguments))
    return running[-1]


def _starting() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    yield partial(begin, running)
    for one in running:
        one.kill()


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `turbopump ARGUMENTS` to its end."""

    def run_to_end(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, PATIENT, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=command_environment(),
            check=False,
        )

    return run_to_end


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `turbopump ARGUMENTS` as `run` does, but in this process: a start costs half a second of
    a processor."""

    def run_to_end(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "input"
        file.write_text(text)
        capsys.readouterr()
        with file.open() as standard_input, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", standard_input)
            code = main(arguments)
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, told.out, told.err)

    return run_to_end


def run_lines(lines: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", lines],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=command_environment(),
        check=True,
    ).stdout


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Runs a few lines of Python in a fresh interpreter; returns what they print."""

    return run_lines
