"""The real file system, with all that the store of a broker needs. It runs on Linux and macOS.

Only this module and the modules below it open, map, sync, rename or remove files, or start threads,
in ``store/`` and ``disk/``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from turbopump.disk.disk import (
    FILE_MODE,
    Done,
    Found,
    Lock,
    Piece,
    Post,
    Segment,
    Space,
    failure_of,
    read_now,
)
from turbopump.disk.durable_files import sync_directory
from turbopump.disk.kernel_syncs import KernelSyncs, Loop
from turbopump.disk.locks import FileLock, lock_directories
from turbopump.disk.mapped_segments import FileSystems, MappedSegment, MappedSparseSegment
from turbopump.disk.maps import lost_pages, maps_max
from turbopump.disk.whole_files import WholeFiles
from turbopump.errors import StoreError

_READERS = 4
"""Number of threads for reads. They are separate, so that no sync waits for a read."""
_SYNCERS = 3
"""Number of threads for syncs: of the log, of derived files and of the checkpoint. They do not wait
for a saved table or a new file."""
_SYNCED_SINGLY = 32
"""Largest number of sparse segments that are synced one by one. For more, a sync of their whole
file system costs less."""


class SystemDisk(WholeFiles):
    """Disk that uses the real file system.

    - ``post``: runs a function in the owner's thread. It is used for the results of ``start``.
    - ``loop``: event loop for results of the kernel. With a loop, the kernel syncs a single file
      without a thread if it can (SYNC_FLUSH).
    """

    def __init__(self, post: Post | None = None, loop: Loop | None = None) -> None:
        super().__init__(post)
        self._add_pool("sync", _SYNCERS)
        self._add_pool("read", _READERS)
        self._file_systems = FileSystems()
        self._kernel = KernelSyncs(loop) if loop is not None else None

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
        sync_directory(path)

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
        self._run_in("sync", lambda: partial(report, failure_of(partial(self.sync, batch))))

    def sync(self, segments: Sequence[Segment]) -> None:
        # Each fdatasync costs 0.1 ms of CPU and waits for the device. With thousands of queues,
        # derived data lies in thousands of files. Then the system syncs the whole file system, with
        # one wait.
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
                    # Closing the last descriptor frees the space: 0.3 s for 1 GiB. The owner's
                    # thread must not do that.
                    kept.append(os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC))
                    os.unlink(segment.path)
                gone += 1
            for directory in dict.fromkeys(segment.path.parent for segment in batch):
                sync_directory(directory)

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

        self._run_in("read", lambda: partial(report, [read_now(piece) for piece in pieces]))

    def close(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()
        super().close()


def _allocate(fd: int, size: int) -> None:
    """Reserve all disk blocks of a file.

    macOS has no posix_fallocate. There the file only gets its size, and may be sparse.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
