"""Requests about replication. Slaves send them to a master, and tools to both.

- 43 GET_ALL_CONSUMER_OFFSET, 45 GET_ALL_DELAY_OFFSET, 402 GET_ALL_MESSAGE_REQUEST_MODE
- 60 GET_TIMER_CHECK_POINT, 61 GET_TIMER_METRICS
- 905 NOTIFY_MIN_BROKER_ID_CHANGE, 906 EXCHANGE_BROKER_HA_INFO, 907 GET_BROKER_HA_STATUS,
  908 RESET_MASTER_FLUSH_OFFSET

Three fields are ours; Apache's brokers ignore them.

- ``known_version``: the version of a table that the slave has. The header of the answer has
  the master's version, the body the changes since: nothing, some entries (marked in the
  header), or the whole table.
- ``held``: the master waits up to half a second for a change before it answers without one.
- ``order_info``: the slave wants the file `consumerOrderInfo.json` instead of the offsets.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests.topics import DataVersion

TABLE_VERSION: Final = "tableVersion"
"""Header field of an answer: version of the table in the body."""
PARTIAL: Final = "partial"
"""Header field of an answer whose body has only the changed entries."""
HELD: Final = "held"
"""Header field of an answer whose request had ``held`` set."""
LOG_END: Final = "logEnd"
"""Header field of an answer: end of the master's log when the answer was made."""
LOG_START: Final = "logStart"
"""Header field of an answer: first offset of the master's log."""
DELETED: Final = "deletedUntil"
"""Header field of an answer with all topics. Its value is JSON: topic -> log offset before which
the topic's messages were deleted."""
PROVED: Final = "proved"
NOT_PROVED: Final = "not proved"
COMPARING: Final = "comparing"
SLAVES: Final = "haSlaves"
"""Key of the runtime table that only a Turbopump master has."""
RECORDS: Final = "tableRecords"
"""Key of the runtime table of a master whose log has the changes of its tables."""
COMPARES: Final = "haCompares"
"""Key of the runtime table of a master that can compare its log with a slave's. Older Turbopump
masters lack this key. Slaves compare with them as with Apache's."""


ACTED: Final = "acted"
"""Header field of an answer to 906 with ``takes_over``: the slave has acted as the master since it
last copied from one."""


class GetTimerCheckpoint(Request[None], kw_only=True):
    """Ask a broker how far its timers have progressed. The body of the answer is seven longs."""

    code = RequestCode.GET_TIMER_CHECK_POINT


class TimerMetrics(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_TIMER_METRICS (61) with the number of waiting timer messages of each topic.

    Turbopump's brokers do not count by topic and answer with an empty table.
    """

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, dict[str, Int64]] = {}


class GetTimerMetrics(Request[TimerMetrics], kw_only=True):
    """Ask a broker for the number of waiting timer messages of each topic."""

    code = RequestCode.GET_TIMER_METRICS


class GetAllConsumerOffset(Request[None], kw_only=True):
    """Ask a broker for the offsets of all groups.

    The body of the answer is a ``ConsumerOffsetTable``. Two fields that are ours ask for another
    table. With ``order_info`` the body is an ``OrderInfoTable``, which lists the messages that wait
    for ordered pops. With ``locks`` the body is a ``HeldLocks``, which lists the locked queues and
    their owners.
    """

    code = RequestCode.GET_ALL_CONSUMER_OFFSET
    known_version: str | None = None
    order_info: bool | None = None
    locks: bool | None = None
    held: bool | None = None


class GetAllDelayOffset(Request[None], kw_only=True):
    """Ask a broker how far each delay level has progressed. The body of the answer is a
    ``DelayOffsetTable``."""

    code = RequestCode.GET_ALL_DELAY_OFFSET


class GetAllMessageRequestMode(Request[None], kw_only=True):
    """Ask a broker which groups pull and which pop. The body of the answer is a
    ``MessageRequestModeTable``."""

    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    known_version: str | None = None
    held: bool | None = None


class NotifyMinBrokerIdChange(Request[None], kw_only=True):
    """Tell a broker which replica acts in place of a lost master.

    A name server sends this. A slave with `enableSlaveActingMaster` then asks for the members of
    its name at once; other brokers ignore the request.
    """

    code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeHAInfoReply(Reply, kw_only=True):
    """Reply to EXCHANGE_BROKER_HA_INFO (906) with the addresses of a master.

    - ``master_address``, ``master_ha_address``: address for clients, and address of the replication
      port.
    - ``master_flush_offset``: offset up to which the master has flushed its log.
    """

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHAInfo(Request[ExchangeHAInfoReply], kw_only=True):
    """Ask a master for the address of its replication port, or tell a slave the address of its
    master.

    A request with ``master_ha_address`` is for a slave.

    - ``takes_over``: ours, true if a starting master asks its slave to hand back its work. The
      slave answers when it has stopped to act as the master.
    """

    code = RequestCode.EXCHANGE_BROKER_HA_INFO
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    takes_over: bool | None = None


class HAConnectionRuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """State of the connection to one slave, as the master sees it. Offsets are commit-log
    offsets."""

    addr: str | None = None
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0
    proof: str | None = None
    """Ours: ``PROVED`` if the slave's log is the beginning of the master's log, else ``NOT_PROVED``
    or ``COMPARING``. None from an Apache master."""


class HAClientRuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """State of the connection to the master, as a slave sees it. Times are in ms since 1970."""

    master_addr: str | None = None
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    fault: str | None = None
    """Ours: reason why the slave does not copy the log, or None."""
    refusal: str | None = None
    """Ours: reason why the last master that answered was not copied, or None if it was."""
    copied_until: int | None = None
    """Ours: time at which the slave last read from a master that it copied. None if it has copied
    none since its start."""


class HARuntimeInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_BROKER_HA_STATUS (907) with the state of replication of a broker."""

    master: bool = False
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = []
    ha_client_runtime_info: HAClientRuntimeInfo | None = msgspec.field(
        default_factory=HAClientRuntimeInfo
    )


class GetBrokerHaStatus(Request[HARuntimeInfo], kw_only=True):
    """Ask a broker for the state of its replication."""

    code = RequestCode.GET_BROKER_HA_STATUS


class ResetMasterFlushOffset(Request[None], kw_only=True):
    """Tell a slave the offset up to which the master has flushed its log.

    Our slave ignores this number. Apache's slave shows it in its reply to 907.
    """

    code = RequestCode.RESET_MASTER_FLUSH_OFFSET
    master_flush_offset: Int64
