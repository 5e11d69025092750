"""Messages that programs left in a topic, and those that a group has not finished."""

from __future__ import annotations

from turbopump import ReceivedMessage
from turbopump.blocking import PullConsumer
from turbopump.testing import BrokerThread


def stored(broker: BrokerThread, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with PullConsumer(broker.namesrv, group="topic-contents") as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
    return found


def uncommitted(broker: BrokerThread, topic: str, group: str) -> int:
    """Return the number of messages of a topic that the group would be given again."""
    with PullConsumer(broker.namesrv, group=group) as consumer:
        queues = consumer.queues(topic)
        return sum(consumer.max_offset(each) - (consumer.committed(each) or 0) for each in queues)
