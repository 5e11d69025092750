"""Disk for tools that read a store without changing it: every file is opened for reading only.

No call here can create, change, lock or remove anything, in the file system or in another process.
Files are read with ``pread``, not mapped. So a bad sector is an OSError with the offset; in a map
it would end the process by SIGBUS. A store of any size needs only the memory of the requested
pieces. The meaning of files is unknown here.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from turbopump.disk.whole_files import WholeFileReader

_LINUX_FLOCK: Final = struct.Struct("hhqqi4x")  # type, whence, start, length, pid
_BSD_FLOCK: Final = struct.Struct("qqihh")  # start, length, pid, type, whence


class LockState(NamedTuple):
    """State of a lock on a store.

    - ``held``: True if a process has the lock.
    - ``pid``: the id of that process, if the system reports it.
    """

    held: bool
    pid: int | None = None


class ReadOnlyFile:
    """File that is open for reading in pieces.

    ``size`` is the size of the file when it was opened.
    """

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, at: int, size: int) -> bytes:
        """Return up to ``size`` bytes of the file, from byte ``at`` on.

        Fewer bytes are returned only at the end of the file. Raises OSError with the path and the
        position.
        """
        parts = []
        while size > 0:
            try:
                part = os.pread(self._fd, size, at)
            except OSError as error:
                raise OSError(
                    error.errno, f"{error.strerror} at byte {at}", str(self.path)
                ) from None
            if not part:
                break
            parts.append(part)
            at += len(part)
            size -= len(part)
        return b"".join(parts)  # a single part itself, without a copy

    def data_from(self, at: int) -> int | None:
        """Return the first offset, at or after ``at``, whose byte may not be zero.

        Return None if the rest of the file is a hole.
        """
        return data_from(self._fd, at, self.size)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> ReadOnlyFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def data_from(fd: int, at: int, size: int) -> int | None:
    """Return the first offset of a file, at or after ``at``, whose byte may not be zero.

    ``size`` is the size of the file. Return None if the rest of the file is a hole.
    """
    if at >= size:
        return None
    if not hasattr(os, "SEEK_DATA"):
        return at
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return at  # a file system that cannot tell


def data_until(fd: int, at: int, size: int) -> int:
    """Return the start of the first hole of a file at or after ``at``.

    ``size`` is the size of the file. Return the size if there is no hole, or if the file system
    does not report holes.
    """
    if at >= size or not hasattr(os, "SEEK_HOLE"):
        return size
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), size)
    except OSError:
        return size


class ReadOnlyDisk(WholeFileReader):
    """Read-only access to the real file system.

    Methods raise OSError as the system does.
    """

    def open_file(self, path: Path) -> ReadOnlyFile:
        return ReadOnlyFile(path)

    def lock_state(self, path: Path) -> LockState:
        """Return the state of a broker's lock on a file, without locking anything.

        A process that has the lock itself must not call this method: closing any descriptor of the
        file would release the lock.
        """
        import fcntl

        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return LockState(False)
        try:
            linux = sys.platform.startswith("linux")
            question = (
                _LINUX_FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0)
                if linux
                else _BSD_FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, 0)
            )
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, question)
            if linux:
                kind, _, _, _, pid = _LINUX_FLOCK.unpack(answer)
            else:
                _, _, pid, kind, _ = _BSD_FLOCK.unpack(answer)
        finally:
            os.close(fd)
        if kind == fcntl.F_UNLCK:
            return LockState(False)
        return LockState(True, pid if pid > 0 else None)
