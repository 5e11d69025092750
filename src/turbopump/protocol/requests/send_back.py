"""36 CONSUMER_SEND_MSG_BACK: a consumer could not handle a message and wants it again later.
Source: apache/rocketmq ``ConsumerSendMsgBackRequestHeader``."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class ConsumerSendMsgBack(Request[None], kw_only=True):
    """``offset`` is the message's in the log of the broker that is asked. ``delay_level`` 0: the
    broker chooses; below 0: to the dead letters. ``max_reconsume_times``: so many retries, then to
    the dead letters; absent (clients before 3.4.9): as the group is set. ``failure``: why, in one
    line. Our own field; Apache's brokers pass over it."""

    code: ClassVar[int] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    failure: str | None = None
