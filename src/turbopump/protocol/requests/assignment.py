"""Requests about the assignment of queues to consumers, and about queue locks.

- Assignment of queues by the broker: 400 QUERY_ASSIGNMENT, 401 SET_MESSAGE_REQUEST_MODE
- Queue locks: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.java import Int32
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import MessageModel


class MessageRequestMode(StrEnum):
    """Way in which a consumer group gets messages of a topic: by pulls or by pops."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of QUERY_ASSIGNMENT (400) with the topic and the consumer.

    ``strategy_name`` is Apache's name of an allocation strategy, for example ``AVG``.
    """

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(msgspec.Struct, kw_only=True, rename="camel"):
    """Queue that a broker assigns to a consumer, with the mode of reading.

    The queue id −1 means all queues of the topic on that broker.
    """

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to QUERY_ASSIGNMENT (400) with the queues assigned to the consumer.

    None means that the broker knows no route or cannot decide. The client then keeps its queues.
    """

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class QueryAssignment(Request[QueryAssignmentResponseBody], kw_only=True):
    """Ask a broker for the queues that this consumer should read."""

    code = RequestCode.QUERY_ASSIGNMENT
    body = QueryAssignmentRequestBody


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of SET_MESSAGE_REQUEST_MODE (401) with the mode of one group in one topic.

    ``pop_share_queue_num`` is the number of other consumers that share one consumer's queues. At 0
    or less, all consumers share all queues.
    """

    topic: str | None = None
    consumer_group: str | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


class SetMessageRequestMode(Request[None], kw_only=True):
    """Set whether a consumer group pulls or pops the messages of a topic."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    body = SetMessageRequestModeRequestBody


class MessageRequestModeTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Request modes of all groups on a broker, as in the file ``messageRequestMode.json``.

    The map is topic -> group -> mode.
    """

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}


# Queue locks for ordered consumption: 41 locks or renews, 42 unlocks. A lock belongs to a client
# id, not to a connection.
class LockBatchRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Queues that a client wants to lock (41) or unlock (42).

    With `only_this_broker` the replicas are not asked, even in strict mode.
    """

    consumer_group: str | None = None
    client_id: str | None = None
    only_this_broker: bool = False
    mq_set: tuple[MessageQueue, ...] = ()


class LockBatchResponseBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to LOCK_BATCH_MQ (41) with the queues now locked by the client."""

    locked: tuple[MessageQueue, ...] = msgspec.field(default=(), name="lockOKMQSet")


class LockBatchMq(Request[LockBatchResponseBody], kw_only=True):
    """Lock queues for a client of a group, or renew the locks of the client.

    The answer lists the queues that the client has locked.
    """

    code = RequestCode.LOCK_BATCH_MQ
    body = LockBatchRequestBody


class UnlockBatchMq(Request[None], kw_only=True):
    """Unlock queues that a client has locked.

    The request may be one-way. Its answer is empty.
    """

    code = RequestCode.UNLOCK_BATCH_MQ
    body = LockBatchRequestBody
