"""The file of a journal, and the lock beside it: lines are added at its end and synced. It must not
know what the lines say.

``GROUP.journal`` and ``GROUP.lock`` in one directory. The system releases the lock when its holder
ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from turbopump.errors import ResendError


class JournalFile:
    """Open for one writer. Raises ResendError if another process, or another part of this one, has
    it open; OSError as the system does."""

    def __init__(self, directory: Path, group: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = journal_path(directory, group)
        lock_path = self.path.with_name(f"{_name_of(group)}.lock")
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 64, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise ResendError(
                f"somebody else on this machine is resending the dead letters of group {group!r}"
                f"{f', process {holder}' if holder else ''} (lock file {lock_path}); wait until "
                "that has ended"
            ) from None
        except OSError:
            os.close(self._lock)
            raise
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        try:
            self._file = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            _sync_directory(directory)
        except OSError:
            os.close(self._lock)
            raise

    def read(self) -> bytes:
        """All of it."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            return file.read()

    def truncate(self, size: int) -> None:
        """Cut off what is behind ``size`` bytes."""
        os.ftruncate(self._file, size)

    def append(self, data: bytes, *, sync: bool) -> None:
        """Add ``data``; with ``sync`` it is on the disk on return. May block."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)
        os.close(self._lock)


def journal_path(directory: Path, group: str) -> Path:
    """Where a group's journal is."""
    return directory / f"{_name_of(group)}.journal"


def _name_of(group: str) -> str:
    return group.replace("/", "_")


def read_unlocked(directory: Path, group: str) -> bytes:
    """What a journal says now, whoever writes it; empty if there is none."""
    try:
        return journal_path(directory, group).read_bytes()
    except FileNotFoundError:
        return b""


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
