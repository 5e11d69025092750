"""The seam to the disk: what may be asked of a file system. Every file of the store, and every JSON
table, is touched through a ``Disk``.

Production is ``SystemDisk`` (``system_disk.py``); tests put in a simulated disk that crashes, tears
and fails on command. A new operation comes here first, and both disks learn it. It must not know
what the files mean.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
"""Mode of new directories: the owner writes, the group reads, since they hold messages. The umask
may remove more."""

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
        data written to those is lost. See ``maps.outlive_lost_pages``."""

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
