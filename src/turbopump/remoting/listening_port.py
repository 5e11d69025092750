"""Port that accepts connections. The first byte of a connection decides between TLS and plain text.

A few connections are accepted in each run of the event loop. TLS and plain text share a port if the
server has a certificate; without one, the first byte is not read. A TLS connection stays a plain
socket until its ClientHello is complete, and few handshakes run at a time (below). The service
behind the port is unknown here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import selectors
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, cast

from turbopump.config.addresses import host_of, join_address
from turbopump.config.tls import ServerTls, TlsMode
from turbopump.errors import ConfigError
from turbopump.remoting.tls import (
    HANDSHAKE,
    HANDSHAKE_S,
    RECORD_HEAD,
    RECORD_MAX,
    SHUTDOWN_S,
    ServerContext,
    failure_words,
    hello_size,
)
from turbopump.remoting.turns import Turns
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_no_tls = RepeatedLine(log, logging.WARNING, "closing connection, TLS failed peer=%s cause=%s")
_plain_refused = RepeatedLine(
    log,
    logging.WARNING,
    "closing connection, it does not speak TLS, which this server enforces peer=%s",
)
_too_many = RepeatedLine(
    log,
    logging.WARNING,
    "connection refused, its address has as many as it may (maxConnectionsPerAddress) address=%s",
)
_cannot_accept = RepeatedLine(
    log,
    logging.ERROR,
    "cannot accept connections: open ones continue, new ones wait; raise the limit of open files "
    "(ulimit -n) or let fewer clients connect cause=%s",
)
_accepts_again = RepeatedLine(log, logging.INFO, "connections are accepted again")
_lost_at_once = RepeatedLine(log, logging.WARNING, "accepted connection failed cause=%s")

KERNEL_QUEUE: Final = 1024
"""Length of the system's queue of connections that are not accepted yet."""
ACCEPTED_A_TURN: Final = 16
"""Maximum connections accepted in one run of the event loop. More would delay all other work."""
LOOKED_AT_A_TURN: Final = 16
"""Maximum number of ready connections that are checked in one run of the event loop, before they
are served. Without this limit, 15,000 that ended at once kept the loop busy for 180 ms of CPU."""
ACCEPT_AGAIN_S: Final = 0.1
"""Seconds until the next attempt to accept after a failure."""
HANDSHAKES_MAX: Final = 256
"""Maximum TLS handshakes of a port at a time. One more cancels an old one."""


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for ``host`` and ``port``. Raises ConfigError if the system refuses
    the address."""
    loop = asyncio.get_running_loop()
    try:
        # This server only binds; ListeningPort accepts. asyncio's server would accept 256 in a
        # turn, and uvloop's closes connections silently when descriptors run out.
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [one.dup() for one in bound.sockets]
        bound.close()
        for one in sockets:
            one.listen(KERNEL_QUEUE)
    except OSError as error:
        raise ConfigError(_bind_failure(host, port, error)) from None
    return sockets


class KeptSockets:
    """Listening sockets that outlive their server, for the next server on the same addresses.

    Clients that connect between two servers wait in the system's queue instead of being refused.
    """

    def __init__(self) -> None:
        self._sockets: dict[tuple[str, int], list[socket.socket]] = {}
        self._keeps = True

    async def take(self, host: str, port: int) -> list[socket.socket]:
        """Return the kept sockets of an address, or bind new ones.

        Raises ConfigError if the system refuses the address. Port 0 is the free port of before.
        """
        return self._sockets.pop((host, port), None) or await bound_sockets(host, port)

    def put(self, host: str, port: int, sockets: list[socket.socket]) -> None:
        """Keep the sockets of a server that has stopped, unless no other follows."""
        if self._keeps:
            self._sockets[host, port] = sockets
        else:
            _close_all(sockets)

    def end(self) -> None:
        """Keep nothing any more. The last server closes its sockets itself."""
        self._keeps = False
        for sockets in self._sockets.values():
            _close_all(sockets)
        self._sockets.clear()


def _close_all(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


class FirstByte:
    """Rule for the first byte of a connection: it decides between TLS and plain text."""

    def __init__(self, tls: ServerTls) -> None:
        self._enforcing = tls.mode is TlsMode.ENFORCING
        self._context = ServerContext(tls)

    @property
    def certificate_end(self) -> datetime | None:
        """End of the validity of the certificate in use, or None if it is unknown."""
        return self._context.certificate_end

    def options(self, first: bytes, now: float) -> dict[str, Any] | None:
        """Return the arguments for ``connect_accepted_socket``, or None if the connection must be
        refused."""
        if first == HANDSHAKE:
            return {
                "ssl": self._context.context_at(now),
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": SHUTDOWN_S,
            }
        return None if self._enforcing else {}


# Memory of unfinished handshakes. uvloop has a read buffer of 256 KiB for each TLS connection, in
# malloc's heap. Little of it is touched before data arrives. So 2,000 handshakes spread 40 KiB each
# over 500 MiB of addresses. When they end, this memory is free but not returned to the kernel, and
# the next 2,000 touch other pages: a broker grew by 50 MB a round. (With these buffers allocated
# outside the heap, the heap stayed at 110 MiB from the first round on.) asyncio zeroes its buffers,
# so all of their 64 KiB is touched at once.
#
# So the number of these buffers is limited; a trim would come after the peak. A connection costs
# only a socket until its ClientHello is complete. The kernel reports this (``SO_RCVLOWAT``);
# otherwise the bytes left in the socket would wake the loop again and again. An attacker can send a
# complete ClientHello, too. So at ``HANDSHAKES_MAX``, the oldest handshake of the address that has
# the most is cancelled. A flood from one address therefore never costs a client at another one.
#
# Ended TLS connections leave the same holes: 4 rounds of 2,000 took 111, 167, 215 and 240 MB. Their
# number has no limit, so the heap is trimmed when ``TRIM_AFTER`` of them have ended. Each round
# then takes 110 MB, and 30 MB remain between rounds.


class _Silent(NamedTuple):
    """Accepted connection that is not served yet.

    - ``since``: time at which the connection arrived or began its ClientHello.
    - ``peer``: address of the peer, ``host:port``.
    - ``wanted``: number of bytes to wait for.
    """

    since: float
    peer: str
    host: str
    wanted: int

    @property
    def greets(self) -> bool:
        """True if the connection has begun a ClientHello."""
        return self.wanted > 1


class ListeningPort:
    """Listening socket that accepts a few connections in each run of the event loop.

    If the process or the system has no descriptor or memory for another connection, the port logs
    this and retries soon. Open connections continue, and new ones wait in the system's queue. The
    last descriptors of the process are kept for its files.

    - ``connection``: function that makes the protocol object of a connection.
    - ``tls``: choice between TLS and plain text. None means plain text only.
    - ``is_full``: function that returns True at the maximum number of connections. A connection
      of any of ``ports`` that is not served yet is then closed to make room.
    - ``admits``: function that returns True if a host may have one more connection.
    """

    def __init__(
        self,
        listening: socket.socket,
        connection: Callable[[], asyncio.BaseProtocol],
        tls: FirstByte | None,
        is_full: Callable[[], bool],
        admits: Callable[[str], bool],
        ports: Sequence[ListeningPort],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._connection = connection
        self._tls = tls
        self._is_full = is_full
        self._admits = admits
        self._ports = ports
        self.silent: dict[socket.socket, _Silent] = {}
        """Connections without a first byte or a complete ClientHello, oldest first."""
        # The loop's own selector would call all ready connections in one turn.
        self._selector = selectors.DefaultSelector()
        self._ready: deque[socket.socket] = deque()
        self._closing = Turns()
        self._handshaking: dict[asyncio.Task[Any], tuple[str, str]] = {}
        """Running handshakes with their host and peer, oldest first."""
        self._opening: dict[asyncio.Task[Any], socket.socket] = {}
        self._again: asyncio.TimerHandle | None = None
        self._failing = False
        self._is_closed = False
        self._loop.add_reader(listening, self._accept_arrived)
        if tls is not None:
            self._loop.add_reader(self._selector.fileno(), self._look_at_ready)

    def close(self, *, keeps: bool = False) -> socket.socket:
        """Accept no connections any more, and close those that are not served yet.

        ``keeps`` leaves the listening socket open for another port, so that new connections wait in
        the system's queue. Return this socket.
        """
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._socket)
        if not keeps:
            self._socket.close()
        for silent in list(self.silent):
            self._drop_silent(silent)
        if self._tls is not None:
            self._loop.remove_reader(self._selector.fileno())
        self._selector.close()
        # A plain opening is not cancelled but aborted when it is done. If it is cancelled between
        # connection_made and its end, uvloop closes the socket and never calls connection_lost.
        self._is_closed = True
        for handshake in self._handshaking:
            handshake.cancel()
        return self._socket

    @property
    def waiting(self) -> int:
        """Number of connections without a first byte or in their TLS handshake."""
        return len(self.silent) + len(self._handshaking)

    def waiting_from(self, host: str) -> int:
        """Return the number of connections from ``host`` without a first byte or in their TLS
        handshake."""
        hosts = [one.host for one in self.silent.values()]
        hosts += [one for one, _ in self._handshaking.values()]
        return hosts.count(host)

    def close_silent(self, since: float) -> None:
        """Close silent connections that arrived at ``since`` or earlier.

        Connections whose ClientHello is not complete after ``HANDSHAKE_S`` are closed too.
        """
        began = self._loop.time() - HANDSHAKE_S
        for accepted, silent in list(self.silent.items()):
            if silent.since <= (max(since, began) if silent.greets else since):
                self._closing.start(partial(self._drop_late, accepted))

    def _drop_late(self, accepted: socket.socket) -> None:
        silent = self.silent.get(accepted)
        if silent is None:  # already ended or served
            return
        if silent.greets:
            _no_tls(silent.peer, f"no whole ClientHello within {HANDSHAKE_S:.0f} s")
        self._drop_silent(accepted)

    def drop_one(self) -> None:
        """Close the oldest silent connection. If no connection is silent, cancel a handshake."""
        if self.silent:
            self._drop_silent(next(iter(self.silent)))
        elif self._handshaking:
            self._give_one_up()

    def _accept_arrived(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            is_full = self._is_full()
            if is_full and not any(port.waiting for port in self._ports):
                self._pause_accepting("as many are open as the limit of open files has room for")
                return
            try:
                leave_some()
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self.silent:
                    self.drop_one()
                    continue
                self._pause_accepting(error.strerror or str(error))
                return
            if is_full:
                max(self._ports, key=lambda port: port.waiting).drop_one()
            if self._failing:
                self._failing = False
                _accepts_again()
            host = str(address[0])
            if not self._admits(host):
                _too_many(host)
                accepted.close()
                continue
            accepted.setblocking(False)
            if self._tls is None:
                self._start_serving(accepted, {})
            else:
                self._check_first_bytes(accepted, _peer(address), self._tls)

    def _look_at_ready(self) -> None:
        """Check connections that have new bytes or have ended."""
        ready, tls = self._ready, self._tls
        assert tls is not None
        if not ready:
            ready.extend(cast(socket.socket, key.fileobj) for key, _ in self._selector.select(0))
        for _ in range(min(LOOKED_AT_A_TURN, len(ready))):
            accepted = ready.popleft()
            silent = self.silent.get(accepted)
            if silent is not None:
                self._check_first_bytes(accepted, silent.peer, tls, silent.wanted)

    def _check_first_bytes(
        self, accepted: socket.socket, peer: str, tls: FirstByte, wanted: int = 0
    ) -> None:
        """Serve a connection with TLS or plain text, according to its first byte. If bytes are
        missing, wait for them.

        TLS needs a complete ClientHello. The bytes stay in the socket, where TLS will read them.
        ``wanted`` is the number of bytes that this connection had to wait for.
        """
        try:
            head = accepted.recv(RECORD_HEAD + RECORD_MAX, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if accepted not in self.silent:
                self._wait_for_bytes(accepted, peer, 1)
            return
        except OSError:
            head = b""
        options = tls.options(head[:1], self._loop.time()) if head else None
        if options is None:
            if head:
                _plain_refused(peer)
            self._drop_silent(accepted)
            return
        if options and (size := hello_size(head)) > len(head):
            if wanted == size:  # the rest never came: the connection has ended
                _no_tls(peer, "the peer closed the connection during the handshake")
                self._drop_silent(accepted)
            else:
                self._wait_for_bytes(accepted, peer, size)
            return
        self._forget_silent(accepted)
        self._start_serving(accepted, options, peer if options else "")

    def _wait_for_bytes(self, accepted: socket.socket, peer: str, size: int) -> None:
        """Check the connection again once ``size`` bytes have arrived, or once it has ended."""
        # SO_RCVLOWAT makes the selector report the socket only when all these bytes are there. A
        # peer that sends its ClientHello byte by byte therefore costs no work. A started hello
        # keeps its time, so that more bytes do not extend its deadline.
        began = self.silent.get(accepted)
        since = self._loop.time()
        if began is not None and began.greets:
            since = began.since
        self.silent[accepted] = _Silent(since, peer, host_of(peer), size)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        if began is None:
            self._selector.register(accepted, selectors.EVENT_READ)

    def _forget_silent(self, accepted: socket.socket) -> None:
        if self.silent.pop(accepted, None) is not None:
            self._selector.unregister(accepted)

    def _drop_silent(self, accepted: socket.socket) -> None:
        self._forget_silent(accepted)
        accepted.close()

    def _start_serving(
        self, accepted: socket.socket, options: dict[str, Any], peer: str = ""
    ) -> None:
        """Pass a connection to the event loop. ``peer`` is its address if it uses TLS, else
        empty."""
        if peer:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if len(self._handshaking) >= HANDSHAKES_MAX:
                self._give_one_up()
        opening = asyncio.ensure_future(
            self._loop.connect_accepted_socket(self._connection, accepted, **options)
        )
        self._opening[opening] = accepted
        if peer:
            self._handshaking[opening] = host_of(peer), peer
        opening.add_done_callback(partial(self._opened, peer))

    def _give_one_up(self) -> None:
        """Find the host with the most handshakes, and cancel the oldest of them."""
        hosts = Counter(host for host, _ in self._handshaking.values())
        ((most, _),) = hosts.most_common(1)
        oldest = next(one for one, (host, _) in self._handshaking.items() if host == most)
        _no_tls(self._handshaking.pop(oldest)[1], "it has not ended its handshake, and others came")
        oldest.cancel()

    def _opened(self, peer: str, opening: asyncio.Task[Any]) -> None:
        accepted = self._opening.pop(opening)
        self._handshaking.pop(opening, None)
        if opening.cancelled():
            accepted.close()
        elif isinstance(error := opening.exception(), Exception):
            accepted.close()
            if peer:
                _no_tls(peer, failure_words(error))
            else:
                _lost_at_once(error)
        elif self._is_closed:
            transport, _ = opening.result()
            transport.abort()

    def _pause_accepting(self, cause: str) -> None:
        if not self._failing:
            self._failing = True
            _cannot_accept(cause)
        self._loop.remove_reader(self._socket)
        self._again = self._loop.call_later(ACCEPT_AGAIN_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._again = None
        self._loop.add_reader(self._socket, self._accept_arrived)


def _peer(address: Any) -> str:
    """Return ``host:port`` for an address returned by ``accept``."""
    return join_address(str(address[0]), int(address[1]))


def _bind_failure(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another process: stop it, or choose another "
            "port (0 picks a free one)"
        )
    if error.errno == errno.EACCES:
        return f"no permission to listen on {host}:{port}; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot listen on {host}:{port}: this machine has no such address; use one of its "
            "addresses, or 0.0.0.0 for all"
        )
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


# Descriptors. If the log cannot open its next file, every send fails. So a server limits the number
# of its connections. It also checks for free descriptors before it accepts one, because other files
# of the process count as well.

KEPT_DESCRIPTORS: Final = 256
"""Number of descriptors that connections leave unused, at most half of the limit of open files."""
LEFT_FOR_FILES_MIN: Final = 16
"""Minimum number of descriptors left for files. The server leaves an eighth of the limit, at least
this many and at most ``KEPT_DESCRIPTORS``."""


def room_for_connections() -> int:
    """Return the number of connections that the process's limit of open files allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(limit - KEPT_DESCRIPTORS, limit // 2)


def leave_some() -> None:
    """Check that enough file descriptors are left after one more connection.

    Raises OSError (EMFILE) if the connection would use one of the last descriptors of the process.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = os.open(os.devnull, os.O_RDONLY)  # the system returns the lowest free number
    os.close(free)
    left_for_files = min(max(limit // 8, LEFT_FOR_FILES_MIN), KEPT_DESCRIPTORS)
    if limit != resource.RLIM_INFINITY and free >= limit - left_for_files:
        text = f"{limit} files may be open, and the last {left_for_files} are left for the store"
        raise OSError(errno.EMFILE, text)
