"""One queue that is popped, because a broker said so (mostly all queues of a topic on one broker,
queue id −1): its messages are handed out, acknowledged when they are done, and made to come again
later when they failed.

One rule: a message is ours only while it is invisible to others. What was not begun in that time is
dropped, for somebody else has it then; what is not begun when the queue is lost is given back. It
must not know why the queue is ours. Source: apache/rocketmq
``DefaultMQPushConsumerImpl.popMessage``, ``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import GIVEN_BACK_S, WAIT_S, PoppedDelivery, PopResult
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.queue_loop import (
    ERROR_PAUSE_S,
    FLOW_CONTROL_PAUSE_S,
    HASTE_S,
    Membership,
    QueueLoop,
)
from turbopump.client.consumer.settings import PopSettings
from turbopump.errors import MessageError, RemotingError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import PopProcessQueueInfo
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_changed = RepeatedLine(
    log,
    logging.WARNING,
    "time of a message not changed, it comes again after %g s group=%s msg_id=%s cause=%s",
)

LADDER_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a message that failed comes again, by how often it has come again before. RocketMQ:
``popDelayLevel``."""
LEVELS_S: Final = (1, 5, *LADDER_S)
"""The same by delay level, from 1: those that brokers have by default."""


@dataclass(frozen=True, slots=True, eq=False)
class PopMembership:
    """What the popped queues of one consumer share, too."""

    settings: PopSettings
    requests: PopRequests


class PopQueue(QueueLoop):
    """Pops ``queue`` once started."""

    verb = "pop"

    def __init__(self, shared: Membership, queue: MessageQueue, pops: PopMembership) -> None:
        super().__init__(shared.instance, queue)
        assert shared.backs is not None
        self._thread = get_ident()
        self._shared = shared
        self._ready = shared.ready
        self._backs = shared.backs
        self._consumption = shared.consumption
        self._statistics = shared.consumption.of(queue.topic)
        self._settings = pops.settings
        self._requests = pops.requests
        self._held: dict[PoppedDelivery, None] = {}
        """Popped and not settled, the oldest first."""
        self._window = float(pops.settings.threshold)
        """How many may be in hand: fewer after some were not handled in their time, more again when
        they are."""
        self._asking = False
        self._stopped = self.dropped = self._closed = False
        self._change_fails = False
        self._last_pop_ms = 0

    # --- for the consumer

    def stop(self) -> None:
        """Pop no more; what is in somebody's hands may still be settled. What a pop that is under
        way brings is given back."""
        self._stopped = True
        if not self._asking:
            super().stop()

    def drop(self) -> None:
        """Hand out nothing more, and give back what nobody has taken. What somebody has may still
        be settled."""
        self.stop()
        self.dropped = True
        for message in [message for message in self._held if not message.taken]:
            self._give_back(message)

    def close(self, *, give_back_taken: bool) -> None:
        """Nothing that is settled from now on counts. ``give_back_taken``: nobody works any more on
        what somebody has."""
        self.drop()
        if give_back_taken:
            for message in list(self._held):
                self._give_back(message)
        self._closed = True

    def info(self) -> PopProcessQueueInfo:
        """As an operator sees it."""
        return PopProcessQueueInfo(
            wait_ack_count=len(self._held),
            droped=self.dropped,
            last_pop_timestamp=self._last_pop_ms,
        )

    # --- for its messages

    def delivery_done(self, message: Delivery) -> None:
        if get_ident() != self._thread:  # said by a plain handler in its own thread
            self._loop.call_soon_threadsafe(self.delivery_done, message)
            return
        assert isinstance(message, PoppedDelivery)
        self._consumption.ended(message, self._statistics, ok=True)
        if message.overdue:
            self._take_on_less()
        else:
            self._window = min(self._window + 1 / self._window, float(self._settings.threshold))
        self._release(message)
        # also when it is late: until the broker has brought it again, that still saves the repeat
        if not self._closed:
            self._requests.acknowledge_later(message, message.deadline)

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_failed, message, delay, level)
            return
        assert isinstance(message, PoppedDelivery)
        self._consumption.ended(message, self._statistics, ok=False)
        self._release(message)
        if message.overdue or self._closed:
            return  # it comes again anyway
        if level < 0 or message.reconsume_times >= self._settings.retries_max:
            self._requests.bury(self._backs, message, message.deadline)
            return
        if delay is None:
            delay = (
                LEVELS_S[min(level, len(LEVELS_S)) - 1]
                if level
                else LADDER_S[min(message.reconsume_times, len(LADDER_S) - 1)]
            )
        self._change(message, delay)

    def delivery_left(self, message: Delivery) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_left, message)
            return
        assert isinstance(message, PoppedDelivery)
        if message not in self._held:
            return
        if message.overdue:
            self._let_go()
            self.look()
        else:
            self._give_back(message)

    def _release(self, message: PoppedDelivery) -> None:
        self._held.pop(message, None)
        self.look()

    def _give_back(self, message: PoppedDelivery) -> None:
        self._release(message)
        if not (message.overdue or self._closed):
            self._change(message, GIVEN_BACK_S)

    def _change(self, message: PoppedDelivery, delay: float) -> None:
        async def change() -> None:
            try:
                await self._requests.change_invisible_time(message, max(delay, 0.0))
                self._change_fails = False
            except (RemotingError, MessageError) as error:
                if isinstance(error, ResponseError) and error.code == ResponseCode.NO_MESSAGE:
                    return  # it comes too late: the message is on its way
                if not self._change_fails:  # one line when it begins
                    _not_changed(
                        self._settings.invisible_s,
                        self._shared.group,
                        message.msg_id,
                        error,
                        kind=self._shared.group,
                    )
                self._change_fails = True

        self._requests.spawn(change(), name=f"change invisible time {message.msg_id}")

    # --- popping

    @property
    def _ended(self) -> bool:
        return self._stopped

    @property
    def _where(self) -> str:
        return f"group={self._shared.group} queue={self.queue}"

    def _has_room(self) -> bool:
        # what is popped while nobody takes anything would only come again
        return not self._ready.paused and len(self._held) < int(self._window)

    async def _wait_for_room(self) -> None:
        """Until something is settled, or what nobody has taken is no longer ours."""
        if self._ready.paused:
            await super()._wait_for_room()
            return
        self._let_go()
        if self._has_room():
            return
        idle = [message.deadline for message in self._held if not message.taken]
        timer = self._loop.call_at(min(idle), self._look_again) if idle else None
        try:
            await super()._wait_for_room()
        finally:
            if timer is not None:
                timer.cancel()

    def _look_again(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _let_go(self) -> None:
        """Of what nobody has taken in its time."""
        late = [message for message in self._held if not message.taken and message.overdue]
        if late:
            log.warning(
                "not handled in its time, comes again group=%s queue=%s count=%d",
                self._shared.group,
                self.queue,
                len(late),
            )
            self._take_on_less()
        for message in late:
            del self._held[message]

    def _take_on_less(self) -> None:
        """A message that comes again because it was not done in its time has used up an attempt:
        the handlers cannot keep up."""
        self._window = max(self._window / 2, 1.0)

    async def _read(self) -> float:
        self._let_go()
        asked = self._loop.time()
        self._asking = True
        try:
            found = await self._requests.pop(
                self._shared.subscriptions[self.queue.topic],
                self.queue,
                PoppedDelivery,
                batch=min(self._settings.batch, int(self._window) - len(self._held)),
                invisible_s=self._settings.invisible_s,
                wait_s=WAIT_S,
                attempt_id=None,
            )
        finally:
            self._asking = False
        self._last_pop_ms = self._instance.environment.clock.now_ms()
        if found.wanted or found.unwanted:
            self._take(found)
            self._statistics.pulled(len(found.wanted), self._loop.time() - asked, self._loop.time())
            return 0.0
        if found.full:
            return ERROR_PAUSE_S
        return FLOW_CONTROL_PAUSE_S if self._loop.time() - asked < HASTE_S else 0.0

    def _take(self, found: PopResult[PoppedDelivery]) -> None:
        deadline = self._loop.time() + self._settings.invisible_s
        for message in found.unwanted:
            self._requests.acknowledge_later(message, deadline)
        handed: list[PoppedDelivery] = []
        for message in found.wanted:
            message.deliver(self, message.reconsume_times + 1)
            message.invisible_until(deadline, self._loop.time)
            if message.reconsume_times > self._settings.retries_max:
                self._requests.bury(
                    self._backs, message, message.deadline
                )  # RocketMQ acknowledges it, and it is gone
                continue
            self._held[message] = None
            handed.append(message)
        if not self._stopped:
            self._ready.put(handed)
            return
        for message in handed:
            self._give_back(message)
