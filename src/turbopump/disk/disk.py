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
"""What is made is for its owner to write and for its group to read, since it holds messages. The
umask may take more away."""

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

    @property
    def buffer(self) -> Any: ...

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

    def data_until(self, at: int) -> int:
        """The first offset at or after ``at`` where a hole begins; the file's size if none does."""

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

    def hold(self, *, reading: bool = False) -> None:
        """Something beside the owner's thread begins to use the file, ``reading`` it or else
        syncing it: until ``release`` it stays open, even if the segment is closed."""

    def release(self) -> None:
        """That has ended. Both are called in the owner's thread."""

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
        """Where they begin, and the last ``size`` bytes before a byte behind which all is zero;
        fewer if there are no more. Where the file system tells of holes, little more is read."""

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
        """An existing file of ``size`` bytes. Nothing is looked at before it is used."""

    @property
    def maps_max(self) -> int:
        """How many files may be mapped at a time."""

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

    def file_mode(self, path: Path) -> int | None:
        """Who may read and write a file, as chmod has it; None: there is no such file."""

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
    """What ``read_cold`` gives of a piece, or its error."""
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
