"""Second delivery of popped messages that no consumer acknowledged.

A copy of each message goes to the group's retry topic, or after too many attempts to its dead
letters. Source: apache/rocketmq ``PopReviveService.reviveRetry``. Here ``retryMaxTimes`` of the
group counts too; with Apache's broker a message that kills its consumer comes again for ever. The
copies have ``ORIGIN_MESSAGE_ID`` and ``RETRY_TOPIC`` like messages that were sent back, if their
properties have space for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from turbopump.broker.counters.dead_letters import DeadLetterCounts
from turbopump.broker.counters.pop import PopCounts
from turbopump.broker.dead_letters import dead_letter_topic
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.groups import GroupTable
from turbopump.broker.pop import records
from turbopump.broker.pop.group_queue import GroupQueue, TopicGroup
from turbopump.broker.pop.open_checkpoints import OpenCheckpoint
from turbopump.broker.pop.view import PopView
from turbopump.broker.reading import ask
from turbopump.broker.topic_attributes import is_batch_cq
from turbopump.errors import MessageError
from turbopump.message.handles import original_topic
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    RETRY_TOPIC,
    encode_properties,
)
from turbopump.message.rules import RETRY_PREFIX

log = logging.getLogger(__name__)

FIRST_POP_TIME = "1ST_POP_TIME"


@dataclass(slots=True, eq=False)
class Redelivery:
    """Second delivery of popped messages that no consumer acknowledged.

    - ``wake_line``: wakes the waiting pops of the topic and group for which copies were stored.
    - ``counts``: the counters of copies, for the metrics.
    """

    view: PopView
    groups: GroupTable
    forwarding: Forwarding
    wake_line: Callable[[TopicGroup], None]
    dead_letters: DeadLetterCounts
    counts: PopCounts

    async def redeliver(self, entry: OpenCheckpoint) -> list[int]:
        """Store a copy of each unacknowledged message of a checkpoint. Return the queue offsets of
        the messages.

        Return an empty list if the topic or the group was deleted. Raises StoreError or OSError;
        ``entry.left`` then lists the messages without a copy.
        """
        key = entry.key
        queue = GroupQueue(key.group, key.topic, key.queue_id)
        self.view.in_flight.remove_ended(queue, entry.left)
        config = self.view.topics.find(queue.line.topic)
        if config is None or is_batch_cq(config) or self.groups.get(key.group) is None:
            log.warning(
                "popped messages are not delivered again, the topic or group was deleted or "
                "is not served topic=%s group=%s",
                key.topic,
                key.group,
            )
            return []
        offsets = list(entry.left)
        for offset in offsets:
            await self.forwarding.turns.pause()
            fault = await self._redeliver_one(key, offset)
            if fault is not None:
                log.error(
                    "popped message cannot be delivered again topic=%s group=%s queue=%s "
                    "offset=%s cause=%s",
                    key.topic,
                    key.group,
                    key.queue_id,
                    offset,
                    fault,
                )
            entry.left.remove(offset)
        self.wake_line(queue.line)
        return offsets

    async def _redeliver_one(self, key: records.PopKey, offset: int) -> str | None:
        """Store a copy of one message. Return None, or the reason for a failure."""
        question = self.view.store.lookup.entry_in_queue(key.topic, key.queue_id, offset)
        found = await ask(self.view.store.cold_reads, question, self.forwarding.turns)
        if found is None:
            return "the message is no longer in the log"
        if found.fault is not None:
            return found.fault
        try:
            await self.forwarding.turns.pause()
            await self._store_copy(found.message, key)
            self.counts.add_retried(key.group, key.topic)
        except MessageError as error:
            return str(error)
        return None

    async def _store_copy(self, message: ReceivedMessage, key: records.PopKey) -> None:
        group = self.groups.find_or_create(key.group)
        attempts_max = group.retry_max_times if group is not None else 0
        kept = {name: value for name, value in message.properties.items() if name != POP_CK}
        properties = dict(kept)
        if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
            properties[FIRST_POP_TIME] = str(key.pop_time_ms)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
        if 0 <= attempts_max <= message.reconsume_times:
            topic = dead_letter_topic(self.view.topics, key.group)
            self.dead_letters.count(key.group, original_topic(key.topic, key.group))
            properties[RETRY_TOPIC] = original_topic(key.topic, key.group)
            properties[DELAY_TIME_LEVEL] = "0"
        else:
            name = key.topic
            if not name.startswith(RETRY_PREFIX):
                name = self.view.retry_topics.topic(TopicGroup(key.topic, key.group))
            topic = self.view.topics.find_or_make(name, 1)
        assert topic.topic_name is not None
        attempts = message.reconsume_times + 1
        text = encode_properties(properties)
        try:
            await self.forwarding.forward(
                message, topic.topic_name, 0, properties=text, reconsume_times=attempts
            )
        except MessageError:  # perhaps there is no space for the properties that are added here
            as_it_was = None
            if POP_CK in message.properties:
                as_it_was = encode_properties(kept)
            await self.forwarding.forward(
                message, topic.topic_name, 0, properties=as_it_was, reconsume_times=attempts
            )
