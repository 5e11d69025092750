"""Requests of POP consumers. All times are in milliseconds.

- 200050 POP_MESSAGE, 200052 PEEK_MESSAGE, 200054 NOTIFICATION, 200055 POLLING_INFO
- 200051 ACK_MESSAGE, 200053 CHANGE_MESSAGE_INVISIBLETIME: ``topic`` is the topic whose
  queue contains the message (``PopHandle.real_topic``), ``extra_info`` is the text of the
  handle.
- 200151 BATCH_ACK_MESSAGE: all fields are in the body, a ``BatchAckBody``.

Source: apache/rocketmq ``PopMessageRequestHeader`` and the other headers of the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class InitMode(IntEnum):
    """Position in a queue at which a group without an offset starts (RocketMQ
    ``ConsumeInitMode``)."""

    MIN = 0
    MAX = 1


class ChangeInvisibleTimeReply(Reply, kw_only=True):
    """Reply to CHANGE_MESSAGE_INVISIBLETIME (200053) with the parts of the message's new handle.

    The start offset of that handle is the queue offset of the message.
    """

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


class PopMessageReply(ChangeInvisibleTimeReply, kw_only=True):
    """Reply to POP_MESSAGE (200050). The popped messages are in the body.

    - ``pop_time``, ``invisible_time``: when the messages were popped, and for how long they are
      invisible.
    - ``rest_num``: number of messages left in the queues that were read.

    The three texts have the forms of ``message/handles.py``.
    """

    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopMessage(Request[PopMessageReply], kw_only=True):
    """Pop messages of one queue, or of any queue of the topic if ``queue_id`` is −1.

    At most ``max_msg_nums`` messages are popped, and they are invisible for ``invisible_time``. If
    there are none, the broker waits for messages up to ``poll_time`` after ``born_time``.
    """

    code = RequestCode.POP_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = False
    attempt_id: str | None = None


class AckMessage(Request[None], kw_only=True):
    """Acknowledge one popped message, so that it is not delivered again.

    ``offset`` is the queue offset of the message.
    """

    code = RequestCode.ACK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTime(Request[ChangeInvisibleTimeReply], kw_only=True):
    """Set a new time after which a popped message is delivered again.

    The time is ``invisible_time`` from now.
    """

    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class PeekMessage(Request[PopMessageReply], kw_only=True):
    """Ask for the messages that a pop would return, without popping them."""

    code = RequestCode.PEEK_MESSAGE
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationReply(Reply, kw_only=True):
    """Reply to NOTIFICATION (200054).

    - ``has_msg``: True if a pop would find a message.
    - ``polling_full``: True if too many requests are waiting already.
    """

    has_msg: bool = False
    polling_full: bool = False


class Notification(Request[NotificationReply], kw_only=True):
    """Wait until a pop would find a message. The broker answers at the latest ``poll_time`` after
    ``born_time``."""

    code = RequestCode.NOTIFICATION
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = False
    attempt_id: str | None = None


class PollingInfoReply(Reply, kw_only=True):
    """Reply to POLLING_INFO (200055) with the number of waiting pops."""

    polling_num: Int32 = 0


class PollingInfo(Request[PollingInfoReply], kw_only=True):
    """Ask a broker how many pops of a group wait for messages of a queue.

    ``queue_id`` −1 means any queue of the topic.
    """

    code = RequestCode.POLLING_INFO
    consumer_group: str
    topic: str
    queue_id: Int32


# Acknowledgement of many messages (200151). Source: apache/rocketmq ``BatchAck``,
# ``BatchAckMessageRequestBody``, ``BitSetSerializerDeserializer``.
class BatchAck(msgspec.Struct, kw_only=True):
    """Acknowledged messages of one pop from one queue.

    - ``topic``: the topic that was popped.
    - ``retry``: the handle's kind, as text.
    - ``bits``: bit n stands for the message at ``start_offset`` + n. The lowest byte is first, and
      JSON has the bytes in base64.
    """

    consumer_group: str | None = msgspec.field(default=None, name="c")
    topic: str | None = msgspec.field(default=None, name="t")
    retry: str | None = msgspec.field(default=None, name="r")
    start_offset: Int64 = msgspec.field(default=0, name="so")
    queue_id: Int32 = msgspec.field(default=0, name="q")
    revive_queue_id: Int32 = msgspec.field(default=0, name="rq")
    pop_time: Int64 = msgspec.field(default=0, name="pt")
    invisible_time: Int64 = msgspec.field(default=0, name="it")
    bits: bytes | None = msgspec.field(default=None, name="b")


class BatchAckBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of BATCH_ACK_MESSAGE (200151) with the acknowledged messages of one broker."""

    broker_name: str | None = None
    acks: tuple[BatchAck, ...] | None = None


class BatchAckMessage(Request[None], kw_only=True):
    """Acknowledge many popped messages, so that they are not delivered again."""

    code = RequestCode.BATCH_ACK_MESSAGE
    body = BatchAckBody


def pack_bits(numbers: Iterable[int]) -> bytes:
    """Return a bit set in which the bits with these numbers are set.

    The bytes are those of Java's ``BitSet.toByteArray``.
    """
    value = 0
    for number in numbers:
        value |= 1 << number
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def unpack_bits(data: bytes) -> Iterator[int]:
    """Yield the numbers of the set bits, in ascending order."""
    for index, byte in enumerate(data):
        while byte:
            low = byte & -byte
            yield index * 8 + low.bit_length() - 1
            byte ^= low
