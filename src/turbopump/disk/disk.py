"""Interface to a file system. Every file of the store, and every JSON table, is accessed through a
``Disk``.

Production uses ``SystemDisk`` (``system_disk.py``); tests use a simulated disk that crashes, tears
and fails on command. A new operation must be added to both. The meaning of the files is unknown
here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
"""Mode of new directories: the owner writes and the group reads, because the files hold messages.
The umask may remove more."""

Post = Callable[[Callable[[], None]], object]
Done = Callable[[OSError | None], None]
Found = bytes | OSError
"""Result of reading a piece: the bytes, or the error."""


class Space(NamedTuple):
    """Free and total space on a file system, in bytes.

    The numbers are those of ``df``: the administrator's reserve is not counted.
    """

    total: int
    free: int

    @property
    def used_percent(self) -> int:
        """Used part of the file system in per cent, rounded up."""
        return -((self.free - self.total) * 100 // self.total) if self.total else 100


class Segment(Protocol):
    """File of fixed size that is mapped into memory.

    ``buffer`` is the map. Its slices can be read and assigned, and ``struct`` packs into it.
    """

    path: Path
    size: int

    @property
    def buffer(self) -> Any: ...

    def read(self, at: int, size: int) -> bytes: ...
    def read_cold(self, at: int, size: int) -> bytes:
        """Read bytes from the file with a system call instead of the memory map.

        Call it in a thread, because it may wait for the disk. The map is not used, because a page
        fault inside the map would stop all Python threads (it does not release the GIL).
        """

    def read_cached(self, at: int, size: int) -> bytes | None:
        """Return bytes of the file without waiting for the disk, or None.

        The result is None if the system does not have all of the bytes in memory, or cannot tell.
        """

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        """Fill a buffer with bytes of the file without waiting for the disk, and return True.

        Return False where ``read_cached`` returns None. The content of the buffer is then
        undefined. The call avoids a copy of bytes that are only inspected.
        """

    def evict(self, at: int, size: int) -> None:
        """Ask the system to drop a range of the file from the page cache.

        Use it for bytes that were read once and are not needed again. No data is lost.
        """

    def read_ahead(self, *, enabled: bool) -> None:
        """Allow or forbid read-ahead, in which the system reads more of the file than ``read_cold``
        has requested.

        Read-ahead is allowed by default.
        """

    def data_from(self, at: int) -> int | None:
        """Return the first offset, at or after ``at``, whose byte may not be zero.

        Return None if the rest of the file is a hole.
        """

    def data_until(self, at: int) -> int:
        """Return the start of the first hole at or after ``at``.

        Return the size of the file if there is no such hole.
        """

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        """Load the pages of a range into memory and make them writable, before they are needed.

        No byte changes. Call it in a thread, because it may wait for the disk. ``small`` keeps the
        pages separate, so that a sync writes only the changed pages. The system may otherwise join
        them with their neighbours.
        """

    def sync(self) -> None:
        """Write the data of the file to the disk with fdatasync.

        Raises OSError. After an error the file must not be trusted or synced again.
        """

    def lost(self, *, by_name: bool = False) -> str | None:
        """Describe damage to the file by another program, or return None without damage.

        Damage is what the next start of the broker would notice: the file was deleted or cut. With
        ``by_name``, a moved or replaced file counts too. Costs one or two system calls.
        """

    def hold(self, *, reading: bool = False) -> None:
        """Keep the file open until ``release`` is called, even if the segment is closed.

        Call it before a thread syncs the file, or reads the file (``reading``).
        """

    def release(self) -> None:
        """Undo one call of ``hold``, so that the file may be closed.

        Call both methods in the owner's thread.
        """

    def close(self) -> None:
        """Close the file as soon as every ``hold`` is released.

        Existing views of ``buffer`` stay valid.
        """


class SparseSegment(Segment, Protocol):
    """Segment whose file has disk blocks only in allocated ranges.

    There may be tens of thousands, so an unused segment keeps nothing open. ``buffer`` maps the
    file, and raises OSError if that fails. Without a map, ``read`` reads the file.
    """

    def allocate(self, at: int, size: int) -> None:
        """Allocate disk blocks for a range of the file, before any byte is written there.

        Raises OSError if the disk is full. Without this call, a full disk would end the process at
        a write into the map.
        """

    def tail(self, size: int) -> tuple[int, bytes]:
        """Return the offset and the bytes of the last data in the file, up to ``size`` bytes.

        Zeros at the end of the file are not data. On a file system that reports holes, little more
        than these bytes is read.
        """

    def unmap(self) -> bool:
        """Unmap the file until ``buffer`` is used again.

        The caller must have synced the file. Return False if the map stays because of a ``hold``.
        """


class Piece(NamedTuple):
    """Range of a segment: ``size`` bytes from byte ``at`` on."""

    segment: Segment
    at: int
    size: int


class Lock(Protocol):
    """Lock on a store directory, kept until it is released."""

    @property
    def found(self) -> bytes:
        """First 64 bytes of the lock file at the time when it was locked."""

    def mark(self, data: bytes) -> None:
        """Replace the content of the lock file, and sync the file.

        The file must be written through the descriptor of the lock. POSIX releases the lock when
        any other descriptor of the file is closed.
        """

    def release(self) -> None: ...


class Files(Protocol):
    """Operations on directories and whole files, which every operating system has.

    Methods raise OSError as the system does.
    """

    def make_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]:
        """Return the sorted names of the files in a directory.

        The list is empty if the path is not a directory.
        """

    def is_directory(self, path: Path) -> bool: ...
    def file_size(self, path: Path | str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if there is no such file."""

    def write_file(self, path: Path, data: bytes) -> None:
        """Create a file or overwrite it in place, and sync the file.

        A crash during the call may destroy the old content. Use it only for content that may be
        lost.
        """

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """Replace the content of a file, so that a crash leaves either the old or the new content.

        The steps are a temporary file, fsync, rename and directory fsync. The old content stays as
        ``.bak``. The file keeps its mode. With ``private``, only the owner can read the file.
        """

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory, if it exists."""

    def file_mode(self, path: Path) -> int | None:
        """Return the permission bits of a file as for chmod, or None if there is no such file."""

    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Run a blocking operation in a thread, then call ``done`` in the owner's thread.

        ``done`` gets None, or the error of the operation.
        """

    def close(self) -> None:
        """Wait for all started operations and call every ``done``, then refuse new operations.

        Operations that a ``done`` starts run at once.
        """


class Disk(Files, Protocol):
    """File-system operations that the store uses.

    Methods raise OSError as the system does.
    """

    def is_writable(self, path: Path) -> bool:
        """Return True if files can be created in a directory.

        The permissions of the directory and the state of the file system decide.
        """

    def create_segment(self, path: Path, size: int) -> Segment:
        """Create a file of ``size`` zero bytes with all blocks allocated, and map the file.

        Raises OSError if the disk is full, so that no later write into the map fails for this
        reason.
        """

    def open_segment(self, path: Path) -> Segment:
        """Open an existing file and map its whole size into memory."""

    def create_sparse(self, path: Path, size: int) -> SparseSegment:
        """Create a file of ``size`` zero bytes without any disk blocks."""

    def open_sparse(self, path: Path | str, size: int) -> SparseSegment:
        """Return a segment for an existing file of ``size`` bytes.

        The file is not opened before its first use.
        """

    @property
    def maps_max(self) -> int:
        """Maximum number of files that may be mapped at the same time."""

    def rename_segment(self, segment: Segment, path: Path) -> None:
        """Rename the file of an open segment within its file system.

        The segment's ``path`` changes too.
        """

    def link(self, path: Path, other: Path) -> None:
        """Give a file a second name in the same file system.

        Raises OSError if the name is taken.
        """

    def modified_ms(self, path: Path) -> int:
        """Return the time at which a file was last written, in ms since 1970."""

    def lock(self, path: Path) -> Lock:
        """Lock a file, so that no other broker can use the same store.

        Raises StoreLockedError if another process, or another store of this process, has locked the
        file.
        """

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        """Lock directories, and return the function that unlocks them.

        The lock needs no file in the directories. Nothing is locked on a file system without such
        locks. Raises StoreLockedError if another process has locked one of the directories.
        """

    def space(self, path: Path) -> Space:
        """Return the free and total space of the file system that contains a path.

        Call it in a thread, because the call may wait for a disk that does not respond.
        """

    def same_file_system(self, one: Path, other: Path) -> bool:
        """Return True if a file can be renamed from one directory into the other."""

    def lost_pages(self) -> int:
        """Return the number of accesses to lost pages: map pages whose data is gone from the file.

        Data written to such pages is lost. See ``maps.outlive_lost_pages``.
        """

    def sync_directory(self, path: Path) -> None:
        """Write the list of files in a directory to the disk, after files were created or removed.

        The call may wait for the disk.
        """

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """Sync segments in a thread, then call ``done`` in the owner's thread.

        ``done`` gets None, or the error of the sync.
        """

    def sync(self, segments: Sequence[Segment]) -> None:
        """Write the data of each segment to the disk with fdatasync, in order.

        Raises the first OSError.
        """

    def start_remove(
        self, segments: Sequence[Segment], done: Callable[[int, OSError | None], None]
    ) -> None:
        """Remove the files of open segments in a thread, in order, then call ``done``.

        ``done`` is called in the owner's thread once the removal is durable. It gets the number of
        removed files, and the error of the next removal or of the directory sync. A segment can be
        read until ``done`` closes it. The system then frees its space in a thread.
        """

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        """Read pieces of segments in threads, then call ``done`` in the owner's thread.

        ``done`` gets the bytes or the error of each piece, in order. Reads use ``read_cold``, and
        do not wait for the operations of ``start``. A segment that is closed meanwhile can be read
        to the end of this call.
        """


def read_now(piece: Piece) -> Found:
    """Read a piece with ``read_cold``, and return the bytes or the error."""
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error


def failure_of(operation: Callable[[], object]) -> OSError | None:
    """Run an operation. Return its OSError, or None after success."""
    try:
        operation()
    except OSError as error:
        return error
    except ValueError as error:  # a map closed meanwhile
        return OSError(errno.EBADF, str(error))
    return None
