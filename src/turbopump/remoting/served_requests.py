"""Requests of one peer, handled in order. A request waits while the peer does not read, or while
other connections are served.

The rule: if a peer does not read its answers, the server stops reading from it, and its requests
wait unhandled. The memory that this needs is counted (``connection_memory.py``). The meaning of
requests is unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from turbopump.errors import ProtocolError
from turbopump.protocol.frame import FRAME_SIZE_MAX, JSON, Frame
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.backlog import FULL_READ, TURN_S, Backlog, WaitingRules
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.turns import Steps, Turns
from turbopump.remoting.wire import WAITING_MAX, Wire
from turbopump.repeated_line import RepeatedLine

T = TypeVar("T")

log = logging.getLogger(__name__)
_bad_frame = RepeatedLine(log, logging.WARNING, "closing connection peer=%s cause=%s")
_held_most = RepeatedLine(
    log,
    logging.WARNING,
    "closing the connection with the most memory, the limit for all is reached peer=%s "
    "unfinished_bytes=%d unread_bytes=%d waiting_requests_bytes=%d connectionMemoryMax=%d",
)

LONG_WORK_MAX: Final = 100
"""Maximum unfinished long requests of one connection. Later requests wait unhandled."""

GROWING_SIZE: Final = 64 * 1024
"""Size in bytes from which an unfinished frame may have to wait when memory is tight."""

FRAME_OVERHEAD: Final = 160
"""Bytes of memory that a waiting frame uses in addition to its content."""

DUE_SIZE: Final = 1024
"""Bytes counted for each answer that waits until the peer has read earlier ones."""

INSTANT_S: Final = 0.01
"""Minimum seconds by which a connection's bytes are multiplied, even if the peer has just read or
sent."""

KEPT_S: Final = 1.0
"""Seconds by which the bytes of requests that are answered later are multiplied, however long they
wait. So of all connections with such requests, the one with the most is closed first."""


class Keeper(NamedTuple):
    """Owner of pending requests, which are answered later.

    - ``size``: memory of one request in bytes.
    - ``drop``: function called with each request if its connection ends.
    """

    size: int
    drop: Callable[[Any], object]


class RequestTable(WaitingRules, Protocol):
    """Methods of the router that ``ServedRequests`` calls."""

    def handle(self, frame: Frame, served: ServedRequests) -> None:
        """Handle a frame: call the handler of a request, or pass an answer to the waiting call."""


class ServedRequests:
    """Requests of one peer, handled in the order of their arrival.

    - ``memory``: counter of the bytes that the connections of a server use. None for a client,
      which reads even if its peer does not. If both sides stopped reading, neither would ever
      continue.
    - ``backlog``: the server's backlog for requests that may wait.
    - ``turns``: driver of long work.
    - ``times``: the server's times of answers.
    - ``on_open``, ``on_close``: functions called with the wire when it is connected and when it
      ends.

    ``note_answer`` notes an answer in the turn of its request, by its key (``answer_key``).
    """

    __slots__ = (
        "_backlog",
        "_frame_waits",
        "_goes_on",
        "_held",
        "_is_due",
        "_kept",
        "_kept_size",
        "_lag",
        "_memory",
        "_peer_ended",
        "_rests",
        "_tasks",
        "in_line",
        "interrupted",
        "note_answer",
        "router",
        "times",
        "turns",
        "wire",
    )

    def __init__(
        self,
        router: RequestTable,
        *,
        on_open: Callable[[Wire], None] | None = None,
        on_close: Callable[[Wire], None] | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        memory: ConnectionMemory | None = None,
        backlog: Backlog | None = None,
        turns: Turns | None = None,
        times: AnswerTimes | None = None,
    ) -> None:
        self.times = times if times is not None else AnswerTimes()
        self.note_answer = self.times.turn.append
        self.wire = Wire(
            self,
            on_open=on_open,
            on_close=on_close,
            frame_size_max=frame_size_max,
            tells_slow=memory is not None,
        )
        self.turns = turns if turns is not None else Turns()
        self.interrupted = False
        """True if the following frames must not be handled at once. The last frame has closed the
        connection or has taken long, or its answers have filled a write."""
        self.in_line = 0
        """Number of the peer's requests in the backlog. Requests behind these must not overtake
        them."""
        self.router = router
        self._memory = memory
        self._backlog = backlog if backlog is not None else Backlog.never_busy()
        self._lag: _Lag | None = None
        self._held = 0
        """Bytes of this connection that ``memory`` has counted."""
        self._kept: dict[Hashable, Keeper] = {}
        """Requests of the peer that are answered later, with their owners. They wait for a message,
        another peer or the disk."""
        self._kept_size = 0
        self._tasks: set[asyncio.Future[Any]] = set()
        self._frame_waits = self._rests = self._peer_ended = False
        self._is_due = self._goes_on = False

    # --- events of the wire

    def frames_came(self, frames: list[Frame], size: int, now: float) -> None:
        # Many frames must not block the loop. ``credit`` counts bytes, so that the clock is read
        # only once per CREDIT bytes. When the credit is used up, the backlog reads the clock. If
        # this turn is used up, requests that may wait go into the backlog. Any ``take`` may set
        # ``busy`` (a send that waits for a new file of the log). The frames behind it then go into
        # the backlog at once; otherwise they would overtake it.
        #
        # If the peer does not read, its requests are not handled, so that no more answers pile up.
        # If that begins midway, the remaining frames wait (``stops``).
        #
        # If a handler closes the connection, the remaining frames are dropped. An invalid frame is
        # processed last, so that the valid ones before it are answered.
        wire, backlog, times = self.wire, self._backlog, self.times
        times.arrived = now
        if size >= FULL_READ and self._memory is not None:
            self._rest_if_much_was_read(size)
        if wire.frame_began or self._held != self._kept_size:
            self._count_frame()
            if wire.closed:
                return
        if self._lag is not None and self._is_behind(frames):
            return
        backlog.credit -= size
        if backlog.credit > 0:  # the usual case
            typed, handle, rest = wire.calls.typed, self.router.handle, iter(frames)
            for frame in rest:
                if typed:
                    self.take_frame(frame)
                else:  # a server has no typed calls: this saves a function call
                    handle(frame, self)
                if self.interrupted and self.stops(rest, now):
                    break
                if backlog.busy:
                    backlog.wait_all(self, rest, now)
        elif frames:
            backlog.take_in_turns(self, frames, size, now)
        if len(times.turn) > times.begun:
            times.end_turn(wire.now())
        if wire.closed:
            return
        error = wire.reader.error
        if error is not None and (self._lag is None or self._lag.is_clear):
            self.give_up(error)

    def interrupt(self) -> None:
        self.interrupted = True

    def peer_ended(self) -> bool:
        # A server closes ended connections in turns, because thousands may end at once.
        if self._memory is None:
            return False
        self._peer_ended = True
        self.resume()
        return True

    def writing_paused(self) -> None:
        if self._memory is not None:
            self._lagging().begin(self.wire.now())

    def writing_resumed(self) -> None:
        if self._lag is not None:
            self.resume()

    def wrote(self, size: int) -> None:
        if self._lag is not None:
            self._lag.wrote(size, self.wire.unread)
            self._count()

    def ended(self) -> None:
        self.interrupted = True
        lag, self._lag = self._lag, None
        if self._memory is not None:
            self._memory.set_size(self, 0)
            self._memory.has_grown(self)
        kept, self._kept = self._kept, {}
        if kept:
            self.turns.run(self, _dropping(kept))
        if lag is not None:
            for action in lag.due:
                action()

    # --- handling a request

    def take_frame(self, frame: Frame) -> None:
        """Handle one frame now: a request, or the answer to a call."""
        calls = self.wire.calls
        if calls.typed and frame.serialize_type == JSON and calls.settle_typed(frame.header):
            return
        self.router.handle(frame, self)

    def put_off(self, frame: Frame) -> None:
        """Return a request to the backlog until its handler has room.

        All requests behind it wait too.
        """
        self._backlog.hold_request(self, frame)

    def took_long(self) -> None:
        """Record that the current request is slow: it takes the time of hundreds of usual requests.

        The clock is read after this request, so that many of these from several connections do not
        use up the loop.
        """
        self.interrupted = True
        self._backlog.credit = 0

    def run_steps(
        self, steps: Steps[T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run the steps of a request's long work, at once or in later runs of the event loop.

        ``done`` is called with the result, ``failed`` with the error. After the current frame,
        ``stops`` checks if the remaining frames must wait.
        """
        self.interrupted = True
        self.turns.run(self, steps, done, failed)

    def start_task(
        self,
        outcome: Awaitable[T],
        size: int,
        settle: Callable[[Awaitable[T]], Coroutine[Any, Any, None]],
    ) -> None:
        """Start a task that awaits a handler's outcome and sends it.

        The task waits until the peer has read enough. ``size`` is the number of bytes of the
        request. If the connection ends, a handler that has begun continues, because its message may
        be stored already.
        """

        def start() -> None:
            task = asyncio.ensure_future(self._run_task(outcome, settle))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)
            self.keep(task, Keeper(size, _goes_on))

        self.turns.start(start)

    async def _run_task(
        self, outcome: Awaitable[T], settle: Callable[[Awaitable[T]], Coroutine[Any, Any, None]]
    ) -> None:
        behind = self._lag is not None and bool(self._lag.due)  # earlier outcomes wait
        while self.full or behind:
            behind = False
            await self._room()
            if self.wire.closed and isinstance(outcome, Coroutine):
                outcome.close()  # the handler has not begun
                return
        await settle(outcome)

    def _task_ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        self.give_back(task)

    def give_up(self, error: ProtocolError) -> None:
        """Log an invalid frame and close the connection. Nothing behind the frame can be
        decoded."""
        _bad_frame(self.wire.peer, error)
        self.wire.close()
        self.wire.closed = self.interrupted = True

    # --- requests that wait for a message, another peer, or the disk

    def keep(self, request: Hashable, keeper: Keeper) -> None:
        """Count the memory of a pending request, until ``give_back``.

        If the connection ends, the request is dropped. This call may close this connection or
        another to free memory.
        """
        if self.wire.closed:
            keeper.drop(request)
            return
        self._kept[request] = keeper
        self._kept_size += keeper.size
        if self._memory is not None:
            self._held += keeper.size
            self._memory.set_size(self, self._held)

    def give_back(self, request: Hashable) -> None:
        """Stop counting the memory of a pending request."""
        keeper = self._kept.pop(request, None)
        if keeper is not None:
            self._kept_size -= keeper.size
            if self._memory is not None and not self.wire.closed:
                self._held -= keeper.size
                self._memory.set_size(self, self._held)

    # --- a peer that does not read

    @property
    def full(self) -> bool:
        """True if the peer has too many unread bytes, so its next requests must wait."""
        wire = self.wire
        if not wire.writing_paused or self._memory is None or wire.transport is None:
            return False
        return self._memory.tight or wire.unread >= WAITING_MAX

    def when_room(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the connection is no longer ``full`` or has ended.

        Handlers that answer later use this. Earlier actions and requests of the connection come
        first.
        """
        self._lagging().due.append(action)
        self._count()
        if not self.full:
            self.resume()

    async def _room(self) -> None:
        """Wait until the connection is no longer ``full`` or has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_room(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    def stops(self, rest: Iterable[Frame], began: float) -> bool:
        """Check if the remaining frames of a read must wait, and store them in that case.

        Frames wait if the peer does not read, the time of this run of the event loop is used up, or
        too much long work is unfinished. ``began`` is the time at which the read arrived. Resets
        ``interrupted``. Returns True if the connection is closed.
        """
        if self.wire.closed:
            return True
        self.interrupted = False
        if self.full:
            self.set_aside(rest)
        elif self.wire.now() - began >= TURN_S:
            self.set_aside(rest)
            self.resume()
        elif self.turns.waiting(self) >= LONG_WORK_MAX:
            self.set_aside(rest)
            self.turns.run(self, _nothing(), lambda _: self.resume())
        return False

    def _is_behind(self, frames: list[Frame]) -> bool:
        """Return True if earlier frames are waiting. In that case also store these frames."""
        if self._lagging().is_clear and not self.full:
            return False
        self.set_aside(frames)
        return True

    def resume(self) -> None:
        """Schedule the handling of waiting frames and actions. Each is one step among those of
        other connections."""
        self._is_due = True
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self.turns.run, self.wire, self._going_on())

    def _going_on(self) -> Steps[None]:
        try:
            while self._is_due:
                self._is_due = False
                if self._go_on():
                    self._is_due = True
                yield
        finally:
            self._goes_on = False

    def _go_on(self) -> bool:
        """Handle one waiting frame or action. Return True if the next one can follow."""
        wire = self.wire
        if self._peer_ended:
            if wire.writing_paused:
                wire.close()  # waits CLOSE_WAIT_S at most
            elif wire.transport is not None:
                wire.transport.close()
            return False
        lag = self._lag
        if lag is None or wire.closed or self.full:
            return False
        if lag.due:
            lag.due.popleft()()
        elif lag.unhandled:
            frame = lag.next_frame()
            if (self.in_line or self._backlog.is_held) and self.router.may_wait(frame):
                self._backlog.wait_all(self, iter((frame,)), wire.now())
            else:  # the backlog gets its own share of each turn
                self.times.begin_turn(wire.last_read, wire.now())
                self.take_frame(frame)
                self.times.end_turn(wire.now())
                self.interrupted = wire.closed
        if wire.closed or not lag.is_clear:
            return not wire.closed
        if not wire.writing_paused:
            self._lag = None
        if self._held:
            self._count()
        if wire.reader.error is not None:
            self.give_up(wire.reader.error)
        else:
            lag.is_behind = False
            self._read_or_pause()
        return False

    def _lagging(self) -> _Lag:
        if self._lag is None:
            self._lag = _Lag(self.wire.now())
        return self._lag

    def set_aside(self, frames: Iterable[Frame], *, first: bool = False) -> None:
        """Store frames to be handled later, in order, and stop reading.

        ``first`` puts them before the frames that wait already.
        """
        lag = self._lagging()
        if first:
            frames = [*frames, *lag.take_all()]
        lag.add(frames)
        lag.is_behind = True
        self._read_or_pause()
        self._count()

    # --- pausing and resuming reading

    def _count_frame(self) -> None:
        """Count the bytes of an unfinished frame, and stop reading if memory is tight.

        Reading resumes when the frame may grow (``grow_on``).
        """
        self._count()
        memory = self._memory
        if memory is None or self.wire.closed:
            return
        if self.wire.reader.held < GROWING_SIZE:
            memory.has_grown(self)
        elif not memory.may_grow(self):
            self._frame_waits = True
            self._read_or_pause()

    def grow_on(self) -> None:
        """Resume reading, because the unfinished frame may grow again."""
        self._frame_waits = False
        # restart its deadlines: the peer was not read from until now
        self.wire.last_read = self.wire.frame_began = self.wire.now()
        self._read_or_pause()

    def _rest_if_much_was_read(self, size: int) -> None:
        self._rests = not self._backlog.may_read_on(self, size)
        if self._rests:
            self._read_or_pause()

    def read_on(self) -> None:
        """Resume reading after a pause. Other connections were read during the pause."""
        self._rests = False
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        """Pause reading if any reason for a pause remains, else resume it.

        Reading pauses if the peer has used its share of this run of the event loop, if its frame
        may not grow, or if frames wait.
        """
        behind = self._lag is not None and self._lag.is_behind
        self.wire.pause_reading(self._rests or self._frame_waits or behind)

    # --- memory

    def _count(self) -> None:
        if self._memory is not None:
            self._memory.set_size(self, self.held_now(self.wire.now()))

    def held_now(self, now: float) -> int:
        """Return the bytes of memory that this connection uses now."""
        self._held = self.wire.reader.held + self._kept_size
        lag = self._lag
        if lag is not None:
            self._held += lag.unhandled_size + len(lag.due) * DUE_SIZE
            if self.wire.writing_paused and self.wire.transport is not None:
                self._held += lag.unread(self.wire.unread, now)
        return self._held

    def weight(self, now: float) -> float:
        """Return the connection's bytes, multiplied by the seconds since its peer last made
        progress.

        Progress means that the peer has sent more of a frame, or has read more of its answers.
        """
        unfinished = self.wire.reader.held
        weight = self._held * INSTANT_S + self._kept_size * KEPT_S
        if not self._frame_waits:
            weight += unfinished * (now - self.wire.last_read)
        if self._lag is not None:
            unread = self._held - unfinished - self._kept_size
            weight += unread * (now - self._lag.last_taken)
        return weight

    def close_for_memory(self, limit: int) -> None:
        """Drop all data and close the connection to free memory.

        ``limit`` is the exceeded maximum in bytes, for the log.
        """
        unfinished, kept = self.wire.reader.held, self._kept_size
        _held_most(self.wire.peer, unfinished, self._held - unfinished - kept, kept, limit)
        self.interrupted = True
        self.wire.drop_everything()


class _Lag:
    """Frames and actions that wait for the peer to read its answers."""

    __slots__ = (
        "_taken",
        "_taken_at_once",
        "_written",
        "due",
        "is_behind",
        "last_taken",
        "unhandled",
        "unhandled_size",
    )

    def __init__(self, now: float) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.unhandled: deque[Frame] = deque()
        self.unhandled_size = 0
        self.is_behind = False
        """True if frames were set aside and reading is paused."""
        self.begin(now)

    @property
    def is_clear(self) -> bool:
        """True if no frame and no action waits."""
        return not self.due and not self.unhandled

    def begin(self, now: float) -> None:
        """Start counting unread bytes. The peer has read all answers at this time."""
        self._written = self._taken = self._taken_at_once = 0
        self.last_taken = now

    def wrote(self, size: int, waiting: int) -> None:
        """Count a write of ``size`` bytes. ``waiting`` bytes are unread after the write."""
        if not self._written:
            self._taken = self._taken_at_once = max(size - waiting, 0)
        self._written += size

    def unread(self, waiting: int, now: float) -> int:
        """Return the memory of unread answers in bytes. The peer has not read ``waiting`` bytes
        yet."""
        taken = self._written - waiting
        if taken != self._taken:
            self._taken, self.last_taken = taken, now
        # the transport keeps the whole write in memory, also the part that was sent at once
        return waiting + self._taken_at_once

    def add(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.unhandled.append(frame)
            self.unhandled_size += size_of(frame)

    def take_all(self) -> list[Frame]:
        frames = list(self.unhandled)
        self.unhandled.clear()
        self.unhandled_size = 0
        return frames

    def next_frame(self) -> Frame:
        frame = self.unhandled.popleft()
        self.unhandled_size -= size_of(frame)
        return frame


def size_of(frame: Frame) -> int:
    """Return the bytes of memory that a frame uses."""
    return len(frame.header) + len(frame.body) + FRAME_OVERHEAD


def _dropping(kept: dict[Hashable, Keeper]) -> Steps[None]:
    """Drop the pending requests of an ended connection, one per step."""
    for request, keeper in kept.items():
        keeper.drop(request)
        yield


def _nothing() -> Steps[None]:
    """Do one empty step. It runs after all earlier work of the connection."""
    yield


def _goes_on(_task: object) -> None:
    """Ignore the end of the connection. The task of the handler continues."""
