"""A network in memory for SimulatedLoop: hosts by name, ports, and between each pair of hosts two
one-way links.

`loop.create_connection` and `loop.create_server` come here. Which host a caller is on follows from
its process (`SimulatedProcess.host`); a caller outside every process is on 127.0.0.1. A link can be
slow, cut in one direction, and break bytes into pieces; connections can be reset; a host can go
silent. Its one rule: every choice comes from the random source it was given, in the order in which
the program asks.

Simplified: a cut link holds bytes as TCP's retransmission would and both data and connection
attempts go on when it heals, but acknowledgements are not modelled, so a cut against the flow of
the bytes does not stop them.
"""

import asyncio
import contextvars
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from turbopump.testing.simulated_loop import SimulatedLoop
from turbopump.testing.simulated_pipe import Link, Pipe
from turbopump.testing.simulated_process import SimulatedProcess, current_process
from turbopump.testing.simulated_transport import Address, SimulatedSocket, SimulatedTransport

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
        self._loop = loop
        self._rng = rng
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimulatedServer] = {}
        # each end -> (own host, peer's host)
        self._connections: dict[SimulatedTransport, tuple[str, str]] = {}
        self._silent: set[str] = set()
        self._next_port: dict[str, int] = {}
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
            end.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
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
        loopback = host in _LOOPBACK_NAMES
        near = self._connect_ends(source, target, server, port, loopback, process)
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
            self._loop, protocol_factory, bound, port, self._listeners, (own, port)
        )
        if process is not None:
            process.at_kill[server] = server.forget
        if start_serving:
            server.serve()
        return server

    def _connect_ends(
        self,
        source: str,
        target: str,
        server: "SimulatedServer",
        port: int,
        loopback: bool,
        process: SimulatedProcess | None,
    ) -> SimulatedTransport:
        """Both ends of a new connection; the far one is handed to the server, the near one is
        returned."""
        there = Pipe(self._loop, self._rng, self.link(source, target), f"{source}->{target}")
        back = Pipe(self._loop, self._rng, self.link(target, source), f"{target}->{source}")
        near_name = (_LOOPBACK if loopback else source, self._ephemeral_port(source))
        far_name = (_LOOPBACK if loopback else target, port)
        near = SimulatedTransport(
            self._loop,
            outgoing=there,
            incoming=back,
            sockname=near_name,
            peername=far_name,
            context=contextvars.copy_context(),
        )
        far = SimulatedTransport(
            self._loop,
            outgoing=back,
            incoming=there,
            sockname=far_name,
            peername=near_name,
            context=server.context,
        )
        self._register(near, source, target, process)
        self._register(far, target, source, server.context.get(current_process))
        server.accept(far)
        return near

    def _register(
        self, end: SimulatedTransport, own: str, peer: str, process: SimulatedProcess | None
    ) -> None:
        self._connections[end] = (own, peer)
        end.when_closed(lambda: self._connections.pop(end, None))
        if process is not None:
            at_kill = process.at_kill
            at_kill[end] = lambda: end.die(farewell=own not in self._silent)
            end.when_closed(lambda: at_kill.pop(end, None))

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


class SimulatedServer(asyncio.AbstractServer):
    """What `loop.create_server` returns; `wait_closed` waits for its connections too, as Python
    3.12 does."""

    def __init__(
        self,
        loop: SimulatedLoop,
        protocol_factory: ProtocolFactory,
        bound: str,
        port: int,
        listeners: dict[Address, "SimulatedServer"],
        key: Address,
    ) -> None:
        self.context = contextvars.copy_context()
        self.sockets: tuple[SimulatedSocket, ...] = (
            SimulatedSocket((bound or "0.0.0.0", port), None),
        )
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._bound = bound
        self._listeners = listeners
        self._key = key
        self._open = 0
        self._closed = False
        self._all_gone = asyncio.Event()

    def admits(self, host: str) -> bool:
        """Whether a connection to `host` reaches it: one bound to loopback is not reachable by the
        host's name.
        """
        return self._bound in _ANY_NAMES or (self._bound in _LOOPBACK_NAMES) == (
            host in _LOOPBACK_NAMES
        )

    def accept(self, end: SimulatedTransport) -> None:
        self._open += 1
        end.when_closed(self._detach)
        self._loop.call_soon(self._start, end, context=self.context)

    def serve(self) -> None:
        self._listeners[self._key] = self

    def forget(self) -> None:
        """Stop listening, without a word to anybody."""
        if self._listeners.get(self._key) is self:
            del self._listeners[self._key]

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
        return self._listeners.get(self._key) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def _start(self, end: SimulatedTransport) -> None:
        end.start(self._protocol_factory())

    def _detach(self) -> None:
        self._open -= 1
        self._check_gone()

    def _check_gone(self) -> None:
        if self._closed and self._open == 0:
            self._all_gone.set()
