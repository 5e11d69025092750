"""The disk of tools that look at a store and must not change it: every file is opened for reading
only.

The rule: no call here can create, change, lock or remove anything, in the file system or in another
process. Files are read with ``pread``, not mapped: a bad sector is then an OSError that names the
byte, where a map would end the process by SIGBUS, and a store of any size needs no more memory than
the pieces asked for. It must not know what the files mean.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

_LINUX_FLOCK: Final = struct.Struct("hhqqi4x")  # type, whence, start, length, pid
_BSD_FLOCK: Final = struct.Struct("qqihh")  # start, length, pid, type, whence


class LockState(NamedTuple):
    """Whether a lock is held, and by which process as far as the system tells."""

    held: bool
    pid: int | None = None


class ReadOnlyFile:
    """An open file, read in pieces from anywhere. ``size`` is what it was at opening."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, at: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``at``, fewer only at the end of the file. Raises OSError, with
        the path and the byte."""
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
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def data_from(self, at: int) -> int | None:
        """The first offset at or after ``at`` where bytes may not be zero; None: the rest is a
        hole."""
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
    """The first offset at or after ``at`` of a file of ``size`` bytes where bytes may not be zero;
    None: the rest is a hole."""
    if at >= size:
        return None
    if not hasattr(os, "SEEK_DATA"):
        return at
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        # else: a file system that cannot tell
        return None if error.errno == errno.ENXIO else at


def data_until(fd: int, at: int, size: int) -> int:
    """The first offset at or after ``at`` of a file of ``size`` bytes where a hole begins; its size
    if none does, or the file system cannot tell."""
    if at >= size or not hasattr(os, "SEEK_HOLE"):
        return size
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), size)
    except OSError:
        return size


class ReadOnlyDisk:
    """The real file system, to look at. Methods raise OSError as the system does."""

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist or is not a directory."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def file_size(self, path: Path | str) -> int | None:
        """Bytes, or None if there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def open_file(self, path: Path) -> ReadOnlyFile:
        return ReadOnlyFile(path)

    def read_file(self, path: Path) -> bytes | None:
        """The whole file, or None if there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def lock_state(self, path: Path) -> LockState:
        """Whether another process holds the lock that a broker takes on ``path``. Asks, and takes
        nothing.

        Must not be called by a process that itself holds the lock: closing any descriptor of the
        file would release it.
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
        return LockState(kind != fcntl.F_UNLCK, pid if pid > 0 and kind != fcntl.F_UNLCK else None)
