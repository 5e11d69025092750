"""A name server: the route table, its handlers, a listening port, and the scan for silent brokers.

Its one rule: whatever happens is turned into a call of the table with the time in it. It must not
know files or signals.
"""

import asyncio
import logging

from turbopump.clock import Clock, SystemClock
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.handlers import NamesrvHandlers
from turbopump.namesrv.route_table import RouteTable
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Authorise, Router
from turbopump.remoting.server import RemotingServer

log = logging.getLogger(__name__)


class NameServer:
    """One name server in the running event loop.

    `clock` is asked for monotonic seconds. `start` raises `ConfigError` when the address cannot be
    bound. `authorise` sees every request before its handler (`Router`); None permits all.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        clock: Clock | None = None,
        authorise: Authorise | None = None,
    ) -> None:
        self.config = config or NamesrvConfig()
        self._clock = clock or SystemClock()
        self.table = RouteTable(
            support_acting_master=self.config.support_acting_master,
            delete_missing_topics=self.config.delete_topic_with_broker_registration,
        )
        router = Router(authorise)
        NamesrvHandlers(self.config, self.table, self._clock).add_to(router)
        self._server = RemotingServer(
            router,
            on_close=self._connection_lost,
            idle_timeout=self.config.server_channel_max_idle_time_seconds,
        )
        self._scan: asyncio.TimerHandle | None = None

    async def start(self, host: str | None = None, port: int | None = None) -> tuple[str, int]:
        """Listen, on the configuration's address unless another is given (port 0 picks a free one);
        returns the address bound."""
        bound = await self._server.listen(
            self.config.bind_address if host is None else host,
            self.config.listen_port if port is None else port,
        )
        self._schedule_scan()
        log.info("name server ready address=%s:%d", *bound)
        return bound

    async def close(self) -> None:
        """Stop listening, then close every connection after what it still has to send. May be
        called twice."""
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        await self._server.close()

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(
            self.config.scan_not_active_broker_interval / 1000, self._expire
        )

    def _expire(self) -> None:
        self._schedule_scan()
        for broker, connection in self.table.expire(self._clock.monotonic()):
            log.warning("broker expired %s", broker)
            assert isinstance(connection, Connection)
            connection.close()

    def _connection_lost(self, connection: Connection) -> None:
        for broker in self.table.connection_lost(connection):
            log.warning("broker's connection lost %s", broker)
