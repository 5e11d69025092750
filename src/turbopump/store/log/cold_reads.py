"""Read data that may not be in memory, without blocking the owner's event loop.

A page fault inside a map holds the GIL until the device has answered, and blocks every send. So
data from an earlier run, or written long ago, is read by ``ReadSteps``: generators that yield the
pieces of files they need, are sent the bytes, and return an outcome. ``ColdReads.run`` drives them.
It copies pieces at once if the system has them in memory (a ``preadv`` that does not wait). Threads
read the other pieces, and the generator continues afterwards. ``ColdReads.finish`` reads everything
at once, and blocks.

All other work happens in the owner's thread, one step at a time, between the loop's other work
(``take_turns``). So a reader of a backlog slows nobody down. A broker reads through
``broker/reading.py``. The meaning of the data is unknown here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from turbopump.disk.disk import Disk, Found, Piece, read_now

T = TypeVar("T")

ReadSteps = Generator[list[Piece], list[Found], T]
"""Read of pieces of files, as a generator that yields the pieces it needs.

It is sent the bytes of each piece, or the OSError, and returns the outcome of the read. After a
while of work it yields no piece, so that other reads can run.
"""

IsLost = Callable[[Path, int], bool]
"""Returns True if an unreadable offset in the files of a directory should be passed over."""

AT_ONCE: Final = 4
"""Number of concurrent reads in threads: enough to keep an SSD busy."""
SHARE: Final = 0.25
"""Time for reads in one turn of the event loop, as a share of the time of the loop's other work.

At least one step of a read runs, and for at most ``TURN_S``.
"""
TURN_S: Final = 0.000_2
"""Longest time for reads in one turn of the event loop, in seconds. A longer turn was preempted,
and other work should not wait even more."""
QUIET_S: Final = 0.02
"""Writers count as active for this many seconds after the last write."""
PAUSE_MIN_S: Final = 0.001
"""Shortest pause between reads in seconds. Timers of event loops are no finer."""
CREDIT_MAX_S: Final = 0.001
"""Largest credit of reading time in seconds, while writers are active."""
DEBT_MAX_S: Final = 0.005
"""Largest debt of reading time in seconds. In a longer turn the process was preempted, and did not
read all that time."""
VIEW_SIZE_MAX: Final = 512 * 1024
"""Largest piece in bytes that ``at_once`` reads."""
WAITING_MAX: Final = 10_000
"""Largest number of reads that wait for a thread; more are refused."""
_FAILURES_KEPT: Final = 10_000


class ReadState(Enum):
    """State of a read without an outcome."""

    PENDING = "the outcome comes later"
    REFUSED = "too many reads wait; there will be no outcome"


@dataclass(slots=True)
class ReadNumbers:
    """Statistics of reads since the start of the store, in pieces and bytes."""

    pieces_in_memory: int = 0
    pieces_from_disk: int = 0
    bytes_from_disk: int = 0
    errors: int = 0
    refused: int = 0


class ReadPace:
    """Limit on the time that reads may take while writers are active.

    - ``share``: part of the time that reads may take, from 0 to 1.
    - ``written``: returns a number that grows with each write.
    - ``later``: calls a function after some seconds (``loop.call_later``).

    Pauses between reads keep this share. Without active writers reads are not limited.
    """

    def __init__(
        self,
        share: float,
        written: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        assert 0 < share <= 1
        self.later = later
        self._share = share
        self._written = written
        self._seen = written()
        self._grew = float("-inf")
        self._counted = self._credit = 0.0

    def took(self, begun: float, ended: float) -> None:
        """Record that reads ran from ``begun`` to ``ended``. Both times are in seconds."""
        written = self._written()
        if written != self._seen:
            self._seen = written
            self._grew = ended
        if ended - self._grew > QUIET_S:
            self._credit = CREDIT_MAX_S
        else:
            self._earn(ended)
            self._credit = max(self._credit - (ended - begun), -DEBT_MAX_S)
        self._counted = ended

    def pause(self, now: float) -> float:
        """Return the seconds until reads may run again, or 0 if they may run at once."""
        if self._credit >= 0:
            return 0.0
        self._earn(now)
        return max(-self._credit / self._share, PAUSE_MIN_S) if self._credit < 0 else 0.0

    def _earn(self, now: float) -> None:
        self._credit = min(self._credit + self._share * (now - self._counted), CREDIT_MAX_S)
        self._counted = now


@dataclass(slots=True, eq=False)
class _Read:
    steps: ReadSteps[Any]
    pieces: list[Piece]
    found: list[Found] | None
    done: Callable[[Any], None]
    wanted: Callable[[], bool]
    failed: Callable[[Exception], None] | None


class ColdReads:
    """Runs the reads of one store without blocking the event loop, even if data must come from the
    disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._ready: deque[_Read] = deque()
        self._waiting: deque[_Read] = deque()
        self.under_way = 0
        """Number of reads running in threads."""
        self._closed = False
        self._worked: Counter[Path] = Counter()
        self._failed: dict[tuple[Path, int], int] = {}
        self._soon: Callable[[Callable[[], None]], object] | None = None
        self._now: Callable[[], float] = lambda: 0.0
        self._turn_ended = 0.0
        self._pace: ReadPace | None = None
        self._view = memoryview(b"")
        self._has_missed = False
        self.numbers = ReadNumbers()

    def take_turns(
        self,
        soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        pace: ReadPace | None = None,
    ) -> None:
        """Run reads in short steps between the other work of an event loop.

        - ``soon``: calls a function in the loop's next turn (``loop.call_soon``).
        - ``now``: returns the time in seconds, precise to the microsecond. uvloop's clock has
          whole milliseconds, as long as ten steps.
        - ``pace``: sets the pauses between turns.

        Before this call, every read runs to its end at once.
        """
        self._soon = soon
        self._now = now
        self._pace = pace

    @property
    def waiting(self) -> int:
        """Number of started reads without an outcome."""
        return self.under_way + len(self._waiting) + len(self._ready)

    def run(
        self,
        steps: ReadSteps[T],
        done: Callable[[T], None],
        wanted: Callable[[], bool] = lambda: True,
        failed: Callable[[Exception], None] | None = None,
    ) -> T | Literal[ReadState.PENDING, ReadState.REFUSED]:
        """Run a read, and return its outcome if all data is in memory and no other read waits.

        Otherwise ``done`` gets the outcome later, or ``failed`` gets the error that the steps
        raise. A waiting read is dropped when ``wanted`` returns False (the connection is closed),
        and when the store closes.
        """
        try:
            pieces = next(steps)
            if not self._has_missed:
                pieces = self._run_ahead(steps, pieces, self._in_memory)
            self._has_missed = False
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome
        if self._closed or (
            self.under_way >= AT_ONCE and len(self._waiting) + len(self._ready) >= WAITING_MAX
        ):
            self.numbers.refused += 1
            return ReadState.REFUSED
        outcomes: list[T] = []
        read = _Read(steps, pieces, None if pieces else [], outcomes.append, wanted, failed)
        self._take_turn(read)
        read.done = done
        return outcomes[0] if outcomes else ReadState.PENDING

    def at_once(self, steps: ReadSteps[T]) -> T | None:
        """Return the outcome of a read if all its data is in memory and no other read waits.

        After None, use ``run`` with new steps. Each step may read one piece only. Nothing is copied
        for the steps: they get a view, which is valid until they yield again.
        """
        try:
            self._run_ahead(steps, next(steps), self._view_of)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome
        return None

    def _view_of(self, pieces: list[Piece]) -> list[Any] | None:
        (piece,) = pieces
        if piece.size > VIEW_SIZE_MAX:
            return None
        if not self._view:
            self._view = memoryview(bytearray(VIEW_SIZE_MAX))
        view = self._view[: piece.size]
        if piece.segment.read_cached_into(view, piece.at):
            self.numbers.pieces_in_memory += 1
            return [view]
        self._has_missed = True  # ``run`` then starts a thread without another look
        return None

    def _run_ahead(
        self,
        steps: ReadSteps[Any],
        pieces: list[Piece],
        in_memory: Callable[[list[Piece]], list[Any] | None],
    ) -> list[Piece]:
        """Run the steps of a read until a step needs data from the disk, or the time is used up.

        Return the next pieces that the read needs. The call does nothing if other reads wait, the
        store is closing, or the pace demands a pause. Raises StopIteration with the outcome of the
        read.
        """
        # Most cold reads find their bytes in the system's cache (a backlog after a restart). A turn
        # of the loop for each of their two or three steps would cost more than the reads. So these
        # steps run here, inside the request. Their time is charged to the pace like any other turn,
        # so that a reader that asks again and again cannot pass the waiting ones.
        pace = self._pace
        if pace is None or self._ready or self._waiting or self._closed:
            return pieces
        begun = now = self._now()
        if pace.pause(begun):
            return pieces
        try:
            while pieces and now - begun < TURN_S:
                found = in_memory(pieces)
                if found is None:
                    break
                pieces = steps.send(found)
                now = self._now()
            return pieces
        finally:
            pace.took(begun, self._now())

    def finish(self, steps: ReadSteps[T]) -> T:
        """Run a read to its end, and return its outcome. The call blocks the thread."""
        return finish_now(steps, lambda pieces: self._count(pieces, _read_all(pieces)))

    def is_lost(self, directory: Path, offset: int) -> bool:
        """Return True if an unreadable offset in the files of a directory should be given up.

        The offset is given up if it fails again after other reads in the directory have worked. If
        every read fails, the device may be gone and may come back.
        """
        if len(self._failed) >= _FAILURES_KEPT:
            self._failed.clear()
        worked = self._worked[directory]
        return worked > self._failed.setdefault((directory, offset), worked)

    def close(self) -> None:
        """Drop all waiting reads. Reads in threads end with ``Disk.close``."""
        self._closed = True
        self._waiting.clear()
        self._ready.clear()

    def _start(self, read: _Read) -> None:
        if self.under_way >= AT_ONCE:
            self._waiting.append(read)
            return
        self.under_way += 1
        self._disk.start_read(read.pieces, lambda found: self._arrived(read, found))

    def _arrived(self, read: _Read, found: list[Found]) -> None:
        self.under_way -= 1
        self._count(read.pieces, found)
        while self._waiting and self.under_way < AT_ONCE:
            following = self._waiting.popleft()
            if following.wanted():
                self._start(following)
        read.found = found
        self._take_turn(read)

    def _take_turn(self, read: _Read) -> None:
        if self._soon is None:
            while not self._closed and self._step(read):
                pass
        elif not self._closed:
            self._ready.append(read)
            if len(self._ready) == 1:
                self._turn_ended = now = self._now()
                self._call_for_turn(now)

    def _call_for_turn(self, now: float) -> None:
        assert self._soon is not None
        pause = self._pace.pause(now) if self._pace is not None else 0.0
        if self._pace is not None and pause:
            self._pace.later(pause, self._resume)
        else:
            self._soon(self._next_turn)

    def _resume(self) -> None:
        self._turn_ended = self._now()
        self._next_turn()

    def _next_turn(self) -> None:
        """Run steps of waiting reads until their share of the time is used. At least one step
        runs."""
        # Steps run in the one thread that also answers sends. A fixed number of steps a turn would
        # either starve readers on an idle broker or hold up sends on a busy one. So the time of the
        # loop's other work since the last turn sets the time for reads. Under load a reader gets a
        # fifth of the thread; alone it runs one step a turn, back to back. ``TURN_S`` is the limit:
        # a longer turn was preempted, and that time must not be repaid.
        begun = self._now()
        until = begun + min(SHARE * (begun - self._turn_ended), TURN_S)
        try:
            while self._ready:
                self._step_first()
                if self._now() >= until:
                    break
        finally:
            self._turn_ended = ended = self._now()
            if self._pace is not None:
                self._pace.took(begun, ended)
            if self._ready:
                self._call_for_turn(ended)

    def _step_first(self) -> None:
        read = self._ready[0]  # it stays in the line, so that no other read schedules a turn
        goes_on = False
        try:
            goes_on = self._step(read)
        finally:
            if self._ready:  # else ``close`` was called meanwhile
                self._ready.popleft()
                if goes_on:
                    self._ready.append(read)

    def _step(self, read: _Read) -> bool:
        """Give a read the pieces for its next step, if these pieces are found or in memory.

        Return False if the read is over or waits for a thread.
        """
        if not read.wanted():
            return False
        if read.found is None:
            read.found = self._in_memory(read.pieces)
            if read.found is None:
                self._start(read)
            return read.found is not None
        try:
            read.pieces = read.steps.send(read.found)
        except StopIteration as stop:
            outcome = stop.value
        except Exception as error:
            if read.failed is None:
                raise
            read.failed(error)
            return False
        else:
            read.found = None if read.pieces else []
            return True
        read.done(outcome)
        return False

    def _in_memory(self, pieces: list[Piece]) -> list[Found] | None:
        """Return the bytes of all pieces if the system has them in memory, or None."""
        found = cached(pieces)
        if found is not None:
            self.numbers.pieces_in_memory += len(pieces)
        return found

    def _count(self, pieces: list[Piece], found: list[Found]) -> list[Found]:
        for piece, each in zip(pieces, found, strict=True):
            if isinstance(each, bytes):
                self._worked[piece.segment.path.parent] += 1
                self.numbers.pieces_from_disk += 1
                self.numbers.bytes_from_disk += len(each)
            else:
                self.numbers.errors += 1
        return found


def cached(pieces: list[Piece]) -> list[Found] | None:
    """Return the bytes of all pieces if the system has them in memory, or None.

    The call does not wait for the disk.
    """
    found: list[Found] = []
    for piece in pieces:
        data = piece.segment.read_cached(piece.at, piece.size)
        if data is None:
            return None
        found.append(data)
    return found


def _read_all(pieces: list[Piece]) -> list[Found]:
    return [read_now(piece) for piece in pieces]


def finish_now(steps: ReadSteps[T], read: Callable[[list[Piece]], list[Found]] = _read_all) -> T:
    """Run a read to its end, and return its outcome. Every piece is read at once."""
    try:
        pieces = next(steps)
        while True:
            pieces = steps.send(read(pieces))
    except StopIteration as end:
        value: T = end.value
        return value


def read_piece(piece: Piece) -> ReadSteps[Found]:
    """Read one piece of a file, as a step of a larger read."""
    (found,) = yield [piece]
    return found
