"""Offsets of consumer groups in queues: showing, resetting, copying and setting them.

An offset is the index of the next message that the group consumes. Source of the requests:
apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from turbopump.admin.cluster import Servers, ask_each
from turbopump.admin.groups import GroupLag, group_lag, group_names, group_offsets
from turbopump.admin.topics import find_topic
from turbopump.client.consumer.offsets import Time, as_ms
from turbopump.client.setting_rules import SettingRule, is_whole
from turbopump.errors import NotFoundError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    ResetOffset,
    ResetOffsetBody,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.topics import GetTopicStatsInfo, TopicStatsTable

END: Final = -1
"""Time of a reset that means the end of a queue."""
ABSENT: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
"""Answers of a broker without the topic or the group: no error while another broker has both."""
_TO: Final = SettingRule(
    lambda value: value in ("begin", "end") or is_whole(value) or isinstance(value, datetime),
    "must be 'begin', 'end', ms since 1970, or a datetime",
)


class Offsets:
    """Offsets of consumer groups in queues: show, reset, clone, set."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def show(
        self, group: str, topic: str | None = None, *, cluster: str | None = None
    ) -> GroupLag:
        """Return the offset of a group in each of its queues, with the end of the queue.

        Sends GET_CONSUME_STATS (208) to each master. A group without offsets has no queues in the
        result. Raises RemotingError. Java: ``examineConsumeStats``.
        """
        return await group_lag(self._servers, await self._servers.masters(cluster), group, topic)

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

        Sends INVOKE_BROKER_TO_RESET_OFFSET (222) to each master. The broker notifies the consumers.

        - ``to``: "begin", "end", or a time (in ms, or a datetime): the first message stored at
          this time or later.
        - ``only_back``: leave offsets that are before it already.

        Raises NotFoundError if no broker has both the group and the topic, and RemotingError. Java:
        ``resetOffsetByTimestamp``.
        """
        _TO.check("to", to)
        if to == "begin":
            time_ms = 0
        elif to == "end":
            time_ms = END
        else:
            time_ms = as_ms(to)
        request = ResetOffset(group=group, topic=topic, timestamp=time_ms, force=not only_back)
        return await self._reset(request, await self._servers.brokers_at(broker, cluster))

    async def reset_queue(
        self, group: str, queue: MessageQueue, offset: int
    ) -> dict[MessageQueue, int]:
        """Set the offset of a group in one queue, and return it. A running consumer goes on there.

        Sends INVOKE_BROKER_TO_RESET_OFFSET (222) to the master of the queue. Raises ResponseError
        if the queue does not have the offset. Java: ``resetOffsetByQueueId``.
        """
        request = ResetOffset(
            group=group, topic=queue.topic, timestamp=END, queue_id=queue.queue_id, offset=offset
        )
        return await self._reset(request, await self._servers.brokers_at(queue.broker_name))

    async def set(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a group in one queue. Nothing is checked, no consumer is notified.

        Sends UPDATE_CONSUMER_OFFSET (15) to the master of the queue. Use it for a group without
        running consumers: a consumer overwrites the offset with its own. Raises RemotingError.
        Java: ``updateConsumeOffset``.
        """
        (address,) = await self._servers.brokers_at(queue.broker_name)
        await self._servers.call(
            address,
            UpdateConsumerOffset(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
            ),
        )

    async def clone(self, source: str, target: str, topic: str | None = None) -> None:
        """Set the offsets of one group to those of another group, in one topic or in all.

        Sends CLONE_GROUP_OFFSET (314) to each master. Raises RemotingError. Java:
        ``cloneGroupOffset``.
        """
        request = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=True)
        for address in await self._servers.masters():
            await self._servers.call(address, request)

    async def _reset(self, request: ResetOffset, addresses: list[str]) -> dict[MessageQueue, int]:
        return await reset_offsets(self._servers, addresses, request)


async def reset_offsets(
    servers: Servers, addresses: list[str], request: ResetOffset
) -> dict[MessageQueue, int]:
    """Reset offsets on each broker, and return the new ones, sorted by queue.

    Raises NotFoundError if no broker has both the group and the topic, and RemotingError.
    """
    answers = await ask_each(servers, addresses, request, ResetOffsetBody, *ABSENT)
    if not answers:
        raise _neither(request)
    table = {queue: to for body in answers.values() for queue, to in body.offset_table.items()}
    return dict(sorted(table.items()))


async def offsets_after_reset(
    servers: Servers, addresses: list[str], request: ResetOffset
) -> dict[MessageQueue, int]:
    """Return the offsets that a reset would set, sorted by queue, and change nothing.

    Raises as ``reset_offsets`` does.
    """
    found: dict[MessageQueue, int] = {}
    have_both = False
    for address, topic in (await find_topic(servers, addresses, request.topic)).items():
        if request.group not in await group_names(servers, [address]):
            continue
        have_both = True
        asked = GetTopicStatsInfo(topic=request.topic)
        (stats,) = (await ask_each(servers, [address], asked, TopicStatsTable)).values()
        rows = await group_offsets(servers, [address], request.group, request.topic)
        now = {row["queue"]: row["offset"] for row in rows}
        for queue, ends in stats.offset_table.items():
            at = queue.queue_id
            if at >= topic.read_queue_nums or request.queue_id not in (-1, at):
                continue
            if request.offset is not None:
                found[queue] = request.offset
                continue
            to = ends.max_offset
            if request.timestamp >= 0:
                search = SearchOffset(topic=request.topic, queue_id=at, timestamp=request.timestamp)
                to = (await servers.call(address, search)).offset
            if not request.force:
                to = min(to, now.get(at, to))
            found[queue] = to
    if not have_both:
        raise _neither(request)
    return dict(sorted(found.items()))


def _neither(request: ResetOffset) -> NotFoundError:
    return NotFoundError(
        f"no broker has both the group {request.group} and the topic {request.topic}; see "
        "turbopump consumer list and turbopump topic list, and start a consumer of a new group once"
    )
