"""Metrics of a broker's permission, of its readiness, and of the sizes of its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.broker.stored import Stored
from turbopump.metrics.family import Family, Kind, Metrics

PERMISSION: Final = Family(
    "rocketmq_broker_permission",
    Kind.GAUGE,
    "Permission of the broker: 2 writable, 4 readable, 6 both.",
)
TOPICS: Final = Family("rocketmq_topic_number", Kind.GAUGE, "Topics of the broker.")
GROUPS: Final = Family(
    "rocketmq_consumer_group_number", Kind.GAUGE, "Consumer groups of the broker."
)
READY: Final = Family(
    "turbopump_broker_ready",
    Kind.GAUGE,
    "1 if the broker is ready for clients, as its page /readyz says, else 0.",
)


def add_broker_state(metrics: Metrics, stored: Stored) -> None:
    """Add the metrics of the broker's permission, topics and groups."""
    config = stored.config
    tables = stored.tables
    metrics.add_value(PERMISSION, lambda: config.broker_permission)
    metrics.add_value(TOPICS, lambda: tables.topics.count)
    metrics.add_value(GROUPS, lambda: tables.groups.count)


def add_readiness(metrics: Metrics, reasons: Callable[[], list[str]]) -> None:
    """Add the metric of the broker's readiness. ``reasons`` returns why it is not ready."""
    metrics.add_value(READY, lambda: int(not reasons()))
