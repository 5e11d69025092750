"""Who consumes in a group (38).

One rule: plain lists of client ids. It must not know how members are kept or how queues are shared
among them.
"""

from __future__ import annotations

import msgspec


class ConsumerIdList(msgspec.Struct, kw_only=True, rename="camel"):
    """The client ids of a group's members (apache/rocketmq
    `GetConsumerListByGroupResponseBody`)."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)
