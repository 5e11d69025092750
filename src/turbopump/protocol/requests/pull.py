"""Pulling: 11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE. The body of the answer is stored messages
back to back.

Source: apache/rocketmq ``PullMessageRequestHeader``, ``PullMessageResponseHeader``,
``PullSysFlag``.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class PullSysFlag:
    """The bits of a pull's ``sys_flag``, as plain ints (an IntFlag costs 0.7 µs at each ``&``)."""

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE_PULL: Final = 16


class PullMessageReply(Reply, kw_only=True):
    """Where to go on: queue offsets; filled for every outcome, not only for found messages."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PullMessage(Request[PullMessageReply], kw_only=True):
    """Read messages of one queue from ``queue_offset`` on; held up to ``suspend_timeout_millis`` if
    there are none."""

    code: ClassVar[int] = RequestCode.PULL_MESSAGE
    reply: ClassVar[type[PullMessageReply]] = PullMessageReply

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
    """The same from a lite pull consumer."""

    code: ClassVar[int] = RequestCode.LITE_PULL_MESSAGE
