"""Which half messages still await their end: a table of offsets in their queue. No I/O, loop or
clock.

The rule: ``place`` only grows. Every half message before it has ended, was given up, or stands
again further behind; of those at or after it, the ended ones are in the table. What was written to
the op queue is kept in mind for as long as the table may need it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

ENDED_KEPT: Final = 100_000
"""Ended ones that are remembered: one that is ended again, later, is not delivered twice."""
COPIES_KEPT: Final = 1_000_000
"""Half messages that stand again further behind, and whose older copies are known to be the
same."""
GIVEN_UP_KEPT: Final = 100_000
"""Half messages that the last run gave up after it had kept its place."""
STEP: Final = 1000


class PendingHalves:
    """``place`` and ``op_place`` are the offsets of CID_RMQ_SYS_TRANS in the two queues."""

    def __init__(self, place: int = 0, op_place: int = 0) -> None:
        self.place = place
        self._op_place = op_place
        self._ended: set[int] = set()
        self._remembered: dict[int, None] = {}
        self._copies: dict[int, int] = {}
        self._given_up: dict[int, int] = {}
        self._marks: deque[tuple[int, int]] = deque()

    @property
    def op_place(self) -> int:
        """The first entry of the op queue that names a half message at or after ``place``."""
        marks = self._marks
        while marks and marks[0][1] < self.place:
            self._op_place = marks.popleft()[0] + 1
        return self._op_place

    def has_ended(self, *offsets: int) -> bool:
        """Whether one of these is known to have ended."""
        return any(offset in self._ended or offset in self._remembered for offset in offsets)

    def end(self, *offsets: int) -> list[int]:
        """Note that a transaction has ended, known by these offsets; every one of them and that of
        its newest copy, for the op queue."""
        every = dict.fromkeys(offsets)
        for offset in offsets:
            copy = self._copies.pop(offset, None)
            if copy is not None:
                every[copy] = None
        self.note_ended(every)
        self.advance()
        return list(every)

    def note_ended(self, offsets: Iterable[int]) -> None:
        """Note what the op queue says."""
        remembered = self._remembered
        for offset in offsets:
            if offset >= self.place:
                self._ended.add(offset)
            remembered[offset] = None
        while len(remembered) > ENDED_KEPT:
            del remembered[next(iter(remembered))]

    def note_mark(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Note that an entry of the op queue, the next one, names these."""
        self._marks.append((op_offset, max(offsets, default=-1)))

    def note_copy(self, origin: int, offset: int) -> None:
        """Note that the half message that was first at ``origin`` is at ``offset`` now."""
        if origin == offset:
            return
        self._copies.pop(origin, None)
        self._copies[origin] = offset
        while len(self._copies) > COPIES_KEPT:
            del self._copies[next(iter(self._copies))]

    def forget_copy(self, origin: int) -> None:
        """Note that a half message was given up: it stands nowhere any more."""
        self._copies.pop(origin, None)

    def newest_copy(self, origin: int) -> int | None:
        """Where the half message that was first at ``origin`` is now; None: nothing is known of
        copies."""
        return self._copies.get(origin)

    def note_given_up(self, letter: int, origin: int) -> bool:
        """Note that the log has at ``letter`` the newest letter about the half message that was
        first at ``origin``; False if no more are kept."""
        self._given_up.setdefault(origin, letter)
        return len(self._given_up) < GIVEN_UP_KEPT

    def given_up(self, origin: int) -> int | None:
        """Where in the log the letter is that was written when it was given up, as far as the start
        found one."""
        return self._given_up.get(origin)

    def forget_given_up(self) -> None:
        """Note that all which the start found pending have been looked at."""
        self._given_up.clear()

    def advance(self) -> bool:
        """Pass over ended ones, a bounded number; False if there may be more."""
        for _ in range(STEP):
            if self.place not in self._ended:
                return True
            self._ended.discard(self.place)
            self.place += 1
        return False

    def passed(self, offset: int) -> None:
        """Note that nothing is to be done any more for the half message at ``place``, if that is
        ``offset``."""
        if self.place == offset:
            self.place += 1

    def begin_at(self, offset: int) -> None:
        """Note that the queue has nothing before ``offset`` any more."""
        if offset > self.place:
            self.place = offset
            self._ended = {one for one in self._ended if one >= offset}
