"""`make wheels`: build the sdist and the wheels into dist/, prove them, and print the table.

The exit status is 1 if a proof failed, or if the workflow would build other wheels.
docs/guide/install.md explains the table.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.every_python import VERSIONS

from release.building import (
    BuildError,
    build_compiled,
    build_pure,
    build_sdist,
    commit_time,
    environment,
    run,
    unpack,
)
from release.proofs import Proof, faults, save, table
from release.proving import prove_sdist, prove_wheel
from release.pythons import ROOT, Version, interpreters
from release.targets import HERE, MANYLINUX, WORKFLOW_ONLY
from release.workflow import workflow_faults

DIST: Final = ROOT / "dist"
PAGE: Final = ROOT / "docs" / "guide" / "install.md"
WORKERS: Final = 2
"""Files at a time; a machine has two processors at least."""
SDIST: Final = "sdist"
PURE: Final = "any"


class Release:
    """The files of a release: what is built, on which interpreters, in which directory."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.begun = time.monotonic()
        self.built_at = commit_time()
        self.pythons = interpreters()
        self.sdist = build_sdist(work / "sdist", self.built_at)
        self.source = unpack(self.sdist, work / "source")
        self.environments: dict[Version, Path] = {}
        for version, python in self.pythons.items():
            self.environments[version] = environment(version, python)
            self.say(f"CPython {_dotted(version)}: {python}")

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self.begun:5.0f} s  {words}", flush=True)

    def unproved(self) -> Iterator[Proof]:
        """Yield each file of a release, without any proof."""
        yield Proof(SDIST, _dotted(min(self.pythons)))
        yield Proof(PURE, _dotted(min(self.pythons)))
        for system in (*HERE, *WORKFLOW_ONLY):
            for version in VERSIONS:
                yield Proof(system, _dotted(version))

    def prove(self, proof: Proof) -> Proof:
        """Build a file twice, and install and test it if it works here."""
        if proof.system in WORKFLOW_ONLY or _version(proof.python) not in self.pythons:
            return proof
        try:
            proof = self._built(proof)
            if proof.system not in (SDIST, PURE, f"{MANYLINUX}_{platform.machine()}"):
                return proof
            prove = prove_sdist if proof.system == SDIST else prove_wheel
            python = self.pythons[_version(proof.python)]
            functions, tests = prove(DIST / proof.file, python, self.source)
            self.say(f"tested {proof.file}: {functions}, {tests}")
            return replace(proof, functions=functions, tests=tests)
        except BuildError as error:
            self.say(f"FAILED {proof.system}, CPython {proof.python}: {error}")
            return replace(proof, fault=str(error))

    def _built(self, proof: Proof) -> Proof:
        first, second = (self._build(proof, self.work / turn) for turn in ("first", "second"))
        data = first.read_bytes()
        shutil.copy(first, DIST)
        digest = hashlib.sha256(data).hexdigest()
        self.say(f"built {first.name} sha256={digest}")
        is_same = data == second.read_bytes()
        return replace(proof, file=first.name, sha256=digest, is_same=is_same)

    def _build(self, proof: Proof, turn: Path) -> Path:
        directory = turn / f"{proof.system}-{proof.python}"
        if proof.system == SDIST:
            return build_sdist(directory, self.built_at)
        version = _version(proof.python)
        python = self.environments[version]
        if proof.system == PURE:
            return build_pure(self.sdist, python, directory, self.built_at)
        target = HERE[proof.system]
        return build_compiled(
            self.sdist, python, version, target, directory, self.built_at, turn / "zig"
        )


def _dotted(version: Version) -> str:
    return "{}.{}".format(*version)


def _version(dotted: str) -> Version:
    major, minor = map(int, dotted.split("."))
    return major, minor


def main() -> int:
    changed = run(["git", "status", "--porcelain"], cwd=ROOT).splitlines()
    if changed:
        print(f"not in the files: {len(changed)} changes that are not committed", flush=True)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with TemporaryDirectory() as work, ThreadPoolExecutor(WORKERS) as workers:
        try:
            release = Release(Path(work))
        except BuildError as error:
            print(error)
            return 1
        proofs = list(workers.map(release.prove, release.unproved()))
    save(proofs)
    found = [*faults(proofs), *workflow_faults()]
    shown = table(proofs)
    print(f"\n{shown}\n", flush=True)
    if shown not in PAGE.read_text("utf-8"):
        print("docs/guide/install.md shows another table: other proofs, or other interpreters")
    print("\n".join(found) or f"every proof passed: {DIST}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
