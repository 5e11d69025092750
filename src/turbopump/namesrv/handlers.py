"""Request handlers of a name server. Each method handles one kind of request.

Each handler reads or changes the route table and returns the encoded answer. The handlers have no
state beyond the table and the start time. Only one handler waits: a registration whose broker name
is claimed by another address asks that other broker first. Sockets are unknown here.

Codes and remarks follow apache/rocketmq `DefaultRequestProcessor` and `ClientRequestProcessor`.
Where Apache's remark is empty, ours explains.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from turbopump.clock import Clock
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import RemotingError
from turbopump.message.codec import body_crc32
from turbopump.namesrv.kv_table import ORDER_TOPIC_CONFIG, KvTable
from turbopump.namesrv.route_table import (
    DEFAULT_TIMEOUT_MS,
    BrokerIdentity,
    Incomplete,
    Occupied,
    Registration,
    RouteTable,
    Superseded,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import V3_0_11, V4_9_4, V5_0_0, ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.namesrv import (
    AddWritePerm,
    AddWritePermReply,
    BrokerHeartbeat,
    BrokerMemberGroupBody,
    ClusterInfo,
    DeleteTopicInNamesrv,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetRouteInfo,
    GetTopicsByCluster,
    KVTable,
    QueryDataVersion,
    QueryDataVersionReply,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerReply,
    TopicRouteData,
    UnregisterBroker,
    WipeWritePerm,
    WipeWritePermReply,
)
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
)
from turbopump.remoting.response import Refusal, Response, encode_response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_registered = RepeatedLine(log, logging.INFO, "broker registered %s cluster=%s topics=%d")
_left = RepeatedLine(log, logging.INFO, "broker left %s")
_superseded = RepeatedLine(
    log,
    logging.WARNING,
    "registration ignored, a broker with a newer state has this name and id %s owner=%s",
)
_refused_name = RepeatedLine(
    log, logging.WARNING, "registration refused, a live broker has this name and id %s owner=%s"
)
_left_out = RepeatedLine(
    log, logging.WARNING, "topic of a registration ignored %s topic=%s cause=%s"
)
_not_its_own = RepeatedLine(
    log,
    logging.WARNING,
    "unregistration ignored, the broker registered on another connection %s peer=%s",
)

ZONE_FIELD: Final = "__ZONE_NAME"
ROUTES_SIZE_MAX: Final = 64 * 1024 * 1024
"""Maximum total size of the encoded routes in the cache, in bytes."""
RouteKey = tuple[str, bool, str | None]
"""Key of a route in the cache.

The key is the topic, True for standard JSON, and the queues of an ordered topic or None.
"""
OWNER_ANSWER_S: Final = 3.0
"""Seconds to wait until the present owner of a broker's name and id answers."""


class NamesrvHandlers:
    """Request handlers of one name server.

    - ``clock``: the clock, of which only the monotonic time is used.
    """

    def __init__(self, config: NamesrvConfig, table: RouteTable, kv: KvTable, clock: Clock) -> None:
        self._config = config
        self._table = table
        self._kv = kv
        self._clock = clock
        self._encoded = EncodedRoutes()
        table.on_change = self._encoded.forget_routes
        self._started_at = clock.monotonic()

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(RegisterBroker, self.register_broker)
        router.add(UnregisterBroker, self.unregister_broker)
        router.add(BrokerHeartbeat, self.broker_heartbeat)
        router.add_with_body(QueryDataVersion, self.query_data_version)
        router.add(GetRouteInfo, self.route_info)
        router.add(GetBrokerClusterInfo, self.cluster_info)
        router.add(GetBrokerMemberGroup, self.member_group)
        router.add(GetAllTopicList, self.all_topics)
        router.add(GetTopicsByCluster, self.topics_by_cluster)
        router.add(WipeWritePerm, self.wipe_write_perm)
        router.add(AddWritePerm, self.add_write_perm)
        router.add(DeleteTopicInNamesrv, self.delete_topic)

    def register_broker(
        self, request: RegisterBroker, context: RequestContext
    ) -> Outcome[RegisterBrokerReply]:
        if request.body_crc32 and body_crc32(context.body) != request.body_crc32:
            return _refused(
                "crc32 not match: the body differs from what the broker sent; register again"
            )
        if not _is_address(request.broker_addr):
            return _refused(
                f"brokerAddr {request.broker_addr[:80]!r} is not HOST:PORT; set "
                "brokerIP1 and listenPort"
            )
        return self._take_registration(request, context)

    def _take_registration(
        self, request: RegisterBroker, context: RequestContext
    ) -> Steps[Response[RegisterBrokerReply] | Awaitable[Response[RegisterBrokerReply]]]:
        try:
            body = yield from _read_registration(request, context)
        except fastjson.FastjsonError as error:
            return _refused(f"Failed to decode RegisterBrokerBody: {error}")
        broker = BrokerIdentity(
            request.cluster_name, request.broker_name, request.broker_id, request.broker_addr
        )
        _leave_unusable_out(broker, body.topic_config_serialize_wrapper.topic_config_table)
        registration = Registration(
            broker=broker,
            topics=body.topic_config_serialize_wrapper,
            filter_servers=body.filter_server_list,
            ha_address=request.ha_server_addr,
            zone=(context.command.ext or {}).get(ZONE_FIELD),
            timeout_ms=request.heartbeat_timeout_millis or DEFAULT_TIMEOUT_MS,
            acting_master=request.enable_acting_master,
            partial=bool(request.partial),
        )
        outcome = self._register(registration, context.peer)
        if isinstance(outcome, Occupied):
            return self._register_if_gone(outcome, registration, context.peer)
        return outcome

    def _register(
        self, registration: Registration, peer: Wire
    ) -> Response[RegisterBrokerReply] | Occupied:
        broker = registration.broker
        topics = registration.topics.topic_config_table
        known = self._table.data_version(broker.cluster, broker.address) is not None
        outcome = self._table.register(registration, peer, self._clock.monotonic())
        if isinstance(outcome, Occupied):
            return outcome
        if isinstance(outcome, Incomplete):
            return _refused(
                "register broker failed: the first registration of a broker must "
                "carry all of its topics"
            )
        if isinstance(outcome, Superseded):
            _superseded(broker, outcome.owner, kind=broker)
            return Response(RegisterBrokerReply())
        if not known:
            _registered(broker, broker.cluster, len(topics), kind=broker)
        master = outcome.master_address
        ha_server = outcome.ha_address
        return Response(
            RegisterBrokerReply(ha_server_addr=ha_server, master_addr=master),
            body=self._ordered_topics(),
        )

    async def _register_if_gone(
        self, occupied: Occupied, registration: Registration, peer: Wire
    ) -> Response[RegisterBrokerReply]:
        """Ask the present owner of a broker's name and id. Register the new broker if the owner
        does not answer.

        Any answer of the owner counts, also a refusal, because a broker serves no requests on this
        connection.
        """
        owner = occupied.owner
        connection = occupied.connection
        broker = registration.broker
        assert isinstance(connection, Wire)
        try:
            question = request_command(GetBrokerRuntimeInfo(), opaque=connection.calls.next_opaque)
            await connection.start_call(question.opaque, encode_command(question), OWNER_ANSWER_S)
        except RemotingError as error:
            log.warning("broker removed, it does not answer %s cause=%s", owner, error)
            self._table.unregister(owner, connection)
            connection.close()
            outcome = self._register(registration, peer)
            if isinstance(outcome, Response):
                return outcome
        _refused_name(broker, owner, kind=broker)
        return _refused(
            f"a live broker at {owner.address} has the name {broker.name} and id "
            f"{broker.id}: stop it, or set another brokerName or brokerId here"
        )

    def unregister_broker(
        self, request: UnregisterBroker, context: RequestContext
    ) -> Response[None]:
        broker = BrokerIdentity(
            request.cluster_name, request.broker_name, request.broker_id, request.broker_addr
        )
        if self._table.unregister(broker, context.peer):
            _left(broker, kind=broker)
        else:
            _not_its_own(broker, context.peer.peer, kind=broker)
        return Response()

    def broker_heartbeat(self, request: BrokerHeartbeat, context: RequestContext) -> Response[None]:
        self._table.heartbeat(request.cluster_name, request.broker_addr, self._clock.monotonic())
        return Response()

    def query_data_version(
        self, request: QueryDataVersion, version: DataVersion, _context: RequestContext
    ) -> Response[QueryDataVersionReply]:
        registered = self._table.data_version(request.cluster_name, request.broker_addr)
        self._table.heartbeat(request.cluster_name, request.broker_addr, self._clock.monotonic())
        body = b"" if registered is None else fastjson.encode(registered)
        return Response(QueryDataVersionReply(changed=registered != version), body=body)

    def route_info(self, request: GetRouteInfo, context: RequestContext) -> Outcome[TopicRouteData]:
        if self._config.need_wait_for_service:
            ready_at = self._started_at + self._config.wait_seconds_for_service
            left = ready_at - self._clock.monotonic()
            if left > 0:
                return _refused(
                    f"name server not ready: it answers routes in {left:.0f} s "
                    "(waitSecondsForService)"
                )
        order = None
        if self._config.order_message_enable:
            order = self._kv.get(ORDER_TOPIC_CONFIG, request.topic)
        # RocketMQ: older clients cannot read quoted number keys.
        standard = context.version >= V4_9_4 or bool(request.accept_standard_json_only)
        key = request.topic, standard, order
        body = self._encoded.find_body(key)
        if body is None:
            return self._encode_route(key, context.opaque)
        return encode_response(context.opaque, Response(body=body))

    def _encode_route(self, key: RouteKey, opaque: int) -> Steps[Response[TopicRouteData] | bytes]:
        yield  # the route may have hundreds of brokers
        topic, standard, order = key
        changes = self._encoded.changes
        route = self._table.route(topic)
        if route is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, self._why_no_route(topic))
        route.order_topic_conf = order
        body = yield from fastjson.encode_steps(route, standard=standard)
        if changes == self._encoded.changes:
            self._encoded.keep_body(key, body)
        return encode_response(opaque, Response(body=body))

    def cluster_info(
        self, request: GetBrokerClusterInfo, context: RequestContext
    ) -> Response[ClusterInfo]:
        return Response(self._table.cluster_info())

    def member_group(
        self, request: GetBrokerMemberGroup, context: RequestContext
    ) -> Response[BrokerMemberGroupBody]:
        group = self._table.member_group(request.cluster_name, request.broker_name)
        return Response(BrokerMemberGroupBody(broker_member_group=group))

    def all_topics(self, request: GetAllTopicList, context: RequestContext) -> Outcome[TopicList]:
        if not self._config.enable_all_topic_list:
            return _refused(
                "disable: this name server does not list topics (enableAllTopicList=false)"
            )
        return _listed(self._table.topics)

    def topics_by_cluster(
        self, request: GetTopicsByCluster, context: RequestContext
    ) -> Outcome[TopicList]:
        if not self._config.enable_topic_list:
            return _refused(
                "disable: this name server does not list topics (enableTopicList=false)"
            )
        return _listed(lambda: self._table.topics_of_cluster(request.cluster))

    def wipe_write_perm(
        self, request: WipeWritePerm, context: RequestContext
    ) -> Response[WipeWritePermReply]:
        count = self._table.wipe_write_perm(request.broker_name)
        said = "write permission removed broker=%s topics=%d peer=%s"
        log.info(said, request.broker_name, count, context.peer.peer)
        return Response(WipeWritePermReply(wipe_topic_count=count))

    def add_write_perm(
        self, request: AddWritePerm, context: RequestContext
    ) -> Response[AddWritePermReply]:
        count = self._table.add_write_perm(request.broker_name)
        said = "write permission added broker=%s topics=%d peer=%s"
        log.info(said, request.broker_name, count, context.peer.peer)
        return Response(AddWritePermReply(add_topic_count=count))

    def delete_topic(
        self, request: DeleteTopicInNamesrv, context: RequestContext
    ) -> Response[None]:
        count = self._table.delete_topic(request.topic, request.cluster_name or None)
        log.info(
            "topic deleted topic=%s brokers=%d peer=%s", request.topic, count, context.peer.peer
        )
        return Response()

    def _ordered_topics(self) -> bytes:
        """Return the encoded configuration of ordered topics. It is the body of the answer to a
        registration."""
        if not self._config.return_order_topic_config_to_broker:
            return b""
        texts = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return b"" if texts is None else fastjson.encode(KVTable(table=dict(texts)))

    def _why_no_route(self, topic: str) -> str:
        start = f"No topic route info in name server for the topic: {topic[:128]}. "
        if not self._table.broker_count:
            return start + (
                "No broker is registered here: start one with this name server in its namesrvAddr."
            )
        return start + (
            "No registered broker has it: create it, or send to it with autoCreateTopicEnable=true "
            "on the broker; if it exists, its broker registers with another name server."
        )


class EncodedRoutes:
    """Cache of encoded routes. The encoding of a route with 200 brokers takes milliseconds.

    ``changes`` counts route changes. A route that was encoded while this number grew may be wrong
    and is not cached.
    """

    def __init__(self) -> None:
        self._bodies: dict[str, dict[RouteKey, bytes]] = {}
        self._size = 0
        self.changes = 0

    def find_body(self, key: RouteKey) -> bytes | None:
        bodies = self._bodies.get(key[0])
        return None if bodies is None else bodies.get(key)

    def keep_body(self, key: RouteKey, body: bytes) -> None:
        if self._size + len(body) > ROUTES_SIZE_MAX:
            self.forget_routes(None)
        self._size += len(body)
        self._bodies.setdefault(key[0], {})[key] = body

    def forget_routes(self, topic: str | None) -> None:
        """Remove the routes of a changed topic from the cache. If ``topic`` is None, remove all
        routes."""
        self.changes += 1
        if topic is None:
            self._bodies.clear()
            self._size = 0
        else:
            self._size -= sum(map(len, self._bodies.pop(topic, {}).values()))


def _read_registration(
    request: RegisterBroker, context: RequestContext
) -> Steps[RegisterBrokerBody]:
    yield  # the body may have thousands of topics
    if not context.body:
        return RegisterBrokerBody()
    if context.version < V3_0_11:  # RocketMQ: then the body was the topics alone
        topics = fastjson.decode(context.body, TopicConfigAndMappingSerializeWrapper)
        return RegisterBrokerBody(topic_config_serialize_wrapper=topics)
    if request.compressed:
        return (
            yield from RegisterBrokerBody.decode_compressed(
                context.body, with_mappings=context.version >= V5_0_0
            )
        )
    return RegisterBrokerBody.decode(context.body)


def _leave_unusable_out(broker: BrokerIdentity, topics: dict[str, TopicConfig]) -> None:
    """Remove topics with an invalid number of queues from a registration.

    To refuse the whole registration would also remove the broker's valid topics.
    """
    faults = [(key, config.queues_fault()) for key, config in topics.items()]
    for key, fault in faults:
        if fault is not None:
            name = (topics.pop(key).topic_name or key)[:128]
            _left_out(broker, name, fault, kind=(broker, name))


def _listed(topics: Callable[[], tuple[str, ...]]) -> Steps[Response[TopicList]]:
    yield  # there may be thousands of topics
    return Response(TopicList(topic_list=topics()))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535


def _refused(remark: str) -> Refusal:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
