"""Topics that hold messages and are not in ``topics.json``: made again at the start.

A topic is acknowledged with its first message after one second at most, whether or not
``topics.json`` could be saved by then (under ASYNC_FLUSH). If it could not, and the power fails,
the log has the messages and nobody finds them, since no client is given a route. So what the log
knows counts: such a topic comes back, with as many queues as it had messages in. What is lost is
what no message tells: the number of its empty queues beyond the default, its permissions and
attributes, but for the kind of its queues.

A topic that was deleted is not lost. Its messages are older than the table, which was saved after
them.
"""

from __future__ import annotations

import logging
from typing import Final

from turbopump.broker.topic_attributes import BATCH_CQ, QUEUE_TYPE
from turbopump.broker.topics import READ_WRITE, TopicTable
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from turbopump.protocol.bodies.topics import TopicConfig
from turbopump.store.log.cold_reads import answer
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.repair.unit_repair import LMQ_PREFIX

log = logging.getLogger(__name__)

_GROUP_TOPICS: Final = (RETRY_PREFIX, DLQ_PREFIX)


def make_lost_topics(
    store: MessageStore, topics: TopicTable, saved_ms: int, default_queues: int
) -> list[str]:
    """Make topics again that are not in the table and have a message from ``saved_ms`` on, when the
    table that was loaded was last changed (ms); their names. ``default_queues`` is the least number
    of queues of a topic that is not a group's. Each is logged."""
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
        if is_system_topic(name) or not any(_is_newer(store, queue, saved_ms) for queue in queues):
            continue
        count = max(
            max(queue.queue_id for queue in queues) + 1,
            1 if name.startswith(_GROUP_TOPICS) else default_queues,
        )
        attributes = {QUEUE_TYPE: BATCH_CQ} if any(queue.is_batch for queue in queues) else {}
        topics.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=READ_WRITE,
                attributes=attributes,
            )
        )
        log.warning(
            "topic with messages was not in topics.json, it is made again topic=%s queues=%d",
            name,
            count,
        )
        made.append(name)
    return made


def _is_newer(store: MessageStore, queue: ConsumeQueue, saved_ms: int) -> bool:
    """Whether the queue's last message is not older; one that cannot be read counts as new, since
    others may be there."""
    entry = answer(store.lookup.entry_in_queue(queue.topic, queue.queue_id, queue.max_index - 1))
    return entry is None or entry.fault is not None or entry.message.store_timestamp >= saved_ms
