"""Route table of a name server: the addresses and topics of all brokers.

Each broker stays in the table until it unregisters, its connection ends, or it was silent for too
long. This module has no network, no clock and no waiting. Callers pass times (monotonic seconds)
and connections (any object, compared by identity) as values. Bytes and requests are unknown here.
Source of the rules: apache/rocketmq `RouteInfoManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from turbopump.log_keys import LogKeys
from turbopump.message.rules import MEMBERS_PREFIX
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
    TopicQueueMappingInfo,
)


class RouteTable:
    """Table of the brokers and topics that one name server knows.

    - ``support_acting_master``: True to show the slave with the smallest id as the master of a
      broker that has none.
    - ``delete_missing_topics``: True to remove the topics of a broker that its new registration
      does not list.
    """

    def __init__(
        self, *, support_acting_master: bool = False, delete_missing_topics: bool = False
    ) -> None:
        self._support_acting_master = support_acting_master
        self._delete_missing_topics = delete_missing_topics
        self._brokers: dict[str, BrokerData] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self._drained: set[str] = set()
        """Names of brokers whose write permission an operator has removed."""
        self.registrations: Counter[str] = Counter()
        """Number of registrations by their result, the name of its class in lower case."""
        self.removals: Counter[str] = Counter(silent=0, connection_lost=0)
        """Number of brokers that were removed without a request, by cause."""
        self.on_change: Callable[[str | None], None] = lambda _topic: None
        """Called with each topic whose route has changed, or with None if any route may have
        changed."""
        self.on_smallest_id: Callable[[SmallestIdChange], None] = lambda _change: None
        """Called when another broker of a name has the smallest id now, if slaves of that name may
        act as the master."""

    # Requests of brokers.

    def register(
        self, registration: Registration, connection: object, now: float
    ) -> Accepted | Superseded | Occupied | Incomplete:
        """Register a broker and its topics. Return the result: accepted, ignored or refused.

        - ``Accepted``: the broker was registered.
        - ``Superseded``: the registration is ignored.
        - ``Occupied``, ``Incomplete``: the registration is refused.
        """
        # A name and id belong to one address at a time. If a live broker at another address has
        # them, the versions of the topics decide. An older version is ignored. The same version is
        # refused, because two processes run, unless it arrives on the owner's connection: then the
        # broker has a new address. A newer version replaces the owner (``_with_address``). Topics
        # count only if they come from the master, or from the slave that acts for it.
        broker = registration.broker
        topics = registration.topics
        addresses = self._brokers[broker.name].broker_addrs if broker.name in self._brokers else {}
        owner = self._owner(broker, addresses)
        if owner is not None:
            state, newest = topics.data_version.state_version, owner.data_version.state_version
            if state < newest:
                rejected = self._live.get((broker.cluster, broker.address))
                if rejected is not None:
                    self._remove_broker(rejected)
                return Superseded(owner.broker.address)
            if state == newest and owner.connection is not connection:
                return Occupied(owner.broker, owner.connection)
        first = broker.id not in addresses
        if first and len(topics.topic_config_table) == 1:
            return Incomplete()

        smallest = min(addresses, default=MASTER_ID)
        known = self._with_address(registration)
        leads = broker.id == MASTER_ID or (
            registration.acting_master is not None and broker.id == min(known.broker_addrs)
        )
        if leads:
            self._take_topics(registration, known, first)
        before = self._live.get((broker.cluster, broker.address))
        if before is None or before.filter_servers != registration.filter_servers:
            self.on_change(None)
        self._live[broker.cluster, broker.address] = LiveBroker(
            broker,
            connection,
            topics.data_version,
            registration.ha_address,
            registration.filter_servers,
            registration.timeout_ms,
            now,
        )
        if broker.id < smallest and known.enable_acting_master:
            others = [one for one in known.broker_addrs if one != broker.id]
            self._note_smallest_id(known, others, ha_address=registration.ha_address)
        return self._master_for(broker, known)

    def heartbeat(self, cluster: str, address: str, now: float) -> bool:
        """Restart the time-out of a registered broker. Return False if no broker has this
        address."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.heard_at = now
        return True

    def unregister(self, broker: BrokerIdentity, connection: object) -> bool:
        """Remove a broker from the table. Only the connection that registered the broker may do
        this.

        Return False if the connection did not register a broker with this name, id and address.
        RocketMQ removes any broker at the address, so a late request of a stopped process removes
        its successor (#4522, #9411).
        """
        live = self._live.get((broker.cluster, broker.address))
        if live is None or live.connection is not connection or live.broker != broker:
            return False
        self._remove_broker(live)
        return True

    def connection_lost(self, connection: object) -> list[BrokerIdentity]:
        """Remove and return every broker that was registered on this connection."""
        gone = [live for live in self._live.values() if live.connection is connection]
        self.removals["connection_lost"] += len(gone)
        return [live.broker for live in self._forget_all(gone)]

    def expire(self, now: float) -> list[tuple[BrokerIdentity, object]]:
        """Remove each broker whose silence has exceeded its time-out.

        Return each removed broker with its connection, which the caller closes.
        """
        silent = [
            live for live in self._live.values() if live.heard_at + live.timeout_ms / 1000 < now
        ]
        self.removals["silent"] += len(silent)
        return [(live.broker, live.connection) for live in self._forget_all(silent)]

    # Queries.

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the topics in a broker's last registration. Return None for an
        unknown broker."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the queues and brokers of a topic. Return None if no live broker has the topic."""
        queues = self._queues.get(topic, {})
        brokers = [_copied(self._brokers[name]) for name in queues if name in self._brokers]
        if not brokers:
            return None
        # by the routes of these topics Apache's brokers notice that a master is away
        if self._support_acting_master and not topic.startswith(MEMBERS_PREFIX):
            _show_acting_masters(brokers, queues)
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=brokers,
            filter_server_table=self._filter_servers(brokers),
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def cluster_info(self) -> ClusterInfo:
        """Return two tables: the brokers by name, and the broker names by cluster."""
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster or "", []).append(name)
        names = {cluster: tuple(members) for cluster, members in clusters.items()}
        return ClusterInfo(broker_addr_table=self._brokers, cluster_addr_table=names)

    def clusters(self) -> set[str]:
        """Return the name of each cluster that has a broker."""
        return {broker.cluster or "" for broker in self._brokers.values()}

    def member_group(self, cluster: str, name: str) -> BrokerMemberGroup:
        """Return the live brokers with this name: a master and its slaves.

        The group is empty if the name is unknown.
        """
        broker = self._brokers.get(name)
        addresses = dict(broker.broker_addrs) if broker is not None else {}
        return BrokerMemberGroup(cluster=cluster, broker_name=name, broker_addrs=addresses)

    def topics(self) -> tuple[str, ...]:
        """Return all topics of live brokers."""
        return tuple(self._queues)

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        """Return the topics of all brokers in a cluster. An unknown cluster has no topics."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return tuple(
            topic for topic, queues in self._queues.items() if not names.isdisjoint(queues)
        )

    def system_topics(self) -> TopicList:
        """Return the names of clusters and brokers, because these are also topics. Add the address
        of one broker."""
        clusters = {broker.cluster or "": None for broker in self._brokers.values()}
        address = next(
            (one for broker in self._brokers.values() for one in broker.broker_addrs.values()), None
        )
        return TopicList(topic_list=(*clusters, *self._brokers), broker_addr=address)

    def topics_flagged(self, mask: int, flags: int) -> tuple[str, ...]:
        """Return each topic whose system flag, masked with ``mask``, equals ``flags``.

        As in RocketMQ, the flag that any one broker has registered decides.
        """
        return tuple(
            topic
            for topic, queues in self._queues.items()
            if next(iter(queues.values())).topic_sys_flag & mask == flags
        )

    @property
    def broker_count(self) -> int:
        """Number of known broker names."""
        return len(self._brokers)

    @property
    def address_count(self) -> int:
        """Number of registered brokers, each master and each slave."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Number of topics with a route."""
        return len(self._queues)

    # Changes by operators. A removed write permission survives new registrations. It ends with
    # add_write_perm or when the broker's master is gone. Other changes end when the broker
    # registers a newer version of its topics.

    def wipe_write_perm(self, name: str) -> int:
        """Remove the write permission from all topics of a broker. Return the number of topics.

        The permission stays removed until ``add_write_perm``, or until the broker's master is gone.
        RocketMQ restores it when the broker registers a newer version of its topics.
        """
        if name in self._brokers:
            self._drained.add(name)
        return self._change_perms(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """Add read and write permission to all topics of a broker. Return the number of topics.

        RocketMQ also removes the inherit permission until the broker registers a newer version.
        """
        self._drained.discard(name)
        return self._change_perms(name, lambda perm: perm | PERM_READ | PERM_WRITE)

    def set_queues(self, topic: str, queues: list[QueueData]) -> str | None:
        """Set the queues of a topic on each of the given brokers.

        Return None, or the name of a broker that is not registered. In that case nothing is
        changed. The numbers of queues must be valid.
        """
        strangers = [one.broker_name for one in queues if one.broker_name not in self._brokers]
        if strangers:
            return str(strangers[0])
        for one in queues:
            if one.broker_name in self._drained:
                one.perm &= ~PERM_WRITE
            self._queues.setdefault(topic, {})[one.broker_name or ""] = one
        self.on_change(topic)
        return None

    def delete_topic(self, topic: str, cluster: str | None = None) -> int:
        """Remove a topic from the brokers of one cluster, or of all clusters.

        Return the number of brokers that had the topic.
        """
        names = [
            name
            for name in self._queues.get(topic, {})
            if cluster is None or (name in self._brokers and self._brokers[name].cluster == cluster)
        ]
        for name in names:
            self._drop_queues(topic, name)
        return len(names)

    # Consistency of the tables.

    def _owner(self, broker: BrokerIdentity, addresses: dict[int, str]) -> LiveBroker | None:
        """Return the live owner of a broker's name and id, if its address is another one. Otherwise
        return None."""
        address = addresses.get(broker.id)
        if address is None or address == broker.address:
            return None
        return self._live.get((broker.cluster, address))

    def _with_address(self, registration: Registration) -> BrokerData:
        """Record the address of a broker under its name and id. Return the entry of the name.

        The address is removed from all other entries.
        """
        broker = registration.broker
        for live in list(self._live.values()):
            other = live.broker
            same_part = (other.name, other.id) == (broker.name, broker.id)
            same_address = (other.cluster, other.address) == (broker.cluster, broker.address)
            if other != broker and (same_part or same_address):
                self._remove_broker(live)
        known = self._brokers.setdefault(broker.name, BrokerData(broker_name=broker.name))
        before = _copied(known)
        known.cluster = broker.cluster
        known.zone_name = registration.zone
        known.enable_acting_master = bool(registration.acting_master)
        known.broker_addrs[broker.id] = broker.address
        if known != before:
            self.on_change(None)
        return known

    def _take_topics(self, registration: Registration, known: BrokerData, first: bool) -> None:
        broker, topics = registration.broker, registration.topics
        previous = self.data_version(broker.cluster, broker.address)
        changed = first or previous is None or previous != topics.data_version
        acting = broker.id != MASTER_ID and known.enable_acting_master
        writable = not acting and broker.name not in self._drained
        whole = not registration.partial and not topics.topic_queue_mapping_info_map
        if self._delete_missing_topics and whole:
            for topic in self._queues.keys() - topics.topic_config_table.keys():
                self._drop_queues(topic, broker.name)
        for key, config in topics.topic_config_table.items():
            topic = config.topic_name or key
            queues = self._queues.setdefault(topic, {})
            # RocketMQ: under a version already seen, only topics that are new to this broker count.
            if changed or broker.name not in queues:
                queue = _queue_data(broker.name, config, writable=writable)
                if queues.get(broker.name) != queue:
                    queues[broker.name] = queue
                    self.on_change(topic)
        if changed:
            for topic, info in topics.topic_queue_mapping_info_map.items():
                self._mappings.setdefault(topic, {})[info.bname or broker.name] = info
                self.on_change(topic)

    def _master_for(self, broker: BrokerIdentity, known: BrokerData) -> Accepted:
        master = known.broker_addrs.get(MASTER_ID)
        if broker.id == MASTER_ID or master is None:
            return Accepted()
        live = self._live.get((broker.cluster, master))
        return Accepted(master, live.ha_address) if live is not None else Accepted()

    def _forget_all(self, gone: list[LiveBroker]) -> list[LiveBroker]:
        for live in gone:
            self._remove_broker(live)
        return gone

    def _remove_broker(self, live: LiveBroker) -> None:
        broker = live.broker
        self.on_change(None)
        del self._live[broker.cluster, broker.address]
        known = self._brokers.get(broker.name)
        if known is None or known.broker_addrs.get(broker.id) != broker.address:
            return
        had_smallest_id = broker.id == min(known.broker_addrs)
        del known.broker_addrs[broker.id]
        if broker.id == MASTER_ID or not known.broker_addrs:
            self._drained.discard(broker.name)
        if not known.broker_addrs:
            del self._brokers[broker.name]
            tables = (self._queues, self._mappings)
            for topic in [
                topic for table in tables for topic in table if broker.name in table[topic]
            ]:
                self._drop_queues(topic, broker.name)
        elif known.enable_acting_master and min(known.broker_addrs) != MASTER_ID:
            self._change_perms(broker.name, lambda perm: perm & ~PERM_WRITE)
        if had_smallest_id and known.broker_addrs and known.enable_acting_master:
            self._note_smallest_id(known, list(known.broker_addrs), offline=broker.address)

    def _note_smallest_id(
        self,
        known: BrokerData,
        ids: list[int],
        *,
        offline: str | None = None,
        ha_address: str | None = None,
    ) -> None:
        """Report that another broker of a name has the smallest id now.

        ``ids`` are the brokers that are notified. RocketMQ: ``chooseBrokerAddrsToNotify``.
        """
        live = [self._live.get((known.cluster or "", known.broker_addrs[one])) for one in ids]
        smallest = min(known.broker_addrs)
        self.on_smallest_id(
            SmallestIdChange(
                known.broker_name or "",
                smallest,
                known.broker_addrs[smallest],
                offline,
                ha_address,
                tuple(one.connection for one in live if one is not None),
            )
        )

    def _drop_queues(self, topic: str, name: str) -> None:
        for table in (self._queues, self._mappings):
            parts = table.get(topic, {})
            parts.pop(name, None)
            if not parts:
                table.pop(topic, None)
        self.on_change(topic)

    def _change_perms(self, name: str, change: Callable[[int], int]) -> int:
        mine = [queues[name] for queues in self._queues.values() if name in queues]
        for queue in mine:
            queue.perm = change(queue.perm)
        self.on_change(None)
        return len(mine)

    def _filter_servers(self, brokers: list[BrokerData]) -> dict[str, list[str]]:
        live = [
            self._live[broker.cluster or "", address]
            for broker in brokers
            for address in broker.broker_addrs.values()
        ]
        return {one.broker.address: one.filter_servers for one in live if one.filter_servers}


def _queue_data(name: str, config: TopicConfig, *, writable: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm if writable else config.perm & ~PERM_WRITE,
        topic_sys_flag=config.topic_sys_flag,
    )


def _copied(broker: BrokerData) -> BrokerData:
    return msgspec.structs.replace(broker, broker_addrs=dict(broker.broker_addrs))


def _show_acting_masters(brokers: list[BrokerData], queues: dict[str, QueueData]) -> None:
    """Give the id 0 to a slave in each broker without a master. The slave has the smallest id.

    Clients then read from this slave, as in RocketMQ.
    """
    for broker in brokers:
        addresses = broker.broker_addrs
        if not broker.enable_acting_master or MASTER_ID in addresses or not addresses:
            continue
        if not queues[broker.broker_name or ""].perm & PERM_WRITE:
            addresses[MASTER_ID] = addresses.pop(min(addresses))


# Values: the data of a registration, its four possible results, and the stored broker. The rule:
# cluster, name, id and address together identify a broker.
DEFAULT_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Identity of one broker process: its cluster, name, id and address (`host:port`)."""

    cluster: str
    name: str
    id: int
    address: str

    @property
    def keys(self) -> LogKeys:
        """Keys of a log line about this broker."""
        return LogKeys(broker=self.name, id=self.id, address=self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Data that a broker registers with a name server.

    - ``acting_master``: True if a slave may act as the master. None for brokers of 4.x, which do
      not send it.
    - ``partial``: True if the list of topics is incomplete, so the broker's other topics stay.
    """

    broker: BrokerIdentity
    topics: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_servers: list[str] = field(default_factory=list)
    ha_address: str | None = None
    zone: str | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    acting_master: bool | None = None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """Result of an accepted registration.

    - ``master_address``, ``ha_address``: for a slave, the addresses of its live master.
    """

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Result of an ignored registration. Another broker has a newer state.

    - ``owner``: the address of the broker that has the same name and id.
    """

    owner: str


@dataclass(frozen=True, slots=True)
class Occupied:
    """Result of a refused registration. A live broker has the same name and id.

    - ``owner``: the other broker.
    - ``connection``: the connection of the other broker.

    RocketMQ accepts the later broker, so the two brokers alternate while both run.
    """

    owner: BrokerIdentity
    connection: object


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Result of a refused registration. Its list of topics is incomplete.

    A broker's first registration must list all its topics, and this one lists a single topic.
    """


@dataclass(frozen=True, slots=True)
class SmallestIdChange:
    """Change of the smallest id among the live brokers of one name.

    - ``address``: the address of the broker that has the smallest id now.
    - ``offline``: the address of the broker that had it before and is gone, or None.
    - ``ha_address``: the HA address of a broker that has just registered, or None.
    - ``connections``: the connections of the brokers to notify.
    """

    name: str
    id: int
    address: str
    offline: str | None
    ha_address: str | None
    connections: tuple[object, ...]


@dataclass(slots=True)
class LiveBroker:
    """Registered broker. It counts as alive until ``heard_at`` plus ``timeout_ms``."""

    broker: BrokerIdentity
    connection: object
    data_version: DataVersion
    ha_address: str | None
    filter_servers: list[str]
    timeout_ms: int
    heard_at: float
