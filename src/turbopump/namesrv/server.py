"""Name server: it listens on a port, answers requests, and removes silent brokers.

Every event becomes a call of the table, with the current time as an argument. Files and signals are
unknown here.
"""

import logging
from pathlib import Path
from typing import Final

from turbopump.auth.server_access import LOOK_INTERVAL_S, NoAccessControl, ServerAccess
from turbopump.clock import Clock, SystemClock
from turbopump.config.namesrv_config import NAMESRV_KEYS, NamesrvConfig
from turbopump.config.running import RunningConfiguration
from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.namesrv.kv_table import KvTable
from turbopump.namesrv.metrics import metrics_of
from turbopump.namesrv.operator_handlers import OperatorHandlers
from turbopump.namesrv.registration_handlers import RegistrationHandlers
from turbopump.namesrv.route_handlers import RouteHandlers
from turbopump.namesrv.route_table import RouteTable
from turbopump.protocol.requests.namesrv import GetNamesrvConfig, UpdateNamesrvConfig
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.configuration_handlers import ConfigurationHandlers
from turbopump.remoting.health_port import HealthPort
from turbopump.remoting.published_metrics import PublishedMetrics
from turbopump.remoting.router import Authorise, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire
from turbopump.timetable import Timetable

log = logging.getLogger(__name__)

LIST_KV_S: Final = 600.0
"""Seconds between two listings of the KV configuration in the log."""


class NameServer:
    """Name server in the present event loop. Call ``start``, then ``close``.

    - ``config``: the settings, or None for the defaults.
    - ``clock``: the source of monotonic seconds.
    - ``disk``: the storage for the KV configuration and changed settings, or None to keep both in
      memory only.
    - ``file``: the file from which the configuration was read.
    - ``authorise``: checks every request before its handler (`Router`). It replaces `access`.
    - ``access``: the server's own access control, or None if the configuration does not turn it on.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        file: Path | None = None,
        authorise: Authorise | None = None,
    ) -> None:
        self.config = config or NamesrvConfig()
        self._clock = clock or SystemClock()
        self.table = RouteTable(
            support_acting_master=self.config.support_acting_master,
            delete_missing_topics=self.config.delete_topic_with_broker_registration,
        )
        kv_file = (
            JsonTable(disk, Path(self.config.kv_config_path).expanduser(), log.error, log.info)
            if disk is not None
            else None
        )
        self.kv = KvTable(kv_file)
        running = RunningConfiguration.from_file(
            self.config, NAMESRV_KEYS, file, self.config.config_store_path
        )
        self.access: ServerAccess | None = None
        if self.config.authentication_enabled:
            directory = Path(self.config.kv_config_path).expanduser().parent / "auth"
            if self.config.auth_config_path:
                directory = Path(self.config.auth_config_path).expanduser()
            self.access = ServerAccess(self.config, directory, disk, self.table.clusters)
            authorise = authorise or self.access.control
        self.router = router = Router(authorise)
        (self.access or NoAccessControl()).add_to(router)
        RegistrationHandlers(self.config, self.table, self.kv, self._clock).add_to(router)
        RouteHandlers(self.config, self.table, self.kv, self._clock).add_to(router)
        OperatorHandlers(running, self.table, self.kv).add_to(router)
        ConfigurationHandlers(running, disk).add_to(router, GetNamesrvConfig, UpdateNamesrvConfig)
        self.times = AnswerTimes()
        """Times of the answers."""
        self._server = RemotingServer(
            router,
            times=self.times,
            on_close=self._connection_lost,
            idle_timeout=self.config.server_channel_max_idle_time_seconds,
            memory_max=self.config.connection_memory_max,
            per_address=self.config.max_connections_per_address,
            tls=self.config.server_tls,
        )
        self._timetable = Timetable()
        self._unready = "the name server is starting"
        self._health = HealthPort(self.config, self.unready_reasons)
        may_read = None
        if self.access is not None:
            may_read = self.access.control.may_read_metrics
        metrics = metrics_of(self.config, self.table, self.times)
        self._metrics = PublishedMetrics(self.config, self._server, metrics, may_read)
        self.metrics_port = self._metrics.port

    async def start(self, host: str | None = None, port: int | None = None) -> tuple[str, int]:
        """Open the port of the name server, and return its host and port.

        - ``host``, ``port``: the address, by default the configured one. Port 0 picks a free port.

        Raises ConfigError if the address cannot be bound, and OSError if the KV configuration
        cannot be read.
        """
        await self._health.open()
        self.kv.load()
        if self.access is not None:
            self.access.open()
        bound = await self._server.listen(
            self.config.bind_address if host is None else host,
            self.config.listen_port if port is None else port,
        )
        self._timetable.every(self.config.scan_not_active_broker_interval / 1000, self._expire)
        self._timetable.every(LIST_KV_S, self._list_kv)
        if self.access is not None:
            self._timetable.every(LOOK_INTERVAL_S, self.access.check_file)
        await self._metrics.start(self.config.namesrv_metrics_port)
        self._unready = ""
        log.info("name server ready address=%s:%d", *bound)
        return bound

    async def close(self) -> None:
        """Close the port, send pending answers, and then close every connection.

        This may be called twice.
        """
        self._unready = "the name server is stopping"
        self._timetable.close()
        await self._metrics.close()
        await self._server.close()
        self._health.pages.close()

    def unready_reasons(self) -> list[str]:
        """Return the reason why the name server serves nobody now, or an empty list."""
        return [self._unready] if self._unready else []

    def _list_kv(self) -> None:
        for namespace, key, text in self.kv.entries():
            log.info("KV configuration namespace=%s key=%s value=%s", namespace, key, text)

    def _expire(self) -> None:
        self.kv.save_again()
        for broker, connection in self.table.expire(self._clock.monotonic()):
            log.warning("broker expired %s", broker.keys)
            assert isinstance(connection, Wire)
            connection.close()

    def _connection_lost(self, connection: Wire) -> None:
        for broker in self.table.connection_lost(connection):
            log.warning("connection of a broker lost %s", broker.keys)
