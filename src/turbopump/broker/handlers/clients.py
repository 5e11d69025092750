"""Handler of heartbeats and of requests about the members of a group (34, 35, 38 and 46).

Source: apache/rocketmq ``ClientManageProcessor``, ``ConsumerManageProcessor``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from turbopump.broker.dead_letters import retry_topic
from turbopump.broker.membership import Membership
from turbopump.broker.stored import Stored
from turbopump.broker.subscriptions import (
    TAG,
    no_property_filter,
    read_subscription,
    read_subscriptions,
)
from turbopump.errors import BodyError, ProtocolError
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import clients as requests
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.repeated_line import RepeatedLine

T = TypeVar("T")

log = logging.getLogger(__name__)
_another_s = RepeatedLine(
    log,
    logging.WARNING,
    "producers of a heartbeat passed over, another user's client that is connected has its client "
    "id clientId=%s user=%s peer=%s other_user=%s",
)


@dataclass(eq=False)
class ClientsHandler:
    """Handler of heartbeats and of requests about the members of a group."""

    stored: Stored
    membership: Membership

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(requests.Heartbeat, self.heartbeat)
        router.add(requests.UnregisterClient, self.unregister)
        router.add(requests.GetConsumerListByGroup, self.consumer_list)
        router.add_with_body(requests.CheckClientConfig, self.check)

    def heartbeat(
        self, _request: requests.Heartbeat, context: RequestContext
    ) -> Steps[Response[requests.HeartbeatReply]]:
        """Record a client and its groups. Return the conflicts in these groups.

        The conflicts are in the remark beside code 0, which only our clients read. RocketMQ reports
        no conflicts.
        """
        yield  # thousands may come at once
        try:
            data = requests.read_heartbeat(context.body)
        except ProtocolError as error:
            raise BodyError(f"the body cannot be read as HeartbeatData: {error}") from None
        if not data.client_id:
            return refusal(ResponseCode.SYSTEM_ERROR, "the heartbeat has no clientID")
        producing = bool(data.producer_data_set) and self._may_produce(data.client_id, context)
        return (yield from self._note_heartbeat(data, context, producing=producing))

    def _may_produce(self, client_id: str, context: RequestContext) -> bool:
        """Return True if a client may act for the producer groups in its heartbeat.

        The broker sends checks of half messages to members of these groups, and replies to their
        client ids. RocketMQ: every producer may.
        """
        peer = context.peer
        holder = self.stored.clients.find_producer(client_id)
        if holder is not None and not holder.closed and holder.user != peer.user:
            _another_s(client_id, peer.user, peer.peer, holder.user, kind=(client_id, peer.user))
            return False
        return context.may_produce

    def _note_heartbeat(
        self,
        data: requests.HeartbeatData | requests.HeartbeatInPieces,
        context: RequestContext,
        *,
        producing: bool,
    ) -> Steps[Response[requests.HeartbeatReply]]:
        """Record the contents of a heartbeat. Yield after each group."""
        peer = context.peer
        now = context.peer.now()
        language = int(context.command.language)
        assert data.client_id is not None
        who = (peer, data.client_id, context.version)
        fingerprint = data.heartbeat_fingerprint
        wrong: list[str] = []
        resend = False
        for piece in data.consumer_data_set:
            if isinstance(piece, msgspec.Raw):
                consumer = _read(bytes(piece), requests.ConsumerData)
            else:
                consumer = piece
            refused = self._prepare_group(consumer)
            if refused is not None:
                return refused
            assert consumer.group_name is not None
            # RocketMQ: passed over; its pulls will hear 26
            if self.stored.tables.groups.find_or_create(consumer.group_name) is None:
                continue
            changed: bool | None
            if fingerprint and data.without_sub:
                changed = self.stored.clients.keep_consumer(
                    *who, consumer.group_name, now, fingerprint
                )
                resend = resend or changed is None
            else:
                try:
                    subscriptions = yield from read_subscriptions(consumer)
                except ValueError as error:
                    return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
                changed = self.stored.clients.add_consumer(
                    *who, consumer, subscriptions, now, language, fingerprint
                )
            wrong += self.membership.note_heartbeat(consumer.group_name, now, changed=bool(changed))
            yield
            if peer.closed:
                self.membership.connection_lost(peer)
                break
        for producer in data.producer_data_set if producing and not peer.closed else ():
            if producer.group_name:
                self.stored.clients.add_producer(*who, producer.group_name, now, language)
                yield
        return Response(
            requests.HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=resend),
            remark="; ".join(wrong) if wrong else None,
        )

    def unregister(
        self, request: requests.UnregisterClient, context: RequestContext
    ) -> Steps[Response[None]]:
        yield  # thousands may come at once
        if request.producer_group:
            self.stored.clients.remove_producer(context.peer, request.producer_group)
        if request.consumer_group and self.stored.clients.remove_consumer(
            context.peer, request.consumer_group
        ):
            self.membership.note_loss(request.consumer_group, context.peer.now())
        return Response()

    def consumer_list(
        self, request: requests.GetConsumerListByGroup, _context: RequestContext
    ) -> Response[requests.ConsumerIdList]:
        group = self.stored.clients.groups.get(request.consumer_group)
        if group is None:
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {request.consumer_group}"
            )
        if not group.id_list:
            ids = self.stored.clients.client_ids(request.consumer_group)
            group.id_list = fastjson.encode(requests.ConsumerIdList(consumer_id_list=ids))
        # encoded once for all members, who ask for it together
        return cast("Response[requests.ConsumerIdList]", Response(body=group.id_list))

    def check(
        self,
        _request: requests.CheckClientConfig,
        body: requests.CheckClientRequestBody,
        _context: RequestContext,
    ) -> Response[None]:
        """Check that the subscription of a consumer is valid."""
        data = body.subscription_data
        if data is None or data.expression_type in (None, "", TAG):
            return Response()
        if not self.stored.config.enable_property_filter:
            return no_property_filter(data.expression_type)
        fault = read_subscription(data).fault
        if fault is None:
            return Response()
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, fault)

    def _prepare_group(self, consumer: requests.ConsumerData) -> Refusal | None:
        """Create the settings and the retry topic of a group at its first heartbeat.

        Return a refusal if the name of the group is invalid, else None.
        """
        fault = group_fault(consumer.group_name or "")
        if fault is not None:
            return refusal(ResponseCode.SYSTEM_ERROR, fault)
        assert consumer.group_name is not None
        settings = self.stored.tables.groups.find_or_create(consumer.group_name)
        if settings is not None and settings.retry_queue_nums > 0:
            retry_topic(
                self.stored.tables.topics,
                consumer.group_name,
                settings.retry_queue_nums,
                unit_mode=consumer.unit_mode,
            )
        return None


def _read(text: bytes, kind: type[T]) -> T:
    try:
        return fastjson.decode_request(text, kind)
    except ProtocolError as error:
        raise BodyError(f"the body cannot be read as {kind.__name__}: {error}") from None
