"""One connection, either side: bytes in, frames cut, requests handed to a router, answers matched
to their calls.

The rule: everything that one ``data_received`` produced goes out in one write, and so does
everything written in one loop turn, up to ``WRITE_SIZE``. A peer that does not read is not read
from either, and what it has asked for waits unhandled. It must not know what any request means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from turbopump.errors import CallTimeoutError, ConnectionLostError, ProtocolError
from turbopump.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from turbopump.protocol.command import Command, TypedJsonHeader, decode_command
from turbopump.protocol.frame import FRAME_SIZE_MAX, JSON, Frame, FrameReader
from turbopump.protocol.request import HeaderT
from turbopump.remoting.backlog import FULL_READ, Backlog
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.router import (
    LATER,
    UNREAD,
    Outcome,
    Refusal,
    RequestContext,
    RequestHandler,
    Response,
    Router,
    encode_response,
    failure_response,
    response_steps,
)
from turbopump.remoting.turns import Steps, Turns
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

WAITING_MAX: Final = 4 * 1024 * 1024
"""Bytes that wait for a slow reader, above which its requests are not handled until it has read
all of them. One write and one answer may exceed it: 8 MiB in all."""

WRITE_SIZE: Final = 1024 * 1024
"""Answers of so many bytes are written at once, and do not wait for the others of their turn."""

PIECE_SIZE: Final = 256 * 1024
"""TLS is given so many bytes at a time, and only while it takes them. What it has got it copies,
and does not say how much of that waits in the layer below."""

SMALL_SIZE: Final = 1024
"""Smaller answers are not counted: the requests of one read do not fill a write with them."""

TURN_S: Final = 0.02
"""A read whose answers fill more than one write is handled for so long before others have their
turn."""

GROWING_SIZE: Final = 64 * 1024
"""An unfinished frame of so many bytes may have to wait for others, where memory is tight."""

FRAME_S: Final = 30.0
FRAME_PACE: Final = 64 * 1024
"""A frame may take so many seconds, and one more for each so many bytes that have come."""

FRAME_OVERHEAD: Final = 160
"""Bytes that a frame which waits takes beside its own."""

DUE_SIZE: Final = 1024
"""Bytes of a request that was kept, and whose answer waits for the peer to read others."""

INSTANT_S: Final = 0.01
"""What is held counts for so long at least, however lately its peer has read or sent."""

KEPT_S: Final = 1.0
"""Requests that wait for something else than their peer count for so long, however long they do:
of those who have them the one with most is closed first."""

DROPPED_A_STEP: Final = 100
"""Of a connection that has ended, waiting requests that are dropped before others may have their
turn; some 2 µs each."""

CLOSE_WAIT_S: Final = 5.0
"""How long a closing connection waits for a slow reader to take what was written."""


class Keeper(NamedTuple):
    """Who keeps requests until there is an answer: bytes of memory that one takes, and what is
    called with it when its connection has ended."""

    size: int
    drop: Callable[[Any], object]


class Connection(asyncio.Protocol):
    """The asyncio shell round one TCP connection.

    ``router`` answers the peer's requests; ``call`` asks the peer. ``peer`` is ``host:port`` once
    connected. ``on_close`` is called once with the connection when it is gone. ``memory`` counts
    what the connections of a server hold. Without it, on the client's side, a peer that does not
    read is read from all the same: if both sides stopped, neither would ever go on. ``backlog`` is
    the server's line for requests that may wait, ``turns`` the one for long work.
    """

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_calls",
        "_end",
        "_flush_due",
        "_frame_waits",
        "_held",
        "_kept",
        "_kept_size",
        "_lag",
        "_loop",
        "_memory",
        "_on_close",
        "_on_open",
        "_opaque",
        "_out",
        "_out_size",
        "_peer_ended",
        "_reader",
        "_reading_paused",
        "_rests",
        "_router",
        "_sweep",
        "_swept_by",
        "_tasks",
        "_unsent",
        "_unsent_size",
        "_usual",
        "_writers",
        "answers",
        "closed",
        "encrypted",
        "frame_began",
        "host_pair",
        "in_line",
        "interrupted",
        "last_read",
        "opened_at",
        "peer",
        "peer_ip",
        "peer_port",
        "transport",
        "turns",
        "user",
        "writing_paused",
    )

    def __init__(
        self,
        router: Router,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        memory: ConnectionMemory | None = None,
        backlog: Backlog | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._memory = memory
        self.peer = "?"
        self.peer_ip = "0.0.0.0"
        self.peer_port = 0
        self.host_pair: tuple[str, int] = ("0.0.0.0", 0)
        self.last_read = self.opened_at = 0.0
        self.frame_began = 0.0
        """When the frame began of which a part is there; 0: there is none."""
        self.user: str | None = None
        """The user who has asked for something last, where users are asked for; None: nobody whom
        the server knows."""
        self.closed = False
        self._router = router
        self._backlog = backlog if backlog is not None else Backlog.never_busy()
        self.turns = turns if turns is not None else Turns()
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader(frame_size_max)
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_size = 0
        self.encrypted = False
        self._unsent: deque[bytes] = deque()
        """Pieces that TLS has not been given."""
        self._unsent_size = 0
        self._flush_due = False
        self.interrupted = False
        """The frames behind one may not be handled at once: it has closed the connection, answers
        have filled a write, or it took long."""
        self.in_line = 0
        """Requests of it that stand in the line; those behind them may not overtake them."""
        self.writing_paused = False
        self._lag: _Lag | None = None
        self._held = 0
        """Bytes that ``memory`` has counted of this connection."""
        self._kept: dict[Hashable, Keeper] = {}
        """Requests of the peer that wait for something else than the peer, and who keeps them."""
        self._kept_size = 0
        self._writers: list[asyncio.Future[None]] = []
        self._calls: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self.answers: dict[int, msgspec.json.Decoder[TypedJsonHeader[Any]]] = {}
        self._usual: msgspec.json.Decoder[TypedJsonHeader[Any]] | None = None
        self._opaque = 0
        self._peer_ended = False
        self._frame_waits = self._rests = self._reading_paused = False
        self._sweep: asyncio.TimerHandle | None = None
        self._swept_by = 0.0
        self._end: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport.
        self.transport = transport = cast(asyncio.Transport, transport)
        if self._memory is None:
            transport.set_write_buffer_limits(high=WAITING_MAX)
        else:
            # A server wants to know as soon as anything waits for the peer to read it. To TLS 0 is
            # reached by nothing that waits.
            self.encrypted = transport.get_extra_info("sslcontext") is not None
            transport.set_write_buffer_limits(high=1 if self.encrypted else 0)
        name = transport.get_extra_info("peername") or ("?", 0)
        self.peer_ip, self.peer_port = str(name[0]), int(name[1])
        self.peer = (
            f"[{self.peer_ip}]:{self.peer_port}"
            if ":" in self.peer_ip
            else f"{self.peer_ip}:{self.peer_port}"
        )
        self.host_pair = (self.peer_ip, self.peer_port)
        self.last_read = self.opened_at = self._loop.time()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        # One read can bring hundreds of requests. Three things follow from that.
        #
        # Answers leave in one write: ``_flush_due`` is set while the frames are handled, so
        # ``_write`` only collects. It is put back to what it was, since a flush at the end of the
        # turn may be due already, and that one takes these answers along.
        #
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
        self.last_read = now = self._loop.time()
        reader, backlog = self._reader, self._backlog
        if len(data) >= FULL_READ and self._memory is not None:
            self._rest_if_much_was_read(len(data))
        frames = reader.feed(data)
        if reader.held or self._held != self._kept_size:
            if not reader.held:
                self.frame_began = 0.0
            elif frames or not self.frame_began:
                self.frame_began = now
            self._count_frame()
            if self.closed:
                return
        if self._lag is not None and self._is_behind(frames):
            return
        self._flush_due, flush_was_due = True, self._flush_due
        backlog.credit -= len(data)
        if backlog.credit > 0:  # nearly always
            rest = iter(frames)
            for frame in rest:
                self.take(frame)
                if self.interrupted and self.stops(rest, now):
                    return
                if backlog.busy:
                    backlog.wait_all(self, rest, now)
        elif frames:
            backlog.take_in_turns(self, frames, len(data), now)
            if self.closed:
                return
        self._flush_due = flush_was_due
        if self._out and not flush_was_due:
            self._flush()
        if reader.error is not None and (self._lag is None or self._lag.is_clear):
            self._give_up(reader.error)

    def eof_received(self) -> bool:
        # Where thousands of peers end at once, a server closes them in turns.
        transport = self.transport
        if self._memory is None or transport is None or transport.get_extra_info("sslcontext"):
            return False
        self._peer_ended = True
        self._backlog.resume(self)
        return True

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self._memory is not None:
            self._lagging().begin(self._loop.time())

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._unsent:
            self._write_pieces()
            if self.writing_paused:
                return
        self._wake_writers()
        if self._lag is not None:
            self._backlog.resume(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self.interrupted = True
        self.transport = None
        self.writing_paused = False
        self._out.clear()
        self._drop_unsent()
        lag, self._lag = self._lag, None
        if self._memory is not None:
            self._memory.count(self, 0)
            self._memory.has_grown(self)
        self._wake_writers()
        kept, self._kept = self._kept, {}
        if kept:
            self.turns.run(self, _dropping(kept), lambda _: None, _not_encoded)
        if lag is not None:
            for action in lag.due:
                action()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._end is not None:
            self._end.cancel()
        calls, self._calls = self._calls, {}
        self.answers.clear()
        for future, _ in calls.values():
            if not future.done():
                future.set_exception(
                    ConnectionLostError(f"connection to {self.peer} ended before the answer came")
                )
        if self._on_close is not None:
            self._on_close(self)

    # --- calls to the peer

    @property
    def next_opaque(self) -> int:
        """A request id that no pending call of this connection has."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    @property
    def pending(self) -> int:
        """Calls that wait for their answer."""
        return len(self._calls)

    def start_typed_call(
        self,
        opaque: int,
        frame: bytes,
        timeout: float,
        answer: msgspec.json.Decoder[TypedJsonHeader[HeaderT]],
    ) -> asyncio.Future[TypedJsonHeader[HeaderT] | Command]:
        """As ``start_call``; an answer that ``answer`` can read is read by it alone, in an eighth
        of the time (its body is dropped)."""
        if not self.closed:
            self.answers[opaque] = self._usual = answer
        return self.start_call(opaque, frame, timeout)

    def start_call(self, opaque: int, frame: bytes, timeout: float) -> asyncio.Future[Any]:
        """Send a request frame that carries ``opaque``; the future gets the answer, a ``Command``,
        whatever its code.

        It fails with CallTimeoutError after ``timeout`` seconds, with ConnectionLostError if the
        connection ends first.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(ConnectionLostError(f"connection to {self.peer} is closed"))
            return future
        deadline = self._loop.time() + timeout
        self._calls[opaque] = (future, deadline)
        if self._sweep is None or deadline < self._swept_by:
            self._wake_sweep_by(deadline)
        if len(self._calls) == 1 and not self._out and self.transport is not None:
            # alone: go at once; in company: share one write at the end of the turn
            self.transport.write(frame)
        else:
            self._write(frame)
        return future

    def fail_typed_calls(
        self, answer: msgspec.json.Decoder[Any], error: Callable[[], Exception]
    ) -> int:
        """Let the typed calls that wait for this kind of ``answer`` fail; how many there were."""
        failed = 0
        for opaque in [opaque for opaque, kind in self.answers.items() if kind is answer]:
            del self.answers[opaque]
            future, _ = self._calls.pop(opaque, (None, 0.0))
            if future is not None and not future.done():
                future.set_exception(error())
                failed += 1
        return failed

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that wants no answer; dropped if the connection is closed."""
        if not self.closed:
            self._write(frame)

    def send_frames(self, frames: list[bytes]) -> None:
        """Send several in this order, as ``send_frame`` does one."""
        if self.closed:
            return
        self._out += frames
        self._out_size += sum(map(len, frames))
        if self._out_size >= WRITE_SIZE:
            self._flush_full()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def drain(self, deadline: float | None = None) -> None:
        """Wait until the peer has read enough for more to be written; for senders that await no
        answer. Returns at once if closed.

        Raises TimeoutError at ``deadline`` (loop time; None: waits as long as it takes)."""
        if self.writing_paused and not self.closed:
            waiter = self._loop.create_future()
            self._writers.append(waiter)
            async with asyncio.timeout_at(deadline):
                await waiter

    def _wake_writers(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)
        self._writers.clear()

    def send_response(self, opaque: int, response: Response[Any]) -> None:
        """Answer the request ``opaque``."""
        if not response.has_body:
            self.send_frame(encode_response(opaque, response))
        else:
            self._in_turns(response_steps(opaque, response), self.send_frame, _not_encoded)

    def took_long(self) -> None:
        """The request that is handled takes as long as hundreds of usual ones: see after it whether
        this turn has had its share, whatever connections such requests come from."""
        self.interrupted = True
        self._backlog.credit = 0

    def _in_turns(
        self, steps: Steps[T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do work that may be long; then look whether this turn has had its share."""
        self.interrupted = True
        self.turns.run(self, steps, done, failed)

    def close(self) -> None:
        """Send what is waiting, then close; a peer that does not take it within ``CLOSE_WAIT_S``
        seconds loses it."""
        if self.transport is not None and self._end is None:
            self._flush()
            pieces = list(self._unsent)
            self._drop_unsent()
            for piece in pieces:
                self.transport.write(piece)
            self.transport.close()
            self._end = self._loop.call_later(CLOSE_WAIT_S, self.abort)

    def abort(self) -> None:
        """Close at once; what is waiting is dropped."""
        if self.transport is not None:
            self.transport.abort()

    # --- requests that wait for a message, another peer, or the disk

    def keep(self, request: Hashable, keeper: Keeper) -> None:
        """Count a request that is answered later, until ``give_back``; it is dropped when the
        connection ends. The connection, or another, may be closed by this call."""
        if self.closed:
            keeper.drop(request)
            return
        self._kept[request] = keeper
        self._kept_size += keeper.size
        if self._memory is not None:
            self._held += keeper.size
            self._memory.count(self, self._held)

    def give_back(self, request: Hashable) -> None:
        """A request that was kept is kept no more."""
        keeper = self._kept.pop(request, None)
        if keeper is not None:
            self._kept_size -= keeper.size
            if self._memory is not None and not self.closed:
                self._held -= keeper.size
                self._memory.count(self, self._held)

    # --- a peer that does not read

    @property
    def full(self) -> bool:
        """Whether so much waits for the peer to read it that nothing more is handled for it."""
        if not self.writing_paused or self._memory is None or self.transport is None:
            return False
        return self._memory.tight or self._unread(self.transport) >= WAITING_MAX

    def _unread(self, transport: asyncio.Transport) -> int:
        """Bytes that wait for the peer to read them."""
        return transport.get_write_buffer_size() + self._unsent_size

    def when_room(self, action: Callable[[], None]) -> None:
        """Call ``action`` in its turn, when the connection is not ``full`` any more or has ended.
        For handlers whose answer comes later."""
        self._lagging().due.append(action)
        self._count()
        if not self.full:
            self._backlog.resume(self)

    async def room(self) -> None:
        """Wait for the same."""
        waiter = self._loop.create_future()
        self.when_room(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    def stops(self, rest: Iterable[Frame], began: float) -> bool:
        """What to do with the rest of the frames of a read, which ``began`` at that time, when one
        has ``interrupted`` it: none is handled if the connection is closed; they wait if the peer
        does not read, or if others should have their turn. True: it is closed."""
        if self.closed:
            return True
        self.interrupted = False
        if self.full:
            self.set_aside(rest)
        elif self._loop.time() - began >= TURN_S:
            self.set_aside(rest)
            self._backlog.resume(self)
        return False

    def _is_behind(self, frames: list[Frame]) -> bool:
        """Whether frames that came must wait, and so do."""
        if self._lagging().is_clear and not self.full:
            return False
        self.set_aside(frames)
        return True

    def go_on(self) -> bool:
        """Do one thing of those that wait; whether there is more to do at once."""
        if self._peer_ended:
            if self.writing_paused:
                self.close()  # within a bound
            elif self.transport is not None:
                self.transport.close()
            return False
        lag = self._lag
        if lag is None or self.closed or self.full:
            return False
        if lag.due:
            lag.due.popleft()()
        elif lag.unhandled:
            frame = lag.next_frame()
            if (self.in_line or self._backlog.held) and self.may_wait(frame):
                self._backlog.wait_all(self, iter((frame,)), self._loop.time())
            else:  # what stands in the line has its own share of each turn
                self.take(frame)
                self.interrupted = self.closed
        if self.closed or not lag.is_clear:
            return not self.closed
        if not self.writing_paused:
            self._lag = None
        if self._held:
            self._count()
        if self._reader.error is not None:
            self._give_up(self._reader.error)
        else:
            lag.is_behind = False
            self._read_or_pause()
        return False

    def _lagging(self) -> _Lag:
        if self._lag is None:
            self._lag = _Lag(self._loop.time())
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

    def _count_frame(self) -> None:
        """An unfinished frame has come, has grown or has ended."""
        self._count()
        memory = self._memory
        if memory is None or self.closed:
            return
        if self._reader.held < GROWING_SIZE:
            memory.has_grown(self)
        elif not memory.may_grow(self):
            self._frame_waits = True
            self._read_or_pause()

    def grow_on(self) -> None:
        """Read on: an unfinished frame may grow again."""
        self._frame_waits = False
        # it could not send before
        self.last_read = self.frame_began = self._loop.time()
        self._read_or_pause()

    def _rest_if_much_was_read(self, size: int) -> None:
        self._rests = not self._backlog.may_read_on(self, size)
        if self._rests:
            self._read_or_pause()

    def read_on(self) -> None:
        """Others have had their turn: read the peer again."""
        self._rests = False
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        """Read from the peer, unless it had its share of this turn, or a frame, or those behind
        unread answers, wait."""
        transport = self.transport
        paused = self._rests or self._frame_waits or (self._lag is not None and self._lag.is_behind)
        if transport is None or paused == self._reading_paused or transport.is_closing():
            return
        self._reading_paused = paused
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _count(self) -> None:
        if self._memory is not None:
            self._memory.count(self, self.held_now(self._loop.time()))

    def held_now(self, now: float) -> int:
        """Bytes that the peer makes us hold."""
        self._held = self._reader.held + self._kept_size
        lag = self._lag
        if lag is not None:
            self._held += lag.unhandled_size + len(lag.due) * DUE_SIZE
            if self.writing_paused and self.transport is not None:
                self._held += lag.unread(self._unread(self.transport), now)
        return self._held

    def weight(self, now: float) -> float:
        """What is held, by the seconds in which the peer has sent no more of a frame, or read no
        more of its answers."""
        unfinished = self._reader.held
        weight = self._held * INSTANT_S + self._kept_size * KEPT_S
        if not self._frame_waits:
            weight += unfinished * (now - self.last_read)
        if self._lag is not None:
            unread = self._held - unfinished - self._kept_size
            weight += unread * (now - self._lag.last_taken)
        return weight

    def frame_is_late(self, now: float) -> bool:
        """Whether a part of a frame has been there for too long, and the peer could have sent the
        rest."""
        return (
            self.frame_began > 0
            and not self._reading_paused
            and now - self.frame_began > FRAME_S + self._reader.held / FRAME_PACE
        )

    def close_for_memory(self, limit: int) -> None:
        """Drop everything and close: connections hold too much together, and this one most."""
        unfinished = self._reader.held
        kept = self._kept_size
        _held_most(self.peer, unfinished, self._held - unfinished - kept, kept, limit)
        self.closed = self.interrupted = True
        self._reader.drop()
        self._out.clear()
        self._drop_unsent()
        self.abort()
        self.transport = None

    # --- frames

    def may_wait(self, frame: Frame) -> bool:
        """Whether a request may stand in the line."""
        return self._router.may_wait(frame)

    def take(self, frame: Frame) -> None:
        """Handle one frame now."""
        found = None
        if frame.serialize_type == JSON:
            if self.answers and self._take_typed_answer(frame.header):
                return
            found = self._router.typed(frame.header)
        if found is None:
            found = self._read_tolerantly(frame)
            if found is None:
                return
        header, handler = found
        context = RequestContext(
            self, frame, header.code, header.opaque, header.flag, header.version, frame.body
        )
        outcome: Outcome[Any]
        try:
            authorise = self._router.authorise
            outcome = None if authorise is None else authorise(header.ext, context)
            if outcome is None:
                outcome = handler(header.ext, context)
            elif not isinstance(outcome, Response):
                outcome = _once_allowed(outcome, handler, header.ext, context)
        except Exception as error:
            outcome = failure_response(error, context)
        self.settle(outcome, context)

    def _read_tolerantly(self, frame: Frame) -> tuple[TypedJsonHeader[Any], RequestHandler] | None:
        """A request in any form, and who answers it; None if it is an answer, or has been refused
        for what it is."""
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            self._give_up(error)
            return None
        if command.is_response:
            self._give(command)
            return None
        found = self._router.resolve(command)
        if isinstance(found, Response):
            context = RequestContext(
                self,
                frame,
                command.code,
                command.opaque,
                command.flag,
                command.version,
                frame.body,
                command,
            )
            authorise = self._router.authorise
            refused = None if authorise is None else authorise(UNREAD, context)
            context.answer(refused if isinstance(refused, Response) else found)
            return None
        return found

    def _take_typed_answer(self, header: bytes) -> bool:
        """Whether it is the answer of a typed call, and well; if not, the tolerant way reads it, or
        says what is wrong."""
        usual = self._usual
        if usual is not None:
            try:
                answer = usual.decode(header)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            else:
                # nearly always: all calls that wait are of one kind
                if self.answers.get(answer.opaque) is usual and answer.flag & FLAG_RESPONSE:
                    del self.answers[answer.opaque]
                    self._give(answer)
                    return True
        at = header.find(b'"opaque":') + 9
        digits = header[at : header.find(b",", at)]
        if at < 9 or not digits.isdigit():
            return False
        opaque = int(digits)
        decoder = self.answers.pop(opaque, None)
        if decoder is None:
            return False
        try:
            answer = decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if answer.opaque != opaque or not answer.flag & FLAG_RESPONSE:
            return False
        self._give(answer)
        return True

    def _give(self, answer: TypedJsonHeader[Any] | Command) -> None:
        waiting = self._calls.pop(answer.opaque, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(answer)

    def settle(self, outcome: Outcome[Any], context: RequestContext) -> None:
        """Send what a handler made of a request, now or when it is there."""
        if outcome.__class__ is bytes:  # the hot way out
            if not context.flag & FLAG_ONEWAY:
                self._write(outcome)
        elif outcome is None:
            return
        elif outcome is LATER:
            self._backlog.hold(self, context.frame)
        elif isinstance(outcome, Response):
            context.answer(outcome)
        elif isinstance(outcome, Generator):
            self._in_turns(
                _with_frame(outcome, context),
                context.settle,
                lambda error: context.answer(failure_response(error, context)),
            )
        else:
            assert not isinstance(outcome, bytes)
            self.turns.start(partial(self._start, outcome, context))

    def _start(
        self, outcome: Awaitable[Response[Any] | bytes | None], context: RequestContext
    ) -> None:
        task = asyncio.ensure_future(self._settle_later(outcome, context))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        # It goes on if the connection ends: what it has begun may be stored already.
        self.keep(task, Keeper(_size(context.frame), _goes_on))

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        self.give_back(task)

    async def _settle_later(
        self, outcome: Awaitable[Response[Any] | bytes | None], context: RequestContext
    ) -> None:
        try:
            behind = self._lag is not None and bool(self._lag.due)  # others came before
            while self.full or behind:
                behind = False
                await self.room()
                if self.closed and isinstance(outcome, Coroutine):
                    outcome.close()  # it has not begun
                    return
            response = await outcome
        except Exception as error:
            response = failure_response(error, context)
        if isinstance(response, Response):
            context.answer(response)
        elif response is not None and not context.is_oneway:
            self.send_frame(response)

    def refuse(self, frame: Frame, answer: Callable[[int], bytes]) -> None:
        """Answer a request that was not handled with what ``answer`` makes of its number."""
        head: Any = self._router.number(frame)
        if head is None:
            try:
                head = decode_command(frame)
            except ProtocolError as error:
                self._give_up(error)
                return
        if not head.flag & FLAG_ONEWAY:
            self.send_frame(answer(head.opaque))

    def _give_up(self, error: ProtocolError) -> None:
        _bad_frame(self.peer, error)
        self.close()
        self.closed = self.interrupted = True

    # --- writing

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if len(frame) > SMALL_SIZE:
            self._out_size += len(frame)
            if self._out_size >= WRITE_SIZE:
                self._flush_full()
                return
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush_full(self) -> None:
        self.interrupted, flush_due = True, self._flush_due
        self._flush()
        self._flush_due = flush_due

    def _flush(self) -> None:
        self._flush_due = False
        out = self._out
        if out and self.transport is not None:
            data = out[0] if len(out) == 1 else b"".join(out)
            if self.encrypted and (self._unsent or len(data) > PIECE_SIZE):
                pieces = range(0, len(data), PIECE_SIZE)
                self._unsent.extend([data[at : at + PIECE_SIZE] for at in pieces])
                self._unsent_size += len(data)
                self._write_pieces()
            else:
                self.transport.write(data)
            if self.writing_paused and self._lag is not None:
                self._lag.wrote(len(data), self._unread(self.transport))
                self._count()
        out.clear()
        self._out_size = 0

    def _write_pieces(self) -> None:
        while self._unsent and not self.writing_paused and self.transport is not None:
            piece = self._unsent.popleft()
            self._unsent_size -= len(piece)
            self.transport.write(piece)

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_size = 0

    # --- deadlines: one timer per connection, not one per call

    def _wake_sweep_by(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._swept_by = deadline
        self._sweep = self._loop.call_at(deadline, self._sweep_calls)

    def _sweep_calls(self) -> None:
        self._sweep = None
        now = self._loop.time()
        nearest = None
        late = []
        for opaque, (future, deadline) in self._calls.items():
            if future.done():
                late.append(opaque)
            elif deadline <= now:
                late.append(opaque)
                future.set_exception(CallTimeoutError(f"no answer from {self.peer} in time"))
            elif nearest is None or deadline < nearest:
                nearest = deadline
        for opaque in late:
            del self._calls[opaque]
            self.answers.pop(opaque, None)
        if nearest is not None:
            self._wake_sweep_by(nearest)


class _Lag:
    """What waits for a peer that has not read all of its answers: the requests behind them, and
    what handlers have to do ``when_room`` is there."""

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
        """Whether nothing waits but bytes."""
        return not self.due and not self.unhandled

    def begin(self, now: float) -> None:
        """The peer had read everything until now."""
        self._written = self._taken = self._taken_at_once = 0
        self.last_taken = now

    def wrote(self, size: int, waiting: int) -> None:
        """So many bytes were written; all that waits now is ``waiting``."""
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
            self.unhandled_size += _size(frame)

    def take_all(self) -> list[Frame]:
        frames = list(self.unhandled)
        self.unhandled.clear()
        self.unhandled_size = 0
        return frames

    def next_frame(self) -> Frame:
        frame = self.unhandled.popleft()
        self.unhandled_size -= _size(frame)
        return frame


def _size(frame: Frame) -> int:
    """Bytes of memory that a frame takes."""
    return len(frame.header) + len(frame.body) + FRAME_OVERHEAD


def _dropping(kept: dict[Hashable, Keeper]) -> Steps[None]:
    """Drop the requests of a connection that has ended."""
    for number, (request, keeper) in enumerate(kept.items(), 1):
        keeper.drop(request)
        if number % DROPPED_A_STEP == 0:
            yield


def _goes_on(_task: object) -> None:
    """Nothing is dropped."""


def _once_allowed(
    judging: Steps[Refusal | None], handler: RequestHandler, request: Any, context: RequestContext
) -> Steps[Any]:
    """What the handler makes of a request that is judged in steps, or why it is refused."""
    refused = yield from judging
    return handler(request, context) if refused is None else refused


def _with_frame(steps: Steps[Any], context: RequestContext) -> Steps[Any]:
    """The outcome of the steps, encoded by more of them if it is an answer with a body."""
    outcome = yield from steps
    if isinstance(outcome, Response) and outcome.has_body:
        return (yield from response_steps(context.opaque, outcome))
    return outcome


def _not_encoded(error: Exception) -> None:
    raise error
