"""The requests of one peer: handed to a router in order, and held back while the peer does not read
or others have their turn.

The rule: a peer that does not read is not read from either, and what it has asked for waits
unhandled. What the peer makes us hold meanwhile is counted (``connection_memory.py``). This module
must not know what any request means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from turbopump.errors import ProtocolError
from turbopump.protocol.frame import FRAME_SIZE_MAX, JSON, Frame
from turbopump.remoting.backlog import FULL_READ, TURN_S, Backlog
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
    "closing connection, it held most of what all may hold together peer=%s unfinished_bytes=%d "
    "unread_bytes=%d waiting_requests_bytes=%d connectionMemoryMax=%d",
)

LONG_WORK_MAX: Final = 100
"""Requests of one connection whose work is not over; those behind them wait unhandled."""

GROWING_SIZE: Final = 64 * 1024
"""An unfinished frame of so many bytes may have to wait for others, where memory is tight."""

FRAME_OVERHEAD: Final = 160
"""Bytes that a frame which waits takes beside its own."""

DUE_SIZE: Final = 1024
"""Bytes of a request that was kept, and whose answer waits for the peer to read others."""

INSTANT_S: Final = 0.01
"""Least number of seconds for which held bytes count, even if the peer has just read or sent."""

KEPT_S: Final = 1.0
"""Requests that wait for something else than their peer count for so long, however long they do:
of those who have them the one with most is closed first."""


class Keeper(NamedTuple):
    """Owner of requests that are answered later. ``size``: bytes of memory that one takes;
    ``drop`` is called with each when its connection has ended."""

    size: int
    drop: Callable[[Any], object]


class RequestTable(Protocol):
    """The router, as it is seen here."""

    def handle(self, frame: Frame, served: Served) -> None:
        """Handle a request now; give an answer to the call that waits for it."""

    def refuse_frame(self, frame: Frame, answer: Callable[[int], bytes], served: Served) -> None:
        """Answer a request that was not handled with what ``answer`` makes of its number."""

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request may stand in the server's line."""


class Served:
    """The requests of the peer at the other end of ``wire``.

    ``memory`` counts what the connections of a server hold. Without it, on the client's side, a
    peer that does not read is read from all the same: if both sides stopped, neither would ever go
    on. ``backlog`` is the server's line for requests that may wait, ``turns`` the one for long
    work. ``on_open`` and ``on_close`` are called with the wire.
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
        "_router",
        "_tasks",
        "in_line",
        "interrupted",
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
    ) -> None:
        self.wire = Wire(
            self,
            on_open=on_open,
            on_close=on_close,
            frame_size_max=frame_size_max,
            tells_slow=memory is not None,
        )
        self.turns = turns if turns is not None else Turns()
        self.interrupted = False
        """The frames behind one may not be handled at once: it has closed the connection, answers
        have filled a write, or it took long."""
        self.in_line = 0
        """Requests of it that stand in the line; those behind them may not overtake them."""
        self._router = router
        self._memory = memory
        self._backlog = backlog if backlog is not None else Backlog.never_busy()
        self._lag: _Lag | None = None
        self._held = 0
        """Bytes that ``memory`` has counted of this connection."""
        self._kept: dict[Hashable, Keeper] = {}
        """Requests of the peer that wait for something else than the peer, and who keeps them."""
        self._kept_size = 0
        self._tasks: set[asyncio.Future[Any]] = set()
        self._frame_waits = self._rests = self._peer_ended = False
        self._is_due = self._goes_on = False

    # --- what the wire tells

    def frames_came(self, frames: list[Frame], size: int, now: float) -> None:
        # The loop may not be kept. ``credit`` counts bytes, for one look at the clock in so many is
        # enough; when it is used up the backlog looks, and if this turn has had its share, makes
        # what may wait stand in line. Any ``take`` may set ``busy`` (a send that
        # waits for a new file of the log): the frames behind it then go into the line at once, or
        # they would overtake it.
        #
        # The peer may not read: what its requests would answer then is not made. Where that turns
        # out midway, the frames behind wait (``stops``).
        #
        # A handler may close the connection; nobody is there for the rest. A broken frame is acted
        # on last, so that the good ones before it are answered.
        wire, backlog = self.wire, self._backlog
        if size >= FULL_READ and self._memory is not None:
            self._rest_if_much_was_read(size)
        if wire.frame_began or self._held != self._kept_size:
            self._count_frame()
            if wire.closed:
                return
        if self._lag is not None and self._is_behind(frames):
            return
        backlog.credit -= size
        if backlog.credit > 0:  # nearly always
            typed, handle, rest = wire.calls.typed, self._router.handle, iter(frames)
            for frame in rest:
                if typed:
                    self.take(frame)
                else:  # saves a call for each frame of a server
                    handle(frame, self)
                if self.interrupted and self.stops(rest, now):
                    return
                if backlog.busy:
                    backlog.wait_all(self, rest, now)
        elif frames:
            backlog.take_in_turns(self, frames, size, now)
            if wire.closed:
                return
        error = wire.reader.error
        if error is not None and (self._lag is None or self._lag.is_clear):
            self.give_up(error)

    def interrupt(self) -> None:
        self.interrupted = True

    def peer_ended(self) -> bool:
        # Where thousands of peers end at once, a server closes them in turns.
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
            self._memory.count(self, 0)
            self._memory.has_grown(self)
        kept, self._kept = self._kept, {}
        if kept:
            self.turns.run(self, _dropping(kept))
        if lag is not None:
            for action in lag.due:
                action()

    # --- a request is handled

    def take(self, frame: Frame) -> None:
        """Handle one frame now."""
        calls = self.wire.calls
        if calls.typed and frame.serialize_type == JSON and calls.settle_typed(frame.header):
            return
        self._router.handle(frame, self)

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request may stand in the line."""
        return self._router.may_wait(frame)

    def refuse(self, frame: Frame, answer: Callable[[int], bytes]) -> None:
        """Answer a request that was not handled with what ``answer`` makes of its number."""
        self._router.refuse_frame(frame, answer, self)

    def put_off(self, frame: Frame) -> None:
        """Handle a request again when its handler has room: it waits, and all behind it."""
        self._backlog.hold(self, frame)

    def took_long(self) -> None:
        """The request that is handled takes as long as hundreds of usual ones: see after it whether
        this turn has had its share, whatever connections such requests come from."""
        self.interrupted = True
        self._backlog.credit = 0

    def run_steps(
        self, steps: Steps[T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do work that may be long; then look whether this turn has had its share."""
        self.interrupted = True
        self.turns.run(self, steps, done, failed)

    def start_task(
        self,
        outcome: Awaitable[T],
        size: int,
        settle: Callable[[Awaitable[T]], Coroutine[Any, Any, None]],
    ) -> None:
        """Settle an outcome in a task, once the peer reads; ``size``: bytes of its request. The
        task goes on if the connection ends: what it has begun may be stored already."""

        def start() -> None:
            task = asyncio.ensure_future(self._run_task(outcome, settle))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)
            self.keep(task, Keeper(size, _goes_on))

        self.turns.start(start)

    async def _run_task(
        self, outcome: Awaitable[T], settle: Callable[[Awaitable[T]], Coroutine[Any, Any, None]]
    ) -> None:
        behind = self._lag is not None and bool(self._lag.due)  # others came before
        while self.full or behind:
            behind = False
            await self._room()
            if self.wire.closed and isinstance(outcome, Coroutine):
                outcome.close()  # it has not begun
                return
        await settle(outcome)

    def _task_ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        self.give_back(task)

    def give_up(self, error: ProtocolError) -> None:
        """Close: nothing that comes behind a broken frame can be read."""
        _bad_frame(self.wire.peer, error)
        self.wire.close()
        self.wire.closed = self.interrupted = True

    # --- requests that wait for a message, another peer, or the disk

    def keep(self, request: Hashable, keeper: Keeper) -> None:
        """Count a request that is answered later, until ``give_back``; it is dropped when the
        connection ends. The connection, or another, may be closed by this call."""
        if self.wire.closed:
            keeper.drop(request)
            return
        self._kept[request] = keeper
        self._kept_size += keeper.size
        if self._memory is not None:
            self._held += keeper.size
            self._memory.count(self, self._held)

    def give_back(self, request: Hashable) -> None:
        """Count a request no more that was kept."""
        keeper = self._kept.pop(request, None)
        if keeper is not None:
            self._kept_size -= keeper.size
            if self._memory is not None and not self.wire.closed:
                self._held -= keeper.size
                self._memory.count(self, self._held)

    # --- a peer that does not read

    @property
    def full(self) -> bool:
        """True when so much waits for the peer to read it that nothing more is handled for it."""
        wire = self.wire
        if not wire.writing_paused or self._memory is None or wire.transport is None:
            return False
        return self._memory.tight or wire.unread >= WAITING_MAX

    def when_room(self, action: Callable[[], None]) -> None:
        """Call ``action`` in its turn, when the connection is not ``full`` any more or has ended.
        For handlers whose answer comes later."""
        self._lagging().due.append(action)
        self._count()
        if not self.full:
            self.resume()

    async def _room(self) -> None:
        """Wait for the same."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_room(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    def stops(self, rest: Iterable[Frame], began: float) -> bool:
        """Decide about the rest of the frames of a read, which ``began`` at that time, when one has
        ``interrupted`` it: none is handled if the connection is closed; they wait if the peer does
        not read, or if others should have their turn. True: it is closed."""
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
        """Let frames that came wait, if they must; return True if they do."""
        if self._lagging().is_clear and not self.full:
            return False
        self.set_aside(frames)
        return True

    def resume(self) -> None:
        """Go on with what waits, in turn with others, once it may be handled."""
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
        """Do one thing of those that wait. Return True if there is more to do at once."""
        wire = self.wire
        if self._peer_ended:
            if wire.writing_paused:
                wire.close()  # within a bound
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
            if (self.in_line or self._backlog.held) and self.may_wait(frame):
                self._backlog.wait_all(self, iter((frame,)), wire.now())
            else:  # what stands in the line has its own share of each turn
                self.take(frame)
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
        """Let frames wait, unhandled and in order, and no more come. ``first``: in front of those
        that wait already."""
        lag = self._lagging()
        if first:
            frames = [*frames, *lag.take_all()]
        lag.add(frames)
        lag.is_behind = True
        self._read_or_pause()
        self._count()

    # --- reading, or not

    def _count_frame(self) -> None:
        """Count an unfinished frame that has come, has grown or has ended; it may have to wait."""
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
        """Read on: an unfinished frame may grow again."""
        self._frame_waits = False
        # it could not send before
        self.wire.last_read = self.wire.frame_began = self.wire.now()
        self._read_or_pause()

    def _rest_if_much_was_read(self, size: int) -> None:
        self._rests = not self._backlog.may_read_on(self, size)
        if self._rests:
            self._read_or_pause()

    def read_on(self) -> None:
        """Read the peer again: others have had their turn."""
        self._rests = False
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        """Read from the peer, unless it had its share of this turn, or a frame, or those behind
        unread answers, wait."""
        behind = self._lag is not None and self._lag.is_behind
        self.wire.pause_reading(self._rests or self._frame_waits or behind)

    # --- memory

    def _count(self) -> None:
        if self._memory is not None:
            self._memory.count(self, self.held_now(self.wire.now()))

    def held_now(self, now: float) -> int:
        """Bytes that the peer makes us hold."""
        self._held = self.wire.reader.held + self._kept_size
        lag = self._lag
        if lag is not None:
            self._held += lag.unhandled_size + len(lag.due) * DUE_SIZE
            if self.wire.writing_paused and self.wire.transport is not None:
                self._held += lag.unread(self.wire.unread, now)
        return self._held

    def weight(self, now: float) -> float:
        """Byte-seconds: what is held, by the time in which the peer has sent no more of a frame, or
        read no more of its answers."""
        unfinished = self.wire.reader.held
        weight = self._held * INSTANT_S + self._kept_size * KEPT_S
        if not self._frame_waits:
            weight += unfinished * (now - self.wire.last_read)
        if self._lag is not None:
            unread = self._held - unfinished - self._kept_size
            weight += unread * (now - self._lag.last_taken)
        return weight

    def close_for_memory(self, limit: int) -> None:
        """Drop everything and close: connections hold too much together, and this one most."""
        unfinished, kept = self.wire.reader.held, self._kept_size
        _held_most(self.wire.peer, unfinished, self._held - unfinished - kept, kept, limit)
        self.interrupted = True
        self.wire.drop_everything()


class _Lag:
    """Work that waits for a peer which has not read all of its answers: the requests behind them,
    and actions that handlers have left for ``when_room``."""

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
        """Frames were set aside: no more are read."""
        self.begin(now)

    @property
    def is_clear(self) -> bool:
        """True when nothing waits but bytes."""
        return not self.due and not self.unhandled

    def begin(self, now: float) -> None:
        """The peer had read everything until now."""
        self._written = self._taken = self._taken_at_once = 0
        self.last_taken = now

    def wrote(self, size: int, waiting: int) -> None:
        """Note a write of ``size`` bytes, after which ``waiting`` bytes wait in all."""
        if not self._written:
            self._taken = self._taken_at_once = max(size - waiting, 0)
        self._written += size

    def unread(self, waiting: int, now: float) -> int:
        """Bytes of memory that answers take of which the peer has not read ``waiting``."""
        taken = self._written - waiting
        if taken != self._taken:
            self._taken, self.last_taken = taken, now
        # what of a write went out at once is kept with the rest of it
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
    """Bytes of memory that a frame takes."""
    return len(frame.header) + len(frame.body) + FRAME_OVERHEAD


def _dropping(kept: dict[Hashable, Keeper]) -> Steps[None]:
    """Drop the requests of a connection that has ended."""
    for request, keeper in kept.items():
        keeper.drop(request)
        yield


def _nothing() -> Steps[None]:
    """Work that is over when its turn comes."""
    yield


def _goes_on(_task: object) -> None:
    """Drop nothing: the handler finishes."""
