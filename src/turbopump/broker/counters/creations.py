"""Metrics of requests to create topics and groups: how long they took, and if they succeeded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from turbopump.broker.counters.labels import SystemLabel, flag
from turbopump.metrics.family import Family, Kind, Metrics
from turbopump.metrics.tables import HistogramTable
from turbopump.protocol.codes import ResponseCode
from turbopump.remoting.response import Response

_BOUNDS: Final = (10, 100, 1000, 3000, 5000)
TOPICS: Final = Family(
    "rocketmq_topic_create_execution_time_milliseconds",
    Kind.HISTOGRAM,
    "Milliseconds that requests to create topics took.",
    ("invocation_status", "is_system"),
    bounds=_BOUNDS,
    instrument="rocketmq_topic_create_execution_time",
    unit="milliseconds",
)
GROUPS: Final = Family(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    Kind.HISTOGRAM,
    "Milliseconds that requests to create consumer groups took.",
    ("invocation_status",),
    bounds=_BOUNDS,
    instrument="rocketmq_consumer_group_create_execution_time",
    unit="milliseconds",
)


class Creations:
    """Durations of requests to create topics and groups."""

    def __init__(self, is_system: SystemLabel) -> None:
        self._is_system = is_system
        self._topics = HistogramTable(TOPICS)
        self._groups = HistogramTable(GROUPS)

    def count_topics(self, names: Iterable[str], answer: Response[Any], seconds: float) -> None:
        """Count a request to create topics, with its answer and its duration."""
        system = flag("true" in map(self._is_system, names))
        self._topics.observe((_status(answer), system), int(seconds * 1000))

    def count_groups(self, answer: Response[Any], seconds: float) -> None:
        """Count a request to create consumer groups, with its answer and its duration."""
        self._groups.observe((_status(answer),), int(seconds * 1000))

    def add_to(self, metrics: Metrics) -> None:
        """Add the two metrics."""
        metrics.add(TOPICS, self._topics.read)
        metrics.add(GROUPS, self._groups.read)


def _status(answer: Response[Any]) -> str:
    return "success" if answer.code == ResponseCode.SUCCESS else "failure"
