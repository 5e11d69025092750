"""Offsets at the brokers: those committed by a group, and the first and last of each queue.

One rule: an offset is the index of the next message to read. This module must not know why an
offset is committed, or which queues are assigned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from turbopump.client.instance import ClientInstance
from turbopump.client.times import as_ms
from turbopump.errors import ResponseError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests import offsets as requests
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_read_from_beginning = RepeatedLine(
    log,
    logging.INFO,
    "queue is read from its beginning: the group has no offset there, and the first message is "
    "still in the broker's memory; ConsumeFrom.NOW begins at the start queue=%s group=%s",
)


class ConsumeFrom(Enum):
    """Position at which a group starts to read a queue without a committed offset.

    - ``FIRST``: the oldest stored message.
    - ``NOW``: messages stored after the consumer's start, by the consumer's clock.
    - ``LAST``: RocketMQ's rule. It is the end of the queue. In a new or small topic, whose
      first message is still in the broker's memory, it is the *beginning* of the queue.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    NOW = "CONSUME_FROM_TIMESTAMP"


class StartOffset(NamedTuple):
    """Offset at which to start reading a queue.

    - ``answered``: True if it is the answer to the request for the group's offset.
    - ``stored``: True if the broker certainly has stored this offset.
    """

    offset: int
    answered: bool
    stored: bool


class OffsetStore:
    """Offsets of one group, stored at the brokers.

    Every method that sends a request may raise a RemotingError.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._began_ms = instance.environment.clock.now_ms()
        self._turns: dict[MessageQueue, asyncio.Lock] = {}
        self._begun: dict[tuple[str, str], asyncio.Event] = {}
        """Event by broker name and topic. It is set once this member's first commit there has
        ended."""

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """Return the committed offset of the group in ``queue``, or None if there is none.

        If there is none and the queue's first message is still in memory, the broker answers 0.
        ``zero_if_young=False`` asks the broker not to do so. Brokers of 4.9 ignore that.
        """
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
        """Store the offset of the group in ``queue``, and wait until the broker has stored it.

        Commits to a queue are sent one at a time, each after the previous answer. Apache's broker
        spreads one connection's requests over many threads, so an older commit could otherwise
        overwrite a newer one.

        The first commit to a topic is sent alone. Apache's broker keeps only the last of several
        concurrent first commits, because ``ConsumerOffsetManager.commitOffset`` creates the table
        of a topic and group without a lock. Java's client sends commits oneway and has both risks.
        """
        async with self._turns.setdefault(queue, asyncio.Lock()):
            topic = queue.broker_name, queue.topic
            if topic in self._begun:
                await self._begun[topic].wait()
                return await self._update(queue, offset)
            begun = self._begun[topic] = asyncio.Event()
            try:
                await self._update(queue, offset)
            except BaseException:
                # The next commit counts as the first. Waiting callers continue; otherwise a broker
                # that is down would delay each of them.
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
        """Treat the next commit as a first commit, for each topic of these queues.

        The brokers may have lost the earlier commits.
        """
        for queue in queues:
            begun = self._begun.get((queue.broker_name, queue.topic))
            if begun is not None and begun.is_set():
                del self._begun[queue.broker_name, queue.topic]

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Do nothing, because the brokers write committed offsets to their disks."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in ``queue``."""
        request = requests.GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message in ``queue``."""
        request = requests.GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time in ms since 1970 UTC."""
        request = requests.SearchOffset(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        return (await self._ask(queue, request)).offset

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        """Return the offset at which to start reading a queue.

        The answer 0 of a broker may be a stored offset, or mean only that the queue is young. So 0
        must be committed like an offset that is not stored yet. Java commits every answer
        (``RemoteBrokerOffsetStore.readOffset``).

        Source: apache/rocketmq ``RebalancePushImpl.computePullFromWhere``.
        """
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
        """Return the starting offset for a group without a committed offset."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if isinstance(consume_from, datetime) and not is_retry:
            return await self.offset_at(queue, as_ms(consume_from))
        if consume_from is ConsumeFrom.NOW and not is_retry:
            return await self.offset_at(queue, self._began_ms)
        if consume_from is ConsumeFrom.LAST and not is_retry:
            return await self.max_offset(queue)
        return 0  # the first pull corrects it to the oldest there is

    async def _ask(self, queue: MessageQueue, request: Request[ReplyT]) -> ReplyT:
        instance = self._instance
        address = instance.routes.require_address(queue.broker_name, topic=queue.topic)
        with instance.routes.renewing_after_failure(queue.topic):
            return await instance.remoting.call(address, request, timeout=instance.call_timeout)
