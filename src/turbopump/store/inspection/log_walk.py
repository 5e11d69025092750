"""Walk over the whole log for tools, past all damage (``scanner.py``).

``codec.entry_fault`` alone decides if an entry is good. Memory: one piece of ``READ_SIZE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.message.entry import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from turbopump.store.files import StoreFile
from turbopump.store.inspection.report import Finding
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.log.commit_log import BLANK_SIZE_MIN
from turbopump.store.log.scanner import BadRange, OpenSegment, SegmentWalk

READ_SIZE: Final = 4 * 1024 * 1024
SECTOR: Final = 4096
"""Number of bytes given up at a time if the system cannot read."""

_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class LogWalk(SegmentWalk[tuple[int, bytes]]):
    """Walk over a log. For each valid entry, it yields the log offset and the bytes.

    - ``requires_crc``: returns True if the entry at an offset must have a whole-entry CRC.
      None means that no entry must have one.
    - ``on_bad``: gets each range without a valid entry. Unreadable parts count as zeros.
    - ``on_progress``: gets the offset that is read.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        segments: Sequence[StoreFile],
        *,
        requires_crc: Callable[[int], bool] | None = None,
        on_bad: Callable[[BadRange], None] = lambda _bad: None,
        on_progress: Callable[[int], None] = lambda _size: None,
    ) -> None:
        super().__init__(
            segments,
            requires_crc=requires_crc,
            on_bad=on_bad,
            piece_size=READ_SIZE,
            blame=_head_fault,
        )
        self._disk = disk
        self._on_progress = on_progress
        self._unread_end = 0
        self._items = self._quick_entries

    def _open_segment(self, segment: StoreFile) -> OpenSegment:
        return self._disk.open_file(segment.path)

    def _item_of(self, offset: int, entry: bytes) -> tuple[int, bytes]:
        return offset, entry

    def _quick_entries(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        found = self._scanner.entries(offset, end)
        if found:
            last, entry = found[-1]
            self.end = last + len(entry)
        return found

    def _room_behind(self, segment: StoreFile) -> int:
        """Return the space that must be free at the end of a segment.

        It is 0 for a last segment that lost its end, because recovery makes that segment longer
        again.
        """
        cut_short = segment is self._segments[-1] and segment.size < self._segments[0].size
        return 0 if cut_short else BLANK_SIZE_MIN

    def _read_segment(
        self, file: OpenSegment, segment: StoreFile, at: int, size: int, *, ahead: bool
    ) -> bytes:
        try:
            data = file.read(at, size)
        except OSError:
            data = self._read_sectors(file, segment, at, size, ahead=ahead)
        if not ahead:
            self._on_progress(segment.start + at)
        return data

    def _read_sectors(
        self, file: OpenSegment, segment: StoreFile, at: int, size: int, *, ahead: bool
    ) -> bytes:
        parts = []
        end = min(at + size, file.size)
        while at < end:
            piece_end = min(at - at % SECTOR + SECTOR, end)
            try:
                parts.append(file.read(at, piece_end - at))
            except OSError as error:
                parts.append(bytes(piece_end - at))
                if not ahead and segment.start + at >= self._unread_end:
                    self._unread_end = segment.start + piece_end
                    fault = error.strerror or str(error)
                    self._on_bad(
                        BadRange(segment.start + at, self._unread_end, fault, segment, unread=True)
                    )
            at = piece_end
        return b"".join(parts)


def _head_fault(size: int, magic: int, left: int) -> str:
    if size == 0 and magic == 0:
        return "zeros where a message should begin"
    if magic == MAGIC_BLANK:
        return f"a blank of {size} bytes where {left} are left in the segment"
    if magic not in _MAGICS:
        return f"magic {magic:08X} is not a message's"
    return f"totalSize {size} is impossible: {left} bytes are left in the segment"


def bad_finding(bad: BadRange, store: StoreFiles) -> Finding:
    """Return the finding to report for a range of the log without a valid entry."""
    kind = "log_damaged"
    if bad.unread:
        kind = "unreadable"
    elif bad.tail:
        kind = "log_torn_tail"
    return Finding(kind, bad.fault, store.relative(bad.segment.path), bad.start, bad.end)
