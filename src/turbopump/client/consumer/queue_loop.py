"""Reading of one queue: the loop that pulls and pops share, and the steps of a pull.
``popped_queue.py`` has the steps of a pop.

One rule: the loop never gives up. After any failure of a broker or the network it pauses and reads
again from the same offset, until ``stop``. This module must not know why the queue is assigned, or
who gets its messages. Source: apache/rocketmq ``DefaultMQPushConsumerImpl.pullMessage``,
``popMessage``, ``DefaultLitePullConsumerImpl.PullTaskImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic, TypeVar

from turbopump import errors
from turbopump.client.consumer.pull import PullAnswer, PullStatus, log_damaged, pull
from turbopump.client.instance import ClientInstance
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import PopProcessQueueInfo, ProcessQueueInfo
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pull import PullMessage
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_fails = RepeatedLine(log, logging.WARNING, "%s failed, goes on trying %s cause=%s")
_works_again = RepeatedLine(log, logging.INFO, "%s works again %s")
_moved_offset = RepeatedLine(
    log,
    logging.WARNING,
    "offset outside of the queue queue=%s asked=%d first=%d end=%d goes_on_at=%d",
)

PULL_TIMEOUT_S: Final = 30.0
"""Timeout of a pull in seconds, including the time for which the broker may hold it."""
ERROR_PAUSE_S: Final = 1.0
FLOW_CONTROL_PAUSE_S: Final = 0.02
HASTE_S: Final = 0.01
"""Seconds below which an empty answer shows that the broker did not hold the request. The loop then
pauses before the next one."""

_UNKNOWN_TO_BROKER: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
)


class QueueLoop(ABC):
    """Read ``queue`` in a separate task, from ``start`` to ``stop``."""

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
        """Offset below which every message is done. None: not known yet, or nothing is
        committed."""
        return None

    @property
    def to_commit(self) -> int | None:
        """Offset to commit, or None."""
        return None

    @abstractmethod
    def info(self) -> ProcessQueueInfo | PopProcessQueueInfo:
        """Return the queue's state for operators."""

    def start(self) -> None:
        """Start reading."""
        self._task = self._instance.spawn(self._read_for_ever(), name=f"{self.verb} {self.queue}")

    def stop(self) -> None:
        """Stop reading. Delivered messages may still be settled."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def look(self) -> None:
        """Continue reading if there is room again."""
        if self._room is not None and not self._room.done() and self._has_room():
            self._room.set_result(None)

    async def _read_for_ever(self) -> None:
        # A queue has one request in flight at a time. A pull starts at the offset in the previous
        # answer, so two at once would fetch the same messages. The broker holds a request while
        # there is no message, so this loop reacts at once without polling: it waits in ``_read``.
        #
        # Room is checked before each request, not after it. All messages of an answer are accepted,
        # so a queue may exceed its limits by one answer, never by more. ``look`` wakes the loop
        # when messages are done, also when a shared limit has room again.
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
        """Log the broker's refusal, and return the seconds to pause."""
        return (
            FLOW_CONTROL_PAUSE_S if error.code == ResponseCode.FLOW_CONTROL else self._failed(error)
        )

    def _failed(self, error: Exception) -> float:
        """Log a failure, and return the seconds to pause."""
        if not self._fails:  # one line when it begins and one when it ends
            _fails(self.verb, self._where, error, kind=self.queue)
        self._fails = True
        return ERROR_PAUSE_S

    @property
    def _ended(self) -> bool:
        """True once the loop must not read any more."""
        return False

    @property
    @abstractmethod
    def _where(self) -> str:
        """Keys for a log line."""

    @abstractmethod
    def _has_room(self) -> bool:
        """Return True if more may be read now."""

    @abstractmethod
    async def _read(self) -> float:
        """Read once. Return the seconds to pause before the next read."""


MessageT = TypeVar("MessageT", bound=ReceivedMessage)


class PullLoop(QueueLoop, Generic[MessageT]):
    """Pull by long polling, from the broker's member that the last answer suggested."""

    verb = "pull"

    def __init__(
        self, instance: ClientInstance, queue: MessageQueue, message_type: type[MessageT]
    ) -> None:
        super().__init__(instance, queue)
        self._message_type = message_type
        self._broker_id = MASTER_ID
        self._pulled_at = 0.0
        self._doubted: int | None = None
        """Offset of a pull that is repeated because its answer had a damaged message."""

    @abstractmethod
    def _request(self) -> PullMessage: ...

    @abstractmethod
    def _take(self, answer: PullAnswer[MessageT]) -> None:
        """Deliver the messages of an answer, and set the offset of the next pull."""

    @abstractmethod
    def _moved(self, offset: int) -> None:
        """Continue at the broker's offset, because the loop's offset is outside the queue or was
        reset. RocketMQ: code 21, ``OFFSET_ILLEGAL``."""

    def _address(self) -> str | None:
        return self._instance.routes.address_of(
            self.queue.broker_name, self._broker_id, topic=self.queue.topic
        )

    async def _introduced(self) -> str:
        """Send a heartbeat to the broker to ask if needed, and return its address. Raises
        RemotingError."""
        address = self._address()
        if address is None:
            raise errors.ConnectError(f"no address is known for broker {self.queue.broker_name}")
        await self._instance.introduced(address)
        return address

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
        offset, reply = request.queue_offset, answer.reply
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            _moved_offset(
                self.queue,
                offset,
                reply.min_offset,
                reply.max_offset,
                reply.next_begin_offset,
                kind=self.queue,
            )
            self._moved(reply.next_begin_offset)
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
        self._take(answer)
        moved_on = reply.next_begin_offset > offset
        return 0.0 if moved_on or self._loop.time() - asked > HASTE_S else FLOW_CONTROL_PAUSE_S

    def _refused(self, error: errors.ResponseError) -> float:
        if error.code == ResponseCode.SYSTEM_BUSY and "reading cold data" in str(error):
            # an operator has slowed down the readers of a backlog (coldDataFlowControlEnable)
            return ERROR_PAUSE_S
        if error.code in _UNKNOWN_TO_BROKER and (address := self._address()) is not None:
            self._instance.forget_introduction(address)
        return super()._refused(error)

    def _failed(self, error: Exception) -> float:
        self._broker_id = MASTER_ID
        return super()._failed(error)
