"""Replication of a broker. A master has an HA port, and a slave has a connection to that port.

Roles and the stream between them are in ``turbopump.replication``. Tables that a slave copies
beside the log are in ``slave_tables.py``. A broker with a controller has
``replica/group_replication.py`` instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.broker.replication_settings import master_settings, peer_rules, weak_promises
from turbopump.broker.replication_status import (
    figures_of_master,
    figures_of_slave,
    status_of_connection,
    status_of_master,
    status_of_slave,
)
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig, BrokerRole, FlushDiskType
from turbopump.disk.disk import Disk
from turbopump.errors import ConfigError
from turbopump.protocol.requests.replication import COMPARING, NOT_PROVED, PROVED, HARuntimeInfo
from turbopump.replication.history import LogHistory
from turbopump.replication.master_link import MasterLink, SlavePeer
from turbopump.replication.slave import SlaveSettings
from turbopump.replication.slave_link import SlaveLink
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

PORT_MAX: Final = 65535


class Replication:
    """Replication of one broker, as a master or as a slave.

    Call ``listen`` before the broker registers, ``start`` when it serves clients, and ``stop`` at
    the end.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        history: LogHistory,
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self.master: MasterLink | None = None
        self.slave: SlaveLink | None = None
        heartbeat = config.ha_send_heartbeat_interval / 1000
        housekeeping = config.ha_housekeeping_interval / 1000
        synchronous = config.flush_disk_type == FlushDiskType.SYNC_FLUSH
        rules = peer_rules(config)
        if config.is_slave:
            self.slave = SlaveLink(
                store,
                disk,
                SlaveSettings(heartbeat, housekeeping),
                history,
                ack_flushed=config.slave_ack_after_flush or synchronous,
                flushes=synchronous,
                rules=rules,
                tls=config.client_tls,
            )
            return
        history.begin_own(store.log.end)
        history.save_now()
        self.master = MasterLink(
            store,
            disk,
            master_settings(config, heartbeat),
            history,
            durable_only=synchronous,
            rules=rules,
            tls=config.server_tls,
        )

    async def listen(self, broker_port: int) -> int | None:
        """Open the HA port of a master, and return its number.

        Return None at a slave, or if no port is free beside that of the broker. Raises ConfigError
        if the configured port is taken.
        """
        if self.master is None:
            return None
        config = self._config
        wanted = config.ha_listen_port or min(broker_port + 1, PORT_MAX)
        # a broker on a free port gets a free one
        port = wanted if config.ha_listen_port or config.listen_port else 0
        try:
            _, bound = await self.master.listen(config.bind_address, port)
        except ConfigError as error:
            if config.ha_listen_port or config.broker_role == BrokerRole.SYNC_MASTER:
                raise
            log.warning("no slave can connect, set haListenPort to a free one cause=%s", error)
            return None
        return bound

    def start(self) -> None:
        """Start to copy the log if this broker is a slave.

        Settings with weaker guarantees than expected are logged.
        """
        for text in weak_promises(self._config):
            log.warning("%s", text)
        if self.slave is not None:
            self.slave.start()
            self.slave.set_master(self._config.ha_master_address or None)

    async def stop(self) -> None:
        """Stop the replication. The method may be called twice."""
        if self.slave is not None:
            await self.slave.stop()
        if self.master is not None:
            await self.master.close()

    def master_is_at(self, ha_address: str | None) -> None:
        """Set the HA address of the master, as a name server gives it. ``haMasterAddress`` has
        precedence."""
        if self.slave is not None and not self._config.ha_master_address:
            self.slave.set_master(ha_address)

    def room_made(self) -> None:
        """Continue to copy, now that the log has a new file."""
        if self.slave is not None:
            self.slave.room_made()

    def status(self, now: float) -> HARuntimeInfo:
        """Return the state of the replication for request 907.

        ``now`` is the time of the event loop, in seconds.
        """
        log_end = self._store.log.end
        if self.master is None:
            assert self.slave is not None
            return status_of_slave(self.slave, log_end, now, self._clock.now_ms())
        slaves = []
        for peer in self.master.slaves:
            one = peer.connection
            behind = log_end - max(one.acked, 0)
            # RocketMQ: by what it is behind alone, also one that never had everything
            is_in_sync = (
                one.next is not None
                and self.master.in_sync_slaves.is_in_sync(one.slave, now, proved=one.proved)
                and behind < self._config.ha_max_gap_not_in_sync
            )
            slaves.append(
                status_of_connection(
                    peer.address, one, log_end, now, is_in_sync=is_in_sync, proof=_proof(peer)
                )
            )
        return status_of_master(log_end, slaves)

    def figures(self) -> dict[str, str]:
        """Return figures about replication for the runtime information of the broker."""
        if self.master is None:
            assert self.slave is not None
            return figures_of_slave(self.slave)
        return figures_of_master(self.status(asyncio.get_running_loop().time()))


def _proof(peer: SlavePeer) -> str:
    if peer.compares:
        return COMPARING
    if peer.connection.proved:
        return PROVED
    return NOT_PROVED
