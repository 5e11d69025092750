"""`make coverage`: what the tests execute of `store/` and `disk/`, and whether that is enough.

At least 95 % of the branches must be taken, and every line of every `except` body executed: code
that runs only when something fails is the code that nobody has seen run. Only tests of one
behaviour each count: what `tests/crash` and simulations happen to meet does not.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOMS = [ROOT / "src" / "turbopump" / room for room in ("store", "disk")]
SUITES = [
    "tests/unit/store",
    "tests/unit/disk",
    "tests/unit/broker",
    "tests/unit/test_compiled.py",
    "tests/unit/cli/test_store.py",
    "tests/golden",
]
BRANCHES_MIN = 95.0
"""Percent."""


def main(suites: list[str]) -> int:
    """Run the suites and judge; 0 if it is enough."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "COVERAGE_FILE": f"{directory}/data"}
        included = ",".join(f"{room}/*" for room in ROOMS)
        coverage = [sys.executable, "-m", "coverage"]
        run = [*coverage, "run", "--branch", f"--include={included}", "-m", "pytest", "-q", *suites]
        status = subprocess.run(run, cwd=ROOT, env=environment, check=False).returncode
        report = Path(directory, "report.json")
        subprocess.run(
            [*coverage, "json", "-q", "-o", report], cwd=ROOT, env=environment, check=True
        )
        files = json.loads(report.read_text())["files"]
    taken, branches = sum_of(files, "covered_branches"), sum_of(files, "num_branches")
    share = 100 * taken / branches
    print(f"\nstore/ and disk/: {taken} of {branches} branches taken, {share:.1f} %")
    for name, file in sorted(files.items()):
        if file["missing_branches"]:
            missing = (
                f"{line}→{to if to > 0 else 'exit'}" for line, to in file["missing_branches"]
            )
            print(f"  {name}: {' '.join(missing)}")
    unseen = [
        f"{name}:{line}"
        for name, file in sorted(files.items())
        for line in unexecuted_handlers(ROOT / name, file["missing_lines"])
    ]
    absent = sorted(
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in room.rglob("*.py")
        if str(path.relative_to(ROOT)) not in files
    )
    faults = ["the tests fail"] if status else []
    faults += [f"{name}: no test imports it" for name in absent]
    faults += [
        f"{place}: nothing in this `except` body was executed, or not all of it" for place in unseen
    ]
    if share < BRANCHES_MIN:
        faults.append(f"{share:.1f} % of the branches are taken, {BRANCHES_MIN} % are wanted")
    print("\n".join(faults) or "enough: every except body was executed")
    return int(bool(faults))


def sum_of(files: dict[str, Any], figure: str) -> int:
    return sum(file["summary"][figure] for file in files.values())


def unexecuted_handlers(path: Path, missing: Iterable[int]) -> Iterator[int]:
    """The first line of each `except` body of a module that has one of these lines."""
    lines = set(missing)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler) and lines & set(
            range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        ):
            yield node.body[0].lineno


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or SUITES))
