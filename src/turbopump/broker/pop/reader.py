"""Taking messages for a pop: one queue after the other is read, and what is found written down in a
checkpoint before it is given out.

Messages of a retry topic are given out as messages of the topic that was asked for, with their
receipt; those of the topic itself as they are stored. What cannot be written down is not given out.
Source: apache/rocketmq ``PopMessageProcessor.popMsgFromQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from turbopump.broker.consumers import Subscription
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.held_pops import ANY_QUEUE, Line
from turbopump.broker.pop.offsets import GroupQueue, InFlight, OrderInfo, PopOffsets
from turbopump.broker.pop.records import Checkpoint, ReviveLog
from turbopump.broker.reading import read_queue
from turbopump.broker.statistics import Statistics
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries, encode_entry, encode_host
from turbopump.message.handles import (
    ORDER_REVIVE_QUEUE,
    PopHandle,
    QueueKey,
    kind_of,
    pop_retry_topic,
    queue_key,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import POP_CK, encode_properties
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.pop import InitMode
from turbopump.store.log.commit_log import Placed
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import GetResult, GetStatus
from turbopump.store.watermark import Waiter

log = logging.getLogger(__name__)

_ELSEWHERE: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)


@dataclass(slots=True)
class PopWish:
    """What a pop is to take. Times in ms."""

    group: str
    topic: str
    count_max: int
    invisible_ms: int
    init_mode: int
    subscription: Subscription
    ordered: bool = False
    attempt_id: str | None = None
    wanted: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Taken:
    """What a pop has got. ``left`` is how many messages are left in the queues that it looked at,
    ``placed`` the last checkpoint."""

    pop_time_ms: int
    revive_queue_id: int
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    left: int = 0
    starts: list[tuple[QueueKey, int]] = field(default_factory=list)
    offsets: list[tuple[QueueKey, list[int]]] = field(default_factory=list)
    order_counts: list[tuple[QueueKey, int]] = field(default_factory=list)
    placed: Placed | None = None
    refused: str | None = None
    """Why a queue gave nothing although it may have had something."""


class PopReader:
    """Takes messages of queues. ``actual_retry_topic``: those of a retry topic are given out as
    they are stored, too."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        offsets: ConsumerOffsets,
        places: PopOffsets,
        sight: PopView,
        order: OrderInfo,
        revive_log: ReviveLog,
        in_flight: InFlight,
        statistics: Statistics,
        clock: Clock,
        *,
        actual_retry_topic: bool,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._offsets = offsets
        self._places = places
        self._sight = sight
        self._order = order
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._actual_retry_topic = actual_retry_topic
        self._statistics = statistics
        self._clock = clock

    async def take(self, wish: PopWish, queues: list[GroupQueue], taken: Taken) -> None:
        """Take what there is in each queue in turn, until ``wish`` is satisfied. A queue that
        somebody else pops just now is left out."""
        for place in queues:
            if not self._places.lock(place):
                taken.left += self._behind(place)
                continue
            try:
                await self._take_of(wish, place, taken)
            except (TurbopumpError, OSError) as error:
                taken.refused = str(error)
                log.error("pop failed group=%s topic=%s queue=%d cause=%s", *place, error)
            finally:
                self._places.unlock(place)

    async def _take_of(self, wish: PopWish, place: GroupQueue, taken: Taken) -> None:
        start = self._start(place, wish)
        if (
            wish.ordered
            and self._order.blocked_until(place, self._clock.now_ms(), wish.attempt_id) is not None
        ):
            return
        if not wish.ordered and self._in_flight.is_full(place):
            log.debug("too many popped messages are out group=%s topic=%s queue=%d", *place)
            taken.left += self._behind(place)
            return
        if taken.count >= wish.count_max:
            taken.left += max(self._store.max_offset(place.topic, place.queue_id) - start, 0)
            return
        result = await self._read(wish, place, start, wish.count_max - taken.count)
        if result.status in _ELSEWHERE and result.next_offset != start:
            log.warning(
                "pop goes on elsewhere group=%s topic=%s queue=%d from=%d to=%d",
                *place,
                start,
                result.next_offset,
            )
            start = result.next_offset
            self._places.begin(place, start)
            result = await self._read(wish, place, start, wish.count_max - taken.count)
        self._tell(place, result)
        if result.count:
            self._statistics.got(wish.group, place.topic, result.count, len(result.data))
            await self._give(wish, place, start, result, taken)
        elif result.next_offset > start and result.status not in (
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            self._places.popped(place, result.next_offset, 0)
        taken.left += max(result.max_offset - result.next_offset, 0)

    async def _give(
        self, wish: PopWish, place: GroupQueue, start: int, result: GetResult, taken: Taken
    ) -> None:
        offsets = queue_offsets(result.data)
        key = queue_key(kind_of(place.topic), place.queue_id)
        if wish.ordered:
            now = self._clock.now_ms()
            taken.order_counts += self._order.took(
                *(place, offsets, taken.pop_time_ms, wish.invisible_ms, wish.attempt_id, now),
                following=result.next_offset,
            )
            self._places.begin(place, start)
        else:
            checkpoint = Checkpoint(
                start_offset=start,
                pop_time=taken.pop_time_ms,
                invisible_time=wish.invisible_ms,
                count=len(offsets),
                queue_id=place.queue_id,
                topic=place.topic,
                group=place.group,
                distances=[offset - start for offset in offsets],
                broker_name=self._broker_name,
            )
            taken.placed = await self._revive_log.checkpoint(taken.revive_queue_id, checkpoint)
            self._places.popped(place, result.next_offset, taken.placed.log_end)
            self._in_flight.took(place, offsets)
        taken.starts.append((key, start))
        taken.offsets.append((key, offsets))
        taken.count += result.count
        if place.topic == wish.topic or self._actual_retry_topic:
            taken.parts.append(result.data)
        else:
            handle = PopHandle(
                start_offset=start,
                pop_time_ms=taken.pop_time_ms,
                invisible_ms=wish.invisible_ms,
                revive_queue_id=ORDER_REVIVE_QUEUE if wish.ordered else taken.revive_queue_id,
                kind=key.kind,
                broker_name=self._broker_name,
                queue_id=place.queue_id,
            )
            taken.parts += [
                as_of_topic(message, wish.topic, handle) for message in decode_entries(result.data)
            ]

    def _start(self, place: GroupQueue, wish: PopWish) -> int:
        reset = self._places.take_reset(place)
        if reset is not None:
            self._order.forget(place)
            self._in_flight.forget(place)
            return reset
        start = self._places.find(place)
        if start is None:
            start = self._sight.first_offset(place, wish.init_mode)
            self._places.begin(place, start)
        return start

    def _behind(self, place: GroupQueue) -> int:
        return max(
            self._store.max_offset(place.topic, place.queue_id) - (self._places.find(place) or 0), 0
        )

    async def _read(self, wish: PopWish, place: GroupQueue, start: int, count: int) -> GetResult:
        return await read_queue(
            self._store,
            place.topic,
            place.queue_id,
            start,
            count,
            wish.subscription.codes,
            wish.subscription.matches,
        )

    def _tell(self, place: GroupQueue, result: GetResult) -> None:
        for damage in result.damages:
            log.error(
                "damaged message topic=%s queue=%d offset=%d log_offset=%d cause=%s",
                *(place.topic, place.queue_id, damage.queue_offset, damage.offset, damage.fault),
            )


def queue_offsets(data: bytes) -> list[int]:
    """The queue offset of every entry (see the ruler in ``message/codec.py``)."""
    offsets, at = [], 0
    while at < len(data):
        offsets.append(int.from_bytes(data[at + 20 : at + 28]))
        at += int.from_bytes(data[at : at + 4])
    return offsets


def as_of_topic(message: ReceivedMessage, topic: str, handle: PopHandle) -> bytes:
    """The entry of a retried message as one of the topic to which it was sent, with its receipt.
    The CRC over the whole goes: it was made for other bytes."""
    properties = {**message.properties, POP_CK: f"{handle.encode()} {message.queue_offset}"}
    return encode_entry(
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.commit_log_offset,
        message.sys_flag,
        message.born_timestamp,
        encode_host(*message.born_host),
        message.store_timestamp,
        encode_host(*message.store_host),
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.stored_body,
        topic.encode(),
        encode_properties(properties).encode(),
    )


# --- Looking at what a pop would find. Nothing is written down, and no place moves. RocketMQ:
# ``PeekMessageProcessor``.


async def peek(
    store: MessageStore, places: PopOffsets, queues: list[GroupQueue], count_max: int
) -> tuple[bytes, int]:
    """Entries of the queues in turn, at most so many, and how many are left. Raises StoreError."""
    parts: list[bytes] = []
    count = left = 0
    for place in queues:
        start = places.find(place)
        if start is None:
            start = store.min_offset(place.topic, place.queue_id)
        if count >= count_max:
            left += max(store.max_offset(place.topic, place.queue_id) - start, 0)
            continue
        result = await read_queue(store, place.topic, place.queue_id, start, count_max - count)
        parts.append(result.data)
        count += result.count
        left += max(result.max_offset - result.next_offset, 0)
    return b"".join(parts), left


# --- What pops could find: which queues are a group's for a topic, where it would begin in one, and
# whether that is before its end.
#
# A topic's messages that were not acknowledged come again in the group's retry topic for it; both are
# one for whoever pops. It must not know who waits. RocketMQ: ``PopMessageProcessor.getPopOffset``,
# ``getInitOffset``.


class PopView:
    """``Sight`` of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        places: PopOffsets,
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
