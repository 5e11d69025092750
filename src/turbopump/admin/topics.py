"""Topics of a cluster: listing, creating, changing and deleting them.

Creating an existing topic does not change it. Before a change or a deletion the caller learns which
messages are hidden or deleted. Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from turbopump.admin.cluster import Servers, ask_each, refuse_other_server, refuse_unknown_cluster
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
    PERM_READ,
    PERM_WRITE,
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


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """One queue of a topic.

    - ``first``: offset of the first stored message. ``end`` is that of the next one.
    - ``last_stored_ms``: store time of the last message, in ms. 0 if there is none.
    """

    broker: str
    queue_id: int
    first: int
    end: int
    last_stored_ms: int

    @property
    def messages(self) -> int:
        """Number of stored messages."""
        return max(self.end - self.first, 0)


class Topics:
    """Topics: list, create, alter, delete; settings, routes, queues."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def names(self, cluster: str | None = None, *, system: bool = False) -> list[str]:
        """Return the names of topics, sorted.

        Sends GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), or GET_TOPICS_BY_CLUSTER (224), and
        GET_BROKER_CLUSTER_INFO (106) to a name server.

        - ``system``: also RocketMQ's own topics, and topics of groups (retries, dead letters).

        Raises ClientError for an unknown cluster, and RemotingError. Java: ``fetchAllTopicList``,
        ``fetchTopicsByCLuster``.
        """
        names = await topic_names(self._servers, cluster)
        if system and cluster is None:
            return names
        info = await self._servers.brokers()
        if cluster is not None:
            refuse_unknown_cluster(info, cluster)
        return names if system else users_topics(names, info)

    async def settings(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the settings of a topic on each broker that has it, by address.

        Sends GET_TOPIC_CONFIG (351) to each master. Raises RemotingError. Java:
        ``examineTopicConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await find_topic(self._servers, addresses, name)

    async def queues(self, name: str, *, cluster: str | None = None) -> list[TopicQueue]:
        """Return the queues of a topic, sorted by broker and id.

        Sends GET_TOPIC_STATS_INFO (202) to each master. The list is empty if no broker has the
        topic. Raises RemotingError. Java: ``examineTopicStats``.
        """
        answers = await ask_each(
            self._servers,
            await self._servers.masters(cluster),
            GetTopicStatsInfo(topic=name),
            TopicStatsTable,
            ResponseCode.TOPIC_NOT_EXIST,
        )
        table = {
            queue: stands
            for body in answers.values()
            for queue, stands in body.offset_table.items()
        }
        return [
            TopicQueue(
                queue.broker_name,
                queue.queue_id,
                stands.min_offset,
                stands.max_offset,
                stands.last_update_timestamp,
            )
            for queue, stands in sorted(table.items())
        ]

    async def create(
        self,
        name: str,
        *,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Create a topic where it does not exist. Return its settings on each broker, by address.

        An existing topic is not changed. Sends GET_TOPIC_CONFIG (351) to each master, and
        UPDATE_AND_CREATE_TOPIC (17) where the topic is missing.

        - ``perm``: 4 read + 2 write.
        - ``attributes``: such as ``{"message.type": "FIFO"}``.
        - ``broker``, ``cluster``: only there. A broker has a name or an address.

        Raises ResponseError if a broker refuses, and RemotingError. Java:
        ``createAndUpdateTopicConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found = await find_topic(self._servers, addresses, name)
        wanted = TopicConfig(
            topic_name=name,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=perm,
            order=order,
        )
        for address in addresses:
            if address not in found:
                await put_topic(self._servers, address, wanted, attributes)
        return await find_topic(self._servers, addresses, name)
