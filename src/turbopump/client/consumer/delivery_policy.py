"""Delivery policies: how the messages of one queue are handed out, and what becomes of each that
its handler, or whoever took it, settles.

Two policies for queues that are pulled: ``Unordered`` hands everything out at once, ``InOrder`` the
next message when those before are done. (What is popped has a third: ``popped_queue.py``.) One
rule: settling is said in any thread, and counts on the loop. A policy must not know how messages
are read. Source: apache/rocketmq ``ConsumeMessageConcurrentlyService``,
``ConsumeMessageOrderlyService``, ``ProcessQueue.takeMessages``, ``makeMessageToConsumeAgain``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.process_queue import ProcessQueue
from turbopump.client.consumer.queue_locks import GrantedLock
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import PushConsumerSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.message.message import MessageQueue

RETRY_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a failed message that no broker takes back is delivered again, by its attempt; the
last one stays."""


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """Parts of one push consumer that its queues share. ``group`` and ``subscriptions`` (by topic,
    as they are at any time) are as brokers know them. ``backs`` None: it is broadcast.
    ``consumption`` notes what is read and what ends."""

    instance: ClientInstance
    group: str
    subscriptions: MutableMapping[str, Subscription]
    ready: ReadyMessages
    backs: SendBack | None
    consumption: Consumption
    settings: PushConsumerSettings


class DeliveryPolicy(ABC):
    """Owner of the messages of ``queue``, from when they are read to when they are settled.
    ``on_room`` is called when one is settled."""

    def __init__(
        self, shared: Membership, queue: MessageQueue, on_room: Callable[[], None]
    ) -> None:
        self.dropped = False
        """True: the queue is no longer ours, and nothing more is handed out."""
        self.done_at = 0.0
        """Loop time at which a message was done last."""
        self._queue = queue
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._ready = shared.ready
        self._settings = shared.settings
        self._consumption = shared.consumption
        self._statistics = shared.consumption.of(queue.topic)

    def delivery_done(self, message: Delivery) -> None:
        if get_ident() != self._thread:  # said by a plain handler in its own thread
            self._loop.call_soon_threadsafe(self.delivery_done, message)
            return
        self.done_at = self._consumption.ended(message, self._statistics, ok=True)
        self._done(message)

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_failed, message, delay, level)
            return
        self._consumption.ended(message, self._statistics, ok=False)
        self._failed(message, delay, level)

    def delivery_left(self, message: Delivery) -> None:
        if get_ident() != self._thread:
            try:
                self._loop.call_soon_threadsafe(self.delivery_left, message)
            except RuntimeError:  # the loop is closed
                return
        else:
            self._left(message)

    @abstractmethod
    def drop(self) -> None:
        """Hand nothing out any more. A handler that has a message may still settle it."""

    @abstractmethod
    def _done(self, message: Delivery) -> None:
        """Finish a message that was dealt with."""

    @abstractmethod
    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        """Have a message again, as ``Delivery.retry`` says."""

    @abstractmethod
    def _left(self, message: Delivery) -> None:
        """Put down a message that was taken and is not settled."""


class PulledPolicy(DeliveryPolicy):
    """Policy for messages that are pulled: ``process_queue`` knows which are not done."""

    def __init__(
        self,
        shared: Membership,
        queue: MessageQueue,
        on_room: Callable[[], None],
        process_queue: ProcessQueue,
    ) -> None:
        super().__init__(shared, queue, on_room)
        self._backs = shared.backs
        self._process_queue = process_queue

    @abstractmethod
    def put(self, messages: Sequence[Delivery]) -> None:
        """Hand out messages that follow those that were put before."""

    async def wait_for_handlers(self) -> None:
        """Wait, after ``drop``, for handlers whose end the next owner of the queue must wait
        for."""

    def _done(self, message: Delivery) -> None:
        self._process_queue.done(message.queue_offset)
        self._on_room()


class Unordered(PulledPolicy):
    """Hands out every message at once. One that failed goes back to its broker; it stays here if a
    delay was asked for, or if no broker takes it."""

    def __init__(
        self,
        shared: Membership,
        queue: MessageQueue,
        on_room: Callable[[], None],
        process_queue: ProcessQueue,
    ) -> None:
        super().__init__(shared, queue, on_room, process_queue)
        self._again: dict[int, asyncio.Handle] = {}

    def put(self, messages: Sequence[Delivery]) -> None:
        self._ready.put(messages)

    def drop(self) -> None:
        self.dropped = True
        for timer in self._again.values():
            timer.cancel()
        self._again.clear()

    def _left(self, message: Delivery) -> None:
        pass

    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if self.dropped:
            return
        if delay is not None:
            self._keep(message, delay)
        elif self._backs is not None:
            self._backs.begin(message, self._queue, level, partial(self._sent_back, message))
        else:
            self._done(message)

    def _sent_back(self, message: Delivery, taken: bool) -> None:
        if taken:
            self._done(message)
        elif not self.dropped:
            self._keep(message, RETRY_DELAYS_S[min(message.attempt, len(RETRY_DELAYS_S)) - 1])

    def _keep(self, message: Delivery, delay: float) -> None:
        self._again[id(message)] = self._loop.call_later(
            max(delay, 0.0), self._deliver_again, message
        )

    def _deliver_again(self, message: Delivery) -> None:
        del self._again[id(message)]
        again = copy(message)  # its first handler may still settle that delivery
        again.deliver_again()
        self._ready.put([again])


class InOrder(PulledPolicy):
    """Hands out the next messages, as many as one call of a handler takes, when those before are
    done. Messages that failed come again together, in their order, before the rest of the queue.
    ``lock``: nothing is handed out while it is not valid."""

    def __init__(
        self,
        shared: Membership,
        queue: MessageQueue,
        on_room: Callable[[], None],
        process_queue: ProcessQueue,
        lock: GrantedLock | None,
    ) -> None:
        super().__init__(shared, queue, on_room, process_queue)
        self._lock = lock
        self._count = shared.settings.handler_batch or 1
        self._waiting: deque[Delivery] = deque()
        self._out: dict[Delivery, None] = {}
        """Handed out, or soon will be, and neither dealt with nor failed."""
        self._again: list[Delivery] = []
        """Failed, of those that were handed out together."""
        self._delay = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def dropped(self) -> bool:
        return self._dropped or (self._lock is not None and not self._lock.valid)

    @dropped.setter
    def dropped(self, dropped: bool) -> None:
        self._dropped = dropped

    def put(self, messages: Sequence[Delivery]) -> None:
        if not self._dropped:
            self._waiting.extend(messages)
            if not self._out and not self._again:
                self._hand_out()

    def drop(self) -> None:
        self._dropped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _in_hand(self) -> bool:
        return any(message.taken for message in self._out)

    async def wait_for_handlers(self) -> None:
        while self._in_hand:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _left(self, message: Delivery | None = None) -> None:
        if self._waiters and not self._in_hand:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _done(self, message: Delivery) -> None:
        self._process_queue.done(message.queue_offset)
        if message in self._out:
            del self._out[message]
            self._go_on()
        self._on_room()

    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        """RocketMQ: ``ConsumeMessageOrderlyService.checkReconsumeTimes``."""
        settings = self._settings
        retries_max = settings.max_reconsume_times
        spent = retries_max is not None and message.reconsume_times >= retries_max
        if self._dropped:
            self._retry(message, 0.0)
        elif self._backs is not None and (spent or level < 0):
            self._backs.begin(message, None, level, partial(self._given_up, message))
        elif self._backs is None and spent:
            self._done(message)
        else:
            message.reconsume_times += 1
            self._retry(message, settings.suspend_time if delay is None else delay)

    def _given_up(self, message: Delivery, taken: bool) -> None:
        if taken:
            self._done(message)
        else:
            self._retry(message, self._settings.suspend_time)

    def _retry(self, message: Delivery, delay: float) -> None:
        """Hand a message out again when the others that were handed out with it are dealt with,
        after the longest delay of any of them."""
        message.taken = False
        if message in self._out:
            del self._out[message]
            self._again.append(message)
            self._delay = max(self._delay, delay)
            self._go_on()

    def _go_on(self) -> None:
        if not self._out and not self._dropped:
            if self._again:
                self._timer = self._loop.call_later(self._delay, self._hand_out_again)
            else:
                self._hand_out()
        self._left()

    def _hand_out(self) -> None:
        waiting, batch = self._waiting, list[Delivery]()
        while waiting and len(batch) < self._count:
            if batch and not waiting[0].goes_with(batch[0]):
                break
            batch.append(waiting.popleft())
        if batch:
            self._out = dict.fromkeys(batch)
            self._ready.put(batch)

    def _hand_out_again(self) -> None:
        self._timer = None
        failed = sorted(self._again, key=lambda message: message.queue_offset)
        self._again, self._delay = [], 0.0
        for message in reversed(failed):
            # a handler that has asked for it again may still say something, of that delivery
            again = copy(message)
            again.deliver_again()
            self._waiting.appendleft(again)
        self._hand_out()
