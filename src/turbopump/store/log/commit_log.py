"""Commit log: all messages of all topics, one after the other, in the form of ``message/entry.py``.

::

    segment   entry entry entry … blank     1 GiB by default, named by the offset of its first byte
    entry     message/entry.py
    blank     4 size of the file from here on   4 CBD43194   then anything

An entry needs its size and 8 bytes more. If the segment has less left, its rest becomes a blank and
the entry begins the next segment. So no entry spans files, and every full file ends in a blank.
Source: apache/rocketmq ``CommitLog``. The log assigns physical offsets; queue offsets come from
outside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.disk.disk import Disk
from turbopump.errors import MessageError, RoomInMakingError, StoreError
from turbopump.message.entry import MAGIC_BLANK
from turbopump.store.mapped_file import MappedFile
from turbopump.store.mapped_file_queue import MappedFileQueue

BLANK_SIZE_MIN: Final = 8
POPULATE_STEP: Final = 8 * 1024 * 1024
"""Number of bytes of fresh pages requested at a time, ahead of the writes."""
SMALL_STEP: Final = 1024 * 1024
"""Number of bytes of fresh pages requested at a time if every send waits for a sync. Requested
pages are dirty, so the next sync writes them all."""
_SPARE_AT: Final = 4 * POPULATE_STEP
"""Bytes left in the current file below which the next file is made."""

_BLANK: Final = struct.Struct(">II")
ENTRY_SIZE_MAX: Final = 1 << 26
"""Largest entry in bytes (64 MiB; a frame has 16 MiB). A larger size field is wrong, and no entry
is read there."""


class CommitLog:
    """Log of all messages of a store, to which entries are appended.

    Each append is a call of ``reserve``, one copy into the map, and a call of ``written``.

    - ``roots``, ``read_only``: directories of the segments; no segment is made in
      ``read_only``.
    - ``synced_often``: True if syncs come after a few messages (SYNC_FLUSH), so that fresh
      pages are requested in small numbers.
    - ``requires_crc``: returns True if the entry at an offset was written with a whole-entry
      CRC, so that its absence is damage.
    - ``full_roots``: returns the directories in which no segment should be made.
    - ``on_segment``: called with the start of a new segment, before its first entry is
      written.
    """

    def __init__(
        self,
        disk: Disk,
        roots: Sequence[Path],
        segment_size: int,
        read_only: Sequence[Path] = (),
        synced_often: bool = False,
        requires_crc: Callable[[int], bool] = lambda _offset: False,
        full_roots: Callable[[], Collection[Path]] = tuple,
        on_segment: Callable[[int], None] = lambda _start: None,
    ) -> None:
        self._disk = disk
        self.files = MappedFileQueue(
            disk,
            roots,
            segment_size,
            read_only=read_only,
            ahead=True,
            aligned=True,
            full_roots=full_roots,
        )
        self.segment_size = segment_size
        self.end = 0
        """Offset in the log of the next entry."""
        self._current: MappedFile | None = None
        self._populated = 0
        self._populating = False
        self._growth: Callable[[], None] | None = None
        self._notice_at = 0
        """Value of ``end`` beyond which pages must be requested or a waiter be called."""
        self._synced_often = synced_often
        self._step = SMALL_STEP if synced_often else POPULATE_STEP
        self.requires_crc = requires_crc
        self._on_segment = on_segment

    def load(self) -> None:
        """Open the existing files of the log. ``end`` is unknown until recovery calls
        ``open_at``."""
        self.files.load()

    @property
    def start(self) -> int:
        """Offset of the first byte that is still in the log."""
        return self.files.start

    @property
    def is_young(self) -> bool:
        """True if the log has no segment behind its very first one. Recovery then reads the whole
        log."""
        return self.start == 0 and len(self.files.files) <= 1

    def open_at(self, end: int) -> None:
        """Set the end of the log to ``end``, and remove everything behind it."""
        self.files.truncate(end)
        self.end = end
        self._current = self.files.at(end)
        self._populated = end
        self._set_notice()

    def begin_at(self, offset: int) -> None:
        """Set the offset at which the log of a new slave begins.

        It must be the start of a segment. Raises StoreError if the log already has segments, or
        cannot begin there.
        """
        if self.files or offset % self.segment_size:
            raise StoreError(
                f"a log cannot begin at {offset}: it has segments already, or the offset "
                f"is no multiple of mappedFileSizeCommitLog={self.segment_size}; set a "
                "slave's to that of its master"
            )
        self.end = offset

    def when_longer(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once, when the log has grown.

        The call comes inside the next ``written``, so it must be short. A second call of this
        method replaces the first ``tell``. Without one, sends pay nothing.
        """
        self._growth = tell
        self._set_notice()

    def reserve(self, size: int) -> int:
        """Return the offset in the log at which an entry of ``size`` bytes must be written.

        That is the end of the log, or the start of a new segment.

        Raises OSError if a new segment cannot be made, RoomInMakingError while one is being made,
        and MessageError if no segment can hold the entry. On an error nothing has changed.
        """
        current = self._current
        if current is not None and current.end - self.end >= size + BLANK_SIZE_MIN:
            return self.end
        if size + BLANK_SIZE_MIN > self.segment_size:
            raise MessageError(
                f"the message or batch takes {size} bytes in the store, more than a "
                f"commit log file of {self.segment_size} holds; send less at once "
                "(mappedFileSizeCommitLog is the size; a store with messages must keep "
                "it)"
            )
        return self._roll()

    def new_file_for(self, size: int) -> int:
        """Return the size of the new file for an entry of ``size`` bytes. Return 0 if the current
        or the spare file has room."""
        current = self._current
        fits = current is not None and current.end - self.end >= size + BLANK_SIZE_MIN
        return 0 if fits or self.files.has_spare else self.segment_size

    @property
    def write_position(self) -> tuple[Any, int]:
        """Position of the reserved entry: the map of the current segment, and an offset in that
        map."""
        current = self._current
        assert current is not None
        return current.buffer, self.end - current.start

    def written(self, size: int) -> None:
        """Record that the ``size`` reserved bytes are written. The log then ends behind these
        bytes."""
        assert self._current is not None
        self._current.dirty = True
        self.end += size
        if self.end > self._notice_at:
            self._notice_growth()

    def copy_blank(self, data: bytes) -> None:
        """Fill the end of a segment with the blank that a slave has received from its master."""
        current = self._current
        assert current is not None
        at = self.end - current.start
        assert len(data) == current.end - self.end
        current.buffer[at : at + len(data)] = data
        current.dirty = True
        self.end = current.end

    def read(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes of the log at ``offset``, or None if one segment does not contain
        them."""
        file = self.files.at(offset)
        if file is None or offset + size > file.end:
            return None
        return file.segment.read(offset - file.start, size)

    def put_right(self, offset: int, data: bytes) -> None:
        """Overwrite damaged bytes of the log with the original bytes. All bytes must lie in one
        file."""
        file = self.files.at(offset)
        assert file is not None
        assert offset + len(data) <= min(file.end, self.end)
        at = offset - file.start
        file.buffer[at : at + len(data)] = data

    def segment_end(self, offset: int) -> int:
        """Return the end of the segment that contains ``offset``.

        Bytes from ``offset`` up to there can be read in one piece.
        """
        start = self.files.start
        return offset + self.segment_size - (offset - start) % self.segment_size

    def close(self) -> None:
        self.files.close()
        self._current = None

    def _roll(self) -> int:
        """Start a new segment, after filling the current one with a blank. Return the new end of
        the log."""
        # The new file comes first: if it cannot be made, the log is unchanged, and a later append
        # tries again. Then comes the blank, so that a walk over the log finds the end of the old
        # segment. ``on_segment`` is last, because it notes the ends of all queues at ``start``.
        current = self._current
        start = current.end if current is not None else self.end
        if self.files.wait_for_spare:
            raise RoomInMakingError("the next file of the commit log is being made")
        fresh = self.files.append_file(start)
        if current is not None and self.end < current.end:
            at = self.end - current.start
            _BLANK.pack_into(current.buffer, at, current.end - self.end, MAGIC_BLANK)
            current.dirty = True
        self._current = fresh
        self.end = start
        self._populated = start
        self._populate_ahead()
        self._set_notice()
        self._on_segment(start)
        return start

    def _notice_growth(self) -> None:
        if self.end > self._populated - self._step // 2:
            self._populate_ahead()
        growth = self._growth
        self._growth = None
        self._set_notice()
        if growth is not None:
            growth()

    def _set_notice(self) -> None:
        self._notice_at = self._populated - self._step // 2 if self._growth is None else self.end

    def _populate_ahead(self) -> None:
        current = self._current
        if self._populating or current is None:
            return
        if self._populated >= current.end:
            return
        start = max(self._populated, self.end)
        size = min(self._step, current.end - start)
        self._populating = True

        def done(_error: OSError | None) -> None:
            self._populating = False

        self._populated = start + size
        if self._populated >= current.end - _SPARE_AT:
            self.files.prepare_next()
        small = self._synced_often
        self._disk.start(
            lambda: current.segment.populate(start - current.start, size, small=small), done
        )


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """Message to append to the log.

    - ``properties``: UTF-8 property text that ends with its separator, or is empty.
    - ``tags_code``: tag hash from ``java_hash.tags_code``.
    - ``unique``, ``keys``: values to index the message by.
    """

    body: bytes
    properties: bytes
    tags_code: int
    flag: int = 0
    unique: str | None = None
    keys: str | None = None


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Position of an appended message, or of the first message of a batch.

    - ``queue_offset``: position in the queue.
    - ``offset``: position in the log, in bytes.
    - ``log_end``: offset up to which the log must be flushed for it.
    """

    queue_offset: int
    offset: int
    log_end: int
