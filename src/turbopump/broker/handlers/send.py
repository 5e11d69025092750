"""Answers to 10, 310, 320: check, store, say where. The hottest way through the broker: everything here runs once per message.

Order of checks and codes: apache/rocketmq ``AbstractSendMessageProcessor.msgCheck``, ``SendMessageProcessor``,
``HookUtils.checkBeforePutMessage``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from turbopump.broker.groups import GroupTable
from turbopump.broker.held_answers import HeldAnswers
from turbopump.broker.send_reply import reply_ends, send_reply
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.errors import MessageError, ProtocolError, RoomInMakingError, StoreError
from turbopump.message.batch import decode_batch
from turbopump.message.codec import encode_host
from turbopump.message.ids import UniqueIds, offset_msg_id
from turbopump.message.java_hash import tags_code
from turbopump.message.properties import (
    NAME_END,
    UNIQ_KEY,
    WAIT_STORE_MSG_OK,
    decode_properties,
    encode_properties,
    property_value,
    send_properties,
)
from turbopump.message.rules import NOT_SENDABLE_TOPICS, RETRY_PREFIX, TOPIC_SIZE_MAX, topic_fault
from turbopump.message.sysflag import SysFlag
from turbopump.protocol.bodies.topics import PERM_WRITE, TopicConfig
from turbopump.protocol.codes import FLAG_ONEWAY, ResponseCode
from turbopump.protocol.requests.send import SendMessageReply, SendRequest
from turbopump.remoting.answers import encode_response
from turbopump.remoting.router import LATER, Outcome, RequestContext, Response
from turbopump.store.message_store import MessageStore, NewMessage

ANNOUNCE_WAIT_S: Final = 1.0
"""How long the answer to a first send waits for name servers that do not take the new topic."""

_NOT_HOSTS: Final = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
"""These bits say how long the hosts in the entry are: they are ours to set, whatever a client claims."""

_LATER = re.compile(r"(?:^|\x02)(DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG)\x01([^\x02]*)")


_DO_NOT_WAIT = f"{WAIT_STORE_MSG_OK}{NAME_END}false"


class SendHandler:
    """Stores what producers send. ``store_host`` is (ip, port) as written into entries: the advertised address.

    ``announce`` registers with the name servers and returns when that is done.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clock: Clock,
        source: random.Random,
        store_host: tuple[str, int],
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._unsaved = topics.unsaved
        self._groups = groups
        self._clock = clock
        self._random = source
        self._announce = announce
        self._store_host = encode_host(*store_host)
        self._msg_id_host = offset_msg_id(*store_host, 0)[:-16]
        self._reply_host = self._msg_id_host.encode()
        self._store_flag = SysFlag.STORE_HOST_V6 if len(self._store_host) == 20 else 0
        self._ids = UniqueIds(clock, ip=store_host[0], token=source.getrandbits(32))
        self._body_size_max = config.max_message_size
        self._guarded = bool(config.start_accept_send_request_time_stamp) or not config.broker_permission & PERM_WRITE
        """Whether every send must pass ``_check``, not only those to new or special topics."""
        self._sync = config.flush_disk_type == FlushDiskType.SYNC_FLUSH
        self._held = HeldAnswers(store.flushed, config.sync_flush_timeout / 1000)
        self._flush_due = False
        self._added_text = (
            f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{'true' if config.trace_on else 'false'}\x02"
            f"CLUSTER\x01{config.broker_cluster_name}\x02"
        )
        self._added = self._added_text.encode()
        self._reply_head, self._reply_tail = reply_ends(config.region_id, config.trace_on)

    def send(self, request: SendRequest, context: RequestContext, fresh: bool = False) -> Outcome:
        """Store one message or one batch. ``fresh``: its topic has just been made, and the caller cares for that."""
        topic = self._topics.find(request.topic)
        queue_id = request.queue_id
        if (
            topic is None
            or not 0 <= queue_id < topic.write_queue_nums
            or request.topic in NOT_SENDABLE_TOPICS
            or request.topic[0] == "%"
            or self._guarded
            or request.topic in self._unsaved
        ):
            checked = self._check(request, topic)
            if isinstance(checked, Response):
                return checked
            if not fresh and (topic is None or request.topic in self._unsaved):
                return self._to_new_topic(request, context)
            queue_id = checked
        if request.batch:
            return self._send_batch(request, queue_id, context)
        body = context.body
        text = request.properties or ""
        if not body or len(body) > self._body_size_max:
            return self._refuse_body(len(body))
        special, unique, tags, keys, properties = send_properties(text, self._added)
        if special:
            refused = _refuse_kind(text)
            if refused is not None:
                return refused
            text = _without_pop_ck(text)
        if special or unique is None:
            if unique is None:
                unique = self._ids.next()
                text = f"{_ended(text)}UNIQ_KEY\x01{unique}\x02"
            _, _, tags, keys, properties = send_properties(text, self._added)
        born_host = encode_host(*context.peer.host_pair)
        sys_flag = request.sys_flag & _NOT_HOSTS | self._store_flag
        if len(born_host) == 20:
            sys_flag |= SysFlag.BORN_HOST_V6
        try:
            placed = self._store.put(
                request.topic,
                queue_id,
                NewMessage(body, properties, tags_code(tags) if tags else 0, request.flag, unique, keys),
                sys_flag=sys_flag,
                born_timestamp=request.born_timestamp,
                born_host=born_host,
                store_host=self._store_host,
                reconsume_times=request.reconsume_times or 0,
            )
        except (OSError, StoreError, MessageError) as error:
            return _refused_by_store(error)
        frame = send_reply(
            self._reply_head,
            self._reply_tail,
            self._reply_host,
            context.opaque,
            queue_id,
            placed.offset,
            placed.queue_offset,
            unique,
        )
        if self._sync:
            late = partial(self._late, queue_id, placed.offset, placed.queue_offset, unique)
            return self._when_flushed(placed.log_end, frame, late, context, text)
        return frame

    def _to_new_topic(self, request: SendRequest, context: RequestContext) -> Outcome:
        """Store at once, answer when the new topic is on the disk, without which its messages are lost, and when the name servers
        route it, so that whoever is told of it finds it there.

        RocketMQ: ``TopicConfigManager.createTopicInSendMessageMethod`` registers before it returns.
        """
        outcome = self.send(request, context, fresh=True)
        return self._announced(outcome) if isinstance(outcome, Response | bytes) else outcome

    async def _announced(self, outcome: Response | bytes) -> Response | bytes:
        with contextlib.suppress(TimeoutError):  # a producer waits 3 s, then sends again
            await asyncio.wait_for(asyncio.gather(self._announce(), self._topics.saved()), ANNOUNCE_WAIT_S)
        return outcome

    def _send_batch(self, request: SendRequest, queue_id: int, context: RequestContext) -> Outcome:
        if len(request.topic) > TOPIC_SIZE_MAX:
            return Response(
                code=ResponseCode.MESSAGE_ILLEGAL,
                remark=f"message topic length too long {len(request.topic)}; a batch allows {TOPIC_SIZE_MAX}",
            )
        if request.topic.startswith(RETRY_PREFIX):
            return Response(
                code=ResponseCode.MESSAGE_ILLEGAL, remark="batch request does not support retry group " + request.topic
            )
        if not context.body or len(context.body) > self._config.max_message_size:
            return self._refuse_body(len(context.body))
        try:
            items = decode_batch(context.body)
        except ProtocolError as error:
            return Response(code=ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        added = self._added
        messages = []
        for item in items:
            try:
                text = item.properties.decode()
            except UnicodeDecodeError:
                return Response(
                    code=ResponseCode.MESSAGE_ILLEGAL, remark="the properties of a message of the batch are no UTF-8 text"
                )
            special, unique, tags, keys, properties = send_properties(text, added)
            if special:
                refused = _refuse_kind(text)
                if refused is not None:
                    return refused
            messages.append(NewMessage(item.body, properties, tags_code(tags) if tags else 0, item.flag, unique, keys))
        born_host = encode_host(*context.peer.host_pair)
        v6 = SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
        try:
            placed, offsets = self._store.put_batch(
                request.topic,
                queue_id,
                messages,
                sys_flag=request.sys_flag & _NOT_HOSTS | self._store_flag | v6,
                born_timestamp=request.born_timestamp,
                born_host=born_host,
                store_host=self._store_host,
            )
        except (OSError, StoreError, MessageError) as error:
            return _refused_by_store(error)
        host = self._msg_id_host
        msg_id = ",".join([f"{host}{offset:016X}" for offset in offsets])
        header_text = request.properties or ""
        unique = property_value(header_text, UNIQ_KEY)
        reply = SendMessageReply(msg_id=msg_id, queue_id=queue_id, queue_offset=placed.queue_offset, transaction_id=unique)
        if self._sync:
            frame = encode_response(context.opaque, self._answer(reply))
            late = partial(self._late, queue_id, msg_id, placed.queue_offset, unique)
            return self._when_flushed(placed.log_end, frame, late, context, header_text)
        return self._answer(reply)

    # --- waiting for the disk ------------------------------------------------------------------------------------------------

    def _when_flushed(
        self, log_end: int, frame: bytes, late: Callable[[], Response], context: RequestContext, properties: str
    ) -> Outcome:
        if not self._flush_due:  # one sync for all that this turn stores
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        if _DO_NOT_WAIT in properties and property_value(properties, WAIT_STORE_MSG_OK) == "false":
            return frame
        if self._unsaved:
            return self._held.hold_both(log_end, self._topics.saved(), frame, late)
        if not context.flag & FLAG_ONEWAY:
            self._held.hold(log_end, context, frame, late)
        return None

    def _flush(self) -> None:
        self._flush_due = False
        self._store.flusher.flush_log()

    def _late(self, queue_id: int, at: int | str, queue_offset: int, unique: str | None) -> Response:
        """``at``: offset in the log, or the message ids of a batch."""
        msg_id = at if isinstance(at, str) else f"{self._msg_id_host}{at:016X}"
        reply = SendMessageReply(msg_id=msg_id, queue_id=queue_id, queue_offset=queue_offset, transaction_id=unique)
        remark = f"the disk has not answered within {self._config.sync_flush_timeout} ms; the message is stored but may be lost"
        return self._answer(reply, code=ResponseCode.FLUSH_DISK_TIMEOUT, remark=remark)

    # --- answers -------------------------------------------------------------------------------------------------------------

    def _answer(self, reply: SendMessageReply, code: int = ResponseCode.SUCCESS, remark: str | None = None) -> Response:
        trace = "true" if self._config.trace_on else "false"
        return Response(reply, code=code, remark=remark, ext={"MSG_REGION": self._config.region_id, "TRACE_ON": trace})

    def _refuse_body(self, size: int) -> Response:
        if not size:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark="the message body is empty; send at least one byte")
        return Response(
            code=ResponseCode.MESSAGE_ILLEGAL,
            remark=f"the message body has {size} bytes; {self._config.max_message_size} are allowed (maxMessageSize of the broker)",
        )

    # --- the checks that a known topic and a plain queue id pass without coming here ------------------------------------------

    def _check(self, request: SendRequest, topic: TopicConfig | None) -> int | Response:
        """The queue id to use, or why not."""
        opens = self._config.start_accept_send_request_time_stamp
        if self._clock.now_ms() < opens:
            return Response(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"broker unable to service, until {opens} (startAcceptSendRequestTimeStamp)",
            )
        if not self._config.broker_permission & PERM_WRITE and topic is not None and topic.order:
            return Response(code=ResponseCode.NO_PERMISSION, remark="the broker's brokerPermission forbids writing")
        fault = topic_fault(request.topic)
        if fault is not None:
            return Response(code=ResponseCode.INVALID_PARAMETER, remark=fault)
        if request.topic in NOT_SENDABLE_TOPICS:
            return Response(
                code=ResponseCode.NO_PERMISSION,
                remark=f"Sending message to topic [{request.topic}] is forbidden: the broker keeps it for itself",
            )
        if topic is None:
            topic = self._create(request)
            if topic is None:
                return Response(
                    code=ResponseCode.TOPIC_NOT_EXIST,
                    remark=f"topic[{request.topic}] not exist, apply first please! Create it (turbopump topic create), "
                    "or set autoCreateTopicEnable=true on the broker",
                )
        if request.topic.startswith(RETRY_PREFIX) and self._groups.find(request.topic[len(RETRY_PREFIX) :]) is None:
            return Response(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {request.topic[len(RETRY_PREFIX) :]}",
            )
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        if request.queue_id >= queues:
            return Response(
                code=ResponseCode.INVALID_PARAMETER,
                remark=f"request queueId[{request.queue_id}] is illegal, topic {request.topic} has {queues} queues (0 to {queues - 1})",
            )
        if request.queue_id < 0:
            return self._random.randrange(max(topic.write_queue_nums, 1))
        return request.queue_id

    def _create(self, request: SendRequest) -> TopicConfig | None:
        if request.topic.startswith(RETRY_PREFIX):
            return self._topics.create_retry_topic(request.topic[len(RETRY_PREFIX) :], 1)
        return self._topics.create_by_sending(request.topic, request.default_topic, request.default_topic_queue_nums)


def _ended(text: str) -> str:
    return text if not text or text[-1] == "\x02" else text + "\x02"


def _refuse_kind(text: str) -> Response | None:
    """Kinds of messages that this broker cannot treat as they ask: refused, not delivered as if they were plain."""
    for name, value in _LATER.findall(text):
        if name == "TRAN_MSG" and value.lower() != "true":
            continue
        if name == "DELAY" and value.strip() in ("", "0"):
            continue
        kind = "transactional" if name == "TRAN_MSG" else "delayed"
        return Response(
            code=ResponseCode.MESSAGE_ILLEGAL,
            remark=f"{kind} messages (property {name}) are not supported by this broker yet; send a plain message",
        )
    return None


def _without_pop_ck(text: str) -> str:
    properties = decode_properties(text)
    if properties.pop("POP_CK", None) is None:
        return text
    return encode_properties(properties)


def _refused_by_store(error: Exception) -> Outcome:
    if isinstance(error, RoomInMakingError):
        return LATER
    if isinstance(error, MessageError):
        return Response(code=ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
    if isinstance(error, OSError):
        return Response(
            code=ResponseCode.SERVICE_NOT_AVAILABLE,
            remark=f"the store cannot make a new file: {error.strerror or error} ({error.filename or 'no path'}); free some disk space",
        )
    return Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
