"""Locks on files and directories, so that only one broker uses a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from turbopump.disk.disk import FILE_MODE
from turbopump.errors import StoreLockedError

_HELD = (errno.EACCES, errno.EAGAIN)


class FileLock:
    """POSIX record lock on the first byte of a file, as Apache's broker uses it.

    RocketMQ: ``FileChannel.tryLock(0, 1, false)``.
    """

    # POSIX locks do not hold against their own process
    _held_here: set[Path] = set()  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in self._held_here:
            raise StoreLockedError(_locked_text(path))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            self.found = os.pread(self._fd, 64, 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno in _HELD:
                raise StoreLockedError(_locked_text(path)) from None
            raise
        self._held_here.add(self._path)

    def mark(self, data: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        os.fsync(self._fd)

    def release(self) -> None:
        if self._fd >= 0:
            self._held_here.discard(self._path)
            os.close(self._fd)
            self._fd = -1


def _locked_text(path: Path) -> str:
    return (
        f"the store directory {path.parent} is in use by another broker (lock file {path}); "
        "stop that broker or choose another directory"
    )


def lock_directories(paths: Iterable[Path]) -> Callable[[], None]:
    """Lock directories with ``flock``, and return the function that unlocks them.

    The lock needs no file in the directories, and no program of Apache's uses it. Nothing is locked
    on a file system without this lock (NFS). Raises StoreLockedError if another process has locked
    one of the directories.
    """
    held: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:
                continue
            stack.callback(os.close, fd)
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) in held:
                continue  # named twice
            held.add((found.st_dev, found.st_ino))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    raise StoreLockedError(
                        f"the directory {path} is in use by another broker: stop that one, or "
                        "give each its own directories"
                    ) from None
        return stack.pop_all().close
