"""Sending: 10 SEND_MESSAGE, 310 SEND_MESSAGE_V2 (one-letter names), 320 SEND_BATCH_MESSAGE.

The body is the message body, or with ``batch`` the concatenated messages of ``message/batch.py``.
Source: apache/rocketmq ``SendMessageRequestHeader``, ``SendMessageRequestHeaderV2``,
``SendMessageResponseHeader``.
"""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class SendMessageReply(Reply, kw_only=True):
    """Where the message is. ``msg_id`` is the offset message id (a comma-separated list for a
    batch)."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class SendMessage(Request[SendMessageReply], kw_only=True):
    """Store one message, or a batch. Timestamps in ms; ``properties`` as in
    ``message/properties.py``."""

    code: ClassVar[int] = RequestCode.SEND_MESSAGE
    reply: ClassVar[type[SendMessageReply]] = SendMessageReply

    producer_group: str | None = None
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


_ONE_LETTER = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}


class SendMessageV2(Request[SendMessageReply], kw_only=True, rename=_ONE_LETTER):
    """``SendMessage`` with one-letter names: what 5.x and most 4.x clients send."""

    code: ClassVar[int] = RequestCode.SEND_MESSAGE_V2
    reply: ClassVar[type[SendMessageReply]] = SendMessageReply

    producer_group: str | None = None
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


class SendBatchMessage(SendMessageV2, kw_only=True):
    """The code for batches; what makes a batch is the header's ``batch`` flag, under any of the
    three codes."""

    code: ClassVar[int] = RequestCode.SEND_BATCH_MESSAGE


SendRequest = SendMessage | SendMessageV2
"""Either form; the attributes are the same."""
