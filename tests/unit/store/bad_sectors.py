"""A disk that cannot read some sectors of real files, and stores to lose some of their messages
so."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, put
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.store.repair.unreadable_sectors import SECTOR

SEGMENT = 65536
EIO = os.strerror(errno.EIO)


@contextmanager
def bad_sectors(*bad: tuple[Path, int], times: int = 1 << 60) -> Iterator[None]:
    """The disk cannot read these sectors of files; the first so many times. Who looks there through
    a map is dead."""
    sectors = {(path.stat().st_ino, number * SECTOR): times for path, number in bad}

    def read_cold(plain: Plain, segment: RealSegment, at: int, size: int) -> Any:
        inode = segment.path.stat().st_ino
        for (of, start), left in sectors.items():
            if of == inode and at < start + SECTOR and at + size > start and left:
                sectors[of, start] -= 1
                raise OSError(errno.EIO, EIO)
        return plain(segment, at, size)

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> Any:
        inode = segment.path.stat().st_ino
        for (of, start), left in sectors.items():
            assert of != inode or at >= start + SECTOR or at + size <= start or not left, "SIGBUS"
        return plain(segment, at, size)

    with pytest.MonkeyPatch.context() as patched:
        replace(patched, "read_cold", read_cold)
        replace(patched, "read", read)
        yield


def filled(root: Path, *, stopped: bool) -> Directory:
    """Two segments and a half of messages of two queues, each with its number in front; stopped, or
    killed."""
    directory = Directory(root, segment_size=SEGMENT)
    store = directory.open()
    for number in range(150):
        put(store, b"%d " % number + b"x" * 900, queue_id=number % 2)
    if stopped:
        store.close()
        return directory
    twin = directory.copy(root.with_name("killed"))
    store.close()
    return twin


def segment(directory: Directory, number: int) -> Path:
    return sorted(directory.paths.commit_log.iterdir())[number]
