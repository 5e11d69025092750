"""Handler of requests for a statistic (315) and for the runtime information (28).

Source: apache/rocketmq ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.broker.reading import answer
from turbopump.broker.stored import Stored
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import KVTable
from turbopump.protocol.requests.statistics import (
    BrokerStatsData,
    GetBrokerRuntimeInfo,
    ViewBrokerStatsData,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.store.queues.lookup import StoredEntry


@dataclass(eq=False)
class StatisticsHandler:
    """Handler of requests for statistics and runtime information."""

    stored: Stored

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(ViewBrokerStatsData, self.view)
        router.add(GetBrokerRuntimeInfo, self.runtime)

    def view(
        self, request: ViewBrokerStatsData, _context: RequestContext
    ) -> Response[BrokerStatsData]:
        """Return a statistic over the last minute, hour and day."""
        found = self.stored.statistics.find(request.stats_name, request.stats_key)
        if found is None:
            name = request.stats_name[:128]
            key = request.stats_key[:512]
            remark = (
                f"The stats <{name}> <{key}> not exist: nothing was counted since the "
                "start, or the first sample follows within 10 s"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = found
        return Response(BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day))

    def runtime(self, _request: GetBrokerRuntimeInfo, context: RequestContext) -> Outcome[KVTable]:
        """Return the runtime information of the broker, as a table of texts."""

        def respond(oldest: StoredEntry | None) -> Response[KVTable]:
            earliest = (
                oldest.message.store_timestamp
                if oldest is not None and oldest.fault is None
                else -1
            )
            return Response(KVTable(table=self.stored.runtime_info.table(earliest)))

        store = self.stored.store
        return answer(store.cold_reads, store.lookup.entry_at(store.log.start), respond, context)
