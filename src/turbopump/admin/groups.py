"""Consumer groups of a cluster: their names, settings, members and lag.

Creating an existing group does not change it. Source of the requests: apache/rocketmq
``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

from msgspec import structs

from turbopump.admin.cluster import Servers, ask_body, ask_each, change_each
from turbopump.admin.group_lag import GroupLag, lag_with_delays
from turbopump.errors import BodyError, ClientError, RemotingError, ResponseError
from turbopump.message.rules import did_you_mean, is_system_group
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from turbopump.protocol.requests.consumers import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
)
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    DeleteGroup,
    GetAllGroups,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    UpdateGroupForbidden,
)
from turbopump.protocol.requests.replication import GetAllMessageRequestMode
from turbopump.protocol.requests.topics import TopicList
from turbopump.remoting.client import RemotingClient


async def group_names(client: RemotingClient, addresses: list[str]) -> list[str]:
    """Return the names of all groups on these brokers, sorted. Raises RemotingError."""
    tables = await ask_each(client, addresses, GetAllGroups(), SubscriptionGroupWrapper)
    return sorted({name for table in tables.values() for name in table.subscription_group_table})


async def group_members(
    client: RemotingClient, addresses: list[str], group: str
) -> dict[str, ConsumerConnection]:
    """Ask each broker for the connected members of a group. Return them by broker address.

    Brokers without members are left out. Raises RemotingError.
    """
    asked = GetConsumerConnectionList(consumer_group=group)
    return await ask_each(
        client, addresses, asked, ConsumerConnection, ResponseCode.CONSUMER_NOT_ONLINE
    )


RUNNING_TIMEOUT_S: Final = 12.0
"""Seconds to wait for the answer to a request that a broker forwards to a client.

The broker waits ten seconds for the client.
"""


async def running_info(
    client: RemotingClient, address: str, group: str, client_id: str
) -> ConsumerRunningInfo | str:
    """Ask a consumer for its status through a broker. Return the reason of a failure as text.

    - ``address``: the address of the broker.
    """
    request = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
    try:
        return await client.call(address, request, timeout=RUNNING_TIMEOUT_S)
    except ResponseError as error:
        return error.remark or f"code {error.code}"
    except (RemotingError, BodyError) as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Member:
    """Connected client of a group.

    - ``version``: ordinal of Apache's ``MQVersion``.
    """

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Connected members of a consumer group, sorted by client id, and their subscriptions.

    - ``subscriptions``: by topic.
    - ``conflicts``: a sentence for each disagreement among the members. Apache's brokers report
      none.
    """

    group: str
    members: Sequence[Member]
    subscriptions: Mapping[str, SubscriptionData]
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from: ConsumeFromWhere | None = None
    conflicts: Sequence[str] = ()


async def members_of(client: RemotingClient, addresses: list[str], group: str) -> GroupMembers:
    """Ask each broker for the connected members of a group. A client of several brokers is once in
    the result.

    Raises RemotingError.
    """
    answers = list((await group_members(client, addresses, group)).values())
    members = {one.client_id or "": one for body in answers for one in body.connection_set}
    first = next(iter(answers), ConsumerConnection())
    return GroupMembers(
        group,
        [member_of(members[client_id]) for client_id in sorted(members)],
        {topic: data for body in answers for topic, data in body.subscription_table.items()},
        first.consume_type,
        first.message_model,
        first.consume_from_where,
        list(dict.fromkeys(text for body in answers for text in body.conflicts or ())),
    )


def member_of(one: Connection) -> Member:
    """Return a connection from an answer as a ``Member``."""
    language = one.language.name if one.language is not None else ""
    return Member(one.client_id or "", one.client_addr or "", language, one.version)


class GroupSettings(TypedDict, total=False):
    """Settings of a consumer group, as keywords. ``SubscriptionGroupConfig`` has their defaults.

    - ``retry_max_times``: redeliveries until a message becomes a dead letter.
    - ``consume_timeout_minute``: in minutes.
    """

    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    group_retry_policy: GroupRetryPolicy | None
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: int
    consume_timeout_minute: int


async def unknown_group(servers: Servers, group: str) -> ClientError:
    """Return the error for a group that no broker knows. The error suggests a similar name.

    Raises ClientError if no broker is registered, and RemotingError.
    """
    near = did_you_mean(group, await group_names(servers, await servers.masters()))
    return ClientError(
        f"no broker knows the group {group}{near}; turbopump group list shows the groups"
    )


class Groups:
    """Consumer groups: list, create, alter, delete; settings, members, lag.

    ``broker`` is ``brokerName``, ``brokerName:ID`` or ``HOST:PORT``. ``cluster`` means the masters
    of a cluster. Without both, an operation is for all masters.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def names(self, cluster: str | None = None, *, system: bool = False) -> list[str]:
        """Return the names of groups, sorted.

        Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) to each master. The answer has 500 bytes for
        each group.

        - ``system``: also RocketMQ's own groups.

        Raises RemotingError. Java: ``getAllSubscriptionGroup``, ``getUserSubscriptionGroup``.
        """
        names = await group_names(self._servers, await self._servers.masters(cluster))
        return [name for name in names if system or not is_system_group(name)]

    async def settings(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of a group on each broker that has it, by address.

        Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) to each broker. The answer has 500 bytes for
        each group. Raises RemotingError. Java: ``examineSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await self._settings(addresses, group)

    async def all_settings(
        self, broker: str, *, system: bool = False
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker, by group.

        Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201).

        - ``system``: also RocketMQ's own groups.

        Raises RemotingError. Java: ``getAllSubscriptionGroup``, ``getUserSubscriptionGroup``.
        """
        (address,) = await self._servers.brokers_at(broker)
        groups = await ask_body(self._servers, address, GetAllGroups(), SubscriptionGroupWrapper)
        return {
            name: settings
            for name, settings in groups.subscription_group_table.items()
            if system or not is_system_group(name)
        }

    async def create(
        self,
        group: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        **settings: Unpack[GroupSettings],
    ) -> dict[str, SubscriptionGroupConfig]:
        """Create a group where it does not exist. Return its settings on each broker, by address.

        An existing group is not changed. Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) to each
        broker, and UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) where the group is missing.
        ``settings`` are the keywords of ``GroupSettings``. Raises ResponseError if a broker
        refuses, and RemotingError. Java: ``createAndUpdateSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found = await self._settings(addresses, group)
        wanted = SubscriptionGroupConfig(group_name=group, **settings)
        missing = [address for address in addresses if address not in found]
        await self._servers.change_each(missing, CreateGroup(), fastjson.encode(wanted))
        return await self._settings(addresses, group)

    async def alter(
        self,
        group: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        **settings: Unpack[GroupSettings],
    ) -> dict[str, SubscriptionGroupConfig]:
        """Change settings of an existing group, and return the new settings by address.

        Settings that are not given stay. Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) and
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) to each broker. Raises ClientError if no broker
        knows the group, ResponseError if a broker refuses, and RemotingError. Java:
        ``createAndUpdateSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        found = await self._settings(addresses, group)
        if not found:
            raise await unknown_group(self._servers, group)
        wanted = {address: structs.replace(now, **settings) for address, now in found.items()}
        await change_each(
            wanted, lambda at: self._servers.ask(at, CreateGroup(), fastjson.encode(wanted[at]))
        )
        return await self._settings(list(found), group)

    async def put(
        self,
        settings: SubscriptionGroupConfig,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a group, or replace all its settings. Return the addresses of the brokers.

        An existing group is not checked. Sends UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) to each
        broker. Raises ResponseError if a broker refuses, and RemotingError. Java:
        ``createAndUpdateSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await self._servers.change_each(addresses, CreateGroup(), fastjson.encode(settings))

    async def put_all(
        self,
        settings: Sequence[SubscriptionGroupConfig],
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create groups, or replace all their settings, with one request for each broker.

        Existing groups are not checked. Sends UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225), which
        brokers before 5.3 do not know. Returns the addresses of the brokers. Raises ResponseError
        if a broker refuses, and RemotingError. Java:
        ``createAndUpdateSubscriptionGroupConfigList``.
        """
        body = SubscriptionGroupList(group_config_list=list(settings))
        addresses = await self._servers.brokers_at(broker, cluster)
        return await self._servers.change_each(addresses, CreateGroupList(), fastjson.encode(body))

    async def delete(
        self,
        group: str,
        *,
        offsets: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Delete the settings of a group. Return the addresses of the brokers.

        A consumer that is still running creates the group again, if the broker allows that
        (``autoCreateSubscriptionGroup``). An unknown group is no error. Sends
        DELETE_SUBSCRIPTIONGROUP (207) to each broker.

        - ``offsets``: also delete the offsets of the group. A new group of this name then starts as
          a group without offsets.

        Raises ResponseError if a broker refuses, and RemotingError. Java:
        ``deleteSubscriptionGroup``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        request = DeleteGroup(group_name=group, clean_offset=offsets)
        return await self._servers.change_each(addresses, request)

    async def members(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> GroupMembers:
        """Return the connected members of a group, and their subscriptions.

        Sends GET_CONSUMER_CONNECTION_LIST (203) to each broker. Raises RemotingError. Java:
        ``examineConsumerConnectionInfo``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await members_of(self._servers, addresses, group)

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group to a topic, or None if no member has one.

        Sends QUERY_SUBSCRIPTION_BY_CONSUMER (345) to each master until one knows it. Raises
        RemotingError. Java: ``querySubscription``.
        """
        request = QuerySubscriptionByConsumer(group=group, topic=topic)
        for address in await self._servers.masters():
            found = (await self._servers.ask(address, request)).subscription_data
            if found is not None:
                return found
        return None

    async def topics(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset, sorted.

        Sends QUERY_TOPICS_BY_CONSUMER (343) to each master. Raises RemotingError. Java:
        ``queryTopicsByConsumer``.
        """
        request = QueryTopicsByConsumer(group=group)
        addresses = await self._servers.masters()
        answers = await ask_each(self._servers, addresses, request, TopicList)
        return sorted({topic for body in answers.values() for topic in body.topic_list})

    async def lag(
        self,
        group: str,
        topic: str | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> GroupLag:
        """Return how far a group is behind in each of its queues, in messages and in seconds.

        Sends GET_CONSUME_STATS (208) to each broker, and QUERY_CONSUME_TIME_SPAN (303) for each
        topic with unread messages. For the latter, a broker reads four messages of each queue.
        ``offsets.show`` is cheaper, and has no seconds. Raises RemotingError. Java:
        ``examineConsumeStats``, ``queryConsumeTimeSpan``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await lag_with_delays(self._servers, addresses, group, topic)

    async def may_read(self, group: str, topic: str, *, broker: str | None = None) -> bool:
        """Return True if a group may read a topic on each broker.

        Sends UPDATE_AND_GET_GROUP_FORBIDDEN (353) to each broker. Raises RemotingError. Java:
        ``updateAndGetGroupReadForbidden``.
        """
        return await self._readable(group, topic, None, broker)

    async def allow_reading(
        self, group: str, topic: str, allowed: bool, *, broker: str | None = None
    ) -> None:
        """Forbid a group to read a topic, or allow it again.

        Consumers of a forbidden group get errors and try again. Sends
        UPDATE_AND_GET_GROUP_FORBIDDEN (353) to each broker. Raises RemotingError. Java:
        ``updateAndGetGroupReadForbidden``.
        """
        await self._readable(group, topic, allowed, broker)

    async def set_mode(
        self,
        group: str,
        topic: str,
        mode: MessageRequestMode,
        *,
        pop_share: int = 0,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Set whether the push consumers of a group pull or pop a topic. Return the addresses of
        the brokers.

        Consumers that ask the broker for their queues change within 20 s. Sends
        SET_MESSAGE_REQUEST_MODE (401) to each broker.

        - ``pop_share``: the number of other consumers that share one consumer's queues. At 0, all
          consumers share all queues.

        Raises ResponseError if a broker refuses, and RemotingError. Java:
        ``setMessageRequestMode``.
        """
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=pop_share
        )
        addresses = await self._servers.brokers_at(broker, cluster)
        request = SetMessageRequestMode()
        return await self._servers.change_each(addresses, request, fastjson.encode(body))

    async def mode(
        self, group: str, topic: str, broker: str
    ) -> SetMessageRequestModeRequestBody | None:
        """Return the mode in which a group reads a topic on one broker. None if it was never set.

        Sends GET_ALL_MESSAGE_REQUEST_MODE (402). The answer has 100 bytes for each mode that was
        set. Raises RemotingError. Java: ``getAllMessageRequestMode``, which only slaves call.
        """
        (address,) = await self._servers.brokers_at(broker)
        request = GetAllMessageRequestMode()
        modes = await ask_body(self._servers, address, request, MessageRequestModeTable)
        return modes.message_request_mode_map.get(topic, {}).get(group)

    async def _settings(
        self, addresses: list[str], group: str
    ) -> dict[str, SubscriptionGroupConfig]:
        # RocketMQ: a broker asked for one group by GET_SUBSCRIPTIONGROUP_CONFIG (352) creates it.
        tables = await ask_each(self._servers, addresses, GetAllGroups(), SubscriptionGroupWrapper)
        return {
            address: table.subscription_group_table[group]
            for address, table in tables.items()
            if group in table.subscription_group_table
        }

    async def _readable(
        self, group: str, topic: str, readable: bool | None, broker: str | None
    ) -> bool:
        request = UpdateGroupForbidden(group=group, topic=topic, readable=readable)
        answers = [
            await self._servers.ask(address, request)
            for address in await self._servers.brokers_at(broker)
        ]
        return all(answer.readable for answer in answers)
