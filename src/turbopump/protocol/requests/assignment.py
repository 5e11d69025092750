"""Requests about the assignment of queues to consumers by the broker: 400 QUERY_ASSIGNMENT, 401
SET_MESSAGE_REQUEST_MODE; and about queue locks: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.java import Int32
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import MessageModel


class MessageRequestMode(StrEnum):
    """Mode in which a group reads a topic."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of QUERY_ASSIGNMENT (400). ``strategy_name`` is Apache's name of an allocation strategy,
    for example ``AVG``."""

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(msgspec.Struct, kw_only=True, rename="camel"):
    """One queue, and the mode in which to read it. Queue id −1 means all queues of the topic on
    that broker."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_ASSIGNMENT (400). None means that the broker knows no route or cannot decide;
    the client keeps its queues."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class QueryAssignment(Request[QueryAssignmentResponseBody], kw_only=True):
    """Ask for the queues assigned to this consumer."""

    code = RequestCode.QUERY_ASSIGNMENT
    body = QueryAssignmentRequestBody


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of SET_MESSAGE_REQUEST_MODE (401). ``pop_share_queue_num`` is the number of other
    consumers that share one consumer's queues; at 0 or less all consumers share all queues."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


class SetMessageRequestMode(Request[None], kw_only=True):
    """Set whether a group pulls or pops a topic."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    body = SetMessageRequestModeRequestBody


class MessageRequestModeTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Request modes of a broker, the file ``messageRequestMode.json``: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}


# Queue locks for ordered consumption: 41 locks or renews, 42 unlocks. A lock belongs to a client
# id, not to a connection.
class LockBatchRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queues that a client locks (41) or unlocks (42). With `only_this_broker` the replicas are not
    asked, even in strict mode."""

    consumer_group: str | None = None
    client_id: str | None = None
    only_this_broker: bool = False
    mq_set: tuple[MessageQueue, ...] = ()


class LockBatchResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queues that the client has locked after the request."""

    locked: tuple[MessageQueue, ...] = msgspec.field(default=(), name="lockOKMQSet")


class LockBatchMq(Request[LockBatchResponseBody], kw_only=True):
    """Lock queues for a client of a group, or renew its locks. The answer lists the queues that the
    client has locked."""

    code = RequestCode.LOCK_BATCH_MQ
    body = LockBatchRequestBody


class UnlockBatchMq(Request[None], kw_only=True):
    """Unlock queues that a client has locked. May be sent oneway; the answer is empty."""

    code = RequestCode.UNLOCK_BATCH_MQ
    body = LockBatchRequestBody
