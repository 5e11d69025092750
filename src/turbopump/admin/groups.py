"""Consumer groups of a cluster: their names, members and offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from turbopump.admin.cluster import Servers, ask_each
from turbopump.errors import BodyError, RemotingError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
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
    GetConsumeStats,
    QueryConsumeTimeSpan,
)
from turbopump.protocol.requests.groups import (
    CreateGroup,
    DeleteGroup,
    GetAllGroups,
    GetGroup,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from turbopump.protocol.requests.statistics import ConsumeStats, QueryConsumeTimeSpanBody
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


async def group_offsets(
    client: RemotingClient, addresses: list[str], group: str, topic: str | None = None
) -> list[dict[str, Any]]:
    """Return the offsets of a group, with one row for each queue. Raises RemotingError.

    The rows are sorted by queue.
    """
    answers = await ask_each(
        client, addresses, GetConsumeStats(consumer_group=group, topic=topic), ConsumeStats
    )
    table = {
        queue: stands for body in answers.values() for queue, stands in body.offset_table.items()
    }
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": stands.consumer_offset,
            "end": stands.broker_offset,
            "behind": stands.broker_offset - stands.consumer_offset,
            "last_timestamp": stands.last_timestamp,
        }
        for queue, stands in sorted(table.items())
    ]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Offset of a group in one queue, and the distance to the end of the queue.

    - ``offset``: the next message that the group consumes. ``end`` is the next one to be stored.
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
        """Age of the oldest message that the group has not consumed, 0 if there is none.

        None if a broker could not say.
        """
        delays = [0 if queue.behind <= 0 else queue.delay_ms for queue in self.queues]
        known = [delay for delay in delays if delay is not None]
        return None if len(known) < len(delays) else max(known, default=0) / 1000


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
    queues = [
        QueueLag(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            stands.consumer_offset,
            stands.broker_offset,
            stands.last_timestamp,
        )
        for queue, stands in sorted(table.items())
    ]
    return GroupLag(group, queues)


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
        for queue in lag.queues:
            at = MessageQueue(queue.topic, queue.broker, queue.queue_id)
            found.append(replace(queue, delay_ms=delays.get(at) if queue.behind > 0 else 0))
    found.sort(key=lambda one: (one.topic, one.broker, one.queue_id))
    return GroupLag(group, found)


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


class Groups:
    """Consumer groups: list, create, alter, delete; settings, members, lag."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def names(self, cluster: str | None = None) -> list[str]:
        """Return the names of all groups, sorted.

        Sends GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) to each master. Raises RemotingError. Java:
        ``getAllSubscriptionGroup``.
        """
        return await group_names(self._servers, await self._servers.masters(cluster))

    async def members(self, group: str, *, cluster: str | None = None) -> GroupMembers:
        """Return the connected members of a group, and their subscriptions.

        Sends GET_CONSUMER_CONNECTION_LIST (203) to each master. Raises RemotingError. Java:
        ``examineConsumerConnectionInfo``.
        """
        return await members_of(self._servers, await self._servers.masters(cluster), group)

    async def lag(
        self, group: str, topic: str | None = None, *, cluster: str | None = None
    ) -> GroupLag:
        """Return how far a group is behind in each of its queues, in messages and in seconds.

        Sends GET_CONSUME_STATS (208) to each master, and QUERY_CONSUME_TIME_SPAN (303) for each
        topic with unread messages. A broker reads one message of each queue for the latter. Raises
        RemotingError. Java: ``examineConsumeStats``, ``queryConsumeTimeSpan``.
        """
        addresses = await self._servers.masters(cluster)
        return await lag_with_delays(self._servers, addresses, group, topic)

    async def settings(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of a group on each broker that has it, by address.

        Sends GET_SUBSCRIPTIONGROUP_CONFIG (352) to each master. Raises RemotingError. Java:
        ``examineSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        return await ask_each(
            self._servers,
            addresses,
            GetGroup(group=group),
            SubscriptionGroupConfig,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )

    async def put(
        self,
        settings: SubscriptionGroupConfig,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a group, or replace its settings. Return the addresses of the brokers.

        Sends UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) to each master. Raises RemotingError. Java:
        ``createAndUpdateSubscriptionGroupConfig``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        for address in addresses:
            await self._servers.call(address, CreateGroup(), fastjson.encode(settings))
        return addresses

    async def delete(
        self,
        group: str,
        *,
        offsets: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Delete the settings of a group. Return the addresses of the brokers.

        Sends DELETE_SUBSCRIPTIONGROUP (207) to each master.

        - ``offsets``: also delete the offsets of the group.

        Raises RemotingError. Java: ``deleteSubscriptionGroup``.
        """
        addresses = await self._servers.brokers_at(broker, cluster)
        for address in addresses:
            await self._servers.call(address, DeleteGroup(group_name=group, clean_offset=offsets))
        return addresses
