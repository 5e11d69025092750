"""Waiting list of requests that found no message (long polling).

Requests that wait for the same event form a line. A request leaves its line once: at the event, at
its deadline, when its connection ends, or when permissions of users are reduced. One heap contains
all deadlines, with one timer, and nothing is polled. Due requests are answered in order, after the
current run of the event loop, and with pauses for other work (``remoting/turns.py``), because one
message can wake thousands. This module does not know the contents of requests.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from turbopump.remoting.served_requests import Keeper, ServedRequests
from turbopump.remoting.turns import Steps, Turns

ANSWERED_KEPT: Final = 1000
"""Maximum answered requests that stay among the deadlines before a clean-up."""

Again = Callable[[bool], object]
LineT = TypeVar("LineT", bound="Line")


class Line:
    """Requests that wait for one event, in the order of their arrival.

    - ``key``: the name of the event.
    - ``expired``: True if all requests are answered as if their deadlines had passed.
    """

    __slots__ = ("expired", "key", "requests")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.requests: dict[WaitingRequest, None] = {}
        self.expired = False

    def remove(self, request: WaitingRequest) -> None:
        """Remove a request from the line."""
        del self.requests[request]

    def unwatch(self) -> None:
        """Stop watching for the event of this line.

        This is called when the event occurs, or when the line becomes empty.
        """


class WaitingRequest:
    """Request that waits in a line until an event or its deadline.

    - ``again``: a function that is called once to read again, with True after the deadline.
    - ``served``: the requests of the client's connection, to which this one belongs.
    - ``kind``: a value of the owner's choice.

    ``again`` and ``served`` are None after the call, or after the end of the connection.
    """

    __slots__ = ("again", "deadline", "expired", "kind", "line", "served")

    def __init__(
        self, line: Line, deadline: float, again: Again, served: ServedRequests, kind: Any = None
    ) -> None:
        self.line = line
        self.deadline = deadline
        self.again: Again | None = again
        self.served: ServedRequests | None = served
        self.kind = kind
        self.expired = False

    def answer(self) -> None:
        """Answer this request with a new read, unless its connection has ended."""
        again = self.again
        served = self.served
        if again is not None and served is not None:
            self.again = self.served = None
            served.give_back(self)
            again(self.expired or self.line.expired)

    def __lt__(self, other: WaitingRequest) -> bool:
        return self.deadline < other.deadline


class WaitingRequests(Generic[LineT]):
    """All waiting requests of one kind, for example all pulls of a broker.

    - ``size``: the bytes of memory that are counted for one request.
    - ``answers_are_tasks``: True if ``again`` starts a task, whose running time is not
      measured here.
    """

    def __init__(self, turns: Turns, size: int, *, answers_are_tasks: bool = False) -> None:
        self._turns = turns
        self._keeper = Keeper(size, self._drop_request)
        self._answers_are_tasks = answers_are_tasks
        # in order of arrival, so that a run can be replayed
        self.lines: dict[Hashable, LineT] = {}
        self._count = 0
        self._by_deadline: list[WaitingRequest] = []
        self._due: deque[WaitingRequest] = deque()
        """Requests that are due for an answer."""
        self._revoked: deque[LineT] = deque()
        """Lines whose requests are all answered, after the due requests."""
        self._answering = False
        self.revocations = 0
        """Number of times that users may have lost permissions. A request that arrived before the
        last time gets no message."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """Time at which the timer ends, if there is one. A handle of uvloop does not tell a time
        that has passed."""

    def __len__(self) -> int:
        return self._count

    def revoke_all(self) -> None:
        """Answer all waiting requests soon, because users may have lost permissions."""
        self.revocations += 1
        self._revoked.extend(self.lines.values())
        self._answer_soon()

    def expire_line(self, line: LineT) -> None:
        """Answer all requests of a line soon, as if their deadlines had passed."""
        line.expired = True
        self._wake_line(line)

    def expire_all(self) -> None:
        """Answer all waiting requests now, because the broker stops."""
        while self._due or self.lines:
            for line in list(self.lines.values()):
                self.expire_line(line)
            while self._due:
                self._due.popleft().answer()

    def _add_request(self, line: LineT, request: WaitingRequest, served: ServedRequests) -> None:
        line.requests[request] = None
        self._count += 1
        self._forget_answered()
        heapq.heappush(self._by_deadline, request)
        self._set_timer()
        served.keep(request, self._keeper)

    def _wake_line(self, line: LineT) -> None:
        """Answer all requests of a line soon, because their event has occurred.

        A line may have tens of thousands of requests, so this method does no work for each of them.
        """
        line.unwatch()
        del self.lines[line.key]
        self._count -= len(line.requests)
        self._due.extend(line.requests)
        line.requests.clear()
        self._answer_soon()

    def _leave_line(self, request: WaitingRequest) -> bool:
        """Remove a request from its line. Return False if the request was no longer waiting."""
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
        """Drop a request whose connection has ended.

        Its entry among the deadlines or due requests stays for a while, without its contents.
        """
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
        """Answer all due requests, with a yield after each.

        ``again`` may let a request wait once more. The request then goes into ``lines`` and not to
        the due requests, so that the loop ends.
        """
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
        """Raise the error of one request. The other due requests are answered later."""
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
        """Remove answered requests from the heap of deadlines, once there are many of them.

        Most requests are answered before their deadline.
        """
        requests = self._by_deadline
        if len(requests) > self._count * 5 // 4 + ANSWERED_KEPT:
            # All in one turn, so it must be quick: 28 ms of CPU in a busy broker for 155,000 pulls,
            # whose deadlines are nearly in order. With ``heapify``, which calls ``__lt__``, 43 ms.
            requests[:] = [request for request in requests if request in request.line.requests]
            requests.sort(key=attrgetter("deadline"))
