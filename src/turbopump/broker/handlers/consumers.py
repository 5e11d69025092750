"""Handler of requests about connected clients and the progress of consumer groups.

The requests are 203, 204, 208, 300, 303, 317, 328, 343 and 345. Source: apache/rocketmq
``AdminBrokerProcessor.getConsumeStats`` and its neighbours.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from turbopump.broker.client_table import Member
from turbopump.broker.membership import Membership
from turbopump.broker.reading import answer
from turbopump.broker.stored import Stored
from turbopump.broker.topic_attributes import is_batch_cq
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.requests.consumers import Connection as ConnectionBody
from turbopump.protocol.requests.consumers import (
    ConsumerConnection,
    GetAllProducerInfo,
    GetBrokerConsumeStats,
    GetConsumerConnectionList,
    GetConsumeStats,
    GetProducerConnectionList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QuerySubscriptionResponseBody,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.statistics import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from turbopump.protocol.requests.topics import TopicConfig, TopicList
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.wire import Wire
from turbopump.store.log.cold_reads import ReadSteps

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ConsumersHandler:
    """Handler of requests about connected clients and the progress of consumer groups."""

    stored: Stored
    address: str
    membership: Membership

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(GetConsumerConnectionList, self.consumers)
        router.add(GetProducerConnectionList, self.producers)
        router.add(QueryTopicConsumeByWho, self.groups_of)
        router.add(QueryTopicsByConsumer, self.topics_of)
        router.add(GetConsumeStats, self.group_progress)
        router.add(GetBrokerConsumeStats, self.all_progress)
        router.add(GetAllProducerInfo, self.all_producers)
        router.add(QuerySubscriptionByConsumer, self.subscription)
        router.add(QueryConsumeTimeSpan, self.time_span)

    # --- clients

    def consumers(
        self, request: GetConsumerConnectionList, _context: RequestContext
    ) -> Response[ConsumerConnection]:
        group = self.stored.clients.groups.get(request.consumer_group)
        if group is None:
            remark = f"the consumer group[{request.consumer_group}] not online"
            return refusal(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = ConsumerConnection(
            connection_set=tuple(
                _connection(peer, member) for peer, member in group.members.items()
            ),
            subscription_table={topic: one.data for topic, one in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
            conflicts=self.membership.conflicts_in(group.name) or None,
        )
        return Response(body)

    def producers(
        self, request: GetProducerConnectionList, _context: RequestContext
    ) -> Response[ProducerConnection]:
        members = self.stored.clients.producers.get(request.producer_group)
        if members is None:
            remark = f"the producer group[{request.producer_group}] not exist"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        found = tuple(_connection(peer, member) for peer, member in members.items())
        return Response(ProducerConnection(connection_set=found))

    def all_producers(
        self, _request: GetAllProducerInfo, _context: RequestContext
    ) -> Response[ProducerTableInfo]:
        now = self.stored.clock.now_ms()
        monotonic = self.stored.clock.monotonic()
        data = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=peer.peer,
                    language=_language(member),
                    version=member.version,
                    last_update_timestamp=now - int((monotonic - member.seen) * 1000),
                )
                for peer, member in members.items()
            ]
            for group, members in self.stored.clients.producers.items()
        }
        return Response(ProducerTableInfo(data=data))

    def subscription(
        self, request: QuerySubscriptionByConsumer, _context: RequestContext
    ) -> Response[QuerySubscriptionResponseBody]:
        group = self.stored.clients.groups.get(request.group)
        found = group.subscriptions.get(request.topic) if group is not None else None
        body = QuerySubscriptionResponseBody(
            subscription_data=found.data if found is not None else None,
            group=request.group,
            topic=request.topic,
        )
        return Response(body)

    def groups_of(
        self, request: QueryTopicConsumeByWho, _context: RequestContext
    ) -> Response[GroupList]:
        groups = dict.fromkeys(
            [
                *self.stored.clients.subscribers(request.topic),
                *self.stored.tables.offsets.groups_of(request.topic),
            ]
        )
        return Response(GroupList(group_list=tuple(groups)))

    def topics_of(
        self, request: QueryTopicsByConsumer, _context: RequestContext
    ) -> Response[TopicList]:
        return Response(
            TopicList(topic_list=tuple(self.stored.tables.offsets.topics_of(request.group)))
        )

    # --- progress

    def group_progress(
        self, request: GetConsumeStats, context: RequestContext
    ) -> Outcome[ConsumeStats]:
        """For each queue, return its end and the offset of a consumer group."""
        return answer(self.stored.store.cold_reads, self._read_progress(request), Response, context)

    def _read_progress(self, request: GetConsumeStats) -> ReadSteps[ConsumeStats]:
        body = ConsumeStats()
        for name in self._topics_for(request):
            topic = self.stored.tables.topics.find(name)
            of_topic = yield from self._topic_progress(request.consumer_group, name, topic)
            body.offset_table.update(of_topic.offset_table)
            body.consume_tps += of_topic.consume_tps
            yield []
        return body

    def all_progress(
        self, request: GetBrokerConsumeStats, context: RequestContext
    ) -> Outcome[ConsumeStatsList]:
        """For each consumer group, return its offsets in all its topics.

        Topics to which a connected group no longer subscribes are left out, as with RocketMQ.
        """
        return answer(
            self.stored.store.cold_reads, self._read_all_progress(request), Response, context
        )

    def _read_all_progress(self, request: GetBrokerConsumeStats) -> ReadSteps[ConsumeStatsList]:
        body = ConsumeStatsList(broker_addr=self.address)
        for group in self.stored.tables.groups.names():
            progress: list[ConsumeStats] = []
            for name in self._topics_for(GetConsumeStats(consumer_group=group)):
                topic = self.stored.tables.topics.find(name)
                if topic is None or (request.is_order and not topic.order):
                    continue
                of_topic = yield from self._topic_progress(group, name, topic)
                progress.append(of_topic)
                body.total_diff += of_topic.total_diff
                yield []
            body.consume_stats_list.append({group: progress})
            yield []
        return body

    def _topic_progress(
        self, group: str, name: str, topic: TopicConfig | None
    ) -> ReadSteps[ConsumeStats]:
        """For each queue of one topic, return the offset of a consumer group.

        The result is empty for a topic that is unknown or not served.
        """
        body = ConsumeStats()
        if topic is None or is_batch_cq(topic):
            return body
        for queue_id in range(topic.read_queue_nums):
            yield []
            offset = max(self.stored.tables.offsets.find(group, name, queue_id) or 0, 0)
            stored = yield from self._stored_at(name, queue_id, offset - 1)
            body.offset_table[MessageQueue(name, self.stored.config.broker_name, queue_id)] = (
                OffsetWrapper(
                    broker_offset=max(self.stored.store.max_offset(name, queue_id), 0),
                    consumer_offset=offset,
                    pull_offset=offset,
                    last_timestamp=max(stored, 0),
                )
            )
        body.consume_tps = self.stored.statistics.tps("GROUP_GET_NUMS", f"{name}@{group}")
        return body

    def _topics_for(self, request: GetConsumeStats) -> list[str]:
        listed = [topic for topic in (request.topic_list or "").split(";") if topic]
        if listed:
            return listed
        if request.topic:
            topics = [request.topic]
        else:
            topics = self.stored.tables.offsets.topics_of(request.consumer_group)
        group = self.stored.clients.groups.get(request.consumer_group)
        if group is not None and group.subscriptions:
            topics = [topic for topic in topics if topic in group.subscriptions]
        return topics

    def time_span(
        self, request: QueryConsumeTimeSpan, context: RequestContext
    ) -> Outcome[QueryConsumeTimeSpanBody]:
        """For each queue of a topic, return times that show the progress of a consumer group.

        They are the store times of the first, the last and the last consumed message, and the age
        of the next message.
        """
        topic = self.stored.tables.topics.find(request.topic)
        if topic is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist")
        spans = self._spans(request, topic.write_queue_nums)
        return answer(self.stored.store.cold_reads, spans, Response, context)

    def _spans(
        self, request: QueryConsumeTimeSpan, queues: int
    ) -> ReadSteps[QueryConsumeTimeSpanBody]:
        body = QueryConsumeTimeSpanBody()
        for queue_id in range(queues):
            yield []
            span = yield from self._span(request, queue_id)
            body.consume_time_span_set.append(span)
        return body

    def _span(self, request: QueryConsumeTimeSpan, queue_id: int) -> ReadSteps[QueueTimeSpan]:
        name = request.topic
        first = yield from self.stored.store.lookup.earliest_time(name, queue_id)
        end = self.stored.store.max_offset(name, queue_id)
        offset = self.stored.tables.offsets.find(request.group, name, queue_id)
        delay = 0
        if (offset or 0) < end:
            stored = yield from self._stored_at(name, queue_id, offset or 0)
            delay = self.stored.clock.now_ms() - (stored if stored >= 0 else first)
        last = yield from self._stored_at(name, queue_id, end - 1)
        if offset:
            consumed = yield from self._stored_at(name, queue_id, offset - 1)
        else:
            consumed = first
        return QueueTimeSpan(
            message_queue=MessageQueue(name, self.stored.config.broker_name, queue_id),
            min_time_stamp=first,
            max_time_stamp=last,
            consume_time_stamp=consumed,
            delay_time=delay,
        )

    def _stored_at(self, topic: str, queue_id: int, index: int) -> ReadSteps[int]:
        """Return the store time of the message at a queue offset, in ms. Without a message return
        −1."""
        if index < 0:
            return -1
        entry = yield from self.stored.store.lookup.entry_in_queue(topic, queue_id, index)
        if entry is not None and entry.fault is None:
            return entry.message.store_timestamp
        return -1


def _connection(peer: Wire, member: Member) -> ConnectionBody:
    return ConnectionBody(
        client_id=member.client_id,
        client_addr=peer.peer,
        language=_language(member),
        version=member.version,
    )


def _language(member: Member) -> LanguageCode:
    if member.language in set(LanguageCode):
        return LanguageCode(member.language)
    return LanguageCode.OTHER
