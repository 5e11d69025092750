"""Walk over the log in steps, beside a store that is in use.

Recovery and tools walk with ``SegmentWalk``, which blocks and finds the end of the log. This walk
serves a running broker: it yields the pieces of the log that it needs (``cold_reads.py``), and
retention may delete segments meanwhile. ``LogScanner`` decides if an entry is good, or ``pack_run``
for many entries at a time. The use of an entry is unknown here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.disk.disk import Found, Piece
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.scanner import LogScanner, ScanResult, entry_starts
from turbopump.store.mapped_file import MappedFile

SECTOR: Final = 4096
"""Number of bytes that a disk reads whole or not at all."""
SLICE: Final = 64 * 1024
"""Approximate number of bytes walked before other work runs: 0.1 ms for messages of 1 KiB."""
SLICE_ENTRIES: Final = 100
"""Largest number of entries walked one by one before other work runs."""
READ_SIZE: Final = 1 << 20
"""Number of bytes read at a time by default."""


@dataclass(slots=True)
class WalkNumbers:
    """Progress of walks over the log.

    - ``bytes_checked``, ``entries_checked``: numbers of checked bytes and entries.
    - ``position``: log offset that the walk has reached.
    """

    bytes_checked: int = 0
    entries_checked: int = 0
    position: int = 0


class SteppedWalk:
    """Walk over the log in steps, while the store is in use.

    - ``on_entry``: gets each valid entry with its offset, and may return steps of its own.
    - ``on_run``: processes adjacent valid entries and returns their bytes; 0 if ``on_entry``
      should get the next entry. It gets a buffer, the position of an entry in it, the position
      to stop at, and the entry's log offset.
    - ``on_bad``: gets each range without a valid entry, and its fault.
    - ``on_unread``: gets the file, the offset of an unreadable part, and the error.
    """

    def __init__(
        self,
        log: CommitLog,
        on_entry: Callable[[bytes, int], ReadSteps[None] | None],
        *,
        on_run: Callable[[bytes, int, int, int], int] | None = None,
        on_bad: Callable[[int, int, str], None] = lambda _start, _end, _fault: None,
        on_unread: Callable[[MappedFile, int, OSError], None] = lambda _file, _offset, _error: None,
        numbers: WalkNumbers | None = None,
        read_size: int = READ_SIZE,
    ) -> None:
        self._log = log
        self._on_entry = on_entry
        self._on_run = on_run
        self._on_bad = on_bad
        self._on_unread = on_unread
        self._numbers = numbers or WalkNumbers()
        self._read_size = read_size
        self._scanner = LogScanner(log.requires_crc)

    def entries(self, position: int, end: int) -> ReadSteps[int]:
        """Give the callbacks every entry that begins in a range of the log.

        Return the offset of the next entry.
        """
        # At each ``yield`` other work runs. Retention may delete the segment meanwhile: a result is
        # used only if the same file still holds ``position``. A message may be repaired too: the
        # held bytes are dropped at both ends of a walk, so that the next one reads anew.
        log, numbers = self._log, self._numbers
        entries, slice_end = 0, position + SLICE
        self._scanner.hold_bytes(0, b"")
        while position < end:
            file = log.files.at(position)
            if file is None:
                position = max(position + 1, log.start)  # retention has deleted the segment
                continue
            numbers.position = position
            if size := self._run_at(file, position, end):
                position += size
                numbers.bytes_checked += size
                if position < end:
                    yield []
                continue
            following, entry, fault = yield from self._judge_offset(file, position)
            if log.files.at(position) is not file:
                continue
            if entry is not None:
                if (work := self._on_entry(entry, position)) is not None:
                    yield from work
                numbers.entries_checked += 1
            elif fault is not None:
                following = yield from self._next_good(file, following)
                if log.files.at(position) is file:
                    self._on_bad(position, min(following, end), fault)
            numbers.bytes_checked += min(following, end) - position
            position = following
            entries += 1
            if entries >= SLICE_ENTRIES or position >= slice_end:
                yield []
                entries, slice_end = 0, position + SLICE
        self._scanner.hold_bytes(0, b"")
        return position

    def _run_at(self, file: MappedFile, position: int, end: int) -> int:
        """Pass adjacent entries to ``on_run``, and return the number of bytes that it has
        processed."""
        scanner = self._scanner
        at = position - scanner.start
        if self._on_run is None or not 0 <= at < len(scanner.data):
            return 0
        stop = min(len(scanner.data), min(end, file.end) - scanner.start)
        return self._on_run(scanner.data, at, stop, position)

    def _judge_offset(self, file: MappedFile, offset: int) -> ReadSteps[ScanResult]:
        """Check if a valid entry begins at an offset of the log.

        If the bytes there cannot be read, the walk continues behind the unreadable sector.
        """
        while isinstance(found := self._scanner.judge_entry(offset, file.end), int):
            data = yield from self._bytes_at(file, offset, found)
            if isinstance(data, OSError):
                self._on_unread(file, offset, data)
                fault = f"it cannot be read ({data.strerror or data})"
                return ScanResult(offset - offset % SECTOR + SECTOR, None, fault)
        return found

    def _next_good(self, file: MappedFile, offset: int) -> ReadSteps[int]:
        """Return the offset of the next valid entry in a file, or the end of the file.

        The search begins at ``offset``.
        """
        while offset < file.end:
            size = min(SLICE, file.end - offset)
            data = yield from self._bytes_at(file, offset, size)
            if isinstance(data, OSError):
                self._on_unread(file, offset, data)
                offset += SECTOR - offset % SECTOR
                continue
            for start in entry_starts(data):
                found = yield from self._judge_offset(file, offset + start)
                if found.entry is not None:
                    return offset + start
            yield []
            if offset + size >= file.end:
                break
            offset += size - 8  # a magic may lie across two pieces
        return file.end

    def _bytes_at(self, file: MappedFile, offset: int, size: int) -> ReadSteps[Found]:
        """Read ``size`` bytes of the log.

        The scanner keeps them, and more bytes behind them if possible.
        """
        scanner = self._scanner
        begin = offset - scanner.start
        if not 0 <= begin <= len(scanner.data) - size:
            at, begin = offset - file.start, 0
            found: Found = b""
            # if the large piece is unreadable, the small one may not be
            for wanted in (self._read_size, SECTOR):
                length = min(max(size, wanted), file.segment.size - at)
                (found,) = yield [Piece(file.segment, at, length)]
                if isinstance(found, bytes):
                    break
            if isinstance(found, OSError):
                return found
            scanner.hold_bytes(offset, found)
        return scanner.data[begin : begin + size]
