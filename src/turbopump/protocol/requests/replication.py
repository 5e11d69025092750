"""Requests of slaves to a master, and of tools to both: 43 GET_ALL_CONSUMER_OFFSET, 45
GET_ALL_DELAY_OFFSET, 402 GET_ALL_MESSAGE_REQUEST_MODE, 905 NOTIFY_MIN_BROKER_ID_CHANGE, 906
EXCHANGE_BROKER_HA_INFO, 907 GET_BROKER_HA_STATUS, 908 RESET_MASTER_FLUSH_OFFSET, 60
GET_TIMER_CHECK_POINT, 61 GET_TIMER_METRICS.

Three fields are ours, and Apache's brokers ignore them. ``known_version``: the version of a table
that the slave has; the answer has its own version in the header, and in the body the changes since:
nothing, some entries (the header then says so), or the whole table. ``held``: an answer without
changes waits for a change, half a second at most. ``order_info``: the slave wants the file
`consumerOrderInfo.json` instead of the offsets.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests.topics import DataVersion

TABLE_VERSION: Final = "tableVersion"
"""Field of an answer: the version of the table in it."""
PARTIAL: Final = "partial"
"""Field of an answer: its body has only what has changed."""
HELD: Final = "held"
"""Field of an answer that was allowed to wait."""
LOG_END: Final = "logEnd"
"""Field of an answer: end of the master's log when the answer was made."""
LOG_START: Final = "logStart"
"""Field of an answer: first offset of the log."""
DELETED: Final = "deletedUntil"
"""Field of an answer with all topics: JSON, up to which offset of the log the messages of a topic
were deleted with it."""
PROVED: Final = "proved"
NOT_PROVED: Final = "not proved"
COMPARING: Final = "comparing"
SLAVES: Final = "haSlaves"
"""Key of the runtime table: a master of ours has it."""
COMPARES: Final = "haCompares"
"""Key of the runtime table: a master that compares its log with a slave's has it. Our older ones
do not, and are compared with as Apache's."""


class GetTimerCheckpoint(Request[None], kw_only=True):
    """Ask for the progress of the timers; the answer's body is seven longs."""

    code = RequestCode.GET_TIMER_CHECK_POINT


class TimerMetrics(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to 61: how many messages wait for each topic. This broker does not count them by
    topic."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, dict[str, Int64]] = {}


class GetTimerMetrics(Request[TimerMetrics], kw_only=True):
    """Ask for the number of waiting timer messages of each topic."""

    code = RequestCode.GET_TIMER_METRICS


class GetAllConsumerOffset(Request[None], kw_only=True):
    """The offsets of all groups; the answer's body is a ``ConsumerOffsetTable``. ``order_info``,
    ours: what ordered pops have taken; an ``OrderInfoTable``. ``locks``, ours: who holds which
    queue; a ``HeldLocks``."""

    code = RequestCode.GET_ALL_CONSUMER_OFFSET
    known_version: str | None = None
    order_info: bool | None = None
    locks: bool | None = None
    held: bool | None = None


class GetAllDelayOffset(Request[None], kw_only=True):
    """Ask for the progress of each delay level; the answer's body is a ``DelayOffsetTable``."""

    code = RequestCode.GET_ALL_DELAY_OFFSET


class GetAllMessageRequestMode(Request[None], kw_only=True):
    """Ask which groups pull and which pop; the answer's body is a ``MessageRequestModeTable``."""

    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    known_version: str | None = None
    held: bool | None = None


class NotifyMinBrokerIdChange(Request[None], kw_only=True):
    """A name server says which replica acts for a master that is gone: passed over, as by Apache's
    broker without `enableSlaveActingMaster`."""

    code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeHAInfoReply(Reply, kw_only=True):
    """Addresses of a master and its HA port, and the end of its flushed log."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHAInfo(Request[ExchangeHAInfoReply], kw_only=True):
    """Without fields: ask a master for its HA port. With an address: give one to a slave."""

    code = RequestCode.EXCHANGE_BROKER_HA_INFO
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class HAConnectionRuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """A slave as its master sees it. Offsets are those of the log."""

    addr: str | None = None
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0
    proof: str | None = None
    """Ours: whether its log was found to be the beginning of its master's, ``PROVED``,
    ``NOT_PROVED`` or ``COMPARING``; None: of a master of Apache's."""


class HAClientRuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """A master as its slave sees it. Times are epoch milliseconds."""

    master_addr: str | None = None
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    fault: str | None = None
    """Ours: why it does not copy."""


class HARuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """State of replication (907)."""

    master: bool = False
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = []
    ha_client_runtime_info: HAClientRuntimeInfo | None = msgspec.field(
        default_factory=HAClientRuntimeInfo
    )


class GetBrokerHaStatus(Request[HARuntimeInfo], kw_only=True):
    """Ask for the state of replication."""

    code = RequestCode.GET_BROKER_HA_STATUS


class ResetMasterFlushOffset(Request[None], kw_only=True):
    """Send a slave the end of its master's flushed log. Our slave ignores it; Apache's slave keeps
    the number and shows it in its answer to 907."""

    code = RequestCode.RESET_MASTER_FLUSH_OFFSET
    master_flush_offset: Int64
