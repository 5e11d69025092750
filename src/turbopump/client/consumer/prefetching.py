"""The queues that a lite pull consumer reads, together: whose turn it is, how much may wait, what
is committed.

One rule: an offset that is committed goes back only after a seek, a reset or a correction by the
broker. It must not know how queues came to be ours. Source: apache/rocketmq
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from turbopump.client.consumer.offsets import ConsumeFrom, OffsetStore, Start
from turbopump.client.consumer.pull import PullResult, PullStatus, pull_queue, tell_of
from turbopump.client.consumer.rebalance import Change
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import (
    CallTimeoutError,
    ConnectError,
    ProtocolError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID

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


# --- One queue that a lite pull consumer reads: pulled ahead of its user by long polling, as far as
# there is room.
#
# One rule: what a seek has left behind never comes: the pull that was under way is given up with it.
# The place of the user is the offset that ``take`` hands out next; ``done_offset`` follows it only
# when told. It must not know other queues, nor why this one is read. Source: apache/rocketmq
# ``DefaultLitePullConsumerImpl.PullTaskImpl``.


SUSPEND_S: Final = 20.0
ANSWER_S: Final = 10.0
"""``brokerSuspendMaxTimeMillis``, and ``consumerTimeoutMillisWhenSuspend`` beyond it."""
ERROR_PAUSE_S: Final = 1.0
FLOW_CONTROL_PAUSE_S: Final = 0.02
HASTE_S: Final = 0.01
"""An empty answer that came faster than this was not held by the broker; the next pull waits a
little."""


class PrefetchedQueue:
    """Pulls ``queue`` (as brokers know it) once started, ``batch`` messages at a time, from where
    ``find_start`` says. ``room`` says whether more may be pulled now; ``look`` makes it be asked
    again. ``on_arrival`` is called when there is something to take.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscription: Subscription,
        queue: MessageQueue,
        *,
        batch: int,
        namespace: str | None,
        find_start: Callable[[MessageQueue], Awaitable[Start]],
        room: Callable[[PrefetchedQueue], bool],
        on_arrival: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.paused = False
        self.bytes = 0
        """Of the messages that wait to be taken, as stored."""
        self.done_offset: int | None = None
        """Everything below it is done; None while the place of the group is not known yet."""
        self.sent_offset: int | None = None
        """The offset that the broker was last told, if it may still know it."""
        self.owed_offset: int | None = None
        """The offset that it is to be told, if it is not told by itself what is done: one that a
        commit was asked for, or its own answer, which holds only once it is committed."""
        self.next_offset: int | None = None
        """Where the next pull begins."""
        self._instance = instance
        self._group = group
        self._subscription = subscription
        self._batch = batch
        self._namespace = namespace
        self._find_start = find_start
        self._room = room
        self._on_arrival = on_arrival
        self._ready: deque[ReceivedMessage] = deque()
        self._may_look = asyncio.Event()
        self._broker_id = MASTER_ID
        self._task: asyncio.Task[None] | None = None
        self._fault: str | None = None
        self._doubted: int | None = None

    # --- for the consumer
    # ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to pull."""
        self._task = self._instance.spawn(self._pull_for_ever(), name=f"prefetch {self.queue}")

    def stop(self) -> None:
        """Pull no more, and let go of what was not taken."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._ready.clear()
        self.bytes = 0

    def look(self) -> None:
        """There may be room again."""
        self._may_look.set()

    @property
    def waiting(self) -> int:
        """Messages that wait to be taken."""
        return len(self._ready)

    @property
    def position(self) -> int | None:
        """The offset of the next message that is handed out; None while the place of the group is
        not known yet."""
        return self._ready[0].queue_offset if self._ready else self.next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """The next messages, ``count`` at most."""
        taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self.bytes -= sum(message.store_size for message in taken)
        return taken

    def settle(self) -> None:
        """Whatever was taken is done."""
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
    # ----------------------------------------------------------------------------------------------

    async def _pull_for_ever(self) -> None:
        while True:
            while self.paused or not self._room(self):
                self._may_look.clear()
                await self._may_look.wait()
            try:
                pause = (
                    await self._begin()
                    if self.next_offset is None
                    else await self._pull(self.next_offset)
                )
                self._recovered()
            except ResponseError as error:
                pause = (
                    FLOW_CONTROL_PAUSE_S
                    if error.code == ResponseCode.FLOW_CONTROL
                    else self._failed(str(error))
                )
            except (RemotingError, RouteNotFoundError, ProtocolError) as error:
                pause = self._failed(str(error))
            if pause:
                await asyncio.sleep(pause)

    async def _begin(self) -> float:
        await self._introduced()
        start = await self._find_start(self.queue)
        self.next_offset = self.done_offset = start.offset
        self.sent_offset = start.offset if start.stored else None
        self.owed_offset = start.offset if start.answered and not start.stored else None
        return 0.0

    async def _pull(self, offset: int) -> float:
        """One pull; returns how long to wait before the next."""
        address = await self._introduced()
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            result = await pull_queue(
                *(self._instance, self._group, self._subscription, self.queue, offset, self._batch),
                address=address,
                wait=SUSPEND_S,
                timeout=ANSWER_S,
                namespace=self._namespace,
            )
        except CallTimeoutError:
            await self._instance.abandon_if_silent(address, asked)
            raise
        self._broker_id = result.broker_id
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset outside of the queue queue=%s asked=%d first=%d end=%d goes_on_at=%d",
                *(self.queue, offset, result.min_offset, result.max_offset, result.next_offset),
            )
            self._move(result.next_offset)
            return 0.0
        if result.damaged and self._doubted != offset:
            self._doubted = offset  # if it was damaged on its way, it comes whole the next time
            return ERROR_PAUSE_S
        tell_of(result.damaged)
        self._take_over(offset, result)
        moved_on = result.next_offset > offset
        return 0.0 if moved_on or loop.time() - asked > HASTE_S else FLOW_CONTROL_PAUSE_S

    def _take_over(self, offset: int, result: PullResult) -> None:
        found = [message for message in result.messages if message.queue_offset >= offset]
        # nothing in the user's hands: what the filter left out is done
        untouched = self.done_offset == self.position
        self.next_offset = max(result.next_offset, offset)
        if found:
            self._ready.extend(found)
            self.bytes += sum(message.store_size for message in found)
            self._on_arrival()
        elif untouched:
            self.settle()

    def _move(self, offset: int) -> None:
        """The broker has other offsets than we thought, or was told to reset ours: go on where it
        says (``OFFSET_ILLEGAL``)."""
        self._ready.clear()
        self.bytes = 0
        self.next_offset = self.done_offset = offset
        self.sent_offset = self.owed_offset = None

    async def _introduced(self) -> str:
        """The address of the broker to ask, which knows us then. Raises RemotingError or
        RouteNotFoundError."""
        await self._instance.routes.get(self.queue.topic)
        address = self._instance.routes.address_of(
            self.queue.broker_name, self._broker_id, topic=self.queue.topic
        )
        if address is None:
            raise ConnectError(f"no address is known for broker {self.queue.broker_name}")
        await self._instance.introduced(address)
        return address

    # --- when it does not work
    # ----------------------------------------------------------------------------------------------

    def _failed(self, cause: str) -> float:
        self._broker_id = MASTER_ID
        if self._fault is None:  # one line when it begins and one when it ends
            log.warning(
                "pull failed, goes on trying queue=%s offset=%s cause=%s",
                self.queue,
                self.next_offset,
                cause,
            )
        self._fault = cause
        return ERROR_PAUSE_S

    def _recovered(self) -> None:
        if self._fault is not None:
            log.info("pull works again queue=%s offset=%s", self.queue, self.next_offset)
            self._fault = None
