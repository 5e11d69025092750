"""Assignment of queues to consumers by the broker: 400 QUERY_ASSIGNMENT, 401
SET_MESSAGE_REQUEST_MODE."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.java import Int32
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import MessageModel


class MessageRequestMode(StrEnum):
    """Way of a group to get the messages of a topic."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """A client asks for its queues. ``strategy_name`` is Apache's name of an allocation strategy,
    ``AVG`` for example."""

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(msgspec.Struct, kw_only=True, rename="camel"):
    """One queue and how to read it; queue id −1 is all queues of the topic on that broker."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """None: the broker knows no route, or cannot say; keep what you have."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class QueryAssignment(Request[QueryAssignmentResponseBody], kw_only=True):
    """Ask for the queues assigned to this consumer."""

    code = RequestCode.QUERY_ASSIGNMENT
    body = QueryAssignmentRequestBody


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Way of a group to read a topic. ``pop_share_queue_num``: number of other consumers that share
    one consumer's queues; 0 or less: all share all."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


class SetMessageRequestMode(Request[None], kw_only=True):
    """A group is to pull a topic, or to pop it."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    body = SetMessageRequestModeRequestBody


class MessageRequestModeTable(msgspec.Struct, kw_only=True, rename="camel"):
    """All of a broker: the file ``messageRequestMode.json``; topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}


# Locks on queues for ordered consumption: 41 asks for them or renews them, 42 gives them
# back. A lock belongs to a client id, not to a connection.
class LockBatchRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queues that a client wants to lock, or gives back (the body of 41 and 42 alike).
    `only_this_broker`: do not ask the replicas, though the broker is in strict mode."""

    consumer_group: str | None = None
    client_id: str | None = None
    only_this_broker: bool = False
    mq_set: tuple[MessageQueue, ...] = ()


class LockBatchResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """The queues that the client now holds."""

    locked: tuple[MessageQueue, ...] = msgspec.field(default=(), name="lockOKMQSet")


class LockBatchMq(Request[LockBatchResponseBody], kw_only=True):
    """Lock queues for a client of a group, or renew its locks; the answer names those that it holds
    now."""

    code = RequestCode.LOCK_BATCH_MQ
    body = LockBatchRequestBody


class UnlockBatchMq(Request[None], kw_only=True):
    """Free queues that a client holds. May be sent oneway; the answer says nothing."""

    code = RequestCode.UNLOCK_BATCH_MQ
    body = LockBatchRequestBody
