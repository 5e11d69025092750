"""Handler of requests about offsets of groups (14 and 15) and offsets of queues (29, 30 and 31).

Source: apache/rocketmq ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from turbopump.broker.reading import answer
from turbopump.broker.stored import Stored
from turbopump.broker.topics import if_served
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router

log = logging.getLogger(__name__)


@dataclass(eq=False)
class OffsetsHandler:
    """Handler of requests about offsets of consumer groups and offsets of queues."""

    stored: Stored

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(QueryConsumerOffset, if_served(self.stored.tables.topics, self.query))
        router.add(UpdateConsumerOffset, if_served(self.stored.tables.topics, self.update))
        router.add(GetMaxOffset, if_served(self.stored.tables.topics, self.maximum))
        router.add(GetMinOffset, if_served(self.stored.tables.topics, self.minimum))
        router.add(SearchOffset, if_served(self.stored.tables.topics, self.at_time))

    def query(
        self, request: QueryConsumerOffset, _context: RequestContext
    ) -> Response[OffsetReply]:
        """Return the next offset of a consumer group in a queue.

        If the group has no offset, return 0 while the first message of the queue is still in
        memory, else "not found". RocketMQ does the same: a new group of a young queue begins at 0
        and ignores its consumeFromWhere.
        """
        offset = self.stored.tables.offsets.find(
            request.consumer_group, request.topic, request.queue_id
        )
        if offset is not None:
            return Response(OffsetReply(offset=offset))
        not_found = refusal(
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        )
        if request.set_zero_if_not_found is False:
            return not_found
        if self.stored.store.min_offset(
            request.topic, request.queue_id
        ) <= 0 and self.stored.store.is_hot(request.topic, request.queue_id, 0):
            return Response(OffsetReply(offset=0))
        return not_found

    def update(self, request: UpdateConsumerOffset, _context: RequestContext) -> Response[None]:
        if self.stored.tables.groups.get(request.consumer_group) is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {request.consumer_group} not exist!",
            )
        topic = self.stored.tables.topics.find(request.topic)
        if topic is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} not exist!")
        if request.queue_id is None:
            return refusal(
                ResponseCode.INVALID_PARAMETER, "QueueId is null, topic is " + request.topic
            )
        if request.commit_offset is None:
            return refusal(
                ResponseCode.INVALID_PARAMETER, "Offset is null, topic is " + request.topic
            )
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        # RocketMQ: any number is kept, and saved
        if not 0 <= request.queue_id < queues and not self._has_offset(request):
            return refusal(
                ResponseCode.INVALID_PARAMETER,
                f"topic {request.topic} has {queues} queues, none with the id {request.queue_id}",
            )
        if not self.stored.tables.offsets.commit(
            request.consumer_group, request.topic, request.queue_id, request.commit_offset
        ):
            return Response(remark="Offset has been previously reset")
        return Response()

    def _has_offset(self, request: UpdateConsumerOffset) -> bool:
        """Return True if a consumer group has an offset in a queue. A removed queue also counts."""
        assert request.queue_id is not None
        stands = self.stored.tables.offsets.find(
            request.consumer_group, request.topic, request.queue_id
        )
        return stands is not None

    def maximum(self, request: GetMaxOffset, _context: RequestContext) -> Response[OffsetReply]:
        return Response(
            OffsetReply(offset=self.stored.store.max_offset(request.topic, request.queue_id))
        )

    def minimum(self, request: GetMinOffset, _context: RequestContext) -> Response[OffsetReply]:
        return Response(
            OffsetReply(offset=self.stored.store.min_offset(request.topic, request.queue_id))
        )

    def at_time(self, request: SearchOffset, context: RequestContext) -> Outcome[OffsetReply]:
        upper = request.boundary_type == "UPPER"
        question = self.stored.store.lookup.offset_in_time(
            request.topic, request.queue_id, request.timestamp, upper=upper
        )
        return answer(self.stored.store.cold_reads, question, _offset_reply, context)


def _offset_reply(offset: int) -> Response[OffsetReply]:
    return Response(OffsetReply(offset=offset))
