"""Single messages: by key or unique id (12), by place in the log (33), and the age of a queue's
first message (32).

The body of an answer is stored messages back to back, oldest first. Source: apache/rocketmq
``QueryMessageRequestHeader``, ``QueryMessageResponseHeader``, ``ViewMessageRequestHeader``,
``MQClientAPIImpl.queryMessage``.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class QueryMessageReply(Reply, kw_only=True):
    """How far the index goes: store time and commit-log offset of the newest message in it."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class QueryMessage(Request[QueryMessageReply], kw_only=True):
    """The newest ``max_num`` messages of ``topic`` with this key, stored between the times (ms); 22
    QUERY_NOT_FOUND if there are none."""

    code: ClassVar[int] = RequestCode.QUERY_MESSAGE
    reply: ClassVar[type[QueryMessageReply]] = QueryMessageReply

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")
    """Whether ``key`` is a unique id; RocketMQ then looks for 32 messages (``defaultQueryMaxNum``),
    whatever ``max_num`` says."""


class ViewMessageById(Request[None], kw_only=True):
    """The message at ``offset`` of the commit log (an offset message id holds it); 1 SYSTEM_ERROR
    if there is none."""

    code: ClassVar[int] = RequestCode.VIEW_MESSAGE_BY_ID

    topic: str | None = None
    offset: Int64


class EarliestStoreTimeReply(Reply, kw_only=True):
    """A store time in ms; −1 for a queue without messages."""

    timestamp: Int64


class GetEarliestMsgStoreTime(Request[EarliestStoreTimeReply], kw_only=True):
    """When the first message that a queue still has was stored."""

    code: ClassVar[int] = RequestCode.GET_EARLIEST_MSG_STORETIME
    reply: ClassVar[type[EarliestStoreTimeReply]] = EarliestStoreTimeReply

    topic: str
    queue_id: Int32
