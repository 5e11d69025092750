"""Metrics of transactions: commits, roll-backs, their durations, and open half messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.metrics.tables import CounterTable, HistogramTable

COMMITS: Final = Family(
    "rocketmq_commit_messages_total", Kind.COUNTER, "Committed transactions.", ("topic",)
)
ROLLBACKS: Final = Family(
    "rocketmq_rollback_messages_total", Kind.COUNTER, "Rolled back transactions.", ("topic",)
)
LATENCY: Final = Family(
    "rocketmq_finish_message_latency_milliseconds",
    Kind.HISTOGRAM,
    "Seconds from the birth of a transaction's message to its commit. The name says milliseconds, "
    "as Apache's broker does.",
    ("topic",),
    bounds=(5, 60, 600, 3600, 43_200, 86_400),
    instrument="rocketmq_finish_message_latency",
    unit="ms",
)
HALVES: Final = Family(
    "rocketmq_half_messages", Kind.GAUGE, "Messages of open transactions.", ("topic",)
)


class TransactionCounts:
    """Numbers of transactions, by the topic to which their messages are sent.

    ``counted_from`` is the offset from which on half messages are counted as open. While a start
    reads the half messages of the last run, it is the end that their queue had then.
    """

    def __init__(self) -> None:
        self.commits = CounterTable(COMMITS)
        self.rollbacks = CounterTable(ROLLBACKS)
        self.latency = HistogramTable(LATENCY)
        self.halves = CounterTable(HALVES)
        self.counted_from = 0

    def count_begun(self, topic: str) -> None:
        """Count a new open transaction."""
        self.halves.add((topic,))

    def count_earlier(self, topics: Iterable[str]) -> None:
        """Count the transactions that the last run has left open, each by its topic."""
        self.counted_from = 0
        for topic in topics:
            self.count_begun(topic)

    def count_commit(self, topic: str, offset: int, took_ms: int) -> None:
        """Count a commit, ``took_ms`` after the birth of the message.

        ``offset`` is that of the half message in its queue.
        """
        self.commits.add((topic,))
        # RocketMQ: whole seconds, although the unit of the name is milliseconds
        self.latency.observe((topic,), max(took_ms, 0) // 1000)
        self.count_closed(topic, offset)

    def count_rollback(self, topic: str, offset: int) -> None:
        """Count a roll-back."""
        self.rollbacks.add((topic,))
        self.count_closed(topic, offset)

    def count_closed(self, topic: str, offset: int) -> None:
        """Note that a transaction is no longer open, for example because it was given up."""
        if offset >= self.counted_from:
            self.halves.add((topic,), -1)

    def topics(self) -> set[str]:
        """Return the topics that have numbers."""
        tables = self.commits, self.rollbacks, self.halves
        return {topic for table in tables for (topic,), _ in table.read()}

    def forget_topic(self, topic: str) -> None:
        """Delete the numbers of a deleted topic."""
        for table in (self.commits, self.rollbacks, self.latency, self.halves):
            table.forget(lambda values: values[0] == topic)


def add_transactions(metrics: Metrics, counts: TransactionCounts) -> None:
    """Add the metrics of transactions."""

    def read_halves() -> Iterator[Sample]:
        for values, count in counts.halves.read():
            assert isinstance(count, int | float)
            yield values, max(count, 0)

    metrics.add(HALVES, read_halves)
    metrics.add(COMMITS, counts.commits.read)
    metrics.add(ROLLBACKS, counts.rollbacks.read)
    metrics.add(LATENCY, counts.latency.read)
