"""Requests to a name server.

- Brokers: 103 REGISTER_BROKER, 104 UNREGISTER_BROKER, 904 BROKER_HEARTBEAT, 322
  QUERY_DATA_VERSION
- Routes: 105 GET_ROUTEINFO_BY_TOPIC, 106 GET_BROKER_CLUSTER_INFO, 901
  GET_BROKER_MEMBER_GROUP
- Topics: lists (206, 224, 304, 311–313), delete (216), register (217)
- Write permission of a broker: 205, 327
- KV configuration: 100–102, 219
- Settings of the server: 318, 319
"""

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
    """Reply to REGISTER_BROKER (103). A slave learns the addresses of its master.

    - ``master_addr``: address of the live master.
    - ``ha_server_addr``: address of the master's replication port.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterBroker(Request[RegisterBrokerReply], kw_only=True):
    """Register a broker and its topics. The body is a ``RegisterBrokerBody``.

    - ``heartbeat_timeout_millis``: time in ms after which a silent broker is removed. If it is
      absent, the time is 120 s.
    - ``enable_acting_master``: absent from brokers of 4.x.
    - ``body_crc32``: checksum of the body. 0 or absent means unchecked.
    - ``partial``: ours, true if the body contains only some of the broker's topics. Apache's name
      server ignores this field.
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
    """Remove a stopping broker from the routes of a name server."""

    code = RequestCode.UNREGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Request[None], kw_only=True):
    """Tell the name server that a broker is alive.

    The fields after ``broker_id`` are for a controller. ``min_in_sync_replicas`` is ours: a master
    confirms nothing while fewer replicas are in its sync state set. Apache's ignores the field.
    """

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
    min_in_sync_replicas: Int32 | None = None


class QueryDataVersionReply(Reply, kw_only=True):
    """Reply to QUERY_DATA_VERSION (322). The body is the registered version.

    ``changed`` is True if the broker's version differs from the registered one.
    """

    changed: bool


class QueryDataVersion(Request[QueryDataVersionReply], kw_only=True):
    """Ask if the version of a broker's topics differs from the registered version.

    The request counts as a heartbeat.
    """

    code = RequestCode.QUERY_DATA_VERSION
    body = topics.DataVersion
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class GetAllTopicList(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the names of all topics."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsByCluster(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the topics of a cluster."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


class DeleteTopicInNamesrv(Request[None], kw_only=True):
    """Delete the routes of a topic from a name server, for one cluster or for all.

    A broker that still has the topic registers the route again.
    """

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


class WipeWritePermReply(Reply, kw_only=True):
    """Reply with the number of topics that can no longer be written on the broker."""

    wipe_topic_count: Int32


class WipeWritePerm(Request[WipeWritePermReply], kw_only=True):
    """Remove the write permission of a broker's topics, so that clients send to other brokers.

    The change lasts until `AddWritePerm`, or until the broker has left. RocketMQ: until the broker
    registers a newer table.
    """

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


class AddWritePermReply(Reply, kw_only=True):
    """Reply with the number of topics that can be written again on the broker."""

    add_topic_count: Int32


class AddWritePerm(Request[AddWritePermReply], kw_only=True):
    """Restore the write permission that `WipeWritePerm` removed."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


class GetSystemTopicList(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the names of all clusters and brokers, and for the address of one
    broker.

    The broker at that address can be asked for its own system topics.
    """

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


class GetUnitTopicList(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the topics that producers created in unit mode."""

    code = RequestCode.GET_UNIT_TOPIC_LIST


class GetHasUnitSubTopicList(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the topics that consumers use in unit mode."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


class GetHasUnitSubUnunitTopicList(Request[topics.TopicList], kw_only=True):
    """Ask a name server for the topics that only consumers, not producers, use in unit mode."""

    code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


class PutKvConfig(Request[None], kw_only=True):
    """Set one value of a name server's key-value configuration."""

    code = RequestCode.PUT_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str
    value: str


class GetKvConfigReply(Reply, kw_only=True):
    """Reply with one value of a name server's key-value configuration."""

    value: str | None = None


class GetKvConfig(Request[GetKvConfigReply], kw_only=True):
    """Ask for one value of a name server's key-value configuration.

    The code of the answer is 22 QUERY_NOT_FOUND if there is none.
    """

    code = RequestCode.GET_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str


class DeleteKvConfig(Request[None], kw_only=True):
    """Delete one value of a name server's key-value configuration. A missing value is no error."""

    code = RequestCode.DELETE_KV_CONFIG
    kv_namespace: str = msgspec.field(name="namespace")
    key: str


class UpdateNamesrvConfig(Request[None], kw_only=True):
    """Change settings of a running name server. The body is the text of a properties file."""

    code = RequestCode.UPDATE_NAMESRV_CONFIG


class GetNamesrvConfig(Request[None], kw_only=True):
    """Ask for all settings of a name server. The body of the answer is the text of a properties
    file."""

    code = RequestCode.GET_NAMESRV_CONFIG


# Answers about whole clusters (106) and about one broker's replicas (901). Both are always sent in
# the `{0:"host:port"}` form, never as standard JSON.
class ClusterInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_BROKER_CLUSTER_INFO (106) with all brokers and clusters.

    ``broker_addr_table`` has the brokers by name, ``cluster_addr_table`` the broker names of each
    cluster.
    """

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}

    def own_topics(self) -> set[str]:
        """Return the names of the topics that brokers create for themselves.

        They are named after the brokers and the clusters.
        """
        clusters = self.cluster_addr_table
        replies = {f"{cluster}_REPLY_TOPIC" for cluster in clusters}
        return {*self.broker_addr_table, *clusters, *replies}


class GetBrokerClusterInfo(Request[ClusterInfo], kw_only=True):
    """Ask a name server for all clusters and brokers."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


class BrokerMemberGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """Live master and slaves of one broker name.

    ``broker_addrs`` is broker id -> `host:port`.
    """

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class BrokerMemberGroupBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_BROKER_MEMBER_GROUP (901) with the live master and slaves of one broker name.

    Source: apache/rocketmq `GetBrokerMemberGroupResponseBody`.
    """

    broker_member_group: BrokerMemberGroup | None = None


class GetBrokerMemberGroup(Request[BrokerMemberGroupBody], kw_only=True):
    """Ask a name server for the live master and slaves of one broker name."""

    code = RequestCode.GET_BROKER_MEMBER_GROUP
    cluster_name: str
    broker_name: str


# Registration of a broker (103): its topics, as JSON or in the compressed binary form, and the
# checksum over both.
#
#     compressed = one zlib stream of
#     ┌─────────────┬───────────┬───────────────────┬───────────────┬────────────────────────────┐
#     │ 4 length    │ 4 count   │ count × (4 length,│ 4 length      │ 4 count, count × (4 length,│
#     │ DataVersion │ of topics │ line of 5 or 6    │ filter servers│ TopicQueueMappingInfo JSON)│
#     │ as JSON     │           │ words)            │ as JSON array │ from version 5.0.0 on      │
#     └─────────────┴───────────┴───────────────────┴───────────────┴────────────────────────────┘
#
# Nothing is inflated or read beyond the limits. Source: apache/rocketmq `RegisterBrokerBody`.
MAX_INFLATED = 32 << 20
"""Maximum size of an inflated registration in bytes. This is enough for 250,000 topics."""

T = TypeVar("T")


class KVTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Table of strings that several replies use.

    The replies are those to 103 (order-topic configuration), 219 (a namespace) and 28 (runtime
    figures).
    """

    table: dict[str, str] = {}


class GetKvListByNamespace(Request[KVTable], kw_only=True):
    """Ask for all values in one namespace of a name server's key-value configuration.

    The code of the answer is 22 QUERY_NOT_FOUND if there are none.
    """

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    kv_namespace: str = msgspec.field(name="namespace")


class RegisterBrokerBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Topics that a broker registers. Right after a change, these are only the changed topics."""

    topic_config_serialize_wrapper: topics.TopicConfigAndMappingSerializeWrapper = msgspec.field(
        default_factory=topics.TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = []

    def encode(self) -> bytes:
        """Encode the registration as JSON."""
        return fastjson.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> RegisterBrokerBody:
        """Decode a registration in JSON. Raises FastjsonError if the data is invalid."""
        return fastjson.decode(data, cls)

    @classmethod
    def decode_compressed(
        cls, data: bytes, *, with_mappings: bool
    ) -> Generator[None, None, RegisterBrokerBody]:
        """Decode a compressed registration, one topic in each step.

        Set `with_mappings` if the sender's version is 5.0.0 or later. Raises FastjsonError if the
        stream is damaged, too short or too long.
        """
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
    """Inflate a compressed registration, and return its content.

    Raises FastjsonError if the data is damaged or inflates beyond MAX_INFLATED.
    """
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
    """Reader of one buffer, which contains counts and texts with a length before each."""

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


# Route of a topic (105): its queues on each broker, and the brokers' addresses. `broker_addrs` is
# sent as `{0:"host:port"}` unless the client asked for standard JSON (`fastjson.encode_standard`).
MASTER_ID = 0
"""Broker id of a master. Slaves have larger ids."""


class QueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """Queues and permissions of a topic on one broker.

    `perm` is a sum of bits: 4 read, 2 write, 1 inherit, 8 priority.
    """

    broker_name: str | None = None
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(msgspec.Struct, kw_only=True, rename="camel"):
    """Addresses of the master and the slaves of one broker name.

    `broker_addrs` is broker id -> `host:port`. The master has the id 0.
    """

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}
    zone_name: str | None = None
    enable_acting_master: bool = False


ROUTE_QUEUES_MAX = 1 << 18
"""Maximum number of a topic's queues on all brokers together, four times the maximum of one broker.
A client creates one object for each queue: 0.4 µs and 150 bytes."""
_COUNT = re.compile(r"[0-9]+")


class TopicRouteData(msgspec.Struct, kw_only=True, rename="camel"):
    """Route of a topic: the queues on each broker, and the addresses of the brokers.

    `order_topic_conf` is `broker:queues;…` for globally ordered topics. Check `fault` before
    creating queues from a route.
    """

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] | None = None
    topic_queue_mapping_by_broker: dict[str, topics.TopicQueueMappingInfo] | None = None

    def ordered_queues(self) -> list[tuple[str, int]]:
        """For each broker in `order_topic_conf`, return its name and its number of queues.

        Parts without a number are skipped.
        """
        parts = [part.partition(":") for part in (self.order_topic_conf or "").split(";")]
        return [(name, int(count[:10])) for name, _, count in parts if _COUNT.fullmatch(count)]

    def fault(self) -> str | None:
        """Return a text if a number of queues is out of range, else None.

        The text names the number and says what to do.
        """
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
    """Register the queues of a topic on brokers that are registered already."""

    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    body = TopicRouteData
    topic: str


class GetRouteInfo(Request[TopicRouteData], kw_only=True):
    """Ask a name server for the route of a topic.

    The code of the answer is 17 TOPIC_NOT_EXIST if no broker has the topic.
    """

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool | None = None
