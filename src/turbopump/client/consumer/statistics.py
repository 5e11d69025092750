"""Statistics of a consumer by topic. They cover pulls and handling in the last minute, and failures
in the last hour.

One rule: recording costs one addition. Reading sums up slices of ten seconds. Pure: time is passed
as a value, in seconds. Source: apache/rocketmq ``ConsumerStatsManager``, ``StatsItem``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Final

from turbopump.client.consumer.delivery import Delivery, DeliveryBatch, Handled
from turbopump.client.instrumentation import Reading
from turbopump.client.tracing import ConsumeTraces
from turbopump.protocol.requests.consumers import ConsumeStatus

SLICE_S: Final = 10.0
MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0


class Consumption:
    """Statistics of a consumer, separate for each topic.

    - ``now``: function that returns the seconds of a monotonic clock.
    - ``traces``: traces of the handled messages. None if messages are not traced.
    - ``reading``: observer of the messages, if there is no handler and the process has telemetry.
    """

    def __init__(
        self,
        now: Callable[[], float],
        traces: ConsumeTraces | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._now = now
        self._traces = traces
        self._reading = reading
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._topics: dict[str, TopicStatistics] = {}

    def statistics_of(self, topic: str) -> TopicStatistics:
        """Return the statistics of one topic.

        ``topic`` is the name that brokers know.
        """
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicStatistics(self._now())
        return found

    def statuses(self) -> dict[str, ConsumeStatus]:
        """Return the statistics of each topic, in the form that operators get."""
        now = self._now()
        return {topic: statistics.status(now) for topic, statistics in self._topics.items()}

    def handling_began(self, message: Handled) -> None:
        """Record that a message or batch went to a handler or reader. Any thread may call this
        method."""
        if isinstance(message, DeliveryBatch):
            self._began_together(message.messages)
            return
        message.taken_at = self._now()
        if self._reading is not None:
            self._reading.began(message)
        if self._traces is None:
            return
        if get_ident() == self._thread:
            self._traces.began(message)
        else:
            message.trace = self._traces.now_ms()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._traces.began_at, message)

    def _began_together(self, messages: Sequence[Delivery]) -> None:
        now = self._now()
        for message in messages:
            message.taken_at = now
        if self._traces is None:
            return
        together = self._traces.together(len(messages))
        for message in messages:
            message.trace = together
        if get_ident() == self._thread:
            self._traces.began_all(messages)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._traces.began_all, messages)

    def handling_ended(self, message: Delivery, statistics: TopicStatistics, *, ok: bool) -> float:
        """Record the end of handling a message: done or failed. Return the current time.

        The time is in seconds of the monotonic clock. Messages that no handler or reader had are
        not counted.
        """
        now = self._now()
        if message.taken:
            seconds = now - message.taken_at if message.handled_s is None else message.handled_s
            statistics.handled(seconds, now, ok=ok)
            if self._reading is not None:
                self._reading.ended(message, ok=ok, seconds=seconds)
            if self._traces is not None:
                self._traces.ended(message, ok=ok, seconds=seconds)
        return now


class TopicStatistics:
    """Statistics of one topic, for the last hour."""

    __slots__ = ("_end", "_now", "_past", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._past: deque[_Slice] = deque(maxlen=int(HOUR_S / SLICE_S))
        self._end = 0.0
        self._now = self._roll(now)

    def pulled(self, count: int, seconds: float, now: float) -> None:
        """Record a pull that returned ``count`` messages after ``seconds``."""
        current = self._now if now < self._end else self._roll(now)
        current.pulls += 1
        current.pulled += count
        current.pulling_s += seconds

    def handled(self, seconds: float, now: float, *, ok: bool) -> None:
        """Record that a message was handled for ``seconds``.

        ``ok`` is False if the message has failed.
        """
        current = self._now if now < self._end else self._roll(now)
        current.handled += 1
        current.handling_s += seconds
        if ok:
            current.ok += 1
        else:
            current.failed += 1

    def status(self, now: float) -> ConsumeStatus:
        """Return mean times and rates of the last minute, and failures of the last hour.

        Times are in ms, and rates are per second. RocketMQ: the handling time is that of the last
        hour if the last minute had none.
        """
        minute, hour = self._window(now, MINUTE_S), self._window(now, HOUR_S)
        seconds = max(min(now - self._since, now - _start(now) + MINUTE_S - SLICE_S), 1.0)
        handling = minute if minute.handled else hour
        return ConsumeStatus(
            pull_rt=_mean_ms(minute.pulling_s, minute.pulls),
            pull_tps=minute.pulled / seconds,
            consume_rt=_mean_ms(handling.handling_s, handling.handled),
            consume_ok_tps=minute.ok / seconds,
            consume_failed_tps=minute.failed / seconds,
            consume_failed_msgs=hour.failed,
        )

    def _window(self, now: float, length: float) -> _Slice:
        """Return the sum of the slices in the last ``length`` seconds, including the current
        one."""
        first = _start(now) - length + SLICE_S
        total = _Slice(first)
        for piece in (*self._past, self._now):
            if piece.start >= first:
                total.add(piece)
        return total

    def _roll(self, now: float) -> _Slice:
        if self._end:
            self._past.append(self._now)
        self._now = _Slice(_start(now))
        self._end = self._now.start + SLICE_S
        return self._now


@dataclass(slots=True)
class _Slice:
    """Counts of ten seconds, beginning at ``start``."""

    start: float
    pulls: int = 0
    pulled: int = 0
    pulling_s: float = 0.0
    handled: int = 0
    handling_s: float = 0.0
    ok: int = 0
    failed: int = 0

    def add(self, other: _Slice) -> None:
        """Add the counts of another slice."""
        self.pulls += other.pulls
        self.pulled += other.pulled
        self.pulling_s += other.pulling_s
        self.handled += other.handled
        self.handling_s += other.handling_s
        self.ok += other.ok
        self.failed += other.failed


def _start(now: float) -> float:
    return now // SLICE_S * SLICE_S


def _mean_ms(seconds: float, times: int) -> float:
    return seconds * 1000 / times if times else 0.0
