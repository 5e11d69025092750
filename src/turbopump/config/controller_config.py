"""Settings of a controller. Each field is one of Apache's keys that this controller honours,
declared as in `broker_config.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turbopump.config import properties
from turbopump.config.addresses import (
    LOOPBACK,
    check_host,
    is_wildcard,
    join_address,
    outward_address,
    parse_address,
)
from turbopump.config.etcd import EtcdConfig
from turbopump.config.keys import key_table
from turbopump.config.metrics import MetricsConfig
from turbopump.config.setting import LONG_MAX, below_home, build, setting
from turbopump.config.tls import TlsMode, with_tls_file
from turbopump.errors import ConfigError


def default_store_path() -> str:
    """Return the path of `controller` in the home directory."""
    return str(below_home("controller", instead="controllerStorePath"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(MetricsConfig, EtcdConfig):
    """Complete configuration of one controller.

    Times are in the unit of Apache's key.
    """

    metrics_prom_exporter_port: int = setting(
        5557,
        "port of `/metrics`, 0 for a free one; a broker on the same machine has the same default",
        high=65535,
    )

    bind_address: str = setting(
        LOOPBACK, "interface to listen on; Apache's default is 0.0.0.0", group="server"
    )
    listen_port: int = setting(
        9878,
        "port to listen on, 0 for a free one; with controllerDLegerPeers the port is taken from "
        "there",
        high=65535,
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "a silent connection is closed after", "s", low=1
    )
    connection_memory_max: int = setting(
        128 << 20,
        "memory that all connections may hold together; beyond it the one that holds most for "
        "longest is closed",
        "bytes",
        low=32 << 20,
        own=True,
    )
    use_tls: bool = setting(
        False, "connect to brokers with TLS; so does `tls.enable`", key="useTLS"
    )
    controller_d_leger_group: str = setting(
        "turbopump", "name of the controllers, shown to tools", group="controllers"
    )
    controller_d_leger_peers: str = setting(
        "",
        "id and address of each controller, `n0-host:port`, separated by semicolons; the address "
        "of controllerDLegerSelfId is that under which brokers reach this one; empty: bindAddress, "
        "or the outward address of the machine, with listenPort",
    )
    controller_d_leger_self_id: str = setting("n0", "id of this controller in that list")
    controller_store_path: str = setting(
        default_store_path,
        "directory of `decisions.json` and the accounts; Apache's default is ~/DLedgerController",
    )
    config_store_path: str = setting(
        "",
        "file that stores settings changed by request, if there is no -c file; a start does not "
        "read it",
    )
    scan_not_active_broker_interval: int = setting(
        200,
        "time between scans for silent replicas; heartbeats say how long one may be silent",
        "ms",
        low=1,
        high=LONG_MAX,
        hot=True,
        group="elections",
    )
    enable_elect_unclean_master: bool = setting(
        False,
        "elect a replica outside the sync state set, or one that lost confirmed messages, if no "
        "other is alive; acknowledged messages are lost then",
        hot=True,
    )
    notify_broker_role_changed: bool = setting(
        True, "tell replicas at once of a new master; they also ask at intervals", hot=True
    )

    @property
    def connects_with_tls(self) -> bool:
        """True if this controller connects to brokers with TLS."""
        return self.use_tls or self.tls_enable or self.tls_server_mode is TlsMode.ENFORCING

    @property
    def peers(self) -> dict[str, str]:
        """Addresses of all controllers by id. Empty if they are not configured.

        Raise ConfigError if the text is invalid.
        """
        found = {}
        for part in filter(None, map(str.strip, self.controller_d_leger_peers.split(";"))):
            id_, dash, address = part.partition("-")
            if not (id_ and dash):
                raise ConfigError(
                    f"controllerDLegerPeers={part[:80]}: expected n0-HOST:PORT, separated by "
                    "semicolons"
                )
            parse_address(address, what="controllerDLegerPeers")
            found[id_] = address
        return found

    def address_at(self, bound: tuple[str, int]) -> str:
        """Return the address under which brokers reach this controller.

        ``bound`` is where it listens.
        """
        configured = self.peers.get(self.controller_d_leger_self_id)
        if configured is not None:
            return configured
        host, port = bound
        return join_address(outward_address() if is_wildcard(host) else host, port)

    def check(self) -> None:
        """Raise ConfigError if settings are invalid or contradict each other."""
        self.check_access()
        self.check_metrics()
        if self.bind_address:
            check_host(self.bind_address, what="bindAddress")
        _ = self.server_tls, self.client_tls
        peers = self.peers
        if peers and self.controller_d_leger_self_id not in peers:
            raise ConfigError(
                f"controllerDLegerSelfId={self.controller_d_leger_self_id} is not in "
                f"controllerDLegerPeers={self.controller_d_leger_peers}"
            )
        if self.etcd is None and len(peers) > 1:
            raise ConfigError(
                f"controllerDLegerPeers={self.controller_d_leger_peers}: several controllers agree "
                "through etcd, and etcdEndpoints is empty; set it, or name one controller"
            )


# 4.9 has no controller.
CONTROLLER_KEYS = key_table(
    ControllerConfig, "controller", "server", "client", "tls", only_5="controller server client tls"
)


def load_controller_config(
    path: Path | str | None = None, overrides: Mapping[str, object] | None = None
) -> ControllerConfig:
    """Return the configuration in a `controller.conf`.

    `overrides` (field name to value) take precedence over the file. Errors are those of
    `load_broker_config`.
    """
    texts: dict[str, str] = {}
    if path is not None:
        texts = properties.read_properties(path, CONTROLLER_KEYS)
    return _built(texts, overrides or {})


def load_controller_in_namesrv(
    path: Path | str | None, overrides: Mapping[str, object]
) -> ControllerConfig:
    """Return the configuration of a controller in a name server, from a `namesrv.conf`.

    As in Apache's, both read the same file, and `listenPort` is that of the name server.
    """
    texts: dict[str, str] = {}
    if path is not None:
        texts = properties.decode(Path(path).read_bytes())
    texts.pop("listenPort", None)
    return _built(texts, overrides)


def _built(texts: Mapping[str, str], overrides: Mapping[str, object]) -> ControllerConfig:
    config = build(ControllerConfig, with_tls_file(texts), overrides)
    config.check()
    own = config.peers.get(config.controller_d_leger_self_id)
    if own is not None and overrides.get("listen_port") is None:
        _, port = parse_address(own, what="controllerDLegerPeers")
        return dataclasses.replace(config, listen_port=port)
    return config
