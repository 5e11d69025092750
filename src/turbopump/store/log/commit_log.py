"""The commit log: every message of every topic, one after the other, as ``message/codec.py`` lays
it out.

::

    segment   entry entry entry … blank        1 GiB by default, named by the offset of its first byte
    entry     message/codec.py
    blank     4 bytes: remaining size of the file from here (these included), 4 bytes: CBD43194, then anything

An entry and 8 bytes must fit, else the rest of the segment becomes a blank and the entry begins the
next: no entry spans files, and every full file ends in a blank. Source: apache/rocketmq
``CommitLog``. It assigns physical offsets; queue offsets come from outside.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.errors import MessageError, RoomInMakingError
from turbopump.message.codec import FIXED_SIZE, HEAD_SIZE, MAGIC_BLANK, entry_fault, head_fault
from turbopump.store.disk import Disk
from turbopump.store.log.entry_mark import EntryMark, quick_marks, read_mark
from turbopump.store.mapped_file import STEP, MappedFile, MappedFiles, data_steps

BLANK_SIZE_MIN: Final = 8
POPULATE_STEP: Final = 8 * 1024 * 1024
"""Bytes of fresh pages asked for at a time, ahead of the writes."""
SMALL_STEP: Final = 1024 * 1024
"""The same where every send waits for a sync: pages asked for are dirty, and the next sync writes
them all."""
_SPARE_AT: Final = 4 * POPULATE_STEP
"""The next file is made when the current one has less left than this."""

NOTHING: Final = "nothing is written there"
"""The fault where a log plainly ends: zeros."""

_BLANK: Final = struct.Struct(">II")
_WALK_STEP: Final = 256 * 1024
ENTRY_SIZE_MAX: Final = 1 << 26
"""No entry is larger (64 MiB; a frame has 16 MiB): a size that says so is wrong, and is not
read."""
_MAGIC_START: Final = b"\xda\xa3\x20"


class CommitLog:
    """The log in the directories ``roots``, and in those that are ``read_only``. ``place`` to
    ``written``: one copy into the map.

    ``synced_often``: a few messages at a time (SYNC_FLUSH); fresh pages then come in small numbers
    and sizes. ``requires_crc``: whether the entry at an offset was written with a whole-entry CRC,
    so that its absence is damage. ``full_roots``: where no segment should be made. ``on_segment``
    is called with its start when a segment begins, before its first entry is written.
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
        self.files = MappedFiles(
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
        """Physical offset of the next entry."""
        self._current: MappedFile | None = None
        self._populated = 0
        self._populating = False
        self._synced_often = synced_often
        self._step = SMALL_STEP if synced_often else POPULATE_STEP
        self.requires_crc = requires_crc
        self._on_segment = on_segment

    def load(self) -> None:
        """Map what is there; ``end`` is unknown until recovery calls ``open_at``."""
        self.files.load()

    @property
    def start(self) -> int:
        """Physical offset of the first byte that is still there."""
        return self.files.start

    @property
    def is_young(self) -> bool:
        """Whether it has one segment, the very first: recovery then reads all of it."""
        return self.start == 0 and len(self.files.files) <= 1

    def open_at(self, end: int) -> None:
        """Append from ``end`` on; everything after it is cut off."""
        self.files.truncate(end)
        self.end = end
        self._current = self.files.at(end)
        self._populated = end

    def place(self, size: int) -> int:
        """The physical offset at which an entry of ``size`` bytes will go: at the end, or at the
        start of the next segment.

        Raises OSError if a new segment cannot be made, RoomInMakingError if one is being made,
        MessageError if no segment can hold it; nothing has changed then.
        """
        current = self._current
        if current is not None and current.end - self.end >= size + BLANK_SIZE_MIN:
            return self.end
        if size + BLANK_SIZE_MIN > self.segment_size:
            raise MessageError(
                f"the message or batch takes {size} bytes in the store, more than a commit log "
                f"file of {self.segment_size} holds; "
                "send less at once (mappedFileSizeCommitLog is the size, and stays as it is for "
                "a store that has messages)"
            )
        return self._roll()

    def new_file_for(self, size: int) -> int:
        """Bytes of the file that ``place`` would make for an entry of ``size`` bytes; 0 if it needs
        none."""
        current = self._current
        fits = current is not None and current.end - self.end >= size + BLANK_SIZE_MIN
        return 0 if fits or self.files.has_spare else self.segment_size

    @property
    def room(self) -> tuple[Any, int]:
        """The map that the offset which ``place`` gave lies in, and the byte of it: where the entry
        is to be written."""
        current = self._current
        assert current is not None
        return current.buffer, self.end - current.start

    def written(self, size: int) -> None:
        """The ``size`` bytes that ``place`` was asked for are in their place."""
        assert self._current is not None
        self._current.dirty = True
        self.end += size
        if self.end > self._populated - self._step // 2:
            self._populate_ahead()

    def read(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes at ``offset`` of one segment; None if they are not there."""
        file = self.files.at(offset)
        if file is None or offset + size > file.end:
            return None
        return file.segment.read(offset - file.start, size)

    def segment_end(self, offset: int) -> int:
        """Where the segment ends that ``offset`` lies in: what is before that can be read in one
        piece."""
        start = self.files.start
        return offset + self.segment_size - (offset - start) % self.segment_size

    def walk(self, start: int, end: int | None = None) -> Iterator[EntryMark]:
        """The good entries from ``start`` on, until ``end`` or the first that is not good (see
        ``codec.entry_fault``).

        ``walked_to`` says how far it came, ``fault`` why it stopped there (None: there is no more
        log).
        """
        self.walked_to = start
        self.fault: str | None = None
        window = _Window()
        topics: dict[bytes, str] = {}
        limit = end if end is not None else 1 << 62
        while self.walked_to < limit:
            file = self.files.at(self.walked_to)
            if file is None:
                return
            at, left = self.walked_to - file.start, file.end - self.walked_to
            if left < BLANK_SIZE_MIN:
                self.fault = f"{left} bytes at the end of a segment are too few for a blank"
                return
            piece, begin = window.cover(file, at)
            room = min(left - BLANK_SIZE_MIN, limit - self.walked_to)
            for mark in quick_marks(
                piece, begin, begin + room, self.walked_to, self.requires_crc, topics
            ):
                self.walked_to = mark.offset + mark.size
                yield mark
            if self.walked_to > file.start + at:
                continue
            size, magic = _BLANK.unpack_from(piece, begin)
            if magic == MAGIC_BLANK and size == left:
                self.walked_to = file.end
                continue
            if size == magic == 0:
                self.fault = NOTHING
                return
            judged = self._judge(file, at, size, window.read)
            if isinstance(judged, str):
                self.fault = judged
                return
            topics[judged.topic.encode()] = judged.topic
            self.walked_to += size
            yield judged

    def entry_at(self, offset: int) -> EntryMark | None:
        """The good entry at this offset; None if there is none. For single looks at a start:
        ``walk`` reads ahead. Raises OSError."""
        file = self.files.at(offset)
        if file is None or file.end - offset < FIXED_SIZE + BLANK_SIZE_MIN:
            return None
        at = offset - file.start
        mark = self._judge(
            file, at, int.from_bytes(file.read_at_start(at, 4)), MappedFile.read_at_start
        )
        return None if isinstance(mark, str) else mark

    def _judge(
        self, file: MappedFile, at: int, size: int, read: Callable[[MappedFile, int, int], bytes]
    ) -> EntryMark | str:
        """The entry of ``size`` bytes at ``at`` of a file, or what is wrong with it."""
        left = file.segment.size - at
        if not FIXED_SIZE <= size <= min(left - BLANK_SIZE_MIN, ENTRY_SIZE_MAX):
            return f"totalSize {size} cannot be: {left} bytes are left in the segment"
        position = file.start + at
        fault = head_fault(read(file, at, HEAD_SIZE), position)
        if fault is not None:
            return fault
        entry = read(file, at, size)
        fault = entry_fault(entry, position, crc_required=self.requires_crc(position))
        if fault is not None:
            return fault
        return read_mark(entry, position) or "its topic cannot be the name of a directory"

    def next_good(self, offset: int) -> int | None:
        """The offset of the first good entry after ``offset``, wherever it lies; None: what is
        there is a torn tail."""
        for file in self.files.files:
            if file.end <= offset:
                continue
            read_to = -1
            for step in data_steps(file.segment, max(offset + 1 - file.start, 0)):
                at = step - 8 if step == read_to else step  # a magic may lie across two pieces
                read_to = min(step + STEP, file.segment.size)
                found = self._good_in(file, file.read_at_start(at, read_to - at), at, offset)
                if found is not None:
                    return found
        return None

    def _good_in(self, file: MappedFile, piece: bytes, at: int, after: int) -> int | None:
        start = 0
        while (found := piece.find(_MAGIC_START, start)) >= 0:
            start = found + 1
            entry_at = at + found - 4
            if (
                entry_at < 0
                or file.start + entry_at <= after
                or entry_at + FIXED_SIZE > file.segment.size
            ):
                continue
            size = int.from_bytes(file.read_at_start(entry_at, 4))
            if not isinstance(self._judge(file, entry_at, size, MappedFile.read_at_start), str):
                return file.start + entry_at
        return None

    def close(self) -> None:
        self.files.close()
        self._current = None

    def _roll(self) -> int:
        """Fill the current segment with a blank and open the next; the new end."""
        current = self._current
        start = current.end if current is not None else self.end
        if self.files.wait_for_spare:
            raise RoomInMakingError("the next file of the commit log is being made")
        fresh = self.files.append_file(start)
        if current is not None:
            at = self.end - current.start
            _BLANK.pack_into(current.buffer, at, current.end - self.end, MAGIC_BLANK)
            current.dirty = True
        self._current = fresh
        self.end = start
        self._populated = start
        self._populate_ahead()
        self._on_segment(start)
        return start

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


class _Window:
    """Reads files front to back in pieces, not through their maps: a long walk would bring the
    whole log into this process's memory."""

    def __init__(self) -> None:
        self._file: MappedFile | None = None
        self._at = 0
        self._piece = b""

    def cover(self, file: MappedFile, at: int, size: int = BLANK_SIZE_MIN) -> tuple[bytes, int]:
        """A piece that has ``size`` bytes from ``at`` on, and more if it can; and where in it they
        begin."""
        start = at - self._at
        if file is not self._file or start < 0 or start + size > len(self._piece):
            self._piece = file.read_at_start(at, min(max(size, _WALK_STEP), file.segment.size - at))
            self._file, self._at, start = file, at, 0
        return self._piece, start

    def read(self, file: MappedFile, at: int, size: int) -> bytes:
        piece, start = self.cover(file, at, size)
        return piece[start : start + size]


# --- How long appends took, counted in Apache's thirteen classes and told once a minute on a line of
# Apache's form.
#
# An append under a millisecond, nearly every one, costs nothing here: how many there were follows
# from the number of messages. Source: apache/rocketmq
# ``StoreStatsService.setPutMessageEntireTimeMax``, which counts in whole milliseconds.

_TEXT: Final = (
    "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] "
    "[3~4s] [4~5s] [5~10s] [10s~]"
)
NAMES: Final = tuple(_TEXT.split(" "))
BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
SLOW_S: Final = 0.001
"""From here on an append is counted one by one."""


class AppendLatency:
    """``appended()`` is the number of messages appended so far. ``on_slow`` gets the seconds of
    each append from ``SLOW_S`` on."""

    def __init__(self, appended: Callable[[], int]) -> None:
        self._appended = appended
        self._before = 0
        self._slow = [0] * len(NAMES)
        self.last_minute: dict[str, int] = dict.fromkeys(NAMES, 0)
        """Class to count, of the minute that ended last."""
        self.longest = 0.0
        """Seconds."""
        self.on_slow: Callable[[float], None] = lambda _seconds: None

    def begin(self) -> None:
        """What there is now was appended before."""
        self._before = self._appended()

    def slow(self, seconds: float) -> None:
        """An append took ``SLOW_S`` or longer; one of a batch counts once."""
        self._slow[bisect_right(BOUNDS_MS, int(seconds * 1000))] += 1
        self.longest = max(self.longest, seconds)
        self.on_slow(seconds)

    def end_minute(self) -> str:
        """Close a minute: its counts are ``last_minute`` now. The line for the log."""
        now = self._appended()
        counts = [*self._slow]
        counts[0] += max(now - self._before - sum(self._slow), 0)
        self._before, self._slow = now, [0] * len(NAMES)
        self.last_minute = dict(zip(NAMES, counts, strict=True))
        text = "".join(f"{name}:{count} " for name, count in self.last_minute.items())
        return f"[PAGECACHERT] TotalPut {sum(counts)}, PutMessageDistributeTime {text}"


# --- What goes into a store, and where it then is.


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to append. ``properties`` is UTF-8 property text that ends with its separator, or
    empty; ``tags_code`` as ``java_hash.tags_code`` makes it; ``unique`` and ``keys`` are what it is
    indexed by."""

    body: bytes
    properties: bytes
    tags_code: int
    flag: int = 0
    unique: str | None = None
    keys: str | None = None


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a message, or the first of a batch, now is; ``log_end`` is what the flush must pass."""

    queue_offset: int
    offset: int
    log_end: int
