"""One connection, either side: bytes in, frames cut, requests handed to a router, answers matched
to their calls.

The rule: everything that one ``data_received`` produced goes out in one write, and so does
everything written in one loop turn. A peer that does not read is not read from either. It must not
know what any request means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import msgspec

from turbopump.errors import CallTimeoutError, ConnectionLostError, ProtocolError
from turbopump.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from turbopump.protocol.command import Command, TypedJsonHeader, decode_command
from turbopump.protocol.frame import FRAME_SIZE_MAX, JSON, Frame, FrameReader
from turbopump.protocol.request import HeaderT
from turbopump.remoting.backlog import Backlog
from turbopump.remoting.router import (
    LATER,
    Outcome,
    RequestContext,
    RequestHandler,
    Response,
    Router,
    encode_response,
    failure_response,
)

log = logging.getLogger(__name__)

WRITE_BUFFER_HIGH: Final = 4 * 1024 * 1024
"""Bytes waiting for a slow reader above which we stop reading from it."""

CLOSE_WAIT_S: Final = 5.0
"""How long a closing connection waits for a slow reader to take what was written."""


class Connection(asyncio.Protocol):
    """The asyncio shell round one TCP connection.

    ``router`` answers the peer's requests; ``call`` asks the peer. ``peer`` is ``host:port`` once
    connected. ``on_close`` is called once with the connection when it is gone. ``keeps_reading``:
    go on reading from a peer that does not read; the client's side does, for if both sides stopped
    neither would ever go on. ``backlog`` is the server's line for requests that may wait.
    ``attributes`` is free for what the owner knows of this peer.
    """

    def __init__(
        self,
        router: Router,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        keeps_reading: bool = False,
        backlog: Backlog | None = None,
    ) -> None:
        self._keeps_reading = keeps_reading
        self.peer = "?"
        self.peer_ip = "0.0.0.0"
        self.peer_port = 0
        self.host_pair: tuple[str, int] = ("0.0.0.0", 0)
        self.last_read = 0.0
        self.closed = False
        self._router = router
        self._backlog = backlog if backlog is not None else Backlog.never_busy()
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader(frame_size_max)
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_due = False
        self.writing_paused = False
        self._writers: list[asyncio.Future[None]] = []
        self._calls: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self.answers: dict[int, msgspec.json.Decoder[TypedJsonHeader[Any]]] = {}
        self._usual: msgspec.json.Decoder[TypedJsonHeader[Any]] | None = None
        self._opaque = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._swept_by = 0.0
        self._end: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport.
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        name = transport.get_extra_info("peername") or ("?", 0)
        self.peer_ip, self.peer_port = str(name[0]), int(name[1])
        self.peer = (
            f"[{self.peer_ip}]:{self.peer_port}"
            if ":" in self.peer_ip
            else f"{self.peer_ip}:{self.peer_port}"
        )
        self.host_pair = (self.peer_ip, self.peer_port)
        self.last_read = self._loop.time()
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
        # A handler may close the connection; nobody is there for the rest. A broken frame is acted
        # on last, so that the good ones before it are answered.
        self.last_read = now = self._loop.time()
        self._flush_due, flush_was_due = True, self._flush_due
        frames = self._reader.feed(data)
        backlog = self._backlog
        backlog.credit -= len(data)
        if backlog.credit > 0:  # nearly always
            rest = iter(frames)
            for frame in rest:
                self.take(frame)
                if self.closed:
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
        if self._reader.error is not None:
            self._give_up(self._reader.error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.transport is not None and not self.writing_paused:
            self.writing_paused = True
            if not self._keeps_reading:
                self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.transport is not None and self.writing_paused and not self.closed:
            self.writing_paused = False
            if not self._keeps_reading:
                self.transport.resume_reading()
            self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.transport = None
        self._out.clear()
        self._wake_writers()
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

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that wants no answer; dropped if the connection is closed."""
        if not self.closed:
            self._write(frame)

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
        self.send_frame(encode_response(opaque, response))

    def close(self) -> None:
        """Send what is waiting, then close; a peer that does not take it within ``CLOSE_WAIT_S``
        seconds loses it."""
        if self.transport is not None and self._end is None:
            self._flush()
            self.transport.close()
            self._end = self._loop.call_later(CLOSE_WAIT_S, self.abort)

    def abort(self) -> None:
        """Close at once; what is waiting is dropped."""
        if self.transport is not None:
            self.transport.abort()

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
            if not command.is_oneway:
                self.send_response(command.opaque, found)
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
        else:
            assert not isinstance(outcome, bytes)
            task = asyncio.ensure_future(self._settle_later(outcome, context))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _settle_later(
        self, outcome: Awaitable[Response[Any] | bytes | None], context: RequestContext
    ) -> None:
        try:
            response = await outcome
        except Exception as error:
            response = failure_response(error, context)
        if isinstance(response, Response):
            context.answer(response)
        elif response is not None and not context.is_oneway:
            self.send_frame(response)

    def refuse(self, frame: Frame, response: Response[Any]) -> None:
        """Answer a request that was not handled."""
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            self._give_up(error)
        else:
            if not command.is_oneway:
                self.send_response(command.opaque, response)

    def _give_up(self, error: ProtocolError) -> None:
        log.warning("closing connection peer=%s cause=%s", self.peer, error)
        self.close()
        self.closed = True

    # --- writing

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out = self._out
        if out and self.transport is not None:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

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
