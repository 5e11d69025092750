"""Metrics of the messages that consumers get: number and bytes.

A pull from a retry topic or a dead-letter topic does not count. A pop from the group's retry topic
counts for the topic itself, with the label ``is_retry``. A due delay counts as read from the
schedule topic. Source: apache/rocketmq ``DefaultPullMessageResultHandler``,
``PopMessageProcessor``, ``ScheduleMessageService``. There, the broker's own reads of transactions
and of POP's records count too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.broker.counters.labels import flag
from turbopump.broker.statistics import Statistics
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.metrics.family import Family, Kind, Metrics, Sample

_LABELS: Final = ("topic", "consumer_group", "is_system", "is_retry")
MESSAGES: Final = Family(
    "rocketmq_messages_out_total",
    Kind.COUNTER,
    "Messages that were delivered to consumers.",
    _LABELS,
)
BYTES: Final = Family(
    "rocketmq_throughput_out_total",
    Kind.COUNTER,
    "Bytes of the messages that were delivered to consumers, as stored.",
    _LABELS,
)
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"


def add_messages_out(metrics: Metrics, statistics: Statistics) -> None:
    """Add the metrics of delivered messages."""

    def rows() -> Iterator[tuple[tuple[str, ...], int, int]]:
        for got in statistics.gets():
            if got.popped_topic:
                topic = got.popped_topic
                is_retry = flag(got.topic != topic)
            elif got.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue
            else:
                topic, is_retry = got.topic, ""
            system = statistics.events.is_system(topic, got.group)
            yield (topic, got.group, system, is_retry), got.messages, got.size
        delayed = statistics.events.delayed
        if delayed.count:
            yield (SCHEDULE_TOPIC, SCHEDULE_GROUP, "true", ""), delayed.count, delayed.size

    def read_messages() -> Iterator[Sample]:
        for values, count, _ in rows():
            yield values, count

    def read_bytes() -> Iterator[Sample]:
        for values, _, size in rows():
            yield values, size

    metrics.add(MESSAGES, read_messages)
    metrics.add(BYTES, read_bytes)
