"""Notices to live replicas that a new master was elected (1008), one-way.

A notice that is lost does no harm: replicas ask for the master themselves, at intervals.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from turbopump.controller.groups import Group
from turbopump.controller.liveness import Liveness
from turbopump.errors import RemotingError
from turbopump.protocol import fastjson
from turbopump.protocol.requests.controller import NotifyRoleChanged
from turbopump.remoting.client import RemotingClient
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_told = RepeatedLine(
    log, logging.WARNING, "replica cannot be told of its master broker=%s address=%s cause=%s"
)

CONNECT_S: Final = 3.0
"""Seconds to connect to a replica."""


class RoleNotices:
    """Notices to replicas, over connections of the controller."""

    def __init__(self, remoting: RemotingClient, liveness: Liveness) -> None:
        self._remoting = remoting
        self._liveness = liveness
        self._sending: dict[str, asyncio.Task[None]] = {}
        """Unfinished notices by address. A newer one replaces an older one."""

    def send(self, group: Group) -> None:
        """Tell all live replicas of a broker name who the master is."""
        for address in self._liveness.addresses(group.broker_name).values():
            older = self._sending.pop(address, None)
            if older is not None:
                older.cancel()
            task = asyncio.ensure_future(self._send(address, group))
            self._sending[address] = task
            task.add_done_callback(partial(self._ended, address))

    async def close(self) -> None:
        """Cancel unfinished notices, and close the connections."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._remoting.close()

    async def _send(self, address: str, group: Group) -> None:
        notice = NotifyRoleChanged(
            master_address=group.address(group.master),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
            master_broker_id=group.master,
        )
        body = fastjson.encode(group.set_body)
        try:
            await self._remoting.send_oneway(address, notice, body, timeout=CONNECT_S)
        except RemotingError as error:
            _not_told(group.broker_name, address, error, kind=address)

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]
