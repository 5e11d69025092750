"""Runs a page of docs/guide as a reader would, and holds what happens against what the page shows.

What of a page is run:

- A Python block whose first line is ``# name.py`` is a file of that name, and so is a properties
  block whose first line is ``# name.conf``.
- In a ``console`` block each line ``$ command`` is run by a shell, and the lines under it are what
  it must print: ``…`` in a line stands for any text, a line ``…`` alone for any lines. A command
  that ends in ``&`` stays, to the end of the page, once it has printed that; one with ``^C`` as
  its last line is interrupted then. Every other command must end by itself, with exit code 0, or
  the one that a last line ``[exit code 3]`` names. ``%2`` is the second of those that stay, as in
  a shell, which ``kill`` ends, and ``export NAME=VALUE`` holds for what follows. ``LOOK`` may be
  asked several times.

Nothing else is run. ``127.0.0.1:9876`` and ``:10911`` are a broker of the page's own: a fresh one,
or the one that the page starts by ``turbopump dev``. A page that starts a name server starts all
its servers itself, and each of its ports stands for a free one, as does ``127.0.0.1:8000``.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.patient import PATIENT
from tests.ports import free_ports

from turbopump.testing import BrokerThread

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPARK_PAGES = ("cdc.md", "pipelines.md", "spark.md", "spark-commitlog.md", "spark-tutorial.md")
"""Pages that ``tests/spark/spark_page.py`` runs, all in one session of Spark."""
PORT = re.compile(r"\b(?:(?:98|109)\d\d|8000)\b")
WEB = "127.0.0.1:8000"
"""Address of a web server that a page starts."""
LOOK = "turbopump cluster ha"
"""What this prints comes about in a moment: it is asked again, as a reader would."""
LOOKS_MAX = 60
PATIENCE = 180
"""Seconds that a command may take, on a busy machine too."""


@dataclass
class Command:
    """A line of a console, and what the page shows under it."""

    text: str
    shown: list[str]

    @classmethod
    def all_of(cls, block: str) -> Iterator[Command]:
        """Each command of a block."""
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, *shown = part.rstrip("\n").split("\n")
            while text.endswith("\\"):
                text = f"{text}\n{shown.pop(0).removeprefix('> ')}"
            yield cls(text, shown)

    def __post_init__(self) -> None:
        last = self.shown[-1] if self.shown else ""
        found = re.fullmatch(r"\[exit code (\d+)\]", last)
        self.exit_code = int(found[1]) if found else 0
        self.interrupted = last == "^C"
        self.stays = self.text.endswith("&")
        if found or self.interrupted:
            self.shown = self.shown[:-1]
        lines = [
            r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\s*\n"
            for line in self.shown
        ]
        self.expected = re.compile("".join(lines), re.MULTILINE)


class Running:
    """A command that has been started, and what it has printed so far."""

    def __init__(
        self, text: str, is_enough: Callable[[str], object], directory: Path, env: dict[str, str]
    ) -> None:
        self._is_enough = is_enough
        self.process = subprocess.Popen(
            ["bash", "-c", text.removesuffix("&")],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.printed = ""
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.printed += line
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_until_enough(self) -> None:
        """Wait until it has printed enough, or has ended."""
        with self._changed:
            self._changed.wait_for(self._is_over, PATIENCE)

    def _is_over(self) -> bool:
        return self._ended or bool(self._is_enough(self.printed))

    def interrupt(self) -> None:
        """As Ctrl-C does, to the command and its children."""
        if self.process.returncode is None:  # or its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Its exit code. Raises TimeoutExpired if it does not end."""
        if self.process.returncode is not None:
            return self.process.returncode
        try:
            return self.process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self._reader.join(PATIENCE)


def ports_for(text: str) -> dict[str, str]:
    """A free port for each that a page names, in the same order. A broker's port, the second below
    it (VIP) and the next (slaves connect to that) belong together."""
    shown = sorted(set(PORT.findall(text)), key=int)
    firsts = [one for one in shown if str(int(one) - 1) not in shown or one.startswith("98")]
    free = sorted(free_ports(-2, 0, 1) for _ in firsts)
    found = dict(zip(firsts, map(str, free), strict=True))
    seconds = [one for one in shown if one not in found]
    return found | {one: str(int(found[str(int(one) - 1)]) + 1) for one in seconds}


@dataclass
class Page:
    """A page and the directory it is tried in."""

    name: str
    directory: Path
    addresses: dict[str, str] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    staying: list[Running] = field(default_factory=list)

    def try_it(self) -> int:
        """Run all of it; returns how many commands there were. Raises AssertionError with what was
        shown and what came."""
        text = (GUIDE / self.name).read_text("utf-8")
        its_cluster = "$ turbopump namesrv" in text
        starts_its_own = its_cluster or "$ turbopump dev" in text
        count = 0
        with contextlib.ExitStack() as stack:
            if not starts_its_own:
                broker = stack.enter_context(BrokerThread())
                self._broker_is(broker.namesrv, broker.broker_address)
            if its_cluster or WEB in text:
                self.ports = ports_for(text)
            stack.callback(self._end_those_that_stay)
            for kind, block in BLOCK.findall(text):
                file = re.match(r"# ([\w/-]+\.(?:py|conf))\n", block)
                if kind in ("python", "properties") and file:
                    path = self.directory / file[1]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(self._addressed(block))
                elif kind == "console":
                    for command in Command.all_of(block):
                        self._run(command)
                        count += 1
        return count

    def _broker_is(self, namesrv: str, broker: str) -> None:
        self.addresses |= {"127.0.0.1:9876": namesrv, "127.0.0.1:10911": broker}

    def _addressed(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return PORT.sub(lambda found: self.ports.get(found[0], found[0]), text)

    def _unaddressed(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(real, shown)
        shown_of = {real: shown for shown, real in self.ports.items()}
        return re.sub(r"(?<=:)\d+", lambda found: shown_of.get(found[0], found[0]), text)

    def _run(self, command: Command, looked: int = 0) -> None:
        text = self._addressed(command.text)
        exported = re.fullmatch(r"export (\w+)='?(.*?)'?", text)
        if exported:
            self.exported[exported[1]] = exported[2]
            return
        killed = re.search(r" %(\d+)$", text)
        if killed:
            self._kill(text.removesuffix(killed[0]), self.staying[int(killed[1]) - 1])
            return
        is_server = text.startswith("turbopump dev")
        if is_server:
            text = text.removesuffix("&") + " --namesrv-port 0 --broker-port 0"
            command.expected = re.compile(r"(?:.*\n)*ready .*\n")
        expected = command.expected
        running = Running(
            text,
            lambda printed: expected.match(self._unaddressed(printed)),
            self.directory,
            self._environment(),
        )
        if command.stays or command.interrupted:
            running.wait_until_enough()
        if is_server:
            ready = re.search(r"^ready namesrv=(\S+) broker=(\S+)$", running.printed, re.MULTILINE)
            assert ready, running.printed
            self._broker_is(ready[1], ready[2])
        if command.stays:
            self.staying.append(running)
        else:
            if command.interrupted:
                running.interrupt()
            code = running.end()
            told = expected.fullmatch(self._unaddressed(running.printed))
            if command.text == LOOK and looked < LOOKS_MAX and not told:
                self._run(command, looked + 1)
                return
            if not command.interrupted:
                assert code == command.exit_code, f"$ {command.text}\n{running.printed}({code})"
        if is_server:
            return
        printed = self._unaddressed(running.printed)
        if command.interrupted:
            assert command.expected.match(printed), f"$ {command.text}\n{printed}"
        else:
            assert command.expected.fullmatch(printed), f"$ {command.text}\n{printed}"

    def _kill(self, how: str, running: Running) -> None:
        subprocess.run(["bash", "-c", f"{how} -- -{running.process.pid}"], check=True)
        running.end()

    def _environment(self) -> dict[str, str]:
        programs = self.directory / ".bin"
        if not programs.exists():
            programs.mkdir()
            for name, run in {
                "python": "",
                "turbopump": f'"{PATIENT}"',
                "pytest": "-m pytest",
            }.items():
                (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {run} "$@"\n')
                (programs / name).chmod(0o755)
        return {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
            "HOME": str(self.directory),
            "NAMESRV_ADDR": self.addresses.get("127.0.0.1:9876", ""),
            **self.exported,
        }

    def _end_those_that_stay(self) -> None:
        for running in reversed(self.staying):
            running.interrupt()
        for running in reversed(self.staying):
            running.end()
