"""Promotion of a slave to the master of its broker name, after its master has gone.

The checks ask the name servers, the slave and its peers. The change is in the slave's configuration
file, because no request changes ``brokerRole`` and ``brokerId``. The broker reads the file when it
starts, so its process must be restarted. Texts for a terminal are unknown here.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turbopump.admin.access import ComparedAccounts, accounts_at, differing_accounts
from turbopump.admin.cluster import ANSWER_S, Servers
from turbopump.admin.name_servers import NameServers
from turbopump.config import properties
from turbopump.errors import ClientError, ConfigError, ProtocolError, RemotingError
from turbopump.protocol.requests.namesrv import MASTER_ID, ClusterInfo, GetBrokerClusterInfo
from turbopump.protocol.requests.replication import (
    GetBrokerHaStatus,
    HAClientRuntimeInfo,
    HARuntimeInfo,
)

if TYPE_CHECKING:
    from turbopump.config.broker_config import BrokerConfig

ROUND_S: Final = 0.5
COPY: Final = ".bak"
"""End of the name of the copy that keeps the old configuration file."""


class Verdict(StrEnum):
    """Result of a check before a promotion."""

    OK = "ok"
    RISK = "risk"
    """Messages, or changes of users, may be lost: an operator must decide."""
    WRONG = "wrong"
    """The promotion would do harm."""


@dataclass(frozen=True, slots=True)
class Check:
    """Check before a promotion, with its result.

    - ``fix``: the advice, or None if the verdict is OK.
    """

    name: str
    verdict: Verdict
    finding: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class SlaveFile:
    """Configuration file of a slave that is to become a master.

    - ``texts``: all keys and values in the file.
    """

    path: Path
    texts: Mapping[str, str]
    config: BrokerConfig

    @classmethod
    def read(cls, path: Path, name: str) -> SlaveFile:
        """Read the file of the slave of the broker ``name``.

        Raises ConfigError if the file cannot be read, is invalid, or belongs to another broker or
        to a master.
        """
        from turbopump.config.broker_config import BrokerConfig  # few commands need it
        from turbopump.config.setting import build

        try:
            texts = properties.decode(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        config = build(BrokerConfig, texts, {})
        if config.broker_name != name:
            raise ConfigError(
                f"{path} is of the broker {config.broker_name}, not of {name}: -c takes the file "
                "of the slave that becomes the master"
            )
        if not config.is_slave:
            raise ConfigError(
                f"{path} has brokerRole={config.broker_role}: this broker is a master already"
            )
        return cls(path, texts, config)

    def role(self) -> str | None:
        """Return the role of the new master that fits ``inSyncReplicas``. Return None if the file
        does not set it."""
        if "inSyncReplicas" not in self.texts:
            return None
        return "SYNC_MASTER" if self.config.in_sync_replicas > 1 else "ASYNC_MASTER"

    def changes(self, role: str) -> dict[str, tuple[str, str]]:
        """Return the old and the new value of each key that changes.

        Raises ConfigError if the broker would not start with the new values.
        """
        from turbopump.config.broker_config import BrokerRole, check_together

        check_together(replace(self.config, broker_role=BrokerRole(role), broker_id=MASTER_ID))
        return {
            "brokerRole": (str(self.config.broker_role), role),
            "brokerId": (str(self.config.broker_id), str(MASTER_ID)),
        }

    def write(self, role: str) -> Path:
        """Write the new values, at once or not at all. Return the path of the copy of the old file.

        Comments and other keys stay. Raises OSError.
        """
        from turbopump.disk.whole_files import WholeFiles

        text = self.path.read_bytes().decode("utf-8", "replace")
        wanted = {key: new for key, (_, new) in self.changes(role).items()}
        WholeFiles().replace_file(self.path, properties.with_values(text, wanted).encode())
        return self.path.with_name(self.path.name + COPY)


@dataclass(frozen=True, slots=True)
class _Replicas:
    """Brokers of one name, as the name servers list them.

    - ``masters``: the addresses of masters, with the name servers that list each.
    - ``slaves``: the addresses of slaves by id.
    - ``others``: the masters of other broker names of the cluster.
    - ``silent``: the name servers that did not answer, with the reason.
    """

    masters: Mapping[str, list[str]]
    slaves: Mapping[int, str]
    others: list[str]
    silent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromotionChecks:
    """Checks before a promotion.

    - ``address``: the address of the slave, or None if it is not registered.
    - ``log_end``: the end of the slave's log in bytes, or None if it did not answer.
    """

    checks: tuple[Check, ...]
    address: str | None
    log_end: int | None

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of all checks."""
        verdicts = [one.verdict for one in self.checks]
        return max(verdicts, key=list(Verdict).index, default=Verdict.OK)


async def check_promotion(servers: Servers, file: SlaveFile, now_ms: int) -> PromotionChecks:
    """Check if a slave may become the master of its broker name.

    Each name server is asked for the brokers (106). The slave, its peers of the same name and the
    old master are asked for their replication (907), servers with access control for their users
    (3005, 3010).

    Raises RemotingError if no name server answers.
    """
    config = file.config
    found = await _find_replicas(servers, file)
    checks = [_name_server_check(found)]
    master = None
    for address in found.masters:
        answer = await _status(servers, address)
        if isinstance(answer, HARuntimeInfo):
            master = answer
        checks.append(_master_check(config.broker_name, address, found.masters[address], answer))
    if not found.masters:
        checks.append(Check("old master", Verdict.OK, "no name server lists a master"))
    slaves_address = found.slaves.get(config.broker_id)
    if slaves_address is None:
        checks.append(
            Check(
                "slave",
                Verdict.WRONG,
                f"no name server lists the slave {config.broker_id} of {config.broker_name}",
                f"start it: turbopump broker -c {file.path}",
            )
        )
        return PromotionChecks(tuple(checks), None, None)
    status = await _status(servers, slaves_address)
    slave = None
    if isinstance(status, HARuntimeInfo) and not status.master:
        slave = status.ha_client_runtime_info
    if slave is None:
        finding = f"{slaves_address} does not answer: {status}"
        if isinstance(status, HARuntimeInfo):
            finding = f"{slaves_address} is a master"
        fix = f"check that {slaves_address} is the broker of {file.path}, and that it runs"
        checks.append(Check("slave", Verdict.WRONG, finding, fix))
        return PromotionChecks(tuple(checks), slaves_address, None)
    checks.append(
        Check("slave", Verdict.OK, f"{slaves_address} runs, its log ends at {slave.max_offset}")
    )
    if master is None:
        checks.append(_copy_check(slave.refusal, slave.copied_until, now_ms))
    else:
        checks.append(_sync_check(master, slave.max_offset))
    checks += [one async for one in _peer_checks(servers, found, config.broker_id, slave)]
    checks += [one async for one in _account_checks(servers, found, config, slaves_address)]
    return PromotionChecks(tuple(checks), slaves_address, slave.max_offset)


async def _find_replicas(servers: Servers, file: SlaveFile) -> _Replicas:
    config = file.config
    masters: dict[str, list[str]] = {}
    slaves: dict[int, str] = {}
    others: list[str] = []
    silent: dict[str, str] = {}
    addresses = dict.fromkeys([*servers.name_servers, *config.namesrv_addresses])
    for name_server in addresses:
        try:
            info = await servers.call(name_server, GetBrokerClusterInfo(), timeout=ANSWER_S)
        except (RemotingError, ProtocolError) as error:
            silent[name_server] = str(error)
            continue
        for number, address in _of_name(info, config.broker_name):
            if number == MASTER_ID:
                masters.setdefault(address, []).append(name_server)
            else:
                slaves[number] = address
        others += [
            broker.broker_addrs[MASTER_ID]
            for name, broker in info.broker_addr_table.items()
            if name != config.broker_name
            and broker.cluster == config.broker_cluster_name
            and MASTER_ID in broker.broker_addrs
        ]
    if len(silent) == len(addresses):
        await servers.brokers()  # raises the error with its advice
        raise ClientError("no name server answers")
    return _Replicas(masters, slaves, sorted(set(others)), silent)


def _of_name(info: ClusterInfo, name: str) -> Iterator[tuple[int, str]]:
    broker = info.broker_addr_table.get(name)
    if broker is not None:
        yield from broker.broker_addrs.items()


async def _status(servers: Servers, address: str) -> HARuntimeInfo | str:
    """Return the replication of a broker, or the reason of a failure as text."""
    try:
        return await servers.call(address, GetBrokerHaStatus(), timeout=ANSWER_S)
    except (RemotingError, ProtocolError) as error:
        return str(error)


def _name_server_check(found: _Replicas) -> Check:
    if not found.silent:
        return Check("name servers", Verdict.OK, "all answer")
    return Check(
        "name servers",
        Verdict.RISK,
        "; ".join(f"{address} does not answer: {cause}" for address, cause in found.silent.items()),
        "it may know a running master: start it, or take it out of -n and namesrvAddr",
    )


def _master_check(name: str, address: str, by: list[str], answer: HARuntimeInfo | str) -> Check:
    if isinstance(answer, HARuntimeInfo):
        return Check(
            "old master",
            Verdict.WRONG,
            f"{address} runs",
            f"let it leave: turbopump broker drain {name}; then stop it, and make sure that "
            "nothing starts it again",
        )
    return Check(
        "old master",
        Verdict.RISK,
        f"{address} does not answer here ({answer}), but {', '.join(by)} still lists it",
        "make sure that it is off and stays off: clients may still reach it. A name server forgets "
        "a dead machine after 2 minutes",
    )


def _copy_check(refusal: str | None, copied_until: int | None, now_ms: int) -> Check:
    name = "copy"
    if refusal is not None:
        return Check(
            name,
            Verdict.RISK,
            f"it did not copy its last master: {refusal}",
            "acknowledged messages may be missing: start the old master again, if it exists",
        )
    if copied_until is None:
        return Check(
            name,
            Verdict.RISK,
            "it has copied no master since its start",
            "acknowledged messages may be missing: start the old master again, if it exists, or "
            "compare the ends of the logs",
        )
    ago = max(now_ms - copied_until, 0) / 1000
    return Check(name, Verdict.OK, f"it copied its master until {ago:,.0f} s ago")


def _sync_check(master: HARuntimeInfo, log_end: int) -> Check:
    """Compare a slave with the running master."""
    behind = master.master_commit_log_max_offset - log_end
    if behind <= 0 and master.in_sync_slave_nums:
        return Check("copy", Verdict.OK, "it is in sync with its master")
    return Check(
        "copy",
        Verdict.RISK,
        f"it is {max(behind, 0):,} bytes behind its master",
        "wait until turbopump cluster ha shows it in sync",
    )


async def _peer_checks(
    servers: Servers, found: _Replicas, broker_id: int, slave: HAClientRuntimeInfo
) -> AsyncIterator[Check]:
    """Yield a check for each other slave of the same name: none may have a longer log."""
    for number, address in sorted(found.slaves.items()):
        if number == broker_id:
            continue
        status = await _status(servers, address)
        its = status.ha_client_runtime_info if isinstance(status, HARuntimeInfo) else None
        if its is None:
            yield Check(
                "other slaves",
                Verdict.RISK,
                f"slave {number} ({address}) does not answer: {status}",
                "it may have messages that this slave lacks: start it, then compare",
            )
        elif its.max_offset > slave.max_offset:
            yield Check(
                "other slaves",
                Verdict.RISK,
                f"slave {number} ({address}) has {its.max_offset - slave.max_offset:,} bytes more",
                f"promote slave {number} instead",
            )
        else:
            yield Check(
                "other slaves",
                Verdict.OK,
                f"slave {number} ({address}) has no more messages than this one",
            )


async def _account_checks(
    servers: Servers, found: _Replicas, config: BrokerConfig, address: str
) -> AsyncIterator[Check]:
    """Yield one check of the slave's accounts: they must be equal to those of the old master, or
    else of another master of the cluster, or else of a name server with access control."""
    name = "accounts"
    if not config.authentication_enabled:
        yield Check(name, Verdict.OK, "the slave has no access control, so there are none")
        return
    here = await accounts_at(servers, address)
    if here is None:
        yield Check(
            name,
            Verdict.RISK,
            "not compared: this command may not see them",
            "give --credentials of a Super user",
        )
        return
    for peer in (*found.masters, *found.others, *servers.name_servers):
        its = await accounts_at(servers, peer)
        if its is None or (its.accounts is None and peer in servers.name_servers):
            continue
        yield _compared(name, here, its)
        return
    yield Check(name, Verdict.OK, "no other server of the cluster has accounts to compare with")


def _compared(name: str, here: ComparedAccounts, its: ComparedAccounts) -> Check:
    differing = differing_accounts(its, here)
    if differing is None:
        return Check(name, Verdict.OK, f"equal to those of {its.server}")
    return Check(
        name,
        Verdict.RISK,
        f"other than those of {its.server}: {differing}",
        "after the promotion, repeat the missing changes with turbopump auth",
    )


async def restart_broker(command: str) -> None:
    """Run the command that restarts the broker, and wait for its end.

    The command line is split like in a shell, but no shell runs it. Raises ClientError if it cannot
    run or fails.
    """
    words = shlex.split(command)
    try:
        process = await asyncio.create_subprocess_exec(*words)
    except OSError as error:
        raise ClientError(f"{command!r} cannot run: {error.strerror}") from None
    code = await process.wait()
    if code != 0:
        raise ClientError(f"{command!r} ended with exit code {code}")


async def new_master(servers: Servers, name: str, log_end: int) -> str:
    """Wait until a broker has a master again that clients may send to. Return its address.

    - ``log_end``: the end of the slave's log before the restart.

    Raises ClientError if the log of the new master is shorter.
    """
    while True:
        try:
            broker = (await servers.brokers()).broker_addr_table.get(name)
            address = broker.broker_addrs.get(MASTER_ID) if broker is not None else None
            if address is not None:
                status = await servers.call(address, GetBrokerHaStatus(), timeout=ANSWER_S)
                writable = await NameServers(servers).is_writable(name, servers.name_servers[0])
                if status.master and writable:
                    break
        except (RemotingError, ProtocolError):
            pass  # it is starting
        await asyncio.sleep(ROUND_S)
    if status.master_commit_log_max_offset < log_end:
        raise ClientError(
            f"the log of the new master {address} ends at {status.master_commit_log_max_offset}, "
            f"but that of the slave ended at {log_end}: read the log of the broker"
        )
    return address
