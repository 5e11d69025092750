"""Counters of the records of POP, for the metrics.

The parts of POP add to them. ``broker/metrics/pop.py`` reads them. Source: apache/rocketmq
``PopMetricsManager``.
"""

from __future__ import annotations

from typing import Final

from turbopump.metrics.family import Family, Kind
from turbopump.metrics.tables import CounterTable, HistogramTable

REVIVE_IN: Final = Family(
    "rocketmq_pop_revive_in_message_total",
    Kind.COUNTER,
    "Records that were put into the revive topic: checkpoints (CK) and acknowledgements (ACK).",
    ("consumer_group", "topic", "revive_message_type", "put_status"),
)
REVIVE_OUT: Final = Family(
    "rocketmq_pop_revive_out_message_total",
    Kind.COUNTER,
    "Records that were read from the revive topic: checkpoints (CK) and acknowledgements (ACK).",
    ("consumer_group", "topic", "queue_id", "revive_message_type"),
)
REVIVE_RETRY: Final = Family(
    "rocketmq_pop_revive_retry_messages_total",
    Kind.COUNTER,
    "Popped messages that were not acknowledged in time, and were put into a retry topic.",
    ("consumer_group", "topic", "put_status"),
)
SCAN_TIME: Final = Family(
    "rocketmq_pop_buffer_scan_time_consume_milliseconds",
    Kind.HISTOGRAM,
    "Milliseconds of a scan of the open checkpoints of a revive queue.",
    (),
    (1, 10, 100, 1000, 2000, 3000),
    "rocketmq_pop_buffer_scan_time_consume",
    "milliseconds",
)
CHECKPOINT: Final = "CK"
ACKNOWLEDGEMENT: Final = "ACK"
PUT_OK: Final = "PUT_OK"


class PopCounts:
    """Counters of the records of POP since the start of the broker."""

    def __init__(self) -> None:
        self.put = CounterTable(REVIVE_IN)
        self.read = CounterTable(REVIVE_OUT)
        self.retried = CounterTable(REVIVE_RETRY)
        self.scans = HistogramTable(SCAN_TIME)

    def add_put(self, group: str, topic: str, kind: str) -> None:
        """Count a record that was put into the revive topic."""
        self.put.add((group, topic, kind, PUT_OK))

    def add_read(self, group: str, topic: str, queue_id: int, kind: str) -> None:
        """Count a record that was read from a queue of the revive topic."""
        self.read.add((group, topic, str(queue_id), kind))

    def add_retried(self, group: str, topic: str) -> None:
        """Count a message that is delivered again."""
        self.retried.add((group, topic, PUT_OK))

    def add_scan(self, seconds: float) -> None:
        """Count a scan of open checkpoints."""
        self.scans.observe((), int(seconds * 1000))
