"""Handler of requests to lock and unlock queues for ordered consumption (41 and 42).

A client gets a lock only after the lock is on the disk. Source: apache/rocketmq
``AdminBrokerProcessor.lockBatchMQ``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final

from turbopump.broker.background import wait_for
from turbopump.broker.stored import Stored
from turbopump.message.message import MessageQueue
from turbopump.message.rules import group_fault
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchMq,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps

SAVE_PATIENCE_S: Final = 0.7
"""Maximum seconds that an answer waits for the disk. Java's clients wait a second for the
answer."""
CLIENT_ID_MAX: Final = 1024
NAME_MAX: Final = 255
"""Maximum characters of the broker name in a saved lock."""


@dataclass(eq=False)
class LocksHandler:
    """Handler of requests to lock and unlock queues for ordered consumption.

    RocketMQ: ``lockInStrictMode`` also asks the replicas. This broker has none to ask.
    """

    stored: Stored

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add_with_body(LockBatchMq, self.lock)
        router.add_with_body(UnlockBatchMq, self.unlock)

    def lock(
        self, _request: LockBatchMq, body: LockBatchRequestBody, context: RequestContext
    ) -> Outcome[LockBatchResponseBody]:
        if not body.consumer_group or not body.client_id:
            return refusal(
                ResponseCode.SYSTEM_ERROR, "a lock needs consumerGroup and clientId in its body"
            )
        fault = group_fault(body.consumer_group)
        if fault is not None or len(body.client_id) > CLIENT_ID_MAX:
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                fault or f"a clientId is at most {CLIENT_ID_MAX} characters long",
            )
        self.stored.clients.note_lock(
            context.peer, body.client_id, body.consumer_group, context.peer.now()
        )
        return self._lock(body.consumer_group, body.client_id, body.mq_set)

    def _lock(
        self, group: str, client_id: str, wanted: Sequence[MessageQueue]
    ) -> Steps[Response[LockBatchResponseBody] | Awaitable[Response[LockBatchResponseBody]]]:
        kept = self.stored.tables.locks
        granted = dict[MessageQueue, int]()
        for queue in wanted:
            if self._is_here(queue):
                granted |= kept.locks.lock(group, [queue], client_id, self.stored.clock.monotonic())
            yield
        if max(granted.values(), default=0) <= kept.saved_change.value:
            return _answer(granted)
        kept.save()
        return self._when_saved(granted)

    def _is_here(self, queue: MessageQueue) -> bool:
        """Return True if this broker has the queue. RocketMQ: any queue may be locked."""
        topic = self.stored.tables.topics.find(queue.topic)
        return (
            topic is not None
            and 0 <= queue.queue_id < topic.read_queue_nums
            and len(queue.broker_name) <= NAME_MAX
        )

    def unlock(
        self, _request: UnlockBatchMq, body: LockBatchRequestBody, _context: RequestContext
    ) -> Outcome[None]:
        if not body.consumer_group or not body.client_id:
            return Response()
        return self._unlock(body.consumer_group, body.client_id, body.mq_set)

    def _unlock(
        self, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> Steps[Response[None]]:
        for queue in queues:
            self.stored.tables.locks.locks.unlock(group, [queue], client_id)
            yield
        self.stored.tables.locks.save()
        return Response()

    async def _when_saved(
        self, granted: dict[MessageQueue, int]
    ) -> Response[LockBatchResponseBody]:
        """Wait for the disk. Return the granted locks that were saved in time.

        The client requests the other locks again.
        """
        saved = self.stored.tables.locks.saved_change
        await wait_for((saved, max(granted.values())), seconds=SAVE_PATIENCE_S)
        return _answer(
            {queue: change for queue, change in granted.items() if change <= saved.value}
        )


def _answer(granted: dict[MessageQueue, int]) -> Response[LockBatchResponseBody]:
    return Response(LockBatchResponseBody(locked=tuple(granted)))
