"""A server in a process of its own, which dies, freezes and comes back on the same directory.

The one rule: nothing is known here of what the server does. What it prints goes to NAME.out in its
directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.interop.apache import end


class ServerProcess:
    """One server that is started and ended any number of times."""

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`command` is asked for at each start. Nothing is started yet."""
        self.name = name
        self.directory = directory
        self._command = command
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """True from its start to its end; also while it is frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.runs, f"{self.name} is already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        unwanted = {"NAMESRV_ADDR", "JAVA_TOOL_OPTIONS"}
        inherited = {key: value for key, value in os.environ.items() if key not in unwanted}
        with (self.directory / f"{self.name}.out").open("ab") as out:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.directory,
                env=inherited | self._environment,
            )

    def kill(self) -> None:
        """SIGKILL, also while it is frozen."""
        end(self._process, signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        end(self._process, signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open, and it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, size: int = 3000) -> str:
        """The last `size` characters of what it printed and logged."""
        paths = [*self.directory.glob("*.out"), *self.directory.glob("*.log")]
        return "\n".join(
            f"--- {path.name} of {self.directory.name}\n{path.read_text(errors='replace')[-size:]}"
            for path in sorted(paths)
        )
