"""Runs a page of docs/guide that uses Spark, and holds what happens against what the page shows.

``tests/unit/guide_page.py`` starts a process for each command; here a page runs in this process and
in the session that is there, for a JVM takes seconds to start. What of a page is run:

- A Python block whose first line is ``# name.py`` is a file of that name. In a ``console`` block
  ``$ python name.py`` runs it, ``$ turbopump …`` a command, and the lines below are what it must
  print on stdout, as on other pages.
- A page without such files is a notebook. Its Python blocks are cells, which run in order and see
  each other's variables. A ``text`` block right behind a cell is what it must print.

``127.0.0.1:9876`` is a broker of the page's own, whose store is ``/tmp/store``; ``/tmp/`` is a
directory of the page's own. The session goes on where a page ends it.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.stand_ins import does_nothing
from tests.unit.guide_page import GUIDE, ROOT, Command

from turbopump.cli import main
from turbopump.testing import BrokerThread

BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w-]+\.py)\n")


@dataclass
class SparkPage:
    """A page, and the directory that it has for ``/tmp``."""

    name: str
    directory: Path

    def try_it(self) -> int:
        """Run all of it; returns how many outputs were compared. Raises AssertionError with what
        was shown and what came."""
        with (
            BrokerThread(directory=self.directory / "store", broker_name="broker-dev") as broker,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("NAMESRV_ADDR", broker.namesrv)
            patch.setattr("turbopump.spark.end_session", does_nothing, raising=False)
            patch.syspath_prepend(ROOT / "examples")
            real = {"127.0.0.1:9876": broker.namesrv, "/tmp/": f"{self.directory}/"}
            return Trial(real).blocks((GUIDE / self.name).read_text("utf-8"))


class Trial:
    """The run of a page. ``real``: what stands for what the page shows."""

    def __init__(self, real: dict[str, str]) -> None:
        self._real = real
        self._files: dict[str, str] = {}
        self._compared = 0

    def blocks(self, text: str) -> int:
        """Run the blocks of a page; how many outputs were compared."""
        is_notebook = not any(FILE.match(block) for _, block in BLOCK.findall(text))
        variables = new_module()
        printed, cell, cell_end = "", "", -1
        for found in BLOCK.finditer(text):
            kind, block = found.groups()
            if kind == "python" and is_notebook:
                printed = self._printed_by(partial(run_python, self._made_real(block), variables))
                cell, cell_end = block, found.end()
            elif kind == "python" and (name := FILE.match(block)):
                self._files[name[1]] = self._made_real(block)
            elif kind == "console":
                for command in Command.all_of(block):
                    self._run(command)
            elif kind == "text" and found.start() == cell_end + 1:
                self._compare(Command(cell, block.rstrip("\n").split("\n")), printed)
        return self._compared

    def _run(self, command: Command) -> None:
        text = self._made_real(command.text).replace("\\\n", " ")
        program, *arguments = shlex.split(text)
        codes = [0]
        if program == "python":
            printed = self._printed_by(partial(run_python, self._files[arguments[0]], new_module()))
        else:
            assert program == "turbopump", f"nobody runs {command.text!r}"
            printed = self._printed_by(lambda: codes.append(main(arguments)))
        assert codes[-1] == command.exit_code, f"$ {command.text}\n{printed}({codes[-1]})"
        self._compare(command, printed)

    def _compare(self, command: Command, printed: str) -> None:
        assert command.expected.fullmatch(printed), f"{command.text}\n{printed}"
        self._compared += 1

    def _printed_by(self, act: Callable[[], object]) -> str:
        """Return the output of a call, with the page's own addresses and paths."""
        printed = io.BytesIO()  # commands write their JSON as bytes
        with redirect_stdout(io.TextIOWrapper(printed, "utf-8", write_through=True)) as out:
            act()
        out.flush()
        text = printed.getvalue().decode()
        for shown, real in self._real.items():
            text = text.replace(real, shown)
        return text

    def _made_real(self, text: str) -> str:
        for shown, real in self._real.items():
            text = text.replace(shown, real)
        return text


def new_module() -> dict[str, Any]:
    """The variables of a program that has just begun."""
    return {"__name__": "__main__"}


def run_python(text: str, variables: dict[str, Any]) -> None:
    exec(compile(text, "a page of the guide", "exec"), variables)
