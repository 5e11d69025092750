"""Handler of requests to send messages (10, 310 and 320).

This is the most frequently run code of the broker. Each request is checked, its messages are
stored, and their positions are returned. The checks are in ``send_checks.py``. The order of checks
and the codes are those of apache/rocketmq ``SendMessageProcessor``,
``HookUtils.checkBeforePutMessage``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from turbopump.broker.counters.messages_in import SHARDING_PAIR, message_kind
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.held_answers import HeldAnswers, confirm_wait_s
from turbopump.broker.interceptors import (
    Destination,
    Interceptors,
    added_properties,
    kind_in_batch,
    refuse_false_inner_batch,
    region_fields,
)
from turbopump.broker.saved_table import in_time
from turbopump.broker.send_checks import SendChecks, batch_refusal, body_refusal, store_refusal
from turbopump.broker.send_reply import batch_reply, decode_reply, reply_ends, send_reply
from turbopump.broker.stored import Stored
from turbopump.errors import MessageError, ProtocolError, RoomInMakingError, StoreError
from turbopump.message.codec import encode_host
from turbopump.message.ids import UniqueIds, offset_msg_id
from turbopump.message.java import tags_code
from turbopump.message.properties import (
    INNER_NUM,
    NAME_END,
    SHARDING_KEY,
    TRANSACTION_MASK,
    UNIQ_KEY,
    WAIT_STORE_MSG_OK,
    SysFlag,
    decode_properties,
    encode_properties,
    property_value,
    send_properties,
)
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.codes import FLAG_ONEWAY, ResponseCode
from turbopump.protocol.command import encode_command
from turbopump.protocol.requests.send import (
    SendBatchMessage,
    SendMessage,
    SendMessageReply,
    SendMessageV2,
)
from turbopump.remoting.response import Response, encode_response, refusal
from turbopump.remoting.router import HELD, NO_ROOM, Outcome, RequestContext, Router
from turbopump.store.message_store import NewMessage, PutResult
from turbopump.store.packed_batch import pack_batch

ANNOUNCE_WAIT_S: Final = 1.0
"""Maximum seconds that the answer to the first send to a new topic waits for name servers."""

_NOT_HOSTS: Final = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
"""Mask of the flags that clients may set. The broker itself sets the two bits for the size of host
addresses."""

_DO_NOT_WAIT = f"{WAIT_STORE_MSG_OK}{NAME_END}false"


class SendHandler:
    """Handler of requests to send messages.

    ``announce`` is a function that returns a future for each name server that does not know all
    topics yet.
    """

    def __init__(
        self,
        stored: Stored,
        forwarding: Forwarding,
        interceptors: Interceptors,
        announce: Callable[[], list[asyncio.Future[bool]]],
    ) -> None:
        self._config = stored.config
        self._store = stored.store
        self._topics = stored.tables.topics
        self._unsaved = self._topics.unsaved
        self._watched = self._topics.watched
        self._announce = announce
        ip, port = forwarding.store_host
        self._store_host = encode_host(ip, port)
        self._msg_id_host = offset_msg_id(ip, port, 0)[:-16]
        self._reply_host = self._msg_id_host.encode()
        self._store_flag = SysFlag.STORE_HOST_V6 if len(self._store_host) == 20 else 0
        self._ids = UniqueIds(stored.clock, ip=ip, token=stored.random.getrandbits(32))
        self._checks = SendChecks(stored)
        self.check = self._checks.check
        self._interceptors = interceptors
        self._events = stored.statistics.events
        self._flush = forwarding.flush
        self._sync = self._flush.sync
        self._held = HeldAnswers(
            self._store.confirmed, confirm_wait_s(self._config), self._late_answer, stored.times
        )
        self.read_settings()

    def read_settings(self) -> None:
        """Read the settings of the broker again."""
        config = self._config
        self._body_size_max = config.max_message_size
        self._guarded = self._checks.read_settings()
        self._added_text = added_properties(config)
        self._added = self._added_text.encode()
        self._reply_head, self._reply_tail = reply_ends(config.region_id, config.trace_on)

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(SendMessage, self.send, may_wait=True)
        router.add(SendMessageV2, self.send, may_wait=True)
        router.add(SendBatchMessage, self.send, may_wait=True)

    def send(
        self, request: SendMessage, context: RequestContext, fresh: bool = False
    ) -> Outcome[SendMessageReply]:
        """Store a message or a batch. Return the answer, or HELD if the answer comes later.

        ``fresh`` is True if the topic has just been created and the caller waits for its
        registration.
        """
        topic = self._topics.find(request.topic)
        queue_id = request.queue_id
        # Sends to a queue of a known topic that is not watched would pass the checks, and skip them
        # for speed, unless a setting makes every send pass them (``_guarded``).
        if (
            topic is None
            or not 0 <= queue_id < topic.write_queue_nums
            or request.topic in self._watched
            or self._guarded
            or request.sys_flag & SysFlag.INNER_BATCH
        ):
            checked = self.check(request, topic)
            if isinstance(checked, Response):
                return checked
            if request.topic in self._topics.unrecorded:
                return NO_ROOM
            if not fresh and (topic is None or request.topic in self._unsaved):
                return self._to_new_topic(request, context)
            queue_id = checked
        if request.batch:
            return self._send_batch(request, queue_id, context)
        body = context.body
        text = request.properties or ""
        if not body or len(body) > self._body_size_max:
            return body_refusal(len(body), self._body_size_max, self._store)
        special, unique, tags, keys, properties = send_properties(text, self._added)
        name = request.topic
        target = queue_id
        sys_flag = request.sys_flag
        recall_handle = None
        # An interceptor may change the text, and a missing id is added to it: what was read from it
        # above is then read again.
        if special or unique is None:
            if unique is None:
                unique = self._ids.next()
                text = f"{_ended(text)}UNIQ_KEY\x01{unique}\x02"
            if special:
                destination = self._interceptors.find(
                    request, Destination(name, queue_id, _without_pop_ck(text), sys_flag)
                )
                if isinstance(destination, Response):
                    return destination
                name, target, text, sys_flag, recall_handle = msgspec.structs.astuple(destination)
            _, _, tags, keys, properties = send_properties(text, self._added)
        born_host = encode_host(*context.peer.host_pair)
        sys_flag = sys_flag & _NOT_HOSTS | self._store_flag
        if len(born_host) == 20:
            sys_flag |= SysFlag.BORN_HOST_V6
        try:
            stored = self._store.put(
                name,
                target,
                NewMessage(
                    body, properties, tags_code(tags) if tags else 0, request.flag, unique, keys
                ),
                sys_flag=sys_flag,
                born_timestamp=request.born_timestamp,
                born_host=born_host,
                store_host=self._store_host,
                reconsume_times=request.reconsume_times or 0,
            )
        except RoomInMakingError:
            return NO_ROOM
        except (OSError, StoreError, MessageError) as error:
            return store_refusal(error)
        if special:
            self._count(request, name, stored)
        elif SHARDING_PAIR in text or text.startswith(SHARDING_KEY):
            self._events.messages_in.count_fifo(name, stored.log_end - stored.offset)
        frame = send_reply(
            self._reply_head,
            self._reply_tail,
            self._reply_host,
            context.opaque,
            queue_id,
            stored.offset,
            stored.queue_offset,
            unique,
        )
        if recall_handle is not None:
            frame = self._reply_with_handle(context, stored, queue_id, unique, recall_handle)
        # The finished answer is held until the message is safe. ``_late_answer`` makes another one
        # of it if that takes too long.
        if self._sync:
            return self._when_flushed(stored.log_end, frame, context, text)
        return frame

    def _count(self, request: SendMessage, topic: str, stored: PutResult) -> None:
        """Count a stored message of a kind that the walk over the queues does not know."""
        kind = message_kind(request.properties or "")
        self._events.messages_in.count_sent(topic, kind, stored.log_end - stored.offset)
        if topic == HALF_TOPIC:
            self._events.transactions.count_begun(request.topic)

    def _reply_with_handle(
        self,
        context: RequestContext,
        stored: PutResult,
        queue_id: int,
        unique: str,
        recall_handle: str,
    ) -> bytes:
        """Return the answer to a send of a timer message. It contains a handle for the recall of
        the message."""
        reply = SendMessageReply(
            msg_id=f"{self._msg_id_host}{stored.offset:016X}",
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
            transaction_id=unique,
            recall_handle=recall_handle,
        )
        return encode_response(context.opaque, Response(reply, ext=region_fields(self._config)))

    def _to_new_topic(
        self, request: SendMessage, context: RequestContext
    ) -> Outcome[SendMessageReply]:
        """Store a message in a new topic. Answer after the topic is saved and registered.

        The message is stored at once. If the topic were not on the disk, a crash would lose its
        messages. If the name servers did not know the topic, a client that learns of it could not
        find it. RocketMQ: ``TopicConfigManager.createTopicInSendMessageMethod`` registers before it
        returns.
        """
        context.served.took_long()  # a topic, its directories, and its queue's file are made
        outcome = self.send(request, context, fresh=True)
        if isinstance(outcome, Response | bytes):
            return self._announced(outcome)
        return outcome

    async def _announced(
        self, outcome: Response[SendMessageReply] | bytes
    ) -> Response[SendMessageReply] | bytes:
        # a producer waits 3 s, then sends again
        await in_time(ANNOUNCE_WAIT_S, self._topics.new_saving(), *self._announce())
        return outcome

    def _send_batch(
        self, request: SendMessage, queue_id: int, context: RequestContext
    ) -> Outcome[SendMessageReply]:
        if not context.body or len(context.body) > self._body_size_max:
            return body_refusal(len(context.body), self._body_size_max, self._store)
        header_text = request.properties or ""
        unique = property_value(header_text, UNIQ_KEY)
        if request.sys_flag & TRANSACTION_MASK or "DEL" in header_text or "TRAN_MSG" in header_text:
            refused = batch_refusal(request, self._store)
            if refused is not None:
                return refused
        if INNER_NUM in header_text:
            destination = refuse_false_inner_batch(
                request, Destination(request.topic, queue_id, header_text, 0)
            )
            if isinstance(destination, Response):
                return destination
        try:
            batch = pack_batch(context.body, request.topic, self._added)
        except ProtocolError as error:
            return refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        for text in batch.special:
            refused = kind_in_batch(text)
            if refused is not None:
                return refused
        born_host = encode_host(*context.peer.host_pair)
        v6 = SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
        try:
            stored, units = self._store.put_batch(
                request.topic,
                queue_id,
                batch,
                sys_flag=request.sys_flag & _NOT_HOSTS | self._store_flag | v6,
                born_timestamp=request.born_timestamp,
                born_host=born_host,
                store_host=self._store_host,
            )
        except RoomInMakingError:
            return NO_ROOM
        except (OSError, StoreError, MessageError) as error:
            return store_refusal(error)
        frame = batch_reply(
            self._reply_head,
            self._reply_tail,
            self._reply_host,
            context.opaque,
            queue_id,
            units,
            stored.queue_offset,
            unique,
        )
        if self._sync:
            return self._when_flushed(stored.log_end, frame, context, header_text)
        return frame

    # --- waiting for the disk, or for slaves

    def _when_flushed(
        self, log_end: int, frame: bytes, context: RequestContext, properties: str
    ) -> Outcome[SendMessageReply]:
        if not self._flush.due:
            self._flush.begin_soon()
        if _DO_NOT_WAIT in properties and property_value(properties, WAIT_STORE_MSG_OK) == "false":
            return frame
        if self._unsaved:
            return self._held.hold_both(log_end, self._topics.new_saving(), frame)
        if context.flag & FLAG_ONEWAY:
            return frame  # which is counted and not sent
        self._held.hold_answer(log_end, context.peer, frame, context.code)
        return HELD

    def _late_answer(self, frame: bytes, copied: bool) -> bytes:
        """Return the answer for a stored message without a timely confirmation.

        ``copied`` is False if too few slaves have the message. The answer then reports that, as
        with RocketMQ.
        """
        config = self._config
        if copied:
            code = ResponseCode.FLUSH_DISK_TIMEOUT
            cause = f"the disk has not answered within {config.sync_flush_timeout} ms"
        elif self._store.confirmed.alone:
            code = ResponseCode.SLAVE_NOT_AVAILABLE
            cause = (
                f"fewer than {config.slave_acks} slaves are in sync "
                f"(inSyncReplicas={config.in_sync_replicas})"
            )
        else:
            code = ResponseCode.FLUSH_SLAVE_TIMEOUT
            cause = f"the slaves have not answered within {config.slave_timeout} ms"
        remark = f"{cause}; the message is stored but may be lost"
        return encode_command(replace(decode_reply(frame), code=code, remark=remark))


def _ended(text: str) -> str:
    if not text or text[-1] == "\x02":
        return text
    return text + "\x02"


def _without_pop_ck(text: str) -> str:
    properties = decode_properties(text)
    if properties.pop("POP_CK", None) is None:
        return text
    return encode_properties(properties)
