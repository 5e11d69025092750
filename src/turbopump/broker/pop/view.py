"""View of a topic for one pop: which queues to search, and at which offset to begin.

Source: apache/rocketmq ``PopMessageProcessor``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from turbopump.broker.pop.group_queue import ANY_QUEUE, GroupQueue, TopicGroup
from turbopump.broker.pop.in_flight import InFlight
from turbopump.broker.pop.offsets import PopOffsets
from turbopump.broker.pop.order_info import OrderInfo
from turbopump.broker.pop.retry_topics import PopRetryTopics
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.pop import InitMode
from turbopump.store.message_store import MessageStore
from turbopump.store.watermark import Waiter


@dataclass(slots=True, eq=False)
class PopView:
    """View of the store for the pops of a group: which queues they read, and from which offset.

    The view knows the group's queues for a topic, its first offset in each queue, and its distance
    from the end. Messages that were not acknowledged are stored again in the group's retry topic,
    so a pop reads both topics. Source: apache/rocketmq ``PopMessageProcessor.getPopOffset``,
    ``getInitOffset``.
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    offsets: PopOffsets
    order: OrderInfo
    in_flight: InFlight
    retry_topics: PopRetryTopics
    clock: Clock

    def topic_queues(self, line: TopicGroup, queue_id: int, start: int = 0) -> list[GroupQueue]:
        """Return the queues of a topic for a pop. Queues of retry topics are not included.

        A pop of any queue reads them in a circle, from the queue ``start`` on.
        """
        topic = self.topics.find(line.topic)
        if topic is None:
            return []
        count = topic.read_queue_nums
        any_queue = [(start + n) % count for n in range(count)]
        wanted = any_queue if queue_id == ANY_QUEUE else [queue_id]
        return [GroupQueue(line.group, line.topic, number) for number in wanted]

    def queues(self, line: TopicGroup, queue_id: int, *, ordered: bool) -> list[GroupQueue]:
        """Return all queues that a pop reads, including the queues of retry topics.

        An ordered pop does not read retry topics.
        """
        return self.topic_queues(line, queue_id) + (
            [] if ordered else self.retry_topics.queues(line)
        )

    def end(self, queue: GroupQueue) -> int:
        return self.store.max_offset(queue.topic, queue.queue_id)

    def distance(self, queue: GroupQueue) -> int:
        """Return the number of messages from the group's next offset to the end of the queue."""
        return max(self.end(queue) - (self.offsets.find(queue) or 0), 0)

    def is_at_end(self, queue: GroupQueue) -> bool:
        """Return True if the group is at the end of the queue, and no reset is pending."""
        return self.offsets.find(queue) == self.end(queue) and not self.offsets.is_reset(queue)

    def has_more(self, queue: GroupQueue) -> bool:
        """Return True if a pop of the queue would now find messages, or advance the group's
        offset."""
        if self.offsets.is_locked(queue):
            return False
        if self.offsets.is_reset(queue):
            return True
        blocked = self.order.blocked_until(queue, self.clock.now_ms()) is not None
        if blocked or self.in_flight.is_full(queue):
            return False
        return self.end(queue) > (self.offsets.find(queue) or 0)

    def when_more(
        self, queue: GroupQueue, wake: Callable[[], None]
    ) -> Waiter | asyncio.TimerHandle | None:
        """Call ``wake`` when a pop of the queue may find new messages.

        Return a handle that cancels this, or None if the topic is unknown. Three events do not call
        ``wake``: the unlocking of the queue, an ordered acknowledgement, and a drop below the
        in-flight limit. The code that causes these events wakes the waiting pops itself.
        """
        now = self.clock.now_ms()
        until = self.order.blocked_until(queue, now)
        if until is not None:
            return asyncio.get_running_loop().call_later(max(until - now, 1) / 1000, wake)
        if self.topics.find(queue.topic) is None:
            return None
        end = self.store.queues.find_or_make(queue.topic, queue.queue_id).end
        return end.when(max(self.offsets.find(queue) or 0, end.value) + 1, wake)

    def first_offset(self, queue: GroupQueue, init_mode: int) -> int:
        """Return the offset at which a group begins to pop a queue, if the group has no offset.

        - ``init_mode``: MIN begins at the first message. MAX begins at the last message.

        As in RocketMQ, MAX also begins at the first message if ``initPopOffsetByCheckMsgInMem`` is
        set and all messages of the queue are still in memory.
        """
        topic, queue_id = queue.topic, queue.queue_id
        low = self.store.min_offset(topic, queue_id)
        if init_mode == InitMode.MIN or topic.startswith(RETRY_PREFIX):
            return low
        whole = self.config.init_pop_offset_by_check_msg_in_mem and low <= 0
        if whole and self.store.is_hot(topic, queue_id, 0):
            return 0
        return max(self.end(queue) - 1, 0)
