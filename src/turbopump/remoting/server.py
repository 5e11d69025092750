"""Server of one router, on one or more ports. It closes late connections: silent ones, and ones
with an unfinished frame.

The server closes a peer that sends nothing for ``idle_timeout`` seconds. Clients send a heartbeat
every 30 s (apache/rocketmq ``NettyServerConfig.serverChannelMaxIdleTimeSeconds``, 120). Connections
are closed a few at a time, so that closing many does not block the loop. The meaning of requests is
unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Final

from turbopump.config.tls import ServerTls, TlsMode
from turbopump.protocol.frame import FRAME_SIZE_MAX
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.backlog import Backlog
from turbopump.remoting.connection_memory import SIZE_MAX, ConnectionMemory
from turbopump.remoting.listening_port import (
    FirstByte,
    KeptSockets,
    ListeningPort,
    bound_sockets,
    room_for_connections,
)
from turbopump.remoting.router import Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.tls import trim_heap
from turbopump.remoting.turns import Turns
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_accepted = RepeatedLine(
    log,
    logging.WARNING,
    "closing connection, it has sent no request of a user of this server within 10 s peer=%s",
)
_unfinished = RepeatedLine(
    log, logging.WARNING, "closing connection, it leaves a frame unfinished peer=%s"
)

IDLE_TIMEOUT_S: Final = 120.0
ACCEPTANCE_S: Final = 10.0
"""Seconds after which a connection without an authenticated request is closed, if authentication is
on."""
SWEEP_S: Final = 1.0
"""Seconds between two checks of the connections."""
TRIM_AFTER: Final = 256
"""Number of ended TLS connections after which their memory is returned to the kernel."""


class RemotingServer:
    """Server that passes requests to a router. It listens on one or more addresses.

    - ``on_close``: function called with each connection that has ended.
    - ``backlog``: backlog for requests that may wait.
    - ``turns``: driver of long work.
    - ``times``: the times of the server's answers.
    - ``memory_max``: maximum bytes of memory that all connections use together
      (``ConnectionMemory``).
    - ``connections_max``: maximum number of connections. More wait to be accepted. None means as
      many as the limit of open files allows.
    - ``per_address``: maximum number of connections of one address. More are closed. 0 means no
      limit.
    - ``tls``: TLS settings. Without them, or without a certificate, connections are plain text.
    - ``kept``: listening sockets that the server takes from its predecessor and leaves to its
      successor, or None.

    Raises ConfigError if the TLS files cannot be used.
    """

    def __init__(
        self,
        router: Router,
        *,
        on_close: Callable[[Wire], None] | None = None,
        idle_timeout: float = IDLE_TIMEOUT_S,
        frame_size_max: int = FRAME_SIZE_MAX,
        backlog: Backlog | None = None,
        turns: Turns | None = None,
        times: AnswerTimes | None = None,
        memory_max: int = SIZE_MAX,
        connections_max: int | None = None,
        per_address: int = 0,
        tls: ServerTls | None = None,
        kept: KeptSockets | None = None,
    ) -> None:
        self.router = router
        self._kept = kept
        self._listens: list[tuple[str, int, list[ListeningPort]]] = []
        self.connections_max = connections_max or room_for_connections()
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self._unaccepted: dict[Wire, None] = {}
        self._tls = (
            FirstByte(tls)
            if tls is not None and tls.certificate and tls.mode is not TlsMode.DISABLED
            else None
        )
        self._ended_tls = 0
        # keeps the order of arrival, so that a run can be replayed
        self.connections: dict[Wire, None] = {}
        self._on_close = on_close
        self._idle_timeout = idle_timeout
        self._frame_size_max = frame_size_max
        self._backlog = backlog
        self._turns = turns or Turns()
        self._closing = Turns()
        self.times = times or AnswerTimes()
        self.memory = ConnectionMemory(memory_max)
        self.ports: list[ListeningPort] = []
        self._all_gone = asyncio.Event()
        self._is_closing = False
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def certificate_end(self) -> datetime | None:
        """End of the validity of the TLS certificate. None without one, or if it is unknown."""
        return None if self._tls is None else self._tls.certificate_end

    async def listen(self, host: str, port: int, router: Router | None = None) -> tuple[str, int]:
        """Listen on ``host`` and ``port``, and return the bound address. Port 0 picks a free port.

        ``router`` replaces the server's router on this port. Raises ConfigError if the system
        refuses the address.
        """
        chosen = router or self.router
        if self._backlog is None:
            self._backlog = Backlog.without_line()
        if self._kept is None:
            sockets = await bound_sockets(host, port)
        else:
            sockets = await self._kept.take(host, port)
        ports = [
            ListeningPort(
                one,
                lambda: self._connection(chosen),
                self._tls,
                self._is_full,
                self._admits,
                self.ports,
            )
            for one in sockets
        ]
        self.ports += ports
        self._listens.append((host, port, ports))
        if self._sweep is None:
            self._close_late()
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stop listening, send pending answers and close every connection. Returns when all
        connections have ended."""
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for host, number, ports in self._listens:
            sockets = [port.close(keeps=self._kept is not None) for port in ports]
            if self._kept is not None:
                self._kept.put(host, number, sockets)
        self._listens.clear()
        self.ports.clear()
        if self._backlog is not None:
            self._backlog.finish_all()
        for connection in list(self.connections):
            connection.close()
        while self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def _connection(self, router: Router) -> Wire:
        return ServedRequests(
            router,
            on_open=self._opened,
            on_close=self._closed,
            frame_size_max=self._frame_size_max,
            memory=self.memory,
            backlog=self._backlog,
            turns=self._turns,
            times=self.times,
        ).wire

    def _is_full(self) -> bool:
        waiting = sum(port.waiting for port in self.ports)
        return len(self.connections) + waiting >= self.connections_max

    def _admits(self, host: str) -> bool:
        """Return True if the host at this address may have one more connection."""
        if not self._per_address:
            return True
        waiting = sum(port.waiting_from(host) for port in self.ports)
        return self._by_address[host] + waiting < self._per_address

    def _opened(self, connection: Wire) -> None:
        self.connections[connection] = None
        if self.router.authorise is not None:
            self._unaccepted[connection] = None
        if self._per_address:
            self._by_address[connection.peer_ip] += 1
        if self._is_closing:  # it was accepted just before
            connection.abort()

    def _closed(self, connection: Wire) -> None:
        if connection in self.connections:
            del self.connections[connection]
            if self._per_address:
                self._by_address.subtract([connection.peer_ip])
                self._by_address += Counter()  # drops addresses with a count of 0
        self._unaccepted.pop(connection, None)
        if connection.encrypted:
            self._ended_tls += 1
            if self._ended_tls % TRIM_AFTER == 0:
                trim_heap()
        self._all_gone.set()
        if self._on_close is not None:
            self._on_close(connection)

    def _close_late(self) -> None:
        """Close late connections: silent, unauthenticated, or with an unfinished frame for too
        long. Runs every second."""
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(min(self._idle_timeout / 4, SWEEP_S), self._close_late)
        now = loop.time()
        oldest = now - self._idle_timeout
        for connection in list(self.connections):
            if connection.last_read < oldest:
                self._closing.start(connection.close)
            elif connection.frame_began and connection.frame_is_late(now):
                _unfinished(connection.peer)
                self._closing.start(connection.close)
        if self.router.authorise is not None:
            oldest = now - min(ACCEPTANCE_S, self._idle_timeout)
            for connection in list(self._unaccepted):
                if connection.user is not None:
                    del self._unaccepted[connection]
                elif connection.opened_at <= oldest:
                    _not_accepted(connection.peer)
                    self._closing.start(connection.close)
                else:  # they are in order of arrival
                    break
        for port in self.ports:
            port.close_silent(oldest)
