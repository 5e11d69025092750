"""Handler of requests about topics.

They create or change topics (17 and 18), delete them (215), return one (351) or all (21), list the
broker's own topics (305), and return the offsets of a topic's queues (202). Source: apache/rocketmq
``AdminBrokerProcessor``. Unlike Apache's broker, this one answers a change once it is on the disk
and the name servers know it. A list of topics is created completely or not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.reading import answer
from turbopump.broker.saved_table import SavedTable, not_saved, table_answer
from turbopump.broker.send_checks import topic_name_fault
from turbopump.broker.statistics import TOPIC_PUT_NUMS, Statistics
from turbopump.broker.topic_attributes import MESSAGE_TYPE, MIXED, change_attributes, parse_changes
from turbopump.broker.topics import TopicTable, if_served
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX, is_system_topic
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.replication import DELETED, LOG_END, LOG_START, PARTIAL
from turbopump.protocol.requests.topics import (
    FLAG_UNIT,
    CreateTopic,
    CreateTopicList,
    CreateTopicListRequestBody,
    DeleteTopic,
    GetAllTopicConfig,
    GetAllTopicConfigReply,
    GetSystemTopicsOfBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicFilterType,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.message_store import MessageStore

ANNOUNCE_WAIT_S: Final = 2.0
"""Maximum seconds that an answer waits for name servers."""
_NEEDED: Final = ("readQueueNums", "writeQueueNums", "perm")
"""Required fields of request 17. RocketMQ: a NullPointerException without them."""
LIST_MAX: Final = 10_000
"""Maximum number of topics in one request."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Tables of a broker that have data about topics."""

    topics: TopicTable
    offsets: ConsumerOffsets
    store: MessageStore
    statistics: Statistics
    held: HeldPulls

    async def forget(self, name: str, until: int | None = None) -> OSError | None:
        """Delete a topic, and its data in each table.

        The tables change after the store has recorded the deletion. ``until`` is a log offset, or
        None. Queues with a message after that offset are kept. Return the error if the queues
        cannot be deleted, else None.
        """
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def forget(queues: int | OSError) -> None:
            if not isinstance(queues, OSError):
                self.offsets.forget_topic(name)
                self.statistics.forget_topic(name)
                self.held.expire_topic(name)
                if self.topics.delete(name):
                    log.info("topic deleted topic=%s queues=%d", name, queues)
            if not done.done():
                done.set_result(queues if isinstance(queues, OSError) else None)

        self.store.delete_queues(name, forget, until)
        return await done


@dataclass(eq=False)
class TopicsHandler:
    """Handler of requests to create, change, list and delete topics.

    ``announce`` is a function that returns a future for each name server that does not know all
    topics yet.
    """

    config: BrokerConfig
    records: TopicRecords
    announce: Callable[[], list[asyncio.Future[bool]]]

    def __post_init__(self) -> None:
        self._topics = self.records.topics

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(CreateTopic, self.create)
        router.add_with_body(CreateTopicList, self.create_list)
        router.add(DeleteTopic, self.delete)
        router.add(GetTopicConfig, self.get_config)
        router.add(GetAllTopicConfig, self.list_all)
        router.add(GetSystemTopicsOfBroker, self.list_system)
        router.add(GetTopicStatsInfo, if_served(self._topics, self.queue_offsets))

    def create(
        self, request: CreateTopic, context: RequestContext
    ) -> Steps[Response[None] | Awaitable[Response[None]]]:
        """Create a topic or change its settings."""
        begun = asyncio.get_running_loop().time()
        yield  # thousands may come at once
        outcome = self._create(request, context)
        if isinstance(outcome, Response):
            self._count((request.topic,), outcome, begun)
            return outcome
        return self._counted((request.topic,), outcome, begun)

    async def _counted(
        self, names: Collection[str], outcome: Awaitable[Response[None]], begun: float
    ) -> Response[None]:
        answer = await outcome
        self._count(names, answer, begun)
        return answer

    def _count(self, names: Collection[str], answer: Response[None], begun: float) -> None:
        """Count a request to create topics that began at ``begun``, a time of the loop."""
        creations = self.records.statistics.events.creations
        creations.count_topics(names, answer, asyncio.get_running_loop().time() - begun)

    def _create(
        self, request: CreateTopic, context: RequestContext
    ) -> Response[None] | Awaitable[Response[None]]:
        missing = [name for name in _NEEDED if name not in (context.command.ext or {})]
        if missing:
            remark = f"CreateTopic (17) cannot be read: field {missing[0]} is missing"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        if request.if_absent:
            return self._create_by_sending(request)
        changes = parse_changes(request.attributes)
        if request.topic_filter_type not in (kind.value for kind in TopicFilterType):
            remark = (
                f"topicFilterType is {request.topic_filter_type[:32]!r}; give SINGLE_TAG or "
                "MULTI_TAG"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        wanted = TopicConfig(
            topic_name=request.topic,
            read_queue_nums=request.read_queue_nums,
            write_queue_nums=request.write_queue_nums,
            perm=request.perm,
            topic_filter_type=TopicFilterType(request.topic_filter_type),
            topic_sys_flag=request.topic_sys_flag or 0,
            order=request.order,
        )
        topic = self._changed_topic(wanted, changes)
        if isinstance(topic, Response):
            return topic
        if topic != self._topics.find(request.topic):
            self._topics.put(topic)
        return self._answer_when_saved(self._topics)

    def _create_by_sending(
        self, request: CreateTopic
    ) -> Response[None] | Awaitable[Response[None]]:
        """Create a topic for a producer that is about to send to an unknown topic."""
        name = request.topic
        fault = topic_name_fault(name) or self._system_fault(name)
        if fault is not None:
            return refusal(ResponseCode.INVALID_PARAMETER, fault)
        model = request.default_topic
        queues = request.write_queue_nums
        unit_flag = (request.topic_sys_flag or 0) & FLAG_UNIT
        if (
            self._topics.find(name) is None
            and self._topics.create_by_sending(name, model, queues, unit_flag) is None
        ):
            remark = f"{model} cannot be inherited by new topics such as {name}"
            return refusal(ResponseCode.NO_PERMISSION, remark)
        return self._answer_when_saved(self._topics)

    async def create_list(
        self, _request: CreateTopicList, body: CreateTopicListRequestBody, context: RequestContext
    ) -> Response[None]:
        """Create several topics. If one topic is invalid, create none of them.

        RocketMQ: the topics after an unchanged one are skipped.
        """
        names = [topic.topic_name or "" for topic in body.topic_config_list]
        return await self._counted(
            names, self._create_list(body, context), asyncio.get_running_loop().time()
        )

    async def _create_list(
        self, body: CreateTopicListRequestBody, context: RequestContext
    ) -> Response[None]:
        wanted = body.topic_config_list
        if len(wanted) > LIST_MAX:
            remark = (
                f"{len(wanted)} topics are too many for one request; send at most "
                f"{LIST_MAX} at once"
            )
            return refusal(ResponseCode.INVALID_PARAMETER, remark)
        turns = context.served.turns
        topics = []
        for topic in wanted:
            await turns.pause()
            made = self._changed_topic(topic, topic.attributes or {})
            if isinstance(made, Response):
                return made
            topics.append(made)
        for topic in topics:
            await turns.pause()
            assert topic.topic_name is not None
            if topic != self._topics.find(topic.topic_name):
                self._topics.put(topic)
        return await self._answer_when_saved(self._topics)

    async def _answer_when_saved(self, *tables: SavedTable[Any]) -> Response[None]:
        """Return the answer. Before that, wait until the tables are saved and the name servers know
        the topics."""
        return await not_saved(*tables, announced=self.announce()) or Response()

    def _changed_topic(
        self, topic: TopicConfig, changes: Mapping[str, str] | str
    ) -> TopicConfig | Refusal:
        """Apply changes to the attributes of a topic. Return its new settings, or a refusal.

        The codes and their order are those of ``AdminBrokerProcessor.updateAndCreateTopic``.
        """
        name = topic.topic_name or ""
        fault = topic_name_fault(name) or self._system_fault(name) or _number_fault(topic)
        if fault is not None:
            return refusal(ResponseCode.INVALID_PARAMETER, fault)
        if isinstance(changes, str):
            return refusal(ResponseCode.SYSTEM_ERROR, changes)
        if changes.get(f"+{MESSAGE_TYPE}") == MIXED and not self.config.enable_mixed_message_type:
            remark = (
                "MIXED message type is not supported. Set enableMixedMessageType=true on the "
                "broker, or choose another type"
            )
            return refusal(ResponseCode.INVALID_PARAMETER, remark)
        old = self._topics.find(name)
        attributes = change_attributes(old.attributes if old is not None else None, changes)
        if isinstance(attributes, str):
            return refusal(ResponseCode.SYSTEM_ERROR, attributes)
        return msgspec.structs.replace(topic, attributes=attributes)

    async def delete(self, request: DeleteTopic, _context: RequestContext) -> Response[None]:
        """Delete a topic. An unknown topic is no error.

        The messages of the topic disappear when the files of the log are deleted.
        """
        topic = request.topic
        fault = topic_name_fault(topic) or self._system_fault(topic)
        if fault is not None:
            return refusal(ResponseCode.INVALID_PARAMETER, fault)
        names = [topic]
        if self.config.clear_retry_topic_when_delete_topic:
            for group in self.records.offsets.groups_of(topic):
                # POP retry topics, v1 and v2
                names += [f"{RETRY_PREFIX}{group}{mark}{topic}" for mark in "_+"]
        for name in names:
            error = await self.records.forget(name)
            if error is not None:
                remark = (
                    f"the queues of topic {name} cannot be deleted: {error}; repair that, "
                    "and delete it again"
                )
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
        return await self._answer_when_saved(self._topics, self.records.offsets)

    def get_config(
        self, request: GetTopicConfig, _context: RequestContext
    ) -> Response[TopicConfigAndQueueMapping]:
        """Return the settings of one topic."""
        topic = self._topics.find(request.topic)
        if topic is None:
            return refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic in this broker. topic: {request.topic}; create it (turbopump "
                "topic create)",
            )
        return Response(TopicConfigAndQueueMapping(**msgspec.structs.asdict(topic)))

    async def list_all(
        self, request: GetAllTopicConfig, _context: RequestContext
    ) -> Response[GetAllTopicConfigReply]:
        """Return the settings of all topics. If the client knows a version, return only later
        changes."""
        body, ext = await table_answer(self._topics, request.known_version, request.held)
        store = self.records.store
        ext |= {LOG_START: str(store.log.start), LOG_END: str(store.log.end)}
        if body and PARTIAL not in ext:
            ext[DELETED] = fastjson.encode(store.queue_ends.deletions).decode()
        reply = GetAllTopicConfigReply(total_topic_num=self._topics.count)
        return Response(reply, body=body, ext=ext)

    def list_system(
        self, _request: GetSystemTopicsOfBroker, _context: RequestContext
    ) -> Response[TopicList]:
        """Return the names of the topics that belong to the broker itself."""
        names = self._topics.system.union(filter(is_system_topic, self._topics.names()))
        return Response(TopicList(topic_list=tuple(sorted(names))))

    def queue_offsets(
        self, request: GetTopicStatsInfo, context: RequestContext
    ) -> Outcome[TopicStatsTable]:
        """For each queue of a topic, return its first offset and its next offset.

        The answer also has the time of the last message in each queue, and the number of messages
        per second over the last minute.
        """
        topic = self._topics.find(request.topic)
        if topic is None:
            return refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{request.topic}] not exist; create it (turbopump topic create)",
            )
        tps = self.records.statistics.tps(TOPIC_PUT_NUMS, request.topic)
        count = max(topic.write_queue_nums, topic.read_queue_nums)

        def respond(offsets: dict[MessageQueue, TopicOffset]) -> Response[TopicStatsTable]:
            return Response(TopicStatsTable(topic_put_tps=tps, offset_table=offsets))

        return answer(
            self.records.store.cold_reads, self._offsets_of(request.topic, count), respond, context
        )

    def _offsets_of(self, topic: str, count: int) -> ReadSteps[dict[MessageQueue, TopicOffset]]:
        store = self.records.store
        found = {}
        for queue_id in range(count):
            yield []
            queue = store.queues.find(topic, queue_id)
            begin, end = (queue.min_index, queue.end.value) if queue is not None else (0, 0)
            newest = yield from store.lookup.newest_time(topic, queue_id)
            found[MessageQueue(topic, self.config.broker_name, queue_id)] = TopicOffset(
                min_offset=begin, max_offset=end, last_update_timestamp=newest
            )
        return found

    def _system_fault(self, topic: str) -> str | None:
        if not self.config.validate_system_topic_when_update_topic:
            return None
        if is_system_topic(topic) or topic in self._topics.system:
            return f"The topic[{topic}] is conflict with system topic; choose another name"
        return None


def _number_fault(topic: TopicConfig) -> str | None:
    fault = topic.queues_fault()
    if fault is None and not 0 <= topic.perm <= 15:
        return (
            f"perm is {topic.perm}; use the sum of 4 (read), 2 (write), 1 (inherit), 8 (priority)"
        )
    return fault
