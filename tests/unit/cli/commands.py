"""Commands run as users run them, in processes of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.file_descriptors import is_readable
from tests.patient import PATIENT

DEADLINE_S = 120.0
"""It is a second where nothing else runs; a machine that is loaded may take its time."""
SRC = Path(__file__).parents[3] / "src"


def command_environment() -> dict[str, str]:
    """The environment of a command: this source tree, and no name server from outside."""
    kept = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return kept | {"PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": "1"}


class Running:
    """A command that runs in the background."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, PATIENT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command_environment(),
            bufsize=0,  # or nobody would see what a buffer holds
        )

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line of output that matches; fails with all output when the command ends or the
        deadline passes."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if not is_readable(self._process.stdout.fileno(), 0.1):
                continue
            line = self._process.stdout.readline().decode()
            if not line:
                break
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        self._process.kill()
        raise AssertionError(f"no line {pattern!r} in {self.lines}, errors: {self.end()[1]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait for the end; exit code and standard error."""
        self._process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; exit code and standard error."""
        out, err = self._process.communicate(timeout=DEADLINE_S)
        self.lines += (out or b"").decode().splitlines()
        return self._process.returncode, err.decode()

    def close_output(self) -> None:
        """Read no more, as `| head` does."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stdout = None

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stderr is not None and not self._process.stderr.closed:
            self._process.communicate()
