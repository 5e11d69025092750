"""Backlog of a server: requests that are read, but not handled yet.

One event loop serves all connections, so a peer that sends thousands of requests at once must not
block it for seconds. After ``TURN_S`` of handling, the rest of the requests that may wait
(``Router.add(…, may_wait=True)``) go into the backlog, first come, first served. Each later run of
the event loop handles as many of them as fit. The backlog also waits while a handler has no room.

The backlog has a maximum length and a maximum wait. A request that would wait longer is refused,
and its sender knows that nothing was done. Reading, handling and refusing each get a share of the
loop's time (``_serve_shares``). So a greatly overloaded broker still does half of the work that it
could do. While the backlog is empty, the clock is read once per ``CREDIT`` bytes.

Requests that may not go into the backlog wait in their connection, unhandled and in order. They
wait when the time of this run is used up, or when the peer does not read. They also wait behind a
request that takes as long as hundreds of usual ones (``ServedRequests.took_long``), which would
delay the whole backlog. The connection continues with them as long work (``turns.py``), one request
per step.

Reading is limited too (``may_read_on``). A connection that has filled the read buffers of one run
of the loop is read again in a later one. The meaning of requests is unknown here.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple, Protocol

import msgspec

from turbopump.errors import ProtocolError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import Frame
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.response import Refusal, encoder_of, refusal
from turbopump.remoting.wire import Wire

TURN_S: Final = 0.02
CREDIT: Final = 64 * 1024
"""Bytes of requests, from all connections, that are handled between two readings of the clock."""
STEP_SIZE: Final = 16 * 1024
"""Bytes of requests of one large read that are handled between two readings of the clock: 16
requests of 1 KiB, 100 of the smallest."""
LINE_SIZE_MAX: Final = 128 * 1024 * 1024
"""Maximum bytes of all requests in the backlog."""
CHECK_S: Final = 0.01
"""Seconds between two checks of the backlog while a handler has no room."""
FULL_READ: Final = 224 * 1024
"""Size in bytes of a read that has filled the loop's buffer, so that more bytes probably wait.
uvloop then reads again at once, up to 32 times in a row. asyncio reads in its next run."""
READ_A_TURN: Final = 1024 * 1024
"""Maximum bytes of full reads in one run of the event loop. Splitting them into frames takes about
5 ms."""
READ_ON_A_TURN: Final = 2
"""Number of paused connections that are read again in one run of the event loop."""
ALIKE_S: Final = 0.001
"""Requests that arrived within this many seconds, and are refused for the same reason, get the same
answer."""
REFUSED_TOGETHER: Final = 32
"""Maximum number of requests that are refused between two readings of the clock. They take about
0.2 ms."""
FOR_EVER: Final = float("inf")


class WaitingRules(Protocol):
    """Methods of the router that the backlog calls."""

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request may wait in the backlog."""

    def refuse_frame(
        self, frame: Frame, answer: Callable[[int], bytes], connection: PeerRequests
    ) -> None:
        """Refuse a request with the frame that ``answer`` makes from the request id."""


class PeerRequests(Protocol):
    """Methods and fields of ``ServedRequests`` that the backlog uses.

    - ``in_line``: number of the connection's requests in the backlog.
    - ``interrupted``: True if the remaining frames must not be handled at once.
    - ``times``: the server's times of answers.
    """

    wire: Wire
    in_line: int
    interrupted: bool
    times: AnswerTimes

    @property
    def router(self) -> WaitingRules:
        """Router of the port that accepted this connection."""

    def take_frame(self, frame: Frame) -> None:
        """Handle one frame now."""

    def stops(self, rest: Iterable[Frame], began: float) -> bool:
        """Keep the frames in ``rest`` for later if they must wait now.

        Called after a frame that has set ``interrupted``. ``began`` is the time at which the read
        arrived. Returns True if the connection is closed.
        """

    def set_aside(self, frames: Iterable[Frame], *, first: bool = False) -> None:
        """Store frames in the connection, to be handled later. ``first`` puts them in front of the
        frames stored earlier."""

    def give_up(self, error: ProtocolError) -> None:
        """Close the connection because a frame is invalid."""

    def resume(self) -> None:
        """Schedule the handling of the stored frames. Other connections get turns in between."""

    def read_on(self) -> None:
        """Resume reading from the peer."""


class BacklogRefusal(Enum):
    """Reason why a request is refused instead of handled."""

    WAITED = "waited too long in the line"
    FULL = "found the line full"
    STOOD_STILL = "was in the line while the loop or an append stood still"
    NO_ROOM = "came while handlers had been waiting for room too long"
    ENDING = "was in the line when the server ended, for want of room"


class BacklogLimits(NamedTuple):
    """Limits of a backlog of requests.

    - ``size``: maximum number of requests in the backlog.
    - ``wait_s``: maximum seconds that a request waits in the backlog. None means no limit.
    - ``room_s``: seconds for which a handler may have no room before new requests are refused at
      once.
    """

    size: int = 10_000
    wait_s: float | None = 0.2
    room_s: float = 1.0


class _QueuedRequest(msgspec.Struct, frozen=True, gc=False):
    connection: PeerRequests
    frame: Frame
    arrived: float


class _Alike(NamedTuple):
    """Key of similar refusals, which share one encoded answer. Both times are counted in units of
    ``ALIKE_S``."""

    why: BacklogRefusal
    refused: int
    arrived: int


class Backlog:
    """Queue of a server's requests: read, but not handled yet.

    - ``refuse``: function that makes the answer from the reason, the seconds waited, and the number
      of requests left. It is called once for all similar refusals of one millisecond.
    - ``refused``: number of refusals by reason.
    - ``busy``: True if requests that may wait must go into the backlog.
    - ``credit``: bytes of requests that may be handled before the clock is read again; 0 when busy.
    """

    def __init__(
        self, limits: BacklogLimits, refuse: Callable[[BacklogRefusal, float, int], Refusal]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.limits = limits
        self._refuse = refuse
        self._line: deque[_QueuedRequest] = deque()
        self._late: deque[_QueuedRequest] = deque()
        """Requests that have waited too long and must still be refused."""
        self._size = 0
        self._turn_ends: float | None = None
        self._armed: asyncio.Handle | None = None
        self._served_at = 0.0
        """Time at which backlog requests were last handled, or at which the next handling was
        scheduled."""
        self._begun: _QueuedRequest | None = None
        self._held_since: float | None = None
        self._still_until = 0.0
        self.refused: Counter[BacklogRefusal] = Counter()
        self._last_refusal: tuple[_Alike, Callable[[int], bytes]] | None = None
        self._unread: dict[PeerRequests, None] = {}
        """Connections that wait to be read again in a later run of the loop."""
        self._read_now = 0
        """Bytes of full reads in this run of the loop."""
        self.busy = False
        self.credit: float = CREDIT

    @classmethod
    def without_line(cls) -> Backlog:
        """Return a backlog for a server that lets no request wait.

        The backlog stays empty. It only limits how long one run of the event loop handles requests.
        """
        return cls(
            BacklogLimits(),
            lambda why, _waited, _left: refusal(ResponseCode.SYSTEM_BUSY, why.value),
        )

    @classmethod
    def never_busy(cls) -> Backlog:
        """Return a backlog for a connection that handles every request at once."""
        backlog = cls.without_line()
        backlog.credit = FOR_EVER
        return backlog

    def __len__(self) -> int:
        return len(self._line) + len(self._late)

    @property
    def waited_s(self) -> float:
        """Seconds since the oldest request in the backlog arrived. 0 if the backlog is empty."""
        first = self._late or self._line
        return self._loop.time() - first[0].arrived if first else 0.0

    @property
    def is_held(self) -> bool:
        """True while no backlog request is handled because a handler has no room."""
        return self._held_since is not None

    def take_in_turns(
        self, connection: PeerRequests, frames: list[Frame], size: int, arrived: float
    ) -> None:
        """Handle the frames of one read until this run of the event loop has no time left.

        The remaining frames go into the backlog or wait in the connection. ``size`` is the number
        of bytes read, and ``arrived`` the time of the read.
        """
        step = until_look = max(STEP_SIZE * len(frames) // size, 1)
        rest = iter(frames)
        if self.busy:
            self.wait_all(connection, rest, arrived)
        for frame in rest:
            connection.take_frame(frame)
            if connection.interrupted and connection.stops(rest, arrived):
                return
            until_look -= 1
            if not until_look:
                self._check_turn(arrived)
                until_look = step
            if self.busy:
                self.wait_all(connection, rest, arrived)
        self._check_turn(arrived)
        if self._line and self._loop.time() - self._served_at >= TURN_S:
            self._serve_shares()

    def wait_all(self, connection: PeerRequests, frames: Iterator[Frame], arrived: float) -> None:
        """Sort frames: put requests that may wait into the backlog, and handle the others.

        When the time of this run of the event loop is used up, all remaining frames wait in the
        connection.
        """
        for frame in frames:
            if connection.router.may_wait(frame):
                self._queue_request(_QueuedRequest(connection, frame, arrived))
            elif self._turn_ends is not None and self._loop.time() >= self._turn_ends:
                connection.set_aside(chain((frame,), frames))
                connection.resume()
                return
            else:
                connection.take_frame(frame)
            if connection.interrupted and connection.stops(frames, arrived):
                return

    def may_read_on(self, connection: PeerRequests, size: int) -> bool:
        """Return True if this connection may be read again in this run of the event loop.

        ``size`` is the number of bytes of its last read, which filled the buffer. On False,
        ``connection.read_on`` is called in a later run.
        """
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

    def _check_turn(self, began: float) -> None:
        """Set ``busy`` if this run of the event loop has handled frames for ``TURN_S``."""
        if self._turn_ends is None:
            self._turn_ends = began + TURN_S
            self._arm_timer()
        self._set_busy(self.busy or self._loop.time() >= self._turn_ends)

    def _queue_request(self, waiting: _QueuedRequest) -> None:
        """Add a request to the backlog. Refuse the request if the backlog is full or stands
        still."""
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
                self._arm_timer()

    def _held_for(self, seconds: float) -> bool:
        return self._held_since is not None and self._loop.time() - self._held_since > seconds

    def hold_request(self, connection: PeerRequests, frame: Frame) -> None:
        """Put a request whose handler has no room at the front of the backlog.

        Nothing in the backlog is handled until ``release_held`` is called.
        """
        now = self._loop.time()
        if self._held_since is None:
            self._held_since = now
        self._set_busy(True)
        # A request from the backlog keeps its time of arrival. Otherwise its wait would start
        # again each time that its handler has no room.
        self._line.appendleft(self._begun or _QueuedRequest(connection, frame, now))
        connection.in_line += 1
        self._size += _size(frame)
        self._arm_timer()

    def release_held(self) -> None:
        """Schedule the handling of the backlog, because handlers may have room now."""
        if self._held_since is not None:
            self._held_since = None
            self._disarm_timer()
            self._arm_timer()

    def stood_still(self, seconds: float) -> None:
        """Refuse all backlog requests that have waited at least ``seconds``.

        Called after an append, or a run of the event loop, that took ``seconds``. Requests that
        were read before this call but enter the backlog later are refused too. Without a maximum
        wait, nothing is refused.
        """
        now = self._loop.time()
        if self.limits.wait_s is None:
            return
        self._still_until = now
        self._set_busy(True)
        for line in self._late, self._line:
            while line and now - line[0].arrived >= seconds:
                self._refuse_some(line, BacklogRefusal.STOOD_STILL, now)
        self._arm_timer()

    def finish_all(self) -> None:
        """Empty the backlog when the server ends.

        Each request is handled, or refused if it is late or its handler has no room.
        """
        self._disarm_timer()
        self._handle_queued(until=FOR_EVER)
        self._refuse_the_late(until=FOR_EVER)
        while self._line:
            self._refuse_some(self._line, BacklogRefusal.ENDING, self._loop.time())

    def _set_busy(self, busy: bool) -> None:
        self.busy = busy
        self.credit = 0 if busy else CREDIT

    def _run_turn(self) -> None:
        """Do the backlog's share of one run of the event loop: handle some requests, and refuse
        late ones.

        Runs each time the loop runs while the backlog is not empty, and after each run whose time
        was measured.
        """
        self._armed = self._turn_ends = None
        self._serve_shares()
        self._set_busy(bool(self._line) or self._held_since is not None)
        if self._line or self._late:
            self._arm_timer()

    def _serve_shares(self) -> None:
        """Handle backlog requests for one share of the loop's time. Then refuse late requests for
        another share.

        A share is as long as the time that passed since the last call, at least ``TURN_S``.
        Reading, handling and refusing get equal shares, because each could use up all the time.
        Without a share for handling, the backlog grows until all requests in it are late. Without a
        limit on refusing, nothing else is done, and refused senders retry. Without a share for
        refusing, late requests wait for ever.
        """
        share = max(TURN_S, self._loop.time() - self._served_at)
        if self._held_since is None:
            self._handle_queued(self._loop.time() + share)
        self._refuse_the_late(self._loop.time() + share)
        self._served_at = self._loop.time()

    def _handle_queued(self, until: float) -> None:
        now = self._loop.time()
        while now < until and self._held_since is None:
            self._set_late_apart(now)
            if not self._line:
                break
            self._begun = begun = self._line.popleft()
            connection, frame = begun.connection, begun.frame
            self._size -= _size(frame)
            connection.in_line -= 1
            connection.times.begin_turn(begun.arrived, now)
            connection.take_frame(frame)
            now = self._loop.time()
            connection.times.end_turn(now)
            self._begun = None
            if connection.interrupted and until < FOR_EVER:
                self._take_out(connection)

    def _take_out(self, connection: PeerRequests) -> None:
        """Move the requests of one connection from the backlog into the connection.

        Called after one of them took long, so that the others delay no other connection. Late
        requests stay in the backlog, to be refused.
        """
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

    # Under overload, refusing must cost much less than handling. So equal answers are encoded
    # once, and counted together.

    def _refuse_some(self, line: deque[_QueuedRequest], why: BacklogRefusal, now: float) -> None:
        """Refuse the first request of a queue, together with the next ones from the same
        millisecond."""
        arrived, before = line[0].arrived, len(line)
        times = line[0].connection.times
        times.begin_turn(arrived, now)
        answer = self._shared_answer(why, now, arrived, len(self) - 1)
        for _ in range(min(before, REFUSED_TOGETHER)):
            if line[0].arrived - arrived >= ALIKE_S:
                break
            waiting = line.popleft()
            self._size -= _size(waiting.frame)
            waiting.connection.in_line -= 1
            waiting.connection.router.refuse_frame(waiting.frame, answer, waiting.connection)
        times.end_turn(now)
        self.refused[why] += before - len(line) - 1

    def _refuse_one(self, waiting: _QueuedRequest, why: BacklogRefusal) -> None:
        """Refuse a request that has not entered the backlog."""
        answer = self._shared_answer(why, self._loop.time(), waiting.arrived, len(self))
        waiting.connection.router.refuse_frame(waiting.frame, answer, waiting.connection)

    def _shared_answer(
        self, why: BacklogRefusal, now: float, arrived: float, left: int
    ) -> Callable[[int], bytes]:
        """Count one refusal, and return a function that encodes the answer. Similar refusals share
        the function."""
        self.refused[why] += 1
        alike = _Alike(why, int(now / ALIKE_S), int(arrived / ALIKE_S))
        if self._last_refusal is None or self._last_refusal[0] != alike:
            self._last_refusal = alike, encoder_of(self._refuse(why, now - arrived, left))
        return self._last_refusal[1]

    def _arm_timer(self) -> None:
        if self._armed is None:
            self._served_at = self._loop.time()
            held = self._held_since is not None
            self._armed = (
                self._loop.call_later(CHECK_S, self._run_turn)
                if held
                else self._loop.call_soon(self._run_turn)
            )

    def _disarm_timer(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None


def _size(frame: Frame) -> int:
    return len(frame.header) + len(frame.body)
