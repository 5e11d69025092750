"""What a disk cannot read of a file, sector by sector.

The rule: a sector is given up only when it has failed a few times; what is given up is zeros, and
named. It must not know what the bytes mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from turbopump.store.disk import Segment

SECTOR: Final = 4096
"""Bytes given up at a time."""
_TRIES: Final = 3


class Unreadable(NamedTuple):
    """Bytes ``start`` to ``end`` of a row of files, in the file ``path``, which the system cannot
    read: ``cause``."""

    start: int
    end: int
    path: Path
    cause: str


def read_round(segment: Segment, at: int, size: int, start: int, found: list[Unreadable]) -> bytes:
    """Bytes of a segment; what cannot be read is zeros, and added to ``found``, as one with what
    lies right before it. ``start`` is the offset of the segment's first byte."""
    try:
        return segment.read_cold(at, size)
    except OSError:
        pass
    parts, end = [], at + size
    while at < end:
        sector_end = min(at - at % SECTOR + SECTOR, end)
        read = _sector(segment, at, sector_end - at)
        if isinstance(read, OSError):
            parts.append(bytes(sector_end - at))
            joined = found and (found[-1].end, found[-1].path) == (start + at, segment.path)
            before = found.pop() if joined else None
            begin, cause = (
                (before.start, before.cause) if before else (start + at, read.strerror or str(read))
            )
            found.append(Unreadable(begin, start + sector_end, segment.path, cause))
        else:
            parts.append(read)
        at = sector_end
    return b"".join(parts)


def _sector(segment: Segment, at: int, size: int) -> bytes | OSError:
    for _ in range(_TRIES):
        try:
            return segment.read_cold(at, size)
        except OSError as error:
            failure = error
    return failure
