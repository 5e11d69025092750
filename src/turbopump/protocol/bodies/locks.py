"""Locks on queues for ordered consumption (41, 42).

One rule: a lock belongs to a client id, not to a connection. It must not know how long it lasts.
"""

from __future__ import annotations

import msgspec

from turbopump.message.message_queue import MessageQueue


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
