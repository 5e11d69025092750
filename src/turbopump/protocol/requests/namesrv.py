"""What brokers and clients ask a name server: 103 REGISTER_BROKER, 104 UNREGISTER_BROKER, 904
BROKER_HEARTBEAT, 322 QUERY_DATA_VERSION, 105 GET_ROUTEINFO_BY_TOPIC, 106 GET_BROKER_CLUSTER_INFO,
901 GET_BROKER_MEMBER_GROUP, topic lists (206, 224), write permissions (205, 327) and the deletion
of a topic (216).

Bodies are in ``bodies.register``, ``bodies.route``, ``bodies.topics`` and ``bodies.cluster``."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class RegisterBrokerReply(Reply, kw_only=True):
    """For a slave: where its live master and that one's replication port are."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterBroker(Request[RegisterBrokerReply], kw_only=True):
    """A broker and its topics; the body is ``bodies.register.RegisterBrokerBody``.

    ``heartbeat_timeout_millis`` is how long the broker may be silent (120 s without it).
    ``enable_acting_master`` is absent from brokers of 4.x. ``body_crc32`` 0 or absent means
    unchecked.
    """

    code: ClassVar[int] = RequestCode.REGISTER_BROKER
    reply: ClassVar[type[RegisterBrokerReply]] = RegisterBrokerReply

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = None


class UnregisterBroker(Request[None], kw_only=True):
    """A broker leaves."""

    code: ClassVar[int] = RequestCode.UNREGISTER_BROKER

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Request[None], kw_only=True):
    """A broker is still there. The fields after the id are for a controller."""

    code: ClassVar[int] = RequestCode.BROKER_HEARTBEAT

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
    """Whether the broker's version differs from the one registered, which is the body of the
    answer."""

    changed: bool


class QueryDataVersion(Request[QueryDataVersionReply], kw_only=True):
    """Would a registration change anything? The body is ``bodies.topics.DataVersion``. Counts as a
    heartbeat."""

    code: ClassVar[int] = RequestCode.QUERY_DATA_VERSION
    reply: ClassVar[type[QueryDataVersionReply]] = QueryDataVersionReply

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class GetRouteInfo(Request[None], kw_only=True):
    """Which brokers have a topic; the body of the answer is ``bodies.route.TopicRouteData``, 17
    TOPIC_NOT_EXIST where there is none."""

    code: ClassVar[int] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


class GetBrokerClusterInfo(Request[None], kw_only=True):
    """Every cluster and broker; the body of the answer is ``bodies.cluster.ClusterInfo``."""

    code: ClassVar[int] = RequestCode.GET_BROKER_CLUSTER_INFO


class GetBrokerMemberGroup(Request[None], kw_only=True):
    """The live members of one broker name; the body of the answer is
    ``bodies.cluster.BrokerMemberGroupBody``."""

    code: ClassVar[int] = RequestCode.GET_BROKER_MEMBER_GROUP

    cluster_name: str
    broker_name: str


class GetAllTopicList(Request[None], kw_only=True):
    """Every topic; the body of the answer is ``bodies.topics.TopicList``."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsByCluster(Request[None], kw_only=True):
    """The topics of a cluster; the body of the answer is ``bodies.topics.TopicList``."""

    code: ClassVar[int] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class DeleteTopicInNamesrv(Request[None], kw_only=True):
    """Forget the routes of a topic, to the brokers of one cluster or to all. A broker that still
    has it brings it back."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


class WipeWritePermReply(Reply, kw_only=True):
    """How many topics can no longer be written on that broker."""

    wipe_topic_count: Int32


class WipeWritePerm(Request[WipeWritePermReply], kw_only=True):
    """Let clients send to another broker; lasts until that broker registers a newer table."""

    code: ClassVar[int] = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    reply: ClassVar[type[WipeWritePermReply]] = WipeWritePermReply

    broker_name: str


class AddWritePermReply(Reply, kw_only=True):
    """How many topics can be written again on that broker."""

    add_topic_count: Int32


class AddWritePerm(Request[AddWritePermReply], kw_only=True):
    """Undo WipeWritePerm."""

    code: ClassVar[int] = RequestCode.ADD_WRITE_PERM_OF_BROKER
    reply: ClassVar[type[AddWritePermReply]] = AddWritePermReply

    broker_name: str
