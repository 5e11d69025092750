"""Handler of questions to consumers (223, 307 and 309). An operator asks, and the broker passes the
question on.

The broker sends 221, 307 or 309 to the consumers. A consumer that does not answer delays only the
operator, for a bounded time. Source: apache/rocketmq ``Broker2Client.getConsumeStatus``,
``AdminBrokerProcessor.callConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final, cast

from msgspec.structs import replace

from turbopump.broker.reading import entry_for, read
from turbopump.broker.stored import Stored
from turbopump.errors import BodyError, CallTimeoutError, ProtocolError, RemotingError
from turbopump.message.ids import decode_offset_msg_id
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, encode_command, reply_in, request_command
from turbopump.protocol.request import ReplyT, Request
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
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_no_offsets = RepeatedLine(
    log, logging.WARNING, "consumer does not give its offsets group=%s client=%s cause=%s"
)

STATUS_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0


@dataclass(eq=False)
class ClientQuestionsHandler:
    """Handler of an operator's questions to consumers. The broker passes each question on."""

    stored: Stored

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(GetConsumerStatus, self.status)
        router.add(GetConsumerRunningInfo, self.running_info)
        router.add(ConsumeMessageDirectly, self.consume_directly)

    async def status(
        self, request: GetConsumerStatus, _context: RequestContext
    ) -> Response[GetConsumerStatusBody]:
        """Ask the consumers of a group for their offsets, and return the answers.

        Consumers that do not answer are left out.
        """
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
        return await self._ask_consumer(request.consumer_group, request.client_id, request, b"")

    async def consume_directly(
        self, request: ConsumeMessageDirectly, context: RequestContext
    ) -> Response[ConsumeMessageDirectlyResult]:
        """Let a consumer process a stored message now. Return the consumer's result."""
        try:
            _, _, offset = decode_offset_msg_id(request.msg_id or "")
        except ProtocolError as error:
            remark = (
                f"msgId={request.msg_id!r} is not an offset message id ({error}); find "
                "the message by key or unique id instead"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        entry = await read(
            self.stored.store.cold_reads, entry_for(context, self.stored.store.lookup, offset)
        )
        if entry is None or entry.fault is not None:
            why = (
                "the log has no message there, or no longer has it"
                if entry is None
                else entry.fault
            )
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"the message {request.msg_id} cannot be read: {why}"
            )
        refused = context.refused(entry.message.topic, request.consumer_group)
        if refused is not None:
            return refused
        topic = self.stored.tables.topics.find(request.topic) if request.topic else None
        group = self.stored.tables.groups.get(request.consumer_group)
        forwarded = replace(
            request,
            broker_name=self.stored.config.broker_name,
            topic_sys_flag=request.topic_sys_flag if topic is None else topic.topic_sys_flag,
            group_sys_flag=request.group_sys_flag if group is None else group.group_sys_flag,
        )
        return await self._ask_consumer(
            request.consumer_group, request.client_id or "", forwarded, entry.data
        )

    async def _ask_consumer(
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
