"""One end of a connection in the simulated network.

The transport keeps asyncio's contract of `_SelectorSocketTransport`: callbacks in order,
`pause_writing` from within `write`, `connection_lost` exactly once and never from within the call
that caused it. It must not know names, ports or listeners: simulated_network.py does.
"""

import asyncio
import contextvars
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turbopump.testing.simulated_loop import SimulatedLoop
from turbopump.testing.simulated_pipe import EOF, RESET, Pipe

Bytes = bytes | bytearray | memoryview
Address = tuple[str, int]

READ_SIZE_MAX = 256 * 1024  # asyncio: _SelectorTransport.max_size
SEND_WINDOW = 256 * 1024
"""Bytes that may be on their way or unread at the other end before `write` starts to buffer."""


class SimulatedTransport(asyncio.Transport):
    """See the module. `context` decides which process its protocol's callbacks run in."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        outgoing: Pipe,
        incoming: Pipe,
        sockname: Address,
        peername: Address,
        context: contextvars.Context,
    ) -> None:
        super().__init__()
        self.outgoing = outgoing
        self.incoming = incoming
        outgoing.sender = self
        incoming.receiver = self
        self._loop = loop
        self._context = context
        self._names: Mapping[str, Any] = {
            "sockname": sockname,
            "peername": peername,
            "socket": SimulatedSocket(sockname, peername),
        }
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[bytes | str] = deque()
        self._read_scheduled = False
        self._reading_paused = False
        self._buffer: deque[bytes] = deque()
        self._buffer_size = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._pump_scheduled = False
        self._closing = False
        self._eof_wanted = False
        self._eof_sent = False
        self._lost = False  # connection_lost is scheduled or done
        self._when_closed: list[Callable[[], object]] = []

    def when_closed(self, callback: Callable[[], object]) -> None:
        """Call `callback` once this end is gone, after its `connection_lost`."""
        self._when_closed.append(callback)

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to its protocol: `connection_made`, then what has arrived
        meanwhile."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule_read()

    # What the network does to this end: the kernel's side, in no process's context.

    def arrive(self, item: bytes | str) -> None:
        if self._lost or self._closing:
            if isinstance(item, bytes):
                self.outgoing.send(RESET)  # nobody reads here any more
            return
        self._inbox.append(item)
        self._schedule_read()

    def window_opened(self) -> None:
        if self._buffer and not self._pump_scheduled and not self._lost:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump, context=self._context)

    def fail(self, failure: OSError) -> None:
        """Lose the connection with `failure`, at both ends' kernels; the peer learns nothing by
        it."""
        self.incoming.drop()
        self.outgoing.drop()
        self._force_close(failure, farewell=None)

    def die(self, farewell: bool) -> None:
        """The process of this end was killed; its kernel says so to the peer if `farewell`."""
        if not self._lost:
            self._lost = self._closing = True
            self._buffer.clear()
            self._inbox.clear()
            if farewell:
                self.outgoing.drop()
                self.outgoing.send(RESET)
            else:
                self.outgoing.drop()
            self._report_closed()

    # asyncio.Transport: reading

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._schedule_read()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def _schedule_read(self) -> None:
        if self._inbox and self._protocol is not None and not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_scheduled = False
        if not self._inbox or self._reading_paused or self._closing:
            return
        item = self._inbox[0]
        if item == RESET:
            self._force_close(
                ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), None
            )
            return
        try:
            if isinstance(item, bytes):
                data = self._take()
                self.incoming.read(len(data))
                self._hand_over(data)
            else:
                self._inbox.popleft()
                assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
                if not self._protocol.eof_received():
                    self.close()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as failure:
            self._fatal_error(failure, "Fatal error: protocol callback failed.")
            return
        self._schedule_read()

    def _take(self) -> bytes:
        """As much as has arrived, as one `recv` would."""
        parts: list[bytes] = []
        size = 0
        while self._inbox:
            item = self._inbox[0]
            if not isinstance(item, bytes) or (parts and size + len(item) > READ_SIZE_MAX):
                break
            parts.append(item)
            size += len(item)
            self._inbox.popleft()
        return b"".join(parts)

    def _hand_over(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view:
                buffer = memoryview(self._protocol.get_buffer(len(view)))
                size = min(len(buffer), len(view))
                buffer[:size] = view[:size]
                self._protocol.buffer_updated(size)
                view = view[size:]
        else:
            assert isinstance(self._protocol, asyncio.Protocol)
            self._protocol.data_received(data)

    # asyncio.Transport: writing

    def write(self, data: Bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or self._closing or not data:
            return
        if RESET in self._inbox:
            self._force_close(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), None)
            return
        self._buffer.append(bytes(data))
        self._buffer_size += len(data)
        self._pump()
        if (
            self._buffer_size > self._high
            and not self._writing_paused
            and self._protocol is not None
        ):
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._closing and not self._eof_wanted:
            self._eof_wanted = True
            self._pump()

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = high if high is not None else 64 * 1024 if low is None else 4 * low
        low = low if low is not None else high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffer_size

    def _pump(self) -> None:
        """Move bytes from the buffer into the pipe as its window allows; then whatever waited for
        an empty buffer.
        """
        self._pump_scheduled = False
        if self._lost:
            return
        while self._buffer and self.outgoing.unread < SEND_WINDOW:
            data = self._buffer.popleft()
            room = SEND_WINDOW - self.outgoing.unread
            if len(data) > room:
                self._buffer.appendleft(data[room:])
                data = data[:room]
            self._buffer_size -= len(data)
            self.outgoing.send(data)
        if not self._buffer:
            if (self._eof_wanted or self._closing) and not self._eof_sent:
                self._eof_sent = True
                # Linux: a socket closed with bytes unread says so by a reset.
                unread = self._closing and any(isinstance(item, bytes) for item in self._inbox)
                self.outgoing.send(RESET if unread else EOF)
            if self._closing:
                self._schedule_lost(None)
        if self._writing_paused and self._buffer_size <= self._low and self._protocol is not None:
            self._writing_paused = False
            self._protocol.resume_writing()

    # asyncio.Transport: the end, and the rest

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        self._force_close(None, EOF)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def _fatal_error(self, failure: BaseException, message: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": message,
                "exception": failure,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._force_close(failure, EOF)

    def _force_close(self, failure: BaseException | None, farewell: str | None) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._buffer_size = 0
        self._closing = True
        if farewell is not None and not self._eof_sent:
            self._eof_sent = True
            self.outgoing.send(farewell)
        self._schedule_lost(failure)

    def _schedule_lost(self, failure: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._call_connection_lost, failure, context=self._context)

    def _call_connection_lost(self, failure: BaseException | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(
                    failure if failure is None else _as_exception(failure)
                )
        finally:
            self._report_closed()

    def _report_closed(self) -> None:
        callbacks, self._when_closed = self._when_closed, []
        for callback in callbacks:
            callback()


class SimulatedSocket:
    """What `get_extra_info("socket")` and `server.sockets` give: names, and options that do
    nothing."""

    def __init__(self, sockname: Address, peername: Address | None) -> None:
        self._sockname = sockname
        self._peername = peername

    def getsockname(self) -> Address:
        return self._sockname

    def getpeername(self) -> Address:
        if self._peername is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peername

    def setsockopt(self, *_option: object) -> None:
        """Accepted: no option changes anything here."""


def _as_exception(failure: BaseException) -> Exception:
    return failure if isinstance(failure, Exception) else ConnectionAbortedError(str(failure))
