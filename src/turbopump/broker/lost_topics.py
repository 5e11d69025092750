"""Restoration of topics that have messages but are missing in the topic table."""

from __future__ import annotations

import logging
from typing import Final

from turbopump.broker.topic_attributes import BATCH_CQ, QUEUE_TYPE
from turbopump.broker.topics import TopicTable, plain_topic
from turbopump.message.rules import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    is_system_topic,
    topic_fault,
)
from turbopump.protocol.requests.topics import QUEUES_MAX, TopicConfig
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

_GROUP_TOPICS: Final = (RETRY_PREFIX, DLQ_PREFIX)


def make_lost_topics(store: MessageStore, topics: TopicTable, default_queues: int) -> list[str]:
    """Restore topics that have messages but are missing in the topic table. Return their names.

    A topic is restored only if it has a message that is newer than the loaded table.
    ``default_queues`` is the minimum number of its queues, except for a group's topic.

    A send to a new topic is answered after one second at most, even if ``topics.json`` is not saved
    by then (under ASYNC_FLUSH). If the power fails at that moment, the log has the messages, but
    clients get no route to them. So the topic is created again, with as many queues as had
    messages. Its empty queues beyond the default, its permissions and its attributes are lost. A
    deleted topic does not come back, because its messages are older than the table, which was saved
    after them.

    A topic of inner batches (BatchCQ) is restored if Apache's files of its queues exist.
    """
    ends: dict[str, list[ConsumeQueue]] = {}
    for queue in store.queues:
        name = queue.topic
        if (
            queue.max_index > queue.min_index
            and topics.find(name) is None
            and not name.startswith(LMQ_PREFIX)
        ):
            ends.setdefault(name, []).append(queue)
    made = []
    for name, queues in sorted(ends.items()):
        if is_system_topic(name) or not any(
            _is_newer(store, queue, topics.loaded_ms) for queue in queues
        ):
            continue
        last = max(queue.queue_id for queue in queues)
        _make_again(topics, lost_topic(name, last, default_queues))
        made.append(name)
    for name, count in store.queues.batch_topics.items():
        if topics.find(name) is None:
            topic = plain_topic(name, count)
            topic.attributes = {QUEUE_TYPE: BATCH_CQ}
            _make_again(topics, topic)
            made.append(name)
    return made


def lost_topic(name: str, last: int, default_queues: int) -> TopicConfig:
    """Return settings for a lost topic.

    ``last`` is the highest id of a queue with a message.
    """
    count = 1 if name.startswith(_GROUP_TOPICS) else default_queues
    return plain_topic(name, max(last + 1, count))


def make_topic_of_waiting(
    topics: TopicTable, default_queues: int, name: str, queue_id: int, stored_ms: int
) -> None:
    """Restore the topic of a delayed message, unless the topic table has this topic.

    The message was stored at ``stored_ms``. Nothing is restored if the topic was deleted, or if the
    loaded table is newer than the message.
    """
    if (
        topics.find(name) is None
        and name not in topics.deleted
        and stored_ms > topics.loaded_ms
        and not is_system_topic(name)
        and topic_fault(name) is None
        and queue_id < QUEUES_MAX
    ):
        _make_again(topics, lost_topic(name, queue_id, default_queues))


def _make_again(topics: TopicTable, topic: TopicConfig) -> None:
    topics.put(topic)
    log.warning(
        "topic with messages was missing in topics.json and is restored topic=%s queues=%s",
        topic.topic_name,
        topic.read_queue_nums,
    )


def _is_newer(store: MessageStore, queue: ConsumeQueue, saved_ms: int) -> bool:
    """Return True if the last message of a queue was stored at ``saved_ms`` or later, or is
    unreadable."""
    entry = finish_now(
        store.lookup.entry_in_queue(queue.topic, queue.queue_id, queue.max_index - 1)
    )
    return entry is None or entry.fault is not None or entry.message.store_timestamp >= saved_ms
