"""Offsets of a group in each queue, and the first and last of a queue, as the brokers keep them.

One rule: an offset is the index of the next message wanted. This module must not know why an offset
is committed, or which queues are ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from turbopump.client.instance import ClientInstance
from turbopump.errors import ConnectError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests import offsets as requests
from turbopump.repeated_line import RepeatedLine

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)
_read_from_beginning = RepeatedLine(
    log,
    logging.INFO,
    "queue is read from its beginning: the group has no offset there, and the first message is "
    "still in the broker's memory; ConsumeFrom.NOW begins at the start queue=%s group=%s",
)


Time = int | datetime
"""ms since 1970 UTC, or a datetime."""


def as_ms(time: Time | None, default: int = 0) -> int:
    """Return a time in ms since 1970, ``default`` for none."""
    if time is None:
        return default
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time


class ConsumeFrom(Enum):
    """Position at which a group begins in a queue in which it has no offset yet.

    ``FIRST``: at the oldest message that is kept. ``NOW``: at what is stored after the consumer was
    started, by its own clock. ``LAST``: RocketMQ's rule. That is the end of the queue, but the
    *beginning* of a queue whose first message is still in the broker's memory, as in a topic that
    is new or small.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    NOW = "CONSUME_FROM_TIMESTAMP"


class StartOffset(NamedTuple):
    """Offset at which to begin in a queue. ``answered``: the group's offset was asked for, and this
    came; ``stored``: it is certainly kept as such."""

    offset: int
    answered: bool
    stored: bool


class OffsetStore:
    """The offsets of one group, kept by the brokers. Every method may raise a RemotingError."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._began_ms = instance.environment.clock.now_ms()
        self._turns: dict[MessageQueue, asyncio.Lock] = {}
        self._begun: dict[tuple[str, str], asyncio.Event] = {}
        """Broker name and topic -> set when the first offset that this member committed there is
        known."""

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """The group's offset in ``queue``; None if it has none yet. Of a queue whose first message
        is still in its memory, the broker says 0 then; ``zero_if_young=False`` asks it not to
        (those of 4.9 do all the same)."""
        request = requests.QueryConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if zero_if_young else False,
        )
        try:
            return (await self._ask(queue, request)).offset
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset; return when the broker has it.

        One at a time in each queue, each answered: Apache's broker gives the requests of one
        connection to many threads, so that of two on their way the older may come last and set the
        offset back. For the same cause the first offset in a topic goes alone: of several first
        ones at once, Apache's broker keeps the last (``ConsumerOffsetManager.commitOffset`` makes
        the table of a topic and group without a lock). Java's client sends them oneway, and has
        both risks."""
        async with self._turns.setdefault(queue, asyncio.Lock()):
            topic = queue.broker_name, queue.topic
            if topic in self._begun:
                await self._begun[topic].wait()
                return await self._update(queue, offset)
            begun = self._begun[topic] = asyncio.Event()
            try:
                await self._update(queue, offset)
            except BaseException:
                # The next one is the first. The waiting caller goes on: a broker that is away would
                # keep each of them.
                del self._begun[topic]
                raise
            finally:
                begun.set()

    async def _update(self, queue: MessageQueue, offset: int) -> None:
        request = requests.UpdateConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self._ask(queue, request)

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Their brokers may have lost the last commits: the next in each topic is a first one
        again."""
        for queue in queues:
            begun = self._begun.get((queue.broker_name, queue.topic))
            if begun is not None and begun.is_set():
                del self._begun[queue.broker_name, queue.topic]

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Nothing is left to do: the brokers write down what is committed."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message that is kept."""
        request = requests.GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message."""
        request = requests.GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after that time (ms since 1970 UTC)."""
        request = requests.SearchOffset(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        return (await self._ask(queue, request)).offset

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        """Return the offset at which to begin (``RebalancePushImpl.computePullFromWhere``).

        A 0 may be the offset that is kept, or say only that the queue is young: it holds as long as
        the broker is asked in time, and is to be committed like an offset that nobody has kept
        (Java commits whatever was answered, ``RemoteBrokerOffsetStore.readOffset``)."""
        zero_if_young = consume_from in (ConsumeFrom.LAST, ConsumeFrom.FIRST)
        committed = await self.committed(queue, zero_if_young=zero_if_young)
        if committed is not None and committed >= 0:
            is_retry = queue.topic.startswith(RETRY_PREFIX)
            if committed == 0 and consume_from is ConsumeFrom.LAST and not is_retry:
                _read_from_beginning(queue, self._group, kind=(queue, self._group))
            return StartOffset(committed, answered=True, stored=committed > 0)
        return StartOffset(
            await self.first_offset(queue, consume_from), answered=False, stored=False
        )

    async def first_offset(self, queue: MessageQueue, consume_from: ConsumeFrom | datetime) -> int:
        """Return the offset at which a group without one begins."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if isinstance(consume_from, datetime) and not is_retry:
            return await self.offset_at(queue, as_ms(consume_from))
        if consume_from is ConsumeFrom.NOW and not is_retry:
            return await self.offset_at(queue, self._began_ms)
        if consume_from is ConsumeFrom.LAST and not is_retry:
            return await self.max_offset(queue)
        return 0  # the first pull corrects it to the oldest there is

    async def _ask(self, queue: MessageQueue, request: Request[ReplyT]) -> ReplyT:
        address = self._instance.routes.address_of(queue.broker_name, topic=queue.topic)
        if address is None:
            raise ConnectError(f"no address is known for broker {queue.broker_name}")
        return await self._instance.remoting.call(
            address, request, timeout=self._instance.call_timeout
        )
