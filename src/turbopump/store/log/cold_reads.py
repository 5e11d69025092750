"""Reading what may not be in memory, without standing still for it.

A page fault inside a map holds the GIL until the device has answered, and with it every send. So a
read of what was written before this start, or long ago, is written as ``ReadSteps``: a generator
that yields the pieces of files it wants, is sent what was found there, and returns its outcome.
``ColdReads.run`` drives it: pieces that the system has in memory are copied at once
(``preadv`` that does not wait); for others it goes on later, when threads have read them.
``ColdReads.finish`` reads everything at once, and blocks.

Everything but the read itself happens in the owner's thread, a step at a time, in turn with what
others want (``take_turns``): a reader of a backlog slows nobody down. A broker reads through
``broker/reading.py``. This module does not know what is read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from turbopump.store.disk import Disk, Found, Piece, read_now

T = TypeVar("T")

ReadSteps = Generator[list[Piece], list[Found], T]
"""A read in steps: yields pieces, is sent the bytes (or the OSError) of each, returns the outcome.
One that has worked for a while yields no piece, to let others have their turn."""

Look = Callable[[Piece], memoryview | None]
"""Gives the bytes of a piece that the system has in memory, until the next look."""

IsLost = Callable[[Path, int], bool]
"""Whether to pass over what cannot be read at an offset of the files in a directory."""

AT_ONCE: Final = 4
"""Reads that threads do at the same time: enough to keep an SSD busy."""
SHARE: Final = 0.25
"""Time for reads in a turn of the loop, by the time that the rest of the turn took; at least one
step, and no more than ``TURN_S``."""
TURN_S: Final = 0.000_2
"""Seconds for reads in a turn of the loop. A turn that took long was preempted: that is no reason
to let those who wait now wait more."""
QUIET_S: Final = 0.02
"""Somebody writes if something was written so many seconds ago."""
PAUSE_MIN_S: Final = 0.001
"""The shortest pause: what loops' timers can do."""
CREDIT_MAX_S: Final = 0.001
"""Time that reads may save up while somebody writes."""
DEBT_MAX_S: Final = 0.005
"""Time that reads may owe: a turn that took longer was held up (the process stood still), and did
not read all that time."""
LOOK_SIZE_MAX: Final = 512 * 1024
"""The longest piece that a look gives."""
WAITING_MAX: Final = 10_000
"""Reads that wait for a thread; more are refused."""
_FAILURES_KEPT: Final = 10_000


class ReadState(Enum):
    """What ``run`` returns if there is no outcome yet."""

    PENDING = "the outcome comes later"
    REFUSED = "too many reads wait; there will be no outcome"


@dataclass(slots=True)
class ReadNumbers:
    """What was read since the start, in pieces and bytes: found in memory, or fetched by a thread;
    and reads that were refused."""

    pieces_in_memory: int = 0
    pieces_from_disk: int = 0
    bytes_from_disk: int = 0
    errors: int = 0
    refused: int = 0


class ReadPace:
    """How much of the time reads may take while somebody writes: ``share`` of it, from 0 to 1, in
    pieces with pauses between. While nobody does they may take all. ``written`` grows with what is
    written, ``later`` calls back after some seconds (``loop.call_later``)."""

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
        """Reads took the time between."""
        written = self._written()
        if written != self._seen:
            self._seen, self._grew = written, ended
        if ended - self._grew > QUIET_S:
            self._credit = CREDIT_MAX_S
        else:
            self._earn(ended)
            self._credit = max(self._credit - (ended - begun), -DEBT_MAX_S)
        self._counted = ended

    def pause(self, now: float) -> float:
        """Seconds until reads may go on, 0: at once."""
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
    """Every such read of a store. ``numbers`` tells what they were."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._ready: deque[_Read] = deque()
        self._waiting: deque[_Read] = deque()
        self.under_way = 0
        """Reads that threads are doing."""
        self._closed = False
        self._worked: Counter[Path] = Counter()
        self._failed: dict[tuple[Path, int], int] = {}
        self._soon: Callable[[Callable[[], None]], object] | None = None
        self._now: Callable[[], float] = lambda: 0.0
        self._turn_ended = 0.0
        self._pace: ReadPace | None = None
        self._seen = memoryview(b"")
        self._has_missed = False
        self.numbers = ReadNumbers()

    def take_turns(
        self,
        soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        pace: ReadPace | None = None,
    ) -> None:
        """From now on work in turns of the owner's loop: ``soon`` calls back in the next
        (``loop.call_soon``), ``now`` in seconds, to the microsecond (uvloop's clock has whole
        milliseconds: ten steps). Without, everything is done at once. ``pace`` tells when to pause
        between turns."""
        self._soon, self._now, self._pace = soon, now, pace

    @property
    def waiting(self) -> int:
        """Reads that have begun and have no outcome yet."""
        return self.under_way + len(self._waiting) + len(self._ready)

    def run(
        self,
        steps: ReadSteps[T],
        done: Callable[[T], None],
        wanted: Callable[[], bool] = lambda: True,
        failed: Callable[[Exception], None] | None = None,
    ) -> T | Literal[ReadState.PENDING, ReadState.REFUSED]:
        """The outcome, if it needs nothing from files, or all is in memory and nobody stands in
        line; else ``done`` gets it later, or ``failed`` the error that the steps raise. A read
        that is no longer ``wanted`` when its turn comes (the connection that asked is closed) is
        dropped, as are those that wait when the store closes."""
        try:
            pieces = next(steps)
            has_missed, self._has_missed = self._has_missed, False
            if self._pace is not None and not has_missed and not self._is_line:
                pieces = self._ahead(steps, pieces, self._pace)
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

    def at_once(self, read: Callable[[Look], T | None]) -> T | None:
        """What ``read`` makes of what it sees, where nobody is waiting in line and reads are due.
        None: it has seen too little, or may not look now: ``run`` reads it then."""
        pace = self._pace
        if pace is None or self._is_line:
            return None
        begun = self._now()
        if pace.pause(begun):
            return None
        try:
            return read(self._look)
        finally:
            pace.took(begun, self._now())

    def _look(self, piece: Piece) -> memoryview | None:
        if piece.size > LOOK_SIZE_MAX:
            return None
        if not self._seen:
            self._seen = memoryview(bytearray(LOOK_SIZE_MAX))
        seen = self._seen[: piece.size]
        if piece.segment.read_cached_into(seen, piece.at):
            self.numbers.pieces_in_memory += 1
            return seen
        self._has_missed = True  # so that ``run`` does not look in vain as well
        return None

    @property
    def _is_line(self) -> bool:
        """Whether somebody is waiting in line before who comes now; so it is when the store
        closes."""
        return bool(self._ready or self._waiting) or self._closed

    def _ahead(self, steps: ReadSteps[Any], pieces: list[Piece], pace: ReadPace) -> list[Piece]:
        """Where nobody is waiting in line and reads are due: do the steps whose pieces are in
        memory, for at most a turn; the pieces that are wanted next. Raises StopIteration, with the
        outcome."""
        # Most cold reads find their bytes in the system's cache (a backlog after a restart). A turn
        # of the loop for each of their two or three steps would cost more than the reads: they are
        # done here, inside the request that asks. What this takes is charged to the pace like any
        # other turn, so that a reader that comes again and again cannot pass those in the line.
        begun = now = self._now()
        if pace.pause(begun):
            return pieces
        try:
            while pieces and now - begun < TURN_S:
                found = self._in_memory(pieces)
                if found is None:
                    break
                pieces = steps.send(found)
                now = self._now()
            return pieces
        finally:
            pace.took(begun, self._now())

    def finish(self, steps: ReadSteps[T]) -> T:
        """The outcome, read here and now."""
        return finish_now(steps, lambda pieces: self._count(pieces, _read_all(pieces)))

    def is_lost(self, directory: Path, offset: int) -> bool:
        """Whether to give up an offset that the system cannot read, in the files of a directory.
        Not at its first error, nor while every read there fails (the device is gone, and may come
        back), but once it fails although other reads worked since."""
        if len(self._failed) >= _FAILURES_KEPT:
            self._failed.clear()
        worked = self._worked[directory]
        return worked > self._failed.setdefault((directory, offset), worked)

    def close(self) -> None:
        """Drop what waits; what is under way ends with ``Disk.close``."""
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
        """One step, and more for as long as ``SHARE`` of what the others took since the last."""
        # Steps are work of the one thread that also answers sends. A fixed number of steps a turn
        # would either starve readers on an idle broker or hold up sends on a busy one. So the time
        # that the loop spent on everything else since the last turn sets the time for reads: under
        # load a reader gets a fifth of the thread, and alone it runs one step a turn, back to back.
        # ``TURN_S`` bounds it: a turn that took long was preempted, and must not be repaid.
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
        read = self._ready[0]  # it stays there, so that nobody else calls for a turn
        goes_on = False
        try:
            goes_on = self._step(read)
        finally:
            if self._ready:  # else it was closed meanwhile
                self._ready.popleft()
                if goes_on:
                    self._ready.append(read)

    def _step(self, read: _Read) -> bool:
        """Look whether what is wanted is in memory, or go on with what was found; False if the read
        is over or waits for a thread."""
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
        """All of the pieces, if the system has them in memory."""
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
    """The bytes of all pieces, if the system has them in memory; it is not waited for."""
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
    """The outcome, with every piece read here and now."""
    try:
        pieces = next(steps)
        while True:
            pieces = steps.send(read(pieces))
    except StopIteration as end:
        value: T = end.value
        return value


def read_piece(piece: Piece) -> ReadSteps[Found]:
    """One piece."""
    (found,) = yield [piece]
    return found
