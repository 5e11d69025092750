"""Table of half messages with open transactions, by offset in their queue.

The module uses no I/O, event loop or clock. ``offset`` only grows. Every half message before it has
ended, was given up, or is stored again further behind. Of the half messages from it on, the table
contains those that have ended. It also remembers the entries of the op queue for as long as a start
may need to read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

ENDED_KEPT: Final = 100_000
"""Maximum number of ended half messages in memory.

A repeated end of one of these does not deliver its message twice.
"""
COPIES_KEPT: Final = 1_000_000
"""Maximum number of half messages in memory that are stored again further behind."""
GIVEN_UP_KEPT: Final = 100_000
"""Maximum number of half messages that the last run gave up after it had saved its offset."""
STEP: Final = 1000


class PendingHalves:
    """Table of half messages with open transactions.

    - ``offset``: the offset of CID_RMQ_SYS_TRANS in the queue of half messages.
    - ``op_offset``: the offset of this group in the op queue.
    - ``copies``: the present offset of a half message, by its first offset.
    - ``given_up``: the log offset of the dead letter of a half message that the last run gave up,
      by the first offset of the half message.
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
        """Offset of the first entry of the op queue that the next start needs.

        It lists a half message at or after ``offset``.
        """
        marks = self._marks
        while marks and marks[0][1] < self.offset:
            self._op_offset = marks.popleft()[0] + 1
        return self._op_offset

    def has_ended(self, *offsets: int) -> bool:
        """Return True if a half message is known to have ended. Its copies may have several
        offsets."""
        return any(offset in self._ended or offset in self._remembered for offset in offsets)

    def mark_ended(self, *offsets: int) -> list[int]:
        """Mark a half message as ended. Return all its known offsets, for the op queue.

        - ``offsets``: offsets of the half message. The offset of its newest copy is added.
        """
        every = dict.fromkeys(offsets)
        for offset in offsets:
            copy = self.copies.pop(offset, None)
            if copy is not None:
                every[copy] = None
        self.note_ended(every)
        self.advance()
        return list(every)

    def note_ended(self, offsets: Iterable[int]) -> None:
        """Mark the half messages at these offsets as ended.

        The newest ``ENDED_KEPT`` offsets are remembered.
        """
        remembered = self._remembered
        for offset in offsets:
            if offset >= self.offset:
                self._ended.add(offset)
            remembered[offset] = None
        while len(remembered) > ENDED_KEPT:
            del remembered[next(iter(remembered))]

    def note_mark(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Record which half messages one entry of the op queue marks as ended.

        - ``op_offset``: the offset of the entry. Entries are recorded in the order of their
          offsets.
        - ``offsets``: the offsets of the half messages.
        """
        self._marks.append((op_offset, max(offsets, default=-1)))

    def note_copy(self, origin: int, offset: int) -> None:
        """Record the present offset of a half message. Its first offset was ``origin``."""
        if origin == offset:
            return
        self.copies.pop(origin, None)
        self.copies[origin] = offset
        while len(self.copies) > COPIES_KEPT:
            del self.copies[next(iter(self.copies))]

    def note_given_up(self, letter: int, origin: int) -> bool:
        """Record that a half message became a dead letter. Return False if the table is full now.

        - ``letter``: the log offset of the dead letter.
        - ``origin``: the first offset of the half message.
        """
        self.given_up.setdefault(origin, letter)
        return len(self.given_up) < GIVEN_UP_KEPT

    def advance(self) -> bool:
        """Move ``offset`` past finished half messages. One call passes at most ``STEP`` of them.

        Return False if there may be more.
        """
        for _ in range(STEP):
            if not self.is_finished(self.offset):
                return True
            self._ended.discard(self.offset)
            self._skipped.discard(self.offset)
            self.offset += 1
        return False

    def count(self, end: int) -> int:
        """Return the number of open half messages before the offset ``end``."""
        return max(end - self.offset, 0) - len(self._ended | self._skipped)

    def is_finished(self, offset: int) -> bool:
        """Return True if the half message at this offset has ended or was skipped."""
        return offset < self.offset or offset in self._ended or offset in self._skipped

    def skip(self, offset: int) -> None:
        """Skip the half message at this offset, although it has not ended.

        It was given up, is stored again further behind, or cannot be read.
        """
        if self.offset == offset:
            self.offset += 1
        elif offset > self.offset:
            self._skipped.add(offset)

    def begin_at(self, offset: int) -> None:
        """Drop the half messages before ``offset``. The queue begins there now."""
        if offset > self.offset:
            self.offset = offset
            self._ended = {one for one in self._ended if one >= offset}
            self._skipped = {one for one in self._skipped if one >= offset}
