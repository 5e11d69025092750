"""Processes of the command line that are forked from one that has imported everything.

The imports take 1.6 s of a processor, which on a busy machine are half a minute at each start. The
one rule: a process here is one to be killed like any other, with a log and a standard output of its
own. It must not know what it runs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final, Self

import turbopump
from turbopump.cli import main

IMPORTED: Final = (
    "turbopump.broker.broker",
    "turbopump.broker.replica.replica",
    "turbopump.cli.broker",
    "turbopump.cli.controller",
    "turbopump.cli.serving",
    "turbopump.controller.server",
)
_context: Final = multiprocessing.get_context("forkserver")


class ForkedCommand:
    """One such process, with the methods of `asyncio.subprocess.Process` that are used here."""

    def __init__(
        self,
        process: ForkServerProcess,
        stdout: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
    ) -> None:
        self.stdout = stdout
        self._process = process
        self._transport = transport

    @classmethod
    async def start(cls, arguments: Sequence[str], *, log: Path, home: Path) -> Self:
        """Run `turbopump` with these arguments in a directory. Its errors go to the log."""
        # Each process runs the main module again, so what that imports is imported before, too.
        own = [name for name in sys.modules if name.startswith(("turbopump", "tests."))]
        _context.set_forkserver_preload([*IMPORTED, *own])
        reading, writing = _context.Pipe(duplex=False)
        process = _context.Process(target=_run, args=(arguments, writing, log, home))
        await asyncio.to_thread(process.start)
        writing.close()
        stdout = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stdout)
        pipe = os.fdopen(os.dup(reading.fileno()), "rb", buffering=0)
        reading.close()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, pipe)
        return cls(process, stdout, transport)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait until it is gone; its status."""
        await asyncio.to_thread(self._process.join)
        self._transport.close()
        assert self._process.exitcode is not None
        return self._process.exitcode

    async def communicate(self) -> None:
        await self.wait()


def _run(arguments: Sequence[str], stdout: Connection, log: Path, home: Path) -> None:
    os.dup2(stdout.fileno(), 1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    os.chdir(home)
    sys.argv = [str(Path(turbopump.__file__).parent / "__main__.py"), *arguments]
    sys.exit(main())
