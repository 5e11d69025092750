"""Mapped files of the system's disk: whole files for the log, and sparse files for the thousands of
queues. ``Segment`` and ``SparseSegment`` in ``disk.py`` describe the methods."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from turbopump.disk.maps import map_file, populate_write, sync_file_system, sync_map
from turbopump.disk.read_only_disk import data_from, data_until

T = TypeVar("T")


class MappedSegment:
    """Segment whose file on the real file system is always mapped."""

    __slots__ = ("_closing", "_readers", "buffer", "fd", "path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self.fd = fd
        self._readers = 0
        self._closing = False
        self.buffer = mmap.mmap(fd, size)

    def read(self, at: int, size: int) -> bytes:
        return self.buffer[at : at + size]

    def read_cached(self, at: int, size: int) -> bytes | None:
        data = bytearray(size)
        return bytes(data) if self.read_cached_into(data, at) else None

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        try:
            return os.preadv(self.fd, [buffer], at, os.RWF_NOWAIT) == len(buffer)
        except (OSError, AttributeError):
            # EAGAIN, or a system or file system that cannot tell; ``read_cold`` reports faults of
            # the file
            return False

    def evict(self, at: int, size: int) -> None:
        # closed meanwhile; macOS has no such call
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(self.fd, at, size, os.POSIX_FADV_DONTNEED)

    def read_ahead(self, *, enabled: bool) -> None:
        advice = "POSIX_FADV_NORMAL" if enabled else "POSIX_FADV_RANDOM"
        # closed meanwhile; macOS has no such call
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(self.fd, 0, 0, getattr(os, advice))

    def read_cold(self, at: int, size: int) -> bytes:
        return _pread(self.fd, at, size, self.path)

    def data_from(self, at: int) -> int | None:
        return data_from(self.fd, at, self.size)

    def data_until(self, at: int) -> int:
        return data_until(self.fd, at, self.size)

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        populate_write(self.buffer, at, min(size, self.size - at), small=small)

    def sync(self) -> None:
        _fdatasync(self.fd)

    def lost(self, *, by_name: bool = False) -> str | None:
        try:
            there = os.fstat(self.fd)
            named = os.stat(self.path) if by_name else there
        except FileNotFoundError:
            return self._loss_text("was deleted or moved away")
        except OSError:  # closed meanwhile, or a directory that cannot be searched: proves nothing
            return None
        if not there.st_nlink:
            return self._loss_text("was deleted")
        if (named.st_ino, named.st_dev) != (there.st_ino, there.st_dev):
            return self._loss_text("was replaced by another file")
        if there.st_size < self.size:
            return f"{self.path} was cut from {self.size} to {there.st_size} bytes"
        return None

    def _loss_text(self, what: str) -> str:
        return (
            f"{self.path} {what}; until this process ends, copy its content from "
            f"/proc/{os.getpid()}/fd/{self.fd}"
        )

    def close(self) -> None:
        # somebody still has a view of it: the map ends with the last one
        with contextlib.suppress(BufferError):
            self.buffer.close()
        self._closing = True
        self._close_unread()

    def hold(self, *, reading: bool = False) -> None:
        self._readers += 1

    def release(self) -> None:
        self._readers -= 1
        self._close_unread()

    def _close_unread(self) -> None:
        if self._closing and not self._readers and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class MappedSparseSegment:
    """Sparse segment on the real file system. It keeps no file descriptor open.

    A descriptor is opened to map the file, to allocate blocks, and to read the file without a map.
    It is closed afterwards.
    """

    __slots__ = ("_closed", "_fd", "_file_systems", "_holders", "_path", "_view", "device", "size")

    def __init__(self, path: Path | str, size: int, file_systems: FileSystems) -> None:
        self._path = str(path)  # a Path for each would take longer, and more memory
        self.size = size
        self.device = -1
        """Number of the file system of the file, known once the file is mapped."""
        self._file_systems = file_systems
        self._view: memoryview | None = None
        self._fd = -1
        self._holders = 0
        self._closed = False

    @property
    def path(self) -> Path:
        return Path(self._path)

    @path.setter
    def path(self, path: Path) -> None:
        self._path = str(path)

    @property
    def buffer(self) -> memoryview:
        view = self._view
        return view if view is not None else self._mapped()

    def _mapped(self) -> memoryview:
        fd = self._open(os.O_RDWR)
        try:
            found = os.fstat(fd)
            if found.st_size < self.size:
                raise OSError(
                    errno.EIO,
                    f"it has {found.st_size} bytes, and had {self.size}: it was cut by another "
                    "program",
                    self._path,
                )
            self.device = self._file_systems.watch_device(found.st_dev, self._path)
            view = self._view = map_file(fd, self.size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from None
        finally:
            os.close(fd)
        return view

    def unmap(self) -> bool:
        if self._holders:
            return False
        view, self._view = self._view, None
        if view is not None:
            # somebody still has a view of it: the map ends with the last one
            with contextlib.suppress(BufferError):
                view.release()
        return True

    def allocate(self, at: int, size: int) -> None:
        fd = self._open(os.O_RDWR)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, at, size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from None
        finally:
            os.close(fd)

    def read(self, at: int, size: int) -> bytes:
        view = self._view
        return view[at : at + size].tobytes() if view is not None else self.read_cold(at, size)

    def read_cached(self, at: int, size: int) -> bytes | None:
        data = bytearray(size)
        return bytes(data) if self.read_cached_into(data, at) else None

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        try:
            return self._with_descriptor(
                lambda fd: os.preadv(fd, [buffer], at, os.RWF_NOWAIT) == len(buffer)
            )
        except (OSError, AttributeError):  # as in ``MappedSegment``
            return False

    def evict(self, at: int, size: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._with_descriptor(lambda fd: os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED))

    def read_ahead(self, *, enabled: bool) -> None:
        """Accept the request and do nothing.

        The setting belongs to a descriptor, and each read opens a new descriptor.
        """

    def read_cold(self, at: int, size: int) -> bytes:
        return self._with_descriptor(lambda fd: _pread(fd, at, size, self._path))

    def data_from(self, at: int) -> int | None:
        return self._with_descriptor(lambda fd: data_from(fd, at, self.size))

    def data_until(self, at: int) -> int:
        return self._with_descriptor(lambda fd: data_until(fd, at, self.size))

    def tail(self, size: int) -> tuple[int, bytes]:
        def read(fd: int) -> tuple[int, bytes]:
            end = 0
            while (start := data_from(fd, end, self.size)) is not None:
                end = data_until(fd, start, self.size)
            begin = max(end - size, 0)
            return begin, _pread(fd, begin, end - begin, self._path) if end else b""

        return self._with_descriptor(read)

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        populate_write(self.buffer, at, min(size, self.size - at), small=small)

    def sync(self) -> None:
        view = self._view
        if view is not None:
            sync_map(view)

    def lost(self, *, by_name: bool = False) -> str | None:
        """Return None without looking at the file.

        Damage here loses nothing, because a queue can be rebuilt from the log.
        """

    def close(self) -> None:
        self._closed = True
        self.unmap()

    def hold(self, *, reading: bool = False) -> None:
        self._holders += 1
        if reading and self._fd < 0:
            # if none can be opened, the reader tries again and reports it
            with contextlib.suppress(OSError):
                self._fd = self._open(os.O_RDONLY)

    def release(self) -> None:
        self._holders -= 1
        if self._holders:
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._closed:
            self.unmap()

    def _open(self, access: int) -> int:
        if self._closed:
            raise OSError(errno.EBADF, f"{self._path} is closed")
        return os.open(self._path, access | os.O_CLOEXEC)

    def _with_descriptor(self, read: Callable[[int], T]) -> T:
        """Call ``read`` with a descriptor of the file.

        The descriptor is the one that ``hold`` has opened, or a temporary one.
        """
        fd = self._fd
        if fd >= 0:
            return read(fd)
        fd = self._open(os.O_RDONLY)
        try:
            return read(fd)
        finally:
            os.close(fd)


class FileSystems:
    """Open directories through which whole file systems are synced, with their errors reported.

    Each file system with a mapped sparse segment has one open directory. The directory is opened
    before the first write, so that a sync of the file system reports every later write error.
    """

    def __init__(self) -> None:
        self._directories: dict[int, int] = {}

    def watch_device(self, device: int, path: str) -> int:
        """Open a directory on the file system with the number ``device``, if no directory there is
        open yet.

        The directory is that of ``path``, a segment on this file system. Raises OSError.
        """
        if device not in self._directories:
            self._directories[device] = os.open(
                os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
        return device

    def sync(self, devices: Iterable[int]) -> bool:
        """Write all data of these file systems to the disk, and return True on success.

        Return False if some bytes are not on the disk, if that is unknown, or if a file of another
        program failed. The caller must then sync each file.
        """
        try:
            return all(sync_file_system(self._directories[device]) for device in devices)
        except (OSError, KeyError):
            return False

    def close(self) -> None:
        while self._directories:
            os.close(self._directories.popitem()[1])

    __del__ = close


def _pread(fd: int, at: int, size: int, path: Path | str) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(fd, size, at)
        if not part:
            raise OSError(errno.EIO, f"{path} ends at byte {at}")
        parts.append(part)
        at += len(part)
        size -= len(part)
    return b"".join(parts)  # a single part itself, without a copy


def _fdatasync(fd: int) -> None:
    """Write the data of a file to the disk.

    macOS has no fdatasync, so fsync is used there.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)
