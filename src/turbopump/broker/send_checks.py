"""Checks of a send before its message is stored.

The checks come in Apache's order. Each refusal has Apache's code, and its remark begins as Apache's
does. A plain send to a topic that is not watched (``TopicTable.watched``) needs none of these
checks. Source: apache/rocketmq ``SendMessageProcessor.preSend``,
``AbstractSendMessageProcessor.msgCheck``, ``SendMessageProcessor.handleRetryAndDLQ``. The type of a
message is checked as by ``DefaultTopicMessageTypeValidator``, which only Apache's proxy uses.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from turbopump.broker.interceptors import kind_in_batch
from turbopump.broker.stored import Stored
from turbopump.broker.topic_attributes import (
    CLEANUP_POLICY,
    COMPACTION,
    MIXED,
    TRANSFER_FLAG,
    message_type_of,
    topic_message_type,
)
from turbopump.broker.topics import unserved_refusal
from turbopump.errors import MessageError, StoreClosedError
from turbopump.message.properties import KEYS, TRANSACTION_MASK, SysFlag, decode_properties
from turbopump.message.rules import (
    DLQ_PREFIX,
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    TOPIC_SIZE_MAX,
    topic_fault,
)
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.protocol.requests.topics import FLAG_UNIT, FLAG_UNIT_SUB, PERM_WRITE, TopicConfig
from turbopump.remoting.response import Refusal, refusal
from turbopump.store.disk_space import NO_ROOM
from turbopump.store.message_store import COPY_REFUSAL, MessageStore

_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
_ILLEGAL_SAID: Final = (
    "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
)


class SendChecks:
    """Checks of requests to send a message, before the message is stored.

    A check creates an unknown topic if the settings allow that.
    """

    def __init__(self, stored: Stored) -> None:
        self._config = stored.config
        self._topics = stored.tables.topics
        self._groups = stored.tables.groups
        self._clock = stored.clock
        self._random = stored.random
        self.read_settings()

    def read_settings(self) -> bool:
        """Read the settings of the broker again.

        Return True if every send must pass the checks, not only sends to new or watched topics.
        """
        config = self._config
        self._types = config.enable_topic_message_type_check
        writable = config.broker_permission & PERM_WRITE
        starts = bool(config.start_accept_send_request_time_stamp)
        return starts or not writable or self._types or config.is_slave

    def check(self, request: SendMessage, topic: TopicConfig | None) -> int | Refusal:
        """Check a send. Return the queue id for its message, or a refusal.

        ``topic`` has the settings of the request's topic, or is None if the topic is unknown.
        """
        early = self._too_early() or self._forbidden(request, topic)
        if early is not None:
            return early
        if topic is None:
            topic = self._create(request)
            if topic is None:
                return refusal(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic[{request.topic}] not exist, apply first please! Create it (turbopump "
                    "topic create), or set autoCreateTopicEnable=true on the broker",
                )
        refused = unserved_refusal(topic) or _unfit_queue(request, topic)
        if refused is not None:
            return refused
        refused = self._unfit_for_batch(request) if request.batch else self._without_group(request)
        if refused is None:
            refused = self._unfit_for_topic(request, topic)
        if refused is not None:
            return refused
        if request.queue_id < 0:
            return self._random.randrange(topic.write_queue_nums)
        return request.queue_id

    # --- in the order in which they are asked

    def _too_early(self) -> Refusal | None:
        if self._config.is_slave:  # before it makes a topic
            return store_refusal(StoreClosedError(COPY_REFUSAL))
        opens = self._config.start_accept_send_request_time_stamp
        if self._clock.now_ms() >= opens:
            return None
        when = datetime.fromtimestamp(opens / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"broker unable to service, until {when} "
            f"(startAcceptSendRequestTimeStamp={opens}); send to another broker meanwhile",
        )

    def _forbidden(self, request: SendMessage, topic: TopicConfig | None) -> Refusal | None:
        config = self._config
        if not config.broker_permission & PERM_WRITE and topic is not None and topic.order:
            return refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.advertised_host}] sending message is forbidden: its "
                "brokerPermission is "
                f"{config.broker_permission}; send to another broker, or add 2 (write) to it",
            )
        fault = topic_name_fault(request.topic)
        if fault is None and "+" in request.topic:
            fault = f"{_ILLEGAL_SAID}: a retry topic with + in its name is the broker's to write"
        if fault is not None:
            return refusal(ResponseCode.INVALID_PARAMETER, fault)
        if request.topic in NOT_SENDABLE_TOPICS:
            return refusal(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{request.topic}] is forbidden. The broker "
                "keeps it for itself; choose another one",
            )
        return None

    def _create(self, request: SendMessage) -> TopicConfig | None:
        retry = request.topic.startswith(RETRY_PREFIX)
        unit_flag = 0
        if request.unit_mode:
            unit_flag = FLAG_UNIT_SUB if retry else FLAG_UNIT
        made = self._topics.create_by_sending(
            request.topic, request.default_topic, request.default_topic_queue_nums, unit_flag
        )
        if made is None and retry:
            made = self._topics.find_or_make(request.topic, 1, unit_flag)
        return made

    def _unfit_for_batch(self, request: SendMessage) -> Refusal | None:
        if len(request.topic) > TOPIC_SIZE_MAX:
            remark = (
                f"message topic length too long {len(request.topic)}; a batch allows "
                f"{TOPIC_SIZE_MAX}"
            )
        elif request.topic.startswith(RETRY_PREFIX):
            remark = (
                f"batch request does not support retry group {request.topic}; send its "
                "messages one by one"
            )
        else:
            return None
        return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)

    def _without_group(self, request: SendMessage) -> Refusal | None:
        if not request.topic.startswith(RETRY_PREFIX):
            return None
        group = request.topic[len(RETRY_PREFIX) :]
        # RocketMQ: the rest is the group, whole, also that of a POP retry topic
        # (`%RETRY%group_topic`); if new, it is made
        if self._groups.find_or_create(group) is not None:
            return None
        return refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {group}; start a consumer of it, or set "
            "autoCreateSubscriptionGroup=true on the broker",
        )

    def _unfit_for_topic(self, request: SendMessage, topic: TopicConfig) -> Refusal | None:
        """Refuse a send if the attributes of its topic forbid the message.

        The messages within a batch are not checked.
        """
        name = request.topic
        compacted = topic.attributes.get(CLEANUP_POLICY) == COMPACTION and not request.batch
        typed = self._types and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        properties = decode_properties(request.properties or "") if compacted or typed else {}
        remark = None
        if typed and TRANSFER_FLAG not in properties:
            remark = _wrong_type(name, topic_message_type(topic), message_type_of(properties))
        if compacted and not properties.get(KEYS, "").strip():
            remark = remark or (
                f"Required message key is missing: topic {name} has "
                "cleanup.policy=COMPACTION; set message keys"
            )
        if request.sys_flag & SysFlag.INNER_BATCH:
            remark = (
                remark
                or "the message is an inner batch (sysFlag 128), which only BatchCQ topics of "
                "Apache's broker take; send a batch"
            )
        if remark is None:
            return None
        return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)


def _unfit_queue(request: SendMessage, topic: TopicConfig) -> Refusal | None:
    """Refuse a send if the topic has no queue with the requested id.

    RocketMQ: for a topic without queues it divides by zero, and answers 1 (``/ by zero``).
    """
    queues = max(topic.write_queue_nums, topic.read_queue_nums)
    if request.queue_id < 0 < topic.write_queue_nums or 0 <= request.queue_id < queues:
        return None
    said = f"request queueId[{request.queue_id}] is illegal, topic {request.topic} has "
    if request.queue_id >= 0 and queues > 0:
        said += f"{queues} queues (0 to {queues - 1})"
    else:
        said += (
            f"no queue to write to here (writeQueueNums={topic.write_queue_nums}): give it "
            "some, or send to another broker"
        )
    return refusal(ResponseCode.INVALID_PARAMETER, said)


def _wrong_type(topic: str, expected: str, actual: str) -> str | None:
    if expected in (actual, MIXED):
        return None
    return (
        f"TopicMessageType validate failed, the expected type is {expected}, but actual type is "
        f"{actual}: topic {topic} has message.type={expected}, and this broker "
        "enableTopicMessageTypeCheck=true; send another kind of message or change the topic"
    )


def body_refusal(size: int, size_max: int, store: MessageStore) -> Refusal:
    """Return the refusal for a message whose body is empty or too large.

    While the store accepts no messages at all, return the refusal that says so.
    """
    if store.refusal is not None:
        return store_refusal(StoreClosedError(store.refusal))
    if not size:  # RocketMQ: a NullPointerException, before every check
        return refusal(
            ResponseCode.SYSTEM_ERROR, "the message body is empty; send at least one byte"
        )
    return _illegal(
        f"the message body has {size} bytes; {size_max} are allowed (maxMessageSize of the broker)"
    )


def batch_refusal(request: SendMessage, store: MessageStore) -> Refusal | None:
    """Refuse a batch if the batch as a whole is delayed or part of a transaction. Otherwise return
    None.

    Source: apache/rocketmq ``CommitLog.asyncPutMessages``, which checks only the delay level. Here
    a delivery time is refused as well.
    """
    refused = kind_in_batch(request.properties or "")
    if request.sys_flag & TRANSACTION_MASK:
        refused = _illegal(
            f"sysFlag {request.sys_flag} marks a part of a transaction, which a batch "
            "cannot be; leave 4 and 8 out"
        )
    if refused is not None and store.refusal is not None:
        return store_refusal(StoreClosedError(store.refusal))
    return refused


def store_refusal(error: Exception) -> Refusal:
    """Return the refusal for a message that the store did not accept."""
    if isinstance(error, MessageError):
        return _illegal(str(error))
    cause = str(error)
    if isinstance(error, OSError):
        advice = "; free some disk space" if error.errno in NO_ROOM else ""
        cause = (
            f"the store cannot make a new file: {error.strerror or error} "
            f"({error.filename or 'no path'}){advice}"
        )
    return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {cause}")


def _illegal(cause: str) -> Refusal:
    said = "the message is illegal, maybe msg body or properties length not matched"
    return refusal(ResponseCode.MESSAGE_ILLEGAL, f"{said}: {cause}")


def topic_name_fault(topic: str) -> str | None:
    """Return the reason why a topic name is invalid. Return None for a valid name.

    Source: apache/rocketmq ``TopicValidator.validateTopic``.
    """
    fault = topic_fault(topic)
    if fault is None:
        return None
    if not topic.strip():
        said = "The specified topic is blank"
    elif _ILLEGAL.search(topic):
        said = _ILLEGAL_SAID
    else:
        said = "The specified topic is longer than topic max length"
    return f"{said}: {fault}"
