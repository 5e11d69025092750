"""Handler of requests about replication. Some come from slaves, the others ask for its state.

Slaves request tables (43, 45, 402, 60 and 61). The others are 906 for the HA port, 907 for the
state of replication, and 905 and 908, which Apache's slaves send. Source: apache/rocketmq
``AdminBrokerProcessor``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from turbopump.broker.acting.acting import Acting
from turbopump.broker.parts import Copying, Delivering, Listening, follow_master
from turbopump.broker.saved_table import SavedTable, table_answer
from turbopump.broker.stored import Stored
from turbopump.protocol import fastjson
from turbopump.protocol.requests.replication import (
    ACTED,
    LOG_END,
    LOG_START,
    ExchangeHAInfo,
    ExchangeHAInfoReply,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetBrokerHaStatus,
    GetTimerCheckpoint,
    GetTimerMetrics,
    HARuntimeInfo,
    NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
    TimerMetrics,
)
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext, Router


@dataclass(eq=False)
class ReplicationHandler:
    """Handler of requests about replication. Some come from slaves, the others ask for its state.

    Tables are sent in the form of their files.
    """

    stored: Stored
    listening: Listening
    delivering: Delivering
    copying: Copying
    acting: Acting | None

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(GetAllConsumerOffset, self.all_offsets)
        router.add(GetAllDelayOffset, self.all_delays)
        router.add(GetAllMessageRequestMode, self.all_modes)
        router.add(GetTimerCheckpoint, self.timer_checkpoint)
        router.add(GetTimerMetrics, self.timer_metrics)
        router.add(ExchangeHAInfo, self.exchange)
        router.add(GetBrokerHaStatus, self.status)
        router.add(NotifyMinBrokerIdChange, self.smallest_id_changed)
        router.add(ResetMasterFlushOffset, self.nothing_to_do)

    async def all_offsets(
        self, request: GetAllConsumerOffset, _context: RequestContext
    ) -> Response[None]:
        table: SavedTable[Any] = self.stored.tables.offsets
        if request.order_info:
            table = self.delivering.pop.order
        if request.locks:
            table = self.stored.tables.locks
        body, ext = await table_answer(table, request.known_version, request.held)
        return Response(body=body, ext=ext)

    async def all_delays(
        self, _request: GetAllDelayOffset, _context: RequestContext
    ) -> Response[None]:
        return Response(
            body=fastjson.compact(await self.delivering.delays.text()), ext=self._log_span()
        )

    async def all_modes(
        self, request: GetAllMessageRequestMode, _context: RequestContext
    ) -> Response[None]:
        body, ext = await table_answer(
            self.stored.request_modes, request.known_version, request.held
        )
        return Response(body=body, ext=ext)

    def timer_checkpoint(
        self, _request: GetTimerCheckpoint, _context: RequestContext
    ) -> Response[None]:
        body = self.delivering.timers.safe_checkpoint.for_slave()
        return Response(body=body, ext=self._log_span())

    def timer_metrics(
        self, _request: GetTimerMetrics, _context: RequestContext
    ) -> Response[TimerMetrics]:
        return Response(TimerMetrics())

    async def exchange(
        self, request: ExchangeHAInfo, _context: RequestContext
    ) -> Response[ExchangeHAInfoReply]:
        """Return the addresses of this master. At a slave, set the address of its new master.

        RocketMQ: the reported flushed offset is that of the start, and a slave keeps the new
        address.

        With ``takes_over`` the master of this slave is about to start. The answer comes when the
        slave does not act as the master any more.
        """
        if request.takes_over:
            acted = self.acting is not None and await self.acting.hand_back()
            return Response(ExchangeHAInfoReply(), ext={ACTED: "true"} if acted else None)
        if request.master_ha_address is not None:
            if self.acting is not None:  # Apache's master asks for tables next
                await self.acting.hand_back()
            follow_master(
                self.listening, self.copying, request.master_address, request.master_ha_address
            )
            return Response(ExchangeHAInfoReply())
        if self.listening.replication.master is None:
            return Response(ExchangeHAInfoReply())
        reply = ExchangeHAInfoReply(
            master_ha_address=self.listening.ha_address or None,
            master_flush_offset=self.stored.store.durable.value,
            master_address=self.listening.address,
        )
        return Response(reply)

    def status(
        self, _request: GetBrokerHaStatus, _context: RequestContext
    ) -> Response[HARuntimeInfo]:
        return Response(self.listening.replication.status(asyncio.get_running_loop().time()))

    def smallest_id_changed(
        self, _request: NotifyMinBrokerIdChange, _context: RequestContext
    ) -> Response[None]:
        """Let a slave look at once whether its master is away or back."""
        if self.acting is not None:
            self.acting.look_soon()
        return Response()

    def nothing_to_do(
        self, _request: ResetMasterFlushOffset, _context: RequestContext
    ) -> Response[None]:
        """Accept a request that needs no action here.

        Our slaves check each entry themselves.
        """
        return Response()

    def _log_span(self) -> dict[str, str]:
        """Return the start and the end of the commit log, as header fields.

        The entries of messages delivered before this call lie before the end.
        """
        log = self.stored.store.log
        return {LOG_START: str(log.start), LOG_END: str(log.end)}
