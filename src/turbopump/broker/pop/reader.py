"""Reader of messages for a pop.

The reader reads the queues one after the other. For the messages of a queue it first stores a
checkpoint, and then returns them. Messages without a stored checkpoint are not returned.

Messages of a retry topic are returned as messages of the requested topic, with a receipt handle.
Messages of the topic itself are returned as they are stored. Source: apache/rocketmq
``PopMessageProcessor.popMsgFromQueue``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from turbopump.broker.log_repair import LogRepair, damaged_ranges
from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.broker.pop.offsets import PopOffsets
from turbopump.broker.pop.order_info import OrderedPop
from turbopump.broker.pop.records import Checkpoint, ReviveLog
from turbopump.broker.pop.view import PopView
from turbopump.broker.reading import read_queue
from turbopump.broker.statistics import Statistics
from turbopump.broker.subscriptions import SubscriptionFilter
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries, encode_copy
from turbopump.message.entry import SIZE_AND_QUEUE_OFFSET
from turbopump.message.handles import (
    ORDER_REVIVE_QUEUE,
    PopHandle,
    QueueKey,
    queue_key,
    queue_kind_of,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import POP_CK, encode_properties, property_bytes
from turbopump.repeated_line import RepeatedLine
from turbopump.store.log.commit_log import PutResult
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.read_result import GetResult, GetStatus

log = logging.getLogger(__name__)
_failed = RepeatedLine(log, logging.ERROR, "pop failed group=%s topic=%s queue=%d cause=%s")
_corrected = RepeatedLine(
    log, logging.WARNING, "pop offset corrected group=%s topic=%s queue=%d from=%d to=%d"
)
_damaged = RepeatedLine(
    log, logging.ERROR, "damaged message topic=%s queue=%d offset=%d log_offset=%d cause=%s"
)

_ELSEWHERE: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
_EMPTY: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


@dataclass(slots=True)
class PopQuery:
    """Query of one pop: the consumer, the topic, and the limits of the result.

    - ``count_max``: the maximum number of messages.
    - ``invisible_ms``: the milliseconds for which other consumers do not get the messages.
    - ``pause``: lets the event loop serve other requests.
    - ``revocations``: the number of times that waiting pops had lost permissions when the pop
      arrived.
    """

    group: str
    topic: str
    count_max: int
    invisible_ms: int
    init_mode: int
    subscription: SubscriptionFilter
    pause: Callable[[], Awaitable[None]]
    ordered: bool = False
    attempt_id: str | None = None
    revocations: int = 0


@dataclass(slots=True)
class PoppedEntries:
    """Result of one pop: the messages found so far.

    - ``pop_time_ms``: the time of the pop, in ms since 1970.
    - ``parts``: the encoded messages.
    - ``left``: the number of messages left in the queues that were read.
    - ``checkpoint_stored``: the position of the last checkpoint in the log, or None.
    """

    pop_time_ms: int
    revive_queue_id: int
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    left: int = 0
    starts: list[tuple[QueueKey, int]] = field(default_factory=list)
    offsets: list[tuple[QueueKey, list[int]]] = field(default_factory=list)
    order_counts: list[tuple[QueueKey, int]] = field(default_factory=list)
    checkpoint_stored: PutResult | None = None
    refused: str | None = None
    """Reason why a queue could not be read, or None if all could be read."""


@dataclass(slots=True, eq=False)
class PopReader:
    """Reader of messages for pops. It also writes the checkpoints of these messages."""

    view: PopView
    revive_log: ReviveLog
    statistics: Statistics
    repair: LogRepair

    async def read_queues(
        self, query: PopQuery, queues: list[GroupQueue], taken: PoppedEntries
    ) -> None:
        """Read messages from each of the queues in turn, and add them to ``taken``.

        Queues that another pop is reading are skipped. If a queue cannot be read, ``taken.refused``
        is the reason.
        """
        for queue in queues:
            await query.pause()
            if self.view.is_at_end(queue):  # true for nearly all queues of nearly all pops
                continue
            if not self.view.offsets.lock(queue):
                taken.left += self.view.distance(queue)
                continue
            try:
                await self._read_queue(query, queue, taken)
            except (TurbopumpError, OSError) as error:
                taken.refused = str(error)
                _failed(*queue, error, kind=queue)
            finally:
                self.view.offsets.unlock(queue)

    async def _read_queue(self, query: PopQuery, queue: GroupQueue, taken: PoppedEntries) -> None:
        """Read messages from a locked queue. Move the group's offset behind these messages."""
        # The order keeps a kill from losing messages. The checkpoint of the messages is in the log
        # before they are answered, and the committed offset passes them only when the log is on the
        # disk up to the checkpoint (``PopOffsets.commit``). Messages that the filter rejects need
        # no checkpoint, so their offset is committed at once, after offsets that wait.
        start = self._first_offset(queue, query)
        if query.ordered:
            now = self.view.clock.now_ms()
            if self.view.order.blocked_until(queue, now, query.attempt_id) is not None:
                return
        elif self.view.in_flight.is_full(queue):
            log.debug(
                "queue is not popped, too many messages are unacknowledged group=%s topic=%s "
                "queue=%d",
                *queue,
            )
            taken.left += self.view.distance(queue)
            return
        wanted = query.count_max - taken.count
        if wanted <= 0:
            taken.left += max(self.view.end(queue) - start, 0)
            return
        start, result = await self._read_from(queue, start, wanted, query.subscription)
        if result.count:
            self.statistics.count_pop(
                query.group, queue.topic, query.topic, result.count, len(result.data)
            )
            await self._add_found(query, queue, start, result, taken)
        elif result.next_offset > start and result.status not in _EMPTY:
            self.view.offsets.commit(queue, result.next_offset, 0)
        taken.left += max(result.max_offset - result.next_offset, 0)

    async def _read_from(
        self, queue: GroupQueue, start: int, wanted: int, subscription: SubscriptionFilter
    ) -> tuple[int, GetResult]:
        """Read at most ``wanted`` messages of a queue, beginning at the offset ``start``.

        If the queue has no such offset, read from the nearest existing one. Return the offset at
        which the read began, and its result.
        """
        topic, queue_id = queue.topic, queue.queue_id
        while True:
            result = await read_queue(
                self.view.store,
                topic,
                queue_id,
                start,
                wanted,
                subscription.codes,
                subscription.matches,
            )
            if result.damages and await self.repair.fetch_and_wait(damaged_ranges(result.damages)):
                continue
            if result.status not in _ELSEWHERE or result.next_offset == start:
                break
            _corrected(*queue, start, result.next_offset, kind=queue)
            start = result.next_offset
            self.view.offsets.set_next(queue, start)
        for damage in result.damages:
            fault, offset = damage.fault, damage.offset
            _damaged(topic, queue_id, damage.queue_offset, offset, fault, kind=offset)
        return start, result

    async def _add_found(
        self,
        query: PopQuery,
        queue: GroupQueue,
        start: int,
        result: GetResult,
        taken: PoppedEntries,
    ) -> None:
        """Record found messages as popped, and add them to ``taken``.

        An ordered pop is recorded in the table of ordered pops. For any other pop a checkpoint is
        stored.
        """
        offsets = queue_offsets(result.data)
        key = queue_key(queue_kind_of(queue.topic), queue.queue_id)
        if query.ordered:
            taken.order_counts += self.view.order.record_pop(
                queue,
                offsets,
                OrderedPop(
                    pop_time=taken.pop_time_ms,
                    invisible=query.invisible_ms,
                    last_consumed=self.view.clock.now_ms(),
                    attempt_id=query.attempt_id,
                ),
                result.next_offset,
            )
            self.view.offsets.set_next(queue, start)
        else:
            checkpoint = Checkpoint(
                start_offset=start,
                pop_time=taken.pop_time_ms,
                invisible_time=query.invisible_ms,
                count=len(offsets),
                queue_id=queue.queue_id,
                topic=queue.topic,
                group=queue.group,
                distances=[offset - start for offset in offsets],
                broker_name=self.view.config.broker_name,
            )
            taken.checkpoint_stored = await self.revive_log.store_checkpoint(
                taken.revive_queue_id, checkpoint
            )
            self.view.offsets.commit(queue, result.next_offset, taken.checkpoint_stored.log_end)
            self.view.in_flight.add_popped(queue, offsets)
        taken.starts.append((key, start))
        taken.offsets.append((key, offsets))
        taken.count += result.count
        if queue.topic == query.topic or self.view.config.pop_response_return_actual_retry_topic:
            taken.parts.append(result.data)
            return
        handle = PopHandle(
            start_offset=start,
            pop_time_ms=taken.pop_time_ms,
            invisible_ms=query.invisible_ms,
            revive_queue_id=ORDER_REVIVE_QUEUE if query.ordered else taken.revive_queue_id,
            kind=key.kind,
            broker_name=self.view.config.broker_name,
            queue_id=queue.queue_id,
        )
        taken.parts += [
            as_of_topic(message, query.topic, handle)
            for message in decode_entries(result.data, errors="surrogateescape")
        ]

    def _first_offset(self, queue: GroupQueue, query: PopQuery) -> int:
        """Return the offset at which the group's next pop of the queue begins.

        This is the offset that an operator has set, else the group's next offset. A group without
        an offset begins as the query's ``init_mode`` says.
        """
        reset = self.view.offsets.take_reset(queue)
        if reset is not None:
            self.view.order.forget_queue(queue)
            self.view.in_flight.forget_queue(queue)
            return reset
        start = self.view.offsets.find(queue)
        if start is None:
            start = self.view.first_offset(queue, query.init_mode)
            self.view.offsets.set_next(queue, start)
        return start


def queue_offsets(data: bytes) -> list[int]:
    """For each encoded message in ``data``, return its queue offset.

    ``message/entry.py`` describes the encoding.
    """
    offsets = []
    at = 0
    while at < len(data):
        size, queue_offset = SIZE_AND_QUEUE_OFFSET.unpack_from(data, at)
        offsets.append(queue_offset)
        at += size
    return offsets


def as_of_topic(message: ReceivedMessage, topic: str, handle: PopHandle) -> bytes:
    """Encode a retried message for a consumer, with its original topic and a receipt handle.

    The property with the CRC is removed, because the bytes have changed.
    """
    properties = {**message.properties, POP_CK: f"{handle.encode()} {message.queue_offset}"}
    return encode_copy(message, topic, property_bytes(encode_properties(properties)))


async def peek(
    store: MessageStore,
    offsets: PopOffsets,
    queues: list[GroupQueue],
    count_max: int,
    pause: Callable[[], Awaitable[None]],
) -> tuple[bytes, int]:
    """Return the messages that a pop of the queues would return. Nothing changes.

    The result is at most ``count_max`` encoded messages, and the number of messages that are left.
    No offset changes, and no checkpoint is stored. Raises StoreError. RocketMQ:
    ``PeekMessageProcessor``.
    """
    parts: list[bytes] = []
    count = left = 0
    for queue in queues:
        await pause()
        start = offsets.find(queue)
        if start is None:
            start = store.min_offset(queue.topic, queue.queue_id)
        if count >= count_max:
            left += max(store.max_offset(queue.topic, queue.queue_id) - start, 0)
            continue
        result = await read_queue(store, queue.topic, queue.queue_id, start, count_max - count)
        parts.append(result.data)
        count += result.count
        left += max(result.max_offset - result.next_offset, 0)
    return b"".join(parts), left
