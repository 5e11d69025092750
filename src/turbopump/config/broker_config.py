"""What a broker can be told: one frozen value, each field one of Apache's keys that this broker
honours.

Its one rule: a field's key, default, unit and meaning stand here and nowhere else; defaults are
Apache 5.3.3's except where the meaning says so. It must not know what reads a field.
"""

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbopump.config.addresses import LOOPBACK, is_wildcard, outward_address, parse_addresses
from turbopump.config.loading import read_properties, report
from turbopump.config.popping import Popping
from turbopump.config.setting import LONG_MAX, build, effective, setting
from turbopump.errors import ConfigError

_MIB = 1024 * 1024
CONSUME_QUEUE_ENTRY_SIZE = 20
BATCH_CONSUME_QUEUE_ENTRY_SIZE = 46
PATH_KEYS = frozenset(
    {
        "storePathRootDir",
        "storePathCommitLog",
        "readOnlyCommitLogStorePaths",
        "storePathConsumeQueue",
        "storePathIndex",
        "storeCheckpoint",
        "abortFile",
    }
)
VIP_OFFSET = 2
"""The VIP port is the listen port minus this; it answers everything but pulls."""


class FlushDiskType(enum.StrEnum):
    """When a send is acknowledged: once in the page cache, or once on the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


def default_broker_name() -> str:
    """The host's name, as Apache's broker calls itself; `DEFAULT_BROKER` when there is none."""
    return os.uname().nodename or "DEFAULT_BROKER"


def default_store_path() -> str:
    """`store` in the home directory."""
    return str(Path.home() / "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Popping):
    """The effective configuration of one broker. Times are in the unit of Apache's key, sizes in
    bytes."""

    # Who it is.
    broker_name: str = field(
        default_factory=default_broker_name,
        metadata=setting("brokerName", "name that clients know it by; the host's name"),
    )
    broker_cluster_name: str = field(
        default="DefaultCluster",
        metadata=setting("brokerClusterName", "cluster that it belongs to"),
    )
    broker_id: int = field(
        default=0,
        metadata=setting(
            "brokerId", "0 is the master", only=(0,), otherwise="slaves come with a later release"
        ),
    )
    broker_role: str = field(
        default="ASYNC_MASTER",
        metadata=setting(
            "brokerRole",
            "its part in replication",
            only=("ASYNC_MASTER",),
            otherwise="other roles come with a later release",
        ),
    )

    # Where it is reached.
    bind_address: str = field(
        default=LOOPBACK,
        metadata=setting("bindAddress", "interface to listen on; Apache's default is 0.0.0.0"),
    )
    listen_port: int = field(
        default=10911,
        metadata=setting(
            "listenPort",
            "port to listen on, 0 for a free one; the VIP port is this − 2",
            high=65535,
        ),
    )
    broker_ip1: str = field(
        default="",
        metadata=setting(
            "brokerIP1",
            "host that clients are told; empty: the bind address, or an outward one "
            "if that is 0.0.0.0",
        ),
    )
    advertised_port: int = field(
        default=0,
        metadata=setting(
            "advertisedPort",
            "port that clients are told; 0: the port it listens on",
            high=65535,
            own=True,
        ),
    )
    broker_ip2: str = field(
        default="",
        metadata=setting(
            "brokerIP2",
            "host of the replication address that name servers are told; empty: as brokerIP1",
        ),
    )
    ha_listen_port: int = field(
        default=0,
        metadata=setting(
            "haListenPort",
            "port of the replication address that name servers are told; 0: listenPort + 1",
            high=65535,
        ),
    )
    namesrv_addr: str = field(
        default="",
        metadata=setting(
            "namesrvAddr", "name servers, `HOST:PORT;HOST:PORT`; else the variable NAMESRV_ADDR"
        ),
    )
    server_channel_max_idle_time_seconds: int = field(
        default=120,
        metadata=setting(
            "serverChannelMaxIdleTimeSeconds", "a silent connection is closed after", "s", low=1
        ),
    )

    use_tls: bool = field(
        default=False,
        metadata=setting(
            "useTLS",
            "TLS towards name servers",
            only=(False,),
            otherwise="TLS comes with a later release",
        ),
    )

    # What it tells the name servers.
    register_name_server_period: int = field(
        default=30_000,
        metadata=setting(
            "registerNameServerPeriod",
            "time between registrations; held within 10 and 60 s",
            "ms",
            low=1,
            held=(10_000, 60_000),
        ),
    )
    register_broker_timeout_mills: int = field(
        default=24_000,
        metadata=setting(
            "registerBrokerTimeoutMills", "longest wait for a name server", "ms", low=1
        ),
    )

    # Topics and groups.
    auto_create_topic_enable: bool = field(
        default=True,
        metadata=setting("autoCreateTopicEnable", "a send to an unknown topic creates it"),
    )
    auto_create_subscription_group: bool = field(
        default=True,
        metadata=setting("autoCreateSubscriptionGroup", "a request of an unknown group creates it"),
    )
    cluster_topic_enable: bool = field(
        default=True,
        metadata=setting(
            "clusterTopicEnable", "the topic named after the cluster can be read and written"
        ),
    )
    broker_topic_enable: bool = field(
        default=True,
        metadata=setting(
            "brokerTopicEnable", "the topic named after the broker can be read and written"
        ),
    )
    default_topic_queue_nums: int = field(
        default=8,
        metadata=setting(
            "defaultTopicQueueNums",
            "most queues of an automatically created topic",
            low=1,
            high=65535,
        ),
    )
    broker_permission: int = field(
        default=6, metadata=setting("brokerPermission", "4 read + 2 write", high=7)
    )
    validate_system_topic_when_update_topic: bool = field(
        default=True,
        metadata=setting(
            "validateSystemTopicWhenUpdateTopic", "system topics cannot be changed by request"
        ),
    )
    clear_retry_topic_when_delete_topic: bool = field(
        default=True,
        metadata=setting(
            "clearRetryTopicWhenDeleteTopic",
            "with a topic go the POP retry topics that its groups have of it",
        ),
    )
    enable_mixed_message_type: bool = field(
        default=False,
        metadata=setting("enableMixedMessageType", "a topic may have message.type=MIXED"),
    )
    enable_topic_message_type_check: bool = field(
        default=False,
        metadata=setting(
            "enableTopicMessageTypeCheck",
            "a message of another type than its topic's message.type is refused; with Apache "
            "only the proxy does so",
            own=True,
        ),
    )
    enable_detail_stat: bool = field(
        default=True,
        metadata=setting(
            "enableDetailStat", "statistics are kept for each queue too, not only for its topic"
        ),
    )

    # Pulling.
    long_polling_enable: bool = field(
        default=True, metadata=setting("longPollingEnable", "hold a pull that finds nothing")
    )
    short_polling_time_mills: int = field(
        default=1000,
        metadata=setting(
            "shortPollingTimeMills",
            "how long it is held if not longPollingEnable",
            "ms",
            high=LONG_MAX,
        ),
    )
    enable_property_filter: bool = field(
        default=True,
        metadata=setting("enablePropertyFilter", "consumers may filter by SQL92 over properties"),
    )
    lite_pull_message_enable: bool = field(
        default=True, metadata=setting("litePullMessageEnable", "serve LITE_PULL_MESSAGE")
    )
    max_transfer_bytes_on_message_in_memory: int = field(
        default=256 * 1024,
        metadata=setting(
            "maxTransferBytesOnMessageInMemory", "most of one pull, hot data", "bytes", low=1
        ),
    )
    max_transfer_count_on_message_in_memory: int = field(
        default=32,
        metadata=setting(
            "maxTransferCountOnMessageInMemory", "most of one pull, hot data", "messages", low=1
        ),
    )
    max_transfer_bytes_on_message_in_disk: int = field(
        default=64 * 1024,
        metadata=setting(
            "maxTransferBytesOnMessageInDisk", "most of one pull, cold data", "bytes", low=1
        ),
    )
    max_transfer_count_on_message_in_disk: int = field(
        default=8,
        metadata=setting(
            "maxTransferCountOnMessageInDisk", "most of one pull, cold data", "messages", low=1
        ),
    )
    access_message_in_memory_max_ratio: int = field(
        default=40,
        metadata=setting(
            "accessMessageInMemoryMaxRatio", "share of memory that counts as hot", "%", high=100
        ),
    )

    # Consumers.
    flush_consumer_offset_interval: int = field(
        default=5000,
        metadata=setting(
            "flushConsumerOffsetInterval", "time between saves of consumer offsets", "ms", low=1
        ),
    )
    notify_consumer_ids_changed_enable: bool = field(
        default=True,
        metadata=setting(
            "notifyConsumerIdsChangedEnable", "tell a group's consumers when one comes or goes"
        ),
    )
    use_server_side_reset_offset: bool = field(
        default=True,
        metadata=setting(
            "useServerSideResetOffset",
            "readers hear of a reset with their next pull; false: it is pushed to them too",
        ),
    )
    channel_expired_timeout: int = field(
        default=120_000,
        metadata=setting(
            "channelExpiredTimeout",
            "a client without heartbeat is forgotten after",
            "ms",
            low=1,
            high=LONG_MAX,
        ),
    )

    # The store.
    store_path_root_dir: str = field(
        default_factory=default_store_path,
        metadata=setting("storePathRootDir", "directory of everything it keeps"),
    )
    mapped_file_size_commit_log: int = field(
        default=1024 * _MIB,
        metadata=setting("mappedFileSizeCommitLog", "size of a commit log file", "bytes", low=4096),
    )
    mapped_file_size_consume_queue: int = field(
        default=300_000 * CONSUME_QUEUE_ENTRY_SIZE,
        metadata=setting(
            "mappedFileSizeConsumeQueue",
            "size of a queue file, rounded up to entries of 20",
            "bytes",
            low=20,
        ),
    )
    mapper_file_size_batch_consume_queue: int = field(
        default=300_000 * BATCH_CONSUME_QUEUE_ENTRY_SIZE,
        metadata=setting(
            "mapperFileSizeBatchConsumeQueue",
            "size of a queue file of topics with `queue.type=BatchCQ`, rounded down to entries "
            "of 46",
            "bytes",
            low=46,
        ),
    )
    flush_disk_type: FlushDiskType = field(
        default=FlushDiskType.ASYNC_FLUSH,
        metadata=setting("flushDiskType", "ASYNC_FLUSH or SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = field(
        default=500,
        metadata=setting(
            "flushIntervalCommitLog", "time between flushes of the commit log", "ms", low=1
        ),
    )
    sync_flush_timeout: int = field(
        default=5000,
        metadata=setting("syncFlushTimeout", "longest wait of a send for the disk", "ms", low=1),
    )
    flush_interval_consume_queue: int = field(
        default=1000,
        metadata=setting(
            "flushIntervalConsumeQueue", "time between flushes of the queues", "ms", low=1
        ),
    )

    message_index_enable: bool = field(
        default=True,
        metadata=setting("messageIndexEnable", "messages are indexed by unique id and keys"),
    )
    max_hash_slot_num: int = field(
        default=5_000_000,
        metadata=setting("maxHashSlotNum", "slots of an index file", "slots", low=1),
    )
    max_index_num: int = field(
        default=20_000_000,
        metadata=setting(
            "maxIndexNum", "room of an index file; one entry is not used", "entries", low=2
        ),
    )
    max_msgs_num_batch: int = field(
        default=64,
        metadata=setting(
            "maxMsgsNumBatch", "messages that a query by key gives at most", "messages", low=1
        ),
    )
    default_query_max_num: int = field(
        default=32,
        metadata=setting(
            "defaultQueryMaxNum",
            "messages that a query by unique id gives at most",
            "messages",
            low=1,
        ),
    )

    enabled_append_prop_crc: bool = field(
        default=True,
        metadata=setting(
            "enabledAppendPropCRC",
            "each entry carries a CRC over all of it, in the property `__CRC32#`; Apache's "
            "default is false",
        ),
    )
    scrub_bytes_per_second: int = field(
        default=10 * _MIB,
        metadata=setting(
            "scrubBytesPerSecond",
            "how fast the whole log is read and checked in the background, once a day; 0: not at "
            "all",
            "bytes",
            own=True,
        ),
    )
    cold_read_share: int = field(
        default=25,
        metadata=setting(
            "coldReadSharePercent",
            "most of the broker's time that goes, while messages are sent, to reading what may "
            "not be in memory",
            "per cent",
            low=1,
            high=100,
            own=True,
        ),
    )

    # What this release cannot do, where ignoring the wish would do harm.
    authentication_enabled: bool = field(
        default=False,
        metadata=setting(
            "authenticationEnabled",
            "access control",
            only=(False,),
            otherwise="access control comes with a later release",
        ),
    )
    authorization_enabled: bool = field(
        default=False,
        metadata=setting(
            "authorizationEnabled",
            "access control",
            only=(False,),
            otherwise="access control comes with a later release",
        ),
    )
    acl_enable: bool = field(
        default=False,
        metadata=setting(
            "aclEnable",
            "access control of 4.x",
            only=(False,),
            otherwise="access control comes with a later release",
        ),
    )
    enable_controller_mode: bool = field(
        default=False,
        metadata=setting(
            "enableControllerMode",
            "election by a controller",
            only=(False,),
            otherwise="replication comes with a later release",
        ),
    )
    enable_d_leger_commit_log: bool = field(
        default=False,
        metadata=setting(
            "enableDLegerCommitLog",
            "a DLedger commit log",
            only=(False,),
            otherwise="its files are not those of this store",
        ),
    )
    store_type: str = field(
        default="default",
        metadata=setting(
            "storeType",
            "kind of queue files",
            only=("default",),
            otherwise="RocksDB queues are not read or written",
        ),
    )
    message_store_plug_in: str = field(
        default="",
        metadata=setting(
            "messageStorePlugIn",
            "Java classes round the store",
            only=("",),
            otherwise="Java classes cannot be loaded",
        ),
    )

    @property
    def namesrv_addresses(self) -> list[str]:
        """The name servers, each `host:port`."""
        return parse_addresses(self.namesrv_addr)

    @property
    def advertised_host(self) -> str:
        """The host that clients are told."""
        if self.broker_ip1:
            return self.broker_ip1
        return outward_address() if is_wildcard(self.bind_address) else self.bind_address


def load_broker_config(
    path: Path | str | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BrokerConfig:
    """The configuration in a `broker.conf`, with `overrides` (field name to value) on top.

    Keys without effect and unknown keys are logged, and stop nothing. Raises `ConfigError` in one
    sentence for a file that cannot be read and for a value that cannot be used.
    """
    texts = read_properties(path) if path is not None else {}
    if path is not None:
        report(path, texts, broker=True)
    if environ.get("NAMESRV_ADDR"):
        texts.setdefault("namesrvAddr", environ["NAMESRV_ADDR"])
    config = build(BrokerConfig, texts, overrides or {})
    _check_together(config)
    return config


def _check_together(config: BrokerConfig) -> None:
    parse_addresses(config.namesrv_addr, what="namesrvAddr")
    _ = (
        config.delete_hours,
        config.commit_log_directories,
        config.read_only_commit_log_directories,
        config.delay_levels_ms,
    )
    if not config.broker_name:
        raise ConfigError("brokerName is empty: a name is expected")
    if not config.store_path_root_dir.strip():
        raise ConfigError(
            "storePathRootDir is empty: the name of a directory is expected; . is the present one"
        )
    for key, value in effective(config).items():
        if key in PATH_KEYS and any(path.strip().startswith("~") for path in value.split(",")):
            raise ConfigError(
                f"{key}={value}: only a shell reads ~ as the home directory; write the whole path"
            )
    if config.mapped_file_size_commit_log < config.max_message_size + 4096:
        raise ConfigError(
            f"mappedFileSizeCommitLog={config.mapped_file_size_commit_log}: a message of "
            "maxMessageSize="
            f"{config.max_message_size} bytes would not fit in one file"
        )
