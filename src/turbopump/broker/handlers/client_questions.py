"""Answers to 223, 307 and 309: what the broker has to ask a consumer (221, 307, 309).

One rule: a consumer that does not answer holds up nobody but whoever asked, and him for a bounded
time. Source: apache/rocketmq ``Broker2Client.getConsumeStatus``,
``AdminBrokerProcessor.callConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from msgspec.structs import replace

from turbopump.broker.consumers import ClientTable
from turbopump.broker.groups import GroupTable
from turbopump.broker.questions import Questions
from turbopump.broker.topics import TopicTable
from turbopump.errors import BodyError, CallTimeoutError, ProtocolError, RemotingError
from turbopump.message.ids import decode_offset_msg_id
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.offsets import GetConsumerStatusBody
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, encode_command, request_command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.consumers import ConsumeMessageDirectly, GetConsumerRunningInfo
from turbopump.protocol.requests.offset_control import (
    GetConsumerStatus,
    GetConsumerStatusFromClient,
)
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import RequestContext, Response
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

STATUS_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0


class ClientQuestionsHandler:
    """Asks consumers for operators."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable[Connection],
        questions: Questions,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._questions = questions

    async def status(self, request: GetConsumerStatus, _context: RequestContext) -> Response:
        """How far each consumer of a group is; who does not answer is left out."""
        group = self._clients.groups.get(request.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{request.group}]"
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=remark)
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
                    places = fastjson.decode(answer.body, GetConsumerStatusBody).message_queue_table
                    body.consumer_table[client_id] = places
            except (RemotingError, BodyError, ProtocolError) as error:
                log.warning(
                    "consumer does not tell its offsets group=%s client=%s cause=%s",
                    request.group,
                    client_id,
                    error,
                )
        return Response(body=fastjson.encode(body))

    async def running_info(
        self, request: GetConsumerRunningInfo, _context: RequestContext
    ) -> Response:
        return await self._ask(request.consumer_group, request.client_id, request, b"")

    async def consume_directly(
        self, request: ConsumeMessageDirectly, _context: RequestContext
    ) -> Response:
        """Have one consumer handle a message now, and tell what came of it."""
        try:
            _, _, offset = decode_offset_msg_id(request.msg_id or "")
        except ProtocolError as error:
            remark = (
                f"msgId={request.msg_id!r} is no offset message id ({error}); a query by "
                "key or unique id finds it"
            )
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=remark)
        entry = await self._questions.answer(self._store.lookup.entry_at(offset))
        if entry is None or entry.fault is not None:
            why = "it is not there (any more)" if entry is None else entry.fault
            return Response(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"the message {request.msg_id} cannot be read: {why}",
            )
        topic = self._topics.find(request.topic) if request.topic else None
        group = (
            self._groups.find(request.consumer_group)
            if self._groups.knows(request.consumer_group)
            else None
        )
        forwarded = replace(
            request,
            broker_name=self._broker_name,
            topic_sys_flag=request.topic_sys_flag if topic is None else topic.topic_sys_flag,
            group_sys_flag=request.group_sys_flag if group is None else group.group_sys_flag,
        )
        return await self._ask(
            request.consumer_group, request.client_id or "", forwarded, entry.data
        )

    async def _ask(
        self, group: str, client_id: str, request: Request[Any], body: bytes
    ) -> Response:
        peer = self._clients.find_consumer(group, client_id)
        if peer is None:
            return Response(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{group}> <{client_id}> not online",
            )
        try:
            answer = await _call(peer, request, body, CALL_TIMEOUT_S)
        except CallTimeoutError as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            return Response(code=ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
        except RemotingError as error:
            return Response(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"invoke consumer <{group}> <{client_id}>: {error}",
            )
        return Response(code=answer.code, remark=answer.remark, body=answer.body)


async def _call(peer: Connection, request: Request[Any], body: bytes, timeout: float) -> Command:
    opaque = peer.next_opaque
    answer: Command = await peer.start_call(
        opaque, encode_command(request_command(request, body, opaque=opaque)), timeout
    )
    return answer
