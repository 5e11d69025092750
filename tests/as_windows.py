"""Runs a program with a Python that lacks what Windows' Python lacks: `python tests/as_windows.py
PROGRAM ARGUMENTS`. On Windows itself, it would run the program as it is.

- Modules that Windows lacks cannot be imported, and the names that it lacks are gone from `os`,
  `signal` and `socket`. The stubs of mypy (typeshed) say which these are.
- The event loop is one without `add_reader` and `add_signal_handler`, as that of Windows.
- `sys.platform` is `win32`. The locks of `msvcrt` are those of this system.

What the standard library and third parties need at import is imported before. Only Turbopump and
the program meet these limits: `wine` with a Python for Windows shows the rest
(`tests/interop/test_windows.py`).
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import logging.handlers
import os
import random
import runpy
import select
import signal
import socket
import sqlite3
import ssl
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

THIRD_PARTIES = ("click", "click.testing", "isal.isal_zlib", "lz4.frame", "msgspec", "zstandard")
PATCHED = (os, signal, socket)
LOOKED_AT = (logging.handlers, random, select, sqlite3, ssl, tempfile)
"""Modules that are imported before the names are gone."""


def typeshed() -> Path:
    """The stubs of the standard library that mypy brings."""
    import mypy

    assert mypy.__file__ is not None
    return Path(mypy.__file__).parent / "typeshed" / "stdlib"


def names_in(stub: Path, platform: str, *, imported: bool = True) -> set[str]:
    """The names that a module has on a platform, by its stub."""
    of_platform = SimpleNamespace(platform=platform, version_info=sys.version_info)
    return set(_names(ast.parse(stub.read_text()).body, of_platform, imported=imported))


def _names(body: list[ast.stmt], of_platform: SimpleNamespace, *, imported: bool) -> Iterator[str]:
    for each in body:
        if isinstance(each, ast.If):
            holds = eval(ast.unparse(each.test), {"sys": of_platform})
            yield from _names(each.body if holds else each.orelse, of_platform, imported=imported)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in each.names if imported)
        elif isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id


def missing_modules(stubs: Path) -> set[str]:
    """Modules of the standard library that have no public name of their own on Windows."""
    return {
        stub.stem
        for stub in stubs.glob("*.pyi")
        if any(public(names_in(stub, "linux", imported=False)))
        and not any(public(names_in(stub, "win32", imported=False)))
    }


def public(names: set[str]) -> Iterator[str]:
    return (name for name in names if not name.startswith("_"))


def missing_names(stubs: Path, module: ModuleType) -> set[str]:
    """Names of a module that Windows lacks."""
    name = module.__name__
    stub = stubs / name / "__init__.pyi"
    if not stub.exists():
        stub = stubs / f"{name}.pyi"
    return names_in(stub, "linux") - names_in(stub, "win32")


def take_away() -> None:
    """Take away all that Windows lacks."""
    import fcntl

    for name in THIRD_PARTIES:
        importlib.import_module(name)
    stubs = typeshed()
    socketpair = partial(socket.socketpair, socket.AF_UNIX)  # loops need one, of any family
    for module in PATCHED:
        for name in missing_names(stubs, module) & set(vars(module)):
            delattr(module, name)
    for name in (*missing_modules(stubs), "uvloop"):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = locks_of(fcntl)
    limit_loops()
    socket.socketpair = socketpair
    sys.platform = "win32"


def locks_of(fcntl: Any) -> ModuleType:
    """`msvcrt`, whose locks are made by `fcntl`. They keep out the same process too."""
    msvcrt = ModuleType("msvcrt")

    def locking(fd: int, mode: int, size: int) -> None:
        assert (mode, size) == (2, 1)
        assert os.lseek(fd, 0, os.SEEK_CUR) > 1 << 20, "a locked byte cannot be read on Windows"
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    vars(msvcrt).update(locking=locking, LK_NBLCK=2)
    return msvcrt


def limit_loops() -> None:
    """Make the loop of asyncio as that of Windows, which wakes for signals without being asked."""
    kind = asyncio.SelectorEventLoop
    run_forever, add_reader, remove_reader = kind.run_forever, kind.add_reader, kind.remove_reader

    def run_woken_by_signals(self: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            run_forever(self)
            return
        for_loop, for_signals = socket.socketpair()
        with for_loop, for_signals:
            for_signals.setblocking(False)
            add_reader(self, for_loop, for_loop.recv, 1024)
            before = signal.set_wakeup_fd(for_signals.fileno())
            try:
                run_forever(self)
            finally:
                signal.set_wakeup_fd(before)
                remove_reader(self, for_loop)

    def refuse(*_: object) -> None:
        raise NotImplementedError

    limited: dict[str, Any] = {"run_forever": run_woken_by_signals}
    for what in ("reader", "writer", "signal_handler"):
        limited[f"add_{what}"] = refuse
    for name, value in limited.items():
        setattr(kind, name, value)


if __name__ == "__main__":
    if sys.platform != "win32":
        take_away()
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
