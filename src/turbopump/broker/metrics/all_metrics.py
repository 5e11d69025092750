"""List of all metrics of a broker, and the labels that each of them has.

Source of names, types and labels: apache/rocketmq ``BrokerMetricsConstant`` and
``BrokerMetricsManager`` (5.3.3), as its Prometheus exporter writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbopump.broker.counters.messages_in import add_messages_in
from turbopump.broker.counters.transactions import add_transactions
from turbopump.broker.metrics.broker_state import add_broker_state
from turbopump.broker.metrics.connections import add_connections
from turbopump.broker.metrics.consumer_lag import ConsumerLag
from turbopump.broker.metrics.messages_out import add_messages_out
from turbopump.broker.metrics.pop import add_pop
from turbopump.broker.metrics.replication import add_replication
from turbopump.broker.metrics.requests import add_requests
from turbopump.broker.metrics.storage import add_storage
from turbopump.broker.metrics.timers import add_timers
from turbopump.broker.parts import Parts
from turbopump.metrics.family import Metrics


def metrics_of(parts: Parts) -> Metrics:
    """Return the metrics of a started broker."""
    config = parts.stored.config
    metrics = Metrics(
        {
            **config.metrics_labels,
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
            "otel_scope_name": "broker-meter",
        }
    )
    stored = parts.stored
    delivering = parts.delivering
    events = stored.statistics.events
    add_broker_state(metrics, stored)

    def count_puts() -> Iterator[None]:
        yield from stored.statistics.count_puts()
        yield from events.forget_gone(lambda topic: stored.tables.topics.find(topic) is not None)

    add_messages_in(metrics, events.messages_in, count_puts)
    add_messages_out(metrics, stored.statistics)
    add_connections(metrics, stored.clients, events.is_system)
    ConsumerLag(stored, delivering.pop).add_to(metrics)
    events.dead_letters.add_to(metrics)
    add_transactions(metrics, events.transactions)
    events.creations.add_to(metrics)
    add_requests(metrics, stored)
    add_storage(metrics, stored)
    add_timers(metrics, delivering.timers, stored.tables.topics, stored.clock)
    add_pop(metrics, delivering.pop, stored.tables)
    add_replication(metrics, parts.listening.replication)
    return metrics
