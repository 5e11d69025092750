"""Metric of the messages that became dead letters."""

from __future__ import annotations

from typing import Final

from turbopump.broker.counters.labels import SystemLabel
from turbopump.metrics.family import Family, Kind, Metrics
from turbopump.metrics.tables import CounterTable

DEAD_LETTERS: Final = Family(
    "rocketmq_send_to_dlq_messages_total",
    Kind.COUNTER,
    "Messages that went to the dead-letter topic of their group.",
    ("consumer_group", "topic", "is_system"),
)


class DeadLetterCounts:
    """Numbers of dead letters, by group and by the topic of the message."""

    def __init__(self, is_system: SystemLabel) -> None:
        self._is_system = is_system
        self._table = CounterTable(DEAD_LETTERS)

    def count(self, group: str, topic: str) -> None:
        """Count one dead letter.

        RocketMQ: a message that the consumer itself sends to its retry topic counts there.
        """
        self._table.add((group, topic, self._is_system(topic, group)))

    def topics(self) -> set[str]:
        """Return the topics that have numbers. A request that named none is left out."""
        return {topic for (_, topic, _), _ in self._table.read() if topic}

    def forget(self, group: str = "", topic: str = "") -> None:
        """Delete the numbers of a deleted group or topic."""
        self._table.forget(lambda values: values[0] == group or values[1] == topic)

    def add_to(self, metrics: Metrics) -> None:
        """Add the metric."""
        metrics.add(DEAD_LETTERS, self._table.read)
