"""Where a group stands in each queue, and where a queue begins and ends, as the brokers keep it.

One rule: an offset is the index of the next message wanted. It must not know why an offset is committed, or which queues are ours.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from turbopump.client.instance import CALL_TIMEOUT_S, ClientInstance
from turbopump.errors import ConnectError, ResponseError
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)


class ConsumeFrom(Enum):
    """Where a group begins in a queue in which it has no place yet: at what comes from now on, or at the oldest that is kept.

    RocketMQ: with LAST, a queue whose first message is still in the broker's memory is read from its beginning.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"


class OffsetStore:
    """The offsets of one group, kept by the brokers. Every method may raise a RemotingError."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's place in ``queue``; None if it has none yet."""
        request = QueryConsumerOffset(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        try:
            return (await self._instance.remoting.call(self._address(queue), request, timeout=CALL_TIMEOUT_S)).offset
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, queue: MessageQueue, offset: int, *, acknowledged: bool = True) -> None:
        """Set the group's place. Not ``acknowledged``: sent oneway, may be lost."""
        address = self._address(queue)
        request = UpdateConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        if acknowledged:
            await self._instance.remoting.call(address, request, timeout=CALL_TIMEOUT_S)
        else:
            await self._instance.remoting.send_oneway(address, request, timeout=CALL_TIMEOUT_S)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message that is kept."""
        request = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._instance.remoting.call(self._address(queue), request, timeout=CALL_TIMEOUT_S)).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message."""
        request = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._instance.remoting.call(self._address(queue), request, timeout=CALL_TIMEOUT_S)).offset

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after that time (ms since 1970 UTC)."""
        request = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return (await self._instance.remoting.call(self._address(queue), request, timeout=CALL_TIMEOUT_S)).offset

    async def starting_offset(self, queue: MessageQueue, consume_from: ConsumeFrom | datetime) -> tuple[int, bool]:
        """Where to begin, and whether the brokers know that place already (``RebalancePushImpl.computePullFromWhere``)."""
        committed = await self.committed(queue)
        if committed is not None and committed >= 0:
            return committed, True
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if isinstance(consume_from, datetime) and not is_retry:
            return await self.offset_at(queue, int(consume_from.timestamp() * 1000)), False
        if consume_from is ConsumeFrom.LAST and not is_retry:
            return await self.max_offset(queue), False
        return 0, False  # the first pull corrects it to the oldest there is

    def _address(self, queue: MessageQueue) -> str:
        address = self._instance.routes.address_of(queue.broker_name, topic=queue.topic)
        if address is None:
            raise ConnectError(f"no address is known for broker {queue.broker_name}")
        return address
