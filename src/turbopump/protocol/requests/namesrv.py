"""Requests to a name server: 103 REGISTER_BROKER, 104 UNREGISTER_BROKER, 904 BROKER_HEARTBEAT, 322
QUERY_DATA_VERSION, 105 GET_ROUTEINFO_BY_TOPIC, 106 GET_BROKER_CLUSTER_INFO, 901
GET_BROKER_MEMBER_GROUP, topic lists (206, 224, 304, 311–313), write permissions (205, 327), topics
that an operator deletes or registers (216, 217), the KV configuration (100–102, 219) and the
server's own (318, 319)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.fastjson import FastjsonError
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests import topics


class RegisterBrokerReply(Reply, kw_only=True):
    """For a slave: where its live master and that one's replication port are."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterBroker(Request[RegisterBrokerReply], kw_only=True):
    """A broker and its topics; the body is ``RegisterBrokerBody``.

    ``heartbeat_timeout_millis`` is how long the broker may be silent (120 s without it).
    ``enable_acting_master`` is absent from brokers of 4.x. ``body_crc32`` 0 or absent means
    unchecked. ``partial`` is ours: the topics in the body are not all that the broker has; Apache's
    name server passes over it.
    """

    code = RequestCode.REGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = None
    partial: bool | None = None


class UnregisterBroker(Request[None], kw_only=True):
    """A broker leaves."""

    code = RequestCode.UNREGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Request[None], kw_only=True):
    """A broker is still there. The fields after the id are for a controller."""

    code = RequestCode.BROKER_HEARTBEAT
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class QueryDataVersionReply(Reply, kw_only=True):
    """True if the broker's version differs from the registered one, which is in the body."""

    changed: bool


class QueryDataVersion(Request[QueryDataVersionReply], kw_only=True):
    """Would a registration change anything? Counts as a heartbeat."""

    code = RequestCode.QUERY_DATA_VERSION
    body = topics.DataVersion
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class GetAllTopicList(Request[topics.TopicList], kw_only=True):
    """Every topic."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsByCluster(Request[topics.TopicList], kw_only=True):
    """The topics of a cluster."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


class DeleteTopicInNamesrv(Request[None], kw_only=True):
    """Forget the routes of a topic, to the brokers of one cluster or to all. A broker that still
    has it brings it back."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


class WipeWritePermReply(Reply, kw_only=True):
    """Number of topics that can no longer be written on that broker."""

    wipe_topic_count: Int32


class WipeWritePerm(Request[WipeWritePermReply], kw_only=True):
    """Let clients send to another broker, until `AddWritePerm` or until that broker has left.
    RocketMQ: until it registers a newer table."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


class AddWritePermReply(Reply, kw_only=True):
    """Number of topics that can be written again on that broker."""

    add_topic_count: Int32


class AddWritePerm(Request[AddWritePermReply], kw_only=True):
    """Undo WipeWritePerm."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


class GetSystemTopicList(Request[topics.TopicList], kw_only=True):
    """The names of clusters and brokers, and the address of one broker, which can be asked for its
    own system topics."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


class GetUnitTopicList(Request[topics.TopicList], kw_only=True):
    """Topics of a unit."""

    code = RequestCode.GET_UNIT_TOPIC_LIST


class GetHasUnitSubTopicList(Request[topics.TopicList], kw_only=True):
    """Topics that a unit's group has subscribed to."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


class GetHasUnitSubUnunitTopicList(Request[topics.TopicList], kw_only=True):
    """Ask for the unit-subscribed topics that belong to no unit."""

    code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


class PutKvConfig(Request[None], kw_only=True):
    """Set one text of the KV configuration."""

    code = RequestCode.PUT_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str
    value: str


class GetKvConfigReply(Reply, kw_only=True):
    """The text."""

    value: str | None = None


class GetKvConfig(Request[GetKvConfigReply], kw_only=True):
    """One text of the KV configuration; 22 QUERY_NOT_FOUND where there is none."""

    code = RequestCode.GET_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str


class DeleteKvConfig(Request[None], kw_only=True):
    """Remove one text of the KV configuration; nothing happens where there is none."""

    code = RequestCode.DELETE_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str


class UpdateNamesrvConfig(Request[None], kw_only=True):
    """Change settings of the running name server; the body is the text of a properties file."""

    code = RequestCode.UPDATE_NAMESRV_CONFIG


class GetNamesrvConfig(Request[None], kw_only=True):
    """Every setting of the name server; answered with the text of a properties file."""

    code = RequestCode.GET_NAMESRV_CONFIG


# What the name server says about whole clusters (106) and about one broker's replicas (901).
# One rule: both always go out in the `{0:"host:port"}` form, never as standard JSON.
class ClusterInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Brokers by name, and the broker names of each cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}


class GetBrokerClusterInfo(Request[ClusterInfo], kw_only=True):
    """Every cluster and broker."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


class BrokerMemberGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """The live members of one broker name: broker id -> `host:port`."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class BrokerMemberGroupBody(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to 901 (apache/rocketmq `GetBrokerMemberGroupResponseBody`)."""

    broker_member_group: BrokerMemberGroup | None = None


class GetBrokerMemberGroup(Request[BrokerMemberGroupBody], kw_only=True):
    """The live members of one broker name."""

    code = RequestCode.GET_BROKER_MEMBER_GROUP
    cluster_name: str
    broker_name: str


# A broker's registration (103): its topics, as JSON or in the compressed binary form, and the
# checksum over both.
#
#     compressed = one zlib stream of
#     ┌─────────────┬───────────┬───────────────────┬───────────────┬────────────────────────────┐
#     │ 4 length    │ 4 count   │ count × (4 length,│ 4 length      │ 4 count, count × (4 length,│
#     │ DataVersion │ of topics │ line of 5 or 6    │ filter servers│ TopicQueueMappingInfo JSON)│
#     │ as JSON     │           │ words)            │ as JSON array │ from version 5.0.0 on      │
#     └─────────────┴───────────┴───────────────────┴───────────────┴────────────────────────────┘
#
# One rule: nothing is inflated or read beyond the bounds. Source: apache/rocketmq
# `RegisterBrokerBody`.
MAX_INFLATED = 32 << 20
"""Most bytes a compressed registration may inflate to: room for a quarter of a million topics."""

T = TypeVar("T")


class KVTable(msgspec.Struct, kw_only=True, rename="camel"):
    """A table of texts: the order-topic configuration in the answer to 103, 219, and the runtime
    figures of 28."""

    table: dict[str, str] = {}


class GetKvListByNamespace(Request[KVTable], kw_only=True):
    """Every text of a namespace; 22 QUERY_NOT_FOUND where there is none."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    kv_namespace: str = msgspec.field(name="namespace")


class RegisterBrokerBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Registration of a broker: all its topics, or only the changed ones right after a change."""

    topic_config_serialize_wrapper: topics.TopicConfigAndMappingSerializeWrapper = msgspec.field(
        default_factory=topics.TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = []

    def encode(self) -> bytes:
        """The JSON form."""
        return fastjson.encode(self)

    def encode_compressed(self) -> bytes:
        """The compressed form, as a 5.x broker writes it."""
        wrapper = self.topic_config_serialize_wrapper
        topics = list(wrapper.topic_config_table.values())
        mappings = list(wrapper.topic_queue_mapping_info_map.values())
        pieces = [_sized(fastjson.encode(wrapper.data_version)), _int(len(topics))]
        pieces += [_sized(topic.encode_line().encode()) for topic in topics]
        pieces += [_sized(fastjson.encode(self.filter_server_list)), _int(len(mappings))]
        pieces += [_sized(fastjson.encode(mapping)) for mapping in mappings]
        return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)

    @classmethod
    def decode(cls, data: bytes) -> RegisterBrokerBody:
        """Read the JSON form; FastjsonError if it is none."""
        return fastjson.decode(data, cls)

    @classmethod
    def decode_compressed(
        cls, data: bytes, *, with_mappings: bool
    ) -> Generator[None, None, RegisterBrokerBody]:
        """Read the compressed form, one topic a step; `with_mappings` if the sender's
        version is 5.0.0 or later. FastjsonError for a stream that is damaged, too short or too
        long."""
        pieces = _Pieces(inflate(data))
        wrapper = topics.TopicConfigAndMappingSerializeWrapper()
        wrapper.data_version = fastjson.decode(pieces.sized(), topics.DataVersion)
        for line in pieces.counted():
            yield
            topic = topics.TopicConfig.decode_line(line.decode("utf-8", "replace"))
            assert topic.topic_name is not None, "decode_line always finds one"
            wrapper.topic_config_table[topic.topic_name] = topic
        filter_servers: list[str] = []
        text = pieces.sized()
        with suppress(FastjsonError):  # RocketMQ: an unreadable list is logged and left empty
            filter_servers = fastjson.decode(text, list[str])
        if with_mappings:
            for text in pieces.counted():
                mapping = fastjson.decode(text, topics.TopicQueueMappingInfo)
                wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
        return cls(topic_config_serialize_wrapper=wrapper, filter_server_list=filter_servers)


def inflate(data: bytes) -> bytes:
    """The content of a compressed registration; FastjsonError if it is damaged or beyond
    MAX_INFLATED."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, MAX_INFLATED)
    except zlib.error as error:
        raise FastjsonError(f"a compressed registration that does not inflate: {error}") from None
    if stream.unconsumed_tail:
        raise FastjsonError(
            f"a compressed registration that inflates to more than {MAX_INFLATED} bytes"
        )
    return inflated


class _Pieces:
    """Reads counts and length-prefixed texts off one buffer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise FastjsonError(
                f"a compressed registration ends at byte {len(self.data)}, inside a part"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def int(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def sized(self) -> bytes:
        return self.take(self.int())

    def counted(self) -> Iterator[bytes]:
        for _ in range(self.int()):
            yield self.sized()


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _sized(data: bytes) -> bytes:
    return _int(len(data)) + data


# The answer to "where is this topic?" (105): its queues per broker, and the brokers'
# addresses. `broker_addrs` goes out as `{0:"host:port"}` unless the client asked for standard
# JSON (`fastjson.encode_standard`).
MASTER_ID = 0
"""The broker id of a master; slaves have larger ones."""


class QueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """Number of a topic's queues on one broker. `perm` bits: 4 read, 2 write, 1 inherit, 8
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
    broker_addrs: dict[int, str] = {}
    zone_name: str | None = None
    enable_acting_master: bool = False


ROUTE_QUEUES_MAX = 1 << 18
"""Queues of a topic on all brokers together: four times the most that one broker may have. A client
makes an object for each, 0.4 µs and 150 bytes."""
_COUNT = re.compile(r"[0-9]+")


class TopicRouteData(msgspec.Struct, kw_only=True, rename="camel"):
    """A topic's route. `order_topic_conf` is `broker:queues;…` for globally ordered topics.

    Check `fault` before making queues of it.
    """

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] | None = None
    topic_queue_mapping_by_broker: dict[str, topics.TopicQueueMappingInfo] | None = None

    def ordered_queues(self) -> list[tuple[str, int]]:
        """The brokers of `order_topic_conf`, each with its number of queues; parts without a number
        are passed over."""
        parts = [part.partition(":") for part in (self.order_topic_conf or "").split(";")]
        return [(name, int(count[:10])) for name, _, count in parts if _COUNT.fullmatch(count)]

    def fault(self) -> str | None:
        """Say which number of queues is beyond the bounds, and what to do; None: none is."""
        counts = [
            (one.broker_name, one.read_queue_nums, one.write_queue_nums) for one in self.queue_datas
        ]
        counts += [(name, count, count) for name, count in self.ordered_queues()]
        for name, read, write in counts:
            if (fault := topics.queues_fault(read, write)) is not None:
                return f"on broker {name!r} {fault} (turbopump topic alter)"
        total = sum(max(read, write) for _, read, write in counts)
        if total > ROUTE_QUEUES_MAX:
            return (
                f"it has {total} queues on all brokers together, and may have {ROUTE_QUEUES_MAX}: "
                "give it fewer (turbopump topic alter), or divide it into several topics"
            )
        return None


class RegisterTopicInNamesrv(Request[None], kw_only=True):
    """Give a topic queues on brokers that are registered."""

    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    body = TopicRouteData
    topic: str


class GetRouteInfo(Request[TopicRouteData], kw_only=True):
    """Ask for the brokers of a topic; the answer is 17 TOPIC_NOT_EXIST if there are none."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool | None = None
