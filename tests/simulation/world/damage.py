"""Damage to the files of a host while its process is down: a flipped bit, a cut file, a missing
file.

Every choice comes from the source that the caller gives. An old copy of the whole disk is
``SimulatedDisk.copy`` and ``put_back``.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.mount import SimulatedFile


def flip_bit(disk: SimulatedDisk, path: Path, rng: random.Random, *, end: int | None = None) -> int:
    """Flip one bit of a file, before ``end`` if it is given; return the position of its byte."""
    content = bytearray(disk.files[path].content)
    at = rng.randrange(min(len(content), len(content) if end is None else end))
    content[at] ^= 1 << rng.randrange(8)
    _write(disk, path, bytes(content))
    return at


def cut_file(disk: SimulatedDisk, path: Path, rng: random.Random, *, end: int | None = None) -> int:
    """Cut a file to a random size, below ``end`` if it is given; return its new size."""
    content = disk.files[path].content
    size = rng.randrange(min(len(content), len(content) if end is None else end))
    _write(disk, path, content[:size])
    return size


def zero_rest(disk: SimulatedDisk, path: Path, at: int) -> None:
    """Overwrite a file with zeros from ``at`` to its end."""
    content = disk.files[path].content
    _write(disk, path, content[:at].ljust(len(content), b"\0"))


def remove_file(disk: SimulatedDisk, path: Path) -> None:
    disk.replace(path, None)


def _write(disk: SimulatedDisk, path: Path, content: bytes) -> None:
    disk.replace(
        path, SimulatedFile(content, synced=True, modified_ms=disk.files[path].modified_ms)
    )
