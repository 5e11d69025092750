"""Metrics of timer messages: those that wait, those that are late, and those that passed.

The timer log says of a waiting message only the hash of its topic. So the messages that wait at the
start of the broker are counted by hash, once, in steps; all others by topic when they move. Source:
apache/rocketmq ``DefaultStoreMetricsManager``, ``TimerMetrics``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from turbopump.broker.counters.labels import LOCAL_DISK, STORAGE
from turbopump.broker.counters.timers import DELAY_LATENCY
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.message.java import java_hash
from turbopump.metrics.family import Family, Kind, Metrics, Sample

ENQUEUE_LAG: Final = Family(
    "rocketmq_timer_enqueue_lag",
    Kind.GAUGE,
    "Timer messages that are stored, but not yet in their slots.",
    STORAGE,
)
ENQUEUE_LATENCY: Final = Family(
    "rocketmq_timer_enqueue_latency_milliseconds",
    Kind.GAUGE,
    "Age of the timer message that was put into its slot last, 0 after two seconds without one.",
    STORAGE,
    instrument="rocketmq_timer_enqueue_latency",
    unit="milliseconds",
)
DEQUEUE_LAG: Final = Family(
    "rocketmq_timer_dequeue_lag",
    Kind.GAUGE,
    "Timer messages that wait in slots, less the recalls.",
    STORAGE,
)
DEQUEUE_LATENCY: Final = Family(
    "rocketmq_timer_dequeue_latency_milliseconds",
    Kind.GAUGE,
    "Seconds by which the timers are late. As in Apache's broker it counts seconds, not ms.",
    STORAGE,
    instrument="rocketmq_timer_dequeue_latency",
    unit="milliseconds",
)
WAITING: Final = Family(
    "rocketmq_timing_messages",
    Kind.GAUGE,
    "Timer messages that wait for their time.",
    (*STORAGE, "topic"),
)
SNAPSHOT: Final = Family(
    "rocketmq_timer_message_snapshot",
    Kind.GAUGE,
    "Timer messages that are due within this many seconds, and not within the bound before.",
    (*STORAGE, "timer_bound_s"),
)
ENTERED: Final = Family(
    "rocketmq_timer_enqueue_total",
    Kind.COUNTER,
    "Timer messages that the timers took from their queue.",
    (*STORAGE, "topic"),
)
LEFT: Final = Family(
    "rocketmq_timer_dequeue_total",
    Kind.COUNTER,
    "Timer messages that left their slots, delivered or for a later slot.",
    (*STORAGE, "topic"),
)
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
TAKEN_RECENTLY_MS: Final = 2000
SLOTS_AT_ONCE: Final = 200
"""Number of slots that are read in one step. They take about 0.2 ms."""
TOPICS_AT_ONCE: Final = 100
"""Number of topics that are looked at in one step."""


class _TimerReads:
    """Reads of the metrics of timers."""

    def __init__(self, timers: Timers, topics: TopicTable, clock: Clock) -> None:
        self._timers = timers
        self._topics = topics
        self._clock = clock
        self._found: asyncio.Task[Counter[int]] | None = None

    def enqueue_lag(self) -> Iterator[Sample]:
        timers = self._timers
        yield LOCAL_DISK, max(timers.queue_end - timers.pending.queue_offset, 0)

    def enqueue_latency(self) -> Iterator[Sample]:
        counts = self._timers.counts
        now = self._clock.now_ms()
        recently = now - counts.taken_at_ms < TAKEN_RECENTLY_MS
        yield LOCAL_DISK, max(now - counts.taken_stored_ms, 0) if recently else 0

    def dequeue_lag(self) -> Iterator[Sample]:
        yield LOCAL_DISK, self._timers.pending.waiting

    def dequeue_latency(self) -> Iterator[Sample]:
        yield LOCAL_DISK, self._timers.overdue_ms // 1000

    def waiting(self) -> Iterator[Sample | None]:
        if self._found is None:
            self._found = asyncio.ensure_future(self._timers.count_found())
        by_hash: Mapping[int, int] = {}
        if self._found.done() and not self._found.exception():
            by_hash = self._found.result()
        known = set(self._timers.counts.waiting)
        names = self._topics.names() if by_hash else known
        for number, topic in enumerate(names):
            if number % TOPICS_AT_ONCE == 0:
                yield None
            count = self._timers.counts.waiting[topic] + by_hash.get(java_hash(topic), 0)
            if (count or topic in known) and self._topics.find(topic) is not None:
                yield (*LOCAL_DISK, topic), max(count, 0)

    def snapshot(self) -> Iterator[Sample | None]:
        pending = self._timers.pending
        precision = pending.config.precision_ms
        now = pending.config.floor(self._clock.now_ms())
        begin = max(now, pending.read_time)
        looked = 0
        for bound in SNAPSHOT_BOUNDS_S:
            end = now + bound * 1000
            count = 0
            time = pending.next_time_from(begin)
            while time is not None and time < end:
                count += pending.count_at(time)
                looked += 1
                if looked % SLOTS_AT_ONCE == 0:
                    yield None
                time = pending.next_time_from(time + precision)
            begin = max(begin, end)
            yield (*LOCAL_DISK, str(bound)), max(count, 0)

    def entered(self) -> Iterator[Sample]:
        return self._by_topic(self._timers.counts.entered)

    def left(self) -> Iterator[Sample]:
        return self._by_topic(self._timers.counts.left)

    def delays(self) -> Iterator[Sample]:
        for (topic,), distribution in self._timers.counts.delays.read():
            if self._is_there(topic):
                yield (*LOCAL_DISK, topic), distribution

    def _by_topic(self, counts: Mapping[str, int]) -> Iterator[Sample]:
        for topic, count in list(counts.items()):
            if self._is_there(topic):
                yield (*LOCAL_DISK, topic), count

    def _is_there(self, topic: str) -> bool:
        """Return True if a topic exists. Delete the counters of a topic that does not."""
        if self._topics.find(topic) is not None:
            return True
        self._timers.counts.forget(topic)
        return False


def add_timers(metrics: Metrics, timers: Timers, topics: TopicTable, clock: Clock) -> None:
    """Add the metrics of timer messages."""
    reads = _TimerReads(timers, topics, clock)
    metrics.add(ENQUEUE_LAG, reads.enqueue_lag)
    metrics.add(ENQUEUE_LATENCY, reads.enqueue_latency)
    metrics.add(DEQUEUE_LAG, reads.dequeue_lag)
    metrics.add(DEQUEUE_LATENCY, reads.dequeue_latency)
    metrics.add(WAITING, reads.waiting)
    metrics.add(SNAPSHOT, reads.snapshot)
    metrics.add(ENTERED, reads.entered)
    metrics.add(LEFT, reads.left)
    metrics.add(DELAY_LATENCY, reads.delays)
