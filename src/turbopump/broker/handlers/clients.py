"""Answers to 34, 35, 38, 46, and the notice 40 to a group whose members or subscriptions have
changed.

Source: apache/rocketmq ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import logging
from typing import Final

from turbopump.broker.consumer_conflicts import conflicts
from turbopump.broker.consumers import TAG, ClientTable, no_property_filter, read_subscription
from turbopump.broker.groups import GroupTable
from turbopump.broker.request_modes import RequestModes
from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import BodyError, ProtocolError
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.assignment import MessageRequestMode
from turbopump.protocol.bodies.connections import CheckClientRequestBody
from turbopump.protocol.bodies.consumers import ConsumerIdList
from turbopump.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.clients import (
    CheckClientConfig,
    GetConsumerListByGroup,
    Heartbeat,
    HeartbeatReply,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import RequestContext, Response

SMALL_GROUP: Final = 100
"""So many members are compared at every heartbeat; more, not again before LOOK_PAUSE_S seconds a
member, unless one comes or goes."""
LOOK_PAUSE_S: Final = 0.01

log = logging.getLogger(__name__)


class ClientsHandler:
    """Keeps the table of clients true."""

    def __init__(
        self,
        config: BrokerConfig,
        clients: ClientTable[Connection],
        topics: TopicTable,
        groups: GroupTable,
        request_modes: RequestModes,
    ) -> None:
        self._config = config
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._request_modes = request_modes
        self._conflicts: dict[str, tuple[str, ...]] = {}
        """What was wrong in each group when it was looked at last, and when a large one is looked
        at again."""
        self._next_look: dict[str, float] = {}

    def heartbeat(self, _request: Heartbeat, context: RequestContext) -> Response:
        """RocketMQ tells of no conflicts. The remark beside code 0 is read by our clients and by no
        other."""
        try:
            data = fastjson.decode(context.body, HeartbeatData)
        except ProtocolError as error:
            raise BodyError(f"the heartbeat body cannot be read: {error}") from None
        if not data.client_id:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark="the heartbeat has no clientID")
        peer, now, language = context.peer, context.peer.now(), int(context.command.language)
        changed: list[str] = []
        resend = False
        for consumer in data.consumer_data_set:
            refused = self._prepare_group(consumer)
            if refused is not None:
                return refused
            assert consumer.group_name is not None
            # RocketMQ: passed over; its pulls will hear 26
            if self._groups.find(consumer.group_name) is None:
                continue
            who, fingerprint = (peer, data.client_id, context.version), data.heartbeat_fingerprint
            if fingerprint and data.without_sub:
                kept = self._clients.keep_consumer(*who, consumer.group_name, now, fingerprint)
                resend = resend or kept is None
                if kept:
                    changed.append(consumer.group_name)
                continue
            try:
                if self._clients.add_consumer(*who, consumer, now, language, fingerprint):
                    changed.append(consumer.group_name)
            except ValueError as error:
                return Response(code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        for producer in data.producer_data_set:
            if producer.group_name:
                self._clients.add_producer(
                    peer, data.client_id, context.version, producer.group_name, now, language
                )
        for group in changed:
            self._notify(group)
        groups = [consumer.group_name or "" for consumer in data.consumer_data_set]
        wrong = [
            sentence
            for group in groups
            for sentence in (
                self._look_for_conflicts(group, now)
                if group in changed or self._next_look.get(group, 0.0) <= now
                else self._conflicts.get(group, ())
            )
        ]
        return Response(
            HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=resend),
            remark="; ".join(wrong) if wrong else None,
        )

    def conflicts(self, name: str) -> tuple[str, ...]:
        """What is wrong among the members of a group now, a sentence each."""
        group = self._clients.groups.get(name)
        if group is None:
            return ()
        return conflicts(
            name,
            group.members.values(),
            lambda topic: self._request_modes.find(topic, name).mode is MessageRequestMode.POP,
        )

    def _look_for_conflicts(self, name: str, now: float) -> tuple[str, ...]:
        """What is wrong in a group now, as the log is told once. It costs 2 µs a member, 4 if they
        differ."""
        group = self._clients.groups.get(name)
        found = self.conflicts(name)
        self._next_look.pop(name, None)
        if group is not None and len(group.members) > SMALL_GROUP:
            self._next_look[name] = now + len(group.members) * LOOK_PAUSE_S
        before = self._conflicts.pop(name, ())
        if found:
            self._conflicts[name] = found
        for sentence in found:
            if sentence not in before:
                log.warning("consumers in conflict group=%s: %s", name, sentence)
        if before and not found:
            log.info("consumers no longer in conflict group=%s", name)
        return found

    def unregister(self, request: UnregisterClient, context: RequestContext) -> Response:
        if request.producer_group:
            self._clients.remove_producer(context.peer, request.producer_group)
        if request.consumer_group and self._clients.remove_consumer(
            context.peer, request.consumer_group
        ):
            self._look_for_conflicts(request.consumer_group, context.peer.now())
            self._notify(request.consumer_group)
        return Response()

    def consumer_list(self, request: GetConsumerListByGroup, _context: RequestContext) -> Response:
        ids = self._clients.client_ids(request.consumer_group)
        if not ids:
            return Response(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"no consumer for this group, {request.consumer_group}",
            )
        return Response(body=fastjson.encode(ConsumerIdList(consumer_id_list=ids)))

    def check(self, _request: CheckClientConfig, context: RequestContext) -> Response:
        """Whether a consumer's subscription will be understood."""
        try:
            data = fastjson.decode(context.body, CheckClientRequestBody).subscription_data
        except ProtocolError as error:
            raise BodyError(f"the body of a subscription check cannot be read: {error}") from None
        if data is None or data.expression_type in (None, "", TAG):
            return Response()
        if not self._config.enable_property_filter:
            return no_property_filter(data.expression_type)
        fault = read_subscription(data).fault
        return (
            Response()
            if fault is None
            else Response(code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=fault)
        )

    def connection_lost(self, peer: Connection) -> None:
        """Forget a connection that has ended."""
        for group in self._clients.remove_peer(peer):
            self._look_for_conflicts(group, peer.now())
            self._notify(group)

    def close_silent(self, now: float, timeout: float) -> None:
        """Close the connections of clients that have sent no heartbeat for ``timeout`` seconds."""
        for peer in self._clients.silent_since(now - timeout):
            log.warning("client sends no heartbeat, closing its connection peer=%s", peer.peer)
            peer.close()

    def _prepare_group(self, consumer: ConsumerData) -> Response | None:
        """The group must have a legal name; its settings and its retry topic are made when it is
        first heard of."""
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
            command = request_command(
                NotifyConsumerIdsChanged(consumer_group=group), opaque=peer.next_opaque, oneway=True
            )
            peer.send_frame(encode_command(command))
