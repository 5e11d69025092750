"""Delivery policies. A policy decides when a queue's messages are delivered, and reacts when a
message is settled.

There are two policies for pulled queues. ``Unordered`` delivers all messages at once; ``InOrder``
delivers the next messages when those before are done. ``PoppedMessages`` is the policy for popped
queues. One rule: a message may be settled in any thread, but the effect happens on the loop. A
policy must not know how messages are read. Source: apache/rocketmq
``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``,
``ConsumeMessagePopConcurrentlyService``,
``ProcessQueue.takeMessages``, ``makeMessageToConsumeAgain``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import PoppedDelivery
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.process_queue import ProcessQueue
from turbopump.client.consumer.queue_locks import GrantedLock
from turbopump.client.consumer.ready_messages import ReadyMessages
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import PushConsumerSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.message.message import MessageQueue

log = logging.getLogger(__name__)

RETRY_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a failed message is delivered again, by attempt, if no broker accepts the message
back. Later attempts use the last value."""
LADDER_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a failed message is delivered again, by its number of earlier retries. RocketMQ:
``popDelayLevel``."""
LEVELS_S: Final = (1, 5, *LADDER_S)
"""Seconds by delay level from 1: the default table of brokers."""


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerContext:
    """Shared state of all queues of one push consumer.

    - ``group``: name of the group, as brokers know it.
    - ``subscriptions``: current subscriptions by topic, under the names that brokers know.
    - ``ready``: messages that wait for a handler or reader.
    - ``backs``: object that sends messages back to brokers. None in broadcasting.
    - ``consumption``: statistics and traces.
    """

    instance: ClientInstance
    group: str
    subscriptions: MutableMapping[str, Subscription]
    ready: ReadyMessages
    backs: SendBack | None
    consumption: Consumption
    settings: PushConsumerSettings


class DeliveryPolicy(ABC):
    """Rules for one queue: how its messages are delivered, settled and retried.

    The policy owns the messages of ``queue`` until they are settled. It calls ``on_room`` when a
    message is finished, because the queue may have room for more messages then.
    """

    def __init__(
        self, shared: ConsumerContext, queue: MessageQueue, on_room: Callable[[], None]
    ) -> None:
        self.dropped = False
        """True if the queue is no longer assigned to this member. No further message is delivered
        then."""
        self.done_at = 0.0
        """Event loop time, in seconds, at which the last message was done."""
        self._queue = queue
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._ready = shared.ready
        self._settings = shared.settings
        self._consumption = shared.consumption
        self._statistics = shared.consumption.statistics_of(queue.topic)

    def delivery_done(self, message: Delivery) -> None:
        if get_ident() != self._thread:  # said by a plain handler in its own thread
            self._loop.call_soon_threadsafe(self.delivery_done, message)
            return
        self.done_at = self._consumption.handling_ended(message, self._statistics, ok=True)
        self._done(message)

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_failed, message, delay, level)
            return
        self._consumption.handling_ended(message, self._statistics, ok=False)
        self._failed(message, delay, level)

    def delivery_abandoned(self, message: Delivery) -> None:
        if get_ident() != self._thread:
            try:
                self._loop.call_soon_threadsafe(self.delivery_abandoned, message)
            except RuntimeError:  # the loop is closed
                return
        else:
            self._abandoned(message)

    @abstractmethod
    def drop(self) -> None:
        """Stop delivering messages. A running handler may still settle its message."""

    @abstractmethod
    def _done(self, message: Delivery) -> None:
        """Remove a finished message from the unsettled messages of the queue."""

    @abstractmethod
    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        """Have a failed message delivered again, as ``Delivery.retry`` describes."""

    @abstractmethod
    def _abandoned(self, message: Delivery) -> None:
        """React to an unsettled message that will not be handled."""


class PulledPolicy(DeliveryPolicy):
    """Policy for a queue whose messages are pulled.

    ``process_queue`` keeps the messages that are not finished.
    """

    def __init__(
        self,
        shared: ConsumerContext,
        queue: MessageQueue,
        on_room: Callable[[], None],
        process_queue: ProcessQueue,
    ) -> None:
        super().__init__(shared, queue, on_room)
        self._backs = shared.backs
        self._process_queue = process_queue

    @abstractmethod
    def add_messages(self, messages: Sequence[Delivery]) -> None:
        """Add pulled messages, in the order of their offsets."""

    async def wait_for_handlers(self) -> None:
        """Wait for the running handlers of a queue that was dropped.

        Another member may read the queue only after that. By default there is nothing to wait for.
        """

    def _done(self, message: Delivery) -> None:
        self._process_queue.done(message.queue_offset)
        self._on_room()


class Unordered(PulledPolicy):
    """Policy that delivers every message at once, without waiting for earlier messages.

    A failed message is sent back to its broker. The consumer itself delivers the message again if a
    delay was given or no broker accepts the message. In broadcasting, a failed message without a
    delay counts as done.
    """

    def __init__(
        self,
        shared: ConsumerContext,
        queue: MessageQueue,
        on_room: Callable[[], None],
        process_queue: ProcessQueue,
    ) -> None:
        super().__init__(shared, queue, on_room, process_queue)
        self._again: dict[int, asyncio.Handle] = {}

    def add_messages(self, messages: Sequence[Delivery]) -> None:
        self._ready.add_messages(messages)

    def drop(self) -> None:
        self.dropped = True
        for timer in self._again.values():
            timer.cancel()
        self._again.clear()

    def _abandoned(self, message: Delivery) -> None:
        pass

    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if self.dropped:
            return
        if delay is not None:
            self._retry_later(message, delay)
        elif self._backs is not None:
            self._backs.send_back_later(
                message, self._queue, level, partial(self._sent_back, message)
            )
        else:
            self._done(message)

    def _sent_back(self, message: Delivery, taken: bool) -> None:
        if taken:
            self._done(message)
        elif not self.dropped:
            self._retry_later(
                message, RETRY_DELAYS_S[min(message.attempt, len(RETRY_DELAYS_S)) - 1]
            )

    def _retry_later(self, message: Delivery, delay: float) -> None:
        self._again[id(message)] = self._loop.call_later(
            max(delay, 0.0), self._deliver_again, message
        )

    def _deliver_again(self, message: Delivery) -> None:
        del self._again[id(message)]
        again = copy(message)  # its first handler may still settle that delivery
        again.deliver_again()
        self._ready.add_messages([again])


class InOrder(PulledPolicy):
    """Policy for ordered handling. The next messages of a queue are delivered when the previous
    ones are done.

    The policy delivers at most ``handler_batch`` messages at once, or one without that setting.
    Failed messages are delivered again together, in order, before the rest of the queue. No message
    is delivered while ``lock`` is invalid. ``lock`` is None if the queue needs no lock.
    """

    def __init__(
        self,
        shared: ConsumerContext,
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
        """Messages that are delivered or about to be, and have neither finished nor failed."""
        self._again: list[Delivery] = []
        """Failed messages of the current handler call."""
        self._delay = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def dropped(self) -> bool:
        return self._dropped or (self._lock is not None and not self._lock.valid)

    @dropped.setter
    def dropped(self, dropped: bool) -> None:
        self._dropped = dropped

    def add_messages(self, messages: Sequence[Delivery]) -> None:
        if not self._dropped:
            self._waiting.extend(messages)
            if not self._out and not self._again:
                self._deliver_next()

    def drop(self) -> None:
        self._dropped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _is_handling(self) -> bool:
        return any(message.taken for message in self._out)

    async def wait_for_handlers(self) -> None:
        while self._is_handling:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _abandoned(self, message: Delivery | None = None) -> None:
        if self._waiters and not self._is_handling:
            waiters = self._waiters
            self._waiters = []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _done(self, message: Delivery) -> None:
        self._process_queue.done(message.queue_offset)
        if message in self._out:
            del self._out[message]
            self._continue_delivery()
        self._on_room()

    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        """Deliver a failed message again, or turn it into a dead letter.

        RocketMQ: ``ConsumeMessageOrderlyService.checkReconsumeTimes``.
        """
        settings = self._settings
        retries_max = settings.max_reconsume_times
        spent = retries_max is not None and message.reconsume_times >= retries_max
        if self._dropped:
            self._retry_in_place(message, 0.0)
        elif self._backs is not None and (spent or level < 0):
            self._backs.send_back_later(message, None, level, partial(self._given_up, message))
        elif self._backs is None and spent:
            self._done(message)
        else:
            message.reconsume_times += 1
            self._retry_in_place(message, settings.suspend_time if delay is None else delay)

    def _given_up(self, message: Delivery, taken: bool) -> None:
        if taken:
            self._done(message)
        else:
            self._retry_in_place(message, self._settings.suspend_time)

    def _retry_in_place(self, message: Delivery, delay: float) -> None:
        """Deliver a failed message again, once every message of its handler call has ended.

        All failed messages of the call wait for the longest of their delays.
        """
        # The next message may start only when every message before it is done. So a failed message
        # leaves ``_out`` but not the queue: it waits in ``_again`` until the others of its call
        # have ended, and then goes back in front of ``_waiting``. If it were delivered at once, it
        # would overtake a message of its own call that is still being handled and may fail, too.
        message.taken = False
        if message in self._out:
            del self._out[message]
            self._again.append(message)
            self._delay = max(self._delay, delay)
            self._continue_delivery()

    def _continue_delivery(self) -> None:
        if not self._out and not self._dropped:
            if self._again:
                self._timer = self._loop.call_later(self._delay, self._deliver_failed_again)
            else:
                self._deliver_next()
        self._abandoned()

    def _deliver_next(self) -> None:
        waiting = self._waiting
        batch = list[Delivery]()
        while waiting and len(batch) < self._count:
            if batch and not waiting[0].goes_with(batch[0]):
                break
            batch.append(waiting.popleft())
        if batch:
            self._out = dict.fromkeys(batch)
            self._ready.add_messages(batch)

    def _deliver_failed_again(self) -> None:
        self._timer = None
        failed = sorted(self._again, key=lambda message: message.queue_offset)
        self._again = []
        self._delay = 0.0
        for message in reversed(failed):
            # a handler that has called retry may still settle that earlier delivery
            again = copy(message)
            again.deliver_again()
            self._waiting.appendleft(again)
        self._deliver_next()


class PoppedMessages(DeliveryPolicy):
    """Policy for a popped queue. Every message is delivered at once.

    A *window* limits the number of unsettled messages. The window shrinks when messages are not
    handled in time, and grows when they are.

    A message belongs to this member only while it is invisible to others. A message that was not
    started in that time is dropped, because another member may have it. When the queue is lost,
    messages that were not started are returned to the broker.
    """

    def __init__(
        self,
        shared: ConsumerContext,
        queue: MessageQueue,
        on_room: Callable[[], None],
        pop_requests: PopRequests,
    ) -> None:
        super().__init__(shared, queue, on_room)
        self.held: dict[PoppedDelivery, None] = {}
        """Unsettled messages, oldest first."""
        self._group = shared.group
        self._requests = pop_requests
        self._window = float(shared.settings.pop_threshold)
        self._closed = False

    @property
    def places_left(self) -> int:
        """Number of messages that may be popped now."""
        return int(self._window) - len(self.held)

    def add_messages(
        self, messages: list[PoppedDelivery], deadline: float, *, stopped: bool
    ) -> None:
        """Deliver popped messages, or return them to the broker if the queue is ``stopped``.

        The messages become visible to other members at ``deadline``, an event loop time in seconds.
        """
        for message in messages:
            message.deliver(self, message.reconsume_times + 1)
            message.invisible_until(deadline, self._loop.time)
            self.held[message] = None
        if not stopped:
            self._ready.add_messages(messages)
            return
        for message in messages:
            self._give_back(message)

    def drop_overdue(self) -> None:
        """Drop messages that waited too long for a handler or reader. They are visible to other
        members again."""
        late = [message for message in self.held if not message.taken and message.overdue]
        if late:
            log.warning(
                "messages not handled in their invisible time, will be delivered again "
                "group=%s queue=%s count=%d",
                self._group,
                self._queue,
                len(late),
            )
            self._narrow_window()
        for message in late:
            del self.held[message]

    @property
    def next_overdue_at(self) -> float | None:
        """Event loop time at which the next waiting message becomes overdue.

        None if every message is with a handler or reader.
        """
        return min((message.deadline for message in self.held if not message.taken), default=None)

    def drop(self) -> None:
        """Stop delivering messages. Messages without a handler or reader go back to the broker."""
        self.dropped = True
        for message in [message for message in self.held if not message.taken]:
            self._give_back(message)

    def close(self, *, give_back_taken: bool) -> None:
        """Ignore messages that are settled from now on.

        ``give_back_taken``: True also returns messages in handlers to the broker, because nobody
        works on them any more.
        """
        if give_back_taken:
            for message in list(self.held):
                self._give_back(message)
        self._closed = True

    def _done(self, message: Delivery) -> None:
        assert isinstance(message, PoppedDelivery)
        if message.overdue:
            self._narrow_window()
        else:
            self._window += 1 / self._window
            self._window = min(self._window, float(self._settings.pop_threshold))
        self._release(message)
        # also when it is late: until the broker delivers it again, this still prevents the repeat
        if not self._closed:
            self._requests.acknowledge_later(message, message.deadline)

    def _failed(self, message: Delivery, delay: float | None, level: int) -> None:
        assert isinstance(message, PoppedDelivery)
        self._release(message)
        if message.overdue or self._closed:
            return  # it comes again anyway
        if level < 0 or message.reconsume_times >= self._settings.retries_max:
            self._requests.make_dead_letter(message, message.deadline)
            return
        if delay is None and level:
            delay = LEVELS_S[min(level, len(LEVELS_S)) - 1]
        elif delay is None:
            delay = LADDER_S[min(message.reconsume_times, len(LADDER_S) - 1)]
        self._requests.change_later(message, max(delay, 0.0))

    def _abandoned(self, message: Delivery) -> None:
        assert isinstance(message, PoppedDelivery)
        if message not in self.held:
            return
        if message.overdue:
            self.drop_overdue()
            self._on_room()
        else:
            self._give_back(message)

    def _release(self, message: PoppedDelivery) -> None:
        self.held.pop(message, None)
        self._on_room()

    def _give_back(self, message: PoppedDelivery) -> None:
        self._release(message)
        if not (message.overdue or self._closed):
            self._requests.give_back(message)

    def _narrow_window(self) -> None:
        """Halve the maximum number of unsettled messages, because the handlers are too slow.

        Each message that is not handled in time uses up an attempt.
        """
        self._window = max(self._window / 2, 1.0)
