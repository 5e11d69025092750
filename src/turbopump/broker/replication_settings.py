"""Settings of a broker that are about replication: what they mean for its links, and warnings of
those that promise less than an operator may expect."""

from __future__ import annotations

from collections.abc import Iterator

from turbopump.auth.signatures import Credentials
from turbopump.config.broker_config import CLOSE_HA_PORT, BrokerConfig, BrokerRole
from turbopump.config.tls import TlsMode
from turbopump.replication.handshake import PeerRules
from turbopump.replication.master import MasterSettings


def master_settings(config: BrokerConfig, heartbeat: float) -> MasterSettings:
    """Return the settings of a master's link. ``heartbeat`` is in seconds."""
    return MasterSettings(
        heartbeat=heartbeat,
        housekeeping=config.ha_housekeeping_interval / 1000,
        batch=config.ha_transfer_batch_size,
        rate_max=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0,
        acks=config.slave_acks,
        catch_up=config.ha_max_time_slave_not_catchup / 1000,
    )


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
