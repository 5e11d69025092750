"""Retry topics of POP, which store a group's messages of one topic for another delivery.

The name of a retry topic has two forms: ``%RETRY%group_topic``, which several groups may share, and
``%RETRY%group+topic``, which belongs to one group. Source: apache/rocketmq ``KeyBuilder``.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.broker.pop.group_queue import GroupQueue, TopicGroup
from turbopump.broker.pop.offsets import PopOffsets
from turbopump.broker.topics import TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.handles import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, eq=False)
class PopRetryTopics:
    """Names and queues of the retry topics of a broker's groups."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    offsets: PopOffsets

    def queues(self, line: TopicGroup) -> list[GroupQueue]:
        """Return the queues of a group's retry topics for a topic."""
        config, name = self.config, pop_retry_topic(line.topic, line.group)
        names = [pop_retry_topic(line.topic, line.group, v2=True)]
        if not config.enable_retry_topic_v2:
            names.insert(0, name)
        elif config.retrieve_message_from_pop_retry_topic_v1:
            names.append(name)
        if len(names) > 1 and self._is_of_others(name, line.group):
            names.remove(name)
        return [
            GroupQueue(line.group, name, number)
            for name in names
            if (topic := self.topics.find(name)) is not None
            for number in range(topic.read_queue_nums)
        ]

    def topic(self, line: TopicGroup) -> str:
        """Return the name of a group's retry topic. It stores the group's messages of one topic.

        Several groups may share an old name (see ``_is_of_others``). The call then gives the group
        an offset in the retry topic, which marks the topic as the group's own.
        """
        name = pop_retry_topic(line.topic, line.group)
        if self.config.enable_retry_topic_v2 or self._is_of_others(name, line.group):
            return pop_retry_topic(line.topic, line.group, v2=True)
        queue = GroupQueue(line.group, name, 0)
        if self.offsets.find(queue) is None:
            self.offsets.set_next(queue, self.store.min_offset(name, 0))
        return name

    def _is_of_others(self, name: str, group: str) -> bool:
        """Return True if another group has an offset in the retry topic ``name``.

        Three groups share the name `%RETRY%pay_order_events`: pay for order_events, pay_order for
        events, and pay_order_events for messages that its consumers send back. RocketMQ delivers
        their messages to each other.
        """
        if self.topics.find(name) is None or self._has_been_in(name, group):
            return False
        text = name[len(RETRY_PREFIX) :]
        ends = [at for at, char in enumerate(text) if char == "_"]
        return any(self._has_been_in(name, text[:end]) for end in (*ends, len(text)))

    def _has_been_in(self, topic: str, group: str) -> bool:
        return self.offsets.find(GroupQueue(group, topic, 0)) is not None
