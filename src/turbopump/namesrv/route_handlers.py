"""Handlers of a name server for requests about routes, clusters and lists of topics.

Sockets are unknown here.

Codes and remarks follow apache/rocketmq `DefaultRequestProcessor` and `ClientRequestProcessor`.
Where Apache's remark is empty, ours explains.
"""

from collections.abc import Callable

from turbopump.clock import Clock
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.encoded_routes import EncodedRoutes, RouteKey
from turbopump.namesrv.kv_table import ORDER_TOPIC_CONFIG, KvTable
from turbopump.namesrv.route_table import RouteTable
from turbopump.protocol import fastjson
from turbopump.protocol.codes import V4_9_4, ResponseCode
from turbopump.protocol.requests.namesrv import (
    BrokerMemberGroupBody,
    ClusterInfo,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetRouteInfo,
    GetTopicsByCluster,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import TopicList
from turbopump.remoting.response import Refusal, Response, encode_response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps


class RouteHandlers:
    """Handlers of one name server for routes.

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
        router.add(GetRouteInfo, self.route_info)
        router.add(GetBrokerClusterInfo, self.cluster_info)
        router.add(GetBrokerMemberGroup, self.member_group)
        router.add(GetAllTopicList, self.all_topics)
        router.add(GetTopicsByCluster, self.topics_by_cluster)

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


def _listed(topics: Callable[[], tuple[str, ...]]) -> Steps[Response[TopicList]]:
    yield  # there may be thousands of topics
    return Response(TopicList(topic_list=topics()))


def _refused(remark: str) -> Refusal:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
