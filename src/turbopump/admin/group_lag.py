"""Lag of consumer groups: their offsets, in messages and in seconds behind the ends of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turbopump.admin.cluster import ask_each
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import GetConsumeStats, QueryConsumeTimeSpan
from turbopump.protocol.requests.statistics import (
    ConsumeStats,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
)
from turbopump.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Offset of a group in one queue, and the distance to the end of the queue.

    - ``offset``: index of the next message that the group consumes.
    - ``end``: index of the next message to be stored.
    - ``last_consumed_ms``: store time of the last consumed message, in ms. 0 if there is none.
    - ``delay_ms``: age of the next message in ms, 0 if there is none, None if unknown.
    """

    topic: str
    broker: str
    queue_id: int
    offset: int
    end: int
    last_consumed_ms: int
    delay_ms: int | None = None

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def behind(self) -> int:
        """Number of messages that the group has not consumed."""
        return self.end - self.offset


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Offsets of a group in all its queues, sorted by queue."""

    group: str
    queues: Sequence[QueueLag]

    @property
    def messages(self) -> int:
        """Number of messages that the group has not consumed."""
        return sum(queue.behind for queue in self.queues)

    @property
    def seconds(self) -> float | None:
        """Age in seconds of the oldest message that the group has not consumed, 0 if there is none.

        None if no broker could say.
        """
        delays = [0 if queue.behind <= 0 else queue.delay_ms for queue in self.queues]
        known = [delay for delay in delays if delay is not None]
        return max(known) / 1000 if known else None if delays else 0.0


async def group_lag(
    client: RemotingClient, addresses: list[str], group: str, topic: str | None = None
) -> GroupLag:
    """Ask each broker for the offsets of a group, without the ages of messages.

    Raises RemotingError.
    """
    asked = GetConsumeStats(consumer_group=group, topic=topic)
    answers = await ask_each(client, addresses, asked, ConsumeStats)
    table = {
        queue: stands for body in answers.values() for queue, stands in body.offset_table.items()
    }
    return lag_of(group, table)


def lag_of(group: str, table: Mapping[MessageQueue, OffsetWrapper]) -> GroupLag:
    """Return the offsets of a group from answers, without the ages of messages."""
    return GroupLag(
        group,
        [
            QueueLag(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                stands.consumer_offset,
                stands.broker_offset,
                stands.last_timestamp,
            )
            for queue, stands in sorted(table.items())
        ],
    )


async def lag_with_delays(
    client: RemotingClient, addresses: list[str], group: str, topic: str | None = None
) -> GroupLag:
    """Ask each broker for the offsets of a group, and for the age of each next message.

    Raises RemotingError.
    """
    found: list[QueueLag] = []
    for address in addresses:
        lag = await group_lag(client, [address], group, topic)
        delays: dict[MessageQueue, int] = {}
        for name in sorted({queue.topic for queue in lag.queues if queue.behind > 0}):
            asked = QueryConsumeTimeSpan(topic=name, group=group)
            answers = await ask_each(
                client, [address], asked, QueryConsumeTimeSpanBody, ResponseCode.TOPIC_NOT_EXIST
            )
            for span in (one for body in answers.values() for one in body.consume_time_span_set):
                if span.message_queue is not None:
                    delays[span.message_queue] = span.delay_time
        for one in lag.queues:
            delay_ms = delays.get(one.queue) if one.behind > 0 else 0
            found.append(replace(one, delay_ms=delay_ms))
    found.sort(key=lambda one: one.queue)
    return GroupLag(group, found)
