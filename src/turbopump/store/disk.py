"""The seam to the disk: the store accesses every file through a ``Disk``.

Nothing else in ``store/`` opens, maps, syncs, renames or removes a file, or starts a thread, except
for the modules below this one (``mapped_segments.py``, ``read_only_disk.py``, ``system_calls.py``).
Production uses ``SystemDisk``; tests use a simulated disk that crashes, tears and fails on command.
The meaning of files is unknown here.

Threads: ``start`` runs a blocking operation beside the owner's thread and returns the outcome *in*
the owner's thread, through the given ``post`` function (``loop.call_soon_threadsafe`` under
asyncio). Without ``post`` it runs at once in the same thread, which suits tools.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turbopump.errors import StoreError
from turbopump.store.mapped_segments import FileSystems, MappedSegment, MappedSparseSegment
from turbopump.store.read_only_disk import ReadOnlyDisk
from turbopump.store.system_calls import (
    DIRECTORY_MODE,
    FILE_MODE,
    FileLock,
    KernelSyncs,
    Loop,
    lock_directories,
    lost_pages,
    maps_max,
)

PRIVATE_MODE = 0o600
_READERS = 4
"""Threads of their own for reads, so that no sync waits behind a device that reads."""
_SYNCERS = 3
"""Threads for syncs of the log, of derived files and of the checkpoint: none of these waits for a
saved table or a new file."""
_SYNCED_SINGLY = 32
"""Maximum number of sparse segments that are synced one by one; for more, a sync of their whole
file system costs less."""


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
        self._file_systems = FileSystems()
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
        if not path.is_dir():
            if not path.parent.exists():  # ``parents=True`` would leave it to the umask alone
                self.make_directory(path.parent)
            path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK | os.X_OK)

    def create_segment(self, path: Path, size: int) -> MappedSegment:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
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

    def create_sparse(self, path: Path, size: int) -> MappedSparseSegment:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(fd)
        return MappedSparseSegment(path, size, self._file_systems)

    def open_sparse(self, path: Path | str, size: int) -> MappedSparseSegment:
        return MappedSparseSegment(path, size, self._file_systems)

    @property
    def maps_max(self) -> int:
        return maps_max()

    def rename_segment(self, segment: Segment, path: Path) -> None:
        os.replace(segment.path, path)
        segment.path = path

    def link(self, path: Path, other: Path) -> None:
        os.link(path, other)

    def write_file(self, path: Path, data: bytes) -> None:
        self._write(path, data, None)

    def _write(self, path: Path, data: bytes, mode: int | None) -> None:
        try:
            with open(path, "wb", opener=partial(os.open, mode=FILE_MODE)) as file:
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
            if private:
                path.chmod(PRIVATE_MODE)  # somebody else may have made it, and it is kept as .bak
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

    def file_mode(self, path: Path) -> int | None:
        try:
            return stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return None

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
        self._run(self._threads, lambda: partial(done, failure_of(operation)))

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        batch = list(segments)
        for segment in batch:
            segment.hold()

        def report(error: OSError | None) -> None:
            for segment in batch:
                segment.release()
            done(error)

        if (
            self._kernel is not None
            and len(batch) == 1
            and isinstance(batch[0], MappedSegment)
            and self._kernel.start(batch[0].fd, report)
        ):
            return
        self._run(self._syncers, lambda: partial(report, failure_of(partial(self.sync, batch))))

    def sync(self, segments: Sequence[Segment]) -> None:
        # Each fdatasync costs 0.1 ms of CPU and waits for the device. What is derived from the log
        # lies in thousands of files where there are thousands of queues; then the system syncs all
        # of the file system, with one wait.
        if len(segments) > _SYNCED_SINGLY:
            devices = {
                segment.device if isinstance(segment, MappedSparseSegment) else -1
                for segment in segments
            }
            if self._file_systems.sync(devices):
                return
        for segment in segments:
            segment.sync()

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
        held = [piece.segment for piece in pieces]
        for segment in held:
            segment.hold(reading=True)

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
    """Read a piece with ``read_cold`` and return its bytes or its error."""
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error


def failure_of(operation: Callable[[], object]) -> OSError | None:
    """Do it; what went wrong."""
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
"""Outcome of a read."""


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

    @property
    def buffer(self) -> Any: ...

    def read(self, at: int, size: int) -> bytes: ...
    def read_cold(self, at: int, size: int) -> bytes:
        """The same bytes read from the file, not through the map: a page fault inside a map holds
        the GIL. Runs in a thread."""

    def read_cached(self, at: int, size: int) -> bytes | None:
        """Return the same bytes at once if the system has all of them in memory; None if it has
        not, or cannot tell."""

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        """Fill a ``buffer`` with them in the same case; else False, and what it holds then is
        nothing. Saves making bytes of what is only looked at."""

    def evict(self, at: int, size: int) -> None:
        """Let the system forget its copy in memory of a range that was read once and is not needed
        again; nothing is lost."""

    def read_ahead(self, *, enabled: bool) -> None:
        """Allow or forbid the system to read more of the file than ``read_cold`` asks for. It is
        allowed by default."""

    def data_from(self, at: int) -> int | None:
        """The first offset at or after ``at`` where bytes may not be zero; None: the rest is a
        hole."""

    def data_until(self, at: int) -> int:
        """The first offset at or after ``at`` where a hole begins; the file's size if none does."""

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        """Make the pages of a range present and writable ahead of need; changes nothing. Runs in a
        thread. ``small``: so that a sync writes the pages that were written to, and not all the
        neighbours that the system may keep in one piece with them."""

    def sync(self) -> None:
        """fdatasync; raises OSError, after which the file must not be trusted or synced again."""

    def lost(self, *, by_name: bool = False) -> str | None:
        """Describe damage to the file that a start would notice: deleted, or cut (``by_name``: or
        moved, or replaced by another). None if there is none. Costs one or two system calls."""

    def hold(self, *, reading: bool = False) -> None:
        """Something beside the owner's thread begins to use the file, ``reading`` it or else
        syncing it: until ``release`` it stays open, even if the segment is closed."""

    def release(self) -> None:
        """End a ``hold``. Both are called in the owner's thread."""

    def close(self) -> None:
        """Let go of the file, once nothing holds it. Views of ``buffer`` that are still there stay
        good."""


class SparseSegment(Segment, Protocol):
    """One whose file has blocks only where they were asked for, and that keeps nothing open while
    nobody uses it: there may be tens of thousands. ``buffer`` maps the file (and raises OSError
    where that fails); without a map ``read`` reads the file."""

    def allocate(self, at: int, size: int) -> None:
        """Give a range its blocks: before that nothing may be written there. Raises OSError: a full
        disk fails here, cleanly, and not in the map."""

    def tail(self, size: int) -> tuple[int, bytes]:
        """Return the last ``size`` bytes before the final zeros of the file, and their offset;
        fewer if there are no more. On a file system that reports holes little more is read."""

    def unmap(self) -> bool:
        """Let go of the map, until ``buffer`` is asked for again; what was written must have been
        synced before. False: it is held, and stays."""


class Piece(NamedTuple):
    """``size`` bytes at ``at`` of a segment."""

    segment: Segment
    at: int
    size: int


class Lock(Protocol):
    """A held lock on a store directory."""

    @property
    def found(self) -> bytes:
        """First 64 bytes of the file at the time it was locked."""

    def mark(self, data: bytes) -> None:
        """Overwrite what the file holds, and sync. (By any other descriptor of it, closing that
        would release the lock: POSIX.)"""

    def release(self) -> None: ...


class Disk(Protocol):
    """Operations of a file system that the store uses. Methods raise OSError as the system does."""

    def make_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist or is not a directory."""

    def is_directory(self, path: Path) -> bool: ...
    def is_writable(self, path: Path) -> bool:
        """Return True if files can be made in a directory, according to its permissions and its
        file system."""

    def file_size(self, path: Path | str) -> int | None:
        """Bytes, or None if there is no such file."""

    def create_segment(self, path: Path, size: int) -> Segment:
        """A new file of ``size`` zero bytes, allocated in full (a full disk fails here, cleanly,
        and not in the map)."""

    def open_segment(self, path: Path) -> Segment:
        """An existing file, mapped in its whole size."""

    def create_sparse(self, path: Path, size: int) -> SparseSegment:
        """A new file of ``size`` zero bytes without any blocks."""

    def open_sparse(self, path: Path | str, size: int) -> SparseSegment:
        """Open an existing file of ``size`` bytes. It is not read before its first use."""

    @property
    def maps_max(self) -> int:
        """Maximum number of files mapped at a time."""

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
        content stays as ``.bak``. The file keeps its mode; ``private``: only its owner can read
        it."""

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory; no error if it is not there."""

    def modified_ms(self, path: Path) -> int:
        """When the file was last written, in ms since 1970."""

    def file_mode(self, path: Path) -> int | None:
        """Return the mode of a file, as for chmod; None if there is no such file."""

    def lock(self, path: Path) -> Lock:
        """Hold ``path`` exclusively. Raises StoreLockedError if another process, or another store
        of this one, does."""

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        """Lock directories exclusively until the returned function is called; no file is left in
        them. On a file system without such locks nothing is locked. Raises StoreLockedError like
        ``lock``."""

    def space(self, path: Path) -> Space:
        """Return the free and total space. Call it in a thread: a disk that hangs does not
        answer."""

    def same_file_system(self, one: Path, other: Path) -> bool:
        """Return True if a file can be renamed from one of two directories into the other."""

    def lost_pages(self) -> int:
        """Count pages of maps that the files of this process no longer had when they were touched;
        data written to those is lost. See ``system_calls.outlive_lost_pages``."""

    def sync_directory(self, path: Path) -> None:
        """Make names that were added to a directory, or removed from it, durable. May block."""

    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Run a blocking ``operation`` beside the owner's thread; then ``done(None)`` or
        ``done(error)`` in it."""

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """``sync`` beside the owner's thread; then ``done``, with the error if there was one."""

    def sync(self, segments: Sequence[Segment]) -> None:
        """fdatasync every segment, in order. Raises the first OSError."""

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
