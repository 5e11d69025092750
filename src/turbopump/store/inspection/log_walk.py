"""Reading the log from one end to the other, past whatever is damaged.

The rule: what is good is decided by ``codec.entry_fault`` alone, entry by entry, in order; behind a
bad place the walk goes on at the next good entry, wherever it lies, and if none follows the log
ends there. Memory: one piece of ``READ_SIZE``. It must not know queues.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple

from turbopump.message.codec import FIXED_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, entry_fault
from turbopump.store.commit_log import BLANK_SIZE_MIN
from turbopump.store.inspection.store_files import StoreFile
from turbopump.store.read_only_disk import ReadOnlyDisk, ReadOnlyFile

READ_SIZE: Final = 4 * 1024 * 1024
SECTOR: Final = 4096
"""Bytes given up at a time where the system cannot read."""

_LOOK: Final = struct.Struct(">II")
_CRC_NAME: Final = b"__CRC32#\x01"
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_START: Final = b"\xda\xa3\x20"
_ZEROS: Final = bytes(READ_SIZE)


class BadRange(NamedTuple):
    """Bytes ``start`` to ``end`` of the log hold no good entry. ``tail``: and none follows.
    ``unread``: the system could not read them."""

    start: int
    end: int
    fault: str
    segment: StoreFile
    tail: bool = False
    unread: bool = False


class LogWalk:
    """A walk over ``segments``. ``on_bad`` hears of every bad range, ``on_progress`` how many bytes
    of segments are done.

    ``requires_crc``: whether the entry at an offset must have a whole-entry CRC; None: none must.
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
        self._disk = disk
        self._segments = segments
        self._requires_crc = requires_crc
        self._on_bad = on_bad
        self._on_progress = on_progress
        self.end = segments[0].start if segments else 0
        """The end of the last good entry (or of the blank behind it), so far."""
        self._unread_end = 0

    def entries(self, start: int = 0, end: int = 1 << 62) -> Iterator[tuple[int, bytes]]:
        """(offset, entry) of every good entry that begins in ``start`` … ``end``. Raises OSError if
        a segment cannot be opened."""
        self.end = max(self.end, start)
        number = 0
        while number < len(self._segments):
            segment = self._segments[number]
            if segment.end <= start:
                number += 1
                continue
            if segment.start >= end:
                return
            with self._disk.open_file(segment.path) as file:
                follows = yield from self._segment_entries(
                    number, file, max(start, segment.start), end
                )
            if follows is None:
                return
            start = follows

    def _segment_entries(
        self, number: int, file: ReadOnlyFile, start: int, end: int
    ) -> Generator[tuple[int, bytes], None, int | None]:
        """The entries of one segment from ``start`` on; returns where to go on, None at the end of
        the log."""
        segment = self._segments[number]
        requires_crc = self._requires_crc
        base, limit, blank = (
            segment.start,
            min(segment.size, file.size),
            self._blank_size_min(segment),
        )
        at, piece_at, piece = start - base, start - base, b""
        while base + at < end:
            left = limit - at
            if left <= 0:
                return segment.end
            look = at - piece_at
            if look + 8 > len(piece):
                piece_at, piece, look = at, self._read(file, segment, at, READ_SIZE), 0
                self._on_progress(base + at)
            if left >= BLANK_SIZE_MIN:
                size, magic = _LOOK.unpack_from(piece, look)
                if magic in _MAGICS and FIXED_SIZE <= size <= left - blank:
                    if look + size > len(piece):
                        piece_at, piece, look = (
                            at,
                            self._read(file, segment, at, max(READ_SIZE, size)),
                            0,
                        )
                        self._on_progress(base + at)
                    entry = piece[look : look + size]
                    fault = entry_fault(entry, base + at)
                    if (
                        requires_crc
                        and fault is None
                        and entry[-20:-11] != _CRC_NAME
                        and requires_crc(base + at)
                    ):
                        fault = entry_fault(entry, base + at, crc_required=True)
                    if fault is None:
                        self.end = base + at + size
                        yield base + at, entry
                        at += size
                        continue
                elif magic == MAGIC_BLANK and size == left:
                    self.end = segment.end
                    return segment.end
                else:
                    fault = _head_fault(size, magic, left)
            else:
                fault = f"{left} bytes at the end of a segment are too few for a blank"
            follows = self._go_on(number, base + at, fault)
            if follows is None or not base <= follows < segment.end:
                return follows
            at = follows - base
        return None

    def _blank_size_min(self, segment: StoreFile) -> int:
        """What must follow every entry of a segment; nothing in a last one that lost its end, which
        recovery makes longer again."""
        cut_short = segment is self._segments[-1] and segment.size < self._segments[0].size
        return 0 if cut_short else BLANK_SIZE_MIN

    def _go_on(self, number: int, bad: int, fault: str) -> int | None:
        """Report the bad place and find the next good entry."""
        segment = self._segments[number]
        good, last = self._next_good(number, bad)
        if good is not None:
            self._on_bad(BadRange(bad, good, fault, segment))
        elif last is not None:
            self._on_bad(BadRange(bad, last + 1, fault, segment, tail=True))
        return good

    def _next_good(self, number: int, offset: int) -> tuple[int | None, int | None]:
        """(the first good entry at or after ``offset``, the last byte from there on that is not
        zero if there is none)."""
        last = None
        for segment in self._segments[number:]:
            with self._disk.open_file(segment.path) as file:
                at = file.data_from(max(offset - segment.start, 0))
                while at is not None and at < segment.size:
                    piece = self._read(file, segment, at, READ_SIZE, quiet=True)
                    if not piece:
                        break
                    if piece != _ZEROS[: len(piece)]:
                        found = self._good_in(file, segment, piece, at, offset - segment.start)
                        if found is not None:
                            return segment.start + found, None
                        last = segment.start + at + len(piece.rstrip(b"\0")) - 1
                    if at + len(piece) >= segment.size:
                        break
                    # a magic may lie across two pieces
                    at = file.data_from(at + max(len(piece) - 8, 1))
        return None, last

    def _good_in(
        self, file: ReadOnlyFile, segment: StoreFile, piece: bytes, piece_at: int, lowest: int
    ) -> int | None:
        start = 0
        while (found := piece.find(_MAGIC_START, start)) >= 0:
            start = found + 1
            at = piece_at + found - 4
            if at < max(lowest, 0):
                continue
            head = self._read(file, segment, at, 36, quiet=True)
            size = int.from_bytes(head[:4])
            if not FIXED_SIZE <= size <= segment.size - at - self._blank_size_min(segment):
                continue
            if int.from_bytes(head[28:36]) != segment.start + at:
                continue
            entry = self._read(file, segment, at, size, quiet=True)
            required = self._requires_crc is not None and self._requires_crc(segment.start + at)
            if entry_fault(entry, segment.start + at, crc_required=required) is None:
                return at
        return None

    def _read(
        self, file: ReadOnlyFile, segment: StoreFile, at: int, size: int, *, quiet: bool = False
    ) -> bytes:
        """Bytes of a segment; those that the system cannot read count as zero, and are reported
        unless ``quiet``."""
        try:
            return file.read(at, size)
        except OSError:
            pass
        parts = []
        end = min(at + size, file.size)
        while at < end:
            piece_end = min(at - at % SECTOR + SECTOR, end)
            try:
                parts.append(file.read(at, piece_end - at))
            except OSError as error:
                parts.append(bytes(piece_end - at))
                if not quiet and segment.start + at >= self._unread_end:
                    self._unread_end = segment.start + piece_end
                    fault = error.strerror or str(error)
                    self._on_bad(
                        BadRange(segment.start + at, self._unread_end, fault, segment, unread=True)
                    )
            at = piece_end
        return b"".join(parts)


def _head_fault(size: int, magic: int, left: int) -> str:
    if size == 0 and magic == 0:
        return "there are zeros where a message should begin"
    if magic == MAGIC_BLANK:
        return f"a blank of {size} bytes where {left} are left in the segment"
    if magic not in _MAGICS:
        return f"magic {magic:08X} is not a message's"
    return f"totalSize {size} cannot be: {left} bytes are left in the segment"
