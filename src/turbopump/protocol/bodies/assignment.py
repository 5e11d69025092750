"""Queues assigned by a broker (400), and whether a group pulls or pops a topic (401).

One rule: names and defaults are Apache's. It must not know how queues are shared out.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.integers import Int32
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.heartbeat import MessageModel


class MessageRequestMode(StrEnum):
    """How a group asks for the messages of a topic."""

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


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """How a group reads a topic. ``pop_share_queue_num``: how many other consumers share the queues
    of one; 0 or less: all share all."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


class MessageRequestModeTable(msgspec.Struct, kw_only=True, rename="camel"):
    """All of a broker: the file ``messageRequestMode.json``; topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = (
        msgspec.field(default_factory=dict)
    )
