"""Answers to 34, 35, 38, and the notice 40 to a group whose members or subscriptions have changed.

Source: apache/rocketmq ``ClientManageProcessor``, ``ConsumerManageProcessor``, ``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import logging

from turbopump.broker.consumers import ClientTable
from turbopump.broker.groups import GroupTable
from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import BodyError, ProtocolError
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.consumers import ConsumerIdList
from turbopump.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.clients import (
    GetConsumerListByGroup,
    Heartbeat,
    HeartbeatReply,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import RequestContext, Response

log = logging.getLogger(__name__)


class ClientsHandler:
    """Keeps the table of clients true."""

    def __init__(self, config: BrokerConfig, clients: ClientTable[Connection], topics: TopicTable, groups: GroupTable) -> None:
        self._config = config
        self._clients = clients
        self._topics = topics
        self._groups = groups

    def heartbeat(self, _request: Heartbeat, context: RequestContext) -> Response:
        try:
            data = fastjson.decode(context.body, HeartbeatData)
        except ProtocolError as error:
            raise BodyError(f"the heartbeat body cannot be read: {error}") from None
        if not data.client_id:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark="the heartbeat has no clientID")
        peer, now = context.peer, context.peer.now()
        changed: list[str] = []
        resend = False
        for consumer in data.consumer_data_set:
            refused = self._prepare_group(consumer)
            if refused is not None:
                return refused
            assert consumer.group_name is not None
            if self._groups.find(consumer.group_name) is None:  # RocketMQ: passed over; its pulls will hear 26
                continue
            known = self._clients.groups.get(consumer.group_name)
            if data.heartbeat_fingerprint and data.without_sub:
                if known is None or known.fingerprint != data.heartbeat_fingerprint:
                    resend = True
                elif self._clients.keep_consumer(peer, data.client_id, context.version, consumer.group_name, now):
                    changed.append(consumer.group_name)
                continue
            try:
                if self._clients.add_consumer(peer, data.client_id, context.version, consumer, now):
                    changed.append(consumer.group_name)
            except ValueError as error:
                return Response(code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
            self._clients.groups[consumer.group_name].fingerprint = data.heartbeat_fingerprint
        for producer in data.producer_data_set:
            if producer.group_name:
                self._clients.add_producer(peer, data.client_id, context.version, producer.group_name, now)
        for group in changed:
            self._notify(group)
        return Response(HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=resend))

    def unregister(self, request: UnregisterClient, context: RequestContext) -> Response:
        if request.producer_group:
            self._clients.remove_producer(context.peer, request.producer_group)
        if request.consumer_group and self._clients.remove_consumer(context.peer, request.consumer_group):
            self._notify(request.consumer_group)
        return Response()

    def consumer_list(self, request: GetConsumerListByGroup, _context: RequestContext) -> Response:
        ids = self._clients.client_ids(request.consumer_group)
        if not ids:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {request.consumer_group}")
        return Response(body=fastjson.encode(ConsumerIdList(consumer_id_list=ids)))

    def connection_lost(self, peer: Connection) -> None:
        """Forget a connection that has ended."""
        for group in self._clients.remove_peer(peer):
            self._notify(group)

    def close_silent(self, now: float, timeout: float) -> None:
        """Close the connections of clients that have sent no heartbeat for ``timeout`` seconds."""
        for peer in self._clients.silent_since(now - timeout):
            log.warning("client sends no heartbeat, closing its connection peer=%s", peer.peer)
            peer.close()

    def _prepare_group(self, consumer: ConsumerData) -> Response | None:
        """The group must have a legal name; its settings and its retry topic are made when it is first heard of."""
        fault = group_fault(consumer.group_name or "")
        if fault is not None:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=fault)
        assert consumer.group_name is not None
        settings = self._groups.find(consumer.group_name)
        if settings is not None and settings.retry_queue_nums > 0:
            self._topics.create_retry_topic(consumer.group_name, settings.retry_queue_nums)
        return None

    def _notify(self, group: str) -> None:
        settings = self._groups.find(group)
        if not self._config.notify_consumer_ids_changed_enable:
            return
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        for peer in self._clients.members(group):
            command = request_command(NotifyConsumerIdsChanged(consumer_group=group), opaque=peer.next_opaque, oneway=True)
            peer.send_frame(encode_command(command))
