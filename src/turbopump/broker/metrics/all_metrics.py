"""List of all metrics of a broker, and the labels that each of them has.

Source of names, types and labels: apache/rocketmq ``BrokerMetricsConstant`` and
``BrokerMetricsManager`` (5.3.3), as its Prometheus exporter writes them.
"""

from __future__ import annotations

from turbopump.broker.metrics.broker_state import add_broker_state
from turbopump.broker.parts import Parts
from turbopump.metrics.family import Metrics


def metrics_of(parts: Parts) -> Metrics:
    """Return the metrics of a started broker."""
    config = parts.stored.config
    metrics = Metrics(
        {
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
            "otel_scope_name": "broker-meter",
            **config.metrics_labels,
        }
    )
    add_broker_state(metrics, parts.stored)
    return metrics
