"""The queues that a lite pull consumer reads, together: whose turn it is, how much may wait, what
is committed.

One rule: an offset that is committed goes back only after a seek, a reset or a correction by the
broker. It must not know how queues came to be ours. Source: apache/rocketmq
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from turbopump.client.consuming.offset_store import ConsumeFrom, OffsetStore, Start
from turbopump.client.consuming.prefetched_queue import PrefetchedQueue
from turbopump.client.consuming.rebalance import Change
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import RemotingError
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.running import ProcessQueueInfo

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0


class Limits(NamedTuple):
    """How much may be pulled ahead: messages and bytes of one queue, messages of all; ``batch`` in
    one pull.

    RocketMQ: ``pullThresholdForQueue``, ``pullThresholdSizeForQueue``, ``pullThresholdForAll``,
    ``pullBatchSize`` (10 there).
    """

    queue_messages: int
    queue_bytes: int
    messages: int
    batch: int


class Prefetching:
    """``subscriptions`` by topic, as they are when a queue is begun. ``auto_commit``: what was
    polled is done at the next poll, and is committed every five seconds and when its queue is lost;
    else what ``tell`` was asked to, until the brokers have it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        consume_from: ConsumeFrom | datetime,
        offsets: OffsetStore,
        limits: Limits,
        *,
        auto_commit: bool,
        namespace: str | None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._consume_from = consume_from
        self._offsets = offsets
        self._limits = limits
        self._auto_commit = auto_commit
        self._namespace = namespace
        self._queues: dict[MessageQueue, PrefetchedQueue] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    @property
    def queues(self) -> Collection[MessageQueue]:
        return self._queues.keys()

    def of_topic(self, topic: str) -> Collection[MessageQueue]:
        """Our queues of one topic."""
        return [queue for queue in self._queues if queue.topic == topic]

    def find(self, queue: MessageQueue) -> PrefetchedQueue | None:
        return self._queues.get(queue)

    async def apply(self, change: Change) -> bool:
        """Make a change real. What is lost is committed first, so that the next to read it begins
        behind what is done. What is lost and gained is begun anew, and stays paused if it was."""
        lost = [self._queues.pop(queue) for queue in change.lost if queue in self._queues]
        for prefetched in lost:
            prefetched.stop()
        await asyncio.gather(*(self._commit(prefetched, final=True) for prefetched in lost))
        paused = {prefetched.queue for prefetched in lost if prefetched.paused}
        for queue in change.gained:
            if (
                queue not in self._queues
                and queue.topic in self._subscriptions
                and not self._closed
            ):
                self._begin(queue)
            if queue in paused and queue in self._queues:
                self._queues[queue].paused = True
        self._look()
        return True

    def close(self) -> None:
        """Pull no more; whoever waits for messages gets none."""
        self._closed = True
        for prefetched in self._queues.values():
            prefetched.stop()
        self._arrived.set()

    # --- messages
    # ----------------------------------------------------------------------------------------------

    async def poll(self, count: int, timeout: float) -> list[ReceivedMessage]:
        """What is there, queue by queue, when there is something; nothing after ``timeout``
        seconds."""
        if self._auto_commit:
            for prefetched in self._queues.values():
                prefetched.settle()
        try:
            async with asyncio.timeout(timeout):
                while not self._closed:
                    messages = self._take(count)
                    if messages:
                        return messages
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        return []

    def wake(self) -> None:
        """There may be something to take: a queue was resumed."""
        self._arrived.set()
        self._look()

    def _take(self, count: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for queue, prefetched in list(self._queues.items()):
            if prefetched.waiting and not prefetched.paused:
                messages += prefetched.take(count - len(messages))
                # to the end of the line: the others come first the next time
                del self._queues[queue]
                self._queues[queue] = prefetched
                if len(messages) == count:
                    break
        if messages:
            self._look()
        return messages

    def _has_room(self, prefetched: PrefetchedQueue) -> bool:
        return (
            prefetched.waiting < self._limits.queue_messages
            and prefetched.bytes < self._limits.queue_bytes
            and sum(other.waiting for other in self._queues.values()) < self._limits.messages
        )

    def _look(self) -> None:
        for prefetched in self._queues.values():
            prefetched.look()

    def _begin(self, queue: MessageQueue) -> None:
        prefetched = self._queues[queue] = PrefetchedQueue(
            *(self._instance, self._group, self._subscriptions[queue.topic], queue),
            batch=self._limits.batch,
            namespace=self._namespace,
            find_start=self._find_start,
            room=self._has_room,
            on_arrival=self._arrived.set,
        )
        prefetched.start()

    async def _find_start(self, queue: MessageQueue) -> Start:
        return await self._offsets.starting_offset(queue, self._consume_from)

    # --- for operators
    # ----------------------------------------------------------------------------------------------

    def places(self) -> dict[MessageQueue, int]:
        """Up to where each queue is done."""
        return {
            queue: one.done_offset
            for queue, one in self._queues.items()
            if one.done_offset is not None
        }

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Each queue as an operator sees it."""
        return {
            queue: ProcessQueueInfo(
                commit_offset=one.done_offset or 0, cached_msg_count=one.waiting
            )
            for queue, one in self._queues.items()
        }

    def reset(self, places: Mapping[MessageQueue, int]) -> None:
        """Go on there, and tell the brokers: a commit that is on its way is followed by one of the
        new place."""
        for queue, offset in places.items():
            prefetched = self._queues.get(queue)
            if prefetched is not None:
                log.info(
                    "offset reset queue=%s group=%s from=%s to=%d",
                    queue,
                    self._group,
                    prefetched.done_offset,
                    offset,
                )
                prefetched.seek(offset)
                prefetched.sent_offset, prefetched.owed_offset = None, offset
        self._instance.spawn(self.commit(final=True), name="commit after a reset")

    # --- committing
    # ----------------------------------------------------------------------------------------------

    async def commit_for_ever(self) -> None:
        """Every five seconds what is to be told."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self, *, final: bool = False) -> None:
        """Tell what is to be told. A broker that cannot be is told with the next commit; if there
        is none (``final``) it is a warning."""
        await asyncio.gather(
            *(self._commit(one, final=final) for one in list(self._queues.values()))
        )

    async def tell(self, queues: Collection[PrefetchedQueue], *, acknowledged: bool) -> None:
        """Tell what is done of these. ``acknowledged``: return when the brokers have it; raises
        RemotingError."""
        for one in queues:
            one.owed_offset = one.done_offset
        if acknowledged:
            await asyncio.gather(*map(self._tell, queues))
        else:
            for one in queues:
                self._instance.spawn(self._commit(one, final=True), name=f"commit {one.queue}")

    def told_nothing(self, address: str) -> None:
        """The broker there may have forgotten what it was told: tell it again."""
        address_of = self._instance.routes.address_of
        told = [
            queue
            for queue in self._queues
            if address_of(queue.broker_name, topic=queue.topic) == address
        ]
        for queue in told:
            self._queues[queue].sent_offset = None
        self._offsets.told_nothing(told)

    async def _commit(self, prefetched: PrefetchedQueue, *, final: bool) -> None:
        try:
            await self._tell(prefetched)
        except RemotingError as error:
            level = logging.WARNING if final else logging.DEBUG
            log.log(
                level,
                "offset not committed queue=%s offset=%s cause=%s",
                prefetched.queue,
                prefetched.done_offset,
                error,
            )

    async def _tell(self, prefetched: PrefetchedQueue) -> None:
        offset = prefetched.done_offset if self._auto_commit else prefetched.owed_offset
        if offset is None or offset == prefetched.sent_offset:
            return
        await self._offsets.commit(prefetched.queue, offset)
        prefetched.sent_offset = offset
