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
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turbopump.errors import StoreError
from turbopump.store.read_only_disk import ReadOnlyDisk, data_from
from turbopump.store.system_calls import (
    FileLock,
    KernelSyncs,
    Loop,
    lock_directories,
    lost_pages,
    populate_write,
)

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

PRIVATE_MODE = 0o600
_READERS = 4
"""Threads of their own for reads, so that no sync waits behind a device that reads."""
_SYNCERS = 3
"""And for syncs, of the log, of what is derived and of the checkpoint: none waits for a table that
is saved or a file that is made."""


class MappedSegment:
    """A segment on a real file."""

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
            # EAGAIN, or a system or file system that cannot tell; what is wrong with the file comes
            # out in ``read_cold``
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
        parts = []
        while size > 0:
            part = os.pread(self.fd, size, at)
            if not part:
                raise OSError(errno.EIO, f"{self.path} ends at byte {at}")
            parts.append(part)
            at += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def data_from(self, at: int) -> int | None:
        return data_from(self.fd, at, self.size)

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        populate_write(self.buffer, at, min(size, self.size - at), small=small)

    def sync(self) -> None:
        _fdatasync(self.fd)

    def lost(self, *, by_name: bool = False) -> str | None:
        try:
            there = os.fstat(self.fd)
            named = os.stat(self.path) if by_name else there
        except FileNotFoundError:
            return self._lost("was deleted or moved away")
        except OSError:  # closed meanwhile, or a directory that cannot be searched: proves nothing
            return None
        if not there.st_nlink:
            return self._lost("was deleted")
        if (named.st_ino, named.st_dev) != (there.st_ino, there.st_dev):
            return self._lost("was replaced by another file")
        if there.st_size < self.size:
            return f"{self.path} was cut from {self.size} to {there.st_size} bytes"
        return None

    def _lost(self, what: str) -> str:
        return (
            f"{self.path} {what}; until this process ends, what it held can be copied from "
            f"/proc/{os.getpid()}/fd/{self.fd}"
        )

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
        if self._closing and not self._readers and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SystemDisk(ReadOnlyDisk):
    """The real file system. ``post`` brings results of ``start`` back into the owner's thread. With
    ``loop``, a sync of a single file is done by the kernel if it can, without a thread, and the
    loop gets the outcome (SYNC_FLUSH)."""

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

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK | os.X_OK)

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

    def write_file(self, path: Path, data: bytes) -> None:
        self._write(path, data, None)

    def _write(self, path: Path, data: bytes, mode: int | None) -> None:
        try:
            with open(path, "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)  # before there is anything to read
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # of a write it does not say where
            raise OSError(error.errno, error.strerror, str(path)) from None

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        temporary = path.with_name(path.name + ".tmp")
        try:
            mode = PRIVATE_MODE if private else stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            mode = None
        self._write(temporary, data, mode)
        if path.exists():
            backup = path.with_name(path.name + ".bak")
            link = path.with_name(path.name + ".bak.tmp")
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            os.link(path, link)
            os.replace(link, backup)
        os.replace(temporary, path)
        fsync_directory(path.parent)

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

    def lost_pages(self) -> int:
        return lost_pages()

    def sync_directory(self, path: Path) -> None:
        fsync_directory(path)

    def start(self, operation: Callable[[], None], done: Done) -> None:
        self._run(self._threads, lambda: partial(done, _outcome(operation)))

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        batch = list(segments)
        for segment in batch:
            segment.hold()

        def sync() -> None:
            for segment in batch:
                segment.sync()

        def report(error: OSError | None) -> None:
            for segment in batch:
                segment.release()
            done(error)

        if self._kernel is not None and len(batch) == 1:
            assert isinstance(batch[0], MappedSegment)
            if self._kernel.start(batch[0].fd, report):
                return
        self._run(self._syncers, lambda: partial(report, _outcome(sync)))

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
                fsync_directory(directory)

        def free() -> None:
            for fd in kept:
                os.close(fd)

        def report(error: OSError | None) -> None:
            done(gone, error)
            self.start(free, lambda _error: None)

        self.start(remove, report)

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        held = []
        for piece in pieces:
            assert isinstance(piece.segment, MappedSegment)
            piece.segment.hold()
            held.append(piece.segment)

        def report(found: list[Found]) -> None:
            for segment in held:
                segment.release()
            done(found)

        self._run(self._readers, lambda: partial(report, [read_now(piece) for piece in pieces]))

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
            self._report()
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
            # a RuntimeError means that the owner's loop is gone: ``close`` may still report
            with contextlib.suppress(RuntimeError):
                post(self._report)

        threads.submit(run)

    def _report(self) -> None:
        if self._finished:
            self._finished.popleft()()


def read_now(piece: Piece) -> Found:
    """What ``read_cold`` gives of a piece, or its error."""
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


def fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- What the store may ask of a file system: tests put a simulated disk behind it. A new operation
# comes here first, and both disks learn it.

Post = Callable[[Callable[[], None]], object]
Done = Callable[[OSError | None], None]
Found = bytes | OSError
"""What a read gave."""


class Space(NamedTuple):
    """Room on the file system of a path, in bytes, as ``df`` counts it: what only the system's
    administrator may use is no part of it."""

    total: int
    free: int

    @property
    def used_percent(self) -> int:
        """Rounded up."""
        return -((self.free - self.total) * 100 // self.total) if self.total else 100


class Segment(Protocol):
    """One file of fixed size, mapped into memory.

    ``buffer`` is the mapping: slices read as bytes-like objects, slices are assigned, ``struct``
    packs into it.
    """

    path: Path
    size: int
    buffer: Any

    def read(self, at: int, size: int) -> bytes: ...
    def read_cold(self, at: int, size: int) -> bytes:
        """The same bytes read from the file, not through the map: a page fault inside a map holds
        the GIL. Runs in a thread."""

    def read_cached(self, at: int, size: int) -> bytes | None:
        """The same bytes if the system has all of them in memory, at once; None if it has not, or
        cannot tell."""

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        """Fill a ``buffer`` with them in the same case; else False, and what it holds then is
        nothing. Saves making bytes of what is only looked at."""

    def evict(self, at: int, size: int) -> None:
        """Let the system forget its copy in memory of a range that was read once and is not needed
        again; nothing is lost."""

    def read_ahead(self, *, enabled: bool) -> None:
        """Whether the system may read more of the file than ``read_cold`` asks for, because more of
        it may follow. It may unless told."""

    def data_from(self, at: int) -> int | None:
        """The first offset at or after ``at`` where bytes may not be zero; None: the rest is a
        hole."""

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        """Make the pages of a range present and writable ahead of need; changes nothing. Runs in a
        thread. ``small``: so that a sync writes the pages that were written to, and not all the
        neighbours that the system may keep in one piece with them."""

    def sync(self) -> None:
        """fdatasync; raises OSError, after which the file must not be trusted or synced again."""

    def lost(self, *, by_name: bool = False) -> str | None:
        """What was done to the file so that a start would not find all of it: deleted, or cut
        (``by_name``: or moved, or replaced by another). None if nothing was. Costs one or two
        system calls."""

    def hold(self) -> None:
        """Something beside the owner's thread begins to use the file: until ``release`` it stays
        open, even if the segment is closed."""

    def release(self) -> None:
        """That has ended. Both are called in the owner's thread."""

    def close(self) -> None:
        """Let go of the file, once nothing holds it. Views of ``buffer`` that are still there stay
        good."""


class Piece(NamedTuple):
    """``size`` bytes at ``at`` of a segment."""

    segment: Segment
    at: int
    size: int


class Lock(Protocol):
    """A held lock on a store directory."""

    @property
    def found(self) -> bytes:
        """What the file held when it was locked, as far as it is of interest (64 bytes)."""

    def mark(self, data: bytes) -> None:
        """Overwrite what the file holds, and sync. (By any other descriptor of it, closing that
        would release the lock: POSIX.)"""

    def release(self) -> None: ...


class Disk(Protocol):
    """What the store may ask of a file system. Methods raise OSError as the system does."""

    def make_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist or is not a directory."""

    def is_directory(self, path: Path) -> bool: ...
    def is_writable(self, path: Path) -> bool:
        """Whether files can be made in a directory, as far as its permissions and its file system
        tell."""

    def file_size(self, path: Path) -> int | None:
        """Bytes, or None if there is no such file."""

    def create_segment(self, path: Path, size: int) -> Segment:
        """A new file of ``size`` zero bytes, allocated in full (a full disk fails here, cleanly,
        and not in the map)."""

    def open_segment(self, path: Path) -> Segment:
        """An existing file, mapped in its whole size."""

    def rename_segment(self, segment: Segment, path: Path) -> None:
        """Give an open segment another name in the same file system; its ``path`` changes with
        it."""

    def link(self, path: Path, other: Path) -> None:
        """Give a file a second name, which must be free, in the same file system."""

    def read_file(self, path: Path) -> bytes | None:
        """The whole file, or None if there is no such file."""

    def write_file(self, path: Path, data: bytes) -> None:
        """Create or overwrite in place, and sync. For files whose content is not precious."""

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """Replace the content in one step: temporary file, fsync, rename, directory fsync. The old
        content stays as ``.bak``. Who may read it stays as it was; ``private``: its owner alone."""

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory; no error if it is not there."""

    def modified_ms(self, path: Path) -> int:
        """When the file was last written, in ms since 1970."""

    def lock(self, path: Path) -> Lock:
        """Hold ``path`` exclusively. Raises StoreLockedError if another process, or another store
        of this one, does."""

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        """Hold directories exclusively, until what is returned is called; leaves nothing in them.
        Where the file system cannot, nothing is held. Raises StoreLockedError like ``lock``."""

    def space(self, path: Path) -> Space:
        """How much room there is. A disk that hangs does not answer: to be asked in a thread."""

    def same_file_system(self, one: Path, other: Path) -> bool:
        """Whether a file can be renamed from one of two directories into the other."""

    def lost_pages(self) -> int:
        """How many pages of maps the files of this process no longer had when they were touched:
        what was written to those is lost. See ``system_calls.outlive_lost_pages``."""

    def sync_directory(self, path: Path) -> None:
        """Make names that were added to a directory, or removed from it, durable. May block."""

    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Run a blocking ``operation`` beside the owner's thread; then ``done(None)`` or
        ``done(error)`` in it."""

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """fdatasync every segment, in order, beside the owner's thread; then ``done``, with the
        first error if there was one."""

    def start_remove(
        self, segments: Sequence[Segment], done: Callable[[int, OSError | None], None]
    ) -> None:
        """Remove the files of open segments in order, and make that durable, beside the owner's
        thread; then ``done`` in it: how many are gone, and what went wrong with the next or with
        making it durable. A segment whose file is gone can be read until it is closed, which
        ``done`` sees to; the system then frees its space beside the owner's thread."""

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        """Read every piece with ``read_cold``, beside the owner's thread and not behind what
        ``start`` runs; then ``done`` in it, with the bytes or the error of each. A segment closed
        meanwhile can be read to the end of this."""

    def close(self) -> None:
        """Wait for what was started and call every ``done`` (what those start runs on the spot);
        then refuse more."""
