"""Requests that delete old data now: 306 CLEAN_EXPIRED_CONSUMEQUEUE, 316 CLEAN_UNUSED_TOPIC, 329
DELETE_EXPIRED_COMMITLOG."""

from __future__ import annotations

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class CleanExpiredConsumeQueue(Request[None], kw_only=True):
    """Delete the queue files that only refer to deleted messages."""

    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class CleanUnusedTopic(Request[None], kw_only=True):
    """Delete the queues of topics that the broker no longer has."""

    code = RequestCode.CLEAN_UNUSED_TOPIC


class DeleteExpiredCommitLog(Request[None], kw_only=True):
    """Delete commit-log files older than fileReservedTime, at any hour of the day."""

    code = RequestCode.DELETE_EXPIRED_COMMITLOG
