"""Table of the assigned queues, with the loops that read them. It also commits their offsets.
``Assignment`` is the table of a push consumer; ``prefetching.py`` has that of a lite pull consumer.

One rule: an offset that a broker has is not committed again; one that could not be sent is part of
the next commit. This module must not know how queues are divided, or who handles messages. Source:
apache/rocketmq ``RebalanceImpl.updateProcessQueueTableInRebalance``,
``RebalancePushImpl.removeUnnecessaryMessageQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from turbopump.client.consumer.delivery_policy import ConsumerContext, PoppedMessages
from turbopump.client.consumer.local_offsets import LocalOffsets
from turbopump.client.consumer.offsets import ConsumeFrom, OffsetStore
from turbopump.client.consumer.pop import init_mode_of
from turbopump.client.consumer.pop_requests import PopRequests
from turbopump.client.consumer.queue_locks import GrantedLock, MemberLocks
from turbopump.client.consumer.queue_loop import AssignedQueue, PopQueue, QueueLoop
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import RemotingError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.consumers import PopProcessQueueInfo, ProcessQueueInfo
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_reset = RepeatedLine(log, logging.INFO, "offset reset queue=%s group=%s from=%s to=%d")
_no_start = RepeatedLine(
    log, logging.WARNING, "starting offset of a queue not known yet queue=%s group=%s cause=%s"
)


@dataclass(frozen=True, slots=True)
class QueueChange:
    """Queues of one topic that a member has gained, and queues that it has lost.

    ``popped`` has those of the gained queues that are popped instead of pulled.
    """

    gained: Sequence[MessageQueue]
    lost: Sequence[MessageQueue]
    popped: frozenset[MessageQueue] = frozenset()


NO_CHANGE: Final = QueueChange((), ())


QueueT = TypeVar("QueueT", bound=QueueLoop)


class QueueTable(ABC, Generic[QueueT]):
    """Table of the queues assigned to this member.

    Each queue has a loop that reads it. ``subscriptions`` has the current subscriptions by topic.
    Offsets are committed to ``offsets`` every ``commit_interval`` seconds and on request.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        offsets: OffsetStore | LocalOffsets,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._queues: dict[MessageQueue, QueueT] = {}
        self._closing = False
        self._committing = WeakValueDictionary[MessageQueue, asyncio.Lock]()

    @property
    def queues(self) -> Collection[MessageQueue]:
        """Queues that are assigned to this member."""
        return self._queues.keys()

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the assigned queues of one topic."""
        return [queue for queue in self._queues if queue.topic == topic]

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo | PopProcessQueueInfo]:
        """Return the state of each assigned queue, for operators."""
        return {queue: one.info() for queue, one in self._queues.items()}

    @abstractmethod
    async def apply(self, change: QueueChange) -> bool:
        """Add gained queues and remove lost ones. Return False if a gained queue cannot be read
        yet."""

    async def release_topic(self, topic: str) -> None:
        """Remove all queues of a topic."""
        await self.apply(QueueChange((), self.of_topic(topic)))

    def stop(self, topic: str | None = None) -> None:
        """Stop reading the queues of ``topic``, or all queues if it is None.

        Delivered messages may still be settled.
        """
        self._closing = self._closing or topic is None
        for queue, one in self._queues.items():
            if topic in (None, queue.topic):
                one.stop()

    def wake_loops(self) -> None:
        """Wake every reading loop that has room for more messages again."""
        for one in self._queues.values():
            one.wake_if_room()

    def _may_start(self, queue: MessageQueue) -> bool:
        return (
            queue not in self._queues and queue.topic in self._subscriptions and not self._closing
        )

    # --- offsets

    def done_offsets(self) -> dict[MessageQueue, int]:
        """For each queue, return the offset before which every message is done."""
        return {
            queue: offset
            for queue, one in self._queues.items()
            if (offset := one.done_offset) is not None
        }

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue reading at new offsets, after an operator has reset the queues.

        Messages that were read before are ignored. A commit that is being sent is followed by one
        of the new offset.
        """
        for queue, offset in offsets.items():
            one = self._queues.get(queue)
            if one is not None:
                _reset(queue, self._group, one.done_offset, offset, kind=(queue, self._group))
                self._move_to(one, offset)
        self._instance.spawn(self.commit(final=True), name="commit after a reset")

    @abstractmethod
    def _move_to(self, one: QueueT, offset: int) -> None: ...

    async def commit_for_ever(self) -> None:
        """Commit all offsets every ``commit_interval`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._instance.commit_interval)
            await self.commit()

    async def commit(self, *, final: bool = False) -> None:
        """Commit the offsets of all queues.

        ``final``: True if no other commit follows soon. An unreachable broker is logged as a
        warning then.
        """
        await asyncio.gather(
            *(self._commit(one, final=final) for one in list(self._queues.values()))
        )
        await self._offsets.flush(acknowledged=final)

    def disconnected(self, address: str) -> None:
        """Record that the broker at ``address`` may have lost the last commits. They are sent
        again.

        The broker may have been killed before it stored these commits.
        """
        address_of = self._instance.routes.address_of
        its = [
            queue
            for queue in self._queues
            if address_of(queue.broker_name, topic=queue.topic) == address
        ]
        for queue in its:
            self._queues[queue].sent_offset = None
        self._offsets.forget(its)

    async def _commit(self, one: QueueT, *, final: bool) -> None:
        try:
            await self._commit_or_raise(one)
        except RemotingError as error:
            # This happens every 5 s while a broker is down, and the pull has logged it already.
            # Only the last failure, at a close, is logged.
            log.log(
                logging.WARNING if final else logging.DEBUG,
                "offset not committed queue=%s offset=%s cause=%s",
                one.queue,
                one.done_offset,
                error,
            )

    async def _commit_or_raise(self, one: QueueT) -> None:
        # One commit at a time. After waiting, the offset is read again, because there may have been
        # a reset meanwhile.
        async with self._committing.setdefault(one.queue, asyncio.Lock()):
            offset = one.to_commit
            if offset is not None and offset != one.sent_offset:
                await self._offsets.commit(one.queue, offset)
                one.sent_offset = offset


class Assignment(QueueTable[AssignedQueue | PopQueue]):
    """Table of the queues assigned to a push consumer.

    The broker decides whether a queue is pulled or popped. Reading starts at the group's offset. A
    queue is released after the offset of its finished messages is committed.

    An ordered queue is locked first, except in broadcasting. Its lock is released when no handler
    has a message of the queue. A popped queue has no client-side offset. Messages of a lost popped
    queue may still be settled.
    """

    def __init__(self, shared: ConsumerContext, offsets: OffsetStore | LocalOffsets) -> None:
        super().__init__(shared.instance, shared.group, shared.subscriptions, offsets)
        self._shared = shared
        self._settings = shared.settings
        self._limits = shared.settings.limits
        self._handing_over: dict[MessageQueue, asyncio.Task[None]] = {}
        self.locks: MemberLocks | None = None
        if self._settings.ordered and shared.backs is not None:
            self.locks = MemberLocks(shared.instance, shared.group, self._lock_lost)
        self._pop_requests: PopRequests | None = None
        if self._settings.asks_brokers and shared.backs is not None:
            self._pop_requests = PopRequests(
                shared.instance,
                shared.group,
                init_mode_of(self._settings.consume_from),
                self._settings.namespace,
                shared.backs,
                self._settings.retries_max,
            )
        self._popped_before: list[PoppedMessages] = []
        """Messages of lost popped queues that may still be with a handler or reader."""

    def popped_of(self, topic: str) -> list[MessageQueue]:
        """Return the assigned queues of a topic that are popped."""
        return [
            queue for queue in self.of_topic(topic) if isinstance(self._queues[queue], PopQueue)
        ]

    async def apply(self, change: QueueChange) -> bool:
        """Add and remove queues after a rebalance. Return False if a gained queue cannot be read
        yet."""
        if self._settings.ordered:
            for queue in change.lost:
                self._hand_over(queue)
        else:
            await asyncio.gather(*(self._lose_queue(queue) for queue in change.lost))
        for topic in {queue.topic for queue in change.lost}:
            self._divide_limits(topic)
        # a queue that is being read keeps its lock
        new = [queue for queue in change.gained if queue not in self._queues]
        for queue in change.popped.intersection(new):
            if self._may_start(queue):
                assert self._pop_requests is not None
                popped = self._queues[queue] = PopQueue(self._shared, queue, self._pop_requests)
                popped.start()
        new = [queue for queue in new if queue not in change.popped]
        return await self._gain_all(new)

    async def close(self, patience: float, *, give_back_taken: bool) -> None:
        """Commit the offsets of all queues, and drop the queues.

        An ordered queue is unlocked when no handler has its messages, which is awaited for
        ``patience`` seconds. Locks of other queues expire after a minute. Finished popped messages
        are acknowledged, and messages that were not started are returned to the broker.

        ``give_back_taken``: True also returns popped messages in handlers to the broker.
        """
        queues = list(self._queues)
        await self.commit(final=True)
        if self._settings.ordered:
            for queue in queues:
                self._hand_over(queue)
            if self._handing_over:
                await asyncio.wait(list(self._handing_over.values()), timeout=patience)
        for queue in queues:
            if queue in self._queues:
                self._drop_queue(queue)
        await self._offsets.flush(acknowledged=True)
        for popped in self._popped_before:
            popped.close(give_back_taken=give_back_taken)
        if self._pop_requests is not None:
            await self._pop_requests.finish(patience)

    # --- adding and removing queues

    async def _gain_all(self, new: Collection[MessageQueue]) -> bool:
        gained = [queue for queue in new if queue not in self._handing_over]
        if self.locks is None:
            begun = await asyncio.gather(*(self._gain_queue(queue, None) for queue in gained))
        else:
            held = await self.locks.acquire(gained)
            begun = await asyncio.gather(
                *(self._gain_queue(queue, held[queue]) for queue in gained if queue in held)
            )
        return sum(begun) == len(new)

    async def _gain_queue(self, queue: MessageQueue, lock: GrantedLock | None) -> bool:
        try:
            start = await self._offsets.starting_offset(queue, self._settings.consume_from)
        except RemotingError as error:
            _no_start(queue, self._group, error, kind=self._group)
            await self._unlock(queue)
            return False
        if queue in self._queues:
            return True
        if queue.topic not in self._subscriptions:  # it was given up meanwhile
            await self._unlock(queue)
            return True
        if self._closing or (lock is not None and not lock.valid):
            await self._unlock(queue)
            return self._closing
        self._start_queue(queue, start.offset, start.offset if start.stored else None, lock)
        return True

    def _start_queue(
        self, queue: MessageQueue, offset: int, known_offset: int | None, lock: GrantedLock | None
    ) -> None:
        assigned = self._queues[queue] = AssignedQueue(
            self._shared, queue, offset, on_moved=self._move_to, lock=lock, limits=self._limits
        )
        assigned.sent_offset = known_offset
        self._divide_limits(queue.topic)
        assigned.start()

    def _divide_limits(self, topic: str) -> None:
        """Divide a topic's limits among its queues again, because the number of queues has
        changed."""
        if not self._limits.has_topic:
            return
        pulled = [
            one
            for queue, one in self._queues.items()
            if queue.topic == topic and isinstance(one, AssignedQueue)
        ]
        for one in pulled:
            one.set_limits(self._limits.divided_by(len(pulled)))

    async def _lose_queue(self, queue: MessageQueue) -> None:
        if queue in self._queues:
            await self._commit(self._drop_queue(queue), final=True)

    def _drop_queue(self, queue: MessageQueue) -> AssignedQueue | PopQueue:
        one = self._queues.pop(queue)
        one.drop()
        if isinstance(one, PopQueue):
            self._popped_before = [other for other in self._popped_before if other.held]
            self._popped_before.append(one.messages)
        return one

    def _hand_over(self, queue: MessageQueue) -> None:
        """Stop delivering messages of an ordered queue. Release the queue when its running handler
        has ended."""
        assigned = self._queues.pop(queue, None)
        if not isinstance(assigned, AssignedQueue):
            return
        # The next owner of an ordered queue must not start while a handler here has a message. Both
        # would handle the same message, or the next owner the following one too early. The next
        # owner waits for the lock at the broker. So the lock is released last: after the handler
        # has ended and its offset is committed. A background task does that, because other queues
        # are gained and lost meanwhile. A lock that the broker has granted to another member
        # (``revoked``) is not released.
        assigned.drop()
        if self.locks is not None:
            self.locks.forget(queue)

        async def hand_over() -> None:
            try:
                await assigned.idle()
                await self._commit(assigned, final=True)
                if assigned.lock is None or not assigned.lock.revoked:
                    await self._unlock(queue)
            finally:
                del self._handing_over[queue]

        self._handing_over[queue] = self._instance.spawn(hand_over(), name=f"hand over {queue}")

    async def _unlock(self, queue: MessageQueue) -> None:
        if self.locks is not None:
            await self.locks.release([queue])

    def _lock_lost(self, queue: MessageQueue) -> None:
        if not self._closing:
            self._hand_over(queue)

    def _move_to(self, assigned: AssignedQueue | PopQueue, offset: int) -> None:
        if isinstance(assigned, PopQueue) or self._queues.get(assigned.queue) is not assigned:
            return
        settings = self._settings
        first = settings.consume_from is ConsumeFrom.FIRST
        if settings.broadcast and first and offset < assigned.process_queue.next_offset:
            # The queue ends before our offset: the topic was created again, and its messages are
            # new. The broker drops a group's offsets with the topic, but our file keeps them.
            # Java's client continues at the end, and skips messages sent meanwhile.
            log.warning("queue was created again, read from its beginning queue=%s", assigned.queue)
            offset = 0
        # An unordered queue starts again at once: messages that are still in handlers belong to the
        # dropped object, whose offsets nobody commits any more. In an ordered queue the next
        # message must wait for the handler that runs. Until then this object stays in the table,
        # with the new offset in ``moves_to``, so that a commit meanwhile sends that one. A second
        # reset only changes ``moves_to``.
        assigned.drop()
        if not settings.ordered:
            self._start_queue(assigned.queue, offset, None, None)
            return

        waits = assigned.moves_to is not None
        assigned.moves_to = offset

        async def go_on() -> None:
            await assigned.idle()
            if self._queues.get(assigned.queue) is assigned and not self._closing:
                assert assigned.moves_to is not None
                self._start_queue(assigned.queue, assigned.moves_to, None, assigned.lock)

        if not waits:
            self._instance.spawn(go_on(), name=f"go on with {assigned.queue}")
