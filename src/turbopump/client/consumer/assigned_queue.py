"""One queue that is ours now: hands out what is pulled of it, and knows up to where it is done.

One rule: what is not done is not committed. It must not know why the queue is ours. Source:
apache/rocketmq ``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.ordered import GrantedLock, OrderedLine, OrderSettings
from turbopump.client.consumer.process_queue import ProcessQueue, PullLimits
from turbopump.client.consumer.pull import PullAnswer, PullStatus
from turbopump.client.consumer.queue_loop import Membership, PullLoop
from turbopump.client.namespace import unwrap
from turbopump.message import properties as names
from turbopump.message.handles import original_topic
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag

SUSPEND_S: Final = 15.0
RETRY_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a failed message that no broker takes back is delivered again, by its attempt; the
last one stays."""


class AssignedQueue(PullLoop[Delivery]):
    """Pulls ``queue`` from ``offset`` on once started, ``batch`` messages at a time. ``on_moved``
    is called with the offset to go on at when the broker says that ours is outside of what it has;
    this object is dropped then. ``lock``: nothing is handed out while it is not valid.

    If it is broadcast, what failed does not come again, and no offsets are committed to the broker.
    """

    def __init__(
        self,
        shared: Membership,
        queue: MessageQueue,
        offset: int,
        *,
        on_moved: Callable[[AssignedQueue, int], None],
        lock: GrantedLock | None,
        limits: PullLimits,
        batch: int,
    ) -> None:
        super().__init__(shared.instance, queue, Delivery)
        self.lock = lock
        self.sent_offset: int | None = None
        """The offset that was committed last, if the broker may still know it."""
        self.moves_to: int | None = None
        """In order and dropped: where the queue goes on when nobody has a message of it in hand any
        more."""
        self._thread = get_ident()
        self._shared = shared
        self._ready = shared.ready
        self._backs = shared.backs
        self.process_queue = ProcessQueue(offset, limits)
        self._batch = batch
        self._done_at = 0.0
        self._on_moved = on_moved
        self._consumption = shared.consumption
        self._statistics = shared.consumption.of(queue.topic)
        self._order = shared.order
        self._line = OrderedLine(shared.ready, shared.order.batch or 1) if shared.order else None
        self._dropped = False
        self._again: dict[int, asyncio.Handle] = {}

    # --- for the consumer

    def drop(self) -> None:
        """The queue is no longer ours: nothing more of it is handed out."""
        self._dropped = True
        self.stop()
        if self._line is not None:
            self._line.stop()
        for timer in self._again.values():
            timer.cancel()
        self._again.clear()

    @property
    def dropped(self) -> bool:
        return self._dropped or (self.lock is not None and not self.lock.valid)

    async def idle(self) -> None:
        """In order and dropped: wait until nobody has a message of the queue in hand."""
        if self._line is not None:
            await self._line.idle()

    @property
    def done_offset(self) -> int:
        """Everything below it is done."""
        return self.process_queue.commit_offset if self.moves_to is None else self.moves_to

    @property
    def to_commit(self) -> int | None:
        """The offset to commit; None: another member may have the queue."""
        return self.done_offset if self.lock is None or self.lock.kept else None

    def limit(self, limits: PullLimits) -> None:
        """So much of it may be in hand from now on."""
        self.process_queue.limits = limits
        self.look()

    def info(self) -> ProcessQueueInfo:
        """As an operator sees it; times in ms since 1970, 0: never."""
        held = self.process_queue
        first, last = held.span
        return ProcessQueueInfo(
            commit_offset=self.done_offset,
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_count=held.in_flight,
            cached_msg_size_in_mib=held.size >> 20,
            locked=self.lock is not None and self.lock.valid,
            last_lock_timestamp=0 if self.lock is None else self._as_ms(self.lock.since),
            droped=self.dropped,
            last_pull_timestamp=self._as_ms(self._pulled_at),
            last_consume_timestamp=self._as_ms(self._done_at),
        )

    def _as_ms(self, at: float) -> int:
        """Loop time as ms since 1970."""
        return (
            self._instance.environment.clock.now_ms() - round((self._loop.time() - at) * 1000)
            if at
            else 0
        )

    # --- for its messages

    def delivery_done(self, message: Delivery) -> None:
        if get_ident() != self._thread:  # said by a plain handler in its own thread
            self._loop.call_soon_threadsafe(self.delivery_done, message)
            return
        self._done_at = self._consumption.ended(message, self._statistics, ok=True)
        # as _settle, in place: once for every message
        self.process_queue.done(message.queue_offset)
        if self._line is not None:
            self._line.done(message)
        if self._room is not None and not self.process_queue.full():
            self.look()

    def _settle(self, message: Delivery) -> None:
        self.process_queue.done(message.queue_offset)
        if self._line is not None:
            self._line.done(message)
        self.look()

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_failed, message, delay, level)
            return
        self._consumption.ended(message, self._statistics, ok=False)
        if self._order is not None and self._line is not None:
            self._failed_in_order(message, delay, level, self._order, self._line)
        elif self._dropped:
            return
        elif delay is None and self._backs is None:
            self._settle(message)
        elif delay is None:
            assert self._backs is not None
            self._backs.begin(
                message, self.queue, level, lambda taken: self._given_back(message, taken=taken)
            )
        else:
            self._keep(message, delay)

    def delivery_left(self, message: Delivery) -> None:
        if self._line is not None:
            self._line.left()

    def _failed_in_order(
        self,
        message: Delivery,
        delay: float | None,
        level: int,
        order: OrderSettings,
        line: OrderedLine,
    ) -> None:
        """RocketMQ: ``ConsumeMessageOrderlyService.checkReconsumeTimes``."""
        spent = order.retries_max is not None and message.reconsume_times >= order.retries_max
        if self._dropped:
            line.again(message, 0.0)
        elif self._backs is not None and (spent or level < 0):
            self._backs.begin(
                message,
                None,
                level,
                lambda taken: self._given_up(message, line, order, taken=taken),
            )
        elif self._backs is None and spent:
            self._settle(message)
        else:
            message.reconsume_times += 1
            line.again(message, order.suspend_s if delay is None else delay)

    def _given_up(
        self, message: Delivery, line: OrderedLine, order: OrderSettings, *, taken: bool
    ) -> None:
        if taken:
            self._settle(message)
        else:
            line.again(message, order.suspend_s)

    def _given_back(self, message: Delivery, *, taken: bool) -> None:
        if taken:
            self._settle(message)
        elif not self._dropped:
            self._keep(message, RETRY_DELAYS_S[min(message.attempt, len(RETRY_DELAYS_S)) - 1])

    def _keep(self, message: Delivery, delay: float) -> None:
        self._again[id(message)] = self._loop.call_later(
            max(delay, 0.0), self._deliver_again, message
        )

    def _deliver_again(self, message: Delivery) -> None:
        del self._again[id(message)]
        again = copy(message)  # its first handler may still settle that delivery
        again.deliver(self, message.attempt + 1)
        self._ready.put([again])

    # --- pulling

    @property
    def _ended(self) -> bool:
        return self.dropped

    @property
    def _where(self) -> str:
        return f"queue={self.queue} offset={self.process_queue.next_offset}"

    def _has_room(self) -> bool:
        return not self._ready.paused and not self.process_queue.full()

    def _request(self) -> PullMessage:
        commit_offset = self.process_queue.commit_offset
        subscription = self._shared.subscriptions[self.queue.topic]
        # An offset that the broker may not know goes by itself first, see ``OffsetStore.commit``:
        # pulls come to many threads there.
        commits = (
            commit_offset > 0
            and self._broker_id == MASTER_ID
            and self._backs is not None
            and not self.dropped
            and self.sent_offset is not None
        )
        return PullMessage(
            consumer_group=self._shared.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.process_queue.next_offset,
            max_msg_nums=self._batch,
            sys_flag=int(PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commits else 0)),
            commit_offset=commit_offset,
            suspend_timeout_millis=int(SUSPEND_S * 1000),
            sub_version=subscription.version,
            expression_type=subscription.kind,
        )

    def _take(self, answer: PullAnswer[Delivery]) -> None:
        wanted: list[Delivery] = []
        next_offset = self.process_queue.next_offset
        # Judged by the newest: so does the broker, which has held this pull, perhaps, since before
        # it knew of other tags.
        subscription = self._shared.subscriptions[self.queue.topic]
        group, namespace = self._shared.group, self._shared.namespace
        broker_name = self.queue.broker_name
        is_retry, filters = self.queue.topic.startswith(RETRY_PREFIX), bool(subscription.tags)
        for delivery in answer.messages:
            if delivery.queue_offset < next_offset:
                continue
            next_offset = delivery.queue_offset + 1
            if filters and not subscription.wants(delivery):
                continue
            delivery.broker_name = broker_name
            if is_retry:
                delivery.topic = delivery.properties.get(names.RETRY_TOPIC) or original_topic(
                    delivery.topic, group
                )
            if namespace:
                delivery.topic = unwrap(namespace, delivery.topic)
            delivery.deliver(self, delivery.reconsume_times + 1)
            wanted.append(delivery)
        self.process_queue.add(wanted, max(next_offset, answer.reply.next_begin_offset))
        if answer.status is PullStatus.FOUND:
            (self._ready if self._line is None else self._line).put(wanted)
            now = self._loop.time()
            self._statistics.pulled(len(wanted), now - self._pulled_at, now)

    def _moved(self, offset: int) -> None:
        self._dropped = True
        self._on_moved(self, offset)
