"""Calling a timer message back before it is delivered (370).

Source: apache/rocketmq ``RecallMessageRequestHeader``, ``RecallMessageResponseHeader``.
"""

from __future__ import annotations

from typing import ClassVar

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class RecallMessageReply(Reply, kw_only=True):
    """The unique id of the message that will not be delivered."""

    msg_id: str


class RecallMessage(Request[RecallMessageReply], kw_only=True):
    """Recall the message that ``recall_handle`` (``message/recall_handle.py``) names;
    ILLEGAL_OPERATION if it is too late for that."""

    code: ClassVar[int] = RequestCode.RECALL_MESSAGE
    reply: ClassVar[type[RecallMessageReply]] = RecallMessageReply

    producer_group: str | None = None
    topic: str
    recall_handle: str | None = None
