"""Port that accepts connections, a few in each turn, and looks at the first byte of each before it
is served.

TLS and plain text share a port where the server has a certificate; without one nothing is looked
at. A connection that speaks TLS stays a mere socket until its ClientHello is whole, and few
handshakes are under way at a time (below). The port must not know what is served.
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
    "closing connection, it does not speak TLS and tls.server.mode=enforcing peer=%s",
)
_too_many = RepeatedLine(
    log,
    logging.WARNING,
    "connection refused, its address has as many as it may (maxConnectionsPerAddress) address=%s",
)
_cannot_accept = RepeatedLine(
    log,
    logging.ERROR,
    "no more connections can be accepted cause=%s: those that are open go on, new ones wait; raise "
    "the limit of open files (ulimit -n) or let fewer clients connect",
)
_accepts_again = RepeatedLine(log, logging.INFO, "connections are accepted again")
_lost_at_once = RepeatedLine(log, logging.WARNING, "accepted connection failed cause=%s")

KERNEL_QUEUE: Final = 1024
"""Connections that the system keeps until they are accepted."""
ACCEPTED_A_TURN: Final = 16
"""Connections accepted in one turn of the loop; more would stall everyone else."""
LOOKED_AT_A_TURN: Final = 16
"""Connections that are not served yet, and are looked at in one turn because they have sent
something or have ended. 15,000 that ended at once kept the loop for 180 ms of CPU."""
ACCEPT_AGAIN_S: Final = 0.1
"""After a failure, when to try again."""
HANDSHAKES_MAX: Final = 256
"""TLS handshakes that a port has under way at a time; for one more, another is given up."""


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen there, for ``ListeningPort``. Raises ConfigError."""
    loop = asyncio.get_running_loop()
    try:
        # It only binds: what accepts is ours. asyncio's own would accept 256 in a turn,
        # uvloop's would close what it has no descriptor for without a word.
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [one.dup() for one in bound.sockets]
        bound.close()
        for one in sockets:
            one.listen(KERNEL_QUEUE)
    except OSError as error:
        raise ConfigError(_bind_failure(host, port, error)) from None
    return sockets


class FirstByte:
    """Tells by its first byte how a connection is to be served."""

    def __init__(self, tls: ServerTls) -> None:
        self._enforcing = tls.mode is TlsMode.ENFORCING
        self._context = ServerContext(tls)

    def options(self, first: bytes, now: float) -> dict[str, Any] | None:
        """Return the arguments for ``connect_accepted_socket``; None: refuse the connection."""
        if first == HANDSHAKE:
            return {
                "ssl": self._context.at(now),
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": SHUTDOWN_S,
            }
        return None if self._enforcing else {}


# Unfinished handshakes. uvloop has a read buffer of 256 KiB for each TLS connection. malloc cuts it
# out of the heap, where it is hardly touched before there is data. So 2,000 handshakes spread their
# 40 KiB each over 500 MiB of addresses; when they end, all of that is free and none is returned to
# the kernel, and the next 2,000 touch other pages of it: a broker grew by 50 MB a round. (Proved by
# taking these buffers from elsewhere: the heap stayed at 110 MiB from the first round on.) Those of
# asyncio are zeroed: all of their 64 KiB is touched at once.
#
# So the number of such buffers at a time is bounded; a trim would come after the peak. A connection
# costs a socket until its ClientHello is whole. The kernel says when it is (``SO_RCVLOWAT``):
# otherwise bytes that stay in the socket would wake the loop again and again. A stranger can send a
# whole ClientHello, too. So at ``HANDSHAKES_MAX`` the oldest handshake is given up, of the address
# that has most. A client is served if it answers before so many others have come from its own
# address, and one from another address in any case.
#
# TLS connections that were served leave the same holes: 4 rounds of 2,000 took 111, 167, 215 and
# 240 MB. Their number has no such bound, so the heap is trimmed when ``TRIM_AFTER`` of them have
# ended. The rounds take 110 MB each then, and 30 MB between them.


class _Silent(NamedTuple):
    """A connection that is not served yet: since when, from where, and how many bytes of it are
    waited for."""

    since: float
    peer: str
    host: str
    wanted: int

    @property
    def greets(self) -> bool:
        """True if it has begun a ClientHello."""
        return self.wanted > 1


class ListeningPort:
    """Accepts connections, a few in each turn. Where the process or the system has no descriptor or
    no memory for another, it says so, and tries again in a moment: those that are connected go on,
    and the others wait in the system's queue. The last descriptors of the process are left for its
    files. Where ``is_full`` says that there are as many as may be, one that is not served yet makes
    room, of the ``ports`` of this server."""

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
        """Connections without a first byte, or a whole ClientHello, in the order they came."""
        # Were they in the loop's own selector, all that are ready would be called in one turn.
        self._selector = selectors.DefaultSelector()
        self._ready: deque[socket.socket] = deque()
        self._closing = Turns()
        self._handshaking: dict[asyncio.Task[Any], tuple[str, str]] = {}
        """Handshakes under way in the order they began, and from which host and peer."""
        self._opening: dict[asyncio.Task[Any], socket.socket] = {}
        self._again: asyncio.TimerHandle | None = None
        self._failing = False
        self._loop.add_reader(listening, self._accept)
        if tls is not None:
            self._loop.add_reader(self._selector.fileno(), self._look_at_ready)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        for silent in list(self.silent):
            self._drop(silent)
        if self._tls is not None:
            self._loop.remove_reader(self._selector.fileno())
        self._selector.close()
        for opening in self._opening:
            opening.cancel()

    @property
    def waiting(self) -> int:
        """Connections without a first byte, or in their TLS handshake."""
        return len(self.silent) + len(self._handshaking)

    def waiting_from(self, host: str) -> int:
        """Return the number of them from this address."""
        hosts = [one.host for one in self.silent.values()]
        hosts += [one for one, _ in self._handshaking.values()]
        return hosts.count(host)

    def close_silent(self, since: float) -> None:
        """Close connections that came at that time or before and have sent nothing, and those that
        have begun a ClientHello and not ended it within ``HANDSHAKE_S``."""
        began = self._loop.time() - HANDSHAKE_S
        for accepted, silent in list(self.silent.items()):
            if silent.since <= (max(since, began) if silent.greets else since):
                self._closing.start(partial(self._drop_late, accepted))

    def _drop_late(self, accepted: socket.socket) -> None:
        silent = self.silent.get(accepted)
        if silent is None:  # it has ended, or is served
            return
        if silent.greets:
            _no_tls(silent.peer, f"no whole ClientHello within {HANDSHAKE_S:.0f} s")
        self._drop(accepted)

    def drop_one(self) -> None:
        """Close the oldest connection that is silent, or else one in its handshake."""
        if self.silent:
            self._drop(next(iter(self.silent)))
        elif self._handshaking:
            self._give_one_up()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            is_full = self._is_full()
            if is_full and not any(port.waiting for port in self._ports):
                self._pause("as many are open as the limit of open files has room for")
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
                self._pause(error.strerror or str(error))
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
                self._open(accepted, {})
            else:
                self._look(accepted, _peer(address), self._tls)

    def _look_at_ready(self) -> None:
        """Look again at connections that have sent what was waited for, or have ended."""
        ready, tls = self._ready, self._tls
        assert tls is not None
        if not ready:
            ready.extend(cast(socket.socket, key.fileobj) for key, _ in self._selector.select(0))
        for _ in range(min(LOOKED_AT_A_TURN, len(ready))):
            accepted = ready.popleft()
            silent = self.silent.get(accepted)
            if silent is not None:
                self._look(accepted, silent.peer, tls, silent.wanted)

    def _look(self, accepted: socket.socket, peer: str, tls: FirstByte, wanted: int = 0) -> None:
        """Serve a connection as its first byte wants it, once there is one, and a whole ClientHello
        where it speaks TLS. The bytes stay in the socket, where TLS will read them. ``wanted``: how
        many bytes were waited for."""
        try:
            head = accepted.recv(RECORD_HEAD + RECORD_MAX, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if accepted not in self.silent:
                self._wait(accepted, peer, 1)
            return
        except OSError:
            head = b""
        options = tls.options(head[:1], self._loop.time()) if head else None
        if options is None:
            if head:
                _plain_refused(peer)
            self._drop(accepted)
            return
        if options and (size := hello_size(head)) > len(head):
            if wanted == size:  # the rest was waited for, and the connection has ended
                _no_tls(peer, "the peer closed the connection during the handshake")
                self._drop(accepted)
            else:
                self._wait(accepted, peer, size)
            return
        self._forget(accepted)
        self._open(accepted, options, peer if options else "")

    def _wait(self, accepted: socket.socket, peer: str, size: int) -> None:
        """Look again when so many bytes have come, or the end of the connection."""
        began = self.silent.get(accepted)
        since = began.since if began is not None and began.greets else self._loop.time()
        self.silent[accepted] = _Silent(since, peer, host_of(peer), size)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        if began is None:
            self._selector.register(accepted, selectors.EVENT_READ)

    def _forget(self, accepted: socket.socket) -> None:
        if self.silent.pop(accepted, None) is not None:
            self._selector.unregister(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._forget(accepted)
        accepted.close()

    def _open(self, accepted: socket.socket, options: dict[str, Any], peer: str = "") -> None:
        """``peer``: its address, if it speaks TLS."""
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
        """End the oldest handshake of the address that has most."""
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

    def _pause(self, cause: str) -> None:
        if not self._failing:
            self._failing = True
            _cannot_accept(cause)
        self._loop.remove_reader(self._socket)
        self._again = self._loop.call_later(ACCEPT_AGAIN_S, self._go_on)

    def _go_on(self) -> None:
        self._again = None
        self._loop.add_reader(self._socket, self._accept)


def _peer(address: Any) -> str:
    """``host:port`` of what ``accept`` gave."""
    return join_address(str(address[0]), int(address[1]))


def _bind_failure(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another process; stop it or choose another "
            "port (0 picks a free one)"
        )
    if error.errno == errno.EACCES:
        return f"no permission to listen on {host}:{port}; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot listen on {host}:{port}: this machine has no such address; take one of "
            "its own, or 0.0.0.0 for all"
        )
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


# Descriptors. A log that could not get its next file would refuse everybody. So a server bounds
# the number of its connections ahead; and it looks before it accepts one, for whatever else the
# process has open counts as well.

KEPT_DESCRIPTORS: Final = 256
"""Descriptors that connections leave free of the limit of open files, at most half of it."""
LEFT_FOR_FILES_MIN: Final = 16
"""No connection is accepted into the last eighth of the limit, at least so many descriptors and at
most ``KEPT_DESCRIPTORS``."""


def room_for_connections() -> int:
    """Return the number of connections for which the limit of open files has room."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(limit - KEPT_DESCRIPTORS, limit // 2)


def leave_some() -> None:
    """Raise OSError (EMFILE) where another connection would have one of the last descriptors of the
    process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = os.open(os.devnull, os.O_RDONLY)  # the system gives the lowest one that is free
    os.close(free)
    left_for_files = min(max(limit // 8, LEFT_FOR_FILES_MIN), KEPT_DESCRIPTORS)
    if limit != resource.RLIM_INFINITY and free >= limit - left_for_files:
        text = f"{limit} files may be open, and the last {left_for_files} are left for the store"
        raise OSError(errno.EMFILE, text)
