"""Handler of replies to messages (324 and 325).

The broker sends a reply to the producer that waits for it (326), and stores a copy in the topic of
the reply. The answer reports if the reply reached the producer, not if the copy is stored. So the
answer does not wait for the disk, and a refusal by the store is only counted. Source:
apache/rocketmq ``ReplyMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.broker.counters.messages_in import message_kind
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.interceptors import region_fields
from turbopump.broker.stored import Stored
from turbopump.errors import MessageError, RemotingError, StoreError
from turbopump.message.ids import offset_msg_id
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    PAIR_END,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    property_value,
    readable_text,
)
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.send import (
    PushReplyMessageToClient,
    SendMessage,
    SendMessageReply,
    SendReplyMessage,
    SendReplyMessageV2,
)
from turbopump.protocol.requests.topics import TopicConfig
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router

PUSH_TIMEOUT_S: Final = 10.0
"""Maximum seconds to wait until the producer confirms a reply. RocketMQ:
``Broker2Client.callClient``."""
PUSHES_MAX: Final = 10_000
PUSHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of replies that producers have not read yet. Further replies are refused."""


class RepliesHandler:
    """Handler of replies. The broker sends each reply to the waiting producer.

    ``check`` is a function that returns the queue id for a send, or a refusal.
    """

    def __init__(
        self,
        stored: Stored,
        forwarding: Forwarding,
        check: Callable[[SendMessage, TopicConfig | None], int | Refusal],
    ) -> None:
        self._config = stored.config
        self._topics = stored.tables.topics
        self._clients = stored.clients
        self._now_ms = stored.clock.now_ms
        self._forwarding = forwarding
        self._check = check
        self._messages_in = stored.statistics.events.messages_in
        self._pushes = 0
        self._pushed_bytes = 0

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(SendReplyMessage, self.reply)
        router.add(SendReplyMessageV2, self.reply)

    def reply(self, request: SendMessage, context: RequestContext) -> Outcome[SendMessageReply]:
        """Send a reply to the waiting producer, and store a copy."""
        checked = self._check(request, self._topics.find(request.topic))
        if isinstance(checked, Response):
            return checked
        size = len(context.body)
        size_max = self._config.max_message_size
        if size > size_max:
            remark = (
                f"the body of the reply has {size} bytes; {size_max} are allowed "
                "(maxMessageSize of the broker)"
            )
            return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
        if self._pushes >= PUSHES_MAX or self._pushed_bytes + size > PUSHED_BYTES_MAX:
            remark = (
                f"[REJECTREQUEST]system busy, {self._pushes} replies of "
                f"{self._pushed_bytes} bytes wait for slow producers"
            )
            return refusal(ResponseCode.SYSTEM_BUSY, remark)
        return self._pass_on(request, checked, context)

    async def _pass_on(
        self, request: SendMessage, queue_id: int, context: RequestContext
    ) -> Response[SendMessageReply]:
        size = len(context.body)
        self._pushes += 1
        self._pushed_bytes += size
        try:
            fault = await self._push_reply(request, context)
        finally:
            self._pushes -= 1
            self._pushed_bytes -= size
        reply = SendMessageReply(msg_id="0", queue_id=queue_id, queue_offset=0)
        # an empty one, as Go clients send, cannot be stored
        if self._config.store_reply_message_enable and context.body:
            await self._store_reply(request, queue_id, context, reply)
        return Response(
            reply,
            code=ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR,
            remark=fault,
            ext=region_fields(self._config),
        )

    # --- to the producer

    async def _push_reply(self, request: SendMessage, context: RequestContext) -> str | None:
        """Send a reply to its producer. Return None, or the reason for a failure."""
        client_id = property_value(request.properties or "", REPLY_TO_CLIENT)
        if client_id is None:
            return (
                f"reply message properties[{REPLY_TO_CLIENT}] is null, so the waiting "
                "client is unknown"
            )
        peer = self._clients.find_producer(client_id)
        if peer is None:
            return (
                f"push reply message fail, channel of <{client_id}> not found: that producer has "
                "ended, or has no connection to this broker now"
            )
        opaque = peer.calls.next_opaque
        command = request_command(self._push_of(request, context), context.body, opaque=opaque)
        try:
            answer = await peer.start_call(opaque, encode_command(command), PUSH_TIMEOUT_S)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        if answer.code == ResponseCode.SUCCESS:
            return None
        return (
            f"push reply message to {client_id} fail: it answered code {answer.code}, "
            f"{answer.remark or 'no remark'}"
        )

    def _push_of(self, request: SendMessage, context: RequestContext) -> PushReplyMessageToClient:
        properties = readable_text(request.properties or "")
        if properties and properties[-1] != PAIR_END:
            properties += PAIR_END
        now = self._now_ms()
        return PushReplyMessageToClient(
            producer_group=request.producer_group or "",
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queue_nums=request.default_topic_queue_nums,
            queue_id=request.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            flag=request.flag,
            properties=f"{properties}{PUSH_REPLY_TIME}\x01{now}\x02",
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode or False,
            born_host=_host_text(context.peer.host_pair),
            store_host=_host_text(self._forwarding.store_host),
            store_timestamp=now,
        )

    # --- for the record

    async def _store_reply(
        self, request: SendMessage, queue_id: int, context: RequestContext, reply: SendMessageReply
    ) -> None:
        """Store a copy of a reply. Set its message id and offset in the answer ``reply``.

        RocketMQ stores a reply without its sysFlag, so that a compressed reply cannot be read.
        """
        message = ReceivedMessage(
            topic=request.topic,
            stored_body=context.body,
            properties_text=request.properties or "",
            queue_id=queue_id,
            queue_offset=0,
            commit_log_offset=0,
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            born_host=context.peer.host_pair,
            store_timestamp=0,
            store_host=self._forwarding.store_host,
            reconsume_times=request.reconsume_times or 0,
            prepared_transaction_offset=0,
            body_crc=0,
            store_size=0,
        )
        try:
            stored = await self._forwarding.forward(
                message, request.topic, queue_id, for_client=True, is_sent=True
            )
        except (OSError, StoreError, MessageError):
            return
        size = stored.log_end - stored.offset
        kind = message_kind(request.properties or "")
        self._messages_in.count_sent(request.topic, kind, size)
        reply.msg_id = offset_msg_id(*self._forwarding.store_host, stored.offset)
        reply.queue_offset = stored.queue_offset


def _host_text(host: tuple[str, int]) -> str:
    """Format a socket address as Java does: an IPv6 address has no brackets."""
    return f"{host[0]}:{host[1]}"
