"""Replication of a broker. A master has an HA port, and a slave has a connection to that port.

This module also reports the state of the replication, and warns of settings with weak guarantees.
Roles and the stream between them are in ``turbopump.replication``. Tables that a slave copies
beside the log are in ``slave_tables.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from turbopump.auth.signatures import Credentials
from turbopump.clock import Clock
from turbopump.config.broker_config import CLOSE_HA_PORT, BrokerConfig, BrokerRole, FlushDiskType
from turbopump.config.tls import TlsMode
from turbopump.disk.disk import Disk
from turbopump.errors import ConfigError
from turbopump.protocol.requests.replication import (
    COMPARES,
    COMPARING,
    NOT_PROVED,
    PROVED,
    SLAVES,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from turbopump.replication.handshake import PeerRules
from turbopump.replication.history import LogHistory
from turbopump.replication.master import MasterSettings
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
            MasterSettings(
                heartbeat=heartbeat,
                housekeeping=housekeeping,
                batch=config.ha_transfer_batch_size,
                rate_max=config.max_ha_transfer_byte_in_second
                if config.ha_flow_control_enable
                else 0,
                acks=config.slave_acks,
                catch_up=config.ha_max_time_slave_not_catchup / 1000,
            ),
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
            return HARuntimeInfo(master=False, ha_client_runtime_info=self._as_slave(now))
        slaves = []
        for peer in self.master.slaves:
            one = peer.connection
            behind = log_end - max(one.acked, 0)
            slaves.append(
                HAConnectionRuntimeInfo(
                    addr=peer.address,
                    slave_ack_offset=one.acked,
                    diff=behind,
                    # RocketMQ: by what it is behind alone, also one that never had everything
                    in_sync=one.next is not None
                    and self.master.in_sync_slaves.is_in_sync(one.slave, now, proved=one.proved)
                    and behind < self._config.ha_max_gap_not_in_sync,
                    transferred_byte_in_second=one.sent.per_second(now),
                    transfer_from_where=one.next if one.next is not None else -1,
                    proof=_proof(peer),
                )
            )
        return HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=log_end,
            in_sync_slave_nums=sum(one.in_sync for one in slaves),
            ha_connection_info=slaves,
        )

    def figures(self) -> dict[str, str]:
        """Return figures about replication for the runtime information of the broker.

        A master reports the number of connected and of in-sync slaves, the lag of the last slave in
        bytes, and the bytes sent per second. RocketMQ has no such keys.
        """
        if self.master is None:
            slave = self.slave
            copies = slave is not None and slave.accepted
            return {"haCopies": "true" if copies else "false"}
        status = self.status(asyncio.get_running_loop().time())
        slaves = status.ha_connection_info
        return {
            SLAVES: str(len(slaves)),
            COMPARES: "true",
            "haSlavesInSync": str(status.in_sync_slave_nums),
            "haBehindBytesMax": str(max((one.diff for one in slaves), default=0)),
            "haBytesPerSecond": str(sum(one.transferred_byte_in_second for one in slaves)),
        }

    def _as_slave(self, now: float) -> HAClientRuntimeInfo:
        slave = self.slave
        assert slave is not None
        info = HAClientRuntimeInfo(
            master_addr=slave.address,
            max_offset=self._store.log.end,
            fault=None if slave.accepted else slave.fault,
            refusal=None if slave.accepted else slave.refusal,
        )
        wall = self._clock.now_ms()
        if slave.copied_until is not None:
            info.copied_until = wall - int((now - slave.copied_until) * 1000)
        if slave.peer is not None:
            connection = slave.peer.connection
            info.last_read_timestamp = wall - int((now - connection.last_read) * 1000)
            info.last_write_timestamp = wall - int((now - connection.last_write) * 1000)
            info.transferred_byte_in_second = connection.came.per_second(now)
            if slave.accepted:
                info.copied_until = info.last_read_timestamp
        return info


def _proof(peer: SlavePeer) -> str:
    if peer.compares:
        return COMPARING
    if peer.connection.proved:
        return PROVED
    return NOT_PROVED


def peer_rules(config: BrokerConfig) -> PeerRules:
    """Return the rules for peers at the HA port.

    They are those of the main port, because the HA port gives access to every message.
    """
    user = config.inner_user
    return PeerRules(
        closed=config.authentication_enabled,
        allowed=config.allowed_peers,
        credentials=None if user is None else Credentials(*user),
        encrypted=config.tls_server_mode is TlsMode.ENFORCING,
        certified=config.certificates_required,
    )


def weak_promises(config: BrokerConfig) -> list[str]:
    """Return warnings about settings whose guarantees are weaker than an operator may expect."""
    found = list(_weak_with_controller(config)) if config.enable_controller_mode else []
    synchronous = config.broker_role == BrokerRole.SYNC_MASTER and not config.enable_controller_mode
    if synchronous and config.in_sync_replicas == 1:
        found.append(
            "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave: a message that was "
            "acknowledged is lost with this machine; set inSyncReplicas=2 to wait for one slave"
        )
    plain = not config.enable_controller_mode
    if plain and not synchronous and config.in_sync_replicas > 1 and not config.is_slave:
        found.append(
            f"inSyncReplicas={config.in_sync_replicas} counts only with brokerRole=SYNC_MASTER: "
            "sends wait for no slave"
        )
    if (
        plain
        and config.slave_acks
        and (config.ha_max_time_slave_not_catchup <= config.ha_send_heartbeat_interval)
    ):
        found.append(
            f"haMaxTimeSlaveNotCatchup={config.ha_max_time_slave_not_catchup} is not "
            f"longer than haSendHeartbeatInterval={config.ha_send_heartbeat_interval}: "
            "without sends, a slave reports its offset only at that interval, and sends "
            "do not wait for it in between"
        )
    rules = peer_rules(config)
    if rules.closed and rules.credentials is None and not rules.allowed:
        found.append(
            "authenticationEnabled=true without innerClientAuthenticationCredentials: "
            + (
                "this slave cannot authenticate to its master"
                if config.is_slave
                else "no slave can authenticate, so none may connect"
            )
            + "; give all brokers of the cluster the same, or name addresses in haAllowedPeers"
        )
    if config.is_slave and config.ha_master_address and not (config.namesrv_addr or rules.closed):
        found.append(
            "haMasterAddress without namesrvAddr: this slave copies without comparing "
            "its log with the master's. The logs may differ if this broker was a master "
            "before; set namesrvAddr, or empty this store to copy it again"
        )
    found += _weak_acting(config)
    if config.ha_port_is_open and not config.is_slave:
        found.append(f"haListenPort lets anyone who can connect read all messages: {CLOSE_HA_PORT}")
    return found


def _weak_with_controller(config: BrokerConfig) -> Iterator[str]:
    """Yield a warning for each setting of controller mode that promises less than our default."""
    if config.min_in_sync_replicas == 1:
        yield (
            "minInSyncReplicas=1: a master alone acknowledges messages, which are lost with its "
            "machine; set minInSyncReplicas=2"
        )
    if not config.all_ack_in_sync_state_set:
        yield (
            f"allAckInSyncStateSet=false with inSyncReplicas={config.in_sync_replicas}: a message "
            "is acknowledged before all replicas in sync have it, and one without it may be "
            "elected; set allAckInSyncStateSet=true"
        )
    if config.unconfirmed_read_enable:
        yield (
            "unconfirmedReadEnable=true: consumers get messages that may vanish with the master; "
            "leave the key out"
        )


def _weak_acting(config: BrokerConfig) -> list[str]:
    """Return warnings about a slave that cannot deliver while its master is away."""
    if config.enable_controller_mode and config.enable_slave_acting_master:
        return [
            "enableSlaveActingMaster has no effect with enableControllerMode: another replica is "
            "elected instead"
        ]
    if config.enable_remote_escape and not config.enable_slave_acting_master:
        return ["enableRemoteEscape has no effect without enableSlaveActingMaster=true"]
    found = []
    if config.may_act and not config.enable_remote_escape:
        found.append(
            "enableSlaveActingMaster=true without enableRemoteEscape: while the master is away, "
            "this slave delivers nothing; set enableRemoteEscape=true, and have another master in "
            "the cluster"
        )
    if config.enable_slave_acting_master and not config.namesrv_addresses:
        found.append(
            "enableSlaveActingMaster=true without namesrvAddr: this broker cannot learn whether "
            "its master is away, or who acted for it"
        )
    return found
