"""Requests that read messages: 11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE. The body of the answer is
stored messages back to back.

Source: apache/rocketmq ``PullMessageRequestHeader``, ``PullMessageResponseHeader``,
``PullSysFlag``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class PullSysFlag:
    """Bits of the ``sys_flag`` of a pull.

    They are plain ints, because an IntFlag costs 0.7 µs for each ``&``.
    """

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE_PULL: Final = 16


class PullMessageReply(Reply, kw_only=True):
    """Reply to a pull, with the queue offset from which to continue.

    All three offsets are set, even if the pull has found no messages.
    """

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PullMessage(Request[PullMessageReply], kw_only=True):
    """Read messages of one queue from ``queue_offset`` on.

    If there are none, the broker waits for messages up to ``suspend_timeout_millis``.
    """

    code = RequestCode.PULL_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32 = 32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # (sic)
    proxy_froward_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")


class LitePullMessage(PullMessage, kw_only=True):
    """Read messages of one queue for a lite pull consumer, exactly as ``PullMessage`` does."""

    code = RequestCode.LITE_PULL_MESSAGE


# Queries for single messages: by key or unique id (12), by offset in the log (33), and the age of a
# queue's first message (32). The body of an answer is stored messages back to back, oldest first.
# Source: apache/rocketmq ``QueryMessageRequestHeader``, ``QueryMessageResponseHeader``,
# ``ViewMessageRequestHeader``, ``MQClientAPIImpl.queryMessage``.
class QueryMessageReply(Reply, kw_only=True):
    """Reply to QUERY_MESSAGE (12). The found messages are in the body.

    The header has the store time and the commit-log offset of the newest message in the index.
    """

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class QueryMessage(Request[QueryMessageReply], kw_only=True):
    """Ask a broker for the newest messages with a given key in a topic.

    At most ``max_num`` messages are found, and only those stored between two times in ms. The code
    of the answer is 22 QUERY_NOT_FOUND if there are none.
    """

    code = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")
    """True if ``key`` is a unique id. RocketMQ then searches for 32 messages
    (``defaultQueryMaxNum``) and ignores ``max_num``."""


class ViewMessageById(Request[None], kw_only=True):
    """Ask a broker for the message at an offset of the commit log.

    An offset message id contains this offset. The code of the answer is 1 SYSTEM_ERROR if there is
    no such message.
    """

    code = RequestCode.VIEW_MESSAGE_BY_ID
    topic: str | None = None
    offset: Int64


class EarliestStoreTimeReply(Reply, kw_only=True):
    """Reply to GET_EARLIEST_MSG_STORETIME (32) with a time in ms, or −1 for a queue without
    messages."""

    timestamp: Int64


class GetEarliestMsgStoreTime(Request[EarliestStoreTimeReply], kw_only=True):
    """Ask a broker for the store time of the first message that a queue still has."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    topic: str
    queue_id: Int32
