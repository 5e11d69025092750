"""What tests leave open on the real disk, let go at their end.

Many tests rightly leave a store open: they copy its directory as a kill would leave it, and nobody
stops what was killed. The descriptors of its files, its lock and its directories would stay until
the last test. The rule: nothing is synced, written or marked as stopped; what is closed already
stays so.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from turbopump.disk import system_disk
from turbopump.disk.locks import FileLock
from turbopump.disk.mapped_segments import FileSystems, MappedSegment


class LeftOpen:
    """Everything of the store's disk that holds a descriptor, as it is made."""

    def __init__(self) -> None:
        self._segments: list[MappedSegment] = []
        self._let_go: list[Callable[[], None]] = []
        self._map, self._lock, self._lock_directories, self._watch = (
            MappedSegment.__init__,
            FileLock.__init__,
            system_disk.lock_directories,
            FileSystems.__init__,
        )

    def map(self, segment: MappedSegment, path: Path, fd: int, size: int) -> None:
        self._map(segment, path, fd, size)
        self._segments.append(segment)

    def lock(self, lock: FileLock, path: Path) -> None:
        self._lock(lock, path)
        self._let_go.append(lock.release)

    def watch(self, file_systems: FileSystems) -> None:
        self._watch(file_systems)
        self._let_go.append(file_systems.close)

    def lock_directories(self, *arguments: Any) -> Callable[[], None]:
        release = self._lock_directories(*arguments)
        self._let_go.append(release)
        return release

    def release(self) -> None:
        for segment in self._segments:
            segment.close()
            if segment.fd >= 0:  # of a read or a sync that nobody will end
                os.close(segment.fd)
                segment.fd = -1
        for let_go in self._let_go:
            let_go()


@contextmanager
def letting_go() -> Iterator[None]:
    """Every file, lock and directory that the store opens within the block is let go at its end, as
    if its process were killed."""
    found = LeftOpen()
    with (
        mock.patch.object(MappedSegment, "__init__", lambda *given: found.map(*given)),
        mock.patch.object(FileLock, "__init__", lambda *given: found.lock(*given)),
        mock.patch.object(system_disk, "lock_directories", found.lock_directories),
        mock.patch.object(FileSystems, "__init__", lambda *given: found.watch(*given)),
    ):
        yield
    found.release()
