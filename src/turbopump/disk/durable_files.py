"""Small file operations for clients and pipelines: durable writes, and locks between processes.
Servers write through a ``Disk`` instead."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


class FileLockedError(Exception):
    """Raised when another process has locked the file.

    The text names that process, if known.
    """


def lock_file(path: Path) -> int:
    """Lock a file against other processes, and return the descriptor that keeps the lock.

    Closing the descriptor releases the lock. The file then contains the name of the owner. Raise
    FileLockedError if another process has locked the file, or OSError on a file system without
    locks.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = f"process {os.getpid()} on {os.uname().nodename}, since {now_text()}"
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 512, 0).decode(errors="replace").strip()
        os.close(lock)
        raise FileLockedError(holder or "another process") from None
    except OSError:
        os.close(lock)
        raise
    return lock


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file, so that a crash leaves either the old or the new content."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Write the list of files in a directory to the disk, after files were created or renamed."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def now_text() -> str:
    """Return the current time in UTC as text such as ``2025-01-31T23:59:59Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
