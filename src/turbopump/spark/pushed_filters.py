"""Filters that Spark pushes down to the source: which of them narrow a read, and how.

One rule: the source may read more rows than the filters match, never fewer. Spark drops a filter
that the ranges alone make true: those on topic, brokerName, queueId and queueOffset. Filters on
times and tags only reduce what is read, and Spark filters again: store times are not quite in
order, and brokers compare hashes of tags. Other filters are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import Offsets

CLOCK_SLACK_MS: Final = 3_600_000
"""Milliseconds by which a broker's clock may have been set back. Store times are then out of order.
So the search in a queue begins this much before the range of the filter, and ends this much after
it."""

_NEVER_NULL: Final = frozenset(("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"))
_INT64: Final = 1 << 63

IntRange = tuple[int, int]
"""Begin and end (exclusive) of a range."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Restrictions on columns, taken from Spark's filters. The source applies these restrictions
    itself.

    A field that is None does not restrict its column.
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: IntRange = (-_INT64, _INT64)
    queue_id_set: frozenset[int] | None = None
    offsets: IntRange = (-_INT64, _INT64)
    stored_ms: IntRange = (-_INT64, _INT64)
    tags: frozenset[str] | None = None

    def may_match(self, queue: MessageQueue) -> bool:
        """Return True if messages of this queue can match the filters."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_id_set is None or queue.queue_id in self.queue_id_set)
            and self.queue_ids[0] <= queue.queue_id < self.queue_ids[1]
        )

    def limit_ranges(
        self, cluster: Cluster, begins: Offsets, ends: Offsets
    ) -> tuple[Offsets, Offsets]:
        """For each queue, narrow the range of offsets. Only messages that cannot match the
        filters are left out."""
        begins = {queue: max(begin, self.offsets[0]) for queue, begin in begins.items()}
        ends = {queue: min(end, self.offsets[1]) for queue, end in ends.items()}
        first, last = self.stored_ms
        for queue in [queue for queue in ends if begins[queue] < ends[queue]]:
            if first - CLOCK_SLACK_MS > 0:
                at = cluster.offset_at(queue, first - CLOCK_SLACK_MS)
                begins[queue] = max(begins[queue], at)
            if last < _INT64:
                at = cluster.offset_at(queue, max(0, last + CLOCK_SLACK_MS))
                ends[queue] = min(ends[queue], at)
        return begins, ends


NOTHING_PUSHED: Final = Pushed()


def push(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """Divide Spark's filters between the source and Spark.

    The first result has the restrictions that the source applies. The second result has the filters
    that Spark must apply. A row must match all filters. A filter may be in both results, because
    the source applies some filters only roughly.
    """
    pushed = NOTHING_PUSHED
    left: list[Filter] = []
    for one in filters:
        pushed, is_dealt_with = _add_filter(pushed, one)
        if not is_dealt_with:
            left.append(one)
    return pushed, left


def _add_filter(pushed: Pushed, one: Filter) -> tuple[Pushed, bool]:
    """Add one of Spark's filters to ``pushed``. The second result is True if Spark need not
    apply it again."""
    column = getattr(one, "attribute", ("",))
    name = ".".join(column)
    if isinstance(one, IsNotNull):
        return pushed, name in _NEVER_NULL
    value = getattr(one, "value", None)
    if isinstance(one, (EqualTo, EqualNullSafe)):
        one = In(column, (value,))
        value = one.value
    if isinstance(one, In) and isinstance(value, tuple):
        return _add_values(pushed, name, value)
    wanted = _range_of(one, name, value)
    if wanted is None:
        return pushed, False
    if name == "queueId":
        return replace(pushed, queue_ids=_overlap(pushed.queue_ids, wanted)), True
    if name == "queueOffset":
        return replace(pushed, offsets=_overlap(pushed.offsets, wanted)), True
    return replace(pushed, stored_ms=_overlap(pushed.stored_ms, wanted)), False


def _add_values(pushed: Pushed, name: str, values: tuple[Any, ...]) -> tuple[Pushed, bool]:
    """Restrict a column to these values. The second result is True if Spark need not do this
    again."""
    if name in ("topic", "brokerName", "tags"):
        if not all(isinstance(value, str) for value in values):
            return pushed, False
        texts = frozenset[str](values)
        if name == "topic":
            return replace(pushed, topics=_intersection(pushed.topics, texts)), True
        if name == "brokerName":
            return replace(pushed, brokers=_intersection(pushed.brokers, texts)), True
        if not all(map(_can_be_asked_for, texts)):
            return pushed, False
        return replace(pushed, tags=_intersection(pushed.tags, texts)), False
    if name in ("queueId", "queueOffset") and all(map(_is_number, values)):
        numbers = frozenset[int](values)
        if name == "queueId":
            return replace(pushed, queue_id_set=_intersection(pushed.queue_id_set, numbers)), True
        span = (min(numbers, default=0), max(numbers, default=-1) + 1)
        return replace(pushed, offsets=_overlap(pushed.offsets, span)), len(numbers) == 1
    if name == "storeTimestamp" and values and all(map(_is_instant, values)):
        times = [_ms(value) for value in values]
        return replace(
            pushed, stored_ms=_overlap(pushed.stored_ms, (min(times), max(times) + 1))
        ), False
    return pushed, False


def _range_of(one: Filter, name: str, value: Any) -> IntRange | None:
    if name in ("queueId", "queueOffset") and _is_number(value):
        return _compared(one, value)
    if name == "storeTimestamp" and _is_instant(value):
        found = _compared(one, _ms(value))
        if found is None:
            return None
        first, last = found
        # the time was cut to whole milliseconds, so this millisecond may have wanted messages
        return first - (first > -_INT64), last + (last < _INT64)
    return None


def _compared(one: Filter, value: int) -> IntRange | None:
    """Return the range of numbers that match a comparison. Return None for any other filter."""
    if isinstance(one, GreaterThan):
        return value + 1, _INT64
    if isinstance(one, GreaterThanOrEqual):
        return value, _INT64
    if isinstance(one, LessThan):
        return -_INT64, value
    if isinstance(one, LessThanOrEqual):
        return -_INT64, value + 1
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_instant(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _ms(value: datetime) -> int:
    return int(value.timestamp() * 1000)


def _can_be_asked_for(tag: str) -> bool:
    """Return True if this tag can be written in a broker's tag filter ``A || B``."""
    return bool(tag) and tag == tag.strip() and "||" not in tag and tag != "*"


def _intersection(said: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if said is None else said & more


def _overlap(one: IntRange, other: IntRange) -> IntRange:
    return max(one[0], other[0]), min(one[1], other[1])
