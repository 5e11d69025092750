"""Progress of the slaves that acted for a master. The master takes it over when it comes back, and
so does a slave that acts after another one.

A master asks before it opens its port and before its parts read the tables. A slave of ours stops
its work before it answers, so no message is delivered twice. Source: apache/rocketmq
``BrokerPreOnlineService``, ``BrokerController.isIsolated``. There, slaves continue until the name
server shows the master, and offsets of Apache's slaves count if their version is not lower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from turbopump.broker.parts import Delivering
from turbopump.broker.pop.order_info import OrderInfoTable
from turbopump.broker.stored import Stored
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ProtocolError, RemotingError, StoreError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import GetBrokerMemberGroup
from turbopump.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from turbopump.protocol.requests.replication import (
    ACTED,
    ExchangeHAInfo,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetTimerCheckpoint,
)
from turbopump.remoting.client import RemotingClient, refused_by
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint, load_timer_checkpoint

log = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""Maximum seconds for which a starting master waits for a name server, and for each slave."""
AGAIN_S: Final = 0.5
NAME_SERVER_S: Final = 3.0
HAND_OVER_S: Final = 15.0
"""Seconds to wait until a slave has stopped its work. The slave finishes a slot of the timers
first."""


@dataclass
class Progress:
    """Progress that slaves have made while they acted for the master.

    - ``delays``: the position of each delay level.
    - ``order``: the table of ordered pops of a slave that acted, or None.
    """

    delays: dict[int, int] = field(default_factory=dict)
    order: OrderInfoTable | None = None

    def pass_on(self, delivering: Delivering) -> None:
        """Let the parts of the master begin where the slaves stopped. Raises OSError."""
        delivering.delays.advance(self.delays)
        if self.order is not None:
            delivering.pop.order.copy(self.order, whole=True)


async def members_of(
    config: BrokerConfig, remoting: RemotingClient, timeout: float
) -> list[dict[int, str]]:
    """Return the live brokers of this broker's name, id -> address, for each name server that
    answers."""
    request = GetBrokerMemberGroup(
        cluster_name=config.broker_cluster_name, broker_name=config.broker_name
    )
    answers = await asyncio.gather(
        *(remoting.call(server, request, timeout=timeout) for server in config.namesrv_addresses),
        return_exceptions=True,
    )
    found = []
    for answer in answers:
        if isinstance(answer, RemotingError | ProtocolError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        group = answer.broker_member_group
        found.append({} if group is None else group.broker_addrs)
    return found


async def take_over(stored: Stored, remoting: RemotingClient) -> Progress:
    """Take over the progress of this master's slaves.

    Offsets of groups and the timers' checkpoint are stored here. The caller passes the rest to its
    parts.
    """
    return await take_from(await _slaves(stored, remoting), stored, remoting)


async def take_from(addresses: Sequence[str], stored: Stored, remoting: RemotingClient) -> Progress:
    """Take over the work and the progress of brokers that may have acted for the master.

    A broker that does not answer is left out with a warning, because what it delivered may then be
    delivered again.
    """
    progress = Progress()
    for address in addresses:
        try:
            async with asyncio.timeout(PATIENCE_S + HAND_OVER_S):
                acted = await _hands_over(address, remoting)
                await copy_progress(address, stored, remoting, progress, acted=acted)
                log.info("took over from a slave address=%s acted=%s", address, acted)
        except (RemotingError, ProtocolError, StoreError, OSError) as error:
            log.warning(
                "slave does not tell how far it came, what it delivered may come again "
                "address=%s cause=%s",
                address,
                str(error) or "no answer",
            )
    return progress


async def _slaves(stored: Stored, remoting: RemotingClient) -> list[str]:
    """Return the addresses of the live slaves. The one with the smallest id comes first."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while stored.config.namesrv_addresses:
        groups = await members_of(stored.config, remoting, NAME_SERVER_S)
        if groups:
            slaves = {
                number: address
                for group in groups
                for number, address in group.items()
                if number != stored.config.id
            }
            return [slaves[number] for number in sorted(slaves)]
        if loop.time() >= until:
            log.warning(
                "no name server answers, the master starts without asking its slaves how far they "
                "came; what they delivered may come again"
            )
            break
        await asyncio.sleep(AGAIN_S)
    return []


async def _hands_over(address: str, remoting: RemotingClient) -> bool:
    """Ask a slave to stop its work as the master. Return True if it had any.

    An Apache slave refuses the request, or does not know the field.
    """
    handed = await remoting.exchange(address, ExchangeHAInfo(takes_over=True), timeout=HAND_OVER_S)
    return handed.code == ResponseCode.SUCCESS and ACTED in (handed.ext or {})


async def copy_progress(
    address: str, stored: Stored, remoting: RemotingClient, progress: Progress, *, acted: bool
) -> None:
    """Copy the progress of a slave. No position moves back.

    - ``acted``: True if the slave has acted as the master. Its ordered pops, and its resets of
      offsets by operators, are then newer than those here.

    Raises RemotingError, ProtocolError, StoreError and OSError.
    """
    offsets = await _ask(address, GetAllConsumerOffset(), remoting)
    delays = await _ask(address, GetAllDelayOffset(), remoting)
    timers = await _ask(address, GetTimerCheckpoint(), remoting)
    if offsets.body:
        table = fastjson.decode(offsets.body, ConsumerOffsetTable)
        stored.tables.offsets.advance(table, stored.store.max_offset, resets=acted)
    if delays.body:
        for level, position in fastjson.decode(delays.body, DelayOffsetTable).offset_table.items():
            progress.delays[level] = max(position, progress.delays.get(level, 0))
    if timers.body:
        _advance_timers(stored, TimerCheckpoint.of_master(timers.body))
    if acted and progress.order is None:
        order = await _ask(address, GetAllConsumerOffset(order_info=True), remoting)
        if order.body:
            progress.order = fastjson.decode(order.body, OrderInfoTable)


async def _ask(address: str, request: Request[Any], remoting: RemotingClient) -> Command:
    answer = await remoting.exchange(address, request, timeout=PATIENCE_S)
    if answer.code != ResponseCode.SUCCESS:
        raise refused_by(address, request, answer)
    return answer


def _advance_timers(stored: Stored, theirs: TimerCheckpoint) -> None:
    """Store the checkpoint of a slave whose timers came further than those of this master.

    The timer log and the wheel are then made again from the queue, because their units may be in
    other slots than the slave's. Raises OSError.
    """
    path = stored.settings.paths.timer_checkpoint
    own = load_timer_checkpoint(stored.disk, path)
    if own is not None and own.read_time >= theirs.read_time:
        return
    if not theirs.read_time:
        return
    stored.disk.make_directory(path.parent)
    stored.disk.replace_file(path, theirs.encode())
