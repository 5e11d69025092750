"""A popped message that nobody acknowledged goes to its group's retry topic, or after too many
attempts to the dead letters.

Source: apache/rocketmq ``PopReviveService.reviveRetry``. Ours: ``retryMaxTimes`` of the group
counts here too; with Apache a message that kills its consumer comes again for ever.
``ORIGIN_MESSAGE_ID`` and ``RETRY_TOPIC`` are kept as for messages that were sent back, where the
properties have room for them.
"""

from __future__ import annotations

import asyncio

from turbopump.broker.dead_letters import dead_letter_topic
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.groups import GroupTable
from turbopump.broker.pop.records import PopKey
from turbopump.broker.topics import READ_WRITE, TopicTable
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError, StoredMessageError
from turbopump.message.inner_batch import plain_messages
from turbopump.message.message import ReceivedMessage
from turbopump.message.pop_handle import original_topic, pop_retry_topic
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    RETRY_TOPIC,
    encode_properties,
)
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.bodies.topics import TopicConfig

FIRST_POP_TIME = "1ST_POP_TIME"
_AT_ONCE = 32
"""Messages of a batch in one turn of the loop."""


class PuttingBack:
    """Puts messages back."""

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, groups: GroupTable, forwarding: Forwarding
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._forwarding = forwarding

    def is_wanted(self, key: PopKey) -> bool:
        """Whether topic and group are still there."""
        return self._topics.find(
            original_topic(key.topic, key.group)
        ) is not None and self._groups.knows(key.group)

    async def put(self, message: ReceivedMessage, key: PopKey) -> str:
        """Store it once more; the topic where it is now. An inner batch is stored as its messages:
        a retry topic has no such batches, and its filters look at each message's tags. Raises what
        ``MessageStore.put`` does."""
        try:
            messages = plain_messages(message) or [message]
        except StoredMessageError:  # what cannot be taken apart goes on as it is
            messages = [message]
        for number, one in enumerate(messages, 1):
            topic = await self._put(one, key)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return topic

    async def _put(self, message: ReceivedMessage, key: PopKey) -> str:
        group = self._groups.find(key.group)
        attempts_max = group.retry_max_times if group is not None else 0
        kept = {name: value for name, value in message.properties.items() if name != POP_CK}
        properties = dict(kept)
        if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
            properties[FIRST_POP_TIME] = str(key.pop_time_ms)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
        if 0 <= attempts_max <= message.reconsume_times:
            topic = dead_letter_topic(self._topics, key.group)
            properties[RETRY_TOPIC] = original_topic(key.topic, key.group)
            properties[DELAY_TIME_LEVEL] = "0"
        else:
            topic = self._retry_topic(key)
        assert topic.topic_name is not None
        attempts = message.reconsume_times + 1
        text = encode_properties(properties)
        try:
            await self._forwarding.forward(
                message, topic.topic_name, 0, properties=text, reconsume_times=attempts
            )
        except MessageError:  # perhaps the properties are full: without those that are added here
            as_it_was = encode_properties(kept) if POP_CK in message.properties else None
            await self._forwarding.forward(
                message, topic.topic_name, 0, properties=as_it_was, reconsume_times=attempts
            )
        return topic.topic_name

    def _retry_topic(self, key: PopKey) -> TopicConfig:
        name = key.topic
        if not name.startswith(RETRY_PREFIX):
            name = pop_retry_topic(key.topic, key.group, v2=self._config.enable_retry_topic_v2)
        config = self._topics.find(name)
        if config is None:
            config = TopicConfig(
                topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=READ_WRITE
            )
            self._topics.put(config)
        return config
