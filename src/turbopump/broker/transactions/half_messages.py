"""Half messages. A half message is the stored message of an open transaction.

The module takes values and returns values, without I/O.

::

    RMQ_SYS_TRANS_HALF_TOPIC, queue 0      the message as it was sent, with these properties:
        REAL_TOPIC, REAL_QID                   its destination
        PGROUP, __transactionId__              its producer group; its UNIQ_KEY
        TRANSACTION_CHECK_TIMES                number of checks; absent: none
        TRAN_PREPARED_QUEUE_OFFSET             of a message stored again: its first offset here
    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0   endings: tag d, a body "17,18,21," of such offsets
    consumer group CID_RMQ_SYS_TRANS       its offsets in the two queues: all before is done

Source: apache/rocketmq ``TransactionalMessageBridge``, ``TransactionalMessageServiceImpl``.
RocketMQ writes TRAN_PREPARED_QUEUE_OFFSET only if CHECK_IMMUNITY_TIME_IN_SECONDS makes the message
wait, and reads it only there. We write it each time, so that an ending that names an older copy
ends the newest one too.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from turbopump.broker.interceptors import Destination, added_properties
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.codec import encode_copy
from turbopump.message.ids import offset_msg_id
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    CRC32,
    DELAY_TIME_LEVEL,
    NAME_END,
    PAIR_END,
    PRODUCER_GROUP,
    PROPERTIES_SIZE_MAX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
    SysFlag,
    encode_properties,
    property_bytes,
    property_value,
    readable_text,
    whole_number,
)
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import CheckTransactionState, SendMessage
from turbopump.remoting.response import Refusal, refusal
from turbopump.store.log.commit_log import PutResult
from turbopump.store.queues.lookup import StoredEntry

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GROUP: Final = "CID_RMQ_SYS_TRANS"
OP_PROPERTIES: Final = "TAGS\x01d\x02"
QUEUE: Final = 0
ROOM: Final = 104
"""Bytes that the properties of a half message leave free.

A copy needs them for a number of checks, an offset and a CRC.
"""

_TIMERS: Final = re.compile(
    r"(?:^|\x02)(TIMER_DELIVER_MS|TIMER_DELAY_SEC|TIMER_DELAY_MS)\x01[^\x02]"
)
_OURS: Final = (
    DELAY_TIME_LEVEL,
    REAL_TOPIC,
    REAL_QUEUE_ID,
    TRANSACTION_ID,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
)
"""Properties that a producer may not set in the message of a transaction."""


class HalfMessageInterceptor:
    """Interceptor that turns messages of transactions into half messages.

    A half message waits in a topic of the broker until its transaction ends.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._name = config.broker_name
        self._size_max = PROPERTIES_SIZE_MAX - ROOM - len(added_properties(config).encode())

    def __call__(self, request: SendMessage, destination: Destination) -> Destination | Refusal:
        text = destination.properties
        if (property_value(text, TRANSACTION_PREPARED) or "").lower() != "true":
            return destination
        if request.reconsume_times and property_value(text, DELAY_TIME_LEVEL) not in (None, "0"):
            # RocketMQ: sent back by a consumer before 4.6.1, which keeps the property
            return destination
        if self._config.reject_transaction_message:
            return refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._name}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)",
            )
        timer = _TIMERS.search(text)
        if timer is not None:
            return refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message of a transaction cannot be a timer message; send it without "
                f"the property {timer[1]}",
            )
        group = property_value(text, PRODUCER_GROUP) or request.producer_group
        if not group:
            return refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message of a transaction has no producer group, so the broker could "
                "not check it; set the property PGROUP",
            )
        added = {
            PRODUCER_GROUP: group,
            REAL_TOPIC: destination.topic,
            REAL_QUEUE_ID: str(destination.queue_id),
        }
        unique = property_value(text, UNIQ_KEY)
        if unique is not None:
            added[TRANSACTION_ID] = unique
        properties = _without(text, *_OURS, PRODUCER_GROUP) + encode_properties(added)
        size = len(property_bytes(properties))
        if size > self._size_max:
            return refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties of this message, with those of its transaction, have {size} "
                f"bytes; {self._size_max} are allowed, because each check stores the message again "
                "with more of them",
            )
        sys_flag = destination.sys_flag & ~TRANSACTION_MASK
        return msgspec.structs.replace(
            destination, topic=HALF_TOPIC, queue_id=QUEUE, properties=properties, sys_flag=sys_flag
        )


class HalfMessage(msgspec.Struct, frozen=True):
    """Stored message of an open transaction. Its outcome is unknown.

    - ``group``: the producer group.
    - ``topic``, ``queue_id``: the destination of the message.
    - ``origin``: the first offset of the half message in its queue.
    - ``checks``: the number of checks.
    - ``immunity_ms``: the milliseconds for which the broker does not check it, or None for the
      broker's setting.
    """

    message: ReceivedMessage
    group: str
    topic: str
    queue_id: int
    origin: int
    checks: int
    immunity_ms: int | None

    @property
    def offset(self) -> int:
        """Offset of this copy in the queue of half messages."""
        return self.message.queue_offset

    def is_the_same_as(self, other: HalfMessage) -> bool:
        """Return True if ``other`` is a copy of the same half message.

        An equal UNIQ_KEY is not enough, because a producer may use a key twice.
        """
        return self.origin == other.origin and self._birth == other._birth

    @property
    def _birth(self) -> tuple[object, ...]:
        message = self.message
        unique = message.properties.get(UNIQ_KEY)
        return (
            self.group,
            self.topic,
            self.queue_id,
            unique,
            message.born_timestamp,
            message.body_crc,
            len(message.stored_body),
        )

    @property
    def final_flag(self) -> int:
        """Value of ``sysFlag`` for the message after the commit."""
        return self.message.sys_flag & ~TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT

    def moved_properties(self) -> str:
        """Return the properties for a copy at the end of the queue."""
        text = _without(self.message.properties_text, CRC32)
        return _with(text, TRANSACTION_PREPARED_QUEUE_OFFSET, self.origin)

    def checked_properties(self) -> str:
        """Return the properties for a copy after one more check."""
        return _with(self.moved_properties(), TRANSACTION_CHECK_TIMES, self.checks + 1)

    def resumed_properties(self) -> str:
        """Return the properties for new checks of a half message, after the broker had given it
        up."""
        return _with(_without(self.message.properties_text, CRC32), TRANSACTION_CHECK_TIMES, 0)

    def check_request(
        self, properties: str, stored: PutResult, broker_name: str
    ) -> tuple[CheckTransactionState, bytes]:
        """Return the header and the body of a check. A check asks a producer for the outcome.

        - ``properties``: the properties of the newest copy.
        - ``stored``: the position of the newest copy.
        """
        message = self.message
        unique = property_value(readable_text(properties), UNIQ_KEY)
        header = CheckTransactionState(
            topic=HALF_TOPIC,
            tran_state_table_offset=stored.queue_offset,
            commit_log_offset=stored.offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_msg_id(*message.store_host, stored.offset),
            bname=broker_name,
        )
        body = encode_copy(
            message,
            self.topic,
            property_bytes(properties),
            queue_id=self.queue_id,
            queue_offset=stored.queue_offset,
            commit_log_offset=stored.offset,
        )
        return header, body


def read_half(message: ReceivedMessage) -> HalfMessage | None:
    """Decode a stored half message. Return None if the producer group or the destination is
    missing."""
    properties = message.properties
    group, topic = properties.get(PRODUCER_GROUP), properties.get(REAL_TOPIC)
    queue_id = whole_number(properties.get(REAL_QUEUE_ID))
    if not group or not topic or queue_id is None:
        return None
    origin = whole_number(properties.get(TRANSACTION_PREPARED_QUEUE_OFFSET))
    immunity = whole_number(properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS))
    return HalfMessage(
        message,
        group,
        topic,
        queue_id,
        message.queue_offset if origin is None else origin,
        whole_number(properties.get(TRANSACTION_CHECK_TIMES)) or 0,
        None if immunity is None else immunity * 1000,
    )


def half_of(entry: StoredEntry | None) -> HalfMessage | None:
    """Return the half message in a stored entry, or None.

    The result is None if there is no entry, or if the entry is damaged.
    """
    return read_half(entry.message) if entry is not None and entry.fault is None else None


def ended_offsets(message: ReceivedMessage) -> list[int]:
    """Return the offsets in an entry of the op queue. They are offsets of ended half messages.

    RocketMQ before 5 wrote one offset, without a comma.
    """
    if message.tags != "d":
        return []
    pieces = message.stored_body.decode("ascii", "replace").split(",")
    return [number for piece in pieces if (number := whole_number(piece)) is not None]


def _without(text: str, *names: str) -> str:
    """Remove these names from encoded properties. The result ends with a separator."""
    heads = tuple(name + NAME_END for name in names)
    return "".join(
        [pair + PAIR_END for pair in text.split(PAIR_END) if pair and not pair.startswith(heads)]
    )


def _with(text: str, name: str, value: int) -> str:
    """Add this property at the end of encoded properties."""
    return f"{_without(text, name)}{name}{NAME_END}{value}{PAIR_END}"
