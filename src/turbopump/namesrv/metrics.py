"""Metrics of a name server. Apache's name server has none, so that all names are ours."""

from __future__ import annotations

from typing import Final

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.metrics.family import Family, Kind, Metrics
from turbopump.namesrv.route_table import RouteTable

BROKERS: Final = Family(
    "turbopump_namesrv_brokers", Kind.GAUGE, "Brokers that are registered with this name server."
)


def metrics_of(config: NamesrvConfig, table: RouteTable) -> Metrics:
    """Return the metrics of a name server."""
    metrics = Metrics({"node_type": "namesrv", **config.metrics_labels})
    metrics.add_value(BROKERS, lambda: table.broker_count)
    return metrics
