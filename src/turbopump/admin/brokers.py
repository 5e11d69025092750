"""Brokers of a cluster: list, settings, figures, statistics and cleaning.

An operation on one broker takes its brokerName, which means its master, or ``HOST:PORT``. Source of
the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.cluster import Servers, refuse_unknown_cluster
from turbopump.admin.group_lag import GroupLag, lag_of
from turbopump.admin.settings import SettingChange, change_settings, read_settings
from turbopump.config import properties
from turbopump.errors import ResponseError
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests.cleaning import (
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    DeleteExpiredCommitLog,
)
from turbopump.protocol.requests.configuration import GetBrokerConfig, UpdateBrokerConfig
from turbopump.protocol.requests.consumers import GetBrokerConsumeStats
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.statistics import (
    BrokerStatsItem,
    ColdFlowInfo,
    GetBrokerRuntimeInfo,
    GetColdFlow,
    OffsetWrapper,
    RemoveColdFlow,
    SetCommitLogReadMode,
    UpdateColdFlow,
    ViewBrokerStatsData,
)


@dataclass(frozen=True, slots=True, order=True)
class BrokerMember:
    """Master or slave that a name server knows.

    - ``id``: the brokerId; 0 is the master.
    """

    cluster: str
    name: str
    id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.id == MASTER_ID

    @property
    def label(self) -> str:
        """Name for people: ``NAME`` of a master, ``NAME:ID`` of a slave, else the address."""
        if not self.name:
            return self.address
        return self.name if self.is_master else f"{self.name}:{self.id}"


@dataclass(frozen=True, slots=True)
class Statistic:
    """Statistic of a broker over one period: the sum, the rate per second, and the mean of one
    count."""

    sum: int
    per_second: float
    mean: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistic of a broker over the last minute, hour and day.

    A period is None until the broker has counted in it.
    """

    minute: Statistic | None
    hour: Statistic | None
    day: Statistic | None


@dataclass(frozen=True, slots=True)
class BrokerConsumeStats:
    """Offsets of all groups of a broker.

    - ``behind``: number of messages that groups have not consumed.
    - ``in_flight``: number of messages that groups have pulled and not consumed.
    - ``groups``: sorted by name, without the ages of messages.
    """

    behind: int
    in_flight: int
    groups: Sequence[GroupLag]


class Brokers:
    """Operations on the brokers of a cluster.

    The parameter ``broker`` of an operation is a brokerName, which means the master, or the
    ``HOST:PORT`` of a master or slave. A name costs one request to a name server (106).
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def list(self, cluster: str | None = None) -> tuple[BrokerMember, ...]:
        """Return all masters and slaves, or those of one cluster, sorted.

        Sends GET_BROKER_CLUSTER_INFO (106) to a name server. Raises RemotingError, and ClientError
        for an unknown cluster. Java: ``examineBrokerClusterInfo``.
        """
        info = await self._servers.brokers()
        if cluster is not None:
            refuse_unknown_cluster(info, cluster)
        found = (
            BrokerMember(broker.cluster or "", name, number, address)
            for name, broker in info.broker_addr_table.items()
            for number, address in broker.broker_addrs.items()
            if cluster in (None, broker.cluster)
        )
        return tuple(sorted(found))

    async def find(self, broker: str) -> BrokerMember:
        """Return the member that a name means. A broker that is not registered has no name in it.

        Sends GET_BROKER_CLUSTER_INFO (106) to a name server. Raises RemotingError, and ClientError
        for an unknown name.
        """
        (address,) = await self._servers.brokers_at(broker)
        members = await self.list()
        unknown = BrokerMember("", "", MASTER_ID, address)
        return next((one for one in members if one.address == address), unknown)

    async def figures(self, broker: str) -> BrokerFigures:
        """Return the runtime figures of a broker: version, rates, log, disk, waiting messages.

        Sends GET_BROKER_RUNTIME_INFO (28). The broker may read its oldest message for it. Raises
        RemotingError. Java: ``fetchBrokerRuntimeStats``.
        """
        return BrokerFigures.read((await self._call(broker, GetBrokerRuntimeInfo())).table)

    # --- settings

    async def settings(self, broker: str) -> dict[str, str]:
        """Return the settings of a broker by Apache's keys, sorted. Ours hides secrets.

        Sends GET_BROKER_CONFIG (26). Raises RemotingError. Java: ``getBrokerConfig``.
        """
        address = await self._address(broker)
        return await read_settings(self._servers, address, GetBrokerConfig())

    async def change_settings(
        self, broker: str, wanted: Mapping[str, str]
    ) -> tuple[SettingChange, ...]:
        """Change settings of a running broker. Return the old and the new value of each key.

        Sends UPDATE_BROKER_CONFIG (25), and GET_BROKER_CONFIG (26) before and after. Ours changes
        all keys or none, and refuses a key that needs a restart. Apache's broker ignores an unknown
        key: check ``SettingChange.ignored``. Raises ConfigError if ``wanted`` is empty, and
        ResponseError if the broker refuses. Java: ``updateBrokerConfig``.
        """
        address = await self._address(broker)
        return tuple(
            await change_settings(
                self._servers, address, wanted, read=GetBrokerConfig(), update=UpdateBrokerConfig()
            )
        )

    # --- statistics

    async def statistics(self, broker: str, name: str, key: str) -> Statistics | None:
        """Return one statistic of a broker. Return None if nothing was counted.

        - ``name``: for example ``TOPIC_PUT_NUMS`` or ``GROUP_GET_NUMS``.
        - ``key``: a topic, ``topic@group``, or the cluster.

        Sends VIEW_BROKER_STATS_DATA (315). The first sample follows up to 10 s after the first
        message. Raises RemotingError. Java: ``viewBrokerStatsData``.
        """
        try:
            request = ViewBrokerStatsData(stats_name=name, stats_key=key)
            found = await self._call(broker, request)
        except ResponseError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and "not exist" in error.remark:
                return None
            raise
        return Statistics(*map(_read, (found.stats_minute, found.stats_hour, found.stats_day)))

    async def consume_stats(self, broker: str, *, is_ordered: bool = False) -> BrokerConsumeStats:
        """Return the offsets of every group that has consumed from a broker.

        - ``is_ordered``: True for the groups that consume in order only.

        Sends GET_BROKER_CONSUME_STATS (317), whose cost grows with the groups and their queues.
        Raises RemotingError. Java: ``fetchConsumeStatsInBroker``.
        """
        found = await self._call(broker, GetBrokerConsumeStats(is_order=is_ordered))
        tables = defaultdict[str, dict[MessageQueue, OffsetWrapper]](dict)
        for by_group in found.consume_stats_list:
            for group, by_topic in by_group.items():
                for stats in by_topic:
                    tables[group].update(stats.offset_table)
        groups = [lag_of(group, table) for group, table in sorted(tables.items())]
        # RocketMQ: the figure is negative after offsets were set
        in_flight = max(found.total_inflight_diff, 0)
        return BrokerConsumeStats(found.total_diff, in_flight, groups)

    # --- cleaning

    async def clean_expired_queues(
        self, broker: str | None = None, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Delete the queue files whose messages are no longer in the log. Return the addresses of
        the brokers that did it.

        - ``broker``: this broker. Without it all masters and slaves, or those of ``cluster``.

        Sends CLEAN_EXPIRED_CONSUMEQUEUE (306) to each broker. Raises ClientError if one of them
        failed; the error lists all. Java: ``cleanExpiredConsumerQueue``.
        """
        return await self._clean(CleanExpiredConsumeQueue(), broker, cluster)

    async def clean_unused_topics(
        self, broker: str | None = None, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Delete the remains of topics that no longer exist. Parameters, result and errors are
        those of ``clean_expired_queues``.

        Sends CLEAN_UNUSED_TOPIC (316) to each broker. Java: ``cleanUnusedTopic``.
        """
        return await self._clean(CleanUnusedTopic(), broker, cluster)

    async def delete_expired_log(
        self, broker: str | None = None, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Delete expired files of the log now, not at the hour of ``deleteWhen``. Parameters,
        result and errors are those of ``clean_expired_queues``.

        Sends DELETE_EXPIRED_COMMITLOG (329) to each broker. A broker may answer before all files
        are deleted. Java: ``deleteExpiredCommitLog``.
        """
        return await self._clean(DeleteExpiredCommitLog(), broker, cluster)

    async def _clean(
        self, request: Request[None], broker: str | None, cluster: str | None
    ) -> tuple[str, ...]:
        if broker is not None:
            addresses = [await self._address(broker)]
        else:
            addresses = [one.address for one in await self.list(cluster)]

        return tuple(await self._servers.change_each(addresses, request))

    # --- reads of old messages

    async def cold_reads(self, broker: str) -> ColdFlowInfo:
        """Return the reads of old messages by each group, with the limits.

        Sends GET_COLD_DATA_FLOW_CTR_INFO (2003). Raises RemotingError. Java:
        ``getColdDataFlowCtrInfo``.
        """
        return await self._call(broker, GetColdFlow())

    async def set_cold_read_limits(self, broker: str, limits: Mapping[str, int]) -> None:
        """Limit how much each group may read of old messages.

        - ``limits``: bytes in five seconds, by group.

        Sends UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001). Limits last until the broker stops. Raises
        ResponseError if the broker refuses. Java: ``updateColdDataFlowCtrGroupConfig``.
        """
        texts = {group: str(limit) for group, limit in limits.items()}
        await self._call(broker, UpdateColdFlow(), properties.encode(texts).encode())

    async def remove_cold_read_limit(self, broker: str, group: str) -> None:
        """Give a group the default limit for old messages again. A group without a limit is no
        error.

        Sends REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2002). Raises RemotingError. Java:
        ``removeColdDataFlowCtrGroupConfig``.
        """
        await self._call(broker, RemoveColdFlow(), group.encode())

    async def set_read_ahead(self, broker: str, *, enabled: bool) -> None:
        """Set if the system of a broker reads ahead in the files of the log.

        Reading ahead makes reads of old messages faster, and fills the page cache. The setting
        lasts until the broker stops. Sends SET_COMMITLOG_READ_MODE (2004). Raises RemotingError.
        Java: ``setCommitLogReadAheadMode``.
        """
        await self._call(broker, SetCommitLogReadMode(mode="0" if enabled else "1"))

    async def _call(self, broker: str, request: Request[ReplyT], body: bytes = b"") -> ReplyT:
        return await self._servers.ask(await self._address(broker), request, body)

    async def _address(self, broker: str) -> str:
        (address,) = await self._servers.brokers_at(broker)
        return address


def _read(item: BrokerStatsItem | None) -> Statistic | None:
    if item is None:
        return None
    return Statistic(item.sum, item.tps, item.avgpt)
