"""`make test`: the whole suite on the Python that runs this, and all of it but Spark's on every other Python that is present.

Others are looked for on the PATH and among pyenv's versions; each gets a small environment of its own (`.venv-3.12`, …), made once.
Any failure fails the run; a Python that is not there is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
PORTABLE = ["tests/unit", "tests/golden", "tests/simulation"]
EVERYTHING = [*PORTABLE, "tests/spark", "tests/crash"]


def main() -> int:
    """Run the suites; the exit status of the first that failed, else 0."""
    here = sys.version_info[:2]
    runs = []
    for version in VERSIONS:
        if version == here:
            continue
        python = find(version)
        if python is None:
            print(f"-- Python {version[0]}.{version[1]} is not present: not tested with it", flush=True)
        else:
            runs.append((version, environment(version, python), PORTABLE))
    runs.append((here, Path(sys.executable), EVERYTHING))
    status = 0
    for version, python, suites in runs:
        print(f"\n== Python {version[0]}.{version[1]}: {' '.join(suites)}", flush=True)
        begun = time.monotonic()
        done = subprocess.run([python, "-m", "pytest", *suites, "-q", *sys.argv[1:]], cwd=ROOT, check=False)
        print(f"== Python {version[0]}.{version[1]}: {time.monotonic() - begun:.0f} s, status {done.returncode}", flush=True)
        status = status or done.returncode
    return status


def find(version: tuple[int, int]) -> str | None:
    """An interpreter of this version that really runs (a pyenv shim may not)."""
    name = f"python{version[0]}.{version[1]}"
    places = [shutil.which(name)]
    pyenv = os.environ.get("PYENV_ROOT")
    if pyenv:
        places += sorted(map(str, Path(pyenv, "versions").glob(f"{version[0]}.{version[1]}.*/bin/{name}")))
    for place in places:
        if place and _runs(place, version):
            return place
    return None


def _runs(python: str, version: tuple[int, int]) -> bool:
    wanted = f"import sys, venv; sys.exit(sys.version_info[:2] != {version!r})"
    return subprocess.run([python, "-c", wanted], capture_output=True, check=False).returncode == 0


def environment(version: tuple[int, int], python: str) -> Path:
    """The environment for a further Python: Turbopump without extras, pytest and hypothesis."""
    home = ROOT / f".venv-{version[0]}.{version[1]}"
    inside = home / "bin" / "python"
    ready = home / ".ready"
    pins = ROOT / "constraints.txt"
    if not ready.exists() or ready.stat().st_mtime < max(pins.stat().st_mtime, (ROOT / "pyproject.toml").stat().st_mtime):
        print(f"-- making {home.name} with {python}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        pip = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", pins]
        subprocess.run([*pip, "-e", ROOT, "pytest", "hypothesis"], check=True)
        ready.touch()
    return inside


if __name__ == "__main__":
    sys.exit(main())
