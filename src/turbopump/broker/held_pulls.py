"""Pulls that found nothing and wait for their queue to grow (long polling), or for the end of their
connection.

Those that wait for the same offset of a queue stand in one line behind one waiter at its end
watermark, and one timer looks for the deadlines of all: no thread, no polling. The wake-up comes
after the loop turn in which the queue grew, so that one answer carries all that came with it.
Whoever is woken or whose time is up is read again in order; where they are many, others have their
turn after ``TURN_S``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from turbopump.remoting.served import Keeper, Served
from turbopump.store.queues.consume_queue import ConsumeQueue

TURN_S: Final = 0.001
"""Pulls that are woken read for so long, and one of them more, before others have their turn."""
EXPIRED_AT_ONCE: Final = 1000
"""So many whose time is up are put in line in one turn; some 2 µs each."""
DONE_KEPT: Final = 1000
"""So many that wait no more are not worth a clean-up."""
PULL_SIZE: Final = 1024
"""Bytes that a held pull takes, its request included; 40,000 took 920 to 960 each."""


class HeldPull:
    """One waiting pull: ``again`` is called, once, with True if its time is up. Both
    are None when the connection has ended."""

    __slots__ = ("again", "deadline", "expired", "line", "served")

    def __init__(
        self, line: _Line, deadline: float, again: Callable[[bool], None], served: Served
    ) -> None:
        self.line = line
        self.deadline = deadline
        self.again: Callable[[bool], None] | None = again
        self.served: Served | None = served
        self.expired = False

    def __lt__(self, other: HeldPull) -> bool:
        return self.deadline < other.deadline


class _Line:
    """The pulls that wait for one offset of a queue, in order of arrival; ``expired``: the time of
    all of them is up."""

    __slots__ = ("expired", "place", "pulls", "waiter")

    def __init__(self, place: tuple[ConsumeQueue, int], reached: Callable[[_Line], None]) -> None:
        self.place = place
        self.pulls: dict[HeldPull, None] = {}
        self.expired = False
        queue, offset = place
        self.waiter = queue.end.when(offset + 1, lambda: reached(self))


class HeldPulls:
    """Every waiting pull of a broker."""

    def __init__(self) -> None:
        self._keeper = Keeper(PULL_SIZE, self._drop)
        # in order of arrival, so that a run can be replayed
        self._lines: dict[tuple[ConsumeQueue, int], _Line] = {}
        self._by_deadline: list[HeldPull] = []
        self._waiting = 0
        self._woken: deque[HeldPull] = deque()
        self._ending: deque[_Line] = deque()
        """Lines of which all are to be answered, once nobody is woken."""
        self._comes = False
        """Whether the loop will come to those that are woken."""
        self.narrowed = 0
        """How often users could do less than before. A pull that came before the last time gets no
        message any more."""
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0
        """When, if there is a timer. (uvloop's handle for a time that has come does not say.)"""

    def __len__(self) -> int:
        return self._waiting

    def hold(
        self,
        queue: ConsumeQueue,
        offset: int,
        seconds: float,
        again: Callable[[bool], None],
        served: Served,
    ) -> None:
        """Wait until ``queue`` has a message at ``offset``, or ``seconds`` are over, or the
        connection has ended."""
        place = (queue, offset)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Line(place, self._wake)
        held = HeldPull(line, asyncio.get_running_loop().time() + seconds, again, served)
        line.pulls[held] = None
        self._waiting += 1
        self._forget_those_done()
        heapq.heappush(self._by_deadline, held)
        self._set_timer()
        served.keep(held, self._keeper)

    def expire_topic(self, topic: str) -> None:
        """Answer all pulls that wait for a topic: it was deleted, and what comes under its name
        comes into other queues."""
        self._expire_lines(
            [line for (queue, _), line in self._lines.items() if queue.topic == topic]
        )

    def narrow(self) -> None:
        """Users may less than they did: answer everyone soon, a few in each turn."""
        self.narrowed += 1
        self._ending.extend(self._lines.values())
        self._come()

    def expire_all(self) -> None:
        """Answer everyone now: the broker stops."""
        while self._woken or self._lines:
            self._expire_lines(list(self._lines.values()))
            while self._woken:
                self._read_first()

    def _expire_lines(self, lines: list[_Line]) -> None:
        for line in lines:
            line.waiter.cancel()
            line.expired = True
            self._wake(line)

    def _wake(self, line: _Line) -> None:
        """Nobody in the line waits any more. (They may be tens of thousands: nothing is done for
        each of them here.)"""
        del self._lines[line.place]
        self._waiting -= len(line.pulls)
        self._woken.extend(line.pulls)
        line.pulls.clear()
        self._come()

    def _expire(self, held: HeldPull) -> None:
        """Its time is up, if it still waits."""
        if self._leave_line(held):
            held.expired = True
            self._woken.append(held)
            self._come()

    def _drop(self, held: HeldPull) -> None:
        """Its connection has ended: nothing is left of it but its place among the deadlines or the
        woken ones, and that not for long."""
        held.again = held.served = None
        if self._leave_line(held):
            self._forget_those_done()

    def _leave_line(self, held: HeldPull) -> bool:
        """Whether it was waiting."""
        line = held.line
        if held not in line.pulls:
            return False
        del line.pulls[held]
        if not line.pulls:
            line.waiter.cancel()
            del self._lines[line.place]
        self._waiting -= 1
        return True

    def _come(self) -> None:
        """Have those that are woken read again, once the loop comes to them."""
        if not self._comes:
            self._comes = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_first(self) -> None:
        held = self._woken.popleft()
        again, served = held.again, held.served
        if again is not None and served is not None:
            held.again = held.served = None
            served.give_back(held)
            again(held.expired or held.line.expired)

    def _read_again(self) -> None:
        # One message can wake thousands of pulls (a topic that many groups read). Each of them
        # reads and answers here, in the loop that also serves every send; so after ``TURN_S`` the
        # rest waits for the next turn. ``again`` may hold a pull anew, which adds to ``_lines``,
        # not to ``_woken``: the loop below ends. ``finally``: should one of them raise, those
        # behind it are still woken.
        loop = asyncio.get_running_loop()
        late = loop.time() + TURN_S
        try:
            while self._woken or self._ending:
                if self._woken:
                    self._read_first()
                else:
                    line = self._ending.popleft()
                    if self._lines.get(line.place) is line:
                        self._expire_lines([line])
                if loop.time() >= late:
                    break
        finally:
            self._comes = bool(self._woken or self._ending)
            if self._comes:
                loop.call_soon(self._read_again)

    def _set_timer(self) -> None:
        """Look when the first time is up."""
        first = self._by_deadline[0].deadline
        if self._timer is None or first < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = first
            self._timer = asyncio.get_running_loop().call_at(first, self._look)

    def _look(self) -> None:
        self._timer = None
        now, pulls = asyncio.get_running_loop().time(), self._by_deadline
        for _ in range(EXPIRED_AT_ONCE):
            if not pulls or pulls[0].deadline > now:
                break
            self._expire(heapq.heappop(pulls))
        if pulls:
            self._set_timer()

    def _forget_those_done(self) -> None:
        """Most pulls do not wait until their time is up."""
        pulls = self._by_deadline
        if len(pulls) > self._waiting * 5 // 4 + DONE_KEPT:
            # All in one turn, so it must be quick: 28 ms of CPU in a busy broker for 155,000 pulls,
            # whose deadlines are nearly in order. With ``heapify``, which calls ``__lt__``, 43 ms.
            pulls[:] = [held for held in pulls if held in held.line.pulls]
            pulls.sort(key=attrgetter("deadline"))
