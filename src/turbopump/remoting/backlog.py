"""Line of requests that were read and are not handled yet.

One loop serves all connections: a peer that delivers thousands of requests at once must not keep it
for seconds. After ``TURN_S`` of handling, requests that may wait (``Router.add(…, may_wait=True)``)
wait in one line, first come, first served, and each turn handles as many as fit. The line also
waits while a handler has no room. Its length is bounded, and so is the wait: a request that would
wait longer is refused, and its sender knows that nothing was done. Reading, handling and refusing
have a share each of the loop's time (``_serve``), so a broker that gets far more than it can do
still does half of what it could. While there is no line the clock is read once per ``CREDIT``
bytes. The line must not know what any request means.

Requests of other kinds wait in their connection, unhandled and in order: when the turn is used up,
when the peer does not read, or behind a request that took as long as hundreds of usual ones
(``Served.took_long``), which would delay the whole line. They go on as long work of their
connection (``turns.py``), one a step.

Reading has its share of a turn as well (``may_read_on``): a peer that sends faster than it is read
is read again in one of the next turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple, Protocol

import msgspec

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import Frame
from turbopump.remoting.response import Refusal, encoder_of, refusal
from turbopump.remoting.wire import Wire

TURN_S: Final = 0.02
CREDIT: Final = 64 * 1024
"""Bytes of requests, from all connections, that are handled between two looks at the clock."""
STEP_SIZE: Final = 16 * 1024
"""Bytes of requests of one large read between two looks: 16 of 1 KiB, 100 of the smallest."""
LINE_SIZE_MAX: Final = 128 * 1024 * 1024
"""Bytes of all requests in the line."""
CHECK_S: Final = 0.01
"""Interval at which the line is looked through while a handler has no room."""
FULL_READ: Final = 224 * 1024
"""Size of a read that has filled the loop's buffer, so that more waits. uvloop then reads on at
once, up to 32 times in a row; asyncio reads in the next turn."""
READ_A_TURN: Final = 1024 * 1024
"""Bytes that full reads bring in one turn. Cutting them into frames takes 5 ms, more or less."""
READ_ON_A_TURN: Final = 2
"""Connections that had to wait, and are read again in one turn."""
ALIKE_S: Final = 0.001
"""Seconds within which requests came, and are refused for one reason, that get one answer."""
REFUSED_TOGETHER: Final = 32
"""Requests that are refused between two looks at the clock: 0.2 ms."""
FOR_EVER: Final = float("inf")


class PeerRequests(Protocol):
    """Requests of one connection (``Served``), as they are seen here. ``in_line``: the number of
    them that are in the line."""

    wire: Wire
    in_line: int
    interrupted: bool

    def take(self, frame: Frame) -> None:
        """Handle one frame now."""

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request may stand in the line."""

    def stops(self, rest: Iterable[Frame], began: float) -> bool:
        """Let the rest wait behind a frame that has ``interrupted``, or return True."""

    def set_aside(self, frames: Iterable[Frame], *, first: bool = False) -> None:
        """Let frames wait in the connection."""

    def refuse(self, frame: Frame, answer: Callable[[int], bytes]) -> None:
        """Answer a request that was not handled."""

    def resume(self) -> None:
        """Go on with what waits in the connection, in turn with others."""

    def read_on(self) -> None:
        """Read the peer again."""


class BacklogRefusal(Enum):
    """Why a request of the line is not handled."""

    WAITED = "waited too long in the line"
    FULL = "found the line full"
    STOOD_STILL = "was in the line while the loop or an append stood still"
    NO_ROOM = "came while handlers had been waiting for room too long"
    ENDING = "was in the line when the server ended, for want of room"


class BacklogLimits(NamedTuple):
    """``size`` requests in the line, ``wait_s`` in it (None: for ever), and how long handlers may
    wait for room before a new request is refused at once (``room_s``)."""

    size: int = 10_000
    wait_s: float | None = 0.2
    room_s: float = 1.0


class _QueuedRequest(msgspec.Struct, frozen=True, gc=False):
    connection: PeerRequests
    frame: Frame
    arrived: float


class _Alike(NamedTuple):
    """Refusals that have one answer."""

    why: BacklogRefusal
    refused: int
    arrived: int


class Backlog:
    """The line of one server. ``refuse`` makes the answer from the reason, the seconds waited, and
    how many are left in the line; it is asked once for all that are alike in a millisecond.
    ``refused`` counts them.

    ``busy``: requests that may wait must. ``credit``: bytes of requests that may be handled without
    a look at the clock; none when busy.
    """

    def __init__(
        self, limits: BacklogLimits, refuse: Callable[[BacklogRefusal, float, int], Refusal]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.limits = limits
        self._refuse = refuse
        self._line: deque[_QueuedRequest] = deque()
        self._late: deque[_QueuedRequest] = deque()
        """Requests of the line that have waited too long, until they are refused."""
        self._size = 0
        self._turn_ends: float | None = None
        self._armed: asyncio.Handle | None = None
        self._served_at = 0.0
        """When the line had its share last, or began."""
        self._begun: _QueuedRequest | None = None
        self._held_since: float | None = None
        self._still_until = 0.0
        self.refused: Counter[BacklogRefusal] = Counter()
        self._last_refusal: tuple[_Alike, Callable[[int], bytes]] | None = None
        self._unread: dict[PeerRequests, None] = {}
        """Connections that are read again in one of the next turns."""
        self._read_now = 0
        """Bytes of full reads in this turn."""
        self.busy = False
        self.credit: float = CREDIT

    @classmethod
    def without_line(cls) -> Backlog:
        """Make one for a server none of whose requests may wait in the line: they only leave others
        their turn."""
        return cls(
            BacklogLimits(),
            lambda why, _waited, _left: refusal(ResponseCode.SYSTEM_BUSY, why.value),
        )

    @classmethod
    def never_busy(cls) -> Backlog:
        """Make one for a connection whose requests never wait."""
        backlog = cls.without_line()
        backlog.credit = FOR_EVER
        return backlog

    def __len__(self) -> int:
        return len(self._line) + len(self._late)

    @property
    def waited(self) -> float:
        """Seconds that the first in the line has been in it; 0 if nobody is."""
        first = self._late or self._line
        return self._loop.time() - first[0].arrived if first else 0.0

    @property
    def held(self) -> bool:
        """True while a handler waits for room."""
        return self._held_since is not None

    def take_in_turns(
        self, connection: PeerRequests, frames: list[Frame], size: int, arrived: float
    ) -> None:
        """Handle those of the frames, which came in one read of ``size`` bytes, that fit into this
        turn; the rest may have to wait."""
        step = until_look = max(STEP_SIZE * len(frames) // size, 1)
        rest = iter(frames)
        if self.busy:
            self.wait_all(connection, rest, arrived)
        for frame in rest:
            connection.take(frame)
            if connection.interrupted and connection.stops(rest, arrived):
                return
            until_look -= 1
            if not until_look:
                self._look(arrived)
                until_look = step
            if self.busy:
                self.wait_all(connection, rest, arrived)
        self._look(arrived)
        if self._line and self._loop.time() - self._served_at >= TURN_S:
            self._serve()

    def wait_all(self, connection: PeerRequests, frames: Iterator[Frame], arrived: float) -> None:
        """Put into the line those that may wait; handle the others, or if this turn has had its
        share let the connection go on with all that is left in a later one."""
        for frame in frames:
            if connection.may_wait(frame):
                self._wait(_QueuedRequest(connection, frame, arrived))
            elif self._turn_ends is not None and self._loop.time() >= self._turn_ends:
                connection.set_aside(chain((frame,), frames))
                connection.resume()
                return
            else:
                connection.take(frame)
            if connection.interrupted and connection.stops(frames, arrived):
                return

    def may_read_on(self, connection: PeerRequests, size: int) -> bool:
        """Return True if a connection whose full read brought ``size`` bytes may be read again in
        this turn. If not, its ``read_on`` is called in one of the next turns."""
        if not self._read_now and not self._unread:
            self._loop.call_soon(self._read_on)
        self._read_now += size
        if self._read_now < READ_A_TURN:
            return True
        self._unread[connection] = None
        return False

    def _read_on(self) -> None:
        self._read_now = 0
        for _ in range(min(len(self._unread), READ_ON_A_TURN)):
            connection = next(iter(self._unread))
            del self._unread[connection]
            connection.read_on()
        if self._unread:
            self._loop.call_soon(self._read_on)

    def _look(self, began: float) -> None:
        """Become ``busy`` if this turn, whose work began at ``began``, has handled enough."""
        if self._turn_ends is None:
            self._turn_ends = began + TURN_S
            self._arm()
        self._set_busy(self.busy or self._loop.time() >= self._turn_ends)

    def _wait(self, waiting: _QueuedRequest) -> None:
        """Put a request into the line, or refuse it."""
        if waiting.arrived < self._still_until:
            self._refuse_one(waiting, BacklogRefusal.STOOD_STILL)
        elif self._held_for(self.limits.room_s):
            self._refuse_one(waiting, BacklogRefusal.NO_ROOM)
        elif len(self._line) + len(self._late) >= self.limits.size or self._size > LINE_SIZE_MAX:
            self._refuse_one(waiting, BacklogRefusal.FULL)
        else:
            self._line.append(waiting)
            waiting.connection.in_line += 1
            self._size += _size(waiting.frame)
            if self._armed is None:
                self._arm()

    def _held_for(self, seconds: float) -> bool:
        return self._held_since is not None and self._loop.time() - self._held_since > seconds

    def hold(self, connection: PeerRequests, frame: Frame) -> None:
        """A handler could not begin with this request until there is room: it waits, and all behind
        it, until ``release``."""
        now = self._loop.time()
        if self._held_since is None:
            self._held_since = now
        self._set_busy(True)
        self._line.appendleft(self._begun or _QueuedRequest(connection, frame, now))
        connection.in_line += 1
        self._size += _size(frame)
        self._arm()

    def release(self) -> None:
        """There may be room."""
        if self._held_since is not None:
            self._held_since = None
            self._disarm()
            self._arm()

    def stood_still(self, seconds: float) -> None:
        """Refuse the requests that waited behind an append or a turn of the loop that took
        ``seconds``."""
        now = self._loop.time()
        if self.limits.wait_s is None:
            return
        self._still_until = now
        self._set_busy(True)
        for line in self._late, self._line:
            while line and now - line[0].arrived >= seconds:
                self._refuse_some(line, BacklogRefusal.STOOD_STILL, now)
        self._arm()

    def finish(self) -> None:
        """Handle all that wait, or refuse them if there is no room: the server ends."""
        self._disarm()
        self._handle(until=FOR_EVER)
        self._refuse_the_late(until=FOR_EVER)
        while self._line:
            self._refuse_some(self._line, BacklogRefusal.ENDING, self._loop.time())

    def _set_busy(self, busy: bool) -> None:
        self.busy = busy
        self.credit = 0 if busy else CREDIT

    def _turn(self) -> None:
        """Begin a turn of the loop: each one while there is a line, and the one after a turn that
        was timed."""
        self._armed = self._turn_ends = None
        self._serve()
        self._set_busy(bool(self._line) or self._held_since is not None)
        if self._line or self._late:
            self._arm()

    def _serve(self) -> None:
        """Handle those in the line for as long as reading has taken since the last time, then
        refuse the late for as long.

        Three shares, since each of the three could take all the time that there is. Without the
        first the line grows until all in it are late; without the second nothing but refusals is
        done, and whoever is refused sends again; without the third the late wait for ever."""
        share = max(TURN_S, self._loop.time() - self._served_at)
        if self._held_since is None:
            self._handle(self._loop.time() + share)
        self._refuse_the_late(self._loop.time() + share)
        self._served_at = self._loop.time()

    def _handle(self, until: float) -> None:
        while (now := self._loop.time()) < until and self._held_since is None:
            self._set_late_apart(now)
            if not self._line:
                break
            self._begun = begun = self._line.popleft()
            connection, frame = begun.connection, begun.frame
            self._size -= _size(frame)
            connection.in_line -= 1
            connection.take(frame)
            self._begun = None
            if connection.interrupted and until < FOR_EVER:
                self._take_out(connection)

    def _take_out(self, connection: PeerRequests) -> None:
        """A request of the connection took long: all that it has in the line waits in the
        connection from now on, where it stands before nobody else's. What is late stays, to be
        refused."""
        if connection.wire.closed or self._held_since is not None:
            return
        connection.interrupted = False
        if connection.in_line:
            line, self._line, mine = self._line, deque(), []
            for one in line:
                if one.connection is connection:
                    mine.append(one.frame)
                    self._size -= _size(one.frame)
                else:
                    self._line.append(one)
            connection.in_line -= len(mine)
            connection.set_aside(mine, first=True)
            connection.resume()

    def _set_late_apart(self, now: float) -> None:
        wait_s = self.limits.wait_s
        if wait_s is not None:
            while self._line and now - self._line[0].arrived >= wait_s:
                self._late.append(self._line.popleft())

    def _refuse_the_late(self, until: float) -> None:
        now = self._loop.time()
        self._set_late_apart(now)
        while self._late and now < until:
            self._refuse_some(self._late, BacklogRefusal.WAITED, now)
            now = self._loop.time()
        if self.limits.wait_s is not None and self._held_for(self.limits.room_s):
            while self._line:
                self._refuse_some(self._line, BacklogRefusal.STOOD_STILL, now)

    # When more comes than can be done, refusing must cost much less than doing: equal answers are
    # encoded once, and counted together.

    def _refuse_some(self, line: deque[_QueuedRequest], why: BacklogRefusal, now: float) -> None:
        """Refuse the first of a line, and some behind it that came together with it."""
        arrived, before = line[0].arrived, len(line)
        answer = self._answer(why, now, arrived, len(self) - 1)
        for _ in range(min(before, REFUSED_TOGETHER)):
            if line[0].arrived - arrived >= ALIKE_S:
                break
            waiting = line.popleft()
            self._size -= _size(waiting.frame)
            waiting.connection.in_line -= 1
            waiting.connection.refuse(waiting.frame, answer)
        self.refused[why] += before - len(line) - 1

    def _refuse_one(self, waiting: _QueuedRequest, why: BacklogRefusal) -> None:
        """Refuse a request that does not come into the line."""
        answer = self._answer(why, self._loop.time(), waiting.arrived, len(self))
        waiting.connection.refuse(waiting.frame, answer)

    def _answer(
        self, why: BacklogRefusal, now: float, arrived: float, left: int
    ) -> Callable[[int], bytes]:
        """Return the encoder of the answer, for one request or for all that are alike. The first is
        counted here, for ``refuse`` tells their number."""
        self.refused[why] += 1
        alike = _Alike(why, int(now / ALIKE_S), int(arrived / ALIKE_S))
        if self._last_refusal is None or self._last_refusal[0] != alike:
            self._last_refusal = alike, encoder_of(self._refuse(why, now - arrived, left))
        return self._last_refusal[1]

    def _arm(self) -> None:
        if self._armed is None:
            self._served_at = self._loop.time()
            held = self._held_since is not None
            self._armed = (
                self._loop.call_later(CHECK_S, self._turn)
                if held
                else self._loop.call_soon(self._turn)
            )

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None


def _size(frame: Frame) -> int:
    return len(frame.header) + len(frame.body)
