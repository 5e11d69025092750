"""Loops that read one queue each, by pulling or popping.

One rule: the loop never gives up. After any failure of a broker or the network it pauses and reads
again from the same offset, until ``stop``. This module must not know why the queue is assigned, or
how a message is handled. Source: apache/rocketmq ``DefaultMQPushConsumerImpl.pullMessage``,
``popMessage``, ``DefaultLitePullConsumerImpl.PullTaskImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

from turbopump import errors
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.delivery_policy import (
    ConsumerContext,
    InOrder,
    PoppedMessages,
    PulledPolicy,
    Unordered,
)
from turbopump.client.consumer.pop import WAIT_S, PoppedDelivery
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.process_queue import ProcessQueue, PullLimits
from turbopump.client.consumer.pull import PullAnswer, PullStatus, log_damaged, pull
from turbopump.client.consumer.queue_locks import GrantedLock
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.log_keys import LogKeys
from turbopump.message import properties as names
from turbopump.message.handles import original_topic
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import PopProcessQueueInfo, ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_fails = RepeatedLine(log, logging.WARNING, "%s failed, is repeated %s cause=%s")
_works_again = RepeatedLine(log, logging.INFO, "%s works again %s")
_moved_offset = RepeatedLine(
    log, logging.WARNING, "offset outside of the queue queue=%s asked=%d first=%d end=%d next=%d"
)

PULL_TIMEOUT_S: Final = 30.0
"""Timeout of a pull in seconds, including the time for which the broker may wait for messages."""
ERROR_PAUSE_S: Final = 1.0
FLOW_CONTROL_PAUSE_S: Final = 0.02
HASTE_S: Final = 0.01
"""Seconds below which an empty answer shows that the broker has not waited for messages. The loop
then pauses before the next request."""

_UNKNOWN_TO_BROKER: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
)


class QueueLoop(ABC):
    """Loop that reads one queue in its own task, from ``start`` to ``stop``."""

    verb: ClassVar[str]
    """Kind of reading ("pull" or "pop"), for the log."""

    def __init__(self, instance: ClientInstance, queue: MessageQueue) -> None:
        self.queue = queue
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Future that is done when there is room; None if the loop is not waiting for room."""
        self._fails = False
        self.sent_offset: int | None = None
        """Last committed offset, if the broker may still have it."""

    @property
    def done_offset(self) -> int | None:
        """Offset before which every message is done. None if it is unknown, or if the queue needs
        no commits."""
        return None

    @property
    def to_commit(self) -> int | None:
        """Offset to commit, or None if no commit is needed."""
        return None

    @abstractmethod
    def info(self) -> ProcessQueueInfo | PopProcessQueueInfo:
        """Return the state of the queue, for operators."""

    def start(self) -> None:
        """Start to read the queue."""
        self._task = self._instance.spawn(self._read_for_ever(), name=f"{self.verb} {self.queue}")

    def stop(self) -> None:
        """Stop reading the queue. Delivered messages may still be settled."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def wake_if_room(self) -> None:
        """Continue reading the queue if there is room for more messages again."""
        if self._room is not None and not self._room.done() and self._has_room():
            self._room.set_result(None)

    async def _read_for_ever(self) -> None:
        # A queue has one request in flight at a time. A pull starts at the offset in the previous
        # answer, so two at once would fetch the same messages. The broker holds a request while
        # there is no message, so this loop reacts at once without polling: it waits in ``_read``.
        #
        # Room is checked before each request, not after it. All messages of an answer are accepted,
        # so a queue may exceed its limits by one answer, never by more. ``wake_if_room`` wakes the
        # loop when messages are done, also when a shared limit has room again.
        #
        # No failure of a broker or the network ends the loop. It pauses and continues, because the
        # queue is assigned until ``stop``. Only the first of several failures and their end are
        # logged.
        while not self._ended:
            if not self._has_room():
                await self._wait_for_room()
                continue
            try:
                pause = await self._read()
                if self._fails:
                    _works_again(self.verb, self._where, kind=self.queue)
                    self._fails = False
            except errors.ResponseError as error:
                pause = self._refused(error)
            except (errors.RemotingError, errors.ProtocolError, errors.RouteNotFoundError) as error:
                pause = self._failed(error)
            if pause and not self._ended:
                await asyncio.sleep(pause)

    async def _wait_for_room(self) -> None:
        room = self._room = self._loop.create_future()
        try:
            await room
        finally:
            if self._room is room:
                self._room = None

    def _refused(self, error: errors.ResponseError) -> float:
        """Log a refusal by the broker, and return the seconds to pause before the next request."""
        if error.code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S
        return self._failed(error)

    def _failed(self, error: Exception) -> float:
        """Log a failed request, and return the seconds to pause before the next request."""
        if not self._fails:  # one line when it begins and one when it ends
            _fails(self.verb, self._where, error, kind=self.queue)
        self._fails = True
        self._instance.routes.renew_after_failure(self.queue.topic, error)
        return ERROR_PAUSE_S

    @property
    def _ended(self) -> bool:
        """True once the loop must not read the queue any more."""
        return False

    @property
    @abstractmethod
    def _where(self) -> LogKeys:
        """Keys that identify the queue in a log line."""

    @abstractmethod
    def _has_room(self) -> bool:
        """Return True if there is room to read more messages of the queue now."""

    @abstractmethod
    async def _read(self) -> float:
        """Read one batch of messages, and return the seconds to pause before the next request."""


MessageT = TypeVar("MessageT", bound=ReceivedMessage)


class PullLoop(QueueLoop, Generic[MessageT]):
    """Loop that pulls the messages of one queue by long polling.

    Each pull goes to the member of the broker that the last answer suggested.
    """

    verb = "pull"

    def __init__(
        self, instance: ClientInstance, queue: MessageQueue, message_type: type[MessageT]
    ) -> None:
        super().__init__(instance, queue)
        self._message_type = message_type
        self._broker_id = MASTER_ID
        self._address = ""
        """Address of the broker that was asked last."""
        self._pulled_at = 0.0
        self._doubted: int | None = None
        """Offset of a pull that is repeated because its answer had a damaged message."""

    @abstractmethod
    def _request(self) -> PullMessage: ...

    @abstractmethod
    def _accept_answer(self, answer: PullAnswer[MessageT]) -> None:
        """Deliver the messages of an answer, and set the offset of the next pull."""

    @abstractmethod
    def _continue_at(self, offset: int) -> None:
        """Continue at ``offset``. The previous offset was outside the queue, or was reset.

        The broker has chosen the new offset. RocketMQ: code 21, ``OFFSET_ILLEGAL``.
        """

    async def _introduced(self) -> str:
        """Introduce this client to the broker to pull from, and return the broker's address.

        A heartbeat is sent if the broker has got none from this client yet. Raises RemotingError.
        """
        self._address = self._instance.routes.require_address(
            self.queue.broker_name, self._broker_id, topic=self.queue.topic
        )
        await self._instance.introduced(self._address)
        return self._address

    async def _read(self) -> float:
        address = await self._introduced()
        request = self._request()
        asked = self._pulled_at = self._loop.time()
        try:
            answer = await pull(
                self._instance, address, request, self.queue, self._message_type, PULL_TIMEOUT_S
            )
        except errors.CallTimeoutError:
            # The broker answers a held pull long before this timeout. A connection on which nothing
            # came since is most likely dead, and every queue of that broker waits on it.
            await self._instance.abandon_if_silent(address, asked)
            raise
        offset = request.queue_offset
        reply = answer.reply
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            _moved_offset(
                self.queue,
                offset,
                reply.min_offset,
                reply.max_offset,
                reply.next_begin_offset,
                kind=self.queue,
            )
            self._continue_at(reply.next_begin_offset)
            return 0.0
        self._broker_id = reply.suggest_which_broker_id
        if answer.damaged and self._doubted != offset:
            # if it was damaged in transit, the next pull gets it undamaged
            self._doubted = offset
            damaged = answer.damaged[0]
            raise errors.StoredMessageError(
                f"the message at offset {damaged.queue_offset} came damaged: {damaged.fault}"
            )
        log_damaged(answer.damaged)
        self._accept_answer(answer)
        if reply.next_begin_offset == offset and self._loop.time() - asked <= HASTE_S:
            return FLOW_CONTROL_PAUSE_S  # the broker did not hold the request
        return 0.0

    def _refused(self, error: errors.ResponseError) -> float:
        if error.code == ResponseCode.SYSTEM_BUSY and "reading cold data" in str(error):
            # an operator has slowed down the readers of a backlog (coldDataFlowControlEnable)
            return ERROR_PAUSE_S
        if error.code in _UNKNOWN_TO_BROKER:
            self._instance.forget_introduction(self._address)
        return super()._refused(error)

    def _failed(self, error: Exception) -> float:
        self._broker_id = MASTER_ID
        return super()._failed(error)


SUSPEND_S: Final = 15.0
"""Seconds for which a broker may wait for messages before it answers a pull."""


class AssignedQueue(PullLoop[Delivery]):
    """Loop that pulls messages of one queue of a push consumer, and delivers them.

    The first pull reads from ``offset`` on.

    - ``on_moved``: called with the next offset if the broker reports that the offset is outside the
      queue. This object is dropped then.
    - ``lock``: no message is delivered while this lock is invalid. None if no lock is needed.
    - ``limits``: limits of unfinished messages, beyond which pulling waits.

    In broadcasting, failed messages are not delivered again, and no offset is committed to the
    broker.
    """

    def __init__(
        self,
        shared: ConsumerContext,
        queue: MessageQueue,
        offset: int,
        *,
        on_moved: Callable[[AssignedQueue, int], None],
        lock: GrantedLock | None,
        limits: PullLimits,
    ) -> None:
        super().__init__(shared.instance, queue, Delivery)
        self.lock = lock
        self.moves_to: int | None = None
        """Next offset of a dropped ordered queue. It applies once no handler has a message of the
        queue."""
        self.process_queue = ProcessQueue(offset, limits)
        self._shared = shared
        self._on_moved = on_moved
        self._statistics = shared.consumption.statistics_of(queue.topic)
        self._policy: PulledPolicy
        if shared.settings.ordered:
            self._policy = InOrder(shared, queue, self.wake_if_room, self.process_queue, lock)
        else:
            self._policy = Unordered(shared, queue, self.wake_if_room, self.process_queue)

    # --- for the table of queues

    def drop(self) -> None:
        """Stop reading a queue that this member has lost. No further message is delivered."""
        self.stop()
        self._policy.drop()

    async def idle(self) -> None:
        """Wait until no handler has a message of a dropped ordered queue."""
        await self._policy.wait_for_handlers()

    @property
    def done_offset(self) -> int:
        return self.process_queue.commit_offset if self.moves_to is None else self.moves_to

    @property
    def to_commit(self) -> int | None:
        """Offset to commit, or None if another member may have the queue."""
        return self.done_offset if self.lock is None or self.lock.kept else None

    def set_limits(self, limits: PullLimits) -> None:
        """Change the limits of unfinished messages."""
        self.process_queue.limits = limits
        self.wake_if_room()

    def info(self) -> ProcessQueueInfo:
        """Return the state of the queue, for operators.

        Times are in ms since 1970. 0 means never.
        """
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
            droped=self._policy.dropped,
            last_pull_timestamp=self._as_ms(self._pulled_at),
            last_consume_timestamp=self._as_ms(self._policy.done_at),
        )

    def _as_ms(self, at: float) -> int:
        """Convert an event loop time to ms since 1970. 0 stays 0."""
        if not at:
            return 0
        return self._instance.environment.clock.now_ms() - round((self._loop.time() - at) * 1000)

    # --- pulling

    @property
    def _ended(self) -> bool:
        return self._policy.dropped

    @property
    def _where(self) -> LogKeys:
        return LogKeys(queue=self.queue, offset=self.process_queue.next_offset)

    def _has_room(self) -> bool:
        return not self._shared.ready.paused and not self.process_queue.full()

    def _request(self) -> PullMessage:
        commit_offset = self.process_queue.commit_offset
        subscription = self._shared.subscriptions[self.queue.topic]
        # An offset that the broker may not know is committed separately first, see
        # ``OffsetStore.commit``: the broker handles pulls in many threads.
        commits = (
            commit_offset > 0
            and self._broker_id == MASTER_ID
            and self._shared.backs is not None
            and not self._policy.dropped
            and self.sent_offset is not None
        )
        return PullMessage(
            consumer_group=self._shared.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.process_queue.next_offset,
            max_msg_nums=self._shared.settings.pull_batch,
            sys_flag=int(PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commits else 0)),
            commit_offset=commit_offset,
            suspend_timeout_millis=int(SUSPEND_S * 1000),
            sub_version=subscription.version,
            expression_type=subscription.kind,
        )

    def _accept_answer(self, answer: PullAnswer[Delivery]) -> None:
        wanted: list[Delivery] = []
        next_offset = self.process_queue.next_offset
        # The newest subscription decides, as at the broker, which may have held this pull since
        # before it knew of other tags.
        subscription = self._shared.subscriptions[self.queue.topic]
        policy = self._policy
        group = self._shared.group
        namespace = self._shared.settings.namespace
        broker_name = self.queue.broker_name
        is_retry = self.queue.topic.startswith(RETRY_PREFIX)
        filters = bool(subscription.tags)
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
            delivery.deliver(policy, delivery.reconsume_times + 1)
            wanted.append(delivery)
        self.process_queue.add(wanted, max(next_offset, answer.reply.next_begin_offset))
        if answer.status is PullStatus.FOUND:
            policy.add_messages(wanted)
            now = self._loop.time()
            self._statistics.pulled(len(wanted), now - self._pulled_at, now)

    def _continue_at(self, offset: int) -> None:
        self._policy.dropped = True
        self._on_moved(self, offset)


class PopQueue(QueueLoop):
    """Loop that pops messages of one queue, and delivers them.

    Usually ``queue`` stands for all queues of a topic on one broker (queue id −1).
    """

    verb = "pop"

    def __init__(
        self, shared: ConsumerContext, queue: MessageQueue, pop_requests: PopRequests
    ) -> None:
        super().__init__(shared.instance, queue)
        self._shared = shared
        self._settings = shared.settings
        self._statistics = shared.consumption.statistics_of(queue.topic)
        self._requests = pop_requests
        self.messages = PoppedMessages(shared, queue, self.wake_if_room, pop_requests)
        self._asking = False
        self._stopped = False
        self._last_pop_ms = 0

    # --- for the table of queues

    def stop(self) -> None:
        """Stop popping. Messages of a running pop are returned to the broker.

        Delivered messages may still be settled.
        """
        self._stopped = True
        if not self._asking:
            super().stop()

    def drop(self) -> None:
        """Stop popping and delivering. Messages without a handler or reader go back to the broker.

        Messages that a handler or reader has may still be settled.
        """
        self.stop()
        self.messages.drop()

    def info(self) -> PopProcessQueueInfo:
        return PopProcessQueueInfo(
            wait_ack_count=len(self.messages.held),
            droped=self.messages.dropped,
            last_pop_timestamp=self._last_pop_ms,
        )

    # --- popping

    @property
    def _ended(self) -> bool:
        return self._stopped

    @property
    def _where(self) -> LogKeys:
        return LogKeys(group=self._shared.group, queue=self.queue)

    def _has_room(self) -> bool:
        # messages popped while delivery is paused would only be delivered again
        return not self._shared.ready.paused and self.messages.places_left > 0

    async def _wait_for_room(self) -> None:
        """Wait until a message is settled, or a waiting message becomes visible to other
        members."""
        if self._shared.ready.paused:
            await super()._wait_for_room()
            return
        self.messages.drop_overdue()
        if self._has_room():
            return
        try:
            async with asyncio.timeout_at(self.messages.next_overdue_at):
                await super()._wait_for_room()
        except TimeoutError:
            pass

    async def _read(self) -> float:
        self.messages.drop_overdue()
        asked = self._loop.time()
        self._asking = True
        try:
            found = await self._requests.pop(
                self._shared.subscriptions[self.queue.topic],
                self.queue,
                PoppedDelivery,
                batch=min(self._settings.pop_batch, self.messages.places_left),
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
            self.messages.add_messages(found.messages, deadline, stopped=self._stopped)
            self._statistics.pulled(len(found.messages), now - asked, now)
            return 0.0
        if found.full:
            return ERROR_PAUSE_S
        return FLOW_CONTROL_PAUSE_S if now - asked < HASTE_S else 0.0
