"""The seam to the disk: every file the store touches is touched through a ``Disk``.

The rule: nothing else in ``store/`` opens, maps, syncs, renames or removes a file, or starts a
thread. Production is ``SystemDisk``; tests put in a simulated disk that crashes, tears and fails on
command. It must not know what the files mean.

Threads: ``start`` runs a blocking operation beside the owner's thread and hands the outcome back
*in* the owner's thread, by way of the ``post`` function given (``loop.call_soon_threadsafe`` under
asyncio). Without ``post`` it runs on the spot, which suits tools.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from turbopump.errors import StoreError
from turbopump.store.disk_protocol import Disk, Done, Found, Lock, Piece, Post, Segment, Space
from turbopump.store.file_locks import FileLock, lock_directories
from turbopump.store.fresh_pages import populate_write
from turbopump.store.kernel_syncs import KernelSyncs, Loop

__all__ = [
    "Disk",
    "Done",
    "Found",
    "Lock",
    "MappedSegment",
    "Piece",
    "Post",
    "Segment",
    "Space",
    "SystemDisk",
]

_READERS = 4
"""Threads of their own for reads, so that no sync waits behind a device that reads."""
_SYNCERS = 3
"""And for syncs, of the log, of what is derived and of the checkpoint: none waits for a table that
is saved or a file that is made."""


class MappedSegment:
    """A segment on a real file."""

    __slots__ = ("_closing", "_fd", "_readers", "buffer", "path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._readers = 0
        self._closing = False
        self.buffer = mmap.mmap(fd, size)

    def read(self, at: int, size: int) -> bytes:
        return self.buffer[at : at + size]

    def read_cached(self, at: int, size: int) -> bytes | None:
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        data = bytearray(size)
        try:
            count = os.preadv(self._fd, [data], at, os.RWF_NOWAIT)
        except OSError:
            # EAGAIN, or a file system that cannot tell; what is wrong with the file comes out in
            # ``read_cold``
            return None
        return bytes(data) if count == size else None

    def evict(self, at: int, size: int) -> None:
        # closed meanwhile; macOS has no such call
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(self._fd, at, size, os.POSIX_FADV_DONTNEED)

    def read_ahead(self, *, enabled: bool) -> None:
        advice = "POSIX_FADV_NORMAL" if enabled else "POSIX_FADV_RANDOM"
        # closed meanwhile; macOS has no such call
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(self._fd, 0, 0, getattr(os, advice))

    def read_cold(self, at: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, at)
            if not part:
                raise OSError(errno.EIO, f"{self.path} ends at byte {at}")
            parts.append(part)
            at += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def data_from(self, at: int) -> int | None:
        if at >= self.size:
            return None
        if not hasattr(os, "SEEK_DATA"):
            return at
        try:
            return os.lseek(self._fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return at  # a file system that cannot tell

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        populate_write(self.buffer, at, min(size, self.size - at), small=small)

    def sync(self) -> None:
        _fdatasync(self._fd)

    def close(self) -> None:
        # somebody still has a view of it: the map ends with the last one
        with contextlib.suppress(BufferError):
            self.buffer.close()
        self._closing = True
        self._close_unread()

    def hold(self) -> None:
        self._readers += 1

    def release(self) -> None:
        self._readers -= 1
        self._close_unread()

    def _close_unread(self) -> None:
        if self._closing and not self._readers and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemDisk:
    """The real file system. ``post`` brings results of ``start`` back into the owner's thread.
    ``loop``: where somebody waits for every sync of a single file, the kernel makes it, if it can,
    and the owner's loop is told."""

    def __init__(self, post: Post | None = None, loop: Loop | None = None) -> None:
        self._post = post
        self._finished: deque[Callable[[], None]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._syncers: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._closed = False
        self._kernel = KernelSyncs(loop) if loop is not None else None
        if post is not None:
            self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="turbopump-disk")
            self._syncers = ThreadPoolExecutor(
                max_workers=_SYNCERS, thread_name_prefix="turbopump-sync"
            )
            self._readers = ThreadPoolExecutor(
                max_workers=_READERS, thread_name_prefix="turbopump-read"
            )

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK | os.X_OK)

    def file_size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def create_segment(self, path: Path, size: int) -> MappedSegment:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _allocate(fd, size)
            return MappedSegment(path, fd, size)
        except OSError as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None

    def open_segment(self, path: Path) -> MappedSegment:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return MappedSegment(path, fd, os.fstat(fd).st_size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise StoreError(f"{path} cannot be mapped: {error}") from None

    def rename_segment(self, segment: Segment, path: Path) -> None:
        os.replace(segment.path, path)
        segment.path = path

    def link(self, path: Path, other: Path) -> None:
        os.link(path, other)

    def read_file(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_file(self, path: Path, data: bytes) -> None:
        try:
            with open(path, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # of a write it does not say where
            raise OSError(error.errno, error.strerror, str(path)) from None

    def replace_file(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.write_file(temporary, data)
        if path.exists():
            backup = path.with_name(path.name + ".bak")
            link = path.with_name(path.name + ".bak.tmp")
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            os.link(path, link)
            os.replace(link, backup)
        os.replace(temporary, path)
        _sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def lock(self, path: Path) -> Lock:
        return FileLock(path)

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        return lock_directories(paths)

    def space(self, path: Path) -> Space:
        figures = os.statvfs(path)
        used = figures.f_blocks - figures.f_bfree
        return Space(
            (used + figures.f_bavail) * figures.f_frsize, figures.f_bavail * figures.f_frsize
        )

    def same_file_system(self, one: Path, other: Path) -> bool:
        return one.stat().st_dev == other.stat().st_dev

    def sync_directory(self, path: Path) -> None:
        _sync_directory(path)

    def start(self, operation: Callable[[], None], done: Done) -> None:
        self._run(self._threads, lambda: partial(done, _outcome(operation)))

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        batch = list(segments)
        for segment in batch:
            segment.hold()

        def sync() -> None:
            for segment in batch:
                segment.sync()

        def tell(error: OSError | None) -> None:
            for segment in batch:
                segment.release()
            done(error)

        if self._kernel is not None and len(batch) == 1:
            assert isinstance(batch[0], MappedSegment)
            if self._kernel.start(batch[0]._fd, tell):
                return
        self._run(self._syncers, lambda: partial(tell, _outcome(sync)))

    def start_remove(
        self, segments: Sequence[Segment], done: Callable[[int, OSError | None], None]
    ) -> None:
        batch = list(segments)
        kept: list[int] = []
        gone = 0

        def remove() -> None:
            nonlocal gone
            for segment in batch:
                with contextlib.suppress(FileNotFoundError):
                    # closing the last descriptor frees the space: 0.3 s for 1 GiB, so that must not
                    # be the owner's
                    kept.append(os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC))
                    os.unlink(segment.path)
                gone += 1
            for directory in dict.fromkeys(segment.path.parent for segment in batch):
                _sync_directory(directory)

        def free() -> None:
            for fd in kept:
                os.close(fd)

        def tell(error: OSError | None) -> None:
            done(gone, error)
            self.start(free, lambda _error: None)

        self.start(remove, tell)

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        held = []
        for piece in pieces:
            assert isinstance(piece.segment, MappedSegment)
            piece.segment.hold()
            held.append(piece.segment)

        def tell(found: list[Found]) -> None:
            for segment in held:
                segment.release()
            done(found)

        self._run(self._readers, lambda: partial(tell, [_read(piece) for piece in pieces]))

    def close(self) -> None:
        pools = (self._threads, self._syncers, self._readers)
        self._threads = self._syncers = self._readers = None
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()
        for threads in pools:
            if threads is not None:
                threads.shutdown(wait=True)
        while self._finished:
            self._tell()
        self._closed = True

    def _run(
        self, threads: ThreadPoolExecutor | None, operation: Callable[[], Callable[[], None]]
    ) -> None:
        """Run ``operation`` in a thread, or here if there is none, and what it returns in the
        owner's thread."""
        if self._closed:
            raise RuntimeError("the disk is closed")
        if threads is None:
            operation()()
            return
        post = self._post
        assert post is not None

        def run() -> None:
            self._finished.append(operation())
            # a RuntimeError means that the owner's loop is gone: ``close`` may still tell
            with contextlib.suppress(RuntimeError):
                post(self._tell)

        threads.submit(run)

    def _tell(self) -> None:
        if self._finished:
            self._finished.popleft()()


def _read(piece: Piece) -> Found:
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error


def _outcome(operation: Callable[[], None]) -> OSError | None:
    try:
        operation()
    except OSError as error:
        return error
    except ValueError as error:  # a map closed meanwhile
        return OSError(errno.EBADF, str(error))
    return None


def _allocate(fd: int, size: int) -> None:
    """Reserve every block now. macOS has no posix_fallocate: there the file is only made that long,
    and may be sparse."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def _fdatasync(fd: int) -> None:
    """Data to the disk. macOS has no fdatasync: there it is fsync."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
