"""TCP connection. It cuts received bytes into frames, and collects answers into few writes.

Everything sent during one ``data_received``, or in one run of the event loop, goes out in one write
of up to ``WRITE_SIZE``. Calls to the peer wait for their answers in ``calls.py``. Received frames
go to a ``Receiver`` (``served_requests.py``). The meaning of frames is unknown here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from turbopump.config.addresses import join_address
from turbopump.errors import ConnectionLostError
from turbopump.protocol.frame import FRAME_SIZE_MAX, Frame, FrameReader
from turbopump.remoting.calls import AnswerDecoder, Calls

WAITING_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of answers that a peer may leave unread. Above this, its requests wait until it has
read all answers. One write and one answer may exceed the maximum, so 8 MiB may be unread in all."""

WRITE_SIZE: Final = 1024 * 1024
"""Size in bytes at which collected answers are written, before the end of this run of the loop."""

PIECE_SIZE: Final = 256 * 1024
"""Bytes passed to TLS at a time, and only while TLS accepts more. TLS copies these bytes, and does
not report how many of them still wait in the layer below."""

SMALL_SIZE: Final = 1024
"""Size in bytes up to which an answer does not count towards ``WRITE_SIZE``."""

FRAME_S: Final = 30.0
FRAME_PACE: Final = 64 * 1024
"""Bytes for which a frame may take one more second. A frame must be complete after ``FRAME_S``
seconds, plus one second for each ``FRAME_PACE`` bytes received."""

CLOSE_WAIT_S: Final = 5.0
"""Maximum seconds that a closing connection waits for a slow reader."""


class Receiver(Protocol):
    """Interface of the object that handles a ``Wire``'s events: received frames, a slow peer, the
    end."""

    def frames_came(self, frames: list[Frame], size: int, now: float) -> None:
        """Handle the frames of one read. The read had ``size`` bytes and arrived at ``now``."""

    def interrupt(self) -> None:
        """Stop handling frames after the current one. The collected answers are enough for a
        write."""

    def writing_paused(self) -> None:
        """Handle a slow peer: written bytes wait until it reads."""

    def writing_resumed(self) -> None:
        """Handle the recovery of a slow peer: it has read all written bytes."""

    def wrote(self, size: int) -> None:
        """Record a write of ``size`` bytes while unread bytes wait for the peer."""

    def peer_ended(self) -> bool:
        """Handle the peer's end of sending. Return True if the connection will be closed later."""

    def ended(self) -> None:
        """Clean up after the connection has ended."""


class Wire(asyncio.Protocol):
    """TCP connection in terms of frames: it receives frames, and sends answers and calls.

    - ``peer``: address of the peer, ``host:port``, once connected.
    - ``user``: name of the user of the last authenticated request. None if there was none.
    - ``on_open``, ``on_close``: functions called once each with this connection.
    - ``tells_slow``: True to call the receiver's ``writing_paused`` as soon as any byte waits for
      the peer.
    """

    __slots__ = (
        "__weakref__",
        "_end",
        "_flush_due",
        "_loop",
        "_on_close",
        "_on_open",
        "_out",
        "_out_size",
        "_receiver",
        "_tells_slow",
        "_unsent",
        "_unsent_size",
        "_writers",
        "calls",
        "closed",
        "encrypted",
        "frame_began",
        "host_pair",
        "last_read",
        "opened_at",
        "peer",
        "peer_ip",
        "reader",
        "reading_paused",
        "transport",
        "user",
        "writing_paused",
    )

    def __init__(
        self,
        receiver: Receiver,
        *,
        on_open: Callable[[Wire], None] | None = None,
        on_close: Callable[[Wire], None] | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        tells_slow: bool = False,
    ) -> None:
        self.peer = "?"
        self.peer_ip = "0.0.0.0"
        self.host_pair: tuple[str, int] = ("0.0.0.0", 0)
        self.user: str | None = None
        self.encrypted = False
        self.closed = False
        self.transport: asyncio.Transport | None = None
        self.calls = Calls()
        self.reader = FrameReader(frame_size_max)
        self.last_read = self.opened_at = 0.0
        self.frame_began = 0.0
        """Time at which the unfinished frame began; 0 if there is none."""
        self.reading_paused = False
        self.writing_paused = False
        self._receiver = receiver
        self._on_open = on_open
        self._on_close = on_close
        self._tells_slow = tells_slow
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_size = 0
        self._flush_due = False
        self._unsent: deque[bytes] = deque()
        """Pieces of answers that were not passed to TLS yet."""
        self._unsent_size = 0
        self._writers: list[asyncio.Future[None]] = []
        self._end: asyncio.TimerHandle | None = None

    # --- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport.
        self.transport = transport = cast(asyncio.Transport, transport)
        if self._tells_slow:
            # TLS never reports a limit of 0 as reached, so it gets 1.
            self.encrypted = self._speaks_tls(transport)
            transport.set_write_buffer_limits(high=1 if self.encrypted else 0)
        else:
            transport.set_write_buffer_limits(high=WAITING_MAX)
        name = transport.get_extra_info("peername") or ("?", 0)
        self.host_pair = self.peer_ip, _ = str(name[0]), int(name[1])
        self.peer = self.calls.peer = join_address(*self.host_pair)
        self.last_read = self.opened_at = self._loop.time()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        # One read can bring hundreds of requests, and their answers go out in one write. While the
        # frames are handled ``_flush_due`` is True, so ``send_frame`` only collects. Then its old
        # value is restored: if a flush at the end of the turn is already planned, that flush also
        # sends these answers.
        if type(data) is not bytes:  # the loop of Windows may read into a bytearray
            data = bytes(data)
        self.last_read = now = self._loop.time()
        frames = self.reader.feed(data)
        if not self.reader.held:
            self.frame_began = 0.0
        elif frames or not self.frame_began:
            self.frame_began = now
        self._flush_due, flush_was_due = True, self._flush_due
        self._receiver.frames_came(frames, len(data), now)
        self._flush_due = flush_was_due
        if self._out and not flush_was_due:
            self._flush()

    def eof_received(self) -> bool:
        transport = self.transport
        if transport is None or self._speaks_tls(transport):
            return False
        return self._receiver.peer_ended()

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._receiver.writing_paused()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._unsent:
            self._write_pieces()
            if self.writing_paused:
                return
        self._wake_writers()
        self._receiver.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        transport, self.transport = self.transport, None
        self.writing_paused = False
        self.drop_unsent()
        self._wake_writers()
        self._receiver.ended()
        del self._receiver  # breaks a reference cycle, so that the collector has no work
        if self._end is not None:
            self._end.cancel()
        text = f"connection to {self.peer} ended before the answer came"
        silent = self.last_read == self.opened_at
        if silent and transport is not None and not self._speaks_tls(transport):
            text += ", without a byte from there: a server that takes TLS only ends plain "
            text += "connections so; give tls=True or ClientTls(…), a command --tls-trust FILE"
        self.calls.fail_all(lambda: ConnectionLostError(text))
        if self._on_close is not None:
            self._on_close(self)

    @staticmethod
    def _speaks_tls(transport: asyncio.Transport) -> bool:
        return transport.get_extra_info("sslcontext") is not None

    # --- reading

    def now(self) -> float:
        """Return the time of the loop's clock in seconds."""
        return self._loop.time()

    def pause_reading(self, paused: bool) -> None:
        """Pause or resume reading from the peer. Repeated calls have no effect."""
        transport = self.transport
        if transport is None or paused == self.reading_paused or transport.is_closing():
            return
        self.reading_paused = paused
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def frame_is_late(self, now: float) -> bool:
        """Return True if the unfinished frame takes too long. Time while reading is paused does not
        count."""
        return (
            self.frame_began > 0
            and not self.reading_paused
            and now - self.frame_began > FRAME_S + self.reader.held / FRAME_PACE
        )

    # --- writing

    def start_call(
        self, opaque: int, frame: bytes, timeout: float, answer: AnswerDecoder | None = None
    ) -> asyncio.Future[Any]:
        """Send a request frame and return a future for the peer's answer, whatever its code.

        ``frame`` carries the request id ``opaque``. The result is a ``Command``, or the header that
        ``answer`` decodes (``Calls.add``). The future fails with CallTimeoutError after ``timeout``
        seconds, or with ConnectionLostError if the connection ends first.
        """
        if self.closed:
            failed: asyncio.Future[Any] = self._loop.create_future()
            failed.set_exception(ConnectionLostError(f"connection to {self.peer} is closed"))
            return failed
        calls = self.calls
        future = calls.add(opaque, timeout, answer)
        if len(calls.waiting) == 1 and not self._out and self.transport is not None:
            # a single call is sent at once; others share one write at the end of the turn
            self.transport.write(frame)
        else:
            self.send_frame(frame)
        return future

    def send_frame(self, frame: bytes) -> None:
        """Send one or several whole frames, without waiting for an answer.

        If the connection is closed, the frames are dropped.
        """
        if self.closed:
            return
        self._out.append(frame)
        if len(frame) > SMALL_SIZE:
            self._out_size += len(frame)
            if self._out_size >= WRITE_SIZE:
                self._flush_full()
                return
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def drain(self, deadline: float | None = None) -> None:
        """Wait until more may be written, because the peer has read enough.

        Senders of one-way requests await this. It returns at once if writing is not paused or the
        connection is closed. Raises TimeoutError at ``deadline``, a time of the event loop. None
        means no limit.
        """
        if self.writing_paused and not self.closed:
            waiter = self._loop.create_future()
            self._writers.append(waiter)
            async with asyncio.timeout_at(deadline):
                await waiter

    @property
    def unread(self) -> int:
        """Number of written bytes that the peer has not read yet."""
        waiting = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return waiting + self._unsent_size

    def _wake_writers(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)
        self._writers.clear()

    def _flush_full(self) -> None:
        self._receiver.interrupt()
        flush_due = self._flush_due
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
            if self.writing_paused:
                self._receiver.wrote(len(data))
        out.clear()
        self._out_size = 0

    def _write_pieces(self) -> None:
        while self._unsent and not self.writing_paused and self.transport is not None:
            piece = self._unsent.popleft()
            self._unsent_size -= len(piece)
            self.transport.write(piece)

    # --- the end

    def close(self) -> None:
        """Send pending bytes, then close the connection.

        Bytes that the peer has not read after ``CLOSE_WAIT_S`` seconds are dropped.
        """
        if self.transport is not None and self._end is None:
            # A closed transport accepts no more bytes, so all pieces go to TLS now. That costs
            # memory until the peer has read them, for CLOSE_WAIT_S at most.
            self._flush()
            for piece in self._unsent:
                self.transport.write(piece)
            self.drop_unsent()
            self.transport.close()
            self._end = self._loop.call_later(CLOSE_WAIT_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once and drop pending bytes."""
        if self.transport is not None:
            self.transport.abort()

    def drop_unsent(self) -> None:
        """Drop bytes that were not passed to the transport yet."""
        self._out.clear()
        self._unsent.clear()
        self._unsent_size = 0

    def drop_everything(self) -> None:
        """Close the connection at once, and drop all received and pending bytes."""
        self.closed = True
        self.reader.drop()
        self.drop_unsent()
        self.abort()
        self.transport = None
