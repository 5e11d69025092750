"""Heartbeats and the table of clients (34, 35, 38, 46), and the notice of a change in a group (40).

Source: apache/rocketmq ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from turbopump.broker.consumers import (
    TAG,
    conflicts,
    no_property_filter,
    read_subscription,
    read_subscriptions,
)
from turbopump.broker.dead_letters import retry_topic
from turbopump.broker.reading import entry_for, read
from turbopump.broker.stored import Stored
from turbopump.errors import BodyError, CallTimeoutError, ProtocolError, RemotingError
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, encode_command, reply_in, request_command
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests import clients as requests
from turbopump.protocol.requests.assignment import MessageRequestMode
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectly,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerRunningInfo,
)
from turbopump.protocol.requests.offsets import (
    GetConsumerStatus,
    GetConsumerStatusBody,
    GetConsumerStatusFromClient,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.turns import Steps, Turns
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

SMALL_GROUP: Final = 100
"""Maximum members of a group that is checked for conflicts at every heartbeat.

A larger group is checked after LOOK_PAUSE_S seconds for each member. It is also checked when a
member joins or leaves while the group has no conflict.
"""
LOOK_PAUSE_S: Final = 0.01
NOTICE_AT_ONCE: Final = 50
"""Maximum members of a group that is notified at once of each change.

A larger group is notified after NOTICE_PAUSE_S seconds for each member. Each notified member
requests the whole list, which takes some 0.1 ms.
"""
NOTICE_PAUSE_S: Final = 0.001
NOTICE_PAUSE_MAX_S: Final = 2.0

T = TypeVar("T")

log = logging.getLogger(__name__)
_no_heartbeat = RepeatedLine(
    log, logging.WARNING, "client sends no heartbeat, closing its connection peer=%s"
)
_another_s = RepeatedLine(
    log,
    logging.WARNING,
    "producers of a heartbeat passed over, another user's client that is connected has its client "
    "id clientId=%s user=%s peer=%s other_user=%s",
)
_no_offsets = RepeatedLine(
    log, logging.WARNING, "consumer does not give its offsets group=%s client=%s cause=%s"
)


@dataclass(eq=False)
class ClientsHandler:
    """Handler of heartbeats and of questions about the members of a group."""

    stored: Stored
    turns: Turns

    def __post_init__(self) -> None:
        self._conflicts: dict[str, tuple[str, ...]] = {}
        """Conflicts found in each group at its last check, and the time of the next check of a
        large group."""
        self._next_look: dict[str, float] = {}
        self._to_notify: set[str] = set()
        self._noticed: dict[str, float] = {}
        """Time of the last notification of large groups."""

    def add_to(self, router: Router) -> None:
        """Register the handlers of these requests."""
        router.add(requests.Heartbeat, self.heartbeat)
        router.add(requests.UnregisterClient, self.unregister)
        router.add(requests.GetConsumerListByGroup, self.consumer_list)
        router.add_with_body(requests.CheckClientConfig, self.check)

    def heartbeat(
        self, _request: requests.Heartbeat, context: RequestContext
    ) -> Steps[Response[requests.HeartbeatReply]]:
        """Record a client and its groups. Return conflicts in the remark beside code 0, which only
        our clients read. RocketMQ reports no conflicts."""
        yield  # thousands may come at once
        try:
            data = requests.read_heartbeat(context.body)
        except ProtocolError as error:
            raise BodyError(f"the body cannot be read as HeartbeatData: {error}") from None
        if not data.client_id:
            return refusal(ResponseCode.SYSTEM_ERROR, "the heartbeat has no clientID")
        producing = bool(data.producer_data_set) and self._may_produce(data.client_id, context)
        return (yield from self._note(data, context, producing=producing))

    def _may_produce(self, client_id: str, context: RequestContext) -> bool:
        """Return True if the client may act for the producer groups of its heartbeat.

        The broker sends checks of half messages to members of these groups, and replies to their
        client ids. RocketMQ: every producer may.
        """
        peer, holder = context.peer, self.stored.clients.find_producer(client_id)
        if holder is not None and not holder.closed and holder.user != peer.user:
            _another_s(client_id, peer.user, peer.peer, holder.user, kind=(client_id, peer.user))
            return False
        return context.may_produce

    def _note(
        self,
        data: requests.HeartbeatData | requests.HeartbeatInPieces,
        context: RequestContext,
        *,
        producing: bool,
    ) -> Steps[Response[requests.HeartbeatReply]]:
        """Record the contents of a heartbeat, one step for each group."""
        peer, now, language = context.peer, context.peer.now(), int(context.command.language)
        assert data.client_id is not None
        who, fingerprint = (peer, data.client_id, context.version), data.heartbeat_fingerprint
        wrong: list[str] = []
        resend = False
        for piece in data.consumer_data_set:
            consumer = (
                _read(bytes(piece), requests.ConsumerData)
                if isinstance(piece, msgspec.Raw)
                else piece
            )
            refused = self._prepare_group(consumer)
            if refused is not None:
                return refused
            assert consumer.group_name is not None
            # RocketMQ: passed over; its pulls will hear 26
            if self.stored.tables.groups.find(consumer.group_name) is None:
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
            if changed:
                self.notify(consumer.group_name)
            wrong += self._look_for_conflicts(consumer.group_name, now, changed=bool(changed))
            yield
            if peer.closed:
                self.connection_lost(peer)
                break
        for producer in data.producer_data_set if producing and not peer.closed else ():
            if producer.group_name:
                self.stored.clients.add_producer(*who, producer.group_name, now, language)
                yield
        return Response(
            requests.HeartbeatReply(is_support_heart_beat_v2=True, is_sub_change=resend),
            remark="; ".join(wrong) if wrong else None,
        )

    def conflicts(self, name: str) -> tuple[str, ...]:
        """Return the present conflicts among the members of a group, one sentence for each."""
        group = self.stored.clients.groups.get(name)
        if group is None or group.alike:
            return ()
        return conflicts(
            name,
            group.members.values(),
            lambda topic: (
                self.stored.request_modes.find(topic, name).mode is MessageRequestMode.POP
            ),
        )

    def _look_for_conflicts(self, name: str, now: float, *, changed: bool) -> tuple[str, ...]:
        """Find the conflicts in a group, and log each once. Return those of the last check if a
        large group is not due yet. A check costs 4 µs a member, and nothing for equal members."""
        before = self._conflicts.get(name, ())
        if self._next_look.get(name, 0.0) > now and (before or not changed):
            return before
        group = self.stored.clients.groups.get(name)
        found = self.conflicts(name)
        self._next_look.pop(name, None)
        if group is not None and len(group.members) > SMALL_GROUP:
            self._next_look[name] = now + len(group.members) * LOOK_PAUSE_S
        self._conflicts.pop(name, None)
        if found:
            self._conflicts[name] = found
        for sentence in found:
            if sentence not in before:
                log.warning("consumers in conflict group=%s: %s", name, sentence)
        if before and not found:
            log.info("consumers no longer in conflict group=%s", name)
        return found

    def unregister(
        self, request: requests.UnregisterClient, context: RequestContext
    ) -> Steps[Response[None]]:
        yield  # thousands may come at once
        if request.producer_group:
            self.stored.clients.remove_producer(context.peer, request.producer_group)
        if request.consumer_group and self.stored.clients.remove_consumer(
            context.peer, request.consumer_group
        ):
            self._look_for_conflicts(request.consumer_group, context.peer.now(), changed=True)
            self.notify(request.consumer_group)
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
        """Check that a consumer's subscription is valid."""
        data = body.subscription_data
        if data is None or data.expression_type in (None, "", TAG):
            return Response()
        if not self.stored.config.enable_property_filter:
            return no_property_filter(data.expression_type)
        fault = read_subscription(data).fault
        return (
            Response() if fault is None else refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, fault)
        )

    def connection_lost(self, peer: Wire) -> None:
        """Remove a connection that has ended."""
        self.turns.run(peer, self._leave(self.stored.clients.remove_peer(peer), peer.now()))

    def _leave(self, groups: Iterator[str], now: float) -> Steps[None]:
        """Handle the loss of one member in each of these groups."""
        for name in groups:
            self._look_for_conflicts(name, now, changed=True)
            self.notify(name)
            yield

    def close_silent(self, now: float, timeout: float) -> None:
        """Close the connections of clients that have sent no heartbeat for ``timeout`` seconds."""
        for peer in self.stored.clients.silent_since(now - timeout):
            _no_heartbeat(peer.peer)
            peer.close()

    def _prepare_group(self, consumer: requests.ConsumerData) -> Refusal | None:
        """Create the settings and the retry topic of a group at its first heartbeat. Return a
        refusal if its name is invalid."""
        fault = group_fault(consumer.group_name or "")
        if fault is not None:
            return refusal(ResponseCode.SYSTEM_ERROR, fault)
        assert consumer.group_name is not None
        settings = self.stored.tables.groups.find(consumer.group_name)
        if settings is not None and settings.retry_queue_nums > 0:
            retry_topic(
                self.stored.tables.topics,
                consumer.group_name,
                settings.retry_queue_nums,
                unit_mode=consumer.unit_mode,
            )
        return None

    def notify(self, name: str) -> None:
        """Notify the members of a group of a change: at the end of this turn of the event loop, or
        after the pause of a large group."""
        group = self.stored.clients.groups.get(name)
        if group is None:
            self._noticed.pop(name, None)
            return
        if name in self._to_notify:
            return
        loop, size = asyncio.get_running_loop(), len(group.members)
        pause = min(NOTICE_PAUSE_S * size, NOTICE_PAUSE_MAX_S) if size > NOTICE_AT_ONCE else 0.0
        self._to_notify.add(name)
        loop.call_at(self._noticed.get(name, loop.time() - pause) + pause, self._notify_now, name)

    def _notify_now(self, name: str) -> None:
        self._to_notify.discard(name)
        members, now = self.stored.clients.members(name), asyncio.get_running_loop().time()
        self._noticed.pop(name, None)
        if len(members) > NOTICE_AT_ONCE:
            self._noticed[name] = now
        settings = (
            self.stored.tables.groups.find(name) if self.stored.tables.groups.knows(name) else None
        )
        if not self.stored.config.notify_consumer_ids_changed_enable:
            return
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        notice = requests.NotifyConsumerIdsChanged(consumer_group=name)
        # nobody answers it, so its number is of no meaning
        frame = encode_command(request_command(notice, opaque=0, oneway=True))
        for peer in members:
            peer.send_frame(frame)


def _read(text: bytes, kind: type[T]) -> T:
    try:
        return fastjson.decode_request(text, kind)
    except ProtocolError as error:
        raise BodyError(f"the body cannot be read as {kind.__name__}: {error}") from None


# --- Answers to 223, 307 and 309: what the broker has to ask a consumer (221, 307, 309).
#
# One rule: a consumer that does not answer holds up only the caller, and that for a bounded
# time. Source: apache/rocketmq ``Broker2Client.getConsumeStatus``,
# ``AdminBrokerProcessor.callConsumer``.


STATUS_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0


@dataclass(eq=False)
class ClientQuestionsHandler:
    """Handler of an operator's questions that the broker passes to consumers."""

    stored: Stored

    def add_to(self, router: Router) -> None:
        """Register the handlers of these requests."""
        router.add(GetConsumerStatus, self.status)
        router.add(GetConsumerRunningInfo, self.running_info)
        router.add(ConsumeMessageDirectly, self.consume_directly)

    async def status(
        self, request: GetConsumerStatus, _context: RequestContext
    ) -> Response[GetConsumerStatusBody]:
        """Return the offsets of each consumer of a group; consumers that do not answer are left
        out."""
        group = self.stored.clients.groups.get(request.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{request.group}]"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        asked = GetConsumerStatusFromClient(topic=request.topic, group=request.group)
        wanted = [
            (member.client_id, peer)
            for peer, member in group.members.items()
            if not request.client_addr or request.client_addr == member.client_id
        ]
        answers = await asyncio.gather(
            *(_call(peer, asked, b"", STATUS_TIMEOUT_S) for _, peer in wanted),
            return_exceptions=True,
        )
        body = GetConsumerStatusBody()
        for (client_id, _), answer in zip(wanted, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    body.consumer_table[client_id] = reply_in(answer, asked).message_queue_table
            except (RemotingError, BodyError, ProtocolError) as error:
                _no_offsets(request.group, client_id, error, kind=client_id)
        return Response(body)

    async def running_info(
        self, request: GetConsumerRunningInfo, _context: RequestContext
    ) -> Response[ConsumerRunningInfo]:
        return await self._ask(request.consumer_group, request.client_id, request, b"")

    async def consume_directly(
        self, request: ConsumeMessageDirectly, context: RequestContext
    ) -> Response[ConsumeMessageDirectlyResult]:
        """Let one consumer process a message now, and return its result."""
        try:
            _, _, offset = decode_offset_msg_id(request.msg_id or "")
        except ProtocolError as error:
            remark = (
                f"msgId={request.msg_id!r} is no offset message id ({error}); a query by "
                "key or unique id finds it"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        entry = await read(
            self.stored.store.cold_reads, entry_for(context, self.stored.store.lookup, offset)
        )
        if entry is None or entry.fault is not None:
            why = "it is not there (any more)" if entry is None else entry.fault
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"the message {request.msg_id} cannot be read: {why}"
            )
        refused = context.refused(entry.message.topic, request.consumer_group)
        if refused is not None:
            return refused
        topic = self.stored.tables.topics.find(request.topic) if request.topic else None
        group = (
            self.stored.tables.groups.find(request.consumer_group)
            if self.stored.tables.groups.knows(request.consumer_group)
            else None
        )
        forwarded = replace(
            request,
            broker_name=self.stored.config.broker_name,
            topic_sys_flag=request.topic_sys_flag if topic is None else topic.topic_sys_flag,
            group_sys_flag=request.group_sys_flag if group is None else group.group_sys_flag,
        )
        return await self._ask(
            request.consumer_group, request.client_id or "", forwarded, entry.data
        )

    async def _ask(
        self, group: str, client_id: str, request: Request[ReplyT], body: bytes
    ) -> Response[ReplyT]:
        peer = self.stored.clients.find_consumer(group, client_id)
        if peer is None:
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        try:
            answer = await _call(peer, request, body, CALL_TIMEOUT_S)
        except CallTimeoutError as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            return refusal(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        except RemotingError as error:
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}>: {error}"
            )
        passed_on = Response(code=answer.code, remark=answer.remark, body=answer.body)
        return cast("Response[ReplyT]", passed_on)


async def _call(peer: Wire, request: Request[Any], body: bytes, timeout: float) -> Command:
    opaque = peer.calls.next_opaque
    answer: Command = await peer.start_call(
        opaque, encode_command(request_command(request, body, opaque=opaque)), timeout
    )
    return answer
