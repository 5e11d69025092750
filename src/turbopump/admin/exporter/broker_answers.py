"""Questions of the exporter to one broker, and what the broker answers.

A master is asked for its figures, producers, topics and groups, a slave only for its figures.
Fewer questions are about topics and groups without traffic since the last time. Metrics are unknown
here. Source of the questions: apache/rocketmq-exporter ``MetricsCollectTask``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from turbopump.admin.cluster import ask_body
from turbopump.clock import Clock
from turbopump.errors import ResponseError
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, is_brokers_own
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.consumers import (
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumeStats,
    QueryConsumeTimeSpan,
)
from turbopump.protocol.requests.groups import GetAllGroups, SubscriptionGroupWrapper
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.statistics import (
    BrokerStatsItem,
    ConsumeStats,
    GetBrokerRuntimeInfo,
    ViewBrokerStatsData,
)
from turbopump.protocol.requests.topics import (
    GetAllTopicConfig,
    GetTopicStatsInfo,
    TopicConfigSerializeWrapper,
)
from turbopump.remoting.client import RemotingClient
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_refused = RepeatedLine(log, logging.WARNING, "a broker refuses a question broker=%s reason=%s")

T = TypeVar("T")

AT_ONCE: Final = 8
"""Maximum number of questions that wait for the answers of one broker."""


class BrokerName(NamedTuple):
    """Name of one broker process: its cluster, its broker name, and its number (0: master)."""

    cluster: str
    broker: str
    number: int

    @property
    def is_master(self) -> bool:
        return self.number == MASTER_ID


@dataclass(slots=True)
class TopicFigures:
    """Figures of a topic on one broker.

    - ``end``: sum of the next offsets of its queues.
    - ``put_rate``, ``put_size_rate``: messages and bytes a second in the last minute, or None for
      a topic of retries or dead letters.
    """

    end: int
    put_rate: float | None = None
    put_size_rate: float | None = None


@dataclass(slots=True)
class ProgressFigures:
    """Figures of a group in one topic of one broker.

    - ``offset``: sum of the group's offsets in the queues.
    - ``behind``: number of messages that the group has not consumed.
    - ``latency_ms``: age of the oldest message that the group has not consumed. 0 if there is none.
    - ``get_rate``, ``get_size_rate``: messages and bytes a second in the last minute.
    - ``sent_back``: messages that were sent back in the last minute.
    """

    offset: int
    behind: int
    latency_ms: int = 0
    get_rate: float = 0.0
    get_size_rate: float = 0.0
    sent_back: int = 0


@dataclass(slots=True)
class GroupFigures:
    """Figures of a consumer group on one broker.

    - ``members``: address of each connected member, by client id.
    - ``model``: delivery model of the members; clustering without members.
    - ``topics``: progress in each topic.
    """

    members: dict[str, str] = field(default_factory=dict)
    model: MessageModel = MessageModel.CLUSTERING
    topics: dict[str, ProgressFigures] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerAnswers:
    """Everything that one broker has answered. All but ``figures`` are empty for a slave.

    - ``figures``: its runtime figures (request 28), as texts.
    - ``producers``: number of members of each producer group.
    - ``put_rate``, ``get_rate``: messages a second in the last minute, in and out.
    """

    name: BrokerName
    address: str
    figures: dict[str, str]
    producers: dict[str, int] = field(default_factory=dict)
    put_rate: float = 0.0
    get_rate: float = 0.0
    topics: dict[str, TopicFigures] = field(default_factory=dict)
    groups: dict[str, GroupFigures] = field(default_factory=dict)


class BrokerQuestions:
    """Questions to one broker, asked again and again.

    - ``client``: the connections.
    """

    def __init__(self, client: RemotingClient, clock: Clock, name: BrokerName) -> None:
        self._client = client
        self._clock = clock
        self.name = name
        self._address = ""
        self._last: BrokerAnswers | None = None
        self._closed_topics: set[str] = set()
        """The broker's own topics, if the user of the exporter may not see them."""

    async def ask(self, address: str) -> BrokerAnswers:
        """Ask all questions, at most ``AT_ONCE`` at a time.

        Raises RemotingError or ProtocolError if the broker does not answer one, or refuses one that
        every user of an exporter needs.
        """
        self._address = address
        figures = (await self._call(GetBrokerRuntimeInfo())).table
        answers = BrokerAnswers(self.name, address, figures)
        if self.name.is_master:
            await self._ask_master(answers)
        self._last = answers
        return answers

    async def _ask_master(self, answers: BrokerAnswers) -> None:
        producers = (await self._call(GetAllProducerInfo())).data or {}
        answers.producers = {group: len(members) for group, members in producers.items()}
        cluster = self.name.cluster
        answers.put_rate = (await self._last_minute("BROKER_PUT_NUMS", cluster)).tps
        answers.get_rate = (await self._last_minute("BROKER_GET_NUMS", cluster)).tps
        client, address = self._client, self._address
        topics = await ask_body(client, address, GetAllTopicConfig(), TopicConfigSerializeWrapper)
        groups = await ask_body(client, address, GetAllGroups(), SubscriptionGroupWrapper)

        async def ask_topic(topic: str) -> None:
            figures = await self._topic(topic)
            if figures is not None:
                answers.topics[topic] = figures

        async def ask_group(group: str) -> None:
            answers.groups[group] = await self._group(group)

        open_topics = [one for one in topics.topic_config_table if one not in self._closed_topics]
        await for_each(open_topics, ask_topic, AT_ONCE)
        await for_each(groups.subscription_group_table, ask_group, AT_ONCE)

    async def _topic(self, topic: str) -> TopicFigures | None:
        """Return the figures of a topic, or None if it is deleted or not for this user."""
        try:
            stats = await self._call(GetTopicStatsInfo(topic=topic))
        except ResponseError as error:
            if error.code == ResponseCode.NO_PERMISSION and is_brokers_own(topic):
                self._closed_topics.add(topic)
            else:
                self._report_refusal(error)
            return None
        figures = TopicFigures(sum(queue.max_offset for queue in stats.offset_table.values()))
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return figures
        figures.put_rate = figures.put_size_rate = 0.0
        last = self._last and self._last.topics.get(topic)
        if not last or last.end != figures.end or last.put_rate:
            figures.put_rate = (await self._last_minute("TOPIC_PUT_NUMS", topic)).tps
            figures.put_size_rate = (await self._last_minute("TOPIC_PUT_SIZE", topic)).tps
        return figures

    async def _group(self, group: str) -> GroupFigures:
        """Return the figures of a group, without those that the broker refuses."""
        figures = GroupFigures()
        try:
            members = await self._call(GetConsumerConnectionList(consumer_group=group))
            figures.model = members.message_model or MessageModel.CLUSTERING
            for member in members.connection_set:
                figures.members[member.client_id or ""] = member.client_addr or ""
        except ResponseError as error:
            self._report_refusal(error)  # else nobody is connected
        try:
            stats = await self._call(GetConsumeStats(consumer_group=group))
        except ResponseError as error:
            self._report_refusal(error)
            return figures
        for topic, progress in _progress_by_topic(stats).items():
            figures.topics[topic] = progress
            await self._ask_progress(group, topic, figures, progress)
        return figures

    async def _ask_progress(
        self, group: str, topic: str, figures: GroupFigures, progress: ProgressFigures
    ) -> None:
        """Complete the progress of a group in one topic.

        Without members and without progress since the last time, all rates are 0.
        """
        if progress.behind > 0 and figures.model is MessageModel.CLUSTERING:
            progress.latency_ms = await self._latency_ms(group, topic)
        last = None
        if self._last is not None and group in self._last.groups:
            last = self._last.groups[group].topics.get(topic)
        if figures.members or not last or last.offset != progress.offset or last.get_rate:
            key = f"{topic}@{group}"
            progress.get_rate = (await self._last_minute("GROUP_GET_NUMS", key)).tps
            progress.get_size_rate = (await self._last_minute("GROUP_GET_SIZE", key)).tps
            progress.sent_back = (await self._last_minute("SNDBCK_PUT_NUMS", key)).sum

    async def _latency_ms(self, group: str, topic: str) -> int:
        """Return the age in ms of the oldest message that a group has not consumed.

        The broker computes the age of the next message of each queue. If that message is deleted,
        the oldest one that is left counts.
        """
        try:
            spans = await self._call(QueryConsumeTimeSpan(topic=topic, group=group))
        except ResponseError as error:
            self._report_refusal(error)
            return 0
        now_ms = self._clock.now_ms()
        latency_ms = 0
        for span in spans.consume_time_span_set:
            queue_ms = span.delay_time
            if queue_ms > 0 and span.min_time_stamp > 0:
                queue_ms = min(queue_ms, max(now_ms - span.min_time_stamp, 0))
            latency_ms = max(latency_ms, queue_ms)
        return latency_ms

    async def _last_minute(self, name: str, key: str) -> BrokerStatsItem:
        """Return one statistic over the last minute. A broker that has counted nothing refuses the
        question; that is 0."""
        try:
            answer = await self._call(ViewBrokerStatsData(stats_name=name, stats_key=key))
        except ResponseError as error:
            self._report_refusal(error)
            return BrokerStatsItem()
        return answer.stats_minute or BrokerStatsItem()

    def _report_refusal(self, error: ResponseError) -> None:
        if error.code == ResponseCode.NO_PERMISSION:
            _refused(self._address, error, kind=self._address)

    async def _call(self, request: Request[ReplyT]) -> ReplyT:
        return await self._client.call(self._address, request)


def _progress_by_topic(stats: ConsumeStats) -> dict[str, ProgressFigures]:
    found: dict[str, ProgressFigures] = {}
    for queue, offsets in stats.offset_table.items():
        progress = found.setdefault(queue.topic, ProgressFigures(0, 0))
        progress.offset += offsets.consumer_offset
        progress.behind += offsets.broker_offset - offsets.consumer_offset
    return found


async def for_each(items: Iterable[T], ask: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Call ``ask`` with each item, at most ``at_once`` at a time.

    The first failure cancels the rest, and is raised.
    """
    left = iter(items)

    async def ask_next() -> None:
        for item in left:
            await ask(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(ask_next())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
