"""Answers to 43, 45 and 402 (tables that a slave copies), 907 (where replication stands), 905 and
908 (what only a slave makes use of).

This broker has no slaves yet: it is a master alone. Source: apache/rocketmq
``AdminBrokerProcessor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turbopump.broker.saved_table import SavedTable
from turbopump.protocol import fastjson
from turbopump.protocol.requests.replication import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetBrokerHaStatus,
    HARuntimeInfo,
    NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
)
from turbopump.remoting.router import RequestContext, Response, Router
from turbopump.store.message_store import MessageStore


@dataclass(eq=False)
class ReplicationHandler:
    """Tells slaves and tools what a master knows. The tables go as their files have them."""

    store: MessageStore
    offsets: SavedTable[Any]
    delays: SavedTable[Any]
    request_modes: SavedTable[Any]

    def add_to(self, router: Router) -> None:
        """Answer these requests."""
        router.add(GetAllConsumerOffset, self.all_offsets)
        router.add(GetAllDelayOffset, self.all_delays)
        router.add(GetAllMessageRequestMode, self.all_modes)
        router.add(GetBrokerHaStatus, self.status)
        router.add(NotifyMinBrokerIdChange, self.nothing_to_do)
        router.add(ResetMasterFlushOffset, self.nothing_to_do)

    async def all_offsets(
        self, _request: GetAllConsumerOffset, _context: RequestContext
    ) -> Response[None]:
        return await _text(self.offsets)

    async def all_delays(
        self, _request: GetAllDelayOffset, _context: RequestContext
    ) -> Response[None]:
        return await _text(self.delays)

    async def all_modes(
        self, _request: GetAllMessageRequestMode, _context: RequestContext
    ) -> Response[None]:
        return await _text(self.request_modes)

    def status(
        self, _request: GetBrokerHaStatus, _context: RequestContext
    ) -> Response[HARuntimeInfo]:
        return Response(HARuntimeInfo(master=True, master_commit_log_max_offset=self.store.log.end))

    def nothing_to_do(
        self, _request: NotifyMinBrokerIdChange | ResetMasterFlushOffset, _context: RequestContext
    ) -> Response[None]:
        """Of a master alone nothing changes."""
        return Response()


async def _text(table: SavedTable[Any]) -> Response[None]:
    return Response(body=fastjson.compact(await table.text()))
