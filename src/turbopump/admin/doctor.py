"""Find problems of a cluster, a topic or a group, as seen from this machine, each with its fix.

The doctor asks running servers and changes nothing. A server that does not answer is a finding too.
Each finding states one fact, and each problem has a fix.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from turbopump.admin.access import ComparedAccounts, accounts_at, differing_accounts
from turbopump.admin.cluster import Servers
from turbopump.admin.groups import group_members, group_names, group_offsets, running_info
from turbopump.admin.replication import ask_replicas, open_ha_port, replication_problems
from turbopump.admin.topics import find_topic, topic_names, users_topics
from turbopump.client.routes import refuse_other_than_name_server
from turbopump.clock import Clock
from turbopump.config.addresses import host_of, is_loopback
from turbopump.errors import ConnectError, ProtocolError, RemotingError, ResponseError
from turbopump.message.rules import DLQ_PREFIX, did_you_mean
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import Command, reply_in
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.consumers import ConsumerConnection
from turbopump.protocol.requests.groups import GetGroup
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    GetBrokerClusterInfo,
    GetRouteInfo,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import (
    PERM_READ,
    PERM_WRITE,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicConfig,
)
from turbopump.remoting.tls import expiry_warning, peer_certificate_end

CLOCK_TOLERANCE_MS: Final = 5_000
SLOW_MS: Final = 1_000
"""Time in ms above which the answer to a small request is a finding."""
DISK_DELETES: Final = 0.75
DISK_REFUSES: Final = 0.90
"""Apache's ``diskMaxUsedSpaceRatio`` and ``diskSpaceWarningLevelRatio``, as fractions."""
UNFLUSHED_MAX: Final = 256 << 20
UNDISPATCHED_MAX: Final = 64 << 20
"""Bytes of the log without queue entries above which a broker is reported. A healthy disk never
falls this far behind."""
SENDS_WAIT_MS: Final = 200
"""Apache's ``waitTimeMillsInSendQueue`` in ms, after which a broker refuses the send."""
LOG_OF_BROKER: Final = "the broker's log has the details"
_RESTARTED: Final = "; or the broker has just restarted and waits for its slave, 3 s at most"


class Level(StrEnum):
    """Severity of a finding. One ``WRONG`` makes the cluster unhealthy."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding.

    - ``subject``: the server, topic or group.
    - ``message``: one sentence.
    - ``fix``: what to do; a command if there is one.
    """

    level: Level
    subject: str
    message: str
    fix: str = ""


class Doctor:
    """One examination of a cluster over open connections. Findings are appended to ``findings``."""

    def __init__(self, servers: Servers, clock: Clock) -> None:
        self.findings: list[Diagnosis] = []
        self._servers = servers
        self._clock = clock
        self._masters: list[str] = []
        """Addresses of the masters that have answered."""
        self._accounts: dict[str, ComparedAccounts] = {}
        """Accounts by server address, for servers that show them."""

    @property
    def healthy(self) -> bool:
        return all(finding.level is not Level.WRONG for finding in self.findings)

    async def examine(self, topic: str | None, group: str | None) -> None:
        """Check the name servers, all brokers that they know, and the given topic and group."""
        cluster = await self._check_name_servers()
        if cluster is None:
            return
        for name, broker in sorted(cluster.broker_addr_table.items()):
            await self._check_broker(name, broker)
            await self._check_replication(name, broker)
        self._compare_accounts()
        if topic is not None and self._masters:
            subject = f"topic {topic}"
            await self._check_reachable(subject, self._check_topic(subject, topic, cluster))
        if group is not None and self._masters:
            subject = f"group {group}"
            await self._check_reachable(subject, self._check_group(subject, group, topic))

    async def _check_reachable(self, subject: str, check: Coroutine[Any, Any, None]) -> None:
        try:
            await check
        except (RemotingError, ProtocolError) as error:
            self._add(Level.WRONG, subject, f"it cannot be checked: {error}", LOG_OF_BROKER)

    def _add(self, level: Level, subject: str, message: str, fix: str = "") -> None:
        self.findings.append(Diagnosis(level, subject, message, fix))

    @property
    def _n(self) -> str:
        """Return the -n option for suggested commands."""
        return f"-n '{';'.join(self._servers.name_servers)}'"

    # --- name servers

    async def _check_name_servers(self) -> ClusterInfo | None:
        """Ask the name servers. Return all the brokers that they know, or None."""
        known: dict[str, ClusterInfo] = {}
        for address in self._servers.name_servers:
            subject = f"name server {address}"
            request = GetBrokerClusterInfo()
            try:
                answer = await self._servers.exchange(address, request)
                refuse_other_than_name_server(address, answer)
                known[address] = reply_in(_successful(answer, request, address), request)
            except (RemotingError, ProtocolError) as error:
                self._add(Level.WRONG, subject, *_of_name_server(error))
                continue
            count = _count(len(known[address].broker_addr_table), "broker")
            self._add(Level.OK, subject, f"{_software(answer)}, knows {count}")
            self._check_certificate(subject, address)
            await self._check_accounts(subject, address)
        everything = ClusterInfo(
            broker_addr_table={
                name: broker
                for info in reversed(known.values())
                for name, broker in info.broker_addr_table.items()
            },
            cluster_addr_table={
                name: brokers
                for info in known.values()
                for name, brokers in info.cluster_addr_table.items()
            },
        )
        self.findings += differences(known)
        self.findings += rival_masters(known)
        if known and not everything.broker_addr_table:
            self._add(
                Level.WRONG,
                "brokers",
                "no broker is registered",
                f"start one: turbopump broker {self._n} --data DIR; one that runs must name these "
                "name servers in namesrvAddr, and its log has the reason of a failed registration",
            )
        return everything if everything.broker_addr_table else None

    # --- brokers

    async def _check_broker(self, name: str, broker: BrokerData) -> None:
        for number, address in sorted(broker.broker_addrs.items()):
            role = "" if number == MASTER_ID else f", slave {number}"
            subject = f"broker {name}{role}"
            self._check_address(subject, address)
            if await self._check_member(subject, name, address) and number == MASTER_ID:
                self._masters.append(address)

    def _check_address(self, subject: str, address: str) -> None:
        elsewhere = [one for one in self._servers.name_servers if not _is_of_this_machine(one)]
        if _is_of_this_machine(address) and elsewhere:
            self._add(
                Level.WRONG,
                subject,
                f"it advertises {address}, which every client takes for its own machine, while "
                f"other machines can reach the name server {elsewhere[0]}",
                _advertise(address),
            )

    async def _check_member(self, subject: str, name: str, address: str) -> bool:
        """Return True if a broker of this name answers at its address."""
        request = GetBrokerRuntimeInfo()
        asked = self._clock.now_ms()
        began = self._clock.monotonic()
        try:
            answer = await self._servers.exchange(address, request)
            took_ms = (self._clock.monotonic() - began) * 1000
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._add(
                    Level.WRONG,
                    subject,
                    f"{address} is answered by another server, which is not a broker",
                    _advertise(address),
                )
                return False
            table = reply_in(_successful(answer, request, address), request).table
            # every broker has a topic under its own name
            own = await self._servers.exchange(address, GetTopicConfig(topic=name))
        except (RemotingError, ProtocolError) as error:
            self._add(Level.WRONG, subject, *_of_broker(address, error))
            return False
        if own.code == ResponseCode.TOPIC_NOT_EXIST:
            self._add(
                Level.WRONG,
                subject,
                f"{address} is answered by a different broker: two brokers advertise the same "
                "address",
                _advertise(address),
            )
            return False
        found = judge_runtime(subject, table, asked + took_ms / 2)
        self.findings += found
        slow = took_ms > SLOW_MS
        version = table.get("brokerVersionDesc", "of an unknown version")
        version = version.removeprefix("V").replace("_", ".").lower()
        self._add(
            Level.NOTE if slow else Level.OK,
            subject,
            f"{address} answers in {took_ms:.0f} ms; RocketMQ {version}, {_clock(table, asked)}, "
            f"{_room(table)}",
            "check the load of its machine and the network" if slow else "",
        )
        self._check_certificate(subject, address)
        await self._check_accounts(subject, address)
        return True

    async def _check_replication(self, name: str, broker: BrokerData) -> None:
        brokers = await ask_replicas(self._servers, name, broker)
        problems = list(replication_problems(brokers, self._n))
        self.findings += [Diagnosis(Level.WRONG, f"broker {name}", *one) for one in problems]
        masters = [one.status for one in brokers if one.status is not None and one.status.master]
        in_sync = sum(one.in_sync for status in masters for one in status.ha_connection_info)
        if in_sync and not problems:
            self._add(Level.OK, f"broker {name}", f"{_count(in_sync, 'slave')} in sync")
        notes = filter(None, map(open_ha_port, brokers))
        self.findings += [Diagnosis(Level.NOTE, f"broker {name}", *one) for one in notes]

    def _check_certificate(self, subject: str, address: str) -> None:
        """Check the certificate of a server that was asked over TLS."""
        connection = self._servers.connection(address)
        end = None if connection is None else peer_certificate_end(connection.transport)
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        warning = None if end is None else expiry_warning(end, now)
        if warning is not None:
            self._add(
                Level.WRONG,
                subject,
                f"its TLS certificate {warning}",
                "write the new one over tls.server.certPath and tls.server.keyPath: the server "
                "loads it at once, without a restart",
            )

    async def _check_accounts(self, subject: str, address: str) -> None:
        """Check the accounts file of a server with access control, if the server shows it."""
        its = await accounts_at(self._servers, address)
        if its is None:
            return
        self._accounts[address] = its
        if its.warning:
            self._add(
                Level.WRONG,
                subject,
                its.warning,
                "if others may have read the file, also give its users new passwords",
            )

    def _compare_accounts(self) -> None:
        """Compare the users of name servers and masters, because each server keeps its own.
        `admin.replication` compares slaves with their master."""
        addresses = (*self._servers.name_servers, *self._masters)
        found = [self._accounts[one] for one in addresses if one in self._accounts]
        keeping = [one for one in found if one.accounts is not None]
        for other in keeping[1:]:
            first = keeping[0]
            differing = differing_accounts(first, other)
            if differing is not None:
                self._add(
                    Level.NOTE,
                    "accounts",
                    f"{other.server} has other users and policies than {first.server}: {differing}",
                    "make the missing change with turbopump auth user|policy … (all servers; with "
                    "--server ADDR one of them)",
                )

    # --- a topic

    async def _check_topic(self, subject: str, topic: str, cluster: ClusterInfo) -> None:
        route = await self._route(subject, topic, cluster)
        if route is None:
            return
        settings = await find_topic(self._servers, self._masters, topic)
        addresses = {one.broker_name: one.broker_addrs for one in route.broker_datas}
        found: list[Diagnosis] = []
        for queues in sorted(route.queue_datas, key=lambda one: one.broker_name or ""):
            address = addresses.get(queues.broker_name, {}).get(MASTER_ID, "")
            found += judge_queues(subject, topic, queues, settings.get(address), self._n)
        absent = sorted(set(self._masters) - set(settings))
        if absent:
            self._add(
                Level.NOTE,
                subject,
                f"it is not on {', '.join(absent)}",
                f"turbopump topic create {topic} --if-not-exists {self._n}",
            )
        self.findings += found
        if not any(finding.level is Level.WRONG for finding in found):
            writable = sum(one.write_queue_nums for one in route.queue_datas)
            messages = await self._messages(topic, settings)
            brokers = ", ".join(sorted(one.broker_name or "" for one in route.queue_datas))
            message = f"{_count(writable, 'queue')} on {brokers}, {messages:,} messages stored"
            self._add(Level.OK, subject, message)

    async def _route(self, subject: str, topic: str, cluster: ClusterInfo) -> TopicRouteData | None:
        known: dict[str, TopicRouteData] = {}
        absent: list[str] = []
        for address in self._servers.name_servers:
            try:
                known[address] = await self._servers.call(address, GetRouteInfo(topic=topic))
            except ResponseError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    absent.append(address)
            except (RemotingError, ProtocolError):
                continue  # already reported
        if known and absent:
            self._add(
                Level.WRONG,
                subject,
                f"the name server {', '.join(known)} knows it, {', '.join(absent)} does not",
                "the broker must register with all of them: namesrvAddr in its broker.conf",
            )
        if known:
            return next(iter(known.values()))
        there = await find_topic(self._servers, self._masters, topic)
        if there:
            self._add(
                Level.WRONG,
                subject,
                f"{', '.join(there)} has it, and no name server knows it: the broker cannot "
                "register",
                f"{LOG_OF_BROKER} (registration failed); check its namesrvAddr",
            )
        else:
            near = did_you_mean(topic, users_topics(await topic_names(self._servers), cluster))
            self._add(
                Level.WRONG,
                subject,
                f"it does not exist{near}",
                f"turbopump topic create {topic} {self._n}",
            )
        return None

    async def _messages(self, topic: str, settings: Mapping[str, TopicConfig]) -> int:
        tables = [
            await self._servers.call(address, GetTopicStatsInfo(topic=topic))
            for address in settings
        ]
        return sum(
            max(one.max_offset - one.min_offset, 0)
            for table in tables
            for one in table.offset_table.values()
        )

    # --- a group

    async def _check_group(self, subject: str, group: str, topic: str | None) -> None:
        names = await group_names(self._servers, self._masters)
        if group not in names:
            near = did_you_mean(group, names)
            self._add(
                Level.WRONG,
                subject,
                f"no broker knows it{near}",
                "start a consumer of it: brokers create a group when its first consumer starts",
            )
            return
        await self._check_settings(subject, group)
        members = await group_members(self._servers, self._masters, group)
        rows = await group_offsets(self._servers, self._masters, group, topic)
        before = len(self.findings)
        self.findings += judge_members(subject, group, topic, members, self._masters)
        await self._ask_members(subject, group, members)
        await self._check_dead_letters(subject, group)
        clients = {one.client_id for body in members.values() for one in body.connection_set}
        behind = sum(row["behind"] for row in rows)
        if behind and not clients:
            self._add(
                Level.WRONG,
                subject,
                f"lag {behind:,}, and no consumer of the group is running",
                f"start one with group={group!r}",
            )
        elif not any(one.level is Level.WRONG for one in self.findings[before:]):
            message = f"{_count(len(clients), 'consumer')}, {self._lag(rows)}"
            self._add(Level.NOTE if behind else Level.OK, subject, message)

    def _lag(self, rows: Sequence[Mapping[str, int]]) -> str:
        behind = sum(row["behind"] for row in rows)
        if not behind:
            return "no lag" if rows else "no committed offset yet"
        read = [row["last_timestamp"] for row in rows if row["behind"] and row["last_timestamp"]]
        since = f"; its last read message was stored {self._ago(min(read))} ago" if read else ""
        return f"lag {behind:,}{since}"

    def _ago(self, ms: int) -> str:
        seconds = max(self._clock.now_ms() - ms, 0) // 1000
        for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
            if seconds >= 2 * size:
                return f"{seconds // size} {unit}"
        return f"{seconds} s"

    async def _check_settings(self, subject: str, group: str) -> None:
        for address in self._masters:
            try:
                settings = await self._servers.call(address, GetGroup(group=group))
            except (RemotingError, ProtocolError):
                continue  # a broker of 4.x refuses this request; others create an unknown group
            if not settings.consume_enable:
                self._add(
                    Level.WRONG,
                    subject,
                    f"{address} forbids it to consume (consumeEnable=false)",
                    f"mqadmin updateSubGroup {self._n} -b {address} -g {group} -s true",
                )

    async def _ask_members(
        self, subject: str, group: str, members: Mapping[str, ConsumerConnection]
    ) -> None:
        asked: set[str] = set()
        for address, body in members.items():
            for one in body.connection_set:
                client_id = one.client_id or ""
                if client_id in asked:
                    continue
                asked.add(client_id)
                info = await running_info(self._servers, address, group, client_id)
                if isinstance(info, str):
                    self._add(
                        Level.WRONG,
                        subject,
                        f"the consumer {client_id} does not answer: {info}",
                        "check that process: it may be stopped, or its event loop blocked",
                    )
                    continue
                failed = sum(one.consume_failed_msgs for one in info.status_table.values())
                if failed:
                    self._add(
                        Level.NOTE,
                        subject,
                        f"{client_id} failed to handle {failed:,} messages in the last hour",
                        f"read the reason in its log; turbopump consumer status {group} {self._n}",
                    )

    async def _check_dead_letters(self, subject: str, group: str) -> None:
        name = DLQ_PREFIX + group
        try:
            settings = await find_topic(self._servers, self._masters, name)
            count = await self._messages(name, settings)
        except (RemotingError, ProtocolError):
            return
        if count:
            self._add(
                Level.NOTE,
                subject,
                f"it has {_count(count, 'dead letter')}",
                f"turbopump dlq show {group} {self._n}",
            )


# Findings from the answers.


def differences(known: Mapping[str, ClusterInfo]) -> list[Diagnosis]:
    """Return findings about brokers that one name server knows and another does not."""
    members = {
        address: {
            (name, at)
            for name, broker in info.broker_addr_table.items()
            for at in broker.broker_addrs.values()
        }
        for address, info in known.items()
    }
    everything = set().union(*members.values())
    return [
        Diagnosis(
            Level.WRONG,
            f"name server {address}",
            f"it does not know the broker {name} ({at}), which others know",
            f"that broker's namesrvAddr must name {address} too; {LOG_OF_BROKER}",
        )
        for address, its in members.items()
        for name, at in sorted(everything - its)
    ]


def rival_masters(known: Mapping[str, ClusterInfo]) -> list[Diagnosis]:
    """Return findings about broker names for which name servers know different masters."""
    masters: dict[str, dict[str, str]] = {}
    for server, info in known.items():
        for name, broker in info.broker_addr_table.items():
            if MASTER_ID in broker.broker_addrs:
                masters.setdefault(name, {}).setdefault(broker.broker_addrs[MASTER_ID], server)
    return [
        Diagnosis(
            Level.WRONG,
            f"broker {name}",
            "it has two masters: "
            + " and ".join(
                f"{at} (according to {server})" for at, server in sorted(rivals.items())
            ),
            "each accepts messages that the other lacks: stop one, save its messages (turbopump "
            "store dump), and start it as the other's slave: brokerRole=SLAVE, brokerId=1, an "
            "empty store",
        )
        for name, rivals in sorted(masters.items())
        if len(rivals) > 1
    ]


def judge_runtime(subject: str, table: Mapping[str, str], now_ms: float) -> list[Diagnosis]:
    """Return findings about a broker's runtime figures (28). ``now_ms`` is when they arrived, by
    this machine's clock."""
    found: list[Diagnosis] = []

    def wrong(message: str, fix: str, level: Level = Level.WRONG) -> None:
        found.append(Diagnosis(level, subject, message, fix))

    its_ms = _its_time(table)
    if its_ms is not None and abs(its_ms - now_ms) > CLOCK_TOLERANCE_MS:
        seconds = (its_ms - now_ms) / 1000
        wrong(
            f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this "
            "machine's: delays, delivery times and searches by time are off by as much",
            "synchronise both by NTP: timedatectl set-ntp true, or chronyc makestep",
        )
    refusal = table.get("writeRefusal", "")
    used = _number(table.get("commitLogDiskRatio"))
    room = "free space, lower fileReservedTime, or move storePathCommitLog to a larger disk"
    if refusal:
        wrong(f"it refuses sends: {refusal}", room if "disk" in refusal else LOG_OF_BROKER)
    elif used is not None and used > DISK_REFUSES:
        wrong(f"its disk is {used * 100:.0f} % full: from 90 % on the broker refuses sends", room)
    elif used is not None and used > DISK_DELETES:
        wrong(
            f"its disk is {used * 100:.0f} % full: from 75 % on the broker deletes old messages "
            "early",
            room,
            Level.NOTE,
        )
    until = _number(table.get("startAcceptSendRequestTimeStamp")) or 0
    if until > now_ms:
        wrong(
            f"it accepts no sends for another {(until - now_ms) / 1000:.0f} s",
            "wait, or change startAcceptSendRequestTimeStamp in its broker.conf",
        )
    unflushed = _bytes(table.get("remainHowManyDataToFlush"))
    if unflushed > UNFLUSHED_MAX:
        wrong(
            f"{unflushed >> 20} MiB are not flushed yet: the disk does not keep up",
            f"check the disk (iostat -x 1); {LOG_OF_BROKER}",
        )
    behind = _number(table.get("dispatchBehindBytes")) or 0
    if behind > UNDISPATCHED_MAX:
        wrong(f"{int(behind) >> 20} MiB of its log are not visible to consumers yet", LOG_OF_BROKER)
    waits = _number(table.get("sendThreadPoolQueueHeadWaitTimeMills")) or 0
    if waits > SENDS_WAIT_MS:
        wrong(
            f"sends wait {waits:.0f} ms in its queue; from {SENDS_WAIT_MS} ms on it refuses them",
            "the load is too high for its disk or processor: send less, or add a broker",
        )
    return found


def judge_queues(
    subject: str, topic: str, queues: QueueData, settings: TopicConfig | None, n: str
) -> list[Diagnosis]:
    """Return findings about a topic on one broker. ``queues`` comes from the name server.
    ``settings`` comes from the broker, and is None if the broker was not asked."""
    found: list[Diagnosis] = []
    name = queues.broker_name

    def wrong(message: str, fix: str, level: Level = Level.WRONG) -> None:
        found.append(Diagnosis(level, subject, message, fix))

    for bit, what in ((PERM_READ, "read from"), (PERM_WRITE, "sent to")):
        if queues.perm & bit:
            continue
        if settings is not None and settings.perm & bit:
            wrong(
                f"it cannot be {what} on {name}: the permission is removed at the name server, or "
                f"by the broker's brokerPermission{_RESTARTED if bit == PERM_WRITE else ''}",
                f"turbopump broker drain {name} --undo {n}; check brokerPermission in its "
                "broker.conf",
            )
        else:
            wrong(
                f"it cannot be {what} on {name} (perm {queues.perm})",
                f"turbopump topic alter {topic} --perm 6 {n}",
            )
    read, write = queues.read_queue_nums, queues.write_queue_nums
    if write > read:
        wrong(
            f"on {name} {_count(write - read, 'queue')} with messages cannot be read "
            f"(readQueueNums={read} writeQueueNums={write})",
            f"turbopump topic alter {topic} --read-queues {write} {n}",
        )
    elif read > write:
        wrong(f"on {name} it has {read} queues to read and {write} to write", "", Level.NOTE)
    if not read or not write:
        wrong(f"on {name} it has no queue", f"turbopump topic alter {topic} --queues 8 {n}")
    ours = (read, write)
    if settings is not None and (settings.read_queue_nums, settings.write_queue_nums) != ours:
        wrong(
            f"{name} has {settings.read_queue_nums} queues to read and "
            f"{settings.write_queue_nums} to write; the name server has {read} and {write}",
            "wait 30 s for its next registration; if that fails, "
            f"{LOG_OF_BROKER} (registration failed)",
        )
    return found


def judge_members(
    subject: str,
    group: str,
    topic: str | None,
    members: Mapping[str, ConsumerConnection],
    masters: Iterable[str],
) -> list[Diagnosis]:
    """Return findings about the consumers of a group, as the brokers know them."""
    found: list[Diagnosis] = []
    everybody = {one.client_id or "" for body in members.values() for one in body.connection_set}
    conflicts = dict.fromkeys(one for body in members.values() for one in body.conflicts or ())
    status = f"turbopump consumer status {group} shows each; give all the same settings"
    found += [Diagnosis(Level.WRONG, subject, conflict, status) for conflict in conflicts]
    for address in masters:
        body = members.get(address, ConsumerConnection())
        for client_id in sorted(everybody - {one.client_id or "" for one in body.connection_set}):
            found.append(
                Diagnosis(
                    Level.WRONG,
                    subject,
                    f"the broker {address} does not know the consumer {client_id}, which therefore "
                    "reads nothing from it",
                    f"check that its machine reaches {address}",
                )
            )
    subscribed = {name for body in members.values() for name in body.subscription_table}
    if topic is not None and everybody and topic not in subscribed:
        theirs = ", ".join(sorted(one for one in subscribed if not one.startswith("%"))) or "none"
        found.append(
            Diagnosis(
                Level.WRONG,
                subject,
                f"its consumers do not subscribe to {topic}{did_you_mean(topic, subscribed)}; "
                f"they subscribe to: {theirs}",
                f"subscribe all of them to {topic}",
            )
        )
    if any(body.message_model is MessageModel.BROADCASTING for body in members.values()):
        message = "it is broadcasting: each consumer keeps its own offsets"
        found.append(Diagnosis(Level.NOTE, subject, message))
    return found


# Parsing of the servers' texts.

_RUNTIME: Final = re.compile(r"\[ ([\d,. ]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_SIZE: Final = re.compile(r"([\d.]+) ?([KMGTPE]?)i?B")


def _its_time(table: Mapping[str, str]) -> float | None:
    """Return the broker's clock in ms, or None. Apache's broker reports its start and its uptime,
    to the second."""
    now = _number(table.get("currentTimeMillis"))
    boot, runs = _number(table.get("bootTimestamp")), _RUNTIME.search(table.get("runtime", ""))
    if now is not None or boot is None or runs is None:
        return now
    days, hours, minutes, seconds = (int(re.sub(r"\D", "", part)) for part in runs.groups())
    return boot + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + 500


def _is_of_this_machine(address: str) -> bool:
    return is_loopback(host_of(address))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _bytes(text: str | None) -> int:
    """Return the bytes of a size such as ``1.5 MiB``, or 0 if the text is not a size."""
    found = _SIZE.fullmatch(text or "")
    if found is None:
        return 0
    return int(float(found[1]) * 1024 ** "_KMGTPE".index(found[2] or "_"))


def _clock(table: Mapping[str, str], now_ms: float) -> str:
    its_ms = _its_time(table)
    return "clock unknown" if its_ms is None else f"clock {round((its_ms - now_ms) / 1000)} s off"


def _room(table: Mapping[str, str]) -> str:
    used = _number(table.get("commitLogDiskRatio"))
    return "disk unknown" if used is None else f"disk {used * 100:.0f} % used"


def _software(answer: Command) -> str:
    """Return a server's version, for example ``RocketMQ 5.3.3 (JAVA)``. From 4.5.0 on Apache's
    version numbers rise by two with each release."""
    known = {code.value: code.name for code in LanguageCode}
    since_450 = answer.version - 312
    digits = 450 + since_450 // 2
    version = ".".join(str(digits)) if since_450 >= 0 else "before 4.5.0"
    return f"RocketMQ {version} ({known.get(answer.language, 'of an unknown language')})"


def _of_name_server(error: Exception) -> tuple[str, str]:
    """Return the reason why a name server does not answer, and what to do."""
    if isinstance(error, ConnectError):
        return str(error), _of_tls(error) or (
            "start it (turbopump namesrv), or check -n, NAMESRV_ADDR and the network"
        )
    if "is not a name server" in str(error):
        return str(error), "give the name server's address with -n; its usual port is 9876"
    if isinstance(error, ResponseError):
        return str(error), _denied(error)
    return (
        f"{error}: the server there may not be a name server, or accepts only TLS",
        "check -n; for TLS use --tls-trust FILE or --tls",
    )


def _of_broker(address: str, error: Exception) -> tuple[str, str]:
    if isinstance(error, ConnectError):
        return f"it advertises {address}: {error}", _of_tls(error) or (
            f"start it if it has stopped; otherwise {_advertise(address)}"
        )
    if isinstance(error, ResponseError):
        return str(error), _denied(error)
    return f"{address} does not answer: {error}", "check its load, its disk and its log"


def _of_tls(error: ConnectError) -> str | None:
    """Return the fix for a TLS failure, or None for another error."""
    text = str(error)
    if "certificate has expired" in text:
        return "write a new one over tls.server.certPath and tls.server.keyPath"
    if "certificate is not trusted" in text:
        return (
            "name its certificate, or the one that signed it, with --tls-trust FILE; the "
            "certificate must be issued for the name or address in use"
        )
    if text.startswith("no TLS connection"):
        return "its tls.server.certPath is not set, or TLS is off: read the reason in its log"
    return None


def _denied(error: ResponseError) -> str:
    if error.code == ResponseCode.NO_PERMISSION:
        return "access control is on: give a permitted user with --credentials FILE"
    return LOG_OF_BROKER


def _advertise(address: str) -> str:
    return (
        "give it an address that clients can reach instead of "
        f"{address}: turbopump broker --advertise HOST[:PORT], or brokerIP1 in its broker.conf"
    )


def _successful(answer: Command, request: Request[Any], address: str) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(
            answer.code, answer.remark, request=type(request).__name__, address=address
        )
    return answer


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
