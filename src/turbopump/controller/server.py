"""Controller: it listens on a port, follows the replicas' heartbeats, and decides who is master.

Several controllers may run. One leads and decides. The others take heartbeats, so that they know
the live replicas if they lead later, and name the leader. Decisions are durable in a `Decisions`;
other files are unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from turbopump.auth.server_access import (
    LOOK_INTERVAL_S,
    NoAccessControl,
    ServerAccess,
    inner_signer,
)
from turbopump.clock import Clock, SystemClock
from turbopump.config.controller_config import CONTROLLER_KEYS, ControllerConfig
from turbopump.config.running import RunningConfiguration
from turbopump.controller.broker_handlers import BrokerHandlers, Connections
from turbopump.controller.decided_groups import DecidedGroups
from turbopump.controller.decision_file import DecisionFile
from turbopump.controller.decisions import Decisions, NotLeaderError
from turbopump.controller.etcd_client import EtcdClient
from turbopump.controller.etcd_decisions import EtcdDecisions, attempt_s
from turbopump.controller.groups import Group
from turbopump.controller.liveness import Liveness
from turbopump.controller.metrics import metrics_of
from turbopump.controller.operator_handlers import OperatorHandlers
from turbopump.controller.role_notices import RoleNotices
from turbopump.disk.disk import Disk
from turbopump.protocol.requests.controller import (
    ControllerMetadata,
    GetControllerConfig,
    UpdateControllerConfig,
)
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.configuration_handlers import ConfigurationHandlers
from turbopump.remoting.health_port import HealthPort
from turbopump.remoting.published_metrics import PublishedMetrics
from turbopump.remoting.router import Authorise, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire
from turbopump.timetable import Timetable

log = logging.getLogger(__name__)

LATE_SCAN_S = 0.5
"""Seconds by which a scan may be late. Beyond, this process did not run, and nobody was silent."""
LOAD_AGAIN_S = 0.5
"""Seconds after which a new leader that could not read the groups tries again."""


class Controller:
    """Controller in the present event loop. Call ``start``, then ``close``.

    - ``config``: the settings, or None for the defaults.
    - ``clock``: the source of monotonic seconds.
    - ``disk``: the storage for decisions and changed settings, or None to keep both in memory only.
    - ``decisions``: the place of the decisions. None means etcd if it is configured, else a file in
      ``controllerStorePath``.
    - ``file``: the file from which the configuration was read.
    - ``authorise``: checks every request before its handler (`Router`). It replaces `access`.
    - ``access``: the server's own access control, or None if the configuration does not turn it on.
    """

    def __init__(
        self,
        config: ControllerConfig | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        decisions: Decisions | None = None,
        file: Path | None = None,
        authorise: Authorise | None = None,
    ) -> None:
        self.config = config = config or ControllerConfig()
        self._clock = clock or SystemClock()
        directory = Path(config.controller_store_path).expanduser()
        self._decisions = decisions or _configured_decisions(config, disk, self._clock)
        self.liveness = Liveness()
        self._connections = Connections()
        self._notices = RoleNotices(
            RemotingClient(tls=config.client_tls, signer=inner_signer(config)), self.liveness
        )
        self.groups = DecidedGroups(
            self._decisions,
            self.liveness,
            self._clock,
            lambda: config.enable_elect_unclean_master,
            self._elected,
            self._load_groups,
        )
        running = RunningConfiguration.from_file(
            config, CONTROLLER_KEYS, file, config.config_store_path
        )
        self.access: ServerAccess | None = None
        if config.authentication_enabled:
            accounts = directory / "auth"
            if config.auth_config_path:
                accounts = Path(config.auth_config_path).expanduser()
            self.access = ServerAccess(config, accounts, disk, self.groups.clusters)
            authorise = authorise or self.access.control
        self.router = router = Router(authorise)
        (self.access or NoAccessControl()).add_to(router)
        BrokerHandlers(self.groups, self.liveness, self._connections, self._clock).add_to(router)
        OperatorHandlers(self.groups, self.liveness, self.metadata).add_to(router)
        ConfigurationHandlers(running, disk).add_to(
            router, GetControllerConfig, UpdateControllerConfig
        )
        self.times = AnswerTimes()
        """Times of the answers."""
        self._server = RemotingServer(
            router,
            times=self.times,
            on_close=self._connection_lost,
            idle_timeout=config.server_channel_max_idle_time_seconds,
            memory_max=config.connection_memory_max,
            per_address=config.max_connections_per_address,
            tls=config.server_tls,
        )
        self._timetable = Timetable()
        self._scanned = 0.0
        self._next_scan: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None
        self._address = ""
        self._unready = "the controller is starting"
        self._health = HealthPort(config, self.unready_reasons)
        metrics = metrics_of(config, self.groups, self.liveness, self.times, lambda: self.leader)
        may_read = None
        if self.access is not None:
            may_read = self.access.control.may_read_metrics
        self._metrics = PublishedMetrics(config, self._server, metrics, may_read)
        self.metrics_port = self._metrics.port

    @property
    def address(self) -> str:
        """Address under which replicas reach this controller, after ``start``."""
        return self._address

    @property
    def leader(self) -> str | None:
        """Address of the controller that leads, or None while there is none."""
        return self._decisions.leader

    async def start(self, host: str | None = None, port: int | None = None) -> tuple[str, int]:
        """Open the port of the controller, and return its host and port.

        - ``host``, ``port``: the address, by default the configured one. Port 0 picks a free port.

        Raises ConfigError if the address cannot be bound or the decisions cannot be used, and
        OSError if files cannot be read.
        """
        config = self.config
        await self._health.open()
        if self.access is not None:
            self.access.open()
        bound = await self._server.listen(
            config.bind_address if host is None else host,
            config.listen_port if port is None else port,
        )
        self._address = config.address_at(bound)
        self._scanned = self._clock.monotonic()
        self._scan()
        if self.access is not None:
            self._timetable.every(LOOK_INTERVAL_S, self.access.check_file)
        await self._decisions.open(self._address, self._leader_changed)
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await self._metrics.start(config.metrics_prom_exporter_port)
        self._unready = ""
        log.info("controller ready address=%s leader=%s", self._address, self.leader)
        return bound

    async def close(self) -> None:
        """Close the port, send pending answers, and then close every connection.

        This may be called twice.
        """
        self._unready = "the controller is stopping"
        self._timetable.close()
        if self._next_scan is not None:
            self._next_scan.cancel()
        await self._metrics.close()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._decisions.close()
        await self.groups.close()
        await self._server.close()
        await self._notices.close()
        self._health.pages.close()

    def unready_reasons(self) -> list[str]:
        """Return the reason why the controller serves nobody now, or an empty list."""
        if self._unready:
            return [self._unready]
        if self.leader is None:
            return ["no controller leads"]
        return []

    def metadata(self) -> ControllerMetadata:
        """Return the addresses of the controllers and of their leader (1005)."""
        peers = self.config.peers or {self.config.controller_d_leger_self_id: self._address}
        ids = {address: id_ for id_, address in peers.items()}
        leader = self.leader
        return ControllerMetadata(
            group=self.config.controller_d_leger_group,
            controller_leader_id=None if leader is None else ids.get(leader),
            controller_leader_address=leader,
            is_leader=leader == self._address,
            peers="".join(f"{id_}:{address};" for id_, address in peers.items()),
        )

    # --- leadership

    def _leader_changed(self) -> None:
        leader = self._decisions.leader
        level = logging.INFO if self._unready else logging.WARNING  # at a start it is expected
        log.log(level, "controllers have a leader leader=%s own=%s", leader, self._address)
        self._load_groups()

    def _load_groups(self) -> None:
        """Begin to lead with the stored groups, if this controller leads."""
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self.groups.end()
        leader = self._decisions.leader
        if leader is not None and leader == self._address:
            self._loading = asyncio.ensure_future(self._begin())

    async def _begin(self) -> None:
        while True:
            try:
                self.groups.begin(await self._decisions.load())
            except NotLeaderError:
                return
            except OSError as error:
                log.error("groups cannot be read, trying again cause=%s", error)
                await asyncio.sleep(LOAD_AGAIN_S)
            else:
                return

    def _elected(self, group: Group) -> None:
        if self.config.notify_broker_role_changed:
            self._notices.send(group)

    # --- heartbeats

    def _scan(self) -> None:
        """Remove silent replicas, now and repeatedly."""
        interval = self.config.scan_not_active_broker_interval / 1000  # it may have changed
        self._next_scan = asyncio.get_running_loop().call_later(interval, self._scan)
        now = self._clock.monotonic()
        late = now - self._scanned - interval
        self._scanned = now
        if late > LATE_SCAN_S:
            log.warning("this process did not run for a while seconds=%.1f", late)
            self.liveness.excuse(late)
        silent = self.liveness.expire(now)
        if silent:
            self.groups.note_deaths([key for key, _ in silent], "no heartbeats")
        for number in {number for _, number in silent}:
            self._connections.close(number)

    def _connection_lost(self, connection: Wire) -> None:
        number = self._connections.end(connection)
        if number is not None:
            self.groups.note_deaths(
                self.liveness.end_connection(number, self._clock.monotonic()), "connection ended"
            )


def _configured_decisions(config: ControllerConfig, disk: Disk | None, clock: Clock) -> Decisions:
    """Return the place of the decisions that a configuration names."""
    etcd = config.etcd
    if etcd is None:
        return DecisionFile(disk, Path(config.controller_store_path).expanduser())
    client = EtcdClient(etcd, attempt_s(etcd.lease_s))
    return EtcdDecisions(client, config.controller_d_leger_group, etcd.lease_s, clock)
