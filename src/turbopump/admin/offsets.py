"""Offsets of consumer groups in queues: showing, resetting, copying and setting them.

An offset is the index of the next message that the group consumes. Source of the requests:
apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from turbopump.admin.cluster import Servers, ask_each
from turbopump.admin.group_lag import GroupLag, group_lag
from turbopump.admin.groups import Groups
from turbopump.admin.topics import Topics, unknown_topic
from turbopump.client.setting_rules import SettingRule, is_whole
from turbopump.client.times import Time, as_ms
from turbopump.errors import ClientError, NotFoundError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import QueryConsumeTimeSpan
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    GetMaxOffset,
    GetMinOffset,
    ResetOffset,
    ResetOffsetBody,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import GetEarliestMsgStoreTime
from turbopump.protocol.requests.statistics import QueryConsumeTimeSpanBody

END: Final = -1
"""Time of a reset that means the end of a queue."""
_TO: Final = SettingRule(
    lambda value: value in ("begin", "end") or is_whole(value) or isinstance(value, datetime),
    "must be 'begin', 'end', ms since 1970, or a datetime",
)
_TIME: Final = SettingRule(
    lambda value: is_whole(value) or isinstance(value, datetime),
    "must be ms since 1970, or a datetime",
)


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """Store times in one queue, in ms. -1 or 0 means that there is no such message.

    - ``first_ms``, ``last_ms``: the first and the last stored message.
    - ``consumed_ms``: the last message that the group has consumed.
    - ``delay_ms``: age of the next message of the group, 0 if there is none.
    """

    queue: MessageQueue
    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class Offsets:
    """Offsets of consumer groups in queues: show, reset, clone, set.

    ``broker`` is ``brokerName``, ``brokerName:ID`` or ``HOST:PORT``. ``cluster`` means the masters
    of a cluster. Without both, an operation is for all masters. The operations with a queue ask the
    master of the queue.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def show(
        self,
        group: str,
        topic: str | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> GroupLag:
        """Return the offset of a group in each of its queues, with the end of the queue.

        A group without offsets has no queues in the result. ``groups.lag`` also has the ages of
        messages. Sends GET_CONSUME_STATS (208) to each broker. Raises RemotingError. Java:
        ``examineConsumeStats``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await group_lag(self._servers, addresses, group, topic)

    async def times(
        self, group: str, topic: str, *, cluster: str | None = None
    ) -> list[QueueTimes]:
        """Return when messages of a topic were stored: the first, the last, those of the group.

        Sends QUERY_CONSUME_TIME_SPAN (303) to each master, which reads four messages of each queue.
        Raises RouteNotFoundError if no broker has the topic, and RemotingError. Java:
        ``queryConsumeTimeSpan``.
        """
        request = QueryConsumeTimeSpan(topic=topic, group=group)
        answers = await ask_each(
            self._servers,
            await self._servers.masters(cluster),
            request,
            QueryConsumeTimeSpanBody,
            ResponseCode.TOPIC_NOT_EXIST,
        )
        if not answers:
            raise await unknown_topic(self._servers, topic)
        found = [
            QueueTimes(
                span.message_queue,
                span.min_time_stamp,
                span.max_time_stamp,
                span.consume_time_stamp,
                span.delay_time,
            )
            for body in answers.values()
            for span in body.consume_time_span_set
            if span.message_queue is not None
        ]
        return sorted(found, key=lambda one: one.queue)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the first stored message of a queue, and the end of the queue.

        Sends GET_MIN_OFFSET (31) and GET_MAX_OFFSET (30). Raises RemotingError. Java:
        ``minOffset``, ``maxOffset``.
        """
        address = await self._master_of(queue)
        topic, queue_id = queue.topic, queue.queue_id
        first = await self._servers.ask(address, GetMinOffset(topic=topic, queue_id=queue_id))
        end = await self._servers.ask(address, GetMaxOffset(topic=topic, queue_id=queue_id))
        return first.offset, end.offset

    async def first_stored_ms(self, queue: MessageQueue) -> int:
        """Return the store time of the first message of a queue in ms, or -1 for an empty queue.

        Sends GET_EARLIEST_MSG_STORETIME (32). Raises RemotingError. Java: ``earliestMsgStoreTime``.
        """
        request = GetEarliestMsgStoreTime(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._servers.ask(await self._master_of(queue), request)).timestamp

    async def at_time(self, queue: MessageQueue, time: Time) -> int:
        """Return the offset of the first message of a queue stored at a time or later.

        Behind the last message it is the end of the queue. Sends SEARCH_OFFSET_BY_TIMESTAMP (29).

        - ``time``: in ms, or a datetime.

        Raises RemotingError. Java: ``searchOffset``.
        """
        _TIME.check("time", time)
        request = SearchOffset(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=as_ms(time), boundary_type="LOWER"
        )
        return (await self._servers.ask(await self._master_of(queue), request)).offset

    async def reset(
        self,
        group: str,
        topic: str,
        to: Literal["begin", "end"] | Time,
        *,
        only_back: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Set the offsets of a group in a topic, and return them. Running consumers go on there.

        Sends INVOKE_BROKER_TO_RESET_OFFSET (222) to each broker, which moves the consumers.

        - ``to``: "begin", "end", or a time (in ms, or a datetime): the first message stored at
          this time or later.
        - ``only_back``: leave offsets that are before it already. Apache's brokers of 5.x move
          them too, so each queue is asked for its offset and reset alone.

        Raises NotFoundError if no broker has both the group and the topic, ResponseError if one
        refuses, and RemotingError. Java: ``resetOffsetByTimestamp``, ``resetOffsetNew``.
        """
        time_ms = _time_of_reset(to)
        if only_back:
            return await self._reset_back(group, topic, time_ms, broker, cluster)
        addresses = await self._servers.brokers_at(broker, cluster)
        return await self._reset(
            ResetOffset(group=group, topic=topic, timestamp=time_ms), addresses
        )

    async def reset_queue(
        self, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """Set the offset of a group in one queue, and return it. A running consumer goes on there.

        Sends INVOKE_BROKER_TO_RESET_OFFSET (222). Raises ClientError if the broker does not have
        both the group and the topic or is of 4.x, ResponseError if the queue does not have the
        offset, and RemotingError. Java: ``resetOffsetByQueueId``.
        """
        # RocketMQ: brokers of 4.x ignore `queue_id` and `offset`, and would reset the topic to
        # its end. Without `force` they change nothing. Newer brokers ignore `force` here.
        request = ResetOffset(
            group=group,
            topic=queue.topic,
            timestamp=END,
            force=False,
            queue_id=queue.queue_id,
            offset=offset,
        )
        address = await self._master_of(queue)
        found = await self._reset(request, [address])
        if found != {queue: offset}:
            raise ClientError(
                f"broker {address} has not set the offset: brokers before 5.0 reset whole topics "
                "only. Stop the consumers of the group, and set it with `offsets.set`"
            )
        return found

    async def reset_silently(
        self, group: str, topic: str, to: Literal["begin", "end"] | Time, *, only_back: bool = False
    ) -> dict[MessageQueue, int]:
        """Store the offsets of a group in a topic, and return them. No consumer is notified.

        Use it for a group without running consumers, whose next consumer begins there. Sends
        GET_CONSUME_STATS (208) to each master of the topic, and for each queue
        SEARCH_OFFSET_BY_TIMESTAMP (29) or GET_MAX_OFFSET (30), and UPDATE_CONSUMER_OFFSET (15).

        - ``to``, ``only_back``: as in ``reset``.

        Raises RouteNotFoundError if no broker has the topic, ResponseError if a broker does not
        know the group, and RemotingError. Java: ``resetOffsetByTimestampOld``.
        """
        time_ms = _time_of_reset(to)
        now = {one.queue: one.offset for one in (await self.show(group, topic)).queues}
        found: dict[MessageQueue, int] = {}
        for broker in await Topics(self._servers).route(topic):
            for queue_id in range(broker.read_queues):
                queue = MessageQueue(topic, broker.broker, queue_id)
                offset = await self._offset_at(queue, time_ms)
                if only_back and queue in now:
                    offset = min(offset, now[queue])
                await self.set(group, queue, offset)
                found[queue] = offset
        return found

    async def set(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a group in one queue, without a check. No consumer is notified.

        Use it for a group without running consumers: a consumer overwrites the offset with its own.
        After a ``reset``, the group begins where that put it, until a consumer has read on. Sends
        UPDATE_CONSUMER_OFFSET (15). Raises ResponseError if the broker does not know the group or
        the topic, and RemotingError. Java: ``updateConsumeOffset``.
        """
        request = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._servers.ask(await self._master_of(queue), request)

    async def clone(
        self, source: str, target: str, topic: str | None = None, *, offline: bool = True
    ) -> list[str]:
        """Set the offsets of one group to those of another group, in one topic or in all. Return
        the addresses of the brokers.

        Sends CLONE_GROUP_OFFSET (314) to each master.

        - ``offline``: False copies only topics that a running consumer of ``source`` subscribes to.

        Raises ResponseError if a broker refuses, and RemotingError. Java: ``cloneGroupOffset``.
        """
        request = CloneGroupOffset(
            src_group=source, dest_group=target, topic=topic, offline=offline
        )
        return await self._servers.change_each(await self._servers.masters(), request)

    async def _reset_back(
        self, group: str, topic: str, time_ms: int, broker: str | None, cluster: str | None
    ) -> dict[MessageQueue, int]:
        lag = await self.show(group, topic, broker=broker, cluster=cluster)
        groups = Groups(self._servers)
        if not lag.queues or not await groups.settings(group, broker=broker, cluster=cluster):
            raise no_group_or_topic(group, topic)
        found: dict[MessageQueue, int] = {}
        for one in lag.queues:
            target = await self._offset_at(one.queue, time_ms)
            if target < one.offset:
                await self.reset_queue(group, one.queue, target)
            found[one.queue] = min(target, one.offset)
        return found

    async def _offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        if time_ms == END:
            return (await self.bounds(queue))[1]
        return await self.at_time(queue, time_ms)

    async def _master_of(self, queue: MessageQueue) -> str:
        return (await self._servers.brokers_at(queue.broker_name))[0]

    async def _reset(self, request: ResetOffset, addresses: list[str]) -> dict[MessageQueue, int]:
        # A broker without the topic or the group is no error while another one has both.
        absent = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        answers = await ask_each(self._servers, addresses, request, ResetOffsetBody, *absent)
        if not answers:
            raise no_group_or_topic(request.group, request.topic)
        return {
            queue: offset
            for body in answers.values()
            for queue, offset in sorted(body.offset_table.items())
        }


def no_group_or_topic(group: str, topic: str) -> NotFoundError:
    """Return the error for a reset when no broker has both the group and the topic."""
    return NotFoundError(
        f"no broker has both the group {group} and the topic {topic}; see turbopump group list "
        "and turbopump topic list, and start a consumer of a new group once"
    )


def _time_of_reset(to: Literal["begin", "end"] | Time) -> int:
    _TO.check("to", to)
    if to == "begin":
        return 0
    if to == "end":
        return END
    return as_ms(to)
