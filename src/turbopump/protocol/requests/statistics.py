"""Figures of a broker: 28 GET_BROKER_RUNTIME_INFO, 315 VIEW_BROKER_STATS_DATA."""

from __future__ import annotations

from typing import ClassVar

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class GetBrokerRuntimeInfo(Request[None], kw_only=True):
    """What a broker tells of itself; the body of the answer is ``bodies.register.KVTable``."""

    code: ClassVar[int] = RequestCode.GET_BROKER_RUNTIME_INFO


class ViewBrokerStatsData(Request[None], kw_only=True):
    """One statistic: ``stats_name`` is such as ``TOPIC_PUT_NUMS``, ``stats_key`` a topic,
    ``topic@group`` or the cluster; the body of the answer is ``bodies.stats.BrokerStatsData``."""

    code: ClassVar[int] = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str
