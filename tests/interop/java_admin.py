"""What Apache's own ``DefaultMQAdminExt`` gets from a cluster, beside what our ``Admin`` gets from
the same cluster.

The one rule: nothing is changed here. Java's answers are JSON as brokers write it
(clients/java/five/AdminAnswers.java), and are decoded with the structs of our requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

from tests.interop.admin_cases import (
    BROKER,
    CLUSTER,
    PULLERS,
    PUSHERS,
    TOPIC,
    Side,
    only,
    plain_value,
)
from tests.interop.answering_jvm import AnsweringJvm
from tests.interop.foreign import pair

from turbopump import Credentials
from turbopump.protocol import fastjson
from turbopump.protocol.requests.access import AclInfo, UserInfo
from turbopump.protocol.requests.consumers import ConsumerConnection
from turbopump.protocol.requests.groups import GroupList, SubscriptionGroupConfig
from turbopump.protocol.requests.namesrv import ClusterInfo, KVTable, TopicRouteData
from turbopump.protocol.requests.replication import HARuntimeInfo
from turbopump.protocol.requests.statistics import ColdFlowInfo, ConsumeStats, ConsumeStatsList
from turbopump.protocol.requests.topics import (
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicStatsTable,
)


class JavaAdmin(AnsweringJvm):
    """A JVM with a ``DefaultMQAdminExt`` for one cluster. Enter it to start it."""

    def __init__(self, namesrv: str, directory: Path, user: Credentials | None = None) -> None:
        environment = {} if user is None else {"INTEROP_ADMIN": pair(user)}
        super().__init__("AdminAnswers", directory, namesrv, environment=environment)

    def call(self, method: str, *arguments: str) -> bytes:
        """The answer to one call, as JSON."""
        answer = self.ask(method, *arguments)
        assert not answer.startswith(b"failed"), answer.decode()
        return answer


@dataclass(frozen=True)
class Comparison:
    """Call of Java's class, and what of it is compared with the result of our method.

    - ``call``: the method and its arguments; ``$broker`` and ``$namesrv`` are addresses.
    - ``body``: the struct of its answer.
    - ``java``: what is compared of the answer. ``ours``: the same from ``Admin``.
    """

    call: str
    body: Any
    java: Callable[[Any], object]
    ours: Callable[[Side], Awaitable[object]]


COMPARISONS: Final[dict[str, Comparison]] = {}
ACCOUNT_COMPARISONS: Final[dict[str, Comparison]] = {}
"""For servers with access control."""


def compare(
    call: str, body: Any, java: Callable[[Any], object], table: dict[str, Comparison] = COMPARISONS
) -> Callable[..., Any]:
    """Add a function as our side of a comparison."""

    def add(ours: Callable[[Side], Awaitable[object]]) -> Callable[[Side], Awaitable[object]]:
        table[call.split()[0]] = Comparison(call, body, java, ours)
        return ours

    return add


async def compared(
    side: Side, directory: Path, user: Credentials | None = None
) -> Mapping[str, tuple[object, object]]:
    """For each method of Java: its answer, and that of our method. ``user``: who signs, where
    servers check it."""
    found = {}
    with JavaAdmin(side.namesrv, directory, user) as java:
        for name, one in (COMPARISONS if user is None else ACCOUNT_COMPARISONS).items():
            places = {"broker": side.broker, "namesrv": side.namesrv}
            answer = java.call(*Template(one.call).substitute(places).split())
            theirs = one.java(fastjson.decode(answer, one.body))
            ours = await one.ours(side)
            found[name] = plain_value(theirs, side.names), plain_value(ours, side.names)
    return found


# --- comparisons


@compare(
    "examineBrokerClusterInfo",
    ClusterInfo,
    lambda info: {
        (name, number, address)
        for name, broker in info.broker_addr_table.items()
        for number, address in broker.broker_addrs.items()
    },
)
async def members(side: Side) -> object:
    return {(one.name, one.id, one.address) for one in await side.admin.brokers.list()}


@compare("fetchAllTopicList", TopicList, lambda topics: set(topics.topic_list))
async def topics(side: Side) -> object:
    return set(await side.admin.topics.names(system=True))


@compare(f"fetchTopicsByCLuster {CLUSTER}", TopicList, lambda topics: set(topics.topic_list))
async def topics_of_a_cluster(side: Side) -> object:
    return set(await side.admin.topics.names(CLUSTER, system=True))


@compare(f"examineTopicConfig $broker {TOPIC}", TopicConfig, lambda topic: topic)
async def topic_settings(side: Side) -> object:
    return only(await side.admin.topics.settings(TOPIC))


@compare(
    "getUserTopicConfig $broker false 60000",
    TopicConfigSerializeWrapper,
    lambda topics: set(topics.topic_config_table),
)
async def topics_of_users(side: Side) -> object:
    return set(await side.admin.topics.all_settings(BROKER))


@compare(
    f"examineTopicStats {TOPIC}",
    TopicStatsTable,
    lambda stats: {
        (queue.queue_id, one.min_offset, one.max_offset, one.last_update_timestamp)
        for queue, one in stats.offset_table.items()
    },
)
async def queues(side: Side) -> object:
    return {
        (one.queue_id, one.first, one.end, one.last_stored_ms)
        for one in await side.admin.topics.queues(TOPIC)
    }


@compare(
    f"examineTopicRouteInfo {TOPIC}",
    TopicRouteData,
    lambda route: [
        (one.broker_name, one.read_queue_nums, one.write_queue_nums, one.perm)
        for one in route.queue_datas
    ],
)
async def route(side: Side) -> object:
    return [
        (one.broker, one.read_queues, one.write_queues, one.perm)
        for one in await side.admin.topics.route(TOPIC)
    ]


@compare(f"queryTopicsByConsumer {PULLERS}", TopicList, lambda topics: set(topics.topic_list))
async def topics_of_a_group(side: Side) -> object:
    return set(await side.admin.groups.topics(PULLERS))


@compare(
    f"queryTopicConsumeByWho {TOPIC}", GroupList, lambda groups: set(groups.group_list) - {TOPIC}
)
async def groups_of_a_topic(side: Side) -> object:
    # RocketMQ: an Apache broker also has the topic's own name in its list
    return set(await side.admin.topics.groups(TOPIC))


@compare(
    f"examineSubscriptionGroupConfig $broker {PULLERS}",
    SubscriptionGroupConfig,
    lambda group: group,
)
async def group_settings(side: Side) -> object:
    return only(await side.admin.groups.settings(PULLERS))


@compare(
    f"examineConsumeStats {PULLERS}",
    ConsumeStats,
    lambda stats: {
        (queue.topic, queue.queue_id, one.consumer_offset, one.broker_offset, one.last_timestamp)
        for queue, one in stats.offset_table.items()
    },
)
async def offsets(side: Side) -> object:
    return {
        (one.topic, one.queue_id, one.offset, one.end, one.last_consumed_ms)
        for one in (await side.admin.offsets.show(PULLERS)).queues
    }


@compare(
    "fetchConsumeStatsInBroker $broker false 60000",
    ConsumeStatsList,
    lambda stats: (
        stats.total_diff,
        {
            group
            for table in stats.consume_stats_list
            for group, by_topic in table.items()
            if any(one.offset_table for one in by_topic)
        },
    ),
)
async def offsets_of_a_broker(side: Side) -> object:
    stats = await side.admin.brokers.consume_stats(BROKER)
    return stats.behind, {lag.group for lag in stats.groups}


@compare(
    f"examineConsumerConnectionInfo {PUSHERS}",
    ConsumerConnection,
    lambda found: (
        [one.client_id for one in found.connection_set],
        set(found.subscription_table),
        (found.consume_type, found.message_model, found.consume_from_where),
    ),
)
async def consumers(side: Side) -> object:
    found = await side.admin.groups.members(PUSHERS)
    return (
        [one.client_id for one in found.members],
        set(found.subscriptions),
        (found.consume_type, found.message_model, found.consume_from),
    )


@compare("getBrokerConfig $broker", dict[str, str], lambda settings: settings)
async def settings(side: Side) -> object:
    return await side.admin.brokers.settings(BROKER)


@compare("getNameServerConfig $namesrv", dict[str, dict[str, str]], lambda settings: settings)
async def settings_of_name_servers(side: Side) -> object:
    return await side.admin.name_servers.settings()


@compare("fetchBrokerRuntimeStats $broker", KVTable, lambda figures: set(figures.table))
async def figures(side: Side) -> object:
    return set((await side.admin.brokers.figures(BROKER)).texts)


@compare("getKVListByNamespace NS", KVTable, lambda values: values.table)
async def key_values(side: Side) -> object:
    return await side.admin.kv.list("NS")


@compare(
    "getBrokerHAStatus $broker",
    HARuntimeInfo,
    lambda status: (status.master, status.master_commit_log_max_offset, status.in_sync_slave_nums),
)
async def replication(side: Side) -> object:
    status = await side.admin.replication.status(BROKER)
    return status.master, status.master_commit_log_max_offset, status.in_sync_slave_nums


@compare(
    "getColdDataFlowCtrInfo $broker",
    str,
    lambda text: fastjson.decode(text.encode(), ColdFlowInfo).config_table,
)
async def cold_reads(side: Side) -> object:
    return (await side.admin.brokers.cold_reads(BROKER)).config_table


# --- comparisons of accounts: ann has a policy


async def make_ann(side: Side) -> None:
    await side.admin.users.create("ann", "anns-secret", server=side.broker)
    await side.admin.users.add_policy("ann", ["Topic:T"], ["Pub", "Sub"], server=side.broker)


def _user(one: UserInfo) -> object:
    return one.username, one.user_type, one.user_status


@compare(
    "listUser $broker n", list[UserInfo], lambda users: set(map(_user, users)), ACCOUNT_COMPARISONS
)
async def users(side: Side) -> object:
    (found,) = await side.admin.users.list("n", server=side.broker)
    return set(map(_user, found.users))


@compare("getUser $broker ann", UserInfo, _user, ACCOUNT_COMPARISONS)
async def a_user(side: Side) -> object:
    return _user(only(await side.admin.users.get("ann", server=side.broker)))


@compare("getAcl $broker User:ann", AclInfo, lambda acl: acl.policies, ACCOUNT_COMPARISONS)
async def policies(side: Side) -> object:
    return only(await side.admin.users.policies("ann", server=side.broker))


@compare("listAcl $broker ann Topic:T", list[AclInfo], lambda acls: acls, ACCOUNT_COMPARISONS)
async def every_policy(side: Side) -> object:
    (found,) = await side.admin.users.list("ann", server=side.broker)
    return found.acls
