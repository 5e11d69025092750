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
"""Result of a read."""


class Space(NamedTuple):
    """Space on the file system of a path, in bytes, as ``df`` counts it: without the
    administrator's reserve."""

    total: int
    free: int

    @property
    def used_percent(self) -> int:
        """Used space in per cent, rounded up."""
        return -((self.free - self.total) * 100 // self.total) if self.total else 100


class Segment(Protocol):
    """File of fixed size, mapped into memory.

    ``buffer`` is the map. Its slices can be read and assigned, and ``struct`` packs into it.
    """

    path: Path
    size: int

    @property
    def buffer(self) -> Any: ...

    def read(self, at: int, size: int) -> bytes: ...
    def read_cold(self, at: int, size: int) -> bytes:
        """Read bytes from the file, not through the map: a page fault inside a map holds the GIL.
        Call it in a thread."""

    def read_cached(self, at: int, size: int) -> bytes | None:
        """Return bytes at once if the system has all of them in memory; None if not, or if that is
        unknown."""

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        """Fill a ``buffer`` as ``read_cached`` does, without a copy for bytes that are only
        inspected. On False the content of the buffer is undefined."""

    def evict(self, at: int, size: int) -> None:
        """Drop a range from the page cache that was read once and is not needed again. No data is
        lost."""

    def read_ahead(self, *, enabled: bool) -> None:
        """Allow or forbid the system to read more of the file than ``read_cold`` asks for. The
        default is to allow it."""

    def data_from(self, at: int) -> int | None:
        """Return the first offset from ``at`` on whose byte may not be zero; None if the rest is a
        hole."""

    def data_until(self, at: int) -> int:
        """Return the start of the first hole from ``at`` on; the file's size if there is none."""

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        """Make the pages of a range present and writable ahead of need, without a change of bytes.
        Call it in a thread.

        ``small``: keep the pages separate, so that a sync writes only the changed ones. The system
        may otherwise join them with their neighbours.
        """

    def sync(self) -> None:
        """Write the file's data to the disk (fdatasync). After an OSError the file must not be
        trusted or synced again."""

    def lost(self, *, by_name: bool = False) -> str | None:
        """Describe damage to the file that a start would notice: deleted or cut. With ``by_name``,
        also moved or replaced. None if there is none. Costs one or two system calls."""

    def hold(self, *, reading: bool = False) -> None:
        """Keep the file open until ``release``, even if the segment is closed, because a thread
        begins to sync it, or to read it (``reading``)."""

    def release(self) -> None:
        """End a ``hold``. Call both in the owner's thread."""

    def close(self) -> None:
        """Close the file once no ``hold`` is left. Existing views of ``buffer`` stay valid."""


class SparseSegment(Segment, Protocol):
    """Segment whose file has blocks only in allocated ranges, and that keeps nothing open while it
    is unused. There may be tens of thousands.

    ``buffer`` maps the file, and raises OSError if that fails. Without a map, ``read`` reads the
    file.
    """

    def allocate(self, at: int, size: int) -> None:
        """Allocate the blocks of a range; no byte may be written there before. Raises OSError: a
        full disk is reported here, and not by a fault in the map."""

    def tail(self, size: int) -> tuple[int, bytes]:
        """Return the last ``size`` bytes before the final zeros of the file, and their offset;
        fewer if the file has no more. On a file system that reports holes little more is read."""

    def unmap(self) -> bool:
        """Unmap the file until the next use of ``buffer``; the caller must have synced it. Return
        False if a ``hold`` keeps the map."""


class Piece(NamedTuple):
    """Range of a segment: ``size`` bytes at ``at``."""

    segment: Segment
    at: int
    size: int


class Lock(Protocol):
    """Held lock on a store directory."""

    @property
    def found(self) -> bytes:
        """First 64 bytes of the file at the time it was locked."""

    def mark(self, data: bytes) -> None:
        """Overwrite the content of the file, and sync. (With another descriptor of the file, its
        close would release the lock: POSIX.)"""

    def release(self) -> None: ...


class Disk(Protocol):
    """File-system operations of the store. Methods raise OSError as the system does."""

    def make_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; an empty list if there is no directory at the
        path."""

    def is_directory(self, path: Path) -> bool: ...
    def is_writable(self, path: Path) -> bool:
        """Return True if files can be made in a directory, according to its permissions and its
        file system."""

    def file_size(self, path: Path | str) -> int | None:
        """Return the size of a file in bytes; None if there is no such file."""

    def create_segment(self, path: Path, size: int) -> Segment:
        """Create a file of ``size`` zero bytes with all its blocks. A full disk is reported here,
        and not by a fault in the map."""

    def open_segment(self, path: Path) -> Segment:
        """Open an existing file and map its whole size."""

    def create_sparse(self, path: Path, size: int) -> SparseSegment:
        """Create a file of ``size`` zero bytes without any blocks."""

    def open_sparse(self, path: Path | str, size: int) -> SparseSegment:
        """Open an existing file of ``size`` bytes. It is not read before its first use."""

    @property
    def maps_max(self) -> int:
        """Maximum number of files mapped at a time."""

    def rename_segment(self, segment: Segment, path: Path) -> None:
        """Rename the file of an open segment within its file system, and change the segment's
        ``path``."""

    def link(self, path: Path, other: Path) -> None:
        """Give a file a second name in the same file system. The name must be free."""

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

    def write_file(self, path: Path, data: bytes) -> None:
        """Create a file or overwrite it in place, and sync. Use it only for content that may be
        lost."""

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """Replace the content in one step: temporary file, fsync, rename, directory fsync. The old
        content stays as ``.bak``. The file keeps its mode; ``private``: only its owner can read
        it."""

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory. A missing one is no error."""

    def modified_ms(self, path: Path) -> int:
        """Return the time of the last write to a file, in ms since 1970."""

    def file_mode(self, path: Path) -> int | None:
        """Return the mode of a file, as for chmod; None if there is no such file."""

    def lock(self, path: Path) -> Lock:
        """Lock ``path`` exclusively. Raises StoreLockedError if another process, or another store
        of this process, has locked it."""

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        """Lock directories exclusively until the returned function is called, without a file in
        them. Does nothing on a file system without such locks. Raises StoreLockedError like
        ``lock``."""

    def space(self, path: Path) -> Space:
        """Return the free and total space. Call it in a thread: a disk that hangs does not
        answer."""

    def same_file_system(self, one: Path, other: Path) -> bool:
        """Return True if a file can be renamed from one of two directories into the other."""

    def lost_pages(self) -> int:
        """Return the number of map pages that were accessed after their files had lost them. Data
        written to those pages is lost. See ``maps.outlive_lost_pages``."""

    def sync_directory(self, path: Path) -> None:
        """Make new and removed names of a directory durable. May block."""

    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Run a blocking ``operation`` in a thread, then call ``done(None)`` or ``done(error)`` in
        the owner's thread."""

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """Run ``sync`` in a thread, then call ``done`` with None or the error in the owner's
        thread."""

    def sync(self, segments: Sequence[Segment]) -> None:
        """Sync every segment with fdatasync, in order. Raises the first OSError."""

    def start_remove(
        self, segments: Sequence[Segment], done: Callable[[int, OSError | None], None]
    ) -> None:
        """Remove the files of open segments in order, in a thread, and make that durable. Then call
        ``done`` in the owner's thread.

        ``done`` gets the number of removed files, and the error of the next one or of making the
        removal durable. A segment can be read until ``done`` closes it. The system then frees its
        space in a thread.
        """

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        """Read every piece with ``read_cold`` in threads, then call ``done`` in the owner's thread
        with the bytes or the error of each.

        Reads do not wait for the operations of ``start``. A segment closed meanwhile can be read to
        the end of this call.
        """

    def close(self) -> None:
        """Wait for all started operations and call every ``done``. Operations started by a ``done``
        run at once. Then refuse new ones."""


def read_now(piece: Piece) -> Found:
    """Read a piece with ``read_cold`` and return its bytes or its error."""
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error


def failure_of(operation: Callable[[], object]) -> OSError | None:
    """Run an operation; return its OSError, or None."""
    try:
        operation()
    except OSError as error:
        return error
    except ValueError as error:  # a map closed meanwhile
        return OSError(errno.EBADF, str(error))
    return None
