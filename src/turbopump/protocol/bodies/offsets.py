"""Consumer offsets in bulk: the files a broker and a broadcasting client keep, and the bodies that
move them.

One rule: an offset is the index of the next message wanted. Inside `offset_table` a key
`topic@group` leads to queue id -> offset. It must not know when offsets are saved.
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.topics import DataVersion


class ConsumerOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The file `consumerOffset.json` and the answer to 43. `group_topic_map` is derived by 5.x
    brokers and absent in 4.x: written if given, ignored when read. `pending_resets` is ours, in the
    file only, absent if there are none: the queues of `topic@group` whose readers have not heard of
    a reset; Apache's brokers pass over it."""

    data_version: DataVersion = DataVersion()
    group_topic_map: dict[str, tuple[str, ...]] | None = None
    offset_table: dict[str, dict[int, Int64]] = msgspec.field(default_factory=dict)
    pending_resets: dict[str, list[int]] | None = None


class DelayOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The file `delayOffset.json` and the answer to 45: delay level -> offset of the next message
    to look at."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, Int64] = msgspec.field(default_factory=dict)


class OffsetSerializeWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """A broadcasting client's own file `offsets.json`."""

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class GetConsumerStatusBody(msgspec.Struct, kw_only=True, rename="camel"):
    """The answers to 221 (one client: `message_queue_table`) and 223 (all of them:
    `consumer_table`)."""

    message_queue_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = msgspec.field(default_factory=dict)


class ResetOffsetBody(msgspec.Struct, kw_only=True, rename="camel"):
    """New offsets that a broker pushes to its clients (220) or answers to 222 with."""

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class QueueOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """One entry of the list form (apache/rocketmq `MessageQueueForC`)."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetBodyForC(msgspec.Struct, kw_only=True, rename="camel"):
    """The same for C++ clients, whose JSON reader knows no object keys."""

    offset_table: list[QueueOffset] = msgspec.field(default_factory=list)
