"""A JVM that answers many questions, because the start of a JVM takes a second.

The one rule: nothing is known here of what is asked. A question is a line of words between tabs. An
answer is a line with its size, and so many bytes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.apache import NEWEST
from tests.interop.foreign import java_client


class AnsweringJvm:
    """One JVM that runs a program of clients/java/five. Enter it to start it.

    ``directory`` is its working directory and its home. ``options`` are those of the JVM. Raises
    ToolMissingError.
    """

    def __init__(
        self,
        program: str,
        directory: Path,
        *arguments: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._program = program
        self._arguments = arguments
        self._options = (f"-Duser.home={directory}", *options)
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._errors = (self.directory / f"{self._program}.stderr").open("w")
        self._process = subprocess.Popen(
            [*java_client(NEWEST, *self._options, program=self._program), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self.directory,
            env=self._environment,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, *words: str) -> bytes:
        """The answer to one question."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join(words).encode() + b"\n")
        stdin.flush()
        size = stdout.readline()
        assert size, f"{self._program} ended at {words}"
        return stdout.read(int(size))
