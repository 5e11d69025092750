"""The answer to "where is this topic?" (105): its queues per broker, and the brokers' addresses.

One rule: a route says what brokers claimed, in the form every client of the last ten years reads;
`broker_addrs` goes out as `{0:"host:port"}` unless the client asked for standard JSON
(`fastjson.encode_standard`), which is the handler's choice. It must not know how a route is put
together.
"""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int32
from turbopump.protocol.bodies.static_topics import TopicQueueMappingInfo

MASTER_ID = 0
"""The broker id of a master; slaves have larger ones."""


class QueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """How many queues of the topic one broker has. `perm` bits: 4 read, 2 write, 1 inherit, 8
    priority."""

    broker_name: str | None = None
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(msgspec.Struct, kw_only=True, rename="camel"):
    """One broker name with the addresses (`host:port`) of its master (id 0) and slaves."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicRouteData(msgspec.Struct, kw_only=True, rename="camel"):
    """A topic's route. `order_topic_conf` is `broker:queues;…` for globally ordered topics."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None
