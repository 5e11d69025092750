"""Answers to 315 (one statistic) and 28 (what the broker tells of itself). Source: apache/rocketmq
``AdminBrokerProcessor``."""

from __future__ import annotations

from turbopump.broker.questions import Questions
from turbopump.broker.runtime_info import RuntimeInfo
from turbopump.broker.statistics import Statistics
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.register import KVTable
from turbopump.protocol.bodies.stats import BrokerStatsData
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo, ViewBrokerStatsData
from turbopump.remoting.router import Outcome, RequestContext, Response
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.lookup import StoredEntry


class StatisticsHandler:
    """Tells figures."""

    def __init__(
        self,
        statistics: Statistics,
        runtime: RuntimeInfo,
        store: MessageStore,
        questions: Questions,
    ) -> None:
        self._statistics = statistics
        self._runtime = runtime
        self._store = store
        self._questions = questions

    def view(self, request: ViewBrokerStatsData, _context: RequestContext) -> Response:
        """One statistic over the last minute, hour and day."""
        found = self._statistics.find(request.stats_name, request.stats_key)
        if found is None:
            name, key = request.stats_name[:128], request.stats_key[:512]
            remark = (
                f"The stats <{name}> <{key}> not exist: nothing was counted since the "
                "start, or it is sampled within 10 s"
            )
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=remark)
        minute, hour, day = found
        return Response(
            body=fastjson.encode(
                BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
            )
        )

    def runtime(self, _request: GetBrokerRuntimeInfo, context: RequestContext) -> Outcome:
        """The table of figures."""

        def respond(oldest: StoredEntry | None) -> Response:
            earliest = (
                oldest.message.store_timestamp
                if oldest is not None and oldest.fault is None
                else -1
            )
            return Response(body=fastjson.encode(KVTable(table=self._runtime.table(earliest))))

        return self._questions.ask(
            self._store.lookup.entry_at(self._store.log.start), respond, context
        )
