"""Prefetching of a lite pull consumer: the order of polls, the limits, and committed offsets.

One rule: a committed offset goes back only after a seek, a reset or a correction by the broker.
This module must not know how queues were assigned. Source: apache/rocketmq
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
from turbopump.client.consumer.queue_table import QueueChange, QueueTable
from turbopump.client.consumer.settings import LitePullConsumerSettings
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.log_keys import LogKeys
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.pull import PullMessage


class Prefetching(QueueTable["PrefetchedQueue"]):
    """Queues of a lite pull consumer, and the messages that it has fetched from them in advance.

    ``subscriptions`` are read when a queue is added.

    With ``auto_commit``, polled messages are done at the next poll. They are committed every
    ``commit_interval`` seconds, and when their queue is lost. Without ``auto_commit``, only offsets
    passed to ``commit_these`` are committed, and repeated until the brokers have them.
    """

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

    def find_queue(self, queue: MessageQueue) -> PrefetchedQueue | None:
        return self._queues.get(queue)

    async def apply(self, change: QueueChange) -> bool:
        """Add gained queues and remove lost ones.

        A lost queue is committed first, so that its next reader starts behind the finished
        messages. A queue that is both lost and gained is started again, and stays paused if it was.
        The result is always True.
        """
        lost = [self._queues.pop(queue) for queue in change.lost if queue in self._queues]
        for prefetched in lost:
            prefetched.stop()
        await asyncio.gather(*(self._commit(prefetched, final=True) for prefetched in lost))
        paused = {prefetched.queue for prefetched in lost if prefetched.paused}
        for queue in change.gained:
            if self._may_start(queue):
                self._start_queue(queue)
            if queue in paused and queue in self._queues:
                self._queues[queue].paused = True
        self.wake_loops()
        return True

    def close(self) -> None:
        """Stop pulling. Waiting polls return no messages."""
        self.stop()
        self._arrived.set()

    # --- messages

    async def poll(self, count: int, timeout: float) -> list[ReceivedMessage]:
        """Wait for messages, and return at most ``count`` of them.

        Messages are returned queue by queue. The list is empty if none arrives in ``timeout``
        seconds.
        """
        if self._settings.auto_commit:
            for prefetched in self._queues.values():
                prefetched.settle_polled()
        try:
            async with asyncio.timeout(timeout):
                while not self._closing:
                    messages = self._take_prefetched(count)
                    if messages:
                        return messages
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        return []

    def wake_polls(self) -> None:
        """Wake waiting polls after a queue was resumed."""
        self._arrived.set()
        self.wake_loops()

    def _take_prefetched(self, count: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for queue, prefetched in list(self._queues.items()):
            if prefetched.waiting and not prefetched.paused:
                messages += prefetched.take_messages(count - len(messages))
                # to the end of the line, so that other queues are first the next time
                del self._queues[queue]
                self._queues[queue] = prefetched
                if len(messages) == count:
                    break
        if messages:
            self.wake_loops()
        return messages

    def _has_room(self, prefetched: PrefetchedQueue) -> bool:
        settings = self._settings
        return (
            prefetched.waiting < settings.queue_messages_max
            and prefetched.bytes < settings.queue_bytes_max
            and sum(other.waiting for other in self._queues.values()) < settings.messages_max
        )

    def _start_queue(self, queue: MessageQueue) -> None:
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
        """Commit the done offset of each of these queues.

        ``acknowledged``: True waits for the brokers' answers, and raises RemotingError for a
        failure.
        """
        for one in queues:
            one.owed_offset = one.done_offset
        if acknowledged:
            await asyncio.gather(*map(self._commit_or_raise, queues))
        else:
            for one in queues:
                self._instance.spawn(self._commit(one, final=True), name=f"commit {one.queue}")

    def _move_to(self, one: PrefetchedQueue, offset: int) -> None:
        one.seek(offset)
        one.sent_offset = None
        one.owed_offset = offset


SUSPEND_S: Final = 20.0
"""Seconds for which a broker may wait for messages before it answers a pull
(``brokerSuspendMaxTimeMillis``)."""


class PrefetchedQueue(PullLoop[ReceivedMessage]):
    """Loop that pulls messages of one queue ahead of the polls.

    The first pull reads from the group's offset on. ``queue`` has the name that brokers know.
    Messages that a seek leaves behind are never delivered: the pull in flight is given up too.

    - ``room``: returns True if more may be pulled now. ``wake_if_room`` calls it again.
    - ``on_arrival``: called when messages have arrived.
    """

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
        """Size in bytes of the messages that wait to be polled, as stored."""
        self._done_offset: int | None = None
        self.owed_offset: int | None = None
        """Offset to commit without ``auto_commit``. It was passed to a commit, or was the broker's
        own answer, which is valid only after a commit."""
        self.next_offset: int | None = None
        """Offset of the next pull."""
        self._group = group
        self._subscription = subscription
        self._offsets = offsets
        self._settings = settings
        self._may_pull = room
        self._on_arrival = on_arrival
        self._ready: deque[ReceivedMessage] = deque()

    # --- for the consumer

    def stop(self) -> None:
        """Stop pulling, and drop messages that were not polled."""
        super().stop()
        self._ready.clear()
        self.bytes = 0

    @property
    def waiting(self) -> int:
        """Number of messages that wait to be polled."""
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
        """Offset of the next message to poll, or None until the group's offset is known."""
        return self._ready[0].queue_offset if self._ready else self.next_offset

    def take_messages(self, count: int) -> list[ReceivedMessage]:
        """Remove and return the next messages, at most ``count``."""
        taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self.bytes -= sum(message.store_size for message in taken)
        return taken

    def settle_polled(self) -> None:
        """Mark all polled messages as done."""
        if self.position is not None:
            self.done_offset = max(self.position, self.done_offset or 0)

    def seek(self, offset: int) -> None:
        """Continue at ``offset``, and drop the prefetched messages.

        The new offset may be before or behind the current one.
        """
        running = self._task is not None
        self.stop()
        self.next_offset = self.done_offset = offset
        if running:
            self.start()

    # --- pulling

    @property
    def _where(self) -> LogKeys:
        return LogKeys(queue=self.queue, offset=self.next_offset)

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

    def _accept_answer(self, answer: PullAnswer[ReceivedMessage]) -> None:
        offset = self.next_offset
        assert offset is not None
        found = [
            message
            for message in wanted_messages(
                answer, self._subscription, self.queue.broker_name, self._settings.namespace
            )
            if message.queue_offset >= offset
        ]
        # no polled message is unfinished, so messages that the filter left out are done
        untouched = self.done_offset == self.position
        self.next_offset = max(answer.reply.next_begin_offset, offset)
        if found:
            self._ready.extend(found)
            self.bytes += sum(message.store_size for message in found)
            self._on_arrival()
        elif untouched:
            self.settle_polled()

    def _continue_at(self, offset: int) -> None:
        self._ready.clear()
        self.bytes = 0
        self.next_offset = self.done_offset = offset
        self.sent_offset = self.owed_offset = None
