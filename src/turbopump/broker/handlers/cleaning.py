"""Handler of requests by an operator to delete expired data (306, 316 and 329).

The broker deletes files by itself (``store/retention.py``), and these requests start a deletion
now. Source: apache/rocketmq ``AdminBrokerProcessor.cleanExpiredConsumeQueue`` and its neighbours.
Unlike Apache's broker, this one keeps the last file of a queue, so that an empty queue still knows
its next offset.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.housekeeping import Cleaning
from turbopump.message.rules import LMQ_PREFIX, is_system_topic
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.cleaning import (
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    DeleteExpiredCommitLog,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

ROUND_WAIT_S: Final = 2.0
"""Maximum seconds that an answer waits for the end of a deletion. Tools wait 3 to 5 s for an
answer."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class CleaningHandler:
    """Handler of requests to delete expired files and the remains of deleted topics."""

    records: TopicRecords
    cleaning: Cleaning

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(CleanExpiredConsumeQueue, self.queues)
        router.add(DeleteExpiredCommitLog, self.commit_log)
        router.add(CleanUnusedTopic, self.unused_topics)

    async def queues(
        self, _request: CleanExpiredConsumeQueue, context: RequestContext
    ) -> Response[None]:
        log.info("queue files are cleaned by=%s", context.peer.peer)
        await self.cleaning.finish_round(ROUND_WAIT_S)
        return Response()

    async def commit_log(
        self, _request: DeleteExpiredCommitLog, context: RequestContext
    ) -> Response[None]:
        """Start to delete the expired files of the commit log.

        The deletion goes on after the answer if it takes long.
        """
        log.info("expired files of the log are deleted by=%s", context.peer.peer)
        self.records.store.retention.request_deletion()
        await self.cleaning.finish_round(ROUND_WAIT_S)
        return Response()

    async def unused_topics(
        self, _request: CleanUnusedTopic, context: RequestContext
    ) -> Response[None]:
        topics = self.records.topics
        for topic in sorted({queue.topic for queue in self.records.store.queues}):
            if topics.find(topic) or is_system_topic(topic) or topic.startswith(LMQ_PREFIX):
                continue
            error = await self.records.forget(topic)
            if error is not None:
                remark = f"the queues of topic {topic} cannot be deleted: {error}; repair that"
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
            log.info("queues of an unknown topic deleted topic=%s by=%s", topic, context.peer.peer)
        return Response()
