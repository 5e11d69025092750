"""Checks of the workflow that publishes a release, as far as a machine without its forge can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.every_python import VERSIONS

from release.pythons import ROOT

SYSTEMS: Final = {
    "linux": (("manylinux", "musllinux"), ("x86_64", "aarch64")),
    "macos": (("macosx",), ("x86_64", "arm64")),
}
"""Families of systems, and processors, for which cibuildwheel has to build, by its platforms."""


def workflow_faults() -> Iterator[str]:
    """Yield what is wrong with the wheels that cibuildwheel would build, and with the workflows."""
    python = Path(sys.executable)
    for platform, (_, machines) in SYSTEMS.items():
        asked = ["--print-build-identifiers", "--platform", platform, "--archs", ",".join(machines)]
        done = _run(python, "-m", "cibuildwheel", *asked)
        if set(done.stdout.split()) != expected_identifiers(platform):
            yield f"cibuildwheel would build for {platform}: {done.stdout or done.stderr}"
    done = _run(python.with_name("zizmor"), "--offline", "--no-progress", ".github/workflows")
    if done.returncode:
        yield f"zizmor finds in the workflows: {done.stdout or done.stderr}"


def expected_identifiers(platform: str) -> set[str]:
    """Return cibuildwheel's names of the wheels that it has to build on a platform."""
    families, machines = SYSTEMS[platform]
    return {
        f"cp{major}{minor}-{family}_{machine}"
        for major, minor in VERSIONS
        for family in families
        for machine in machines
    }


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True)
