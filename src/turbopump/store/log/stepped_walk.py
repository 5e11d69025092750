"""A walk over the log in steps, beside a store that is in use.

``recovery`` walks with ``EntryWalk``, here and now. This walk does the same for a running broker:
it asks for pieces of the log (``cold_reads.py``), and retention may delete segments meanwhile. The
rule: what is good is decided by ``LogScanner``, or by ``pack_run`` for many entries at a time. It
must not know what its user makes of an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.scanner import LogScanner, ScanResult, entry_starts
from turbopump.store.mapped_file import MappedFile

SECTOR: Final = 4096
"""Bytes that a disk reads whole or not at all."""
SLICE: Final = 64 * 1024
"""Bytes walked in one step, about: 0.1 ms for messages of 1 KiB."""
SLICE_ENTRIES: Final = 100
"""Entries walked one by one in one step at most."""
READ_SIZE: Final = 1 << 20
"""Bytes read at a time, unless the user of the walk says otherwise."""


@dataclass(slots=True)
class WalkNumbers:
    """Progress of walks: bytes of the log, entries, and the ``position`` in the log."""

    bytes_checked: int = 0
    entries_checked: int = 0
    position: int = 0


class SteppedWalk:
    """Walks ``log``. ``take`` gets each good entry with its offset, and may return steps of its
    own.

    ``take_run`` gets a buffer, the byte of an entry in it, the byte before which it must stop, and
    the offset of that entry in the log; it takes good entries side by side and returns their bytes
    (0: ``take`` gets the next one). ``on_bad`` gets each range without a good entry, and its fault.
    ``on_unread`` gets the file and the offset of what the system cannot read, and the error.
    """

    def __init__(
        self,
        log: CommitLog,
        take: Callable[[bytes, int], ReadSteps[None] | None],
        *,
        take_run: Callable[[bytes, int, int, int], int] | None = None,
        on_bad: Callable[[int, int, str], None] = lambda _start, _end, _fault: None,
        on_unread: Callable[[MappedFile, int, OSError], None] = lambda _file, _offset, _error: None,
        numbers: WalkNumbers | None = None,
        read_size: int = READ_SIZE,
    ) -> None:
        self._log = log
        self._take = take
        self._take_run = take_run
        self._on_bad = on_bad
        self._on_unread = on_unread
        self._numbers = numbers or WalkNumbers()
        self._read_size = read_size
        self._scanner = LogScanner(log.requires_crc)

    def entries(self, position: int, end: int) -> ReadSteps[int]:
        """Hand on the entries that begin in a range of the log; return where the next one
        begins."""
        log, numbers = self._log, self._numbers
        entries, slice_end = 0, position + SLICE
        self._scanner.hold(0, b"")
        while position < end:
            file = log.files.at(position)
            if file is None:
                position = max(position + 1, log.start)  # retention has been here
                continue
            numbers.position = position
            if size := self._run_at(file, position, end):
                position += size
                numbers.bytes_checked += size
                if position < end:
                    yield []
                continue
            following, entry, fault = yield from self._judge(file, position)
            if log.files.at(position) is not file:
                continue
            if entry is not None:
                if (work := self._take(entry, position)) is not None:
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
        self._scanner.hold(0, b"")
        return position

    def _run_at(self, file: MappedFile, position: int, end: int) -> int:
        """Bytes of the entries side by side that ``take_run`` took of what is held."""
        scanner = self._scanner
        at = position - scanner.start
        if self._take_run is None or not 0 <= at < len(scanner.data):
            return 0
        stop = min(len(scanner.data), min(end, file.end) - scanner.start)
        return self._take_run(scanner.data, at, stop, position)

    def _judge(self, file: MappedFile, offset: int) -> ReadSteps[ScanResult]:
        """Judge what lies at an offset of a file. Where that cannot be read, go on behind the
        sector."""
        while isinstance(found := self._scanner.judge(offset, file.end), int):
            data = yield from self._bytes_at(file, offset, found)
            if isinstance(data, OSError):
                self._on_unread(file, offset, data)
                fault = f"it cannot be read ({data.strerror or data})"
                return ScanResult(offset - offset % SECTOR + SECTOR, None, fault)
        return found

    def _next_good(self, file: MappedFile, offset: int) -> ReadSteps[int]:
        """Find the next good entry of the file at ``offset`` or later; return the file's end if
        there is none."""
        while offset < file.end:
            size = min(SLICE, file.end - offset)
            data = yield from self._bytes_at(file, offset, size)
            if isinstance(data, OSError):
                self._on_unread(file, offset, data)
                offset += SECTOR - offset % SECTOR
                continue
            for start in entry_starts(data):
                found = yield from self._judge(file, offset + start)
                if found.entry is not None:
                    return offset + start
            yield []
            if offset + size >= file.end:
                break
            offset += size - 8  # a magic may lie across two pieces
        return file.end

    def _bytes_at(self, file: MappedFile, offset: int, size: int) -> ReadSteps[Found]:
        """Return ``size`` bytes of the log, which the scanner then holds, with more behind them if
        it can."""
        scanner = self._scanner
        begin = offset - scanner.start
        if not 0 <= begin <= len(scanner.data) - size:
            at, begin = offset - file.start, 0
            found: Found = b""
            # where the large piece fails, the small one may not
            for wanted in (self._read_size, SECTOR):
                length = min(max(size, wanted), file.segment.size - at)
                (found,) = yield [Piece(file.segment, at, length)]
                if isinstance(found, bytes):
                    break
            if isinstance(found, OSError):
                return found
            scanner.hold(offset, found)
        return scanner.data[begin : begin + size]
