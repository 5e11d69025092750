"""Requests about offsets in queues.

- Offset of a group: 14 QUERY_CONSUMER_OFFSET, 15 UPDATE_CONSUMER_OFFSET
- Ends of a queue: 30 GET_MAX_OFFSET, 31 GET_MIN_OFFSET
- Offset at a time: 29 SEARCH_OFFSET_BY_TIMESTAMP
- Requests of operators, such as a reset (below)
"""

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
    """Reply with one queue offset. Apache's brokers answer −1 if the queue does not exist."""

    offset: Int64

    def fault(self) -> str | None:
        """Return a text if the offset is out of range, else None."""
        if -1 <= self.offset <= QUEUE_OFFSET_MAX:
            return None
        return f"offset {self.offset}, and a queue has 0 to {QUEUE_OFFSET_MAX}"


class QueryConsumerOffset(Request[OffsetReply], kw_only=True):
    """Ask a broker for the offset that a group has committed in a queue.

    The code of the answer is 22 QUERY_NOT_FOUND if the group has none.
    """

    code = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Request[None], kw_only=True):
    """Commit the offset of the next message that a group consumes from a queue."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffset(Request[OffsetReply], kw_only=True):
    """Ask a broker for the queue offset of the message at a given store time in ms.

    If ``boundary_type`` is LOWER, the first message at or after that time counts. If it is UPPER,
    the last message at or before that time counts.
    """

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(Request[OffsetReply], kw_only=True):
    """Ask a broker for the end of a queue: the offset after the last message."""

    code = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(Request[OffsetReply], kw_only=True):
    """Ask a broker for the offset of the first message that a queue still has."""

    code = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: Int32


# Tables of consumer offsets: the files of brokers and broadcasting clients, and the bodies of
# requests. An offset is the index of the next message to consume. A key of `offset_table` is
# `topic@group`, its value is queue id -> offset.
class ConsumerOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of all groups of a broker, as in the file `consumerOffset.json` and the reply to 43.

    `group_topic_map` is derived by 5.x brokers and absent in 4.x. It is written if given, and
    ignored when read. `pending_resets` is ours and only in the file: queues of `topic@group` whose
    readers have not yet been notified of a reset. It is absent if there are none, and Apache's
    brokers ignore it.
    """

    data_version: DataVersion = DataVersion()
    group_topic_map: dict[str, tuple[str, ...]] | None = None
    offset_table: dict[str, dict[int, Int64]] = {}
    pending_resets: dict[str, list[int]] | None = None


class DelayOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Progress of all delay levels, as in the file `delayOffset.json` and the reply to 45.

    The table is delay level -> offset of the next message to check.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, Int64] = {}


class OffsetSerializeWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """Offsets of a broadcasting client, as in its local file `offsets.json`."""

    offset_table: dict[MessageQueue, Int64] = {}


class GetConsumerStatusBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply with the offsets that the clients of a group know.

    One client answers 221 with ``message_queue_table``. The broker answers 223 with
    ``consumer_table``, which has the tables of all clients.
    """

    message_queue_table: dict[MessageQueue, Int64] = {}
    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}


class ResetOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """New offsets of a group after a reset. A broker sends them to clients (220) and to operators
    (222)."""

    offset_table: dict[MessageQueue, Int64] = {}


class QueueOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """New offset of one queue, for C++ clients (apache/rocketmq `MessageQueueForC`)."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetBodyForC(msgspec.Struct, kw_only=True, rename="camel"):
    """New offsets of a group after a reset, in the form that C++ clients can parse.

    Their JSON parser does not accept objects as keys.
    """

    offset_table: list[QueueOffset] = []


# Requests of operators: 222 INVOKE_BROKER_TO_RESET_OFFSET, 220 RESET_CONSUMER_CLIENT_OFFSET, 223
# INVOKE_BROKER_TO_GET_CONSUMER_STATUS, 221 GET_CONSUMER_STATUS_FROM_CLIENT, 314 CLONE_GROUP_OFFSET,
# 308 QUERY_CORRECTION_OFFSET.
class ResetOffset(Request[ResetOffsetBody], kw_only=True):
    """Set the offsets of a group in a topic, for all queues or for one.

    The target is ``offset``, or the offset at ``timestamp``. The time is in ms, and a negative one
    means the end. Without ``force``, offsets are only moved back.
    """

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=True, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ResetConsumerOffset(Request[None], kw_only=True):
    """Tell a consumer to continue at new offsets.

    The broker sends this one-way. The body is a ``ResetOffsetBody``.
    """

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    body = ResetOffsetBody
    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=False, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class GetConsumerStatus(Request[GetConsumerStatusBody], kw_only=True):
    """Ask for the offsets that the clients of a group know.

    The broker asks each client, or only the client ``client_addr``.
    """

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerStatusFromClient(Request[GetConsumerStatusBody], kw_only=True):
    """Ask a consumer for the offsets that it knows. The broker sends this."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffset(Request[None], kw_only=True):
    """Copy the offsets of one group to another, in one topic or in all.

    Without ``offline``, only topics that a running ``src_group`` subscribes to are copied.
    """

    code = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffset(Request[QueryCorrectionOffsetBody], kw_only=True):
    """For each queue of a topic, ask for the lowest offset among all groups.

    The groups in ``filter_groups``, separated by commas, do not count. A queue in which
    ``compare_group`` is behind all counted groups gets the largest possible number.
    """

    code = RequestCode.QUERY_CORRECTION_OFFSET
    topic: str
    compare_group: str
    filter_groups: str | None = None
