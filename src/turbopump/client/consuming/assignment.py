"""The queues that are ours at the moment: getting and losing them, and committing what is done of
each.

One rule: a queue is begun where the group stands, and left when what is done is committed; in
order, it is begun under a lock, and the lock is given back when nobody handles a message of it any
more. It must not know how queues are divided, or who handles messages. Source: apache/rocketmq
``RebalanceImpl.updateProcessQueueTableInRebalance``,
``RebalancePushImpl.removeUnnecessaryMessageQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from turbopump.client.consuming.assigned_queue import PULL_BATCH, AssignedQueue
from turbopump.client.consuming.consumption import Consumption
from turbopump.client.consuming.local_offsets import LocalOffsets
from turbopump.client.consuming.offset_store import ConsumeFrom, OffsetStore
from turbopump.client.consuming.ordered_line import InOrder
from turbopump.client.consuming.process_queue import USUAL_LIMITS, PullLimits
from turbopump.client.consuming.queue_locks import HeldLock, QueueLocks
from turbopump.client.consuming.ready_messages import AnyReady
from turbopump.client.consuming.rebalance import Change
from turbopump.client.consuming.send_back import SendBack
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import RemotingError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.running import ProcessQueueInfo

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0


class Assignment:
    """``subscriptions`` by topic, as they are at any time. ``backs`` None: it is broadcast.
    ``order`` None: not in order; in order, queues are locked unless it is broadcast. ``namespace``:
    users get messages with topics without it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        consume_from: ConsumeFrom | datetime,
        ready: AnyReady,
        offsets: OffsetStore | LocalOffsets,
        backs: SendBack | None,
        *,
        order: InOrder | None,
        namespace: str | None,
        consumption: Consumption,
        limits: PullLimits = USUAL_LIMITS,
        batch: int = PULL_BATCH,
    ) -> None:
        self._consumption = consumption
        self._limits = limits
        self._batch = batch
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._consume_from = consume_from
        self._ready = ready
        self._offsets = offsets
        self._backs = backs
        self._order = order
        self._namespace = namespace
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._handing_over: dict[MessageQueue, asyncio.Task[None]] = {}
        self._closing = False
        self.locks: QueueLocks | None = None
        if order is not None and backs is not None:
            self.locks = QueueLocks(instance, group, self._lock_lost)

    @property
    def queues(self) -> Collection[MessageQueue]:
        """Our queues."""
        return self._assigned.keys()

    def of_topic(self, topic: str) -> Collection[MessageQueue]:
        """Our queues of one topic."""
        return [queue for queue in self._assigned if queue.topic == topic]

    async def apply(self, change: Change) -> bool:
        """Make a rebalance real; False if a gained queue could not be begun yet."""
        if self._order is not None:
            for queue in change.lost:
                self._hand_over(queue)
        else:
            await asyncio.gather(*(self._lose(queue) for queue in change.lost))
        for topic in {queue.topic for queue in change.lost}:
            self._share(topic)
        # one that is begun keeps the lock it has
        new = [queue for queue in change.gained if queue not in self._assigned]
        gained = [queue for queue in new if queue not in self._handing_over]
        if self.locks is None:
            begun = await asyncio.gather(*(self._gain(queue, None) for queue in gained))
        else:
            held = await self.locks.acquire(gained) if gained else {}
            begun = await asyncio.gather(
                *(self._gain(queue, held[queue]) for queue in gained if queue in held)
            )
        return sum(begun) == len(new)

    def stop_pulling(self, topic: str | None = None) -> None:
        """Nothing new comes, of ``topic`` or at all; what is in flight may still be done."""
        self._closing = self._closing or topic is None
        for queue, assigned in self._assigned.items():
            if topic in (None, queue.topic):
                assigned.stop_pulling()

    async def close(self, patience: float) -> None:
        """Commit, and drop every queue. In order, each whose messages nobody handles any more, for
        which ``patience`` seconds are waited, is free for others then; the rest after a minute."""
        queues = list(self._assigned)
        await self.commit(final=True)
        if self._order is not None:
            for queue in queues:
                self._hand_over(queue)
            if self._handing_over:
                await asyncio.wait(list(self._handing_over.values()), timeout=patience)
        else:
            for queue in queues:
                self._assigned.pop(queue).drop()
        await self._offsets.flush(acknowledged=True)

    # --- getting and losing
    # ----------------------------------------------------------------------------------------------

    async def _gain(self, queue: MessageQueue, lock: HeldLock | None) -> bool:
        try:
            start = await self._offsets.starting_offset(queue, self._consume_from)
        except RemotingError as error:
            log.warning("queue not begun yet queue=%s group=%s cause=%s", queue, self._group, error)
            await self._free(queue)
            return False
        if queue in self._assigned:
            return True
        if queue.topic not in self._subscriptions:  # it was given up meanwhile
            await self._free(queue)
            return True
        if self._closing or (lock is not None and not lock.valid):
            await self._free(queue)
            return self._closing
        self._begin(queue, start.offset, start.offset if start.stored else None, lock)
        return True

    def _begin(
        self, queue: MessageQueue, offset: int, known_offset: int | None, lock: HeldLock | None
    ) -> None:
        assigned = AssignedQueue(
            *(
                self._instance,
                self._group,
                self._subscriptions,
                self._ready,
                self._backs,
                queue,
                offset,
            ),
            on_moved=self._moved,
            namespace=self._namespace,
            order=self._order,
            lock=lock,
            consumption=self._consumption,
            limits=self._limits,
            batch=self._batch,
        )
        assigned.sent_offset = known_offset
        self._assigned[queue] = assigned
        self._share(queue.topic)
        assigned.start()

    def _share(self, topic: str) -> None:
        """Our queues of ``topic`` are more or fewer now."""
        if not self._limits.has_topic:
            return
        ours = self.of_topic(topic)
        for queue in ours:
            self._assigned[queue].limit(self._limits.shared(len(ours)))

    async def _lose(self, queue: MessageQueue) -> None:
        assigned = self._assigned.pop(queue, None)
        if assigned is not None:
            assigned.drop()
            await self._commit(assigned, final=True)

    def _hand_over(self, queue: MessageQueue) -> None:
        """In order: no further message; the queue is free when who has one is done with it."""
        assigned = self._assigned.pop(queue, None)
        if assigned is None:
            return
        assigned.drop()
        if self.locks is not None:
            self.locks.forget(queue)

        async def hand_over() -> None:
            try:
                await assigned.idle()
                await self._commit(assigned, final=True)
                if assigned.lock is None or not assigned.lock.revoked:
                    await self._free(queue)
            finally:
                del self._handing_over[queue]

        self._handing_over[queue] = self._instance.spawn(hand_over(), name=f"hand over {queue}")

    async def _free(self, queue: MessageQueue) -> None:
        if self.locks is not None:
            await self.locks.release([queue])

    def _lock_lost(self, queue: MessageQueue) -> None:
        if not self._closing:
            self._hand_over(queue)

    def _moved(self, assigned: AssignedQueue, offset: int) -> None:
        """The broker has other offsets than we thought: go on where it says. RocketMQ: code 21,
        ``OFFSET_ILLEGAL``."""
        if self._assigned.get(assigned.queue) is not assigned:
            return
        assigned.drop()
        if self._order is None:
            self._begin(assigned.queue, offset, None, None)
            return

        waits = assigned.moves_to is not None
        assigned.moves_to = offset

        async def go_on() -> None:
            await assigned.idle()
            if self._assigned.get(assigned.queue) is assigned and not self._closing:
                assert assigned.moves_to is not None
                self._begin(assigned.queue, assigned.moves_to, None, assigned.lock)

        if not waits:
            self._instance.spawn(go_on(), name=f"go on with {assigned.queue}")

    # --- for operators
    # ----------------------------------------------------------------------------------------------

    def places(self) -> dict[MessageQueue, int]:
        """Up to where each queue is done."""
        return {queue: assigned.commit_offset for queue, assigned in self._assigned.items()}

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Each queue as an operator sees it."""
        return {queue: assigned.info() for queue, assigned in self._assigned.items()}

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        """Go on there: what was pulled before counts no more, and a commit that is on its way is
        followed by one of the new place."""
        for queue, offset in places.items():
            assigned = self._assigned.get(queue)
            if assigned is not None:
                log.info(
                    "offset reset queue=%s group=%s from=%d to=%d",
                    queue,
                    self._group,
                    assigned.commit_offset,
                    offset,
                )
                self._moved(assigned, offset)
        self._instance.spawn(self.commit(final=True), name="commit after a reset")

    # --- committing
    # ----------------------------------------------------------------------------------------------

    async def commit_for_ever(self) -> None:
        """Every five seconds."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self, *, final: bool = False) -> None:
        """Tell what is done. ``final``: nobody will tell it again soon, so a broker that cannot be
        told is worth a warning."""
        await asyncio.gather(
            *(self._commit(queue, final=final) for queue in list(self._assigned.values()))
        )
        await self._offsets.flush(acknowledged=final)

    def told_nothing(self, queues: Iterable[MessageQueue]) -> None:
        """The broker of these queues may have forgotten what it was told: tell it again."""
        told = [queue for queue in queues if queue in self._assigned]
        for queue in told:
            self._assigned[queue].sent_offset = None
        self._offsets.told_nothing(told)

    async def _commit(self, assigned: AssignedQueue, *, final: bool) -> None:
        offset = assigned.commit_offset
        if offset == assigned.sent_offset or (assigned.lock is not None and not assigned.lock.kept):
            return
        try:
            await self._offsets.commit(assigned.queue, offset)
            assigned.sent_offset = offset
        except RemotingError as error:
            # Every 5 s while a broker is away, and the pull has said so already: only the last one,
            # at a close, is news.
            level = logging.WARNING if final else logging.DEBUG
            log.log(
                level,
                "offset not committed queue=%s offset=%d cause=%s",
                assigned.queue,
                offset,
                error,
            )
