"""Counters of timer messages by topic, for the metrics.

The timers add to them when a message has moved. ``broker/metrics/timers.py`` reads them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from turbopump.broker.counters.labels import STORAGE
from turbopump.metrics.family import Family, Kind
from turbopump.metrics.tables import HistogramTable

DELAY_LATENCY: Final = Family(
    "rocketmq_delay_message_latency_seconds",
    Kind.HISTOGRAM,
    "Seconds from the birth of a timer message to its time, counted when the timers take it.",
    (*STORAGE, "topic"),
    (60, 600, 3600, 43_200, 86_400, 259_200),
    "rocketmq_delay_message_latency",
    "seconds",
)


class TimerCounts:
    """Counters of timer messages since the start of the broker, by topic.

    - ``entered``: messages that the timers took from their queue, recalls included.
    - ``left``: messages that were delivered, or moved on to a later slot.
    - ``waiting``: messages that were put into slots, less those that left them. Messages that
      waited before the start are not included, so a number may be negative.
    - ``delays``: the seconds from the birth of a message to its time.
    """

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.delays = HistogramTable(DELAY_LATENCY)
        self.taken_at_ms = 0
        """Time at which the newest message was taken from the queue, in ms since 1970."""
        self.taken_stored_ms = 0
        """Time at which that message was stored."""

    def add_taken(self, topic: str, born_ms: int, stored_ms: int, due_ms: int, now_ms: int) -> None:
        """Count a message that the timers took from their queue.

        All times are in ms since 1970.
        """
        self.entered[topic] += 1
        self.delays.observe((topic,), max(due_ms - born_ms, 0) // 1000)
        self.taken_at_ms = now_ms
        self.taken_stored_ms = stored_ms

    def forget(self, topic: str) -> None:
        """Delete the counters of a deleted topic."""
        for counts in (self.entered, self.left, self.waiting):
            counts.pop(topic, None)
        self.delays.forget((topic,).__eq__)
