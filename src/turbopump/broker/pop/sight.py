"""What pops could find: which queues are a group's for a topic, where it would begin in one, and
whether that is before its end.

A topic's messages that were not acknowledged come again in the group's retry topic for it; both are
one for whoever pops. It must not know who waits. RocketMQ: ``PopMessageProcessor.getPopOffset``,
``getInitOffset``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.held_pops import ANY_QUEUE, Line
from turbopump.broker.pop.in_flight import InFlight
from turbopump.broker.pop.order_info import OrderInfo
from turbopump.broker.pop.places import GroupQueue, PopPlaces
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.pop_handle import pop_retry_topic
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.pop import InitMode
from turbopump.store.message_store import MessageStore
from turbopump.store.watermark import Waiter


class PopSight:
    """``Sight`` of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        places: PopPlaces,
        order: OrderInfo,
        in_flight: InFlight,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._places = places
        self._order = order
        self._in_flight = in_flight
        self._clock = clock

    def topic_queues(self, line: Line, queue_id: int, start: int = 0) -> list[GroupQueue]:
        """The queues of the topic itself, from the queue ``start`` on and round."""
        topic = self._topics.find(line.topic)
        if topic is None:
            return []
        count = topic.read_queue_nums
        wanted = (
            [(start + n) % count for n in range(count)] if queue_id == ANY_QUEUE else [queue_id]
        )
        return [GroupQueue(line.group, line.topic, number) for number in wanted]

    def retry_queues(self, line: Line) -> list[GroupQueue]:
        """Those of the group's retry topics for it, as far as there are any."""
        versions = [self._config.enable_retry_topic_v2]
        if (
            self._config.enable_retry_topic_v2
            and self._config.retrieve_message_from_pop_retry_topic_v1
        ):
            versions.append(False)
        names = [pop_retry_topic(line.topic, line.group, v2=v2) for v2 in versions]
        found = [(name, self._topics.find(name)) for name in names]
        return [
            GroupQueue(line.group, name, number)
            for name, topic in found
            if topic is not None
            for number in range(topic.read_queue_nums)
        ]

    def queues(self, line: Line, queue_id: int, *, ordered: bool) -> list[GroupQueue]:
        """See ``Sight``. In order nothing is taken of retry topics."""
        return self.topic_queues(line, queue_id) + ([] if ordered else self.retry_queues(line))

    def has_more(self, place: GroupQueue) -> bool:
        """See ``Sight``."""
        if self._places.is_locked(place):
            return False
        if self._offsets.is_reset(*place):
            return True
        if self._order.blocked_until(
            place, self._clock.now_ms()
        ) is not None or self._in_flight.is_full(place):
            return False
        at = self._places.find(place)
        end = self._store.max_offset(place.topic, place.queue_id)
        return end > 0 if at is None else end > at

    def when_more(
        self, place: GroupQueue, wake: Callable[[], None]
    ) -> Waiter | asyncio.TimerHandle | None:
        """See ``Sight``. Who unlocks a queue, acknowledges in order, or ends what was too much,
        looks for those who wait."""
        now = self._clock.now_ms()
        until = self._order.blocked_until(place, now)
        if until is not None:
            return asyncio.get_running_loop().call_later(max(until - now, 1) / 1000, wake)
        if self._topics.find(place.topic) is None:
            return None
        queue = self._store.queues.find_or_make(place.topic, place.queue_id)
        return queue.end.when(max(self._places.find(place) or 0, queue.end.value) + 1, wake)

    def first_offset(self, place: GroupQueue, init_mode: int) -> int:
        """Where a group begins in a queue in which it has never been. RocketMQ: with MAX, at the
        last message; where all messages are still in memory, at the first."""
        topic, queue_id = place.topic, place.queue_id
        low, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if init_mode == InitMode.MIN or topic.startswith(RETRY_PREFIX):
            return low
        if (
            self._config.init_pop_offset_by_check_msg_in_mem
            and low <= 0
            and self._store.is_hot(topic, queue_id, 0)
        ):
            return 0
        return max(end - 1, 0)
