"""Handler of requests about the assignment of queues to consumers (400 and 401).

The order of checks and the codes are those of apache/rocketmq ``QueryAssignmentProcessor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turbopump.broker.pop.group_queue import ANY_QUEUE
from turbopump.broker.saved_table import not_saved
from turbopump.broker.stored import Stored
from turbopump.broker.topic_routes import TopicRoutes
from turbopump.message.message import MessageQueue
from turbopump.message.queue_shares import Strategy, allocate_average, allocate_by_circle
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.clients import MessageModel
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router


@dataclass(eq=False)
class AssignmentHandler:
    """Handler of requests about the assignment of queues to consumers."""

    stored: Stored
    routes: TopicRoutes

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add_with_body(QueryAssignment, self.query)
        router.add_with_body(SetMessageRequestMode, self.set_mode)

    async def query(
        self, _request: QueryAssignment, body: QueryAssignmentRequestBody, _context: RequestContext
    ) -> Response[QueryAssignmentResponseBody]:
        """Assign queues to a consumer. The answer has a mode for each queue: pull or pop.

        If the queues cannot be computed, the answer has none, and the consumer keeps its queues.
        """
        topic = body.topic or ""
        group = body.consumer_group or ""
        mode = self.stored.request_modes.find(topic, group)
        queues = await self._share(body, topic, group, mode)
        assignments = None
        if queues is not None:
            assignments = tuple(
                MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues
            )
        return Response(QueryAssignmentResponseBody(message_queue_assignments=assignments))

    async def _share(
        self,
        body: QueryAssignmentRequestBody,
        topic: str,
        group: str,
        mode: SetMessageRequestModeRequestBody,
    ) -> list[MessageQueue] | None:
        queues = await self.routes.queues(topic)
        broadcast = body.message_model is MessageModel.BROADCASTING
        if queues is None or broadcast or not self.stored.config.server_load_balancer_enable:
            return queues
        clients = self.stored.clients.sorted_ids(group)
        strategy = STRATEGIES.get(body.strategy_name or "")
        if not clients or strategy is None or not queues or not body.client_id:
            return None
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(
                strategy, queues, clients, body.client_id, mode.pop_share_queue_num
            )
        return strategy(queues, clients, body.client_id)

    async def set_mode(
        self,
        _request: SetMessageRequestMode,
        body: SetMessageRequestModeRequestBody,
        _context: RequestContext,
    ) -> Response[None]:
        """Set the mode of a group for a topic: pull or pop. An operator sends this request.

        The consumers of the group learn of the choice with their next request for their queues.
        """
        topic = body.topic or ""
        group = body.consumer_group or ""
        if topic.startswith(RETRY_PREFIX):
            return refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self.stored.tables.topics.find(topic) is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self.stored.tables.groups.find_or_create(group) is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        self.stored.request_modes.put(topic, group, body)
        return await not_saved(self.stored.request_modes) or Response()


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_by_circle,
}
"""Strategies of assignment, by Apache's names."""


def allocate_for_pop(
    strategy: Strategy,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    client_id: str,
    share: int,
) -> list[MessageQueue]:
    """Return the queues that a client pops.

    They are the queues that ``strategy`` assigns to the client itself and to the next ``share``
    clients. If these are all clients, or ``share`` is not a number of clients, the result is all
    queues of every broker.
    """
    if share <= 0 or share >= len(clients) - 1:
        return list(
            dict.fromkeys(
                MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues
            )
        )
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):  # so that each has one
        return [queues[index % len(queues)]]
    behind = [clients[(index + step) % len(clients)] for step in range(share + 1)]
    return list(
        dict.fromkeys(queue for client in behind for queue in strategy(queues, clients, client))
    )
