"""Reading the log from some place on, past what is damaged.

The rule: a bad entry with a good one somewhere behind it is damage, and reading goes on behind it;
one with nothing good behind it is where the log ends. It must not know what is done with the
entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from turbopump.message.codec import entry_fault
from turbopump.message.properties import SysFlag
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import IsLost, Steps
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.log.entry_mark import EntryMark, entry_place
from turbopump.store.mapped_file import MappedFile
from turbopump.store.queues.consume_queue import ConsumeQueue

PROGRESS_STEP: Final = 8 * 1024 * 1024
"""Bytes of log between two calls of ``on_progress``."""
_LOOK: Final = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that holds no good entry although good ones follow: offsets in bytes, and
    what is wrong at its start."""

    start: int
    end: int
    fault: str


def good_entries(
    log: CommitLog,
    begin: int,
    on_progress: Callable[[int, int], None],
    on_damage: Callable[[Damage], None] = lambda _damage: None,
    end: int | None = None,
) -> Iterator[EntryMark]:
    """The good entries from ``begin`` on, until ``end`` or to the end of the log; then
    ``log.walked_to`` and ``log.fault`` say where that is, and what is wrong there. ``on_damage``
    hears of a range before the entries behind it come. ``on_progress`` gets (offset reached, about
    where it ends) when reading begins, every few MiB, and when it has ended."""
    about = end if end is not None else _about_the_end(log)
    on_progress(begin, about)
    position, progress_at = begin, begin + PROGRESS_STEP
    while True:
        for mark in log.walk(position, end):
            yield mark
            if mark.offset >= progress_at:
                progress_at = mark.offset + PROGRESS_STEP
                on_progress(mark.offset, max(about, mark.offset))
        fault = log.fault
        following = log.next_good(log.walked_to) if fault is not None else None
        if fault is None or following is None or (end is not None and following >= end):
            reached = end if end is not None else log.walked_to
            on_progress(reached, reached)
            return
        on_damage(Damage(log.walked_to, following, fault))
        position = following


def _about_the_end(log: CommitLog) -> int:
    """Where the zeros begin at the end of the last file, if nothing but zeros follows a zero page:
    for the progress only."""
    if not log.files:
        return 0
    last = log.files.files[-1]
    low, high = 0, last.segment.size // _LOOK
    while low < high:
        middle = (low + high) // 2
        if any(last.read_at_start(middle * _LOOK, _LOOK)):
            low = middle + 1
        else:
            high = middle
    return last.start + low * _LOOK


# --- Searching a range of the log for the entries of one queue, whatever its units say.
#
# The rule: done in steps (``cold_reads.py``), for there may be much of it. What is found goes to
# ``_take``; what cannot be read is an error, or is done without. It must not know what a unit is.

PIECE_SIZE: Final = 256 * 1024
"""Bytes of the log that are searched in one turn: some 0.3 ms."""
HEAD: Final = 36
"""Bytes of an entry up to its physicalOffset, that included."""

_SECTOR: Final = 4096
_SLICE: Final = 16
"""Entries checked in one turn."""


class LogSearch:
    """A search for the message of ``index``, and for others of its queue. ``is_lost`` says of what
    cannot be read whether to do without it; else it is the ``error``. ``wanted`` is the entry that
    was looked for."""

    def __init__(self, log: CommitLog, queue: ConsumeQueue, index: int, is_lost: IsLost) -> None:
        self._log = log
        self._queue = queue
        self._index = index
        self.place = (queue.topic, queue.queue_id)
        """Topic and queue id."""
        self._is_lost = is_lost
        self._checked = 0
        self.repaired = 0
        self.wanted: bytes | None = None
        self.wanted_offset = -1
        self.error: OSError | None = None

    def walk(self, low: int, high: int, start: int, end: int) -> Steps[None]:
        """Take what between two offsets of the log says that it is the queue's, behind the message
        ``low`` and before ``high``."""
        log = self._log
        pattern = re.compile(
            rb"\xda\xa3\x20[\xa7\xab].{4}"
            + re.escape(self._queue.queue_id.to_bytes(4))
            + rb".{4}(.{8})(.{8})",
            re.DOTALL,
        )
        start = max(start, self._queue.deleted_until)
        position, narrow_to = start, start
        while position < end:
            file = log.files.at(position)
            if file is None:
                position = log.start  # retention has been here
                continue
            at = position - file.start
            size = min(_SECTOR if position < narrow_to else PIECE_SIZE, file.end - position)
            (piece,) = yield [Piece(file.segment, at, min(size + HEAD, file.segment.size - at))]
            if isinstance(piece, OSError) and size <= _SECTOR:
                (piece,) = yield [Piece(file.segment, at, size)]
            if isinstance(piece, OSError):
                if size > _SECTOR:
                    narrow_to = position + size  # only a part of it may be lost
                    continue
                self._failed(piece, file, position)
            else:
                for match in pattern.finditer(piece):
                    begin = match.start() - 4
                    index = int.from_bytes(match[1])
                    if (
                        begin >= 0
                        and low < index < high
                        and int.from_bytes(match[2]) == position + begin < end
                    ):
                        size_there = int.from_bytes(piece[begin : begin + 4])
                        yield from self._take(
                            file,
                            position + begin,
                            size_there,
                            index,
                            piece[begin : begin + size_there],
                        )
            position += size

    def _take(
        self, file: MappedFile, offset: int, size: int, index: int, entry: Found
    ) -> Steps[None]:
        """An entry that says that it is of the queue. ``entry`` is what of it is in hand."""
        raise NotImplementedError

    def _whole(
        self, file: MappedFile, offset: int, size: int, index: int, entry: Found
    ) -> Steps[bytes | None]:
        """The whole entry, if it is good and the queue's."""
        at = offset - file.start
        if not HEAD <= size <= min(ENTRY_SIZE_MAX, file.segment.size - at):
            return None
        if isinstance(entry, bytes) and len(entry) < size:
            (entry,) = yield [Piece(file.segment, at, size)]
        self._checked += 1
        if self._checked % _SLICE == 0:
            yield []
        if isinstance(entry, OSError):
            self._failed(entry, file, offset)
            return None
        return entry if self._belongs(entry, offset, index) else None

    def _failed(self, error: OSError, file: MappedFile, position: int) -> None:
        if position >= self._log.start and not self._is_lost(file.segment.path.parent, position):
            self.error = error

    def _belongs(self, entry: bytes, offset: int, index: int) -> bool:
        return (
            entry_fault(entry, offset, crc_required=self._log.requires_crc(offset)) is None
            and not entry[39] & SysFlag.TRANSACTION_PREPARED
            and entry_place(entry) == (*self.place, index)
        )

    def _entry_of(self, offset: int, size: int, index: int) -> Steps[bytes]:
        """The good entry of the queue at this offset of the log; empty if there is none."""
        file = self._log.files.at(offset) if 0 <= offset < self._log.end else None
        if file is None or not HEAD <= size <= min(ENTRY_SIZE_MAX, file.end - offset):
            return b""
        entry = yield from self._read(Piece(file.segment, offset - file.start, size))
        return entry if entry and self._belongs(entry, offset, index) else b""

    def _read(self, piece: Piece | None) -> Steps[bytes]:
        """The bytes of a piece; none where there is none, or it cannot be read."""
        if piece is None:
            return b""
        found: Found
        (found,) = yield [piece]
        return found if isinstance(found, bytes) else b""
