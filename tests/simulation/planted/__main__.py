"""Plant each bug of this directory, one at a time, and look whether the simulation finds it.

    python -m tests.simulation.planted                   # all, a table at the end
    python -m tests.simulation.planted early-confirm     # these only
    python -m tests.simulation.planted --seeds 50 --jobs 2

A bug is a patch of ``src`` here, ``NAME.patch``; its first line says what is wrong. The patch is
applied to a copy of the sources, and seeds of ``failover_runs`` run there until one fails. A patch
that does not apply is an error. The exit status is 1 if a bug was not found, or a patch does not
apply.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
RUNS = "tests.simulation.failover_runs"


@dataclass(frozen=True)
class Search:
    """What came of looking for one bug. ``seed`` is None if it was not found."""

    name: str
    title: str
    seed: int | None
    seconds: float
    sign: str
    """The first thing that was wrong."""

    def row(self) -> str:
        found = "not found" if self.seed is None else f"seed {self.seed}"
        return f"| {self.name} | {self.title} | {found} | {self.seconds:.0f} s | {self.sign} |"


def search(patch: Path, seeds: int) -> Search:
    """Plant one bug, and run seeds until one fails."""
    title = patch.read_text().partition("\n")[0].strip()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        copy_sources(Path(directory))
        applied = subprocess.run(
            ["git", "apply", "--verbose", str(patch)],
            cwd=directory,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(directory).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            return Search(patch.stem, title, None, 0.0, f"does not apply: {applied.stderr[-200:]}")
        ran = subprocess.run(
            [sys.executable, "-m", RUNS, "--seeds", str(seeds), "--first-failure"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": f"{directory}/src{os.pathsep}{directory}"},
            capture_output=True,
            text=True,
            check=False,
        )
    seconds = time.monotonic() - begun
    found = re.search(r"^seed (\d+): .*\n(.*)", ran.stdout, re.MULTILINE)
    if found is None:
        sign = "" if ran.returncode == 0 else ran.stderr[-200:]
        return Search(patch.stem, title, None, seconds, sign)
    sign = found[2].replace("|", "/")[:120]
    return Search(patch.stem, title, int(found[1]), seconds, sign)


def copy_sources(directory: Path) -> None:
    """Copy what a run needs. The rest of the tests is linked."""
    skipped = shutil.ignore_patterns("__pycache__", "*.so", ".git")
    shutil.copytree(ROOT / "src", directory / "src", ignore=skipped)
    (directory / "tests").symlink_to(ROOT / "tests")


def main() -> int:
    """Look for the bugs that the command line names, or for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs to plant; all unless given")
    parser.add_argument("--seeds", type=int, default=200, help="of each bug at most (200)")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time (1)")
    options = parser.parse_args()
    patches = sorted(HERE.glob("*.patch"))
    if options.names:
        patches = [patch for patch in patches if patch.stem in options.names]
    rows: list[Search] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(partial(search, seeds=options.seeds), patches):
            print(row.row(), flush=True)
            rows.append(row)
    missed = [row.name for row in rows if row.seed is None]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} found; missed: {', '.join(missed) or '-'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
