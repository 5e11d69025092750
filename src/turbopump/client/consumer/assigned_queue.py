"""One queue that is assigned to this member and pulled: the offset of the next pull, and the offset
to commit.

One rule: an unfinished message is never committed. This module must not know why the queue is
assigned, or how a message is handled. Source: apache/rocketmq
``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.delivery_policy import InOrder, Membership, PulledPolicy, Unordered
from turbopump.client.consumer.process_queue import ProcessQueue, PullLimits
from turbopump.client.consumer.pull import PullAnswer, PullStatus
from turbopump.client.consumer.queue_locks import GrantedLock
from turbopump.client.consumer.queue_loop import PullLoop
from turbopump.client.namespace import unwrap
from turbopump.message import properties as names
from turbopump.message.handles import original_topic
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag

SUSPEND_S: Final = 15.0


class AssignedQueue(PullLoop[Delivery]):
    """Pull ``queue`` from ``offset`` on, once started.

    - ``on_moved``: called with the next offset if the broker reports that the offset is outside the
      queue. This object is dropped then.
    - ``lock``: no message is delivered while the lock is invalid.

    In broadcasting, failed messages are not delivered again, and no offset is committed to the
    broker.
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
    ) -> None:
        super().__init__(shared.instance, queue, Delivery)
        self.lock = lock
        self.moves_to: int | None = None
        """Next offset of a dropped ordered queue. It applies once no handler has a message of the
        queue."""
        self.process_queue = ProcessQueue(offset, limits)
        self._shared = shared
        self._on_moved = on_moved
        self._statistics = shared.consumption.of(queue.topic)
        self._policy: PulledPolicy
        if shared.settings.ordered:
            self._policy = InOrder(shared, queue, self.look, self.process_queue, lock)
        else:
            self._policy = Unordered(shared, queue, self.look, self.process_queue)

    # --- for the table of queues

    def drop(self) -> None:
        """Mark the queue as lost. No further message is delivered."""
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
        """Offset to commit. None if another member may have the queue."""
        return self.done_offset if self.lock is None or self.lock.kept else None

    def limit(self, limits: PullLimits) -> None:
        """Change the limits of unfinished messages."""
        self.process_queue.limits = limits
        self.look()

    def info(self) -> ProcessQueueInfo:
        """State of the queue for operators. Times are in ms since 1970; 0 means never."""
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
        """Convert a time of the loop to ms since 1970."""
        if not at:
            return 0
        return self._instance.environment.clock.now_ms() - round((self._loop.time() - at) * 1000)

    # --- pulling

    @property
    def _ended(self) -> bool:
        return self._policy.dropped

    @property
    def _where(self) -> str:
        return f"queue={self.queue} offset={self.process_queue.next_offset}"

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

    def _take(self, answer: PullAnswer[Delivery]) -> None:
        wanted: list[Delivery] = []
        next_offset = self.process_queue.next_offset
        # The newest subscription decides, as at the broker, which may have held this pull since
        # before it knew of other tags.
        subscription = self._shared.subscriptions[self.queue.topic]
        policy, group = self._policy, self._shared.group
        namespace = self._shared.settings.namespace
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
            delivery.deliver(policy, delivery.reconsume_times + 1)
            wanted.append(delivery)
        self.process_queue.add(wanted, max(next_offset, answer.reply.next_begin_offset))
        if answer.status is PullStatus.FOUND:
            policy.put(wanted)
            now = self._loop.time()
            self._statistics.pulled(len(wanted), now - self._pulled_at, now)

    def _moved(self, offset: int) -> None:
        self._policy.dropped = True
        self._on_moved(self, offset)
