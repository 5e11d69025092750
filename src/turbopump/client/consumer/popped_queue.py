"""One queue that is popped because a broker decided so. Mostly it stands for all queues of a topic
on one broker (queue id −1). Messages are delivered, and acknowledged when they are done. Failed
ones are delivered again later.

One rule: a message belongs to this member only while it is invisible to others. Messages that were
not started in that time are dropped, because another member may have them. When the queue is lost,
messages that were not started are returned to the broker. This module must not know why the queue
is assigned. Source: apache/rocketmq ``DefaultMQPushConsumerImpl.popMessage``,
``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.delivery_policy import DeliveryPolicy, Membership
from turbopump.client.consumer.pop import WAIT_S, PoppedDelivery
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.queue_loop import (
    ERROR_PAUSE_S,
    FLOW_CONTROL_PAUSE_S,
    HASTE_S,
    QueueLoop,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.consumers import PopProcessQueueInfo

log = logging.getLogger(__name__)

LADDER_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a failed message is delivered again, by its number of earlier retries. RocketMQ:
``popDelayLevel``."""
LEVELS_S: Final = (1, 5, *LADDER_S)
"""Seconds by delay level from 1: the default table of brokers."""


class PoppedMessages(DeliveryPolicy):
    """Unsettled messages of a popped queue, which are delivered at once. Their number is limited by
    a *window*. It shrinks when messages are not handled in time, and grows when they are."""

    def __init__(
        self,
        shared: Membership,
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
    def room(self) -> int:
        """Number of messages that may be popped now."""
        return int(self._window) - len(self.held)

    def put(self, messages: list[PoppedDelivery], deadline: float, *, stopped: bool) -> None:
        """Deliver messages that become visible to others at ``deadline``. If the queue is
        ``stopped``, return them to the broker instead."""
        for message in messages:
            message.deliver(self, message.reconsume_times + 1)
            message.invisible_until(deadline, self._loop.time)
            self.held[message] = None
        if not stopped:
            self._ready.put(messages)
            return
        for message in messages:
            self._give_back(message)

    def let_go(self) -> None:
        """Drop messages that no handler or reader got in time."""
        late = [message for message in self.held if not message.taken and message.overdue]
        if late:
            log.warning(
                "not handled in its time, comes again group=%s queue=%s count=%d",
                self._group,
                self._queue,
                len(late),
            )
            self._narrow_window()
        for message in late:
            del self.held[message]

    @property
    def let_go_at(self) -> float | None:
        """Loop time at which the next message that no handler or reader has is dropped; None if
        there is none."""
        return min((message.deadline for message in self.held if not message.taken), default=None)

    def drop(self) -> None:
        """Stop delivering, and return messages to the broker that no handler or reader has."""
        self.dropped = True
        for message in [message for message in self.held if not message.taken]:
            self._give_back(message)

    def close(self, *, give_back_taken: bool) -> None:
        """Ignore later settling of messages. ``give_back_taken``: also return messages in handlers
        to the broker, because nobody works on them any more."""
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
            self._requests.bury(message, message.deadline)
            return
        if delay is None and level:
            delay = LEVELS_S[min(level, len(LEVELS_S)) - 1]
        elif delay is None:
            delay = LADDER_S[min(message.reconsume_times, len(LADDER_S) - 1)]
        self._requests.change_later(message, max(delay, 0.0))

    def _left(self, message: Delivery) -> None:
        assert isinstance(message, PoppedDelivery)
        if message not in self.held:
            return
        if message.overdue:
            self.let_go()
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
        """Halve the window, because the handlers cannot keep up. Each message that is not handled
        in time uses up an attempt."""
        self._window = max(self._window / 2, 1.0)


class PopQueue(QueueLoop):
    """Pop ``queue`` once started."""

    verb = "pop"

    def __init__(self, shared: Membership, queue: MessageQueue, pop_requests: PopRequests) -> None:
        super().__init__(shared.instance, queue)
        self._shared = shared
        self._settings = shared.settings
        self._statistics = shared.consumption.of(queue.topic)
        self._requests = pop_requests
        self._messages = PoppedMessages(shared, queue, self.look, pop_requests)
        self._asking = False
        self._stopped = False
        self._last_pop_ms = 0

    # --- for the table of queues

    def stop(self) -> None:
        """Stop popping. Messages of a running pop are returned to the broker. Delivered messages
        may still be settled."""
        self._stopped = True
        if not self._asking:
            super().stop()

    def drop(self) -> None:
        """Stop delivering, and return messages to the broker that no handler or reader has. The
        others may still be settled."""
        self.stop()
        self._messages.drop()

    def close(self, *, give_back_taken: bool) -> None:
        """Ignore later settling of messages. ``give_back_taken``: also return messages in handlers
        to the broker, because nobody works on them any more."""
        self._messages.close(give_back_taken=give_back_taken)

    @property
    def held(self) -> int:
        """Number of messages that are popped and not settled."""
        return len(self._messages.held)

    def info(self) -> PopProcessQueueInfo:
        return PopProcessQueueInfo(
            wait_ack_count=self.held,
            droped=self._messages.dropped,
            last_pop_timestamp=self._last_pop_ms,
        )

    # --- popping

    @property
    def _ended(self) -> bool:
        return self._stopped

    @property
    def _where(self) -> str:
        return f"group={self._shared.group} queue={self.queue}"

    def _has_room(self) -> bool:
        # messages popped while delivery is paused would only be delivered again
        return not self._shared.ready.paused and self._messages.room > 0

    async def _wait_for_room(self) -> None:
        """Wait until a message is settled, or an untouched one becomes visible to others."""
        if self._shared.ready.paused:
            await super()._wait_for_room()
            return
        self._messages.let_go()
        if self._has_room():
            return
        try:
            async with asyncio.timeout_at(self._messages.let_go_at):
                await super()._wait_for_room()
        except TimeoutError:
            pass

    async def _read(self) -> float:
        self._messages.let_go()
        asked = self._loop.time()
        self._asking = True
        try:
            found = await self._requests.pop(
                self._shared.subscriptions[self.queue.topic],
                self.queue,
                PoppedDelivery,
                batch=min(self._settings.pop_batch, self._messages.room),
                invisible_s=self._settings.pop_invisible_time,
                wait_s=WAIT_S,
                attempt_id=None,
            )
        finally:
            self._asking = False
        now = self._loop.time()
        self._last_pop_ms = self._instance.environment.clock.now_ms()
        if found.came:
            deadline = now + self._settings.pop_invisible_time
            self._messages.put(found.messages, deadline, stopped=self._stopped)
            self._statistics.pulled(len(found.messages), now - asked, now)
            return 0.0
        if found.full:
            return ERROR_PAUSE_S
        return FLOW_CONTROL_PAUSE_S if now - asked < HASTE_S else 0.0
