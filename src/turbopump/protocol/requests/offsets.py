"""Offsets: a group's place in a queue (14, 15), a queue's ends (30, 31), and its place at a time
(29)."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class OffsetReply(Reply, kw_only=True):
    """One queue offset."""

    offset: Int64


class QueryConsumerOffset(Request[OffsetReply], kw_only=True):
    """Where a group stands in a queue; 22 QUERY_NOT_FOUND when it has no place yet."""

    code: ClassVar[int] = RequestCode.QUERY_CONSUMER_OFFSET
    reply: ClassVar[type[OffsetReply]] = OffsetReply

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Request[None], kw_only=True):
    """Commit a group's place in a queue: the offset of the next message wanted."""

    code: ClassVar[int] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffset(Request[OffsetReply], kw_only=True):
    """The queue offset at a store time in ms. ``boundary_type`` LOWER: the first at or after it;
    UPPER: the last at or before it."""

    code: ClassVar[int] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    reply: ClassVar[type[OffsetReply]] = OffsetReply

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(Request[OffsetReply], kw_only=True):
    """One past the last message of a queue."""

    code: ClassVar[int] = RequestCode.GET_MAX_OFFSET
    reply: ClassVar[type[OffsetReply]] = OffsetReply

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(Request[OffsetReply], kw_only=True):
    """The first message a queue still has."""

    code: ClassVar[int] = RequestCode.GET_MIN_OFFSET
    reply: ClassVar[type[OffsetReply]] = OffsetReply

    topic: str
    queue_id: Int32
