"""Settings of a name server. Each field is one of Apache's keys that this name server honours,
declared as in `broker_config.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turbopump.config.addresses import LOOPBACK, check_host
from turbopump.config.controller_config import CONTROLLER_KEYS
from turbopump.config.keys import key_table
from turbopump.config.metrics import MetricsConfig
from turbopump.config.properties import read_properties
from turbopump.config.setting import LONG_MAX, below_home, build, setting
from turbopump.config.tls import with_tls_file


def default_kv_config_path() -> str:
    """Return the path of `namesrv/kvConfig.json` in the home directory. Apache's name server has
    the same default."""
    return str(below_home("namesrv", "kvConfig.json", instead="kvConfigPath"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(MetricsConfig):
    """Complete configuration of one name server.

    Times are in the unit of Apache's key.
    """

    namesrv_metrics_port: int = setting(
        5558,
        "port of `/metrics`, 0 for a free one; a broker on the same machine has "
        "metricsPromExporterPort",
        high=65535,
        own=True,
    )

    bind_address: str = setting(
        LOOPBACK, "interface to listen on; Apache's default is 0.0.0.0", group="server"
    )
    listen_port: int = setting(9876, "port to listen on, 0 for a free one", high=65535)
    server_channel_max_idle_time_seconds: int = setting(
        120, "a silent connection is closed after", "s", low=1
    )
    connection_memory_max: int = setting(
        128 << 20,
        "memory that all connections may hold together: answers that are not read, frames that do "
        "not end, requests that wait (a held pull: 1 KiB); beyond it the one that holds most for "
        "longest is closed",
        "bytes",
        low=32 << 20,
        own=True,
    )
    scan_not_active_broker_interval: int = setting(
        5000,
        "time between scans for silent brokers; 4.x has 10 s",
        "ms",
        low=1,
        high=LONG_MAX,
        hot=True,
        group="routes",
    )
    enable_all_topic_list: bool = setting(True, "serve the list of all topics", hot=True)
    enable_topic_list: bool = setting(
        True, "serve the lists of topics by cluster and by unit", hot=True
    )
    need_wait_for_service: bool = setting(
        False, "refuse route queries for a while after the start", hot=True
    )
    wait_seconds_for_service: int = setting(45, "how long", "s", hot=True)
    delete_topic_with_broker_registration: bool = setting(
        False, "topics missing from a registration are removed from that broker"
    )
    support_acting_master: bool = setting(
        False, "where a master is gone, its slave with the smallest id is shown as one"
    )
    notify_min_broker_id_changed: bool = setting(
        False,
        "tell brokers with enableSlaveActingMaster at once when another of them has the smallest "
        "id; without it they notice it within syncBrokerMemberGroupPeriod",
        hot=True,
    )
    order_message_enable: bool = setting(
        False, "routes carry the queues of ordered topics (ORDER_TOPIC_CONFIG)", hot=True
    )
    return_order_topic_config_to_broker: bool = setting(
        True, "send brokers the list of ordered topics", hot=True
    )
    kv_config_path: str = setting(default_kv_config_path, "file of the KV configuration")
    config_store_path: str = setting(
        "",
        "file that stores settings changed by request, if there is no -c file; a start does not "
        "read it",
    )
    enable_controller_in_namesrv: bool = setting(
        False, "run a controller too; its keys are those of `controller.conf`, in the same file"
    )


# The name server of 4.9 reads no NettyClientConfig.
NAMESRV_KEYS = key_table(NamesrvConfig, "namesrv", "server", "client", "tls", only_5="client")


def load_namesrv_config(
    path: Path | str | None = None, overrides: Mapping[str, object] | None = None
) -> NamesrvConfig:
    """Return the configuration in a `namesrv.conf`.

    `overrides` (field name to value) take precedence over the file. Errors are those of
    `load_broker_config`.
    """
    texts: dict[str, str] = {}
    if path is not None:
        # Keys of a controller in this name server are known, and read elsewhere.
        texts = read_properties(path, {**CONTROLLER_KEYS, **NAMESRV_KEYS})
    config = build(NamesrvConfig, with_tls_file(texts), overrides or {})
    config.check_access()
    config.check_metrics()
    if config.bind_address:
        check_host(config.bind_address, what="bindAddress")
    _ = config.server_tls
    return config
