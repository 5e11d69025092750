"""State and problems of replication in a cluster, for `turbopump cluster ha` and the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from turbopump.admin.access import ComparedAccounts, accounts_at, differing_accounts
from turbopump.admin.cluster import ANSWER_S, Servers, broker_named, refuse_unknown_cluster
from turbopump.config import properties
from turbopump.config.addresses import host_of
from turbopump.documentation import page_url
from turbopump.errors import BodyError, ClientError, ConfigError, ProtocolError, RemotingError
from turbopump.plural import counted
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.protocol.requests.controller import EpochCache, GetEpochCache
from turbopump.protocol.requests.namesrv import MASTER_ID, BrokerData
from turbopump.protocol.requests.replication import (
    COMPARING,
    GetBrokerHaStatus,
    HARuntimeInfo,
    ResetMasterFlushOffset,
)


@dataclass(frozen=True, slots=True)
class SlaveReplication:
    """State of one slave, as its master reports it.

    - ``address``: the slave's end of the connection.
    - ``log_end``: position in the log up to which the slave has copied, in bytes.
    - ``proof``: ``proved`` if the slave's log is the beginning of the master's log. None from an
      Apache master, which does not compare.
    """

    address: str
    log_end: int
    behind_bytes: int
    is_in_sync: bool
    bytes_per_second: int
    proof: str | None

    @property
    def seconds_left(self) -> int | None:
        """Estimated seconds until the slave has caught up. None if it gets no bytes now."""
        return seconds_left(self.behind_bytes, self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class BrokerReplication:
    """Replication of one broker, as the broker itself reports it.

    - ``status``: the answer, or None if the broker did not answer.
    - ``fault``: the reason why the broker did not answer, or None.
    - ``settings``: the configuration, which is empty if the broker refuses to show it.
    - ``accounts``: the accounts of the broker, or None if the caller may not see them.
    """

    name: str
    id: int
    address: str
    status: HARuntimeInfo | None
    fault: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    accounts: ComparedAccounts | None = None

    @property
    def copies_from(self) -> str | None:
        """HA address of the master to which this slave is connected. None without a connection."""
        client = None if self.status is None else self.status.ha_client_runtime_info
        return client.master_addr if client is not None and client.last_read_timestamp else None

    @property
    def slaves(self) -> list[SlaveReplication]:
        """Slaves that copy from this broker now. A slave has none."""
        return [] if self.status is None else slaves_of(self.status)

    @property
    def row(self) -> dict[str, Any]:
        """Row of JSON output for this broker. Offsets are positions in the log, in bytes."""
        found: dict[str, Any] = {"broker": self.name, "id": self.id, "address": self.address}
        status = self.status
        if status is None:
            return {**found, "fault": self.fault}
        if not status.master:
            master = status.ha_client_runtime_info
            return {
                **found,
                "role": "slave",
                "log_end": master.max_offset if master is not None else None,
                "copies_from": self.copies_from,
                "does_not_copy": master.fault if master is not None else None,
            }
        slaves = [
            {
                "address": one.address,
                "log_end": one.log_end,
                "behind": one.behind_bytes,
                "in_sync": one.is_in_sync,
                "proof": one.proof,
                "bytes_per_second": one.bytes_per_second,
                "seconds_left": one.seconds_left,
            }
            for one in self.slaves
        ]
        end = status.master_commit_log_max_offset
        return {**found, "role": "master", "log_end": end, "slaves": slaves}


def slaves_of(status: HARuntimeInfo) -> list[SlaveReplication]:
    """Return the slaves that copy from a broker, from its answer. A slave has none."""
    if not status.master:
        return []
    return [
        SlaveReplication(
            one.addr or "",
            one.slave_ack_offset,
            one.diff,
            one.in_sync,
            one.transferred_byte_in_second,
            one.proof,
        )
        for one in status.ha_connection_info
    ]


def seconds_left(behind: int, rate: int) -> int | None:
    """Estimate the seconds until a slave has caught up. Return None if the slave gets no bytes now.

    - ``behind``: the number of bytes that the slave is behind.
    - ``rate``: the bytes per second that are sent to the slave.
    """
    if behind <= 0:
        return 0
    return -(-behind // rate) if rate > 0 else None


async def ask_replicas(servers: Servers, name: str, broker: BrokerData) -> list[BrokerReplication]:
    """Ask the master and the slaves of one broker for their replication. Return the answers sorted
    by id."""
    found = []
    for number, address in sorted(broker.broker_addrs.items()):
        status, fault, settings = None, None, dict[str, str]()
        try:
            status = await servers.call(address, GetBrokerHaStatus(), timeout=ANSWER_S)
        except (RemotingError, BodyError) as error:
            fault = str(error)
        if status is not None:
            try:  # access control may forbid it
                answer = await servers.exchange(address, GetBrokerConfig(), timeout=ANSWER_S)
                settings = properties.decode(answer.body)
            except (RemotingError, ProtocolError, ConfigError):
                settings = {}
        accounts = None if status is None else await accounts_at(servers, address)
        found.append(BrokerReplication(name, number, address, status, fault, settings, accounts))
    return found


class Problem(NamedTuple):
    """Problem in the replication of a broker, and the fix."""

    message: str
    fix: str


def replication_problems(brokers: Sequence[BrokerReplication], n: str) -> Iterator[Problem]:
    """Yield the problems in the replication of one broker name.

    - ``brokers``: the answers of the master and its slaves.
    - ``n``: the option -n for suggested commands.
    """
    name = brokers[0].name
    master = next((one for one in brokers if one.id == MASTER_ID), None)
    if master is None:
        fix = "start its master again, or one with the same brokerName and brokerId=0"
        if any(one.settings.get("enableControllerMode") == "true" for one in brokers):
            fix = (
                f"its controllers elect one; see why they do not: turbopump controller replicas {n}"
            )
        yield Problem("it has no master now: consumers read from its slaves, and sends fail", fix)
    slaves = [one for one in brokers if one.id != MASTER_ID]
    idle = [one for one in slaves if one.status is not None and one.copies_from is None]
    if master is not None:
        for one in idle:
            yield _slave_not_copying(one, n)
        for one in slaves:
            yield from _account_problems(master, one)
    if master is None or master.status is None or not master.status.master:
        return
    copying = master.status.ha_connection_info
    hosts = len({host_of(one.addr or "") for one in copying})
    yield from _setting_problems(name, master.settings, len(slaves), hosts, n)
    if len(copying) + len(idle) < len(slaves):
        yield Problem(
            f"{len(copying)} of its {counted(len(slaves), 'slave')} copy from it",
            "read the cause in the logs of the others (the slave does not copy cause=…)",
        )
    for slave in copying:
        if slave.proof == COMPARING:
            yield Problem(
                f"its slave {slave.addr} still compares its log with the master's and copies no "
                "messages yet",
                f"wait, then look again: turbopump cluster ha {n}",
            )
        elif not slave.in_sync:
            rate = slave.transferred_byte_in_second
            seconds = seconds_left(slave.diff, rate)
            left = "" if rate <= 0 else f", about {seconds} s at {rate:,} bytes/s"
            fix = (
                "check that slave's disk and the network; see the progress with "
                f"turbopump cluster ha {n}"
            )
            if master.settings.get("enableControllerMode") == "true":
                fix = (
                    f"see whether its controller knows it: turbopump controller replicas {n}; {fix}"
                )
            yield Problem(
                f"its slave {slave.addr} is not in sync, {slave.diff:,} bytes behind{left}", fix
            )


def open_ha_port(master: BrokerReplication) -> Problem | None:
    """Return a problem if any machine can connect to a master's HA port and get all messages.

    Apache's brokers are not reported, because their port can never be closed.
    """
    if "haAllowedPeers" not in master.settings:
        return None
    from turbopump.config.broker_config import CLOSE_HA_PORT, BrokerConfig  # few commands need it
    from turbopump.config.setting import build

    try:
        is_open = build(BrokerConfig, master.settings, {}).ha_port_is_open
    except ConfigError:  # a setting of another release
        return None
    message = f"haListenPort of {master.address} gives all messages to anyone who can connect to it"
    return Problem(message, CLOSE_HA_PORT) if is_open else None


def _slave_not_copying(slave: BrokerReplication, n: str) -> Problem:
    client = None if slave.status is None else slave.status.ha_client_runtime_info
    knows = None if client is None else client.master_addr
    fault = None if client is None else client.fault
    return Problem(
        f"its slave {slave.id} ({slave.address}) does not copy"
        + (f" from {knows}" if knows else ": no name server has the address of its master")
        + (f": {fault}" if fault else ""),
        "read the cause in the log of the slave (the slave does not copy cause=…) and of its "
        f"master; {page_url('docs/guide/cluster.md')} has the fix for each cause; then check with "
        f"turbopump cluster ha {n}",
    )


def _account_problems(master: BrokerReplication, slave: BrokerReplication) -> Iterator[Problem]:
    if master.accounts is None or slave.accounts is None:
        return
    differing = differing_accounts(master.accounts, slave.accounts)
    if differing is not None:
        yield Problem(
            f"its slave {slave.id} ({slave.address}) has other users and policies than its "
            f"master: {differing}",
            "read the cause in the slave's log (users and policies stay as they are cause=…); both "
            "need authenticationEnabled=true and the same innerClientAuthenticationCredentials",
        )


def _setting_problems(
    name: str, settings: Mapping[str, str], slaves: int, hosts: int, n: str
) -> Iterator[Problem]:
    """Yield the problems in the settings of a SYNC_MASTER.

    - ``slaves``: the number of registered slaves.
    - ``hosts``: the number of different hosts from which slaves copy.
    """
    if settings.get("brokerRole") != "SYNC_MASTER":
        return
    if settings.get("enableControllerMode") == "true":
        return  # the sync state set counts: see `doctor/controllers.py`
    in_sync_replicas = settings.get(
        "inSyncReplicas", "2"
    )  # Apache 4 has no such key and waits for 1
    wanted = 0
    if in_sync_replicas.isdecimal():
        wanted = int(in_sync_replicas) - 1
    waits_for = f"it waits for {counted(wanted, 'slave')} (inSyncReplicas={wanted + 1})"
    if wanted <= 0:
        yield Problem(
            "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave: acknowledged "
            "messages are lost with its machine",
            "set inSyncReplicas=2 in its broker.conf and restart it (first turbopump broker drain "
            f"{name} {n}); or set brokerRole=ASYNC_MASTER",
        )
    if slaves < wanted:
        yield Problem(
            f"{waits_for} and has {slaves}: sends are answered SLAVE_NOT_AVAILABLE",
            f"start another slave: turbopump broker -c FILE with brokerName={name}, "
            f"brokerRole=SLAVE, brokerId={slaves + 1}; or set a smaller inSyncReplicas",
        )
    elif 0 < hosts < wanted:
        yield Problem(
            f"{waits_for}, and its slaves count as {hosts}: slaves at one address count as one",
            f"run slaves on {wanted} machines, or set inSyncReplicas={hosts + 1}",
        )


class Replication:
    """Operations on masters and slaves: what each has, who is in sync, and problems.

    The parameter ``broker`` of an operation is a brokerName, which means the master, ``NAME:ID``
    for a slave, or ``HOST:PORT``.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def states(self, cluster: str | None = None) -> list[BrokerReplication]:
        """Return the replication of each broker, sorted by name and id.

        Sends GET_BROKER_HA_STATUS (907) to each broker, and GET_BROKER_CONFIG (26) to a master. A
        broker that does not answer has a ``fault`` in the result. Raises RemotingError if no name
        server answers, and ClientError for an unknown cluster. Java: ``getBrokerHAStatus``.
        """
        info = await self._servers.brokers()
        if cluster is not None:
            refuse_unknown_cluster(info, cluster)
        return [
            one
            for name, broker in sorted(info.broker_addr_table.items())
            if cluster in (None, broker.cluster)
            for one in await ask_replicas(self._servers, name, broker)
        ]

    async def status(self, broker: str) -> HARuntimeInfo:
        """Return the state of replication of one broker, as the broker reports it.

        Sends GET_BROKER_HA_STATUS (907). Raises RemotingError. Java: ``getBrokerHAStatus``.
        """
        (address,) = await self._servers.brokers_at(broker)
        return await self._servers.ask(address, GetBrokerHaStatus())

    async def slaves(self, broker: str) -> list[SlaveReplication]:
        """Return the slaves that copy from a master now: in sync or not, and bytes behind.

        Sends GET_BROKER_HA_STATUS (907). Raises RemotingError. Java: ``getBrokerHAStatus``.
        """
        return slaves_of(await self.status(broker))

    async def epochs(self, broker: str) -> EpochCache:
        """Return the epochs in the log of a replica: which masters have written it, and from which
        offset on.

        Sends GET_BROKER_EPOCH_CACHE (1007). Raises RemotingError, also for a broker without a
        controller. Java: ``getBrokerEpochCache``.
        """
        (address,) = await self._servers.brokers_at(broker)
        return await self._servers.ask(address, GetEpochCache())

    async def problems(self, cluster: str | None = None) -> dict[str, list[Problem]]:
        """Return the problems of replication by brokerName, each with its fix. A broker without
        problems is left out.

        Sends the requests of ``states``, and AUTH_LIST_USER (3005) and AUTH_LIST_ACL (3010) to
        compare the accounts of masters and slaves. Raises the errors of ``states``.
        """
        n = self._servers.n_option
        found = {
            name: list(replication_problems(list(replicas), n))
            for name, replicas in groupby(await self.states(cluster), lambda one: one.name)
        }
        return {name: problems for name, problems in found.items() if problems}

    async def differing_accounts(self, broker: str) -> dict[int, str]:
        """Compare the users and policies of a broker's slaves with those of its master. Return the
        differences by brokerId of the slave, without secrets.

        - ``broker``: the brokerName.

        A slave with equal accounts is left out. So is a server that does not show its accounts:
        passwords are compared only for a Super user. Raises RemotingError, and ClientError for an
        unknown broker and for one without a master.
        """
        addresses = broker_named(await self._servers.brokers(), broker).broker_addrs
        if MASTER_ID not in addresses:
            raise ClientError(f"broker {broker} has no master now")
        expected = await accounts_at(self._servers, addresses[MASTER_ID])
        found = {}
        for number, address in sorted(addresses.items()):
            its = None if number == MASTER_ID else await accounts_at(self._servers, address)
            if expected is not None and its is not None:
                difference = differing_accounts(expected, its)
                if difference is not None:
                    found[number] = difference
        return found

    async def reset_master_flush_offset(self, broker: str, offset: int) -> None:
        """Tell a slave the position up to which its master has flushed the log.

        Our slave ignores it; Apache's slave shows it in ``status``. A master ignores it. Sends
        RESET_MASTER_FLUSH_OFFSET (908). Raises RemotingError. Java: ``resetMasterFlushOffset``.
        """
        (address,) = await self._servers.brokers_at(broker)
        await self._servers.ask(address, ResetMasterFlushOffset(master_flush_offset=offset))
