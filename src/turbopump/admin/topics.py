"""Topics of a cluster: listing, creating, changing and deleting them.

Creating an existing topic does not change it. Source of the requests: apache/rocketmq
``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from msgspec import structs

from turbopump.admin.cluster import Servers, ask_body, ask_each, change_each, refuse_unknown_cluster
from turbopump.admin.topic_contents import QueueContent, queue_contents, unread_ids
from turbopump.errors import ClientError, RemotingError, ResponseError, RouteNotFoundError
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, did_you_mean, is_system_topic
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.consumers import QueryTopicConsumeByWho, QueryTopicsByConsumer
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.namesrv import (
    BrokerData,
    ClusterInfo,
    DeleteTopicInNamesrv,
    GetAllTopicList,
    GetRouteInfo,
    GetTopicsByCluster,
)
from turbopump.protocol.requests.topics import (
    PERM_READ,
    PERM_WRITE,
    CreateTopic,
    CreateTopicList,
    CreateTopicListRequestBody,
    DeleteTopic,
    GetAllTopicConfig,
    GetSystemTopicsOfBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicStatsTable,
)
from turbopump.remoting.client import RemotingClient, refused_by


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
    return _without_own(names, info.own_topics())


def _without_own(names: Iterable[str], own: Set[str]) -> list[str]:
    """Return the topics that users have created.

    - ``own``: the topics that brokers create for themselves.
    """
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
            table = await _all_topics(client, address)
            if name in table:
                found[address] = table[name]
        elif answer.code == ResponseCode.SUCCESS:
            found[address] = fastjson.decode(answer.body, TopicConfig)
        elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
            raise refused_by(address, GetTopicConfig(topic=name), answer)
    return found


async def _all_topics(client: RemotingClient, address: str) -> dict[str, TopicConfig]:
    topics = await ask_body(client, address, GetAllTopicConfig(), TopicConfigSerializeWrapper)
    return topics.topic_config_table


async def put_topic(
    servers: Servers,
    address: str,
    wanted: TopicConfig,
    attributes: Mapping[str, str | None] | None = None,
) -> None:
    """Create a topic on a broker, or replace the settings of an existing topic.

    As with Apache's tools, the existing topic is not checked. Raises RemotingError.

    - ``attributes``: the attributes to set, and with None those to remove. Other attributes of the
      topic stay.
    """
    assert wanted.topic_name is not None
    changes = [
        f"-{name}" if value is None else f"+{name}={value}"
        for name, value in (attributes or {}).items()
    ]
    request = CreateTopic(
        topic=wanted.topic_name,
        read_queue_nums=wanted.read_queue_nums,
        write_queue_nums=wanted.write_queue_nums,
        perm=wanted.perm,
        topic_filter_type=wanted.topic_filter_type,
        topic_sys_flag=wanted.topic_sys_flag,
        order=wanted.order,
        attributes=",".join(changes) or None,
    )
    await servers.ask(address, request)


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


@dataclass(frozen=True, slots=True)
class TopicBroker:
    """Queues of a topic on one broker, as the route has them.

    - ``perm``: 4 read + 2 write.
    - ``addresses``: address of each replica, by broker id. The master has the id 0.
    """

    broker: str
    cluster: str
    read_queues: int
    write_queues: int
    perm: int
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """Outcome of deleting a topic.

    - ``brokers``: addresses of the brokers that had the topic. It is deleted there.
    - ``name_servers``: for each address, the reason why it still has the route, or None.
    """

    brokers: Sequence[str]
    name_servers: Mapping[str, str | None]


async def unknown_topic(servers: Servers, name: str) -> RouteNotFoundError:
    """Return the error for a topic that does not exist. The error suggests a similar name.

    Raises ClientError if no broker is registered either, and RemotingError.
    """
    await servers.masters()
    near = did_you_mean(name, users_topics(await topic_names(servers), await servers.brokers()))
    return RouteNotFoundError(f"unknown topic {name}{near}; turbopump topic list shows all")


class Topics:
    """Topics: list, create, alter, delete; settings, routes, queues.

    ``broker`` is ``brokerName``, ``brokerName:ID`` or ``HOST:PORT``. ``cluster`` means the masters
    of a cluster. Without both, an operation is for all masters.
    """

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

        Sends GET_TOPIC_CONFIG (351) to each broker. Raises RemotingError. Java:
        ``examineTopicConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await find_topic(self._servers, addresses, name)

    async def all_settings(self, broker: str, *, system: bool = False) -> dict[str, TopicConfig]:
        """Return the settings of all topics of one broker, by topic.

        Sends GET_ALL_TOPIC_CONFIG (21). The answer has 300 bytes for each topic.

        - ``system``: also RocketMQ's own topics, and topics of groups. Without it, the broker is
          asked for its own topics too: GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305).

        Raises RemotingError. Java: ``getAllTopicConfig``, ``getUserTopicConfig``.
        """
        (address,) = await self._servers.brokers_at(broker)
        table = await _all_topics(self._servers, address)
        if system:
            return table
        own = set((await self._servers.ask(address, GetSystemTopicsOfBroker())).topic_list)
        return {name: table[name] for name in _without_own(table, own)}

    async def queues(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> list[TopicQueue]:
        """Return the queues of a topic, sorted by broker and id.

        Sends GET_TOPIC_STATS_INFO (202) to each broker. Raises RouteNotFoundError if no broker has
        the topic, and RemotingError. Java: ``examineTopicStats``.
        """
        answers = await ask_each(
            self._servers,
            await self._servers.brokers_at(broker, cluster),
            GetTopicStatsInfo(topic=name),
            TopicStatsTable,
            ResponseCode.TOPIC_NOT_EXIST,
        )
        if not answers:
            raise await unknown_topic(self._servers, name)
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

    async def route(self, name: str) -> list[TopicBroker]:
        """Return the brokers that have a topic, sorted by name.

        Sends GET_ROUTEINFO_BY_TOPIC (105) to a name server. Raises RouteNotFoundError if no broker
        has the topic, and RemotingError. Java: ``examineTopicRouteInfo``.
        """
        try:
            route = await self._servers.ask_name_servers(
                GetRouteInfo(topic=name, accept_standard_json_only=True)
            )
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise await unknown_topic(self._servers, name) from None
        brokers = {broker.broker_name: broker for broker in route.broker_datas}
        found = []
        for queues in sorted(route.queue_datas, key=lambda one: one.broker_name or ""):
            broker = brokers.get(queues.broker_name) or BrokerData()
            found.append(
                TopicBroker(
                    queues.broker_name or "",
                    broker.cluster or "",
                    queues.read_queue_nums,
                    queues.write_queue_nums,
                    queues.perm,
                    dict(sorted(broker.broker_addrs.items())),
                )
            )
        return found

    async def clusters(self, name: str) -> list[str]:
        """Return the names of the clusters whose brokers have a topic, sorted.

        Sends GET_ROUTEINFO_BY_TOPIC (105) to a name server. Raises RouteNotFoundError and
        RemotingError. Java: ``getTopicClusterList``.
        """
        return sorted({broker.cluster for broker in await self.route(name)})

    async def groups(self, name: str, *, cluster: str | None = None) -> list[str]:
        """Return the groups of a topic: those with a consumer now, and those with an offset.

        Apache's brokers of 5.x do not list a group without an offset. Sends
        QUERY_TOPIC_CONSUME_BY_WHO (300) to each master. Raises RemotingError. Java:
        ``queryTopicConsumeByWho``.
        """
        addresses = await self._servers.masters(cluster)
        request = QueryTopicConsumeByWho(topic=name)
        answers = await ask_each(self._servers, addresses, request, GroupList)
        groups = {group for body in answers.values() for group in body.group_list}
        if name in groups and not await self._is_group_of(name, addresses):
            groups.remove(name)
        return sorted(groups)

    async def _is_group_of(self, name: str, addresses: list[str]) -> bool:
        """Return True if a topic has a group of the same name.

        Apache's brokers of 5.x list the topic's own name in place of each group that has a consumer
        now and no offset yet.
        """
        answers = await ask_each(
            self._servers, addresses, QueryTopicsByConsumer(group=name), TopicList
        )
        return any(name in body.topic_list for body in answers.values())

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

        An existing topic is not changed. Sends GET_TOPIC_CONFIG (351) to each broker, and
        UPDATE_AND_CREATE_TOPIC (17) where the topic is missing. Clients find a new topic within
        30 s; those that send to it ask at once.

        - ``perm``: 4 read + 2 write.
        - ``attributes``: such as ``{"message.type": "FIFO"}``.

        Raises ResponseError if a broker refuses, and RemotingError. Java: ``createTopic``,
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
        await change_each(
            (address for address in addresses if address not in found),
            lambda address: put_topic(self._servers, address, wanted, attributes),
        )
        return await find_topic(self._servers, addresses, name)

    async def alter(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change settings of an existing topic, and return the new settings by address.

        Settings that are None stay, and so do attributes that are not named. Messages in queues
        that are no longer read stay on the disk; ``hidden_by`` shows them before. Sends
        GET_TOPIC_CONFIG (351) and UPDATE_AND_CREATE_TOPIC (17) to each broker.

        - ``attributes``: values to set; None removes an attribute.

        Raises RouteNotFoundError if no broker has the topic, ResponseError if a broker refuses, and
        RemotingError. Java: ``createAndUpdateTopicConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found = await find_topic(self._servers, addresses, name)
        if not found:
            raise await unknown_topic(self._servers, name)
        given = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": perm,
            "order": order,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        wanted = {
            address: structs.replace(topic, topic_name=name, **changes)
            for address, topic in found.items()
        }
        await change_each(
            wanted, lambda address: put_topic(self._servers, address, wanted[address], attributes)
        )
        return await find_topic(self._servers, list(found), name)

    async def hidden_by(
        self, name: str, read_queues: int, *, broker: str | None = None, cluster: str | None = None
    ) -> list[QueueContent]:
        """Return the queues that consumers could no longer read if a topic had this number of
        queues to read. Queues without messages are in the list, too.

        Sends GET_TOPIC_CONFIG (351) and GET_TOPIC_STATS_INFO (202) to each broker, and two requests
        for each group of the topic. Raises RemotingError.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found: list[QueueContent] = []
        for address, topic in (await find_topic(self._servers, addresses, name)).items():
            after = structs.replace(topic, read_queue_nums=read_queues)
            ids = unread_ids(topic, after)
            found += await queue_contents(self._servers, address, name, ids)
        return found

    async def put_all(
        self,
        settings: Sequence[TopicConfig],
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create topics, or replace their settings, with one request for each broker.

        Existing topics are not checked. Attributes are added to those that a topic has. Sends
        UPDATE_AND_CREATE_TOPIC_LIST (18), which brokers before 5.3 do not know. Returns the
        addresses of the brokers. Raises ResponseError if a broker refuses, and RemotingError. Java:
        ``createAndUpdateTopicConfigList``.
        """
        body = CreateTopicListRequestBody(
            topic_config_list=[
                structs.replace(
                    one, attributes={f"+{name}": value for name, value in one.attributes.items()}
                )
                for one in settings
            ]
        )
        addresses = await self._servers.brokers_at(broker, cluster)
        return await self._servers.change_each(addresses, CreateTopicList(), fastjson.encode(body))

    async def delete(self, name: str, *, cluster: str | None = None) -> TopicDeletion:
        """Delete a topic: its settings, its queues, and the offsets of groups in it.

        Consumers get no more messages of it, at once. Sends GET_TOPIC_CONFIG (351) and
        DELETE_TOPIC_IN_BROKER (215) to each master, and DELETE_TOPIC_IN_NAMESRV (216) to each name
        server.

        Raises ClientError for a topic of RocketMQ's own, RouteNotFoundError if nobody has the
        topic, and RemotingError. Java: ``deleteTopic``.
        """
        if is_system_topic(name):
            raise ClientError(f"{name} is a topic of RocketMQ's own, which brokers do not delete")
        addresses = await self._servers.masters(cluster)
        found = list(await find_topic(self._servers, addresses, name))
        if not found and name not in await topic_names(self._servers, cluster):
            raise await unknown_topic(self._servers, name)
        await self._servers.change_each(found, DeleteTopic(topic=name))
        return TopicDeletion(found, await self.delete_routes(name, cluster=cluster))

    async def delete_on_broker(self, name: str, broker: str) -> None:
        """Delete a topic on one broker only. Its route goes with the broker's next registration.

        Sends DELETE_TOPIC_IN_BROKER (215). An unknown topic is no error. Raises RemotingError.
        Java: ``deleteTopicInBroker``.
        """
        await self._servers.change_each(
            await self._servers.brokers_at(broker), DeleteTopic(topic=name)
        )

    async def delete_routes(
        self, name: str, *, cluster: str | None = None
    ) -> dict[str, str | None]:
        """Delete the routes of a topic on each name server. A broker that still has the topic
        registers it again within 30 s.

        Sends DELETE_TOPIC_IN_NAMESRV (216). For each address, returns the reason of a failure, or
        None. Java: ``deleteTopicInNameServer``.
        """
        outcomes: dict[str, str | None] = {}
        request = DeleteTopicInNamesrv(topic=name, cluster_name=cluster)
        for address in self._servers.name_servers:
            try:
                await self._servers.ask(address, request)
                outcomes[address] = None
            except RemotingError as error:
                outcomes[address] = str(error)
        return outcomes
