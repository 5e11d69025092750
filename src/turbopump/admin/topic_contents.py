"""Contents of a topic's queues: messages, and groups that have not read them.

Before a change or a deletion of a topic the caller learns which messages are hidden or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turbopump.admin.cluster import ask_each
from turbopump.admin.groups import group_members
from turbopump.protocol.requests.consumers import GetConsumeStats, QueryTopicConsumeByWho
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.statistics import ConsumeStats
from turbopump.protocol.requests.topics import GetTopicStatsInfo, TopicConfig, TopicStatsTable
from turbopump.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class GroupBehind:
    """Group with unread messages in a queue.

    - ``behind``: the number of unread messages.
    - ``consumers``: the number of consumers that run now.
    """

    group: str
    behind: int
    consumers: int


@dataclass(frozen=True, slots=True)
class QueueContent:
    """Content of a queue: the number of messages, and the groups with unread messages."""

    broker: str
    queue_id: int
    messages: int
    groups: Sequence[GroupBehind] = field(default=())


def unread_ids(before: TopicConfig, after: TopicConfig) -> range:
    """Return the ids of the queues that consumers can read before a change but not after the
    change."""
    readable = _readable_queues(after)
    return range(readable, max(readable, _readable_queues(before)))


def _readable_queues(topic: TopicConfig) -> int:
    if not topic.readable:
        return 0
    return topic.read_queue_nums


async def queue_contents(
    client: RemotingClient, address: str, topic: str, ids: range
) -> list[QueueContent]:
    """For each of these queues, ask a broker for the messages and for the groups with unread
    messages.

    - ``ids``: the ids of the queues. They come from the broker and may be huge, so no code here
      loops over them.

    The results are sorted by id. Raises RemotingError.
    """
    if not ids:
        return []
    one = [address]
    tables = await ask_each(client, one, GetTopicStatsInfo(topic=topic), TopicStatsTable)
    groups = await _groups_of(client, address, topic)
    return [
        QueueContent(
            queue.broker_name,
            queue.queue_id,
            max(offsets.max_offset - offsets.min_offset, 0),
            [
                GroupBehind(group, stands.broker_offset - stands.consumer_offset, consumers)
                for group, (stats, consumers) in groups.items()
                if (stands := stats.offset_table.get(queue)) is not None
                and stands.broker_offset > stands.consumer_offset
            ],
        )
        for queue, offsets in sorted(tables[address].offset_table.items())
        if queue.queue_id in ids
    ]


async def _groups_of(
    client: RemotingClient, address: str, topic: str
) -> Mapping[str, tuple[ConsumeStats, int]]:
    """Return the groups of a topic: those with a consumer now, and those with a stored offset.

    For each group, the value has its offsets and the number of its consumers.
    """
    one = [address]
    lists = await ask_each(client, one, QueryTopicConsumeByWho(topic=topic), GroupList)
    found = {}
    for group in sorted({name for each in lists.values() for name in each.group_list}):
        asked = GetConsumeStats(consumer_group=group, topic=topic)
        stats = await ask_each(client, one, asked, ConsumeStats)
        members = await group_members(client, one, group)
        clients = {each.client_id for body in members.values() for each in body.connection_set}
        found[group] = (stats[address], len(clients))
    return found
