"""Replies to requests: 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2 bring one to a broker,
326 PUSH_REPLY_MESSAGE_TO_CLIENT takes it on to the producer that waits for it.

The body is the reply's, compressed if the sysFlag says so. Who waits stands in the property
REPLY_TO_CLIENT, for what in CORRELATION_ID. Source: apache/rocketmq ``ReplyMessageProcessor``,
``ReplyMessageRequestHeader``.
"""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.send import SendMessage, SendMessageV2


class SendReplyMessage(SendMessage, kw_only=True):
    """A reply on its way to who asked; the fields of a send, the topic
    ``<cluster>_REPLY_TOPIC``."""

    code: ClassVar[int] = RequestCode.SEND_REPLY_MESSAGE


class SendReplyMessageV2(SendMessageV2, kw_only=True):
    """``SendReplyMessage`` with one-letter names."""

    code: ClassVar[int] = RequestCode.SEND_REPLY_MESSAGE_V2


SendReplyRequest = SendReplyMessage | SendReplyMessageV2
"""Either form; the attributes are the same."""


class PushReplyMessageToClient(Request[None], kw_only=True):
    """From a broker to the producer that asked: a reply. Times in ms; hosts are ``ip:port`` (no
    brackets round an IPv6 address)."""

    code: ClassVar[int] = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Int64
