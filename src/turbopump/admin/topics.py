"""Topics of a cluster: listing, creating, changing and deleting them.

Creating an existing topic does not change it. Before a change or a deletion the caller learns which
messages are hidden or deleted. Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from turbopump.admin.cluster import Servers, ask_each, refuse_other_server
from turbopump.admin.groups import group_members
from turbopump.errors import RemotingError
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.consumers import GetConsumeStats, QueryTopicConsumeByWho
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.namesrv import (
    ClusterInfo,
    DeleteTopicInNamesrv,
    GetAllTopicList,
    GetTopicsByCluster,
)
from turbopump.protocol.requests.statistics import ConsumeStats
from turbopump.protocol.requests.topics import (
    CreateTopic,
    DeleteTopic,
    GetAllTopicConfig,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicStatsTable,
)
from turbopump.remoting.client import RemotingClient


async def topic_names(servers: Servers, cluster: str | None = None) -> list[str]:
    """Return the sorted names of all topics, or of the topics in one cluster. Raises
    RemotingError."""
    asked: Request[TopicList] = (
        GetAllTopicList() if cluster is None else GetTopicsByCluster(cluster=cluster)
    )
    return sorted((await servers.ask_name_servers(asked)).topic_list)


def users_topics(names: Iterable[str], info: ClusterInfo) -> list[str]:
    """Return the topics that users have created, without RocketMQ's own topics.

    RocketMQ's own topics are system topics, topics named after brokers and clusters, and topics of
    groups (retries, dead letters).
    """
    own = info.own_topics()
    return [
        name
        for name in names
        if name not in own
        and not is_system_topic(name)
        and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    ]


async def find_topic(
    client: RemotingClient, addresses: Sequence[str], name: str
) -> dict[str, TopicConfig]:
    """Ask each broker for the settings of a topic. Return the settings by broker address. Brokers
    without the topic are left out.

    Raises RemotingError.
    """
    found = {}
    for address in addresses:
        answer = await client.exchange(address, GetTopicConfig(topic=name))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a broker of 4.x
            answer = await client.exchange(address, GetAllTopicConfig())
            refuse_other_server(address, answer)
            _refuse_failure(address, answer)
            table = fastjson.decode(answer.body, TopicConfigSerializeWrapper).topic_config_table
            if name in table:
                found[address] = table[name]
        elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
            _refuse_failure(address, answer)
            found[address] = fastjson.decode(answer.body, TopicConfig)
    return found


async def put_topic(
    client: RemotingClient,
    address: str,
    wanted: TopicConfig,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """Create a topic on a broker, or replace the settings of an existing topic.

    As with Apache's tools, the existing topic is not checked. Raises RemotingError.

    - ``attributes``: the attributes to set. Other attributes of the topic stay.
    """
    assert wanted.topic_name is not None
    request = CreateTopic(
        topic=wanted.topic_name,
        read_queue_nums=wanted.read_queue_nums,
        write_queue_nums=wanted.write_queue_nums,
        perm=wanted.perm,
        topic_filter_type=wanted.topic_filter_type,
        topic_sys_flag=wanted.topic_sys_flag,
        order=wanted.order,
        attributes=",".join(f"+{one}={value}" for one, value in (attributes or {}).items()) or None,
    )
    answer = await client.exchange(address, request)
    refuse_other_server(address, answer)
    _refuse_failure(address, answer)


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


async def delete_topic_on_broker(client: RemotingClient, address: str, name: str) -> None:
    """Delete a topic on one broker, including all queues and all group offsets of the topic.

    Raises RemotingError.
    """
    answer = await client.exchange(address, DeleteTopic(topic=name))
    refuse_other_server(address, answer)
    _refuse_failure(address, answer)


async def delete_topic_route(servers: Servers, name: str) -> dict[str, str | None]:
    """Delete the routes of a topic on every name server. First delete the topic on all brokers.

    For each address, return the reason of a failure, or None after success.
    """
    outcomes: dict[str, str | None] = {}
    for address in servers.name_servers:
        try:
            answer = await servers.exchange(address, DeleteTopicInNamesrv(topic=name))
            _refuse_failure(address, answer)
            outcomes[address] = None
        except RemotingError as error:
            outcomes[address] = str(error)
    return outcomes


def _refuse_failure(address: str, answer: Command) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{address}: {(answer.remark or f'code {answer.code}').strip()}")
