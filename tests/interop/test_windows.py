"""Our clients on Python for Windows, under Wine, against our servers on this system.

Wine is Debian's (`apt-get install wine64 wine`), CPython for Windows comes from Maven Central, and
the packages that Turbopump needs from PyPI. All of it is kept in `.cache/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.client_kinds import KINDS, PROGRAM, check, servers_with_tls
from tests.interop.apache import CACHE, ToolMissingError, fetch_maven
from tests.interop.tools import skipping_without_tools

ROOT = Path(__file__).parents[2]
VERSION = "3.11.3"
CPYTHON = f"org.bytedeco:cpython:{VERSION}-1.5.9:windows-x86_64"
OF_WINDOWS = "colorama"
"""Package that click needs on Windows alone, which pip does not see from here."""


@dataclass(frozen=True)
class WindowsPython:
    """Python for Windows, and the packages that it imports."""

    wine: str
    python: Path
    packages: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.wine, str(self.python), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # it writes in its own character set
            env=self.environment,
            timeout=600,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        paths = windows_path(self.packages), windows_path(ROOT / "src")
        return os.environ | {
            "PYTHONPATH": ";".join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",  # or it asks for more to install
            "WINEPREFIX": str(CACHE.parent / "wine"),
        }


def windows_path(path: Path) -> str:
    """The name of a path under Wine, which has this system as its drive Z."""
    return "Z:" + str(path).replace("/", "\\")


def fetch_python() -> Path:
    """`python.exe`. Raises ToolMissingError without Maven."""
    jars = fetch_maven("windows-python", [CPYTHON])
    folder = jars.parent / "python"
    if not folder.is_dir():
        arriving = folder.with_name("arriving-python")
        (jar,) = jars.glob("cpython-*-windows-x86_64.jar")
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(arriving)
        arriving.rename(folder)
    return min(folder.rglob("python.exe"), key=depth)


def depth(path: Path) -> int:
    """Number of folders above a path: `venv` has another `python.exe`, further down."""
    return len(path.parts)


def fetch_packages() -> Path:
    """The packages that Turbopump needs, for Windows."""
    folder = CACHE / "windows-python" / "packages"
    if not folder.is_dir():
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        command += ["--platform", "win_amd64", "--python-version", VERSION]
        command += ["--only-binary=:all:", *needed, OF_WINDOWS]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=300)
    return folder


@pytest.fixture(scope="module")
def windows() -> Iterator[WindowsPython]:
    with skipping_without_tools():
        wine, server = shutil.which("wine"), shutil.which("wineserver")
        if wine is None or server is None:
            raise ToolMissingError("wine is not installed: apt-get install wine64 wine")
        python = WindowsPython(wine, fetch_python(), fetch_packages())
    yield python
    subprocess.run([server, "--kill"], env=python.environment, check=False, timeout=60)


def test_every_client_works_on_windows(
    windows: WindowsPython, tmp_path: Path, summary: list[str]
) -> None:
    with servers_with_tls(tmp_path) as (name_server, certificate):
        paths = windows_path(PROGRAM), windows_path(certificate), windows_path(tmp_path)
        check(windows.run(paths[0], name_server, *paths[1:]))
    summary.append(f"Python {VERSION} for Windows       {len(KINDS)} kinds of clients and commands")


def test_a_server_on_windows_says_what_it_needs(windows: WindowsPython) -> None:
    for server in ("broker", "namesrv", "dev"):
        done = windows.run("-m", "turbopump", server)
        assert done.returncode == 2
        assert done.stderr.startswith(f"turbopump: turbopump {server} needs Linux or macOS")
        assert len(done.stderr.splitlines()) == 1
