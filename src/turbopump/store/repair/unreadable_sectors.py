"""Reads of segments with unreadable sectors.

A sector is given up only after several failed reads. The sector then counts as zeros, and is
reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.disk import Segment

SECTOR: Final = 4096
"""Number of bytes given up at a time."""
_TRIES: Final = 3


class UnreadableRange(NamedTuple):
    """Unreadable range of bytes, in the log or in a queue file.

    - ``start``, ``end``: offsets in the log, or positions in the queue file.
    - ``path``: the file that contains the bytes.
    - ``cause``: the error of the system.
    """

    start: int
    end: int
    path: Path
    cause: str


def read_with_zeros(
    segment: Segment, at: int, size: int, start: int, found: list[UnreadableRange]
) -> bytes:
    """Return bytes of a segment, with zeros in place of unreadable parts.

    The unreadable parts are added to ``found``, where adjacent ones are merged. ``start`` is the
    offset of the first byte of the segment.
    """
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
            bad = UnreadableRange(
                start + at, start + sector_end, segment.path, read.strerror or str(read)
            )
            if found and (found[-1].end, found[-1].path) == (bad.start, bad.path):
                bad = found.pop()._replace(end=bad.end)
            found.append(bad)
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
