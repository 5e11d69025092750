"""Half messages that wait for the end of their transaction: a table of offsets in their queue. No
I/O, loop or clock.

``offset`` only grows. Every half message before it has ended, was given up, or is stored again
further behind. Of those at or after it, the table contains the ended ones. It also remembers the
entries of the op queue for as long as a start may need to read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

ENDED_KEPT: Final = 100_000
"""Maximum offsets of ended half messages in memory. A repeated end of one of these does not deliver
its message twice."""
COPIES_KEPT: Final = 1_000_000
"""Maximum half messages whose copies further behind are in memory."""
GIVEN_UP_KEPT: Final = 100_000
"""Maximum half messages that the last run gave up after it had saved its offset."""
STEP: Final = 1000


class PendingHalves:
    """Half messages whose transactions are open.

    - ``offset`` and ``op_offset``: offsets of CID_RMQ_SYS_TRANS in the two queues.
    - ``copies``: present offset of a half message by its first offset, if known.
    - ``given_up``: log offset of a half message's dead letter (last run), by its first offset.
    """

    def __init__(self, offset: int = 0, op_offset: int = 0) -> None:
        self.offset = offset
        self.copies: dict[int, int] = {}
        self.given_up: dict[int, int] = {}
        self._op_offset = op_offset
        self._ended: set[int] = set()
        self._skipped: set[int] = set()
        self._remembered: dict[int, None] = {}
        self._marks: deque[tuple[int, int]] = deque()

    @property
    def op_offset(self) -> int:
        """Offset of the first entry of the op queue that names a half message at or after
        ``offset``."""
        marks = self._marks
        while marks and marks[0][1] < self.offset:
            self._op_offset = marks.popleft()[0] + 1
        return self._op_offset

    def has_ended(self, *offsets: int) -> bool:
        """Return True if one of these is known to have ended."""
        return any(offset in self._ended or offset in self._remembered for offset in offsets)

    def mark_ended(self, *offsets: int) -> list[int]:
        """Mark the transaction with these offsets as ended. Return these offsets and that of its
        newest copy, for the op queue."""
        every = dict.fromkeys(offsets)
        for offset in offsets:
            copy = self.copies.pop(offset, None)
            if copy is not None:
                every[copy] = None
        self.note_ended(every)
        self.advance()
        return list(every)

    def note_ended(self, offsets: Iterable[int]) -> None:
        """Mark these offsets as ended, and remember them among the newest ``ENDED_KEPT``."""
        remembered = self._remembered
        for offset in offsets:
            if offset >= self.offset:
                self._ended.add(offset)
            remembered[offset] = None
        while len(remembered) > ENDED_KEPT:
            del remembered[next(iter(remembered))]

    def note_mark(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Record that the entry at ``op_offset`` of the op queue names these offsets. Entries are
        recorded in the order of that queue."""
        self._marks.append((op_offset, max(offsets, default=-1)))

    def note_copy(self, origin: int, offset: int) -> None:
        """Record that the half message that was first at ``origin`` is at ``offset`` now."""
        if origin == offset:
            return
        self.copies.pop(origin, None)
        self.copies[origin] = offset
        while len(self.copies) > COPIES_KEPT:
            del self.copies[next(iter(self.copies))]

    def note_given_up(self, letter: int, origin: int) -> bool:
        """Record ``letter``, the log offset of the newest dead letter of the half message that was
        first at ``origin``. Return False if the table is full."""
        self.given_up.setdefault(origin, letter)
        return len(self.given_up) < GIVEN_UP_KEPT

    def advance(self) -> bool:
        """Advance past ended half messages, a bounded number. Return False if there may be more."""
        for _ in range(STEP):
            if not self.is_finished(self.offset):
                return True
            self._ended.discard(self.offset)
            self._skipped.discard(self.offset)
            self.offset += 1
        return False

    def count(self, end: int) -> int:
        """Count the half messages before ``end`` whose transactions are open."""
        return max(end - self.offset, 0) - len(self._ended | self._skipped)

    def is_finished(self, offset: int) -> bool:
        """Return True if the half message at this offset is finished: it has ended, or was
        skipped."""
        return offset < self.offset or offset in self._ended or offset in self._skipped

    def skip(self, offset: int) -> None:
        """Skip the half message at this offset, which has not ended. It was given up, is stored
        again further behind, or cannot be read."""
        if self.offset == offset:
            self.offset += 1
        elif offset > self.offset:
            self._skipped.add(offset)

    def begin_at(self, offset: int) -> None:
        """Record that the queue now begins at ``offset``."""
        if offset > self.offset:
            self.offset = offset
            self._ended = {one for one in self._ended if one >= offset}
            self._skipped = {one for one in self._skipped if one >= offset}
