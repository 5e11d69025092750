"""The seam to the disk: every file the store touches is touched through a ``Disk``.

The rule: nothing else in ``store/`` opens, maps, syncs, renames or removes a file, or starts a thread. Production is ``SystemDisk``;
tests put in a simulated disk that crashes, tears and fails on command. It must not know what the files mean.

Threads: ``start`` runs a blocking operation beside the owner's thread and hands the outcome back *in* the owner's thread, by way of the
``post`` function given (``loop.call_soon_threadsafe`` under asyncio). Without ``post`` it runs on the spot, which suits tools.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turbopump.errors import StoreError, StoreLockedError

Post = Callable[[Callable[[], None]], object]
Done = Callable[[OSError | None], None]


class Space(NamedTuple):
    """Room on the file system of a path, in bytes."""

    total: int
    free: int


class Segment(Protocol):
    """One file of fixed size, mapped into memory.

    ``buffer`` is the mapping: slices read as bytes-like objects, slices are assigned, ``struct`` packs into it.
    """

    path: Path
    size: int
    buffer: Any

    def read(self, at: int, size: int) -> bytes: ...
    def read_cold(self, at: int, size: int) -> bytes:
        """The same bytes read from the file, not through the map: a page fault inside a map holds the GIL. Runs in a thread."""

    def data_from(self, at: int) -> int | None:
        """The first offset at or after ``at`` where bytes may not be zero; None: the rest is a hole."""

    def populate(self, at: int, size: int) -> None:
        """Make the pages of a range present and writable ahead of need; changes nothing. Runs in a thread."""

    def sync(self) -> None:
        """fdatasync; raises OSError, after which the file must not be trusted or synced again."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock on a store directory."""

    def release(self) -> None: ...


class Disk(Protocol):
    """What the store may ask of a file system. Methods raise OSError as the system does."""

    def make_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist or is not a directory."""

    def file_size(self, path: Path) -> int | None:
        """Bytes, or None if there is no such file."""

    def create_segment(self, path: Path, size: int) -> Segment:
        """A new file of ``size`` zero bytes, allocated in full (a full disk fails here, cleanly, and not in the map)."""

    def open_segment(self, path: Path) -> Segment:
        """An existing file, mapped in its whole size."""

    def rename_segment(self, segment: Segment, path: Path) -> None:
        """Give an open segment another name in the same file system; its ``path`` changes with it."""

    def read_file(self, path: Path) -> bytes | None:
        """The whole file, or None if there is no such file."""

    def write_file(self, path: Path, data: bytes) -> None:
        """Create or overwrite in place, and sync. For files whose content is not precious."""

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace the content in one step: temporary file, fsync, rename, directory fsync. The old content stays as ``.bak``."""

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory; no error if it is not there."""

    def modified_ms(self, path: Path) -> int:
        """When the file was last written, in ms since 1970."""

    def lock(self, path: Path) -> Lock:
        """Hold ``path`` exclusively. Raises StoreLockedError if another process, or another store of this one, does."""

    def space(self, path: Path) -> Space: ...
    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Run a blocking ``operation`` beside the owner's thread; then ``done(None)`` or ``done(error)`` in it."""

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """fdatasync every segment, in order, beside the owner's thread; then ``done``, with the first error if there was one."""

    def close(self) -> None:
        """Wait for what was started and call every ``done`` (what those start runs on the spot); then refuse more."""


class MappedSegment:
    """A segment on a real file."""

    __slots__ = ("_fd", "buffer", "path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self.buffer = mmap.mmap(fd, size)

    def read(self, at: int, size: int) -> bytes:
        return self.buffer[at : at + size]

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

    def populate(self, at: int, size: int) -> None:
        _populate_write(self.buffer, at, min(size, self.size - at))

    def sync(self) -> None:
        _fdatasync(self._fd)

    def close(self) -> None:
        self.buffer.close()
        os.close(self._fd)


class _FileLock:
    """A POSIX record lock on the first byte, which is what Apache's broker takes (``FileChannel.tryLock(0, 1, false)``)."""

    _held_here: set[Path] = set()  # POSIX locks do not hold against their own process  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in self._held_here:
            raise StoreLockedError(_locked_text(path))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"lock", 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLockedError(_locked_text(path)) from None
            raise
        self._held_here.add(self._path)

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


class SystemDisk:
    """The real file system. ``post`` brings results of ``start`` back into the owner's thread."""

    def __init__(self, post: Post | None = None) -> None:
        self._post = post
        self._finished: deque[tuple[Done, OSError | None]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        if post is not None:
            self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="turbopump-disk")

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

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
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise

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

    def read_file(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_file(self, path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

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
        return _FileLock(path)

    def space(self, path: Path) -> Space:
        figures = os.statvfs(path)
        return Space(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def start(self, operation: Callable[[], None], done: Done) -> None:
        if self._closed:
            raise RuntimeError("the disk is closed")
        if self._threads is None:
            done(_outcome(operation))
            return
        post = self._post
        assert post is not None

        def run() -> None:
            self._finished.append((done, _outcome(operation)))
            # a RuntimeError means that the owner's loop is gone: ``close`` may still tell
            with contextlib.suppress(RuntimeError):
                post(self._tell)

        self._threads.submit(run)

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        batch = list(segments)

        def sync() -> None:
            for segment in batch:
                segment.sync()

        self.start(sync, done)

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
            while self._finished:
                self._tell()
        self._closed = True

    def _tell(self) -> None:
        if self._finished:
            done, error = self._finished.popleft()
            done(error)


def _outcome(operation: Callable[[], None]) -> OSError | None:
    try:
        operation()
    except OSError as error:
        return error
    except ValueError as error:  # a map closed meanwhile
        return OSError(errno.EBADF, str(error))
    return None


def _allocate(fd: int, size: int) -> None:
    """Reserve every block now. macOS has no posix_fallocate: there the file is only made that long, and may be sparse."""
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


_MADV_POPULATE_WRITE = 23  # Linux 5.14; faults pages in for writing without changing them
_madvise: Any = None


def _populate_write(buffer: mmap.mmap, at: int, size: int) -> None:
    """Ask for pages ahead of need: a page fault inside a map holds the GIL, ``madvise`` called through ctypes does not.

    Where the system does not know the request nothing happens: the pages then come one by one, on first touch.
    """
    global _madvise
    if not sys.platform.startswith("linux") or size <= 0:
        return
    import ctypes

    if _madvise is None:
        _madvise = ctypes.CDLL(None, use_errno=True).madvise
        _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = at & ~(mmap.PAGESIZE - 1)
    holder = ctypes.c_char.from_buffer(buffer, start)  # pins the map while the call runs
    _madvise(ctypes.addressof(holder), size + at - start, _MADV_POPULATE_WRITE)
    del holder
