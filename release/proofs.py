"""Table of proofs: for each file of a release, how far this machine went with it.

`make wheels` writes out/wheels.json; `make release-check` reads its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from release.pythons import ROOT

RECORD: Final = ROOT / "out" / "wheels.json"
HEADINGS: Final = ("file", "CPython", "built", "installed", "tests run")
WORKFLOW: Final = "by the workflow only"
FAILED: Final = "FAILED"


@dataclass(frozen=True)
class Proof:
    """One file of a release, and what was done with it on this machine.

    - ``system``: a platform's tag, or ``sdist`` or ``any`` (the pure wheel).
    - ``python``: the version of CPython for which it was built, or with which it was tried.
    - ``file``: its name in dist/, or "" if only the workflow builds it.
    - ``is_same``: two builds gave the same bytes.
    - ``functions``: those that ran when it was installed here, compiled or not; "" if it was not.
    - ``tests``: pytest's summary, or "" if they were not run here.
    - ``fault``: the step that failed, or "".
    """

    system: str
    python: str
    file: str = ""
    sha256: str = ""
    is_same: bool = False
    functions: str = ""
    tests: str = ""
    fault: str = ""


def save(proofs: Sequence[Proof], path: Path = RECORD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(proof) for proof in proofs], indent=1) + "\n", "utf-8")


def load(path: Path = RECORD) -> list[Proof]:
    """Return the proofs of the last `make wheels`, for `make release-check`."""
    return [Proof(**fields) for fields in json.loads(path.read_text("utf-8"))]


def faults(proofs: Iterable[Proof]) -> list[str]:
    """Return a sentence for each proof that failed."""
    found = []
    for proof in proofs:
        name = proof.file or f"{proof.system} for CPython {proof.python}"
        if proof.fault:
            found.append(f"{name}: {proof.fault}")
        elif proof.file and not proof.is_same:
            found.append(f"{name}: two builds gave different bytes")
    return found


def rows(proofs: Sequence[Proof]) -> list[tuple[str, ...]]:
    """Return a row for each system, as the page docs/guide/install.md shows them."""
    systems = dict.fromkeys(proof.system for proof in proofs)
    return [_row(system, [one for one in proofs if one.system == system]) for system in systems]


def _row(system: str, proofs: Sequence[Proof]) -> tuple[str, ...]:
    versions = ", ".join(proof.python for proof in proofs)
    if faults(proofs):
        return (f"`{system}`", versions, FAILED, FAILED, FAILED)
    functions = {proof.functions for proof in proofs if proof.functions}
    return (
        f"`{system}`",
        versions,
        _where([proof.is_same for proof in proofs], "here, twice with the same bytes"),
        _where([bool(proof.functions) for proof in proofs], f"here: {', '.join(functions)}"),
        _where([bool(proof.tests) for proof in proofs], "here"),
    )


def _where(here: Sequence[bool], words: str) -> str:
    if all(here):
        return words
    return f"{words} ({sum(here)} of {len(here)})" if any(here) else WORKFLOW


def table(proofs: Sequence[Proof]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows(proofs)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- ", "|---")
