"""Metrics of POP: records of checkpoints and acknowledgements, and how far their queues are read.

Source: apache/rocketmq ``PopMetricsManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from turbopump.broker.counters.pop import REVIVE_IN, REVIVE_OUT, REVIVE_RETRY, SCAN_TIME
from turbopump.broker.pop.pop import Pop
from turbopump.broker.tables import Tables
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.metrics.tables import CounterTable, Values

REVIVE_LAG: Final = Family(
    "rocketmq_pop_revive_lag_milliseconds",
    Kind.GAUGE,
    "Records of a revive queue that are not settled. It is a number, as in Apache's broker.",
    ("queue_id",),
    instrument="rocketmq_pop_revive_lag",
    unit="milliseconds",
)
REVIVE_LATENCY: Final = Family(
    "rocketmq_pop_revive_latency_milliseconds",
    Kind.GAUGE,
    "Milliseconds by which the oldest record of a revive queue is late.",
    ("queue_id",),
    instrument="rocketmq_pop_revive_latency",
    unit="milliseconds",
)
OFFSETS: Final = Family(
    "rocketmq_pop_offset_buffer_size",
    Kind.GAUGE,
    "Offsets of pops that are not committed yet, because their checkpoint is not on the disk.",
)
CHECKPOINTS: Final = Family(
    "rocketmq_pop_checkpoint_buffer_size",
    Kind.GAUGE,
    "Checkpoints in memory with messages that are not acknowledged.",
)


def add_pop(metrics: Metrics, pop: Pop, tables: Tables) -> None:
    """Add the metrics of POP."""
    counts = pop.counts

    def read_lag() -> Iterator[Sample]:
        for each in pop.reviving_now:
            yield (str(each.queue_id),), each.behind

    def read_latency() -> Iterator[Sample]:
        for each in pop.reviving_now:
            yield (str(each.queue_id),), each.late_ms

    def is_gone(values: Values) -> bool:
        group, topic = values[:2]
        return tables.topics.find(topic) is None or tables.groups.get(group) is None

    metrics.add(REVIVE_IN, _without_gone(counts.put, is_gone))
    metrics.add(REVIVE_OUT, _without_gone(counts.read, is_gone))
    metrics.add(REVIVE_RETRY, _without_gone(counts.retried, is_gone))
    metrics.add(SCAN_TIME, counts.scans.read)
    metrics.add(REVIVE_LAG, read_lag)
    metrics.add(REVIVE_LATENCY, read_latency)
    metrics.add_value(OFFSETS, lambda: pop.offsets.waiting_count)
    metrics.add_value(CHECKPOINTS, lambda: sum(each.open_count for each in pop.reviving))


def _without_gone(
    table: CounterTable, is_gone: Callable[[Values], bool]
) -> Callable[[], Iterator[Sample]]:
    """Return a read of a table. It deletes the series of deleted topics and groups."""

    def read() -> Iterator[Sample]:
        for sample in table.read():
            if is_gone(sample[0]):
                table.forget(sample[0].__eq__)
            else:
                yield sample

    return read
