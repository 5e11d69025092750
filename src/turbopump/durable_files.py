"""Small steps on the disk of a client or a pipeline, each durable when it returns, and files that
lock out other processes. Servers write through ``store/disk.py``."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path


class FileLockedError(Exception):
    """The file is locked by somebody else; the text says by whom, as far as that is known."""


def lock_file(path: Path) -> int:
    """Lock a file, and write into it who has done so. Return its descriptor, which keeps the lock
    until it is closed. Raises FileLockedError, or OSError for a file system without locks."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = f"process {os.getpid()} on {socket.gethostname()}, since {now_text()}"
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
    """Give a file this content, all of it or nothing."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def now_text() -> str:
    """Return the time in UTC, as people read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
