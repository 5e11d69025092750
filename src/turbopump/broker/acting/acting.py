"""A slave that acts as the master while its master is away.

The slave asks the name servers for the live brokers of its name. While its own id is the smallest
of them and it copies from no master, it delivers what a master delivers: delay levels, timers, open
transactions, and popped messages without an acknowledgement. An acting slave takes no sends. The
messages that it delivers go to another master of the cluster (``escape.py``), or wait.

The other slaves copy the progress of the one that acts, so that another one can continue.

The work ends when the master is back: the starting master asks for it (request 906), or the slave
copies from it again, or a name server shows it. Progress is kept in the same files as a master's,
so the work continues after a restart.

Source: apache/rocketmq ``BrokerController.syncBrokerMemberGroup``, ``onMinBrokerChange``,
``changeSpecialServiceStatus``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from turbopump.broker.acting.escape import EscapingForwarding
from turbopump.broker.acting.halves import EscapingHalves
from turbopump.broker.acting.progress import Progress, copy_progress, members_of, take_from
from turbopump.broker.background import stop_task
from turbopump.broker.parts import Copying, Delivering, Listening
from turbopump.broker.pop.pop import TakenAcknowledgement
from turbopump.broker.slave_tables import SlaveTables
from turbopump.broker.stored import Stored
from turbopump.errors import ProtocolError, RemotingError, StoreError
from turbopump.message.handles import PopHandle, queue_kind_of
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.pop import AckMessage
from turbopump.replication.copying_link import CopyingLink

log = logging.getLogger(__name__)

HANDED_BACK_S: Final = 10.0
"""Seconds for which a slave that has handed back its work does not take it again. The master starts
in this time."""
ACK_S: Final = 3.0
FOLLOW_S: Final = 3.0
"""Seconds between two copies of the progress of another slave that acts."""


def has_smallest_id(own: int, groups: Sequence[Mapping[int, str]]) -> bool:
    """Return True if a broker has the smallest id of its name.

    - ``groups``: the live brokers of its name, id -> address, for each name server that answered.

    A name server that knows a smaller id decides against all others: it may be the only one that
    the master can reach.
    """
    return any(own in group for group in groups) and all(
        min(group, default=own) >= own for group in groups
    )


def slaves_among(groups: Sequence[Mapping[int, str]], own: int) -> list[str]:
    """Return the addresses of the other slaves in ``groups``, by their ids. Without slaves, or if a
    master is there, the list is empty."""
    members = {number: address for group in groups for number, address in group.items()}
    if MASTER_ID in members:
        return []
    return [members[number] for number in sorted(members) if number != own]


class Acting:
    """Work of one slave while its master is away.

    Call ``start``, then ``stop``.

    - ``active``: True while the slave acts as the master.
    - ``acted``: True if the slave has acted since it last copied from a master.
    """

    def __init__(
        self,
        stored: Stored,
        listening: Listening,
        delivering: Delivering,
        copying: Copying,
        forwarding: EscapingForwarding,
    ) -> None:
        assert listening.replication.slave is not None
        assert copying.slave_tables is not None
        self.active = False
        self.acted = False
        self._stored = stored
        self._delivering = delivering
        self._next_copy = float("-inf")
        self._config = stored.config
        self._link: CopyingLink = listening.replication.slave
        self._tables: SlaveTables = copying.slave_tables
        self._delays = delivering.delays
        self._timers = delivering.timers
        self._pop = delivering.pop
        self._forwarding = forwarding
        self._halves = EscapingHalves(stored.store, stored.tables.offsets, forwarding)
        self._offsets = stored.tables.offsets
        forwarding.on_record = self._pop.take_record
        self._changing = asyncio.Lock()
        self._look_now = asyncio.Event()
        self._handed_back_until = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch over the master."""
        self._task = asyncio.create_task(self._run(), name="acting master")

    async def stop(self) -> None:
        """Stop the work and the watch. The method may be called twice."""
        await stop_task(self._task)
        async with self._changing:
            await self._end_work()
        await self._forwarding.masters.close()

    def look_soon(self) -> None:
        """Ask the name servers for the live brokers of this name now."""
        self._look_now.set()

    def figures(self) -> dict[str, str]:
        """Return figures for the runtime information of the broker. RocketMQ has no such keys."""
        return {
            "actsAsMaster": "true" if self.active else "false",
            "escapedMessages": str(self._forwarding.escaped),
        }

    async def hand_back(self) -> bool:
        """End the work, because the master is about to start. Return True if there was any.

        The slave does not act again for HANDED_BACK_S, so that the master can start.
        """
        self._handed_back_until = self._now() + HANDED_BACK_S
        async with self._changing:
            await self._end_work()
        return self.acted

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("cannot find out whether the master is away, tried again")
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.sync_broker_member_group_period / 1000):
                    await self._look_now.wait()

    async def _look(self) -> None:
        """Begin or end the work, if the master has left or is back."""
        if self._copies:
            acts: bool | None = False
        else:
            period = self._config.sync_broker_member_group_period / 1000
            groups = await members_of(self._config, self._tables.remoting, max(period, 1.0))
            acts = has_smallest_id(self._config.id, groups) if groups else None
            others = slaves_among(groups, self._config.id)
            if acts and self._may_begin:
                progress = await take_from(others, self._stored, self._tables.remoting)
                progress.pass_on(self._delivering)
            elif acts is False and others and not self.active:
                await self._follow(others[0])
        async with self._changing:
            if self._copies:
                acts = False
            if acts and self._may_begin:
                self._begin_work()
            elif acts is False and self.active:
                await self._end_work()
        if self._copies and self._tables.master is not None:
            self.acted = False
            await self._pass_acknowledgements(self._tables.master)

    @property
    def _may_begin(self) -> bool:
        """True if this slave does not act yet, and has not just handed back its work."""
        return not self.active and self._now() >= self._handed_back_until

    async def _follow(self, address: str) -> None:
        """Copy how far the slave at ``address`` came, which acts for the master of this one."""
        if self._now() < self._next_copy:
            return
        self._next_copy = self._now() + FOLLOW_S
        progress = Progress()
        with contextlib.suppress(RemotingError, ProtocolError, StoreError, OSError):
            await copy_progress(address, self._stored, self._tables.remoting, progress, acted=False)
            if not self._copies:
                progress.pass_on(self._delivering)

    @property
    def _copies(self) -> bool:
        """True if this slave copies from a master that was heard of in the last heartbeats."""
        peer = self._link.peer
        if peer is None or not peer.connection.accepted:
            return False
        silence = self._now() - peer.connection.last_read
        return silence < 2 * self._config.ha_send_heartbeat_interval / 1000

    def _begin_work(self) -> None:
        log.warning(
            "the master is away, this slave acts in its place broker=%s id=%d escapes=%s",
            self._config.broker_name,
            self._config.id,
            "true" if self._config.enable_remote_escape else "false",
        )
        self._tables.acts = True
        self.active = self.acted = True
        self._delays.start()
        self._pop.start_from_copy()
        self._timers.start_from_copy(self._pop.needed_ms)
        self._halves.start()

    async def _end_work(self) -> None:
        """Stop all parts, and save how far they came."""
        if not self.active:
            return
        await self._timers.pause()
        await self._delays.pause()
        await self._halves.stop()
        await self._pop.pause()
        try:
            await self._timers.save()
        except OSError as error:
            log.warning("progress of the timers cannot be saved cause=%s", error)
        self._pop.end_acting()
        self._offsets.save()
        self.active = False
        self._tables.acts = False
        log.info(
            "this slave does not act as the master any more broker=%s id=%d",
            self._config.broker_name,
            self._config.id,
        )

    async def _pass_acknowledgements(self, master: str) -> None:
        """Send the master the acknowledgements that this slave has taken."""
        waiting = self._pop.acks_for_master
        while waiting:
            taken = waiting[0]
            for offset in taken.offsets:
                request = acknowledgement_of(taken, offset)
                try:
                    await self._tables.remoting.exchange(master, request, timeout=ACK_S)
                except RemotingError:
                    return
            waiting.popleft()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def acknowledgement_of(taken: TakenAcknowledgement, offset: int) -> AckMessage:
    """Return the request with which a consumer would acknowledge one popped message."""
    key = taken.key
    handle = PopHandle(
        start_offset=key.start_offset,
        pop_time_ms=key.pop_time_ms,
        invisible_ms=taken.visible_at_ms - key.pop_time_ms,
        revive_queue_id=taken.queue_id,
        kind=queue_kind_of(key.topic),
        broker_name=key.broker_name,
        queue_id=key.queue_id,
        queue_offset=offset,
    )
    return AckMessage(
        consumer_group=key.group,
        topic=key.topic,
        queue_id=key.queue_id,
        extra_info=handle.encode(),
        offset=offset,
    )
