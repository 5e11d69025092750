"""How a static topic's logical queues map to brokers' physical ones: part of routes and
registrations.

One rule: field names are the wire's own short ones. It must not know how a mapping is computed.
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32, Int64


class TopicQueueMappingInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """One broker's part of a static topic: `curr_id_map` is logical queue id -> physical queue
    id."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: Int32 = 0
    bname: str | None = None
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[int, int] | None = msgspec.field(default_factory=dict)


class LogicQueueMappingItem(msgspec.Struct, kw_only=True, rename="camel"):
    """One generation of a logical queue: which physical queue holds it from `logic_offset` on (-1:
    not yet decided). `end_offset` is exclusive, -1 while open."""

    gen: Int32 = 0
    queue_id: Int32 = 0
    bname: str | None = None
    logic_offset: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = -1
    time_of_start: Int64 = -1
    time_of_end: Int64 = -1


class TopicQueueMappingDetail(TopicQueueMappingInfo, kw_only=True, rename="camel"):
    """The same with the whole history of the queues that this broker hosts."""

    hosted_queues: dict[int, list[LogicQueueMappingItem]] | None = msgspec.field(
        default_factory=dict
    )
