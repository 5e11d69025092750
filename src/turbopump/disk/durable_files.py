"""Small file operations for clients and pipelines: durable writes, and locks between processes.
Servers write through a ``Disk`` instead."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCKED_BYTE: Final = 1 << 30
"""Byte of a lock file that is locked on Windows. It lies after the name of the owner, because a
locked byte cannot be read there."""


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
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(lock)
        holder = f"process {os.getpid()} on {platform.node()}, since {now_text()}"
        os.ftruncate(lock, 0)
        os.write(lock, holder.encode())
    except BlockingIOError:
        os.lseek(lock, 0, os.SEEK_SET)
        holder = os.read(lock, 512).decode(errors="replace").strip()
        os.close(lock)
        raise FileLockedError(holder or "another process") from None
    except OSError:
        os.close(lock)
        raise
    return lock


def _lock(fd: int) -> None:
    """Lock an open file at once. Raises BlockingIOError if another process has locked the file."""
    if sys.platform == "win32":
        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:  # PermissionError; Wine gives no number
            raise BlockingIOError(str(error)) from None
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


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
    """Write the list of files in a directory to the disk, after files were created or renamed.

    Windows opens no directories, and its NTFS keeps a journal of such changes.
    """
    if sys.platform == "win32":
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def now_text() -> str:
    """Return the current time in UTC as text such as ``2025-01-31T23:59:59Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
