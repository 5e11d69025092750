"""Answers to 14, 15 (a group's place), 30, 31 (a queue's ends) and 29 (its place at a time).

Source: apache/rocketmq ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from turbopump.broker.groups import GroupTable
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.questions import Questions
from turbopump.broker.topics import TopicTable
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.remoting.router import Outcome, RequestContext, Response
from turbopump.store.message_store import MessageStore


class OffsetsHandler:
    """Reads and notes offsets."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        questions: Questions,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._questions = questions

    def query(self, request: QueryConsumerOffset, _context: RequestContext) -> Response:
        """The group's offset. Without one: 0 for a queue whose first message is still hot, else not
        found.

        RocketMQ: a new group of a young queue therefore begins at 0, whatever its consumeFromWhere
        says.
        """
        offset = self._offsets.find(request.consumer_group, request.topic, request.queue_id)
        if offset is not None:
            return Response(OffsetReply(offset=offset))
        not_found = Response(
            code=ResponseCode.QUERY_NOT_FOUND,
            remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        )
        if request.set_zero_if_not_found is False:
            return not_found
        if self._store.min_offset(request.topic, request.queue_id) <= 0 and self._store.is_hot(
            request.topic, request.queue_id, 0
        ):
            return Response(OffsetReply(offset=0))
        return not_found

    def update(self, request: UpdateConsumerOffset, _context: RequestContext) -> Response:
        if not self._groups.knows(request.consumer_group):
            return Response(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"Group {request.consumer_group} not exist!",
            )
        if self._topics.find(request.topic) is None:
            return Response(
                code=ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {request.topic} not exist!"
            )
        if request.queue_id is None:
            return Response(
                code=ResponseCode.INVALID_PARAMETER,
                remark="QueueId is null, topic is " + request.topic,
            )
        if request.commit_offset is None:
            return Response(
                code=ResponseCode.INVALID_PARAMETER,
                remark="Offset is null, topic is " + request.topic,
            )
        if not self._offsets.commit(
            request.consumer_group, request.topic, request.queue_id, request.commit_offset
        ):
            return Response(remark="Offset has been previously reset")
        return Response()

    def maximum(self, request: GetMaxOffset, _context: RequestContext) -> Response:
        return Response(OffsetReply(offset=self._store.max_offset(request.topic, request.queue_id)))

    def minimum(self, request: GetMinOffset, _context: RequestContext) -> Response:
        return Response(OffsetReply(offset=self._store.min_offset(request.topic, request.queue_id)))

    def at_time(self, request: SearchOffset, context: RequestContext) -> Outcome:
        upper = request.boundary_type == "UPPER"
        question = self._store.lookup.place_in_time(
            request.topic, request.queue_id, request.timestamp, upper=upper
        )
        return self._questions.ask(
            question, lambda offset: Response(OffsetReply(offset=offset)), context
        )
