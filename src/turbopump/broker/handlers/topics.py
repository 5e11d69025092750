"""Answers to 17 (create or change a topic) and 21 (every topic of this broker).

Source: apache/rocketmq ``AdminBrokerProcessor``. Better than Apache's: 17 is answered once the name servers know the topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.rules import is_system_topic, topic_fault
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.topics import TopicConfig, TopicFilterType
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import CreateTopic, GetAllTopicConfig, GetAllTopicConfigReply
from turbopump.remoting.router import RequestContext, Response

QUEUES_MAX = 65535
ANNOUNCE_WAIT_S = 2.0
"""How long the answer waits for name servers that do not take the topic."""


class TopicsHandler:
    """Creates and lists topics. ``announce`` registers with the name servers and returns when that is done."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, announce: Callable[[], Awaitable[None]]) -> None:
        self._config = config
        self._topics = topics
        self._announce = announce

    async def create(self, request: CreateTopic, _context: RequestContext) -> Response:
        fault = _fault(request) or self._system_fault(request.topic)
        if fault is not None:
            return Response(code=ResponseCode.INVALID_PARAMETER, remark=fault)
        config = TopicConfig(
            topic_name=request.topic,
            read_queue_nums=request.read_queue_nums,
            write_queue_nums=request.write_queue_nums,
            perm=request.perm,
            topic_filter_type=TopicFilterType(request.topic_filter_type),
            topic_sys_flag=request.topic_sys_flag or 0,
            order=request.order,
        )
        old = self._topics.find(request.topic)
        attributes = _attributes(request.attributes, dict(old.attributes) if old is not None else {})
        if isinstance(attributes, str):
            return Response(code=ResponseCode.INVALID_PARAMETER, remark=attributes)
        config.attributes = attributes
        if config != old:
            self._topics.put(config)
        with contextlib.suppress(TimeoutError):  # whoever asks waits 3 to 5 s
            await asyncio.wait_for(asyncio.gather(self._announce(), self._topics.saved()), ANNOUNCE_WAIT_S)
        return Response()

    def list_all(self, _request: GetAllTopicConfig, _context: RequestContext) -> Response:
        wrapper = self._topics.wrapper()
        return Response(GetAllTopicConfigReply(total_topic_num=len(wrapper.topic_config_table)), body=fastjson.encode(wrapper))

    def _system_fault(self, topic: str) -> str | None:
        if self._config.validate_system_topic_when_update_topic and is_system_topic(topic):
            return f"The topic[{topic}] is conflict with system topic; choose another name"
        return None


def _fault(request: CreateTopic) -> str | None:
    fault = topic_fault(request.topic)
    if fault is not None:
        return fault
    for name, value in (("readQueueNums", request.read_queue_nums), ("writeQueueNums", request.write_queue_nums)):
        if not 0 <= value <= QUEUES_MAX:
            return f"{name} is {value}; give a number from 0 to {QUEUES_MAX}"
    if not 0 <= request.perm <= 15:
        return f"perm is {request.perm}; give the sum of 4 (read), 2 (write), 1 (inherit), 8 (priority)"
    if request.topic_filter_type not in (kind.value for kind in TopicFilterType):
        return f"topicFilterType is {request.topic_filter_type[:32]!r}; give SINGLE_TAG or MULTI_TAG"
    return None


def _attributes(text: str | None, attributes: dict[str, str]) -> dict[str, str] | str:
    """``+key=value,-key`` applied to ``attributes``; a sentence if it cannot be read."""
    for change in (text or "").split(","):
        change = change.strip()
        if not change:
            continue
        key, _, value = change[1:].partition("=")
        if change[0] == "+" and value:
            attributes[key] = value
        elif change[0] == "-":
            attributes.pop(key, None)
        else:
            return f"attribute change {change[:64]!r} cannot be read; write +key=value or -key"
    return attributes
