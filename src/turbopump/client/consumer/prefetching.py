"""The queues that a lite pull consumer reads, together: whose turn it is, how much may wait, what
is committed.

One rule: an offset that is committed goes back only after a seek, a reset or a correction by the
broker. This module must not know how queues came to be ours. Source: apache/rocketmq
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, MutableMapping
from typing import Final

from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.pull import PullAnswer, pull_request, wanted_messages
from turbopump.client.consumer.queue_loop import PullLoop
from turbopump.client.consumer.queue_table import QueueTable
from turbopump.client.consumer.rebalance import QueueChange
from turbopump.client.consumer.settings import LitePullConsumerSettings
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.pull import PullMessage


class Prefetching(QueueTable["PrefetchedQueue"]):
    """``subscriptions`` as they are when a queue is begun. With ``auto_commit`` what was polled is
    done at the next poll, and is committed every five seconds and when its queue is lost; else what
    ``commit_these`` was asked to, until the brokers have it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        offsets: OffsetStore,
        settings: LitePullConsumerSettings,
    ) -> None:
        super().__init__(instance, group, subscriptions, offsets)
        self._brokers = offsets
        self._settings = settings
        self._arrived = asyncio.Event()

    def find(self, queue: MessageQueue) -> PrefetchedQueue | None:
        return self._queues.get(queue)

    async def apply(self, change: QueueChange) -> bool:
        """Make a change real. A lost queue is committed first, so that its next reader begins
        behind what is done. A queue that is lost and gained is begun anew, and stays paused if it
        was."""
        lost = [self._queues.pop(queue) for queue in change.lost if queue in self._queues]
        for prefetched in lost:
            prefetched.stop()
        await asyncio.gather(*(self._commit(prefetched, final=True) for prefetched in lost))
        paused = {prefetched.queue for prefetched in lost if prefetched.paused}
        for queue in change.gained:
            if self._may_begin(queue):
                self._begin(queue)
            if queue in paused and queue in self._queues:
                self._queues[queue].paused = True
        self.look()
        return True

    def close(self) -> None:
        """Pull no more; pollers that wait get no messages."""
        self.stop()
        self._arrived.set()

    # --- messages

    async def poll(self, count: int, timeout: float) -> list[ReceivedMessage]:
        """Return messages, queue by queue, as soon as there are some; none after ``timeout``
        seconds."""
        if self._settings.auto_commit:
            for prefetched in self._queues.values():
                prefetched.settle()
        try:
            async with asyncio.timeout(timeout):
                while not self._closing:
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
        self.look()

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
            self.look()
        return messages

    def _has_room(self, prefetched: PrefetchedQueue) -> bool:
        settings = self._settings
        return (
            prefetched.waiting < settings.queue_messages_max
            and prefetched.bytes < settings.queue_bytes_max
            and sum(other.waiting for other in self._queues.values()) < settings.messages_max
        )

    def _begin(self, queue: MessageQueue) -> None:
        prefetched = self._queues[queue] = PrefetchedQueue(
            self._instance,
            self._group,
            self._subscriptions[queue.topic],
            queue,
            self._brokers,
            self._settings,
            room=self._has_room,
            on_arrival=self._arrived.set,
        )
        prefetched.start()

    # --- committing

    async def commit_these(
        self, queues: Collection[PrefetchedQueue], *, acknowledged: bool
    ) -> None:
        """Tell what is done of these. ``acknowledged``: return when the brokers have it; raises
        RemotingError."""
        for one in queues:
            one.owed_offset = one.done_offset
        if acknowledged:
            await asyncio.gather(*map(self._commit_or_raise, queues))
        else:
            for one in queues:
                self._instance.spawn(self._commit(one, final=True), name=f"commit {one.queue}")

    def _go_to(self, one: PrefetchedQueue, offset: int) -> None:
        one.seek(offset)
        one.sent_offset, one.owed_offset = None, offset


# --- One queue that a lite pull consumer reads. What a seek has left behind never comes: the pull
# that was under way is given up with it. RocketMQ: ``DefaultLitePullConsumerImpl.PullTaskImpl``.

SUSPEND_S: Final = 20.0
"""``brokerSuspendMaxTimeMillis``."""


class PrefetchedQueue(PullLoop[ReceivedMessage]):
    """Pulls ``queue`` (as brokers know it) once started, from where the group stands. ``room`` says
    whether more may be pulled now; ``look`` makes it be asked again. ``on_arrival`` is called when
    there is something to take."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscription: Subscription,
        queue: MessageQueue,
        offsets: OffsetStore,
        settings: LitePullConsumerSettings,
        *,
        room: Callable[[PrefetchedQueue], bool],
        on_arrival: Callable[[], None],
    ) -> None:
        super().__init__(instance, queue, ReceivedMessage)
        self.paused = False
        self.bytes = 0
        """Size of the messages that wait to be taken, as stored."""
        self._done_offset: int | None = None
        self.owed_offset: int | None = None
        """The offset to commit without ``auto_commit``: one that a commit was asked for, or the
        broker's own answer, which holds only once it is committed."""
        self.next_offset: int | None = None
        """Offset at which the next pull begins."""
        self._group = group
        self._subscription = subscription
        self._offsets = offsets
        self._settings = settings
        self._may_pull = room
        self._on_arrival = on_arrival
        self._ready: deque[ReceivedMessage] = deque()

    # --- for the consumer

    def stop(self) -> None:
        """Pull no more, and let go of what was not taken."""
        super().stop()
        self._ready.clear()
        self.bytes = 0

    @property
    def waiting(self) -> int:
        """Messages that wait to be taken."""
        return len(self._ready)

    @property
    def done_offset(self) -> int | None:
        return self._done_offset

    @done_offset.setter
    def done_offset(self, offset: int | None) -> None:
        self._done_offset = offset

    @property
    def to_commit(self) -> int | None:
        return self.done_offset if self._settings.auto_commit else self.owed_offset

    def info(self) -> ProcessQueueInfo:
        return ProcessQueueInfo(commit_offset=self.done_offset or 0, cached_msg_count=self.waiting)

    @property
    def position(self) -> int | None:
        """The offset of the next message that is handed out; None while the group's offset is not
        known yet."""
        return self._ready[0].queue_offset if self._ready else self.next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """The next messages, ``count`` at most."""
        taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self.bytes -= sum(message.store_size for message in taken)
        return taken

    def settle(self) -> None:
        """Count all messages that were taken as done."""
        if self.position is not None:
            self.done_offset = max(self.position, self.done_offset or 0)

    def seek(self, offset: int) -> None:
        """Go on at ``offset``, wherever that is; what was pulled ahead is dropped."""
        running = self._task is not None
        self.stop()
        self.next_offset = self.done_offset = offset
        if running:
            self.start()

    # --- pulling

    @property
    def _where(self) -> str:
        return f"queue={self.queue} offset={self.next_offset}"

    def _has_room(self) -> bool:
        return not self.paused and self._may_pull(self)

    async def _introduced(self) -> str:
        await self._instance.routes.get(self.queue.topic)  # its user may have named the queue
        return await super()._introduced()

    async def _read(self) -> float:
        if self.next_offset is None:
            await self._introduced()
            start = await self._offsets.starting_offset(self.queue, self._settings.consume_from)
            self.next_offset = self.done_offset = start.offset
            self.sent_offset = start.offset if start.stored else None
            self.owed_offset = start.offset if start.answered and not start.stored else None
        return await super()._read()

    def _request(self) -> PullMessage:
        assert self.next_offset is not None
        return pull_request(
            self._group,
            self._subscription,
            self.queue,
            self.next_offset,
            self._settings.pull_batch,
            SUSPEND_S,
        )

    def _take(self, answer: PullAnswer[ReceivedMessage]) -> None:
        offset = self.next_offset
        assert offset is not None
        found = [
            message
            for message in wanted_messages(
                answer, self._subscription, self.queue.broker_name, self._settings.namespace
            )
            if message.queue_offset >= offset
        ]
        # nothing in the user's hands: what the filter left out is done
        untouched = self.done_offset == self.position
        self.next_offset = max(answer.reply.next_begin_offset, offset)
        if found:
            self._ready.extend(found)
            self.bytes += sum(message.store_size for message in found)
            self._on_arrival()
        elif untouched:
            self.settle()

    def _moved(self, offset: int) -> None:
        self._ready.clear()
        self.bytes = 0
        self.next_offset = self.done_offset = offset
        self.sent_offset = self.owed_offset = None
