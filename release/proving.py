"""Proof that a wheel works where there is nothing but CPython: it is installed and tested there.

The environment is new and empty, and its PATH has no compiler. The dependencies come as wheels. The
tests are those that cibuildwheel runs. They lie in a folder without `src`, so they can only import
what is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZipFile

from release.building import CONSTRAINTS, BuildError, install, run
from release.pythons import ROOT

PINS: Final = ROOT / "constraints.txt"
PACKAGES: Final = ("turbopump/", "pyspark_rocketmq/", "pyspark_rocketmq_commitlog/")
SOURCES: Final = (".pyx", ".pxi", ".c", ".md")
COMPILERS: Final = ("cc", "c99", "gcc", "clang", "tcc", "zig", "cython")
LOOK: Final = """
import pathlib, shutil, sys
import turbopump
from turbopump.compiled import KIND
inside = pathlib.Path(turbopump.__file__).is_relative_to(sys.prefix)
print(KIND if inside else turbopump.__file__)
print(*filter(None, map(shutil.which, sys.argv[1:])), sep="\\n", end="")
"""
"""Program that prints which functions run, or where another package than the installed one is; then
each compiler that it can reach."""
COMPILED: Final = "compiled"
PLAIN: Final = "plain Python"


def contents_fault(names: Iterable[str], is_compiled: bool) -> str | None:
    """Return what is wrong with the files of a wheel, or None."""
    modules = [name for name in names if name.endswith(".so")]
    if is_compiled != bool(modules):
        return f"it has the compiled modules {modules}"
    for name in names:
        metadata = re.match(r"turbopump-[\d.]+\.dist-info/", name)
        if not (metadata or name.startswith(PACKAGES)) or name.endswith(SOURCES):
            return f"{name} is not for users"
    return None


def prove_wheel(wheel: Path, python: Path, source: Path) -> tuple[str, str]:
    """Install a wheel without a compiler and run the tests of `source`.

    Returns whether compiled functions ran, and pytest's summary. Raises BuildError if anything is
    not as it should be.
    """
    is_compiled = not wheel.name.endswith("-none-any.whl")
    with ZipFile(wheel) as opened:
        fault = contents_fault(opened.namelist(), is_compiled)
    if fault:
        raise BuildError(f"{wheel.name}: {fault}")
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        inside = _environment(place, python)
        bare = os.environ | {"PATH": str(inside.parent)}
        install(inside, PINS, "--only-binary=:all:", wheel, env=bare)
        functions = COMPILED if is_compiled else PLAIN
        _expect(functions, run([inside, "-c", LOOK, *COMPILERS], env=bare, cwd=place))
        return functions, _test(inside, bare, source, place)


def prove_sdist(sdist: Path, python: Path, source: Path) -> tuple[str, str]:
    """Install an sdist, with the machine's compiler if it has one, and run its tests.

    Returns and raises as `prove_wheel`.
    """
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        inside = _environment(place, python)
        install(inside, PINS, "--build-constraint", CONSTRAINTS, sdist)
        functions = COMPILED if shutil.which("cc") else PLAIN
        _expect(functions, run([inside, "-c", LOOK], cwd=place))
        return functions, _test(inside, dict(os.environ), source, place)


def _environment(place: Path, python: Path) -> Path:
    run([python, "-m", "venv", "--without-pip", place / "venv"])
    return place / "venv" / "bin" / "python"


def _expect(functions: str, printed: str) -> None:
    kind, *compilers = printed.splitlines()
    if not kind.startswith(functions):
        raise BuildError(f"these functions run: {kind}, not {functions}")
    if compilers:
        raise BuildError(f"the environment has compilers: {', '.join(compilers)}")


def _test(inside: Path, variables: dict[str, str], source: Path, place: Path) -> str:
    install(inside, PINS, "--only-binary=:all:", "pytest", "hypothesis", env=variables)
    shutil.copytree(source / "tests", place / "tests")
    shutil.copy(source / "pyproject.toml", place)
    pyproject = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))
    _, *pytest = shlex.split(pyproject["tool"]["cibuildwheel"]["test-command"])
    return run([inside, *pytest], env=variables, cwd=place).strip().splitlines()[-1]
