"""Replication of a broker in controller mode: the part that its role gives it in the group.

A master has an HA port and a sync state set, a slave has a connection to that port. The object has
the methods of ``broker/replication.py``, which serves brokers without a controller. The
supervisor (``replica.py``) knows who is master.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.broker.replica.served_role import ServedRole
from turbopump.broker.replication import PORT_MAX
from turbopump.broker.replication_settings import master_settings, peer_rules, weak_promises
from turbopump.broker.replication_status import (
    figures_of_master,
    figures_of_slave,
    status_of_connection,
    status_of_master,
    status_of_slave,
)
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.disk.disk import Disk
from turbopump.errors import ConfigError
from turbopump.protocol.requests.controller import EpochEntry
from turbopump.protocol.requests.replication import PROVED, HARuntimeInfo
from turbopump.replication.auto_switch import SlaveHandshake
from turbopump.replication.epochs import EpochFile
from turbopump.replication.replica_master_link import Mastership, ReplicaMasterLink
from turbopump.replication.replica_slave_link import ReplicaSlaveLink
from turbopump.replication.slave import SlaveSettings
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
"""Maximum seconds between two reports of a slave to its master, and between two heartbeats back.
Without sends, the master notices by them alone that a replica is frozen."""


class GroupReplication:
    """Replication of one broker in controller mode, as a master or as a slave.

    Call ``listen`` before the broker registers, ``start`` when it serves clients, and ``stop`` at
    the end. Raises OSError if the epoch of a new master cannot be saved.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        paths: StorePaths,
        served_role: ServedRole,
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._served_role = served_role
        self.ha_port: int | None = None
        """Number of the open HA port, or None."""
        self.master: ReplicaMasterLink | None = None
        self.slave: ReplicaSlaveLink | None = None
        self._synchronous = config.flush_disk_type == FlushDiskType.SYNC_FLUSH
        self._epochs = EpochFile(disk, paths.epochs, store.log.start, store.log.end)
        heartbeat = min(config.ha_send_heartbeat_interval / 1000, HEARTBEAT_S)
        housekeeping = config.ha_housekeeping_interval / 1000
        rules = peer_rules(config)
        role = served_role.role
        if not role.is_master:
            self.slave = ReplicaSlaveLink(
                store,
                disk,
                SlaveSettings(heartbeat, housekeeping),
                self._epochs,
                SlaveHandshake(
                    from_last_file=False, async_learner=config.async_learner, replica_id=role.id
                ),
                ack_flushed=config.slave_ack_after_flush or self._synchronous,
                flushes=self._synchronous,
                rules=rules,
                tls=config.client_tls,
            )
            self.slave.on_cut_needed = served_role.on_cut_needed
            self.slave.on_master_lost = served_role.on_master_lost
            return
        self.master = ReplicaMasterLink(
            store,
            disk,
            master_settings(config, heartbeat),
            self._epochs,
            Mastership(
                role.id,
                role.master_epoch,
                size_min=config.min_in_sync_replicas,
                acks=None if config.all_ack_in_sync_state_set else config.in_sync_replicas,
            ),
            durable_only=self._synchronous,
            rules=rules,
            tls=config.server_tls,
        )
        self.master.on_wanted_set = served_role.on_wanted_set

    async def listen(self, broker_port: int) -> int | None:
        """Open the HA port of a master, and return its number.

        Return None at a slave. Raises ConfigError if the port cannot be opened.
        """
        if self.master is None:
            return None
        config = self._config
        port = config.ha_listen_port or self._served_role.ha_port or 0
        if not port and config.listen_port:
            port = min(broker_port + 1, PORT_MAX)
        try:
            _, self.ha_port = await self.master.listen(config.bind_address, port)
        except ConfigError as error:
            raise ConfigError(f"{error}; set haListenPort to a free port") from None
        return self.ha_port

    def start(self) -> None:
        """Start to copy the log if this broker is a slave. A master takes its sync state set.

        Settings with weaker guarantees than expected are logged.
        """
        for text in weak_promises(self._config):
            log.warning("%s", text)
        if self.slave is not None:
            self.slave.start()
        self.follow_role()

    def follow_role(self) -> None:
        """Take over a changed sync state set from the role."""
        role = self._served_role.role
        if self.master is not None and role.sync_state_set:
            self.master.set_sync_state(role.sync_state_set, role.set_epoch)

    async def stop(self) -> None:
        """Stop the replication. The method may be called twice."""
        if self.slave is not None:
            await self.slave.stop()
        if self.master is not None:
            await self.master.close()

    def master_is_at(self, ha_address: str | None) -> None:
        """Set the HA address of the master, and the epoch of the role."""
        if self.slave is not None:
            self.slave.follow(ha_address, self._served_role.role.master_epoch)

    def room_made(self) -> None:
        """Continue to copy, now that the log has a new file."""
        if self.slave is not None:
            self.slave.room_made()

    # --- the state, for operators and for the controller

    def epochs(self) -> list[EpochEntry]:
        """Return the epochs of the log, for request 1007."""
        epochs = self._epochs.reached(self._store.log.end)
        return [
            EpochEntry(
                epoch=one.epoch,
                start_offset=one.start,
                end_offset=epochs.end_of(one.epoch, self._store.log.end),
            )
            for one in epochs.epochs
        ]

    def log_report(self, damaged_from: int | None = None) -> tuple[int, int, int]:
        """Return the numbers of a heartbeat to a controller: the epoch of the last byte of the log,
        the end of the log that survives a power cut as the settings promise, and the confirmed
        offset.

        A slave reports its log only up to ``damaged_from``, the start of its first open damage.
        Other replicas are then elected before it while the rest may still be repaired.
        """
        store = self._store
        end = min(store.log.end, store.durable.value) if self._synchronous else store.log.end
        if self.master is None and damaged_from is not None:
            end = min(end, damaged_from)
        epoch = self._epochs.reached(end).last_epoch
        return max(epoch, 0), end, min(store.confirmed.value, end)

    def best_member(self, wanted: int | None = None) -> int | None:
        """Return the id of the slave in the sync state set that has most of the log, or None.

        ``wanted`` is the only one that counts.
        """
        if self.master is None:
            return None
        ends = {
            peer.replica_id: peer.connection.acked
            for peer in self.master.slaves
            if peer.replica_id in self.master.sync_state and wanted in (None, peer.replica_id)
        }
        return max(ends, key=lambda one: ends[one], default=None)

    def status(self, now: float) -> HARuntimeInfo:
        """Return the state of the replication for request 907.

        ``now`` is the time of the event loop, in seconds.
        """
        log_end = self._store.log.end
        if self.master is None:
            assert self.slave is not None
            return status_of_slave(self.slave, log_end, now, self._clock.now_ms())
        slaves = [
            status_of_connection(
                peer.address,
                peer.connection,
                log_end,
                now,
                is_in_sync=peer.replica_id in self.master.sync_state,
                proof=PROVED,  # by the epochs of both logs
            )
            for peer in self.master.slaves
        ]
        return status_of_master(log_end, slaves)

    def figures(self) -> dict[str, str]:
        """Return figures about replication for the runtime information of the broker.

        They are those of a broker without a controller, and the sync state set.
        """
        role = self._served_role.role
        figures = {"masterEpoch": str(role.master_epoch), "replicaId": str(role.id)}
        if self.master is None:
            assert self.slave is not None
            return figures | figures_of_slave(self.slave)
        figures["syncStateSet"] = ",".join(map(str, sorted(self.master.sync_state)))
        return figures | figures_of_master(self.status(asyncio.get_running_loop().time()))
