"""Systems that have a wheel of their own, and who builds it: `make wheels`, or the workflow alone.

The workflow builds every wheel with cibuildwheel (`tool.cibuildwheel` in pyproject.toml). This
machine builds those for Linux with zig, which has the headers and libraries of each system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from release.pythons import Version


@dataclass(frozen=True)
class Target:
    """System for which zig compiles here.

    - ``platform``: its tag in the name of a wheel.
    - ``zig``: the name that zig gives it.
    - ``machine``: the processor, as in ``uname -m``.
    - ``libc``: the C library, as in the suffix of a module's file.
    """

    platform: str
    zig: str
    machine: str
    libc: str

    def suffix(self, version: Version) -> str:
        """Return the suffix that CPython gives to the file of a module on this system."""
        return ".cpython-{}{}-{}-linux-{}.so".format(*version, self.machine, self.libc)


MANYLINUX: Final = "manylinux_2_17"
"""glibc 2.17, of 2012: CentOS 7, Debian 8, Ubuntu 14.04 and all that came later."""
MUSLLINUX: Final = "musllinux_1_2"
"""musl 1.2, of 2020: Alpine 3.13 and later."""
HERE: Final = {
    target.platform: target
    for target in (
        Target(f"{MANYLINUX}_x86_64", "x86_64-linux-gnu.2.17", "x86_64", "gnu"),
        Target(f"{MANYLINUX}_aarch64", "aarch64-linux-gnu.2.17", "aarch64", "gnu"),
        Target(f"{MUSLLINUX}_x86_64", "x86_64-linux-musl", "x86_64", "musl"),
        Target(f"{MUSLLINUX}_aarch64", "aarch64-linux-musl", "aarch64", "musl"),
    )
}
WORKFLOW_ONLY: Final = ("macosx_10_13_x86_64", "macosx_11_0_arm64")
"""Systems whose wheels need a Mac."""
