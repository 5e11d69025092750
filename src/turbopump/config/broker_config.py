"""Settings of a broker. Each field is a key of Apache's that this broker honours, or one of
Turbopump's own keys.

A field declares its key, default, unit, bounds and meaning once; checks, `-p` and
docs/reference/configuration.md derive from them. Defaults are Apache 5.3.3's unless the meaning
says otherwise. The users of a field are unknown here.
"""

import enum
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from turbopump.config.addresses import (
    LOOPBACK,
    bare_host,
    check_host,
    host_of,
    is_loopback,
    is_of_this_machine,
    is_wildcard,
    outward_address,
    parse_addresses,
)
from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.config.keys import key_table
from turbopump.config.metrics import MetricsConfig
from turbopump.config.properties import read_properties
from turbopump.config.setting import LONG_MAX, below_home, build, effective, setting, unserved
from turbopump.config.tls import TlsMode, with_tls_file
from turbopump.errors import ConfigError

CONSUME_QUEUE_ENTRY_SIZE = 20
VIP_OFFSET = 2
"""Difference between the listen port and the smaller VIP port, which answers all requests except
pulls."""
_PATHS = """
    storePathRootDir storePathCommitLog readOnlyCommitLogStorePaths storePathConsumeQueue
    storePathIndex storeCheckpoint abortFile authConfigPath storePathEpochFile
    storePathBrokerIdentity
"""
PATH_KEYS = frozenset(_PATHS.split())
CLOSE_HA_PORT = (
    "set authenticationEnabled=true, or tls.server.mode=enforcing with "
    "tls.server.need.client.auth=require, or name the slaves' addresses in haAllowedPeers"
)
log = logging.getLogger("turbopump.config")
_MIB = 1024 * 1024
_IGNORED = (
    "; Apache's broker ignores this key, and finds the files of such a store only in "
    "storePathRootDir"
)


class FlushDiskType(enum.StrEnum):
    """Point at which the broker acknowledges a sent message.

    - ``ASYNC_FLUSH``: once the message is in the page cache.
    - ``SYNC_FLUSH``: once the message is on the disk.
    """

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    """Role of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class DefaultRequestMode(enum.StrEnum):
    """Mode in which groups read a topic, until request 401 sets another mode."""

    PULL = "PULL"
    POP = "POP"


def default_broker_name() -> str:
    """Return the name of this machine, or `DEFAULT_BROKER` if it has none.

    Apache's broker has the same default name.
    """
    return socket.gethostname() or "DEFAULT_BROKER"


def default_store_path() -> str:
    """Return the path of the directory `store` in the user's home directory."""
    return str(below_home("store", instead="storePathRootDir"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(MetricsConfig):
    """Complete configuration of one broker.

    Times are in the unit of Apache's key, sizes in bytes.
    """

    metrics_prom_exporter_port: int = setting(
        5557, "port of `/metrics`, 0 for a free one", high=65535
    )

    broker_name: str = setting(
        default_broker_name,
        "name that clients know it by, without blanks; the host's name",
        group="identity",
    )
    broker_cluster_name: str = setting(
        "DefaultCluster",
        "cluster that it belongs to; a name as topics have, of at most 108 characters",
    )
    broker_id: int = setting(
        0, "0 is the master, slaves have 1 or more; a master is always 0", high=LONG_MAX
    )
    broker_role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        "its part in replication: ASYNC_MASTER, SYNC_MASTER (sends wait for slaves, see "
        "inSyncReplicas) or SLAVE (a copy of the master of the same brokerName)",
    )

    bind_address: str = setting(
        LOOPBACK,
        "interface to listen on; not set: brokerIP1 if that is an address of this machine; "
        "Apache's default is 0.0.0.0",
        group="addresses",
    )
    listen_port: int = setting(
        10911, "port to listen on, 0 for a free one; the VIP port is this − 2", high=65535
    )
    broker_ip1: str = setting(
        "",
        "host that clients connect to; empty: the bind address, or an outward address if "
        "that is 0.0.0.0",
        key="brokerIP1",
    )
    advertised_port: int = setting(
        0, "port that clients connect to; 0: the listening port", high=65535, own=True
    )
    broker_ip2: str = setting(
        "", "host of the replication address in the registration; empty: brokerIP1", key="brokerIP2"
    )
    ha_listen_port: int = setting(
        0,
        "port of a master for its slaves, registered with name servers; 0: listenPort + 1",
        high=65535,
        group="replication",
    )
    ha_allowed_peers: str = setting(
        "",
        "addresses that may connect to haListenPort, separated by commas; empty: all. "
        "They need no handshake and no TLS there, because Apache's brokers have neither. "
        "With authenticationEnabled, or tls.server.mode=enforcing and "
        "tls.server.need.client.auth=require, peers with a handshake or certificate may "
        "connect from other addresses. On a slave: the address of a master without these",
        own=True,
    )
    ha_master_address: str = setting(
        "", "haListenPort of a slave's master, `HOST:PORT`; empty: ask the name servers"
    )
    ha_send_heartbeat_interval: int = setting(
        5000, "a silent HA connection gets a heartbeat after", "ms", low=100
    )
    ha_housekeeping_interval: int = setting(
        20_000, "a silent HA connection is closed after", "ms", low=200
    )
    ha_transfer_batch_size: int = setting(
        32 * 1024, "most of the log that a master sends in one piece", "bytes", low=1
    )
    ha_flow_control_enable: bool = setting(False, "maxHaTransferByteInSecond counts")
    max_ha_transfer_byte_in_second: int = setting(
        100 * _MIB, "most of the log that one slave is sent in a second", "bytes", low=1
    )
    ha_max_gap_not_in_sync: int = setting(
        256 * _MIB, "a slave that is so far behind is shown as not in sync", "bytes", low=1
    )
    ha_max_time_slave_not_catchup: int = setting(
        0,
        "a SYNC_MASTER stops waiting for a slave that has been behind for this long; without this "
        "key 15000, and 3000 with a controller",
        "ms",
        low=1000,
    )
    in_sync_replicas: int = setting(
        0,
        "SYNC_MASTER: number of brokers, with the master, that must have a message "
        "before it is acknowledged; 1, the default of Apache 5, waits for no slave. "
        "Without this key a SYNC_MASTER waits for one slave, like Apache 4",
        low=1,
        high=32,
    )
    slave_timeout: int = setting(
        3000, "longest wait of a send for slaves; then FLUSH_SLAVE_TIMEOUT", "ms", low=1
    )
    slave_ack_after_flush: bool = setting(
        False, "a slave acknowledges only flushed messages; always so under SYNC_FLUSH", own=True
    )
    slave_read_enable: bool = setting(
        False,
        "send readers of cold data to the slave whichBrokerWhenConsumeSlowly of their "
        "group (accessMessageInMemoryMaxRatio)",
        hot=True,
    )
    enable_controller_mode: bool = setting(
        False,
        "a controller elects the master among the brokers of this brokerName, and gives each its "
        "id; brokerRole and brokerId then have no effect",
        group="controller",
    )
    controller_addr: str = setting("", "controllers, `HOST:PORT;HOST:PORT`")
    fetch_controller_addr_by_dns_lookup: bool = unserved(
        False,
        "controllerAddr is one name with the addresses of all controllers",
        "list the controllers in controllerAddr",
    )
    min_in_sync_replicas: int = setting(
        2,
        "with a controller: sends are refused while fewer replicas than this, with the master, "
        "are in sync; Apache's default is 1",
        low=1,
        high=32,
    )
    all_ack_in_sync_state_set: bool = setting(
        True,
        "with a controller: a message is acknowledged when all replicas in sync have it; false: "
        "when inSyncReplicas have it. Apache's default is false",
    )
    unconfirmed_read_enable: bool = setting(
        False,
        "with a controller: consumers also get messages that the replicas in sync do not have "
        "yet, and that may vanish with the master",
        own=True,
    )
    async_learner: bool = setting(
        False, "this replica copies the log, but is never waited for and never elected"
    )
    broker_election_priority: int = setting(
        2**31 - 1, "of replicas with equal logs, the one with the smallest number is elected"
    )
    broker_heartbeat_interval: int = setting(
        500,
        "time between heartbeats to controllers, and with enableSlaveActingMaster to name servers; "
        "Apache's default is 1000",
        "ms",
        low=50,
    )
    controller_heart_beat_timeout_mills: int = setting(
        3000,
        "a controller takes this broker for dead after this silence; Apache's default is 10000",
        "ms",
        low=200,
    )
    sync_broker_metadata_period: int = setting(
        1000,
        "time between questions to the controller for the master, beside its notices; Apache's "
        "default is 5000",
        "ms",
        low=50,
    )
    sync_controller_metadata_period: int = setting(
        10_000, "time between questions which controller leads", "ms", low=50
    )
    store_path_epoch_file: str = setting(
        "", "file of the epochs; empty: epochFileCheckpoint in storePathRootDir"
    )
    store_path_broker_identity: str = setting(
        "", "file of the id from the controller; empty: brokerIdentity in storePathRootDir"
    )
    namesrv_addr: str = setting(
        "",
        "name servers, `HOST:PORT;HOST:PORT`; else the variable NAMESRV_ADDR",
        group="registration",
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "a silent connection is closed after", "s", low=1
    )

    use_tls: bool = setting(
        False, "connect to name servers with TLS; so does `tls.enable`", key="useTLS"
    )

    register_name_server_period: int = setting(
        30_000,
        "time between registrations; held within 10 and 60 s",
        "ms",
        low=1,
        held=(10_000, 60_000),
    )
    register_broker_timeout_mills: int = setting(
        24_000, "longest wait for a name server", "ms", low=1
    )

    enable_slave_acting_master: bool = setting(
        False,
        "while the master is away, its slave with the smallest id delivers what waits there; set "
        "it at the master and its slaves, and supportActingMaster at the name servers",
        group="acting-master",
    )
    enable_remote_escape: bool = setting(
        False,
        "such a slave sends what is due to another master of the cluster; without it, that waits "
        "for the master",
        hot=True,
    )
    skip_pre_online: bool = setting(
        False,
        "with enableSlaveActingMaster: a master starts without asking its slaves how far they "
        "came, so messages that they delivered come again",
    )
    sync_broker_member_group_period: int = setting(
        1000,
        "with enableSlaveActingMaster: time between questions to name servers for the brokers of "
        "the same brokerName",
        "ms",
        low=10,
    )
    broker_not_active_timeout_millis: int = setting(
        10_000,
        "with enableSlaveActingMaster: a name server takes the broker for dead after this long "
        "without a heartbeat",
        "ms",
        low=10,
        high=LONG_MAX,
    )
    send_heartbeat_timeout_millis: int = setting(
        1000, "longest wait for the answer to a heartbeat", "ms", low=1
    )

    auto_create_topic_enable: bool = setting(
        True, "a send to an unknown topic creates it", hot=True, group="topics"
    )
    auto_create_subscription_group: bool = setting(
        True, "a request of an unknown group creates it", hot=True
    )
    use_static_subscription: bool = setting(
        False,
        "metrics of consumer groups count the topics in each group's settings, and groups that are "
        "not connected too",
        hot=True,
    )
    cluster_topic_enable: bool = setting(
        True, "the topic named after the cluster can be read and written"
    )
    broker_topic_enable: bool = setting(
        True, "the topic named after the broker can be read and written"
    )
    default_topic_queue_nums: int = setting(
        8, "most queues of an automatically created topic", low=1, high=65535
    )
    broker_permission: int = setting(6, "4 read + 2 write", high=7, hot=True)
    validate_system_topic_when_update_topic: bool = setting(
        True, "system topics cannot be changed by request", hot=True
    )
    clear_retry_topic_when_delete_topic: bool = setting(
        True, "with a topic go the POP retry topics that its groups have of it", hot=True
    )
    enable_mixed_message_type: bool = setting(
        False, "a topic may have message.type=MIXED", hot=True
    )
    enable_topic_message_type_check: bool = setting(
        False,
        "a message of another type than its topic's message.type is refused; with Apache only "
        "the proxy does so",
        own=True,
        hot=True,
    )
    enable_detail_stat: bool = setting(
        True, "statistics are kept for each queue too, not only for its topic"
    )

    long_polling_enable: bool = setting(
        True, "hold a pull that finds nothing", hot=True, group="pulling"
    )
    short_polling_time_mills: int = setting(
        1000,
        "time for which a pull is held if not longPollingEnable",
        "ms",
        high=LONG_MAX,
        hot=True,
    )
    enable_property_filter: bool = setting(
        True, "consumers may filter by SQL92 over properties", hot=True
    )
    lite_pull_message_enable: bool = setting(True, "serve LITE_PULL_MESSAGE", hot=True)
    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * 1024, "most of one pull, hot data", "bytes", low=1
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, "most of one pull, hot data", "messages", low=1
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        64 * 1024, "most of one pull, cold data", "bytes", low=1
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, "most of one pull, cold data", "messages", low=1
    )
    access_message_in_memory_max_ratio: int = setting(
        40, "share of memory that counts as hot", "%", high=100
    )

    flush_consumer_offset_interval: int = setting(
        5000, "time between saves of consumer offsets", "ms", low=1, group="consumers"
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, "notify the consumers of a group when a member joins or leaves", hot=True
    )
    use_server_side_reset_offset: bool = setting(
        True,
        "consumers learn of a reset with their next pull; false: the broker also pushes it to them",
        hot=True,
    )
    channel_expired_timeout: int = setting(
        120_000, "a client without heartbeat is forgotten after", "ms", low=1, high=LONG_MAX
    )

    store_path_root_dir: str = setting(
        default_store_path, "directory of everything it keeps", group="store"
    )
    mapped_file_size_commit_log: int = setting(
        1024 * _MIB, "size of a commit log file", "bytes", low=4096
    )
    mapped_file_size_consume_queue: int = setting(
        300_000 * CONSUME_QUEUE_ENTRY_SIZE,
        "size of a queue file, rounded up to entries of 20; disk space is allocated as "
        "it is written",
        "bytes",
        low=20,
    )
    flush_disk_type: FlushDiskType = setting(FlushDiskType.ASYNC_FLUSH, "ASYNC_FLUSH or SYNC_FLUSH")
    flush_interval_commit_log: int = setting(
        500, "time between flushes of the commit log", "ms", low=1
    )
    sync_flush_timeout: int = setting(5000, "longest wait of a send for the disk", "ms", low=1)
    flush_interval_consume_queue: int = setting(
        1000, "time between flushes of the queues", "ms", low=1
    )

    message_index_enable: bool = setting(
        True, "messages are indexed by unique id and keys", group="indexes"
    )
    max_hash_slot_num: int = setting(5_000_000, "slots of an index file", "slots", low=1)
    max_index_num: int = setting(
        20_000_000, "room of an index file; one entry is not used", "entries", low=2
    )
    max_msgs_num_batch: int = setting(
        64, "maximum messages in the answer to a query by key", "messages", low=1, hot=True
    )
    default_query_max_num: int = setting(
        32, "maximum messages in the answer to a query by unique id", "messages", low=1, hot=True
    )

    enabled_append_prop_crc: bool = setting(
        True,
        "each entry carries a CRC over all of it, in the property `__CRC32#`; Apache's default "
        "is false",
        key="enabledAppendPropCRC",
    )
    scrub_bytes_per_second: int = setting(
        10 * _MIB,
        "how fast the whole log is read and checked in the background, once a day; 0: not at all",
        "bytes",
        own=True,
    )
    connection_memory_max: int = setting(
        128 * _MIB,
        "memory that all connections may hold together: answers that are not read, frames that do "
        "not end, requests that wait (a held pull: 1 KiB); beyond it the one that holds most for "
        "longest is closed",
        "bytes",
        low=32 * _MIB,
        own=True,
    )
    cold_read_share: int = setting(
        25,
        "maximum share of the broker's time for reading cold data while messages are sent",
        "per cent",
        key="coldReadSharePercent",
        low=1,
        high=100,
        own=True,
    )

    # Features that this release lacks, if ignoring the setting would do harm.
    acl_enable: bool = unserved(
        False,
        "access control of 4.x",
        "authenticationEnabled, authorizationEnabled and migrateAuthFromV1Enabled do the same with "
        "plain_acl.yml; `turbopump auth import` turns it into users and policies",
        group="unserved",
    )
    enable_d_leger_commit_log: bool = unserved(
        False, "a DLedger commit log", "its files are not those of this store"
    )
    store_type: str = unserved(
        "default", "kind of queue files", "RocksDB queues are not read or written"
    )
    message_store_plug_in: str = unserved(
        "", "Java classes round the store", "Java classes cannot be loaded"
    )

    store_path_commit_log: str = setting(
        "",
        "directories of the commit log, separated by commas: new files go round those that are "
        "not full; empty: commitlog in storePathRootDir",
        group="directories",
    )
    read_only_commit_log_store_paths: str = setting(
        "", "directories of the commit log in which no new file is made"
    )
    store_path_consume_queue: str = setting("", "directory of the queues" + _IGNORED, own=True)
    store_path_index: str = setting("", "directory of the index files" + _IGNORED, own=True)
    store_checkpoint: str = setting("", "the checkpoint file" + _IGNORED, own=True)
    abort_file: str = setting("", "the file that marks an unclean stop" + _IGNORED, own=True)

    file_reserved_time: int = setting(
        72,
        "age at which a commit log file is deleted, counted from its last write",
        "hours",
        hot=True,
        group="retention",
    )
    delete_when: str = setting(
        "04",
        "hours of the local day in which such files are deleted, separated by semicolons",
        hot=True,
    )
    clean_resource_interval: int = setting(10_000, "time between rounds of deletion", "ms", low=100)
    delete_file_batch_max: int = setting(
        10, "most commit log files deleted in a round", "files", low=1, hot=True
    )
    delete_commit_log_files_interval: int = setting(100, "pause between two of them", "ms")
    delete_consume_queue_files_interval: int = setting(
        100, "pause between two lots (of up to 50) of queue files", "ms"
    )

    disk_max_used_space_ratio: int = setting(
        75,
        "above it expired files are deleted at any hour; held within 10 and 95",
        "%",
        held=(10, 95),
        hot=True,
        group="space",
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "above this ratio the oldest files are deleted at any age; limited to 30 to 85",
        "%",
        held=(30, 85),
        hot=True,
    )
    disk_space_warning_level_ratio: int = setting(
        90,
        "above it sends are refused, until diskSpaceCleanForciblyRatio is reached again; held "
        "within 35 and 90",
        "%",
        held=(35, 90),
        hot=True,
    )
    clean_file_forcibly_enable: bool = setting(
        True, "the oldest files may be deleted before fileReservedTime if space is short", hot=True
    )
    disk_free_space_min: int = setting(
        0,
        "not 0: free bytes are judged instead of the three ratios; sends are refused below it "
        "until 1.5 times as much is free, the oldest files are deleted below 1.5 times, expired "
        "ones at any hour below 2.5 times",
        "bytes",
        high=LONG_MAX,
        own=True,
        hot=True,
    )

    message_delay_level: str = setting(
        DEFAULT_LEVELS,
        "delays of levels 1, 2, … in s, m, h or d, separated by spaces",
        group="delayed",
    )
    flush_delay_offset_interval: int = setting(
        250,
        "time between saves of config/delayOffset.json while delayed messages are delivered; after "
        "a kill, those delivered in it are delivered again; Apache's default is 10000",
        "ms",
        low=100,
    )

    timer_wheel_enable: bool = setting(
        True, "messages may ask for any time of delivery; off: such messages are refused"
    )
    timer_max_delay_sec: int = setting(
        40 * 365 * 86_400,
        "how far ahead that time may be; Apache's default is 259200, three days",
        "s",
        low=1,
    )
    timer_precision_ms: int = setting(
        1000,
        "maximum lateness of a delivery; after a change, waiting messages are put into a "
        "new timerlog and timerwheel at the start",
        "ms",
        only=(100, 200, 500, 1000),
        otherwise="as Apache's broker counts any other value as one of these",
    )
    timer_roll_window_slot: int = setting(
        2 * 86_400,
        "a message that is further ahead is stored again on the way, each time; less than 2 or "
        "more than 604740 count as 604740",
        "slots",
    )
    timer_flush_interval_ms: int = setting(
        500,
        "time between syncs of timerlog and timerwheel; after a kill, messages delivered in it "
        "may be delivered again; Apache's default is 1000",
        "ms",
        low=10,
    )
    mapped_file_size_timer_log: int = setting(
        100 * 1024 * 1024, "size of a file of the timer log", "bytes", low=1024
    )
    recall_message_enable: bool = setting(
        True, "a message may be recalled before its time; off by default with Apache", hot=True
    )

    max_message_size: int = setting(
        4 * _MIB, "largest message body", "bytes", low=1, high=512 * _MIB, hot=True, group="sending"
    )
    start_accept_send_request_time_stamp: int = setting(
        0, "sends are refused before", "ms since 1970", high=LONG_MAX, hot=True
    )
    send_thread_pool_queue_capacity: int = setting(
        10_000, "sends that may wait to be stored; more are refused", "messages", low=1, hot=True
    )
    wait_time_mills_in_send_queue: int = setting(
        200, "a send that waits longer is refused", "ms", low=1, high=LONG_MAX, hot=True
    )
    broker_fast_failure_enable: bool = setting(
        True, "false: a send may wait as long as it takes", hot=True
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000,
        "sends behind an append, or the making of a file, that takes longer are refused",
        "ms",
        low=1,
        high=LONG_MAX,
        hot=True,
    )
    region_id: str = setting("DefaultRegion", "region named in answers to sends")
    trace_on: bool = setting(True, "clients may trace; announced in answers to sends", hot=True)
    trace_topic_enable: bool = setting(
        True, "the topic of traces is there from the start; off by default with Apache"
    )
    msg_trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC", "the topic of traces that is there from the start"
    )
    store_reply_message_enable: bool = setting(
        True, "replies to requests are kept in the cluster's reply topic, too", hot=True
    )

    reject_transaction_message: bool = setting(
        False, "messages of transactions are refused", hot=True, group="transactions"
    )
    transaction_time_out: int = setting(
        6000, "a transaction is not asked about before", "ms", low=1, high=LONG_MAX, hot=True
    )
    transaction_check_max: int = setting(
        15,
        "number of checks of a transaction, after which it goes to TRANS_CHECK_MAX_TIME_TOPIC",
        low=1,
        hot=True,
    )
    transaction_check_interval: int = setting(
        30_000, "time between rounds of asking", "ms", low=1, high=LONG_MAX, hot=True
    )
    transaction_op_msg_max_size: int = setting(
        4096, "size of one record of ended transactions", "bytes"
    )
    transaction_op_batch_interval: int = setting(
        3000, "that a transaction has ended is written down within", "ms"
    )

    cold_data_flow_control_enable: bool = setting(
        False, "slow down groups that read much cold data", group="cold-reads"
    )
    data_read_ahead_enable: bool = setting(
        True, "the system may read ahead in the log's files (2004)"
    )
    cg_cold_read_threshold: int = setting(
        3 * _MIB,
        "cold data that a group may read in 5 s, unless 2001 sets another value",
        "bytes",
        high=LONG_MAX,
    )
    global_cold_read_threshold: int = setting(
        100 * _MIB, "cold data that all groups together may read in 5 s", "bytes", high=LONG_MAX
    )

    revive_queue_num: int = setting(
        8,
        "queues of the topic of checkpoints and acknowledgements",
        "queues",
        low=1,
        high=998,
        group="popping",
    )
    pop_polling_size: int = setting(1024, "pops that may wait for one queue of a group", "pops")
    max_pop_polling_size: int = setting(100_000, "pops that may wait in all", "pops")
    pop_from_retry_probability: int = setting(
        20, "percentage of pops that take the retry topic before the topic", "%", high=100, hot=True
    )
    enable_retry_topic_v2: bool = setting(
        False, "unacknowledged messages go to `%RETRY%group+topic` instead of `%RETRY%group_topic`"
    )
    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        True, "if enableRetryTopicV2, `%RETRY%group_topic` is popped all the same"
    )
    pop_response_return_actual_retry_topic: bool = setting(
        False, "messages that come again are answered with their retry topic, not the topic"
    )
    enable_pop_message_threshold: bool = setting(False, "popInflightMessageThreshold counts")
    pop_inflight_message_threshold: int = setting(
        10_000,
        "a group that has popped more than that of a queue, and neither acknowledged it nor let "
        "its time pass, gets no more of it",
        "messages",
        high=LONG_MAX,
    )
    init_pop_offset_by_check_msg_in_mem: bool = setting(
        True,
        "a new group that wants to start at the end starts at the first message if that "
        "is still in memory",
    )

    server_load_balancer_enable: bool = setting(
        True,
        "false: every consumer that asks the broker gets all queues",
        hot=True,
        group="assignment",
    )
    load_balance_poll_name_server_interval: int = setting(
        30_000, "time for which a route of an assignment is valid", "ms", low=1
    )
    default_message_request_mode: DefaultRequestMode = setting(
        DefaultRequestMode.PULL, "PULL or POP: default way of groups to read a topic"
    )
    default_pop_share_queue_num: int = setting(
        -1,
        "if defaultMessageRequestMode=POP: how many other consumers share the queues of one; 0 "
        "or less: all share all",
        low=-1,
    )

    def __post_init__(self) -> None:
        if not self.ha_max_time_slave_not_catchup:
            silence = 3000 if self.enable_controller_mode else 15_000
            object.__setattr__(self, "ha_max_time_slave_not_catchup", silence)
        if not self.in_sync_replicas:  # not set: a slave may become a SYNC_MASTER
            counts = self.broker_role is not BrokerRole.ASYNC_MASTER
            object.__setattr__(self, "in_sync_replicas", 2 if counts else 1)

    @property
    def is_slave(self) -> bool:
        """True if this broker is a slave, which copies a master."""
        return self.broker_role == BrokerRole.SLAVE

    @property
    def may_act(self) -> bool:
        """True if this broker is a slave that delivers what waits while its master is away."""
        enabled = self.enable_slave_acting_master and not self.enable_controller_mode
        return self.is_slave and enabled

    @property
    def asks_slaves(self) -> bool:
        """True if this broker is a master that asks its slaves at its start how far they came."""
        return not self.is_slave and self.enable_slave_acting_master and not self.skip_pre_online

    @property
    def id(self) -> int:
        """Id of the broker: 0 for a master, else the value of `brokerId`.

        RocketMQ: ``BrokerStartup`` sets the id of a master in the same way.
        """
        if not self.is_slave:
            return 0
        return self.broker_id

    @property
    def slave_acks(self) -> int:
        """Number of slaves that need a copy of a message before the broker acknowledges the
        send."""
        if self.broker_role != BrokerRole.SYNC_MASTER:
            return 0
        if self.enable_controller_mode:
            return max(self.min_in_sync_replicas - 1, 1)  # all in the set count, see replication/
        return self.in_sync_replicas - 1

    @property
    def allowed_peers(self) -> frozenset[str]:
        """Addresses that may connect to the replication port. An empty set allows all addresses.

        The setting is `haAllowedPeers`.
        """
        return frozenset(filter(None, map(str.strip, self.ha_allowed_peers.split(","))))

    @property
    def ha_port_is_open(self) -> bool:
        """True if any other machine can connect to the replication port and copy the log."""
        closed = self.authentication_enabled or self.certificates_required or self.allowed_peers
        return not closed and not is_loopback(self.bind_address)

    @property
    def namesrv_addresses(self) -> list[str]:
        """Addresses of the name servers, each `host:port`."""
        return parse_addresses(self.namesrv_addr)

    @property
    def controller_addresses(self) -> list[str]:
        """Addresses of the controllers, each `host:port`."""
        return parse_addresses(self.controller_addr, what="controllerAddr")

    @property
    def advertised_host(self) -> str:
        """Host for connections from clients. The broker registers this host with name servers."""
        if self.broker_ip1:
            return bare_host(self.broker_ip1)
        if is_wildcard(self.bind_address):
            return outward_address()
        return self.bind_address

    @property
    def connects_with_tls(self) -> bool:
        """True if the broker connects to name servers with TLS."""
        return self.use_tls or self.tls_enable or self.tls_server_mode is TlsMode.ENFORCING

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each delay level, in ms.

        The levels are those of `messageDelayLevel`. Raise ConfigError if the text is invalid.
        """
        return parse_delay_levels(self.message_delay_level)

    @property
    def commit_log_directories(self) -> tuple[Path, ...]:
        """Directories in which the broker creates segments of the log.

        If there are none, segments go to a directory below the store's root. Raise ConfigError if
        the text of the setting is invalid.
        """
        return _directories("storePathCommitLog", self.store_path_commit_log)

    @property
    def read_only_commit_log_directories(self) -> tuple[Path, ...]:
        """Directories with old segments of the log. The broker creates no segments there.

        Raise ConfigError if the text of the setting is invalid.
        """
        return _directories("readOnlyCommitLogStorePaths", self.read_only_commit_log_store_paths)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day at which the broker may delete expired files.

        They are those of `deleteWhen`. Raise ConfigError if the text is invalid.
        """
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        if not hours or not all(
            hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours
        ):
            raise ConfigError(
                f"deleteWhen={self.delete_when}: expected hours from 00 to 23, "
                "separated by semicolons"
            )
        return frozenset(map(int, hours))


BROKER_KEYS = key_table(BrokerConfig, "broker", "store", "server", "client", "printed", "tls")


def load_broker_config(
    path: Path | str | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BrokerConfig:
    """Return the configuration in a `broker.conf`.

    `overrides` (field name to value) take precedence over the file. The log reports unknown keys,
    and keys without effect whose value is not Apache's default.

    Raise ConfigError, with a message of one sentence, in three cases: the file cannot be read, a
    value is invalid, or `brokerIP1` is set and the listen interface cannot be derived from it.
    """
    overrides = overrides or {}
    texts: dict[str, str] = {}
    if path is not None:
        texts = read_properties(path, BROKER_KEYS)
    if environ.get("NAMESRV_ADDR"):
        texts.setdefault("namesrvAddr", environ["NAMESRV_ADDR"])
    _drop_role_under_controller(texts)
    config = build(BrokerConfig, with_tls_file(texts), overrides)
    check_together(config)
    if "bindAddress" not in texts and overrides.get("bind_address") is None:
        config = replace(config, bind_address=_bind_address_for(bare_host(config.broker_ip1)))
    if config.broker_role is BrokerRole.SYNC_MASTER and "inSyncReplicas" not in texts:
        log.warning(
            "a SYNC_MASTER without inSyncReplicas waits for one slave, like Apache 4; Apache 5 "
            "waits for none. While no slave is in sync, sends are stored and answered "
            "SLAVE_NOT_AVAILABLE. Set inSyncReplicas explicitly inSyncReplicas=%d",
            config.in_sync_replicas,
        )
    return config


def _drop_role_under_controller(texts: dict[str, str]) -> None:
    """Remove the role and the id from the texts of a file if a controller gives them.

    Apache's examples have `brokerId=-1` or `brokerRole=SLAVE` there.
    """
    if texts.get("enableControllerMode", "").strip().lower() != "true":
        return
    for key in ("brokerRole", "brokerId"):
        if key in texts:
            log.info(
                "key has no effect, because the controller decides key=%s value=%s",
                key,
                texts.pop(key),
            )


def _bind_address_for(advertised: str) -> str:
    """Return the interface to listen on if ``bindAddress`` is not set.

    This is the advertised address, or loopback if none is advertised. Raise ConfigError if this
    machine does not have that address, as behind NAT or in Kubernetes.
    """
    if not advertised or is_loopback(advertised):
        return LOOPBACK
    if is_of_this_machine(advertised):
        return advertised
    raise ConfigError(
        f"brokerIP1={advertised} (--advertise) is not an address of this machine, and bindAddress "
        "is not set: set bindAddress=0.0.0.0 (--host) to listen on every interface, or the address "
        "of one"
    )


def check_together(config: BrokerConfig) -> None:
    """Check the rules for combinations of settings.

    Raise ConfigError if the configuration breaks a rule.
    """
    for address in parse_addresses(config.namesrv_addr, what="namesrvAddr"):
        check_host(host_of(address), what="namesrvAddr")
    for key, host in (
        ("brokerIP1", config.broker_ip1),
        ("brokerIP2", config.broker_ip2),
        ("bindAddress", config.bind_address),
    ):
        if host:
            check_host(host, what=key)
    config.check_access()
    config.check_metrics()
    _ = config.delete_hours, config.delay_levels_ms
    _ = config.server_tls, config.client_tls
    _ = config.commit_log_directories, config.read_only_commit_log_directories
    _check_controller_mode(config)
    for address in parse_addresses(config.ha_master_address, what="haMasterAddress"):
        check_host(host_of(address), what="haMasterAddress")
    if config.is_slave and config.broker_id < 1:
        raise ConfigError(
            f"brokerRole=SLAVE with brokerId={config.broker_id}: a slave's brokerId is 1 or more, "
            "another one for each slave of a master"
        )
    if config.is_slave and not (
        config.namesrv_addresses or config.ha_master_address or config.enable_controller_mode
    ):
        raise ConfigError(
            "brokerRole=SLAVE needs namesrvAddr or haMasterAddress to find its master: "
            "set one of them"
        )
    if not config.broker_name:
        raise ConfigError("brokerName is empty: expected a name")
    if not config.store_path_root_dir.strip():
        raise ConfigError(
            "storePathRootDir is empty: expected the name of a directory; . is the present one"
        )
    for key, value in effective(config).items():
        if key not in PATH_KEYS:
            continue
        paths = [path.strip() for path in value.split(",")]
        if any(path.startswith("~") for path in paths):
            raise ConfigError(
                f"{key}={value}: only a shell reads ~ as the home directory; write the whole path"
            )
        if any(re.match(r"[A-Za-z]:[\\/]", path) for path in paths):
            raise ConfigError(f"{key}={value}: this is a path of Windows; write one of this system")
    if config.mapped_file_size_commit_log < config.max_message_size + 4096:
        raise ConfigError(
            f"mappedFileSizeCommitLog={config.mapped_file_size_commit_log}: a message of "
            f"maxMessageSize={config.max_message_size} bytes would not fit in one file"
        )


def _check_controller_mode(config: BrokerConfig) -> None:
    """Check the settings of a broker with a controller.

    Raise ConfigError if they break a rule.
    """
    for address in config.controller_addresses:
        check_host(host_of(address), what="controllerAddr")
    if not config.enable_controller_mode:
        return
    if not config.controller_addresses:
        raise ConfigError(
            "enableControllerMode=true needs controllerAddr: name the controllers, HOST:PORT;…"
        )
    if config.ha_master_address:
        raise ConfigError(
            f"haMasterAddress={config.ha_master_address}: with enableControllerMode the "
            "controller names the master; leave the key out"
        )
    if config.controller_heart_beat_timeout_mills < 2 * config.broker_heartbeat_interval:
        raise ConfigError(
            f"controllerHeartBeatTimeoutMills={config.controller_heart_beat_timeout_mills}: "
            "expected at least twice brokerHeartbeatInterval="
            f"{config.broker_heartbeat_interval}, because one late heartbeat would cost a master"
        )
    if config.read_only_commit_log_store_paths:
        raise ConfigError(
            "readOnlyCommitLogStorePaths cannot be used with enableControllerMode: a slave may "
            "have to cut the end of its log"
        )


def _directories(key: str, text: str) -> tuple[Path, ...]:
    """Return the directories that a setting names.

    Raise ConfigError if two names mean the same directory, because each of its segments would be
    found twice.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        same = found.setdefault(os.path.realpath(part), part)
        if same is not part:
            both = f"{same} and {part}, which are the same directory"
            if same == part:
                both = f"{part} twice"
            raise ConfigError(f"{key} names {both}: name it once")
    return tuple(map(Path, found.values()))
