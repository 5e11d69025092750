"""Offsets from outside: 222 INVOKE_BROKER_TO_RESET_OFFSET, 220 RESET_CONSUMER_CLIENT_OFFSET, 223
INVOKE_BROKER_TO_GET_CONSUMER_STATUS, 221 GET_CONSUMER_STATUS_FROM_CLIENT, 314 CLONE_GROUP_OFFSET,
308 QUERY_CORRECTION_OFFSET. Bodies are in ``bodies.offsets`` and ``bodies.stats``."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class ResetOffset(Request[None], kw_only=True):
    """Set a group's place in a topic: all queues, or ``queue_id``; to ``offset``, or where
    ``timestamp`` (ms; negative: the end) is.

    Without ``force`` a place is only moved back. The body of the answer is
    ``bodies.offsets.ResetOffsetBody``.
    """

    code: ClassVar[int] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=True, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ResetConsumerOffset(Request[None], kw_only=True):
    """From a broker to a consumer, oneway: go on at the offsets in the body, a
    ``bodies.offsets.ResetOffsetBody``."""

    code: ClassVar[int] = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    group: str
    topic: str
    timestamp: Int64
    force: bool = msgspec.field(default=False, name="isForce")
    queue_id: Int32 = -1
    offset: Int64 | None = None


class GetConsumerStatus(Request[None], kw_only=True):
    """How far each client of a group is by its own account, or the one with the id ``client_addr``;
    the body of the answer is ``bodies.offsets.GetConsumerStatusBody``."""

    code: ClassVar[int] = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerStatusFromClient(Request[None], kw_only=True):
    """From a broker to a consumer: how far are you? The body of the answer as above."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffset(Request[None], kw_only=True):
    """Give ``dest_group`` the places of ``src_group`` in one topic, or in all. Not ``offline``:
    only in topics that a running ``src_group`` subscribes."""

    code: ClassVar[int] = RequestCode.CLONE_GROUP_OFFSET

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffset(Request[None], kw_only=True):
    """The lowest offsets of a topic's groups but ``filter_groups`` (separated by commas); the
    largest number there is where ``compare_group`` is behind them. The body of the answer is
    ``bodies.stats.QueryCorrectionOffsetBody``."""

    code: ClassVar[int] = RequestCode.QUERY_CORRECTION_OFFSET

    topic: str
    compare_group: str
    filter_groups: str | None = None
