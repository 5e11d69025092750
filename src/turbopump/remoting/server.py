"""A listening port: accepts connections, hands each the same router, closes the silent ones.

It must not know what any request means. A peer that sends nothing for ``idle_timeout`` seconds is
closed: clients send a heartbeat every 30 s (apache/rocketmq
``NettyServerConfig.serverChannelMaxIdleTimeSeconds``, 120).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final

from turbopump.errors import ConfigError
from turbopump.protocol.frame import FRAME_SIZE_MAX
from turbopump.remoting.backlog import Backlog
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Router

IDLE_TIMEOUT_S: Final = 120.0
BACKLOG: Final = 256
"""asyncio accepts up to this many connections in one loop turn; more would stall everyone else."""


class RemotingServer:
    """Serves a router on one or more addresses.

    ``on_close`` is called with each connection that has ended. ``backlog`` is the line for requests
    that may wait. Raises ConfigError if an address cannot be bound.
    """

    def __init__(
        self,
        router: Router,
        *,
        on_close: Callable[[Connection], None] | None = None,
        idle_timeout: float = IDLE_TIMEOUT_S,
        frame_size_max: int = FRAME_SIZE_MAX,
        backlog: Backlog | None = None,
    ) -> None:
        self.router = router
        # in order of arrival, so that a run can be replayed
        self.connections: dict[Connection, None] = {}
        self._on_close = on_close
        self._idle_timeout = idle_timeout
        self._frame_size_max = frame_size_max
        self._backlog = backlog
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, router: Router | None = None) -> tuple[str, int]:
        """Listen on ``host:port`` (port 0 picks a free one), with another router if given; return
        the address bound."""
        loop = asyncio.get_running_loop()
        chosen = router or self.router
        try:
            server = await loop.create_server(
                lambda: self._accept(chosen), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigError(_bind_failure(host, port, error)) from None
        self._servers.append(server)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_timeout / 4, self._close_idle)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening, then close every connection after what it still has to send."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for server in self._servers:
            server.close()
        if self._backlog is not None:
            self._backlog.finish()
        for connection in list(self.connections):
            connection.close()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _accept(self, router: Router) -> Connection:
        return Connection(
            router,
            on_open=self._opened,
            on_close=self._closed,
            frame_size_max=self._frame_size_max,
            backlog=self._backlog,
        )

    def _opened(self, connection: Connection) -> None:
        self.connections[connection] = None

    def _closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if self._on_close is not None:
            self._on_close(connection)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._idle_timeout / 4, self._close_idle)
        oldest = loop.time() - self._idle_timeout
        for connection in list(self.connections):
            if connection.last_read < oldest:
                connection.close()


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
