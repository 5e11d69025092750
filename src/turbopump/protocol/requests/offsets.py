"""Requests about offsets: a group's offset in a queue (14, 15), the ends of a queue (30, 31), and
its offset at a time (29)."""

from __future__ import annotations

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests.statistics import QueryCorrectionOffsetBody
from turbopump.protocol.requests.topics import DataVersion

QUEUE_OFFSET_MAX = (2**63 - 1) // 20
"""Largest possible queue offset. A queue has 20 bytes for each message, and positions in its files
are signed 64-bit numbers."""


class OffsetReply(Reply, kw_only=True):
    """One queue offset. Apache's brokers answer −1 if the queue does not exist."""

    offset: Int64

    def fault(self) -> str | None:
        """Return the reason why the offset is out of range, or None."""
        if -1 <= self.offset <= QUEUE_OFFSET_MAX:
            return None
        return f"offset {self.offset}, and a queue has 0 to {QUEUE_OFFSET_MAX}"


class QueryConsumerOffset(Request[OffsetReply], kw_only=True):
    """Ask for a group's offset in a queue; 22 QUERY_NOT_FOUND if the group has none."""

    code = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Request[None], kw_only=True):
    """Commit a group's offset in a queue: the offset of the next message to consume."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffset(Request[OffsetReply], kw_only=True):
    """Ask for the queue offset at a store time in ms. ``boundary_type`` LOWER means the first
    message at or after that time, UPPER the last at or before it."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(Request[OffsetReply], kw_only=True):
    """Ask for the end of a queue, one past its last message."""

    code = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(Request[OffsetReply], kw_only=True):
    """Ask for the offset of the first message that a queue still has."""

    code = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: Int32


# Tables of consumer offsets: the files of brokers and broadcasting clients, and the bodies of
# requests. An offset is the index of the next message to consume. A key of `offset_table` is
# `topic@group`, its value is queue id -> offset.
class ConsumerOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of all groups: the file `consumerOffset.json`, and the reply to 43.

    `group_topic_map` is derived by 5.x brokers and absent in 4.x; it is written if given and
    ignored when read. `pending_resets` is ours and only in the file: queues of `topic@group` whose
    readers have not yet been told of a reset. It is absent if there are none, and Apache's brokers
    ignore it.
    """

    data_version: DataVersion = DataVersion()
    group_topic_map: dict[str, tuple[str, ...]] | None = None
    offset_table: dict[str, dict[int, Int64]] = {}
    pending_resets: dict[str, list[int]] | None = None


class DelayOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Progress of each delay level, the file `delayOffset.json` and the reply to 45: delay level ->
    offset of the next message to check."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, Int64] = {}


class OffsetSerializeWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of a broadcasting client, its local file `offsets.json`."""

    offset_table: dict[MessageQueue, Int64] = {}


class GetConsumerStatusBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to 221 (one client: `message_queue_table`) and 223 (all clients: `consumer_table`)."""

    message_queue_table: dict[MessageQueue, Int64] = {}
    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}


class ResetOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """New offsets that a broker pushes to its clients (220), or returns in the reply to 222."""

    offset_table: dict[MessageQueue, Int64] = {}


class QueueOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """One entry of the list form of new offsets (apache/rocketmq `MessageQueueForC`)."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetBodyForC(msgspec.Struct, kw_only=True, rename="camel"):
    """New offsets for C++ clients, whose JSON parser does not accept objects as keys."""

    offset_table: list[QueueOffset] = []


# Requests of operators: 222 INVOKE_BROKER_TO_RESET_OFFSET, 220 RESET_CONSUMER_CLIENT_OFFSET, 223
# INVOKE_BROKER_TO_GET_CONSUMER_STATUS, 221 GET_CONSUMER_STATUS_FROM_CLIENT, 314 CLONE_GROUP_OFFSET,
# 308 QUERY_CORRECTION_OFFSET.
class ResetOffset(Request[ResetOffsetBody], kw_only=True):
    """Set a group's offsets in a topic, for all queues or for ``queue_id``.

    The target is ``offset``, or the offset at ``timestamp`` (ms; negative means the end). Without
    ``force`` offsets are only moved back.
    """

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=True, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ResetConsumerOffset(Request[None], kw_only=True):
    """Tell a consumer to continue at these offsets (oneway, from its broker)."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    body = ResetOffsetBody
    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=False, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class GetConsumerStatus(Request[GetConsumerStatusBody], kw_only=True):
    """Ask for the offsets known to each client of a group, or only to the client
    ``client_addr``."""

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerStatusFromClient(Request[GetConsumerStatusBody], kw_only=True):
    """Ask a consumer for its offsets (from a broker)."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffset(Request[None], kw_only=True):
    """Copy the offsets of ``src_group`` to ``dest_group`` in one topic, or in all. Without
    ``offline`` only topics that a running ``src_group`` subscribes to are copied."""

    code = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffset(Request[QueryCorrectionOffsetBody], kw_only=True):
    """Ask for the lowest offset of each queue among a topic's groups. ``filter_groups`` (separated
    by commas) are left out. The largest possible number is returned if ``compare_group`` is behind
    all of them."""

    code = RequestCode.QUERY_CORRECTION_OFFSET
    topic: str
    compare_group: str
    filter_groups: str | None = None
