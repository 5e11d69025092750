"""One queue that a broker has told a push consumer to pop (mostly all queues of a topic on one
broker, queue id −1): its messages are handed out, acknowledged when they are done, and made to come
again later when they failed.

One rule: a message is ours only while it is invisible to others. What was not begun in that time is
let go, for somebody else has it then; what is not begun when the queue is dropped is given back. It
must not know why the queue is ours. Source: apache/rocketmq
``DefaultMQPushConsumerImpl.popMessage``, ``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import GIVEN_BACK_S, WAIT_S, PoppedDelivery, PopResult, pop
from turbopump.client.consumer.ready_messages import AnyReady
from turbopump.client.consumer.receipts import PopAcks, Receipts
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.settings import PopSettings
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import MessageError, ProtocolError, RemotingError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import PopProcessQueueInfo
from turbopump.protocol.requests.pop import InitMode

log = logging.getLogger(__name__)

LADDER_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a message that failed comes again, by how often it has come again before. RocketMQ:
``popDelayLevel``."""
LEVELS_S: Final = (1, 5, *LADDER_S)
"""The same by delay level, from 1: those that brokers have by default."""
ERROR_PAUSE_S: Final = 1.0
FLOW_CONTROL_PAUSE_S: Final = 0.02
HASTE_S: Final = 0.01
"""An empty answer that came faster than this was not held by the broker; the next pop waits a
little."""


class PopQueue:
    """Pops ``queue`` once started, for ``ready``; ``init_mode`` says where a group without a place
    begins. ``subscriptions`` by topic, as they are at any time. ``backs`` makes dead letters.
    ``namespace``: users get messages with topics without it. ``consumption`` is told of pops and of
    what ends."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        ready: AnyReady,
        queue: MessageQueue,
        settings: PopSettings,
        init_mode: InitMode,
        receipts: Receipts,
        acks: PopAcks,
        backs: SendBack,
        consumption: Consumption,
        *,
        namespace: str | None,
    ) -> None:
        self.queue = queue
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._ready = ready
        self._settings = settings
        self._init_mode = init_mode
        self._receipts = receipts
        self._acks = acks
        self._backs = backs
        self._namespace = namespace
        self._consumption = consumption
        self._statistics = consumption.of(queue.topic)
        self._held: dict[PoppedDelivery, None] = {}
        """Popped and not settled, the oldest first."""
        self._window = float(settings.threshold)
        """How many may be in hand: fewer after some were not handled in their time, more again when
        they are."""
        self._room: asyncio.Future[None] | None = None
        self._asking = False
        self._task: asyncio.Task[None] | None = None
        self._stopped = self._dropped = self._closed = False
        self._fault: str | None = None
        self._change_fault: str | None = None
        self._last_pop_ms = 0
        self._attempt_id: str | None = None
        """Of an ordered pop."""

    # --- for the consumer
    # ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to pop."""
        self._task = self._instance.spawn(self._pop_for_ever(), name=f"pop {self.queue}")

    def stop(self) -> None:
        """Pop no more; what is in somebody's hands may still be settled. What a pop that is under
        way brings is given back."""
        self._stopped = True
        if self._task is not None and not self._asking:
            self._task.cancel()

    def drop(self) -> None:
        """Hand out nothing more, and give back what nobody has taken. What somebody has may still
        be settled."""
        self.stop()
        self._dropped = True
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

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def info(self) -> PopProcessQueueInfo:
        """As an operator sees it."""
        return PopProcessQueueInfo(
            wait_ack_count=len(self._held),
            droped=self._dropped,
            last_pop_timestamp=self._last_pop_ms,
        )

    # --- for its messages
    # ----------------------------------------------------------------------------------------------

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
            self._acks.begin(message, message.broker_name, message.deadline)
        self._after(message)

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.delivery_failed, message, delay, level)
            return
        assert isinstance(message, PoppedDelivery)
        self._consumption.ended(message, self._statistics, ok=False)
        self._retry(message, delay, level)

    def _after(self, message: PoppedDelivery) -> None:
        """It is done: what follows it may go."""

    def _retry(self, message: PoppedDelivery, delay: float | None, level: int) -> None:
        self._release(message)
        if message.overdue or self._closed:
            return  # it comes again anyway
        if level < 0 or message.reconsume_times >= self._settings.retries_max:
            self._bury(message)
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
        self._put_down(message)

    def _put_down(self, message: PoppedDelivery) -> None:
        if message in self._held:
            self._give_back(message)

    def _release(self, message: PoppedDelivery) -> None:
        self._held.pop(message, None)
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._room is not None and not self._room.done() and len(self._held) < int(self._window):
            self._room.set_result(None)

    def _bury(self, message: PoppedDelivery) -> None:
        def acknowledge(taken: bool) -> None:
            if taken:
                self._acks.begin(message, message.broker_name, message.deadline)

        self._backs.begin_plain(message, -1, acknowledge)

    def _give_back(self, message: PoppedDelivery) -> None:
        self._release(message)
        if not (message.overdue or self._closed):
            self._change(message, GIVEN_BACK_S)

    def _change(self, message: PoppedDelivery, delay: float) -> None:
        async def change() -> None:
            try:
                await self._receipts.change_invisible_time(message, max(delay, 0.0))
                self._change_fault = None
            except (RemotingError, MessageError) as error:
                if isinstance(error, ResponseError) and error.code == ResponseCode.NO_MESSAGE:
                    return  # it comes too late: the message is on its way
                if self._change_fault is None:  # one line when it begins
                    log.warning(
                        "time of a message not changed, it comes again after %g s group=%s "
                        "msg_id=%s cause=%s",
                        *(self._settings.invisible_s, self._group, message.msg_id, error),
                    )
                self._change_fault = str(error)

        self._acks.spawn(change(), name=f"change invisible time {message.msg_id}")

    # --- popping
    # ----------------------------------------------------------------------------------------------

    async def _pop_for_ever(self) -> None:
        while not self._stopped:
            # what is popped while nobody takes anything would only come again
            await self._ready.not_paused()
            self._let_go()
            if len(self._held) >= int(self._window):
                await self._wait_for_room()
                continue
            try:
                pause = await self._pop_once()
                self._recovered()
            except ResponseError as error:
                pause = (
                    FLOW_CONTROL_PAUSE_S
                    if error.code == ResponseCode.FLOW_CONTROL
                    else self._failed(error)
                )
            except (RemotingError, ProtocolError) as error:
                pause = self._failed(error)
            if pause and not self._stopped:
                await asyncio.sleep(pause)

    async def _wait_for_room(self) -> None:
        """Until something is settled, or what nobody has taken is no longer ours."""
        self._room = self._loop.create_future()
        idle = [message.deadline for message in self._held if not message.taken]
        timer = self._loop.call_at(min(idle), self._look_again) if idle else None
        try:
            await self._room
        finally:
            self._room = None
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
                self._group,
                self.queue,
                len(late),
            )
            self._take_on_less()
        self._forget(late)

    def _forget(self, late: Sequence[PoppedDelivery]) -> None:
        for message in late:
            del self._held[message]

    def _take_on_less(self) -> None:
        """A message that comes again because it was not done in its time has used up an attempt:
        the handlers cannot keep up."""
        self._window = max(self._window / 2, 1.0)

    async def _pop_once(self) -> float:
        """One pop; how long to wait before the next."""
        asked = self._loop.time()
        self._asking = True
        try:
            found = await pop(
                *(
                    self._instance,
                    self._group,
                    self._subscriptions[self.queue.topic],
                    self.queue,
                    PoppedDelivery,
                ),
                batch=min(self._settings.batch, int(self._window) - len(self._held)),
                invisible_s=self._settings.invisible_s,
                wait_s=WAIT_S,
                init_mode=self._init_mode,
                namespace=self._namespace,
                attempt_id=self._attempt_id,
            )
        finally:
            self._asking = False
        self._answered()
        self._last_pop_ms = self._instance.environment.clock.now_ms()
        if found.wanted or found.unwanted:
            self._take(found)
            self._statistics.pulled(len(found.wanted), self._loop.time() - asked, self._loop.time())
            return 0.0
        if found.full:
            return ERROR_PAUSE_S
        return FLOW_CONTROL_PAUSE_S if self._loop.time() - asked < HASTE_S else 0.0

    def _answered(self) -> None:
        """The last pop has got its answer."""

    def _take(self, found: PopResult[PoppedDelivery]) -> None:
        deadline = self._loop.time() + self._settings.invisible_s
        for message in found.unwanted:
            self._acks.begin(message, message.broker_name, deadline)
        handed: list[PoppedDelivery] = []
        for message in found.wanted:
            message.deliver(self, message.reconsume_times + 1)
            message.invisible_until(deadline, self._loop.time)
            if message.reconsume_times > self._settings.retries_max:
                self._bury(message)  # RocketMQ acknowledges it, and it is gone
                continue
            self._held[message] = None
            handed.append(message)
        if not self._stopped:
            self._ready.put(handed)
            return
        for message in handed:
            self._give_back(message)

    # --- when it does not work
    # ----------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> float:
        if self._fault is None:  # one line when it begins and one when it ends
            log.warning(
                "pop failed, goes on trying group=%s queue=%s cause=%s",
                self._group,
                self.queue,
                error,
            )
        self._fault = str(error)
        return ERROR_PAUSE_S

    def _recovered(self) -> None:
        if self._fault is not None:
            log.info("pop works again group=%s queue=%s", self._group, self.queue)
            self._fault = None
