"""One queue that is ours now: pulls it by long polling, hands its messages out, and knows up to
where it is done.

One rule: it never gives up. Whatever a broker or the network does, it waits a moment and pulls
again from the same place, until it is told to stop. It must not know why the queue is ours. Source:
apache/rocketmq ``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from copy import copy
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.ordered import HeldLock, InOrder, OrderedLine, line_of
from turbopump.client.consumer.process_queue import USUAL_LIMITS, ProcessQueue, PullLimits
from turbopump.client.consumer.pull import pulled_messages, tell_of
from turbopump.client.consumer.ready_messages import AnyReady
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.statistics import Consumption
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.errors import (
    CallTimeoutError,
    ConnectError,
    ProtocolError,
    RemotingError,
    ResponseError,
    StoredMessageError,
)
from turbopump.message import properties as names
from turbopump.message.handles import original_topic
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag

log = logging.getLogger(__name__)

PULL_BATCH: Final = 32
SUSPEND_S: Final = 15.0
PULL_TIMEOUT_S: Final = 30.0
ERROR_PAUSE_S: Final = 1.0
FLOW_CONTROL_PAUSE_S: Final = 0.02
HASTE_S: Final = 0.01
"""An empty answer that came faster than this was not held by the broker; the next pull waits a
little."""

RETRY_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a failed message that no broker takes back is delivered again, by its attempt; the
last one stays."""

_UNKNOWN_TO_BROKER: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
)


class AssignedQueue:
    """Pulls ``queue`` from ``offset`` on once started. ``on_moved`` is called with the offset to go
    on at when the broker says that ours is outside of what it has; this object is dropped then.
    ``subscriptions`` by topic, as they are at any time. ``namespace``: users get messages with
    topics without it.

    ``backs`` None: it is broadcast; what failed does not come again, and the broker is told no
    offsets. ``order``: one message at a time, the next when it is done. ``lock``: nothing is handed
    out while it is not valid. ``consumption`` is told of pulls and of what ends.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        ready: AnyReady,
        backs: SendBack | None,
        queue: MessageQueue,
        offset: int,
        *,
        on_moved: Callable[[AssignedQueue, int], None],
        namespace: str | None = None,
        order: InOrder | None = None,
        lock: HeldLock | None = None,
        consumption: Consumption,
        limits: PullLimits = USUAL_LIMITS,
        batch: int = PULL_BATCH,
    ) -> None:
        self.queue = queue
        self.lock = lock
        self.sent_offset: int | None = None
        """The offset that the broker was last told, if it may still know it."""
        self.moves_to: int | None = None
        """In order and dropped: where the queue goes on when nobody has a message of it in hand any
        more."""
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._ready = ready
        self._backs = backs
        self._process_queue = ProcessQueue(queue, offset, limits)
        self._batch = batch
        self._pulled_at = self._done_at = 0.0
        self._on_moved = on_moved
        self._consumption = consumption
        self._statistics = consumption.of(queue.topic)
        self._namespace = namespace
        self._order = order
        self._line = line_of(ready, order)
        self._dropped = False
        self._room: asyncio.Future[None] | None = None
        self._broker_id = MASTER_ID
        self._task: asyncio.Task[None] | None = None
        self._again: dict[int, asyncio.Handle] = {}
        self._fault: str | None = None
        self._doubted: int | None = None
        """The offset of a pull whose answer held a damaged message and that is made once more."""

    # --- for the consumer
    # ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to pull."""
        self._task = self._instance.spawn(self._pull_for_ever(), name=f"pull {self.queue}")

    def stop_pulling(self) -> None:
        """Nothing new; what is in flight may still be done."""
        if self._task is not None:
            self._task.cancel()

    def drop(self) -> None:
        """The queue is no longer ours: nothing more of it is handed out."""
        self._dropped = True
        self.stop_pulling()
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
    def commit_offset(self) -> int:
        """Everything below it is done."""
        return self._process_queue.commit_offset if self.moves_to is None else self.moves_to

    @property
    def in_flight(self) -> int:
        """Messages pulled and not done."""
        return self._process_queue.in_flight

    def limit(self, limits: PullLimits) -> None:
        """So much of it may be in hand from now on."""
        self._process_queue.limits = limits
        self._go_on()

    def info(self) -> ProcessQueueInfo:
        """As an operator sees it; times in ms since 1970, 0: never."""
        held = self._process_queue
        first, last = held.span
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
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
    # ----------------------------------------------------------------------------------------------

    def delivery_done(self, message: Delivery) -> None:
        if get_ident() != self._thread:  # said by a plain handler in its own thread
            self._loop.call_soon_threadsafe(self.delivery_done, message)
            return
        self._done_at = self._consumption.ended(message, self._statistics, ok=True)
        # as _settle, in place: once for every message
        self._process_queue.done(message.queue_offset)
        if self._line is not None:
            self._line.done(message)
        if self._room is not None and not self._room.done() and not self._process_queue.full():
            self._room.set_result(None)

    def _settle(self, message: Delivery) -> None:
        self._process_queue.done(message.queue_offset)
        if self._line is not None:
            self._line.done(message)
        self._go_on()

    def _go_on(self) -> None:
        if self._room is not None and not self._room.done() and not self._process_queue.full():
            self._room.set_result(None)

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
        self, message: Delivery, delay: float | None, level: int, order: InOrder, line: OrderedLine
    ) -> None:
        """RocketMQ: ``ConsumeMessageOrderlyService.checkReconsumeTimes``."""
        spent = order.retries_max is not None and message.reconsume_times >= order.retries_max
        if self._dropped:
            line.again(message, 0.0)
        elif self._backs is not None and (spent or level < 0):
            self._backs.begin_plain(
                message, level, lambda taken: self._given_up(message, line, order, taken=taken)
            )
        elif self._backs is None and spent:
            self._settle(message)
        else:
            message.reconsume_times += 1
            line.again(message, order.suspend_s if delay is None else delay)

    def _given_up(
        self, message: Delivery, line: OrderedLine, order: InOrder, *, taken: bool
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
        again = copy(message)  # who had it may still say something, of that delivery
        again.deliver(self, message.attempt + 1)
        self._ready.put([again])

    # --- pulling
    # ----------------------------------------------------------------------------------------------

    async def _pull_for_ever(self) -> None:
        while not self.dropped:
            if self._ready.paused:
                await self._ready.not_paused()
                continue
            if self._process_queue.full():
                await self._wait_for_room()
                continue
            try:
                pause = await self._pull_once()
                self._recovered()
            except ResponseError as error:
                pause = self._refused(error)
            except (RemotingError, ProtocolError) as error:
                self._failed(str(error))
                pause = ERROR_PAUSE_S
            if pause:
                await asyncio.sleep(pause)

    async def _wait_for_room(self) -> None:
        self._room = self._loop.create_future()
        try:
            await self._room
        finally:
            self._room = None

    async def _pull_once(self) -> float:
        """One pull; returns how long to wait before the next."""
        address = self._instance.routes.address_of(
            self.queue.broker_name, self._broker_id, topic=self.queue.topic
        )
        if address is None:
            raise ConnectError(f"no address is known for broker {self.queue.broker_name}")
        await self._instance.introduced(address)
        asked = self._pulled_at = self._loop.time()
        try:
            command = await self._instance.remoting.exchange(
                address, self._request(), timeout=PULL_TIMEOUT_S
            )
        except CallTimeoutError:
            await self._instance.abandon_if_silent(address, asked)
            raise
        code = command.code
        if code == ResponseCode.SUCCESS:
            reply = command.header(PullMessageReply)
            self._broker_id = reply.suggest_which_broker_id
            self._statistics.pulled(
                self._take(command.body, reply), self._loop.time() - asked, self._loop.time()
            )
            return 0.0
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            reply = command.header(PullMessageReply)
            self._broker_id = reply.suggest_which_broker_id
            moved_on = reply.next_begin_offset > self._process_queue.next_offset
            self._process_queue.next_offset = max(
                reply.next_begin_offset, self._process_queue.next_offset
            )
            return 0.0 if moved_on or self._loop.time() - asked > HASTE_S else FLOW_CONTROL_PAUSE_S
        if code == ResponseCode.PULL_OFFSET_MOVED:
            reply = command.header(PullMessageReply)
            log.warning(
                "offset outside of the queue queue=%s asked=%d first=%d end=%d goes_on_at=%d",
                *(
                    self.queue,
                    self._process_queue.next_offset,
                    reply.min_offset,
                    reply.max_offset,
                    reply.next_begin_offset,
                ),
            )
            self._dropped = True
            self._on_moved(self, reply.next_begin_offset)
            return 0.0
        raise ResponseError(code, command.remark, request="PullMessage", address=address)

    def _request(self) -> PullMessage:
        commit_offset = self._process_queue.commit_offset
        subscription = self._subscriptions[self.queue.topic]
        commits = (
            commit_offset > 0
            and self._broker_id == MASTER_ID
            and self._backs is not None
            and not self.dropped
        )
        # A place that the broker may not know goes by itself first, see ``OffsetStore.commit``:
        # pulls come to many threads there.
        commits = commits and self.sent_offset is not None
        return PullMessage(
            consumer_group=self._group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self._process_queue.next_offset,
            max_msg_nums=self._batch,
            sys_flag=int(PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commits else 0)),
            commit_offset=commit_offset,
            suspend_timeout_millis=int(SUSPEND_S * 1000),
            sub_version=subscription.version,
            expression_type=subscription.kind,
        )

    def _take(self, body: bytes, reply: PullMessageReply) -> int:
        """Hand on what came; how many messages."""
        wanted: list[Delivery] = []
        next_offset = self._process_queue.next_offset
        # Judged by the newest: so does the broker, which has held this pull, perhaps, since before
        # it knew of other tags.
        subscription = self._subscriptions[self.queue.topic]
        broker_name, namespace = self.queue.broker_name, self._namespace
        is_retry, filters = self.queue.topic.startswith(RETRY_PREFIX), bool(subscription.tags)
        found, damaged = pulled_messages(
            body, self.queue, next_offset, reply.next_begin_offset, Delivery
        )
        if damaged and self._doubted != next_offset:
            # if it was damaged on its way, it comes whole the next time
            self._doubted = next_offset
            raise StoredMessageError(
                f"the message at offset {damaged[0].queue_offset} came damaged: {damaged[0].fault}"
            )
        tell_of(damaged)
        for delivery in found:
            if delivery.queue_offset < next_offset:
                continue
            next_offset = delivery.queue_offset + 1
            if filters and not subscription.wants(delivery):
                continue
            delivery.broker_name = broker_name
            if is_retry:
                delivery.topic = delivery.properties.get(names.RETRY_TOPIC) or original_topic(
                    delivery.topic, self._group
                )
            if namespace:
                delivery.topic = unwrap(namespace, delivery.topic)
            delivery.deliver(self, delivery.reconsume_times + 1)
            wanted.append(delivery)
        self._process_queue.add(wanted, max(next_offset, reply.next_begin_offset))
        (self._ready if self._line is None else self._line).put(wanted)
        return len(wanted)

    # --- when it does not work
    # ----------------------------------------------------------------------------------------------

    def _refused(self, error: ResponseError) -> float:
        if error.code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S
        if error.code == ResponseCode.SYSTEM_BUSY and "reading cold data" in str(error):
            # an operator has slowed down the readers of a backlog (coldDataFlowControlEnable)
            return ERROR_PAUSE_S
        if error.code in _UNKNOWN_TO_BROKER:
            address = self._instance.routes.address_of(
                self.queue.broker_name, self._broker_id, topic=self.queue.topic
            )
            if address is not None:
                self._instance.forget_introduction(address)
        self._failed(str(error))
        return ERROR_PAUSE_S

    def _failed(self, cause: str) -> None:
        self._broker_id = MASTER_ID
        if self._fault is None:  # one line when it begins and one when it ends
            log.warning(
                "pull failed, goes on trying queue=%s offset=%d cause=%s",
                self.queue,
                self._process_queue.next_offset,
                cause,
            )
        self._fault = cause

    def _recovered(self) -> None:
        if self._fault is not None:
            log.info(
                "pull works again queue=%s offset=%d", self.queue, self._process_queue.next_offset
            )
            self._fault = None
