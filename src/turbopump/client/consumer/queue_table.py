"""Table of the assigned queues, each with the loop that reads it, and commits of their offsets.

One rule: an offset that a broker has is not committed again; one that could not be sent is part of
the next commit. This module must not know how queues are divided, or who gets their messages.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from turbopump.client.consumer.local_offsets import LocalOffsets
from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.queue_loop import QueueLoop
from turbopump.client.consumer.rebalance import QueueChange
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import RemotingError
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.consumers import PopProcessQueueInfo, ProcessQueueInfo
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_reset = RepeatedLine(log, logging.INFO, "offset reset queue=%s group=%s from=%s to=%d")


QueueT = TypeVar("QueueT", bound=QueueLoop)


class QueueTable(ABC, Generic[QueueT]):
    """Assigned queues, each with the loop that reads it. ``subscriptions``: current, by topic.
    Offsets are committed to ``offsets`` every five seconds and on request."""

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
        """Assigned queues."""
        return self._queues.keys()

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the assigned queues of one topic."""
        return [queue for queue in self._queues if queue.topic == topic]

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo | PopProcessQueueInfo]:
        """Return each queue's state for operators."""
        return {queue: one.info() for queue, one in self._queues.items()}

    @abstractmethod
    async def apply(self, change: QueueChange) -> bool:
        """Add and remove queues. Return False if a gained queue cannot be read yet."""

    def stop(self, topic: str | None = None) -> None:
        """Stop reading the queues of ``topic``, or all. Delivered messages may still be settled."""
        self._closing = self._closing or topic is None
        for queue, one in self._queues.items():
            if topic in (None, queue.topic):
                one.stop()

    def look(self) -> None:
        """Let the loops continue if there is room again."""
        for one in self._queues.values():
            one.look()

    def _may_begin(self, queue: MessageQueue) -> bool:
        return (
            queue not in self._queues and queue.topic in self._subscriptions and not self._closing
        )

    # --- offsets

    def done_offsets(self) -> dict[MessageQueue, int]:
        """Return the offset of each queue below which every message is done."""
        return {
            queue: offset
            for queue, one in self._queues.items()
            if (offset := one.done_offset) is not None
        }

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at the given offsets. Messages read before are ignored, and a commit that is
        being sent is followed by one of the new offset."""
        for queue, offset in offsets.items():
            one = self._queues.get(queue)
            if one is not None:
                _reset(queue, self._group, one.done_offset, offset, kind=(queue, self._group))
                self._go_to(one, offset)
        self._instance.spawn(self.commit(final=True), name="commit after a reset")

    @abstractmethod
    def _go_to(self, one: QueueT, offset: int) -> None: ...

    async def commit_for_ever(self) -> None:
        """Commit every ``commit_interval``, until cancelled."""
        while True:
            await asyncio.sleep(self._instance.commit_interval)
            await self.commit()

    async def commit(self, *, final: bool = False) -> None:
        """Commit the offsets of all queues. ``final``: no other commit follows soon, so an
        unreachable broker is logged as a warning."""
        await asyncio.gather(
            *(self._commit(one, final=final) for one in list(self._queues.values()))
        )
        await self._offsets.flush(acknowledged=final)

    def disconnected(self, address: str) -> None:
        """Prepare to commit again to the broker at this address. It may have been killed before it
        stored the last commits."""
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
