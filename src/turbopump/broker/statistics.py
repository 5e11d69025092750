"""Statistics of stored and delivered messages, by topic and group, under Apache's names.

They cover the last minute, hour and day. Nothing is counted per message. Every ten seconds a walk
over the queues measures the growth of each, and sums the sizes in its new units. A pull adds three
numbers. The walk goes in small steps, so that the event loop is never blocked for long. Counts
start at zero with the process, and a count over a span is the difference of two samples. Source:
apache/rocketmq ``BrokerStatsManager``, ``StatsItem``, ``BrokerStats``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from operator import sub
from typing import Final, NamedTuple

from turbopump.broker.counters.counted_events import CountedEvents
from turbopump.clock import Clock
from turbopump.message.rules import is_system_topic
from turbopump.protocol.requests.statistics import BrokerStatsItem
from turbopump.remoting.turns import Steps
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE, ConsumeQueue

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"

SAMPLE_S: Final = 10.0
QUEUES_AT_ONCE: Final = 64
"""Number of unchanged queues that are looked at in one step."""
UNITS_AT_ONCE: Final = 20_000
"""Maximum new messages of a queue that are summed at once. They take half a millisecond."""


class RateWindow(NamedTuple):
    """Time span of a statistic. It has ``samples`` samples, one for every ``ticks`` × 10 s."""

    ticks: int
    samples: int


MINUTE, HOUR, DAY = SPANS = (RateWindow(1, 6), RateWindow(60, 6), RateWindow(360, 24))


_SAMPLE: Final = struct.Struct("qqq").pack


class StatsItem:
    """Counter that keeps samples. From them it computes rates over the last minute, hour and day.

    ``value`` is the sum of the counted amounts, ``times`` the number of additions. Samples are kept
    only for ticks in which the counter grew.

    The samples of a span are one array with three numbers each: the number of the sample, ``value``
    and ``times``. With many topics there are hundreds of thousands of samples. A sample takes 24
    bytes, where objects need 130.
    """

    __slots__ = ("_samples", "times", "value")

    def __init__(self, ticks: int) -> None:
        self.value = 0
        self.times = 0
        self._samples = tuple(array("q", (ticks // span.ticks, 0, 0)) for span in SPANS)

    def sample(self, span: RateWindow, ticks: int) -> None:
        """Store a sample of the present counts for a time span. The sample belongs to tick number
        ``ticks``."""
        samples = self._samples[SPANS.index(span)]
        number = ticks // span.ticks
        samples.frombytes(_SAMPLE(number, self.value, self.times))
        while len(samples) > 3 and samples[3] <= number - span.samples:
            del samples[:3]

    def over(self, span: RateWindow, ticks: int) -> BrokerStatsItem:
        """Return the sum, the rate per second and the average over a span.

        The span ends at tick number ``ticks``, or at the last sample before.
        """
        samples = self._samples[SPANS.index(span)]
        number = ticks // span.ticks
        numbers = samples[::3]
        first = max(bisect_right(numbers, number - span.samples) - 1, 0)
        total = samples[-2] - samples[3 * first + 1]
        times = samples[-1] - samples[3 * first + 2]
        seconds = min(number - numbers[first], span.samples) * span.ticks * SAMPLE_S
        rate = total / seconds if seconds > 0 else 0.0
        return BrokerStatsItem(sum=total, tps=rate, avgpt=total / times if times else 0.0)


class Totals(NamedTuple):
    """Totals of messages and pulls since the start of a broker.

    - ``put`` and ``put_size``: stored messages and their bytes.
    - ``found`` and ``missed``: pulls with and without messages.
    - ``given``: delivered messages.
    - ``timed`` and ``due``: messages that entered and left the timers.
    """

    put: int = 0
    put_size: int = 0
    found: int = 0
    missed: int = 0
    given: int = 0
    timed: int = 0
    due: int = 0


class MidnightTotals(NamedTuple):
    """Totals of stored and delivered messages at two times: the beginning of yesterday, and of
    today.

    Messages in system topics are not counted.
    """

    put_yesterday: int = 0
    put_today: int = 0
    get_yesterday: int = 0
    get_today: int = 0


class Got(NamedTuple):
    """Messages that a group got from a topic since the start of a broker.

    ``popped_topic`` is the topic of the pop, to whose group a retry topic belongs. It is empty for
    pulls.
    """

    group: str
    topic: str
    popped_topic: str
    messages: int
    size: int


class _Gets:
    """Counter of the messages that a group got from a topic. A sample notes the counted part.

    ``pulled`` has the next offset to pull, by queue id.
    """

    __slots__ = ("count", "counted", "pulled", "size", "times")

    def __init__(self) -> None:
        self.count = self.size = self.times = 0
        self.counted = (0, 0, 0)
        self.pulled: dict[int, int] = {}


class Statistics:
    """Statistics of one broker, computed from the growth of its ``queues``.

    - ``detail``: True if each queue is counted too.
    - ``events``: the counters of single events, for the metrics.
    """

    def __init__(
        self,
        queues: Iterable[ConsumeQueue],
        clock: Clock,
        cluster: str,
        *,
        detail: bool,
        events: CountedEvents | None = None,
    ) -> None:
        self.events = events or CountedEvents()
        self._queues = queues
        self._clock = clock
        self._cluster = cluster
        self._detail = detail
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._touched: tuple[set[StatsItem], ...] = tuple(set() for _ in SPANS)
        self._ends: dict[ConsumeQueue, int] = {}
        self._gets: dict[tuple[str, str, str], _Gets] = {}
        self.missed = 0
        """Number of pulls that were answered without a message."""
        self.timers: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Function that returns the numbers of messages that have entered and left the timers."""
        self._ticks = 0
        self._put = self._put_size = self._found = self._given = 0
        self._history: deque[Totals] = deque([Totals()], maxlen=61)
        self._day: date | None = None
        self.midnight_totals = MidnightTotals()

    # --- counting

    def count_pull(
        self, group: str, topic: str, queue_id: int, next_offset: int, count: int, size: int
    ) -> None:
        """Count a pull that returned ``count`` messages of ``size`` bytes in total.

        The call takes about 0.2 µs.
        """
        counted = self._gets.get((group, topic, ""))
        if counted is None:
            counted = self._gets[group, topic, ""] = _Gets()
        counted.count += count
        counted.size += size
        counted.times += 1
        counted.pulled[queue_id] = next_offset

    def count_pop(self, group: str, topic: str, popped_topic: str, count: int, size: int) -> None:
        """Count ``count`` messages of ``size`` bytes that a pop of ``popped_topic`` returned.

        They are in ``topic``, which may be a retry topic of the group.
        """
        counted = self._gets.get((group, topic, popped_topic))
        if counted is None:
            counted = self._gets[group, topic, popped_topic] = _Gets()
        counted.count += count
        counted.size += size
        counted.times += 1

    def gets(self) -> Iterator[Got]:
        """Yield the messages that each group got from each topic since the start."""
        for (group, topic, popped_topic), counted in list(self._gets.items()):
            yield Got(group, topic, popped_topic, counted.count, counted.size)

    def pulled_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the next offset to pull of a group in each queue of a topic, by queue id.

        The offset is that after the last messages which a pull has returned since the start.
        """
        counted = self._gets.get((group, topic, ""))
        return counted.pulled if counted is not None else {}

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Count a rare event under one of Apache's names, such as a message sent back."""
        items = self._items.setdefault(name, {})
        item = items.get(key)
        if item is None:
            item = items[key] = StatsItem(self._ticks)
        item.value += value
        item.times += times
        for touched in self._touched:
            touched.add(item)

    def forget_topic(self, topic: str) -> None:
        """Delete the statistics of a deleted topic."""
        for name, items in self._items.items():
            if name.startswith(("TOPIC_", "QUEUE_", "GROUP_", "SNDBCK")):
                for key in [key for key in items if key.split("@")[0] == topic]:
                    del items[key]
        self._gets = {key: gets for key, gets in self._gets.items() if topic not in key[1:]}
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic != topic}
        self.events.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Delete the statistics of a deleted consumer group."""
        for name, items in self._items.items():
            if name.startswith(("GROUP_", "SNDBCK")):
                for key in [key for key in items if key.partition("@")[2] == group]:
                    del items[key]
        self._gets = {key: gets for key, gets in self._gets.items() if key[0] != group}
        self.events.forget_group(group)

    # --- asking

    def find(
        self, name: str, key: str
    ) -> tuple[BrokerStatsItem, BrokerStatsItem, BrokerStatsItem] | None:
        """Return a statistic over the last minute, hour and day. Return None if nothing was
        counted.

        The numbers are those of the last samples.
        """
        item = self._items.get(name, {}).get(key)
        return None if item is None else tuple(item.over(span, self._ticks) for span in SPANS)  # type: ignore[return-value]

    def tps(self, name: str, key: str) -> float:
        """Return the rate of a statistic per second, over the last minute."""
        found = self.find(name, key)
        if found is not None:
            return found[0].tps
        return 0.0

    def total(self, name: str) -> int:
        """Return a total of the whole broker since its start, such as ``BROKER_PUT_NUMS``."""
        item = self._items.get(name, {}).get(self._cluster)
        if item is not None:
            return item.value
        return 0

    @property
    def totals(self) -> Totals:
        """Totals of the broker at the time of the last sample."""
        return self._history[-1]

    def rates(self) -> tuple[Totals, tuple[tuple[float, ...], ...]]:
        """Return the totals, and their growth per second over three spans: 10 s, a minute and ten
        minutes.

        The growth of a younger broker is that since its start.
        """
        now = self._history[-1]
        rates = []
        for back in (1, 6, 60):
            back = min(back, len(self._history) - 1)
            before = self._history[-1 - back]
            rates.append(
                tuple(
                    (a - b) / (back * SAMPLE_S) if back else 0.0
                    for a, b in zip(now, before, strict=True)
                )
            )
        return now, tuple(rates)

    # --- sampling

    def sample(self) -> Steps[None]:
        """Take a sample of all statistics. Call this every ``SAMPLE_S``.

        The generator yields after each queue and each statistic, so that the caller can pause.
        """
        yield from self.count_puts()
        self._count_gets()
        self._ticks += 1
        for span, touched in zip(SPANS, self._touched, strict=True):
            if self._ticks % span.ticks == 0:
                items = list(touched)
                number = self._ticks
                touched.clear()
                for item in items:
                    item.sample(span, number)
                    yield
        self._history.append(
            Totals(self._put, self._put_size, self._found, self.missed, self._given, *self.timers())
        )
        self._note_midnight()

    def count_puts(self) -> Steps[None]:
        """Count the new messages of all queues, in steps.

        Several callers may do so at once.
        """
        # Sends are counted here, from the new units of each queue, so that they cost the hot path
        # nothing. The end of a queue is fixed first: a queue that grows faster than it is counted
        # would hold up all others.
        for number, queue in enumerate(list(self._queues)):
            if number % QUEUES_AT_ONCE == 0:
                yield
            end = queue.max_index
            while (index := self._ends.get(queue, queue.opened_at)) < end:
                raw = queue.units(index, min(end - index, UNITS_AT_ONCE))
                if not raw:  # deleted meanwhile
                    self._ends[queue] = end
                    break
                count = len(raw) // UNIT_SIZE
                self._ends[queue] = index + count
                self._count_put(queue, count, sizes_in_units(raw))
                yield

    def _count_put(self, queue: ConsumeQueue, count: int, sizes: array[int]) -> None:
        topic = queue.topic
        size = sum(sizes)
        self._put += count
        self._put_size += size
        self.events.messages_in.add_walked(topic, sizes, size)
        self.add(TOPIC_PUT_NUMS, topic, count, count)
        self.add(TOPIC_PUT_SIZE, topic, size, count)
        self.add(BROKER_PUT_NUMS, self._cluster, count, count)
        if not is_system_topic(topic):
            self.add(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster, count, count)
        if self._detail:
            self.add(QUEUE_PUT_NUMS, f"{topic}@{queue.queue_id}", count, count)
            self.add(QUEUE_PUT_SIZE, f"{topic}@{queue.queue_id}", size, count)

    def _count_gets(self) -> None:
        for (group, topic, _), gets in self._gets.items():
            now = gets.count, gets.size, gets.times
            if now == gets.counted:
                continue
            count, size, times = map(sub, now, gets.counted)
            gets.counted = now
            self._given += count
            self._found += times
            self.add(GROUP_GET_NUMS, f"{topic}@{group}", count, times)
            self.add(GROUP_GET_SIZE, f"{topic}@{group}", size, times)
            self.add(BROKER_GET_NUMS, self._cluster, count, times)
            if not is_system_topic(topic):
                self.add(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster, count, times)

    def _note_midnight(self) -> None:
        """Keep the totals of the first sample of each day."""
        # RocketMQ: the broker's own zone
        today = datetime.fromtimestamp(self._clock.now_ms() / 1000).date()
        if self._day is not None and today != self._day:
            put = self.total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC)
            got = self.total(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC)
            self.midnight_totals = MidnightTotals(
                self.midnight_totals.put_today, put, self.midnight_totals.get_today, got
            )
        self._day = today


def sizes_in_units(units: bytes) -> array[int]:
    """Return the message sizes in units of a queue, without units that have no message.

    The call takes about 18 ns per unit.
    """
    words = array("I", units)
    if sys.byteorder == "little":
        words.byteswap()
    sizes = words[2 :: UNIT_SIZE // 4]
    if NO_MESSAGE_SIZE not in sizes:
        return sizes
    return array("I", (size for size in sizes if size != NO_MESSAGE_SIZE))
