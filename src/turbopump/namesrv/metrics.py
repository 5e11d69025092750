"""Metrics of a name server. Apache's name server has none, so that all names are ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.namesrv.route_table import RouteTable
from turbopump.protocol.codes import request_name, response_name
from turbopump.remoting.answer_times import AnswerTimes

BROKERS: Final = Family(
    "turbopump_namesrv_brokers",
    Kind.GAUGE,
    "Brokers that are registered with this name server, a master and its slaves as one.",
)
ADDRESSES: Final = Family(
    "turbopump_namesrv_broker_addresses",
    Kind.GAUGE,
    "Addresses of masters and slaves that are registered with this name server.",
)
TOPICS: Final = Family(
    "turbopump_namesrv_topics", Kind.GAUGE, "Topics that this name server has routes for."
)
REGISTRATIONS: Final = Family(
    "turbopump_namesrv_registrations_total",
    Kind.COUNTER,
    "Registrations of brokers by their result: accepted, superseded, occupied or incomplete.",
    ("result",),
)
EXPIRIES: Final = Family(
    "turbopump_namesrv_expiries_total",
    Kind.COUNTER,
    "Brokers that were removed without a request, by cause: silent or connection_lost.",
    ("cause",),
)
REQUESTS: Final = Family(
    "turbopump_namesrv_requests_total",
    Kind.COUNTER,
    "Answered requests.",
    ("request_code", "response_code"),
)


def metrics_of(config: NamesrvConfig, table: RouteTable, times: AnswerTimes) -> Metrics:
    """Return the metrics of a name server.

    - ``times``: the times of its answers.
    """
    metrics = Metrics({**config.metrics_labels, "node_type": "namesrv"})

    def read_requests() -> Iterator[Sample]:
        counts: Counter[tuple[str, ...]] = Counter()
        for kind, distribution in times.read():
            labels = request_name(kind.request_code), response_name(kind.response_code)
            counts[labels] += sum(distribution.counts)
        return iter(counts.items())

    metrics.add_value(BROKERS, lambda: table.broker_count)
    metrics.add_value(ADDRESSES, lambda: table.address_count)
    metrics.add_value(TOPICS, lambda: table.topic_count)
    metrics.add(REGISTRATIONS, lambda: _by_one_label(table.registrations))
    metrics.add(EXPIRIES, lambda: _by_one_label(table.removals))
    metrics.add(REQUESTS, read_requests)
    return metrics


def _by_one_label(counts: Counter[str]) -> Iterator[Sample]:
    return iter([((name,), count) for name, count in counts.items()])
