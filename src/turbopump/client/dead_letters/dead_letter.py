"""A dead letter: a message in ``%DLQ%group``, where it came from, and what it is when it is sent
again. Values in, values out.

The id of the message that goes out again is made of what a dead letter can be told by, and of
nothing else: whoever resends it, whenever, gives the same id. Source: apache/rocketmq
``AbstractSendMessageProcessor.consumerSendMsgBack`` (the properties of a dead letter).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from turbopump.message import properties as names
from turbopump.message.failure import CONSUME_FAILURE, failure_of
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.message.properties import encode_properties
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.message.sysflag import COMPRESSION_MASK, SysFlag
from turbopump.protocol.requests.send import SendMessageV2

RESENT_FROM: Final = "RESENT_FROM"
"""Property of a message that was resent: the dead letter it was, as
``%DLQ%group@broker:queue:offset``."""
RESENT_ID: Final = "RESENT_ID"
"""Property of a message that was resent: the id the dead letter had."""
PRODUCER_GROUP: Final = "TURBOPUMP_DLQ_RESEND"
_FIRST_POP_TIME: Final = "1ST_POP_TIME"
_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | COMPRESSION_MASK
_NOT_RESENT: Final = frozenset(
    {
        names.DELAY_TIME_LEVEL,
        names.WAIT_STORE_MSG_OK,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.PRODUCER_GROUP,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.MSG_REGION,
        names.TRACE_SWITCH,
        names.CLUSTER,
        names.POP_CK,
        names.INNER_NUM,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        "TIMER_DELAY_LEVEL",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK_OFFSET",
        _FIRST_POP_TIME,
        CONSUME_FAILURE,
        _DLQ_ORIGIN_TOPIC,
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)
"""What belongs to the message's last life. A DELAY or TRAN_MSG that stayed would send it to a level
or make it half a transaction."""


class ResendTo(Enum):
    """Where dead letters go: to the topic they came from, where every group of it gets them; or to
    their own group's retry topic. There are two of these: for consumers that pull, and for those
    that pop. ``RETRY`` takes that which the letter, or the group, says it reads."""

    ORIGIN = "origin"
    RETRY = "retry"
    PULL_RETRY = "pull-retry"
    POP_RETRY = "pop-retry"


class InDoubt(Enum):
    """What to do with letters that may have been sent, and whose target queue cannot be read: it is
    gone, or its broker does not answer. Leave them until it can be; send them again, so that those
    that had arrived are there twice; or take them for sent."""

    LEAVE = "leave"
    SEND = "send"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of a group's dead letters; ``message`` is as it is stored there."""

    group: str
    message: ReceivedMessage

    @property
    def place(self) -> str:
        """``broker:queue:offset``: which dead letter of its group it is."""
        message = self.message
        return f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"

    @property
    def attempts(self) -> int:
        """How often the group was given it: a copy counts one more when it is made, the dead letter
        too."""
        return self.message.reconsume_times

    @property
    def origin_topic(self) -> str | None:
        """The topic to which it was first sent; None if the message does not say."""
        properties = self.message.properties
        return properties.get(names.RETRY_TOPIC) or properties.get(_DLQ_ORIGIN_TOPIC)

    @property
    def origin_msg_id(self) -> str | None:
        """The offset message id of its first copy."""
        return self.message.properties.get(names.ORIGIN_MESSAGE_ID)

    @property
    def failure(self) -> str | None:
        """Why its last attempt failed, if a client of ours had it and could say so."""
        return failure_of(self.message.properties, self.attempts)

    @property
    def resend_id(self) -> str:
        """The unique id of the message that it is sent again as. The store time is part of it: a
        broker that was set up anew counts its queues from 0 again."""
        text = f"{DLQ_PREFIX}{self.group}\n{self.place}\n{self.message.store_timestamp}"
        return hashlib.sha256(text.encode()).hexdigest()[:32].upper()

    def is_one_of(self, ids: Collection[str]) -> bool:
        """Whether one of ``ids`` means it: its unique id, its offset message id or its place."""
        return any(mine in ids for mine in self.ids)

    @property
    def ids(self) -> tuple[str, str, str]:
        """By which it can be chosen."""
        return self.message.msg_id, self.message.offset_msg_id, self.place

    @property
    def was_popped(self) -> bool:
        """Whether it was popped once, and put back. (What was popped and given up in the first
        attempt does not say.)"""
        return _FIRST_POP_TIME in self.message.properties

    def request(self, queue: MessageQueue) -> SendMessageV2:
        """The request that sends it to ``queue``, attempts counted from 0 again. Its body is the
        message's ``stored_body``."""
        message = self.message
        properties = {
            name: value for name, value in message.properties.items() if name not in _NOT_RESENT
        }
        # its consumers show the topic that RETRY_TOPIC names
        if queue.topic.startswith(RETRY_PREFIX):
            kept = (names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID)
            properties.update(
                {name: message.properties[name] for name in kept if name in message.properties}
            )
        properties[RESENT_FROM] = f"{DLQ_PREFIX}{self.group}@{self.place}"
        properties[RESENT_ID] = message.msg_id
        properties[names.UNIQ_KEY] = self.resend_id
        return SendMessageV2(
            producer_group=PRODUCER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & _KEPT_FLAGS,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=encode_properties(properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )
