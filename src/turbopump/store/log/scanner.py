"""Search for the entries of the log, also behind damage.

``codec.entry_fault`` decides if an entry is good. A bad entry with a good one anywhere behind it is
damage, and the walk continues behind it. A bad entry with no good one behind it is the end of the
log. ``LogScanner`` judges bytes that its caller has read. ``SegmentWalk`` reads segments from front
to back, and blocks; a start and the tools use it. The scrub reads in steps (``stepped_walk.py``).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from turbopump.message.codec import entry_fault, head_fault
from turbopump.message.entry import (
    FIXED_SIZE,
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    has_crc,
)
from turbopump.store.files import StoreFile
from turbopump.store.holes import STEP, data_steps, is_all_zeros
from turbopump.store.log.commit_log import BLANK_SIZE_MIN, ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.parsed_entry import ParsedEntry, parse_entry, parse_usual_entries
from turbopump.store.mapped_file import MappedFile

T = TypeVar("T")

NOTHING: Final = "nothing is written there"
"""Fault at the usual end of a log, where zeros follow."""
NO_DIRECTORY: Final = "its topic cannot be the name of a directory"
PROGRESS_STEP: Final = 8 * 1024 * 1024
"""Number of bytes of the log between two calls of ``on_progress``."""

_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_WALK_STEP: Final = 256 * 1024
_PAGE: Final = 4096
_ENTRIES_AT_ONCE: Final = 64
_NO_END: Final = 1 << 62


class ScanResult(NamedTuple):
    """Result of checking one offset of the log.

    - ``following``: next offset to examine.
    - ``entry``: bytes of a valid entry, or None.
    - ``fault``: reason why there is no valid entry, or None.

    Without an entry and a fault, a blank was found.
    """

    following: int
    entry: bytes | None = None
    fault: str | None = None


def head_blame(size: int, magic: int, left: int) -> str:
    """Describe why no entry can begin with this size and this magic.

    ``left`` is the number of bytes up to the end of the segment.
    """
    if size == magic == 0:
        return NOTHING
    if FIXED_SIZE <= size <= min(left - BLANK_SIZE_MIN, ENTRY_SIZE_MAX):
        return f"magic {magic:08X} is not a message's"
    return f"totalSize {size} is impossible: {left} bytes are left in the segment"


class LogScanner:
    """Checks offsets of the log for valid entries, in bytes that the caller has read.

    - ``requires_crc``: returns True if the entry at an offset must have a whole-entry CRC.
    - ``blame``: describes a wrong size and magic.

    The bytes are ``data``, which begins at ``start``.
    """

    def __init__(
        self,
        requires_crc: Callable[[int], bool] | None = None,
        blame: Callable[[int, int, int], str] = head_blame,
    ) -> None:
        self._requires_crc = requires_crc
        self._blame = blame
        self.start = 0
        self.data = b""

    def hold_bytes(self, start: int, data: bytes) -> None:
        """Replace the bytes to check by ``data``, which begins at offset ``start`` of the log."""
        self.start, self.data = start, data

    def judge_entry(self, offset: int, end: int, room: int = BLANK_SIZE_MIN) -> ScanResult | int:
        """Check if a valid entry begins at an offset of the log.

        If there are too few bytes for that, return the number of bytes needed from the offset on.
        ``end`` is the end of the segment, in which ``room`` bytes must follow each entry.
        """
        left, begin = end - offset, offset - self.start
        if left < BLANK_SIZE_MIN:
            return ScanResult(
                end, None, f"{left} bytes at the end of a segment are too few for a blank"
            )
        held = len(self.data) - begin if begin >= 0 else 0
        if held < BLANK_SIZE_MIN:
            return BLANK_SIZE_MIN
        size, magic = SIZE_AND_MAGIC.unpack_from(self.data, begin)
        if magic == MAGIC_BLANK and size == left:
            return ScanResult(end)
        if magic not in _MAGICS or not FIXED_SIZE <= size <= min(left - room, ENTRY_SIZE_MAX):
            return ScanResult(offset + 1, None, self._blame(size, magic, left))
        if held < size:
            if held < HEAD_SIZE:
                return HEAD_SIZE
            fault = head_fault(self.data[begin : begin + HEAD_SIZE], offset)
            if fault is not None:
                return ScanResult(offset + 1, None, fault)
            needed: int = size
            return needed
        entry = self.data[begin : begin + size]
        fault = entry_fault(entry, offset)
        if (
            fault is None
            and not has_crc(entry)
            and self._requires_crc is not None
            and self._requires_crc(offset)
        ):
            fault = entry_fault(entry, offset, crc_required=True)
        if fault is not None:
            return ScanResult(offset + 1, None, fault)
        return ScanResult(offset + size, entry)

    def entries(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        """For each adjacent valid entry of the usual kind, from ``offset`` on, return its offset
        and its bytes.

        All entries end by ``end``, and lie in the bytes of this scanner. The result agrees with
        ``judge_entry``, and takes less than half of its time.
        """
        data, at, found = self.data, offset - self.start, list[tuple[int, bytes]]()
        requires_crc, unpack = self._requires_crc, SIZE_AND_MAGIC.unpack_from
        stop = min(len(data), end - self.start) if at >= 0 else 0
        while at + FIXED_SIZE <= stop and len(found) < _ENTRIES_AT_ONCE:
            size, magic = unpack(data, at)
            if size < FIXED_SIZE or at + size > stop or magic not in _MAGICS:
                break
            entry = data[at : at + size]
            if entry_fault(entry, offset) is not None or (
                requires_crc is not None and not has_crc(entry) and requires_crc(offset)
            ):
                break
            found.append((offset, entry))
            at += size
            offset += size
        return found


def entry_starts(data: bytes) -> Iterator[int]:
    """Yield the positions in ``data`` at which an entry may begin.

    The magic of an entry follows four bytes later.
    """
    at = data.find(MAGIC_START, 4)
    while at >= 0:
        yield at - 4
        at = data.find(MAGIC_START, at + 1)


class BadRange(NamedTuple):
    """Range of the log from ``start`` to ``end`` without a valid entry.

    - ``fault``: fault at its start.
    - ``tail``: True if no valid entry follows either.
    - ``unread``: True if the system could not read the range.
    """

    start: int
    end: int
    fault: str
    segment: StoreFile
    tail: bool = False
    unread: bool = False


class OpenSegment(Protocol):
    """Open segment of the log, read in pieces."""

    @property
    def size(self) -> int: ...
    def read(self, at: int, size: int) -> bytes:
        """Read ``size`` bytes of the segment, or fewer at the end of the file. Raises OSError."""

    def data_from(self, at: int) -> int | None:
        """Return the first position, at or after ``at``, whose bytes may not be zero.

        Return None if the rest of the segment is a hole.
        """

    def close(self) -> None: ...


class SegmentWalk(Generic[T]):
    """Walk over the valid entries of segments, from front to back.

    - ``segments``: files of the log in order.
    - ``requires_crc``: returns True if the entry at an offset must have a whole-entry CRC.
    - ``on_bad``: gets each range without a valid entry, before the entries behind it are
      yielded.
    - ``piece_size``: number of bytes read at a time.
    - ``blame``: describes a wrong size and magic.
    """

    def __init__(
        self,
        segments: Sequence[StoreFile],
        *,
        requires_crc: Callable[[int], bool] | None = None,
        on_bad: Callable[[BadRange], None] = lambda _bad: None,
        piece_size: int = 4 << 20,
        blame: Callable[[int, int, int], str] = head_blame,
    ) -> None:
        self._segments = segments
        self._scanner = LogScanner(requires_crc, blame)
        self._candidates = LogScanner(requires_crc)
        self._on_bad = on_bad
        self._piece_size = piece_size
        self.end = segments[0].start if segments else 0
        """End of the last valid entry so far, or of the blank behind it."""
        self.fault: str | None = None
        """Fault at the end of the log. None before the walk gets there, and if there is no
        fault."""
        self._items: Callable[[int, int], list[T]] | None = None
        """Optional faster reader, which parses many entries at a time.

        It returns the items of known bytes between two offsets, and moves ``end`` behind them.
        """

    def entries(self, start: int = 0, end: int = _NO_END) -> Iterator[T]:
        """Yield every valid entry that begins at an offset from ``start`` up to ``end``.

        Raises OSError if a segment cannot be opened.
        """
        self.end = max(self.end, start)
        for number, segment in enumerate(self._segments):
            if segment.end <= start:
                continue
            if segment.start >= end:
                return
            with closing(self._open_segment(segment)) as file:
                follows = yield from self._segment_entries(
                    number, file, max(start, segment.start), end
                )
            if follows is None:
                return
            start = follows

    @abstractmethod
    def _open_segment(self, segment: StoreFile) -> OpenSegment: ...

    @abstractmethod
    def _item_of(self, offset: int, entry: bytes) -> T | str:
        """Return the item to yield for an entry, or the fault of the entry.

        The entry has already passed ``entry_fault``.
        """

    def _read_segment(
        self, file: OpenSegment, segment: StoreFile, at: int, size: int, *, ahead: bool
    ) -> bytes:
        """Read bytes of a segment.

        ``ahead`` is True if the walk is searching for the next valid entry.
        """
        return file.read(at, size)

    def _room_behind(self, segment: StoreFile) -> int:
        """Return the number of bytes that must follow every entry of a segment."""
        return BLANK_SIZE_MIN

    def _segment_entries(
        self, number: int, file: OpenSegment, offset: int, end: int
    ) -> Generator[T, None, int | None]:
        """Yield the valid entries of one segment, from ``offset`` on.

        Return the offset to continue at, or None at the end of the log.
        """
        # ``_items`` returns many usual entries at a time. Where it stops, ``judge_entry`` decides
        # alone what is there: an entry of another kind, a blank, damage or the end. So both agree
        # on every offset. A segment that is shorter than its entries say reads as zeros behind its
        # end.
        segment, scanner = self._segments[number], self._scanner
        limit, room = min(segment.end, segment.start + file.size), self._room_behind(segment)
        while offset < end:
            if offset >= limit:
                return segment.end
            if self._items is not None and (
                items := self._items(offset, min(limit - BLANK_SIZE_MIN, end))
            ):
                offset = self.end
                yield from items
                continue
            found = scanner.judge_entry(offset, limit, room)
            if isinstance(found, int):
                at = offset - segment.start
                size = min(max(self._piece_size, found), file.size - at)
                piece = self._read_segment(file, segment, at, size, ahead=False)
                scanner.hold_bytes(offset, piece.ljust(found, b"\0"))
                continue
            fault = found.fault
            if found.entry is not None:
                item = self._item_of(offset, found.entry)
                if not isinstance(item, str):
                    self.end = offset = found.following
                    yield item
                    continue
                fault = item
            elif fault is None:
                self.end = segment.end
                return segment.end
            follows = self._skip_bad_range(number, offset, fault)
            if follows is None or not segment.start <= follows < segment.end:
                return follows
            offset = follows
        return None

    def _skip_bad_range(self, number: int, bad: int, fault: str) -> int | None:
        """Report the range without a valid entry that begins at ``bad``.

        Return the offset of the next valid entry, or None.
        """
        segment = self._segments[number]
        good, last = self._next_good(number, bad)
        if good is not None:
            self._on_bad(BadRange(bad, good, fault, segment))
        else:
            self.fault = fault
            if last is not None:
                self._on_bad(BadRange(bad, last + 1, fault, segment, tail=True))
        return good

    def _next_good(self, number: int, bad: int) -> tuple[int | None, int | None]:
        """Return the offset of the first valid entry behind ``bad``, or None.

        If there is none, also return the offset of the last byte from there on that is not zero.
        """
        # Sizes before ``bad`` cannot be trusted, so the search does not follow entries: every byte
        # is a candidate. It searches for the first three bytes of the magic. A candidate begins
        # four bytes before one, and counts only if it is a whole good entry that contains this very
        # offset. So a message whose body holds a copy of another entry is no candidate. The rest of
        # the log is searched, except holes. The log may end here only if no good entry follows
        # anywhere, because recovery deletes what it cuts off.
        last = None
        for segment in self._segments[number:]:
            with closing(self._open_segment(segment)) as file:
                read_to = -1
                for step in data_steps(file, max(bad - segment.start, 0)):
                    at = step - 8 if step == read_to else step  # a magic may lie across two pieces
                    read_to = min(step + STEP, segment.size)
                    data = self._read_segment(file, segment, at, read_to - at, ahead=True)
                    if is_all_zeros(data):
                        continue
                    last = segment.start + at + len(data.rstrip(b"\0")) - 1
                    for start in entry_starts(data):
                        offset = segment.start + at + start
                        if offset > bad and self._is_good(file, segment, offset):
                            return offset, None
        return None, last

    def _is_good(self, file: OpenSegment, segment: StoreFile, offset: int) -> bool:
        """Return True if a valid entry begins at this offset. Only this entry is read."""
        scanner, start = self._candidates, segment.start
        while isinstance(
            found := scanner.judge_entry(offset, segment.end, self._room_behind(segment)), int
        ):
            data = self._read_segment(file, segment, offset - start, found, ahead=True)
            scanner.hold_bytes(offset, data.ljust(found, b"\0"))
        entry = found.entry
        return entry is not None and not isinstance(self._item_of(offset, entry), str)


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged range of the log, with valid entries behind the range.

    - ``start``, ``end``: log offsets.
    - ``fault``: fault at the start.
    """

    start: int
    end: int
    fault: str


class _AtStart:
    """Log file for the walk at a broker's start. The file stays open after the walk."""

    def __init__(self, file: MappedFile) -> None:
        self.size = file.segment.size
        self.read = file.read_at_start
        self.data_from = file.segment.data_from

    def close(self) -> None:
        pass


class EntryWalk(SegmentWalk[ParsedEntry]):
    """Walk over the entries of a log that is being opened.

    - ``on_damage``: gets a damaged range before the entries behind it are yielded.
    - ``on_progress``: gets (offset reached, approximate end) at the start, every few MiB, and
      at the end.

    The walk reads files, not their maps: maps would bring the whole log into this process's memory.
    """

    def __init__(
        self,
        log: CommitLog,
        on_progress: Callable[[int, int], None] = lambda _offset, _end: None,
        on_damage: Callable[[Damage], None] = lambda _damage: None,
    ) -> None:
        super().__init__(
            [StoreFile(file.start, file.segment.size, file.segment.path) for file in log.files],
            requires_crc=log.requires_crc,
            on_bad=self._report_damage,
            piece_size=_WALK_STEP,
        )
        self._log = log
        self._on_progress = on_progress
        self._on_damage = on_damage
        self._topics: dict[bytes, str] = {}
        self._items = self._parse_usual

    def entries(self, start: int = 0, end: int = _NO_END) -> Iterator[ParsedEntry]:
        about = _about_the_end(self._log) if end == _NO_END else end
        self._on_progress(start, about)
        progress_at = start + PROGRESS_STEP
        for parsed in super().entries(start, end):
            yield parsed
            if parsed.offset >= progress_at:
                progress_at = parsed.offset + PROGRESS_STEP
                self._on_progress(parsed.offset, max(about, parsed.offset))
        if end == _NO_END:
            end = self.end
        self._on_progress(end, end)

    def _report_damage(self, bad: BadRange) -> None:
        if not bad.tail:
            self._on_damage(Damage(bad.start, bad.end, bad.fault))

    def _open_segment(self, segment: StoreFile) -> OpenSegment:
        file = self._log.files.at(segment.start)
        assert file is not None
        return _AtStart(file)

    def _item_of(self, offset: int, entry: bytes) -> ParsedEntry | str:
        parsed = parse_entry(entry, offset)
        if parsed is None:
            return NO_DIRECTORY
        self._topics[parsed.topic.encode()] = parsed.topic
        return parsed

    def _parse_usual(self, offset: int, end: int) -> list[ParsedEntry]:
        data, begin = self._scanner.data, offset - self._scanner.start
        if not 0 <= begin < len(data):
            return []
        stop, requires_crc = begin + end - offset, self._log.requires_crc
        found = parse_usual_entries(data, begin, stop, offset, requires_crc, self._topics)
        if found:
            self.end = found[-1].offset + found[-1].size
        return found


def entry_at(log: CommitLog, offset: int) -> ParsedEntry | None:
    """Return the valid entry at this offset of the log, or None.

    A start uses this for single entries. ``EntryWalk`` would read more of the log than one entry.
    Raises OSError.
    """
    file, scanner = log.files.at(offset), LogScanner(log.requires_crc)
    if file is None:
        return None
    while isinstance(found := scanner.judge_entry(offset, file.end), int):
        scanner.hold_bytes(offset, file.read_at_start(offset - file.start, found))
    return parse_entry(found.entry, offset) if found.entry is not None else None


def _about_the_end(log: CommitLog) -> int:
    """Return an offset in the last file of the log. All pages of the file behind this offset are
    zero.

    Only the progress uses this estimate.
    """
    if not log.files:
        return 0
    last = log.files.files[-1]

    def is_zero(page: int) -> bool:
        return not any(last.read_at_start(page * _PAGE, _PAGE))

    pages = range(last.segment.size // _PAGE)
    return last.start + bisect_left(pages, True, key=is_zero) * _PAGE
