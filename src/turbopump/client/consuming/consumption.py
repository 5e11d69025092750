"""What is noted of a consumer's messages, from when they are taken to when they are settled:
statistics always, traces if wanted.

One rule: noting changes nothing of what becomes of a message. It must not know queues, offsets or
brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from threading import get_ident

from turbopump.client.consuming.consume_statistics import TopicStatistics
from turbopump.client.consuming.delivery import Delivery
from turbopump.client.traces.tracing import ConsumeTraces
from turbopump.protocol.bodies.running import ConsumeStatus


class Consumption:
    """``now`` in seconds, of a clock that only goes on. ``traces`` None: nothing is traced."""

    def __init__(self, now: Callable[[], float], traces: ConsumeTraces | None = None) -> None:
        self._now = now
        self._traces = traces
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._topics: dict[str, TopicStatistics] = {}

    def of(self, topic: str) -> TopicStatistics:
        """The statistics of one topic, as brokers know it."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicStatistics(self._now())
        return found

    def statuses(self) -> dict[str, ConsumeStatus]:
        """How each topic goes now."""
        now = self._now()
        return {topic: statistics.status(now) for topic, statistics in self._topics.items()}

    def began(self, message: Delivery) -> None:
        """Somebody has taken the message; from any thread."""
        message.taken_at = self._now()
        if self._traces is None:
            return
        if get_ident() == self._thread:
            self._traces.began(message)
        else:
            message.trace = self._traces.now_ms()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._traces.began_at, message)

    def began_together(self, messages: Sequence[Delivery]) -> None:
        """Somebody has taken these, for one call of a handler; from any thread."""
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

    def ended(self, message: Delivery, statistics: TopicStatistics, *, ok: bool) -> float:
        """It is dealt with, or has failed; when that is. Notes nothing of a message that nobody had
        taken."""
        now = self._now()
        if message.taken:
            seconds = now - message.taken_at if message.handled_s is None else message.handled_s
            statistics.handled(seconds, now, ok=ok)
            if self._traces is not None:
                self._traces.ended(message, ok=ok, seconds=seconds)
        return now
