"""Handlers of a name server for requests by operators.

The requests concern the KV configuration, lists of special topics, and topics registered by hand.
The answer to a change of the KV configuration is sent when the change is on the disk. Sockets are
unknown here. Codes follow apache/rocketmq `DefaultRequestProcessor`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from turbopump.config.running import RunningConfiguration
from turbopump.namesrv.kv_table import KvTable
from turbopump.namesrv.route_table import RouteTable
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests import namesrv as requests
from turbopump.protocol.requests.topics import FLAG_UNIT, FLAG_UNIT_SUB, TopicList
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

log = logging.getLogger(__name__)

_UNIT_LISTS: Final[tuple[tuple[type[Request[TopicList]], int, int], ...]] = (
    (requests.GetUnitTopicList, FLAG_UNIT, FLAG_UNIT),
    (requests.GetHasUnitSubTopicList, FLAG_UNIT_SUB, FLAG_UNIT_SUB),
    (requests.GetHasUnitSubUnunitTopicList, FLAG_UNIT | FLAG_UNIT_SUB, FLAG_UNIT_SUB),
)
"""Requests for topics with certain system flags: the bits that count, and their values."""


class OperatorHandlers:
    """Handlers of one name server for requests by operators."""

    def __init__(self, running: RunningConfiguration, table: RouteTable, kv: KvTable) -> None:
        self._running = running
        self._table = table
        self._kv = kv

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(requests.PutKvConfig, self.put_kv)
        router.add(requests.GetKvConfig, self.get_kv)
        router.add(requests.DeleteKvConfig, self.delete_kv)
        router.add(requests.GetKvListByNamespace, self.kv_namespace)
        router.add_with_body(requests.RegisterTopicInNamesrv, self.register_topic)
        router.add(requests.DeleteTopicInNamesrv, self.delete_topic)
        router.add(requests.WipeWritePerm, self.wipe_write_perm)
        router.add(requests.AddWritePerm, self.add_write_perm)
        router.add(requests.GetSystemTopicList, self.system_topics)
        for request, mask, flags in _UNIT_LISTS:
            router.add(request, partial(self._flagged_topics, mask, flags))

    # --- the KV configuration

    async def put_kv(
        self, request: requests.PutKvConfig, context: RequestContext
    ) -> Response[None]:
        self._kv.put(request.kv_namespace, request.key, request.value)
        log.info(
            "KV configuration set namespace=%s key=%s value=%s peer=%s",
            request.kv_namespace,
            request.key,
            request.value,
            context.peer.peer,
        )
        return await self._saved_kv()

    def get_kv(
        self, request: requests.GetKvConfig, context: RequestContext
    ) -> Response[requests.GetKvConfigReply]:
        value = self._kv.get(request.kv_namespace, request.key)
        if value is None:
            return refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {request.kv_namespace} Key: {request.key}",
            )
        return Response(requests.GetKvConfigReply(value=value))

    async def delete_kv(
        self, request: requests.DeleteKvConfig, context: RequestContext
    ) -> Response[None]:
        self._kv.delete(request.kv_namespace, request.key)
        log.info(
            "KV configuration removed namespace=%s key=%s peer=%s",
            request.kv_namespace,
            request.key,
            context.peer.peer,
        )
        return await self._saved_kv()

    def kv_namespace(
        self, request: requests.GetKvListByNamespace, context: RequestContext
    ) -> Response[requests.KVTable]:
        texts = self._kv.namespace(request.kv_namespace)
        if texts is None:
            return refusal(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.kv_namespace}"
            )
        return Response(requests.KVTable(table=dict(texts)))

    async def _saved_kv(self) -> Response[None]:
        if await self._kv.saved():
            return Response()
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            "the change is active but not on the disk: it is lost if the name server stops "
            "before a later attempt succeeds; read the reason in the server's log",
        )

    # --- topics

    def register_topic(
        self,
        request: requests.RegisterTopicInNamesrv,
        route: requests.TopicRouteData,
        context: RequestContext,
    ) -> Response[None]:
        fault = route.fault()
        if fault is not None:
            return refusal(ResponseCode.SYSTEM_ERROR, f"topic {request.topic!r}: {fault}")
        stranger = self._table.set_queues(request.topic, route.queue_datas)
        if stranger is not None:
            # RocketMQ: answers 0, and the topic has no route
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"broker {stranger!r} is not registered; nothing changed"
            )
        said = "topic registered by an operator topic=%s brokers=%d peer=%s"
        log.info(said, request.topic, len(route.queue_datas), context.peer.peer)
        return Response()

    def wipe_write_perm(
        self, request: requests.WipeWritePerm, context: RequestContext
    ) -> Response[requests.WipeWritePermReply]:
        count = self._table.wipe_write_perm(request.broker_name)
        said = "write permission removed broker=%s topics=%d peer=%s"
        log.info(said, request.broker_name, count, context.peer.peer)
        return Response(requests.WipeWritePermReply(wipe_topic_count=count))

    def add_write_perm(
        self, request: requests.AddWritePerm, context: RequestContext
    ) -> Response[requests.AddWritePermReply]:
        count = self._table.add_write_perm(request.broker_name)
        said = "write permission added broker=%s topics=%d peer=%s"
        log.info(said, request.broker_name, count, context.peer.peer)
        return Response(requests.AddWritePermReply(add_topic_count=count))

    def delete_topic(
        self, request: requests.DeleteTopicInNamesrv, context: RequestContext
    ) -> Response[None]:
        count = self._table.delete_topic(request.topic, request.cluster_name or None)
        log.info(
            "topic deleted topic=%s brokers=%d peer=%s", request.topic, count, context.peer.peer
        )
        return Response()

    def system_topics(
        self, request: requests.GetSystemTopicList, context: RequestContext
    ) -> Response[TopicList]:
        return Response(self._table.system_topics())

    def _flagged_topics(
        self, mask: int, flags: int, _request: Request[TopicList], _context: RequestContext
    ) -> Response[TopicList]:
        if self._running.all_texts()["enableTopicList"] != "true":
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                "disable: this name server does not list topics (enableTopicList=false)",
            )
        return Response(TopicList(topic_list=self._table.topics_flagged(mask, flags)))
