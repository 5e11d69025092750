"""What the store may ask of a file system: the seam that tests put a simulated disk behind.
``disk.py`` has the real one.

The rule: a new operation comes here first, and both disks learn it. It must not know what the files
mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace the content in one step: temporary file, fsync, rename, directory fsync. The old
        content stays as ``.bak``."""

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
