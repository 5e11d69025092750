"""What a name server can be told: one frozen value, each field one of Apache's keys that this name
server honours.

Its one rule: a field's key, default, unit and meaning stand here and nowhere else; defaults are
Apache 5.3.3's except where the meaning says so. It must not know what reads a field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbopump.config.addresses import LOOPBACK
from turbopump.config.properties import read_properties, report
from turbopump.config.setting import LONG_MAX, build, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """The effective configuration of one name server. Times are in the unit of Apache's key."""

    bind_address: str = field(
        default=LOOPBACK,
        metadata=setting("bindAddress", "interface to listen on; Apache's default is 0.0.0.0"),
    )
    listen_port: int = field(
        default=9876,
        metadata=setting("listenPort", "port to listen on, 0 for a free one", high=65535),
    )
    server_channel_max_idle_time_seconds: int = field(
        default=120,
        metadata=setting(
            "serverChannelMaxIdleTimeSeconds", "a silent connection is closed after", "s", low=1
        ),
    )
    scan_not_active_broker_interval: int = field(
        default=5000,
        metadata=setting(
            "scanNotActiveBrokerInterval",
            "time between scans for silent brokers; 4.x has 10 s",
            "ms",
            low=1,
            high=LONG_MAX,
        ),
    )
    enable_all_topic_list: bool = field(
        default=True, metadata=setting("enableAllTopicList", "serve the list of all topics")
    )
    enable_topic_list: bool = field(
        default=True,
        metadata=setting("enableTopicList", "serve the lists of topics by cluster and by unit"),
    )
    need_wait_for_service: bool = field(
        default=False,
        metadata=setting("needWaitForService", "refuse route queries for a while after the start"),
    )
    wait_seconds_for_service: int = field(
        default=45, metadata=setting("waitSecondsForService", "how long", "s")
    )
    delete_topic_with_broker_registration: bool = field(
        default=False,
        metadata=setting(
            "deleteTopicWithBrokerRegistration",
            "topics missing from a registration are removed from that broker",
        ),
    )
    support_acting_master: bool = field(
        default=False,
        metadata=setting(
            "supportActingMaster",
            "where a master is gone, its slave with the smallest id is shown as one",
        ),
    )
    enable_controller_in_namesrv: bool = field(
        default=False,
        metadata=setting(
            "enableControllerInNamesrv",
            "run a controller too",
            only=(False,),
            otherwise="the controller comes with a later release",
        ),
    )


def load_namesrv_config(
    path: Path | str | None = None, overrides: Mapping[str, object] | None = None
) -> NamesrvConfig:
    """The configuration in a `namesrv.conf`, with `overrides` (field name to value) on top; errors
    as `load_broker_config`."""
    texts = read_properties(path) if path is not None else {}
    if path is not None:
        report(path, texts, broker=False)
    return build(NamesrvConfig, texts, overrides or {})
