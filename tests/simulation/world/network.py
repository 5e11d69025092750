"""A network in memory for SimulatedLoop: hosts by name, ports, and between each pair of hosts two
one-way links.

`loop.create_connection` and `loop.create_server` come here, and so do `add_reader` and
`connect_accepted_socket` for a copy of a server's socket, whose owner accepts by itself. Which host
a caller is on follows from its process (`SimulatedProcess.host`); a caller outside every process is
on 127.0.0.1. A link can be slow, cut in one direction, and break bytes into pieces; connections can
be reset; a host can go silent. Its one rule: every choice comes from the random source it was
given, in the order in which the program asks.

Simplified: a cut link holds bytes as TCP's retransmission would and both data and connection
attempts go on when it heals, but acknowledgements are not modelled, so a cut against the flow of
the bytes does not stop them.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.pipe import EOF, RESET, Link, Pipe
from tests.simulation.world.process import SimulatedProcess, current_process

CONNECT_TIMEOUT = 127.0
"""Seconds until a connection attempt over a cut link fails (Linux: tcp_syn_retries = 6)."""

_LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY_NAMES = frozenset({"", "0.0.0.0", "::"})
_LOOPBACK_LINK = Link(latency_min=0.000_02, latency_max=0.000_1)
_FIRST_EPHEMERAL_PORT = 40_000

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class SimulatedNetwork:
    """See the module. Building one makes it the network of `loop`."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, default_link: Link | None = None
    ) -> None:
        self.default_link = default_link or Link()
        self.without_descriptors: set[str] = set()
        """Hosts on which `accept` fails: too many open files."""
        self._loop = loop
        self._rng = rng
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimulatedServer | ListeningSocket] = {}
        # each end -> (own host, peer's host)
        self._connections: dict[SimulatedTransport, tuple[str, str]] = {}
        self._silent: set[str] = set()
        self._next_port: dict[str, int] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        """What names stand for; may be changed at any time. Another name is a host's own."""
        self._changed = asyncio.Event()
        loop.network = self

    def link(self, source: str, target: str) -> Link:
        """The direction from `source` to `target`; its fields may be changed at any time."""
        link = self._links.get((source, target))
        if link is None:
            link = replace(_LOOPBACK_LINK if source == target else self.default_link)
            link.cut = source != target and (source in self._silent or target in self._silent)
            self._links[source, target] = link
        return link

    def cut(self, source: str, target: str) -> None:
        """Hold everything from `source` to `target`; the other direction stays. Silent: nobody is
        told."""
        self._set_cut(source, target, True)

    def heal(self, source: str, target: str) -> None:
        """End a cut: what was held sets out again."""
        if source not in self._silent and target not in self._silent:
            self._set_cut(source, target, False)

    def silence(self, host: str) -> None:
        """Cut `host` from every other host, both ways, as when its power or its cable is gone."""
        self._silent.add(host)
        self._set_cut_around(host, True)

    def unsilence(self, host: str) -> None:
        """Undo `silence`, and every cut from or to `host`."""
        self._silent.discard(host)
        self._set_cut_around(host, False)

    def reset(self, host: str, other: str) -> int:
        """Break every connection between two hosts; both ends see ConnectionResetError. Returns how
        many."""
        ends = [
            end for end, (own, peer) in self._connections.items() if {own, peer} == {host, other}
        ]
        for end in ends:
            self._loop.trace(f"reset {host} {other}")
            end.fail(_failure(errno.ECONNRESET))
        return len(ends) // 2

    def connections(self) -> Iterator[tuple[str, str]]:
        """(own host, peer's host) of every living end: each connection appears twice."""
        return iter(list(self._connections.values()))

    async def connect(
        self, protocol_factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        process = current_process.get()
        source = process.host if process is not None else _LOOPBACK
        target = source if host in _LOOPBACK_NAMES else host
        await self._travel(source, target, (host, port))
        server = self._listeners.get((target, port))
        if server is None or not server.admits(host):
            await self._travel(target, source, (host, port))
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"Connect call failed {(host, port)!r}"
            )
        near = self._connect_ends(source, target, server, host in _LOOPBACK_NAMES)
        try:
            await self._travel(target, source, (host, port))
        except BaseException:
            near.abort()
            raise
        protocol = protocol_factory()
        near.start(protocol)
        return near, protocol

    def listen(
        self, protocol_factory: ProtocolFactory, host: str | None, port: int, start_serving: bool
    ) -> asyncio.AbstractServer:
        process = current_process.get()
        own = process.host if process is not None else _LOOPBACK
        bound = host or ""
        if bound not in _ANY_NAMES and bound not in _LOOPBACK_NAMES and bound != own:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this host, {own}")
        port = port or self._ephemeral_port(own)
        if (own, port) in self._listeners:
            raise OSError(
                errno.EADDRINUSE, f"error while attempting to bind on address {(host, port)!r}"
            )
        server = SimulatedServer(
            self._loop, protocol_factory, bound, self._listeners, (own, port), self
        )
        if process is not None:
            process.at_kill[server] = server.forget
        if start_serving:
            server.serve()
        return server

    def watch(self, socket: object, on_waiting: Callable[[], object] | None) -> bool:
        """As the loop's `add_reader` or, with None, `remove_reader`; False: not one of ours."""
        if isinstance(socket, ListeningSocket):
            socket.watch(on_waiting)
        return isinstance(socket, ListeningSocket)

    def take(
        self, protocol_factory: ProtocolFactory, accepted: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As the loop's `connect_accepted_socket`."""
        assert isinstance(accepted, SimulatedTransport)
        protocol = protocol_factory()
        accepted.start(protocol)
        return accepted, protocol

    def _connect_ends(
        self, source: str, target: str, server: SimulatedServer | ListeningSocket, loopback: bool
    ) -> SimulatedTransport:
        """Both ends of a new connection; the far one is handed to the server, the near one is
        returned."""
        there = Pipe(self._loop, self._rng, self.link(source, target), f"{source}->{target}")
        back = Pipe(self._loop, self._rng, self.link(target, source), f"{target}->{source}")
        near_name = (_LOOPBACK if loopback else source, self._ephemeral_port(source))
        far_name = (_LOOPBACK if loopback else target, server.key[1])
        context = contextvars.copy_context()
        near = SimulatedTransport(self._loop, there, back, near_name, far_name, context)
        far = SimulatedTransport(self._loop, back, there, far_name, near_name, server.context)
        self._register(near, source, target, context.get(current_process))
        self._register(far, target, source, server.context.get(current_process))
        server.arrive(far)
        return near

    def _register(
        self, end: SimulatedTransport, own: str, peer: str, process: SimulatedProcess | None
    ) -> None:
        self._connections[end] = (own, peer)
        end.when_closed(lambda: self._connections.pop(end, None))
        if process is not None:
            at_kill = process.at_kill
            at_kill[end] = lambda: end.die(farewell=own not in self._silent)
            end.when_closed(partial(at_kill.pop, end, None))

    async def _travel(self, source: str, target: str, address: Address) -> None:
        """One handshake packet: its latency, and as long as the link is cut."""
        link = self.link(source, target)
        await asyncio.sleep(link.latency(self._rng))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                while link.cut:
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"Connect call failed {address!r}") from None

    def _set_cut(self, source: str, target: str, cut: bool) -> None:
        link = self.link(source, target)
        if link.cut == cut:
            return
        link.cut = cut
        self._loop.trace(f"{'cut' if cut else 'heal'} {source}->{target}")
        for end, hosts in list(self._connections.items()):
            if hosts == (source, target):
                end.outgoing.link_changed()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _set_cut_around(self, host: str, cut: bool) -> None:
        known = {name for pair in self._links for name in pair}
        for other in sorted(known - {host} - (set() if cut else self._silent)):
            self._set_cut(host, other, cut)
            self._set_cut(other, host, cut)

    def _ephemeral_port(self, host: str) -> int:
        port = self._next_port.get(host, _FIRST_EPHEMERAL_PORT)
        self._next_port[host] = port + 1
        return port


@dataclass(eq=False, repr=False)
class SimulatedServer(asyncio.AbstractServer):
    """What `loop.create_server` returns; `wait_closed` waits for its connections too, as Python
    3.12 does."""

    _loop: SimulatedLoop
    _protocol_factory: ProtocolFactory
    _bound: str
    _listeners: dict[Address, SimulatedServer | ListeningSocket]
    key: Address
    network: SimulatedNetwork
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _open: int = 0
    _closed: bool = False
    _all_gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.name: Address = (self._bound or "0.0.0.0", self.key[1])
        self.sockets: tuple[SimulatedSocket, ...] = (SimulatedSocket(self.name, None, self),)

    def admits(self, host: str) -> bool:
        """Whether a connection to `host` reaches it: one bound to loopback is not reachable by the
        host's name."""
        only_loopback = self._bound in _LOOPBACK_NAMES
        return self._bound in _ANY_NAMES or only_loopback == (host in _LOOPBACK_NAMES)

    def arrive(self, end: SimulatedTransport) -> None:
        self._open += 1
        end.when_closed(self._detach)
        self._loop.call_soon(self._start, end, context=self.context)

    def serve(self, listener: ListeningSocket | None = None) -> None:
        self._listeners[self.key] = listener or self

    def forget(self, listener: ListeningSocket | None = None) -> None:
        """Stop listening, without a word to anybody."""
        if self._listeners.get(self.key) is (listener or self):
            del self._listeners[self.key]

    def close(self) -> None:
        self.forget()
        self.sockets = ()
        self._closed = True
        self._check_gone()

    async def wait_closed(self) -> None:
        await self._all_gone.wait()

    async def start_serving(self) -> None:
        self.serve()

    async def serve_forever(self) -> None:
        self.serve()
        try:
            await self._all_gone.wait()
        finally:
            self.close()

    def is_serving(self) -> bool:
        return self._listeners.get(self.key) is self

    def get_loop(self) -> SimulatedLoop:
        return self._loop

    def _start(self, end: SimulatedTransport) -> None:
        end.start(self._protocol_factory())

    def _detach(self) -> None:
        self._open -= 1
        self._check_gone()

    def _check_gone(self) -> None:
        if self._closed and self._open == 0:
            self._all_gone.set()


@dataclass(eq=False, repr=False)
class ListeningSocket:
    """A copy of a server's socket: who has it accepts by itself. The server may be closed."""

    _server: SimulatedServer
    _loop: SimulatedLoop
    _waiting: deque[SimulatedTransport] = field(default_factory=deque)
    _on_waiting: Callable[[], object] | None = None
    _called: bool = False

    def __post_init__(self) -> None:
        self.key, self.context = self._server.key, self._server.context
        self.admits = self._server.admits

    def getsockname(self) -> Address:
        return self._server.name

    def listen(self, _backlog: int) -> None:
        self._server.serve(self)
        process = current_process.get()
        if process is not None:
            process.at_kill[self] = self.close

    def accept(self) -> tuple[SimulatedTransport, Address]:
        network = self._server.network
        if self.key[0] in network.without_descriptors:
            raise _failure(errno.EMFILE)
        if not self._waiting:
            raise _failure(errno.EAGAIN)
        end = self._waiting.popleft()
        return end, end.get_extra_info("peername")

    def close(self) -> None:
        self._server.forget(self)
        while self._waiting:
            self._waiting.popleft().abort()

    # What the network and the loop do to it.

    def arrive(self, end: SimulatedTransport) -> None:
        self._waiting.append(end)
        self._call()

    def watch(self, on_waiting: Callable[[], object] | None) -> None:
        """Call this in each turn of the loop while a connection waits; None: no more."""
        self._on_waiting = on_waiting
        self._call()

    def _call(self) -> None:
        if self._waiting and self._on_waiting is not None and not self._called:
            self._called = True
            self._loop.call_soon(self._run, context=self.context)

    def _run(self) -> None:
        self._called = False
        if self._waiting and self._on_waiting is not None:
            self._on_waiting()
            self._call()


# One end of a connection in the simulated network. The transport keeps asyncio's contract of
# `_SelectorSocketTransport`: callbacks in order, `pause_writing` from within `write`,
# `connection_lost` exactly once and never from within the call that caused it. It must not know
# names, ports or listeners: network.py does.
Bytes = bytes | bytearray | memoryview
Address = tuple[str, int]

READ_SIZE_MAX = 256 * 1024  # asyncio: _SelectorTransport.max_size
SEND_WINDOW = 256 * 1024
"""Bytes that may be on their way or unread at the other end before `write` starts to buffer."""


@dataclass(eq=False, repr=False)
class SimulatedTransport(asyncio.Transport):
    """See the module. `context` decides which process its protocol's callbacks run in."""

    _loop: SimulatedLoop
    outgoing: Pipe
    incoming: Pipe
    sockname: InitVar[Address]
    peername: InitVar[Address]
    _context: contextvars.Context
    _protocol: asyncio.BaseProtocol | None = None
    _inbox: deque[bytes | str] = field(default_factory=deque)
    _read_scheduled: bool = False
    _reading_paused: bool = False
    _buffer: deque[bytes] = field(default_factory=deque)
    _buffer_size: int = 0
    _high: int = 64 * 1024
    _low: int = 16 * 1024
    _writing_paused: bool = False
    _pump_scheduled: bool = False
    _closing: bool = False
    _eof_wanted: bool = False
    _eof_sent: bool = False
    _lost: bool = False  # connection_lost is scheduled or done
    _when_closed: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self, sockname: Address, peername: Address) -> None:
        super().__init__()
        self.outgoing.sender = self.incoming.receiver = self
        socket = SimulatedSocket(sockname, peername)
        self._names = {"sockname": sockname, "peername": peername, "socket": socket}

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
            self.outgoing.drop()
            if farewell:
                self.outgoing.send(RESET)
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
            self._force_close(_failure(errno.ECONNRESET), None)
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
            self._force_close(_failure(errno.EPIPE), None)
            return
        self._buffer.append(bytes(data))
        self._buffer_size += len(data)
        self._pump()
        full = self._buffer_size > self._high and not self._writing_paused
        if full and self._protocol is not None:
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
        an empty buffer."""
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

    def setblocking(self, _blocking: bool) -> None:
        """As a socket that was accepted: nothing blocks here."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def _fatal_error(self, failure: BaseException, message: str) -> None:
        parts = {"transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler({"message": message, "exception": failure, **parts})
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
                if failure is not None and not isinstance(failure, Exception):
                    failure = ConnectionAbortedError(str(failure))
                self._protocol.connection_lost(failure)
        finally:
            self._report_closed()

    def _report_closed(self) -> None:
        callbacks, self._when_closed = self._when_closed, []
        for callback in callbacks:
            callback()


@dataclass(frozen=True, slots=True)
class SimulatedSocket:
    """What `get_extra_info("socket")` and `server.sockets` give: names, and options that do
    nothing."""

    _sockname: Address
    _peername: Address | None
    _server: SimulatedServer | None = None

    def dup(self) -> ListeningSocket:
        assert self._server is not None, "only a server's socket is copied"
        return ListeningSocket(self._server, self._server.get_loop())

    def getsockname(self) -> Address:
        return self._sockname

    def getpeername(self) -> Address:
        if self._peername is None:
            raise _failure(errno.ENOTCONN)
        return self._peername

    def setsockopt(self, *_option: object) -> None:
        """Accepted: no option changes anything here."""


def _failure(number: int) -> OSError:
    """Of the class that belongs to an errno, such as ConnectionResetError."""
    return OSError(number, os.strerror(number))
