"""One queue that a lite pull consumer reads: pulled ahead of its user by long polling, as far as
there is room.

One rule: what a seek has left behind never comes: the pull that was under way is given up with it.
The place of the user is the offset that ``take`` hands out next; ``done_offset`` follows it only
when told. It must not know other queues, nor why this one is read. Source: apache/rocketmq
``DefaultLitePullConsumerImpl.PullTaskImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from turbopump.client.consuming.offset_store import Start
from turbopump.client.consuming.pulled_messages import tell_of
from turbopump.client.consuming.queue_pull import PullResult, PullStatus, pull_queue
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.errors import (
    CallTimeoutError,
    ConnectError,
    ProtocolError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.bodies.route import MASTER_ID
from turbopump.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

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
