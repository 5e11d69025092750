"""Requests that wait for a message (long polling), in one line for each thing they wait for.

A request leaves its line once: at a wake-up, at its deadline, when its connection ends, or when
permissions of users are reduced. One heap holds all deadlines, with one timer; nothing is polled.
Due requests are answered in order, after the current loop turn, and in turns with other work
(``remoting/turns.py``), because one message can wake thousands. The contents of a request are
unknown here.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from turbopump.remoting.served import Keeper, Served
from turbopump.remoting.turns import Steps, Turns

ANSWERED_KEPT: Final = 1000
"""Maximum answered requests among the deadlines before a clean-up."""

Again = Callable[[bool], object]
LineT = TypeVar("LineT", bound="Line")


class Line:
    """Requests that wait for ``key``, in order of arrival. ``expired``: True if all are to be
    answered as after their deadline."""

    __slots__ = ("expired", "key", "requests")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.requests: dict[WaitingRequest, None] = {}
        self.expired = False

    def remove(self, request: WaitingRequest) -> None:
        """Remove a request from the line."""
        del self.requests[request]

    def unwatch(self) -> None:
        """Stop watching what the line waits for. Called when the line is empty or wakes."""


class WaitingRequest:
    """One waiting request of ``served``, of a ``kind`` that its owner defines. ``again`` is called
    once, with True after the deadline. Both are None after the call, or after the end of the
    connection."""

    __slots__ = ("again", "deadline", "expired", "kind", "line", "served")

    def __init__(
        self, line: Line, deadline: float, again: Again, served: Served, kind: Any = None
    ) -> None:
        self.line = line
        self.deadline = deadline
        self.again: Again | None = again
        self.served: Served | None = served
        self.kind = kind
        self.expired = False

    def answer(self) -> None:
        """Read again for a request that has left its line, unless its connection has ended."""
        again = self.again
        served = self.served
        if again is not None and served is not None:
            self.again = self.served = None
            served.give_back(self)
            again(self.expired or self.line.expired)

    def __lt__(self, other: WaitingRequest) -> bool:
        return self.deadline < other.deadline


class WaitingRequests(Generic[LineT]):
    """All waiting requests of one sort. ``size``: bytes of memory of one request.
    ``answers_are_tasks``: True if ``again`` starts a task, whose time is not measured here."""

    def __init__(self, turns: Turns, size: int, *, answers_are_tasks: bool = False) -> None:
        self._turns = turns
        self._keeper = Keeper(size, self._drop_request)
        self._answers_are_tasks = answers_are_tasks
        # in order of arrival, so that a run can be replayed
        self.lines: dict[Hashable, LineT] = {}
        self._count = 0
        self._by_deadline: list[WaitingRequest] = []
        self._due: deque[WaitingRequest] = deque()
        """Requests to answer, which wait no longer."""
        self._revoked: deque[LineT] = deque()
        """Lines to answer completely, after all due requests."""
        self._answering = False
        self.revocations = 0
        """Number of times that users may have lost permissions. A request that arrived before the
        last time gets no message."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """Time of the timer, if there is one. (uvloop's handle does not tell an elapsed time.)"""

    def __len__(self) -> int:
        return self._count

    def revoke_all(self) -> None:
        """Answer all held requests soon, because users may have lost permissions."""
        self.revocations += 1
        self._revoked.extend(self.lines.values())
        self._answer_soon()

    def expire_line(self, line: LineT) -> None:
        """Answer all requests of one line soon."""
        line.expired = True
        self._wake_line(line)

    def expire_all(self) -> None:
        """Answer all requests now, because the broker stops."""
        while self._due or self.lines:
            for line in list(self.lines.values()):
                self.expire_line(line)
            while self._due:
                self._due.popleft().answer()

    def _add_request(self, line: LineT, request: WaitingRequest, served: Served) -> None:
        line.requests[request] = None
        self._count += 1
        self._forget_answered()
        heapq.heappush(self._by_deadline, request)
        self._set_timer()
        served.keep(request, self._keeper)

    def _wake_line(self, line: LineT) -> None:
        """Answer all requests of the line soon. There may be tens of thousands, so this takes no
        time for each."""
        line.unwatch()
        del self.lines[line.key]
        self._count -= len(line.requests)
        self._due.extend(line.requests)
        line.requests.clear()
        self._answer_soon()

    def _leave_line(self, request: WaitingRequest) -> bool:
        """Remove a request from its line. Return False if the request was not waiting any more."""
        line = request.line
        if request not in line.requests:
            return False
        line.remove(request)
        self._count -= 1
        if not line.requests:
            line.unwatch()
            del self.lines[line.key]
        return True

    def _drop_request(self, request: WaitingRequest) -> None:
        """Drop a request whose connection has ended. Its entry among the deadlines or due requests
        stays for a while, without its contents."""
        request.again = request.served = None
        if self._leave_line(request):
            self._forget_answered()

    def _answer_soon(self) -> None:
        if not self._answering:
            self._answering = True
            asyncio.get_running_loop().call_soon(self._answer_in_turns)

    def _answer_in_turns(self) -> None:
        self._turns.run(self, self._answer_due(), self._all_answered, self._one_failed)

    def _answer_due(self) -> Steps[None]:
        """Answer the due requests, one in a step. ``again`` may hold a request once more; it then
        goes into ``lines``, not to the due ones, so this ends."""
        now = asyncio.get_running_loop().time
        while True:
            if self._due:
                request = self._due.popleft()
                if self._answers_are_tasks:
                    self._turns.start(request.answer)
                else:
                    request.answer()
            elif self._by_deadline and self._by_deadline[0].deadline <= now():
                request = heapq.heappop(self._by_deadline)
                if self._leave_line(request):
                    request.expired = True
                    self._due.append(request)
            elif self._revoked:
                line = self._revoked.popleft()
                if self.lines.get(line.key) is line:
                    self.expire_line(line)
            else:
                return
            yield

    def _all_answered(self, _: None) -> None:
        self._answering = False
        self._set_timer()

    def _one_failed(self, error: Exception) -> None:
        """Continue with the other due requests after an error, and raise the error."""
        self._answering = False
        self._answer_soon()
        raise error

    def _set_timer(self) -> None:
        """Set the timer to the first deadline."""
        if not self._by_deadline:
            return
        first = self._by_deadline[0].deadline
        if self._timer is None or first < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = first
            self._timer = asyncio.get_running_loop().call_at(first, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._answer_soon()

    def _forget_answered(self) -> None:
        """Remove answered requests from the deadlines if there are many. Most requests are answered
        before their deadline."""
        requests = self._by_deadline
        if len(requests) > self._count * 5 // 4 + ANSWERED_KEPT:
            # All in one turn, so it must be quick: 28 ms of CPU in a busy broker for 155,000 pulls,
            # whose deadlines are nearly in order. With ``heapify``, which calls ``__lt__``, 43 ms.
            requests[:] = [request for request in requests if request in request.line.requests]
            requests.sort(key=attrgetter("deadline"))
