"""Driver of long work. It shares each run of the event loop among connections.

Work is a generator (``Steps``) that yields after each item and returns its result, or a coroutine
that awaits ``pause`` between two items. The driver reads the clock after each step. The rule: all
work together gets at most one slice of time in each run of the event loop, called a turn. Short
work is done at once.

The work of one connection is done in order, so that it holds memory for one request at a time.
Connections get their slices one after the other. The content of the work is unknown here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

SLICE_MIN_S: Final = 0.001
SLICE_MAX_S: Final = 0.01
"""Maximum seconds of a slice; ``SLICE_MIN_S`` is the usual minimum. Between these, a slice is as
long as the time that the loop had for other work since the last slice, or a share of that. One more
step may follow."""
STARTS_A_TURN: Final = 16
"""Maximum number of tasks that begin, or continue after a pause, in one run of the event loop. They
run after the slice, so their time is not measured."""


def _ignore(_outcome: object) -> None:
    """Ignore an unwanted result."""


def _raise(error: Exception) -> None:
    raise error


@dataclass(slots=True)
class _Work:
    steps: Steps[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class Turns:
    """Driver of long work: runs it in short slices, between other work of the event loop.

    - ``share``: length of a slice in that of the other work before it.
    - ``slice_min_s``: minimum seconds of a slice.
    - ``now``: returns a time in seconds. None means the clock of the event loop, which has whole
      milliseconds with uvloop.
    """

    def __init__(
        self,
        *,
        share: float = 1.0,
        slice_min_s: float = SLICE_MIN_S,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._share = share
        self._slice_min_s = slice_min_s
        self._given_now = now
        self._lines: dict[Hashable, deque[_Work]] = {}
        """Unfinished work of each connection, in order."""
        self._order: deque[Hashable] = deque()
        """Connections in the order in which they get their slices."""
        self._slice_ends: float | None = None
        self._rested_since = 0.0
        """Time at which the last slice ended and other work began."""
        self._now: Callable[[], float] = lambda: 0.0
        self._starting: deque[Callable[[], object]] = deque()
        self._started = 0

    def run(
        self,
        whose: Hashable,
        steps: Steps[T],
        done: Callable[[T], None] = _ignore,
        failed: Callable[[Exception], None] = _raise,
    ) -> None:
        """Run the steps of a connection's work, at once or in later slices.

        - ``whose``: the connection. Its work is done in order.
        - ``done``: function called with the result.
        - ``failed``: function called with the error.
        """
        work = _Work(steps, done, failed)
        if self._slice_ends is None:
            self._begin_slice()
        if self._lines or not self._has_time() or not self._advance(work):
            if whose not in self._lines:
                self._lines[whose] = deque()
                self._order.append(whose)
            self._lines[whose].append(work)

    def waiting(self, whose: Hashable) -> int:
        """Return the number of unfinished jobs of a connection."""
        return len(self._lines.get(whose, ()))

    def start(self, action: Callable[[], object]) -> None:
        """Call ``action`` now or in a later run of the event loop. The action starts a task.

        ``action`` is called later if ``STARTS_A_TURN`` others have started in this run.
        """
        if self._slice_ends is None:
            self._begin_slice()
        if self._started < STARTS_A_TURN and not self._starting:
            self._started += 1
            action()
        else:
            self._starting.append(action)

    async def pause(self) -> None:
        """Let other work of the event loop run if the current slice is used up.

        Coroutines await this between two items of work.
        """
        if self._slice_ends is None:
            self._begin_slice()
        if self._has_time():
            return
        later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting.append(lambda: None if later.done() else later.set_result(None))
        await later

    async def outcome(self, whose: Hashable, steps: Steps[T]) -> T:
        """Run the steps of a connection's work and return their result. Raises the errors of the
        work."""
        later: asyncio.Future[T]
        later, done, failed = awaited()
        self.run(whose, steps, done, failed)
        return await later

    def _begin_slice(self, seconds: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self._now = self._given_now or loop.time
        self._rested_since = self._now()
        self._slice_ends = self._rested_since + max(seconds, self._slice_min_s)
        loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        lines, starting = self._lines, self._starting
        self._started = 0
        if not lines and not starting:
            self._slice_ends = None
            return
        # A fixed length would either delay sends on a busy broker, or starve long work while sends
        # take 20 ms of each turn. So long work gets half of the loop's time: a slice is as long as
        # everything else took since the last slice, or a share of that.
        rested = self._now() - self._rested_since
        self._begin_slice(min(rested * self._share, SLICE_MAX_S))
        while starting and self._started < STARTS_A_TURN:
            self._started += 1
            starting.popleft()()
        while self._order:
            whose = self._order.popleft()
            line = lines[whose]
            over = True
            try:
                over = self._advance(line[0])
            finally:
                if over:
                    line.popleft()
                if line:
                    self._order.append(whose)
                else:
                    del lines[whose]
            if not self._has_time():
                break
        self._rested_since = self._now()

    def _has_time(self) -> bool:
        assert self._slice_ends is not None
        return self._now() < self._slice_ends

    def _advance(self, work: _Work) -> bool:
        """Run at least one step of a job, and more until the slice ends. Return True if the job is
        finished."""
        now, ends = self._now, self._slice_ends
        assert ends is not None
        try:
            next(work.steps)
            while now() < ends:
                next(work.steps)
        except StopIteration as end:
            work.done(end.value)
        except Exception as error:
            work.failed(error)
        else:
            return False
        return True


def finished(steps: Steps[T]) -> T:
    """Run all steps of a short job at once and return its result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def awaited() -> tuple[asyncio.Future[T], Callable[[T], None], Callable[[Exception], None]]:
    """Return three values: a future, a function that sets its result, and a function that sets its
    error.

    The functions do nothing if the future is done, for example because the waiting task was
    cancelled.
    """
    later: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(outcome: T) -> None:
        if not later.done():
            later.set_result(outcome)

    def failed(error: Exception) -> None:
        if not later.done():
            later.set_exception(error)

    return later, done, failed
