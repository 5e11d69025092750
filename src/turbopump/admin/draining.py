"""Draining of a broker: preparing the broker for a stop that no client or slave notices.

A broker is drained when clients send to other brokers, consumers have read all messages, and slaves
have copied all messages. All conditions must be met in the same check. Messages that wait on the
broker's disk for a time, or for the end of a transaction, are reported but not waited for: they are
still there when the broker runs again. Source of the request: apache/rocketmq
``WipeWritePermSubCommand``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.cluster import ANSWER_S, Servers, broker_named
from turbopump.admin.controllers import Controllers, GroupState
from turbopump.admin.group_lag import group_lag
from turbopump.admin.groups import group_members, group_names
from turbopump.admin.name_servers import set_write_permission_at
from turbopump.clock import Clock
from turbopump.config import properties
from turbopump.errors import ClientError, ConfigError, ProtocolError, RemotingError, ResponseError
from turbopump.message.rules import is_system_topic
from turbopump.plural import counted
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.replication import GetBrokerHaStatus
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo

log = logging.getLogger(__name__)

ROUND_S: Final = 1.0
ROUTES_S: Final = 35.0
"""Seconds until all clients know that they must not send to the broker.

Clients ask for routes every 30 s, and until then they send to the broker.
"""


@dataclass(frozen=True, slots=True)
class DrainState:
    """State of a drain at the time of one check.

    - ``seconds``: the seconds since the start of the drain.
    - ``sends_until``: the seconds for which clients may still send to the broker.
    - ``behind``: the number of unread messages of each group that has consumers.
    - ``unread``: the number of unread messages of each group without consumers.
    - ``slaves``: the number of bytes that each slave is behind, by its address.
    - ``absent``: the number of registered slaves that do not copy.
    - ``waiting``: the number of messages that wait on the disk, by kind.
    - ``fault``: the reason if the check failed, or None.
    """

    seconds: float
    sends_until: float = 0.0
    behind: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    slaves: Mapping[str, int] = field(default_factory=dict)
    absent: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    fault: str | None = None

    @property
    def drained(self) -> bool:
        return not any(self.waits_for())

    def waits_for(self) -> Iterator[str]:
        """Yield a phrase for each condition of the drain that is not met yet."""
        if self.fault is not None:
            yield self.fault
        if self.sends_until > 0:
            yield f"clients may send for {self.sends_until:.0f} s more"
        for group, count in self.behind.items():
            yield f"group {group} is {count:,} messages behind"
        if self.absent:
            verb = "does" if self.absent == 1 else "do"
            yield f"{counted(self.absent, 'slave')} {verb} not copy"
        for address, size in self.slaves.items():
            if size:
                yield f"slave {address} is {size:,} bytes behind"


@dataclass(frozen=True, slots=True)
class DrainedBroker:
    """Broker that is being drained.

    - ``address``: the address of the broker's master.
    - ``slaves``: the number of the broker's slaves.
    - ``name_servers``: the name servers at which the broker may be registered.
    - ``controller``: the addresses of the controllers that elect its master, or None without one.
    """

    name: str
    address: str
    slaves: int
    name_servers: tuple[str, ...]
    controller: str | None = None


async def find_broker(servers: Servers, name: str) -> DrainedBroker:
    """Ask the name servers for the broker with this name. The result includes the broker's own name
    servers.

    Raises RemotingError if no name server can be asked, NotFoundError if the broker does not exist,
    and ClientError if it has no master.
    """
    addresses = broker_named(await servers.brokers(), name).broker_addrs
    if MASTER_ID not in addresses:
        raise ClientError(f"broker {name} has no master, so it accepts no messages now")
    address = addresses[MASTER_ID]
    known_servers = dict.fromkeys(servers.name_servers)
    controller = None
    try:  # the broker may be registered at other name servers
        answer = await servers.exchange(address, GetBrokerConfig(), timeout=ANSWER_S)
        settings = properties.decode(answer.body)
        known_servers |= dict.fromkeys(filter(None, settings.get("namesrvAddr", "").split(";")))
        if settings.get("enableControllerMode") == "true":
            controller = settings.get("controllerAddr") or None
    except (RemotingError, ConfigError) as error:
        log.warning("name servers of a broker cannot be read broker=%s cause=%s", address, error)
    return DrainedBroker(name, address, len(addresses) - 1, tuple(known_servers), controller)


async def hand_mastership_over(servers: Servers, broker: DrainedBroker) -> str:
    """Make another replica the master, and wait until this one is in sync again as a slave.

    Return the address of the new master. Raises ClientError if no other replica is in sync,
    ResponseError if the controller elects none, and RemotingError.
    """
    controllers = Controllers(servers)
    group = await _group_of(controllers, broker)
    able = [one for one in group.replicas if one.in_sync and one.alive and not one.is_master]
    if not able:
        raise ClientError(
            f"no other replica of {broker.name} is in sync, so none can be the master: start the "
            "others, and wait until `turbopump controller replicas` shows them in sync"
        )
    elected = await controllers.elect(broker.name, able[0].id, controller=broker.controller)
    while True:
        with suppress(RemotingError):  # a controller may be busy
            group = await _group_of(controllers, broker)
            slaves = [one.address for one in group.replicas if one.in_sync and not one.is_master]
            if broker.address in slaves:
                return elected.master_address
        await asyncio.sleep(ROUND_S / 5)


async def _group_of(controllers: Controllers, broker: DrainedBroker) -> GroupState:
    groups = await controllers.replicas([broker.name], broker.controller)
    if broker.name not in groups:
        raise ClientError(f"the controller does not know the broker name {broker.name}")
    return groups[broker.name]


async def set_write_permission(
    servers: Servers, broker: DrainedBroker, *, wiped: bool
) -> dict[str, str]:
    """Remove or restore a broker's write permission at every name server.

    - ``wiped``: True to remove the permission.

    Return the name servers that failed, with the reason.
    """
    failed = {}
    for address in broker.name_servers:
        try:
            await set_write_permission_at(servers, address, broker.name, wiped=wiped)
        except (RemotingError, ProtocolError) as error:
            failed[address] = str(error)
    return failed


async def drain(
    servers: Servers, broker: DrainedBroker, clock: Clock, *, routes_s: float = ROUTES_S
) -> AsyncIterator[DrainState]:
    """Check a broker every second, and yield each result. End when the broker is drained.

    Call ``set_write_permission`` first to remove the write permission.
    """
    # A check may fail while the broker is busy, and the next check asks again. New messages may
    # arrive for `routes_s` after the removal of the permission, until all clients have new routes.
    began = clock.monotonic()
    while True:
        seconds = clock.monotonic() - began
        left = max(routes_s - seconds, 0.0)
        try:
            state = await _find_state(servers, broker, seconds, left)
        except (RemotingError, ProtocolError) as error:
            state = DrainState(seconds, left, fault=str(error))
        yield state
        if state.drained:
            return
        await asyncio.sleep(ROUND_S)


async def _find_state(
    servers: Servers, broker: DrainedBroker, seconds: float, left: float
) -> DrainState:
    here = [broker.address]
    behind: dict[str, int] = {}
    unread: dict[str, int] = {}
    for group in await group_names(servers, here):
        queues = (await group_lag(servers, here, group)).queues
        count = sum(max(one.behind, 0) for one in queues if not is_system_topic(one.topic))
        if count and await group_members(servers, here, group):
            behind[group] = count
        elif count:
            unread[group] = count
    slaves: dict[str, int] = {}
    try:
        status = await servers.call(broker.address, GetBrokerHaStatus(), timeout=ANSWER_S)
        slaves = {one.addr or "?": one.diff for one in status.ha_connection_info}
    except ResponseError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # Apache's 4.x
            raise
    figures = await servers.call(broker.address, GetBrokerRuntimeInfo(), timeout=ANSWER_S)
    return DrainState(
        seconds,
        left,
        behind,
        unread,
        slaves,
        max(broker.slaves - len(slaves), 0),
        {
            kind: count
            for kind, count in waiting_messages(BrokerFigures.read(figures.table)).items()
            if count
        },
    )


def waiting_messages(figures: BrokerFigures) -> dict[str, int]:
    """For each kind of waiting message, return the number on a broker's disk."""
    return {
        "delayed messages": sum(figures.delayed.values()),
        "timer messages": figures.timers.waiting + figures.timers.unread,
        "transactions without an end": figures.transactions_pending or 0,
    }
