"""Statistics of stored and delivered messages, by topic and group, over the last minute, hour and
day, under Apache's names.

Nothing is counted per message. Every ten seconds a walk over the queues measures the growth of
each, and sums the sizes in its new units. A pull adds three numbers. The walk goes in small steps,
so that no turn of the loop is long. Counts start at zero with the process; a span is the difference
of two samples. Source: apache/rocketmq ``BrokerStatsManager``, ``StatsItem``, ``BrokerStats``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final, NamedTuple

from turbopump.broker.send_queue import SendQueue
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.rules import is_system_topic
from turbopump.protocol.codes import CURRENT_VERSION
from turbopump.protocol.requests.statistics import BrokerStatsItem
from turbopump.remoting.turns import Steps
from turbopump.store.files import StorePaths
from turbopump.store.log.commit_log import BOUNDS_MS
from turbopump.store.message_store import MessageStore
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
UNITS_AT_ONCE: Final = 20_000
"""New messages of a queue that are summed in one step: half a millisecond."""


class RateWindow(NamedTuple):
    """A span of ``samples`` samples, one every ``ticks`` × 10 s."""

    ticks: int
    samples: int


MINUTE, HOUR, DAY = SPANS = (RateWindow(1, 6), RateWindow(60, 6), RateWindow(360, 24))


_SAMPLE: Final = struct.Struct("qqq").pack


class StatsItem:
    """One statistic. ``value`` is the sum of the counted amounts, ``times`` the number of
    additions. Samples are kept only for ticks in which the statistic grew.

    A span's samples are one array with three numbers each: the sample's number, ``value`` and
    ``times``. With many topics there are hundreds of thousands of samples: 24 bytes each, where
    objects need 130.
    """

    __slots__ = ("_samples", "times", "value")

    def __init__(self, ticks: int) -> None:
        self.value = 0
        self.times = 0
        self._samples = tuple(array("q", (ticks // span.ticks, 0, 0)) for span in SPANS)

    def sample(self, span: RateWindow, ticks: int) -> None:
        """Store a sample at the end of tick number ``ticks``."""
        samples = self._samples[SPANS.index(span)]
        number = ticks // span.ticks
        samples.frombytes(_SAMPLE(number, self.value, self.times))
        while len(samples) > 3 and samples[3] <= number - span.samples:
            del samples[:3]

    def over(self, span: RateWindow, ticks: int) -> BrokerStatsItem:
        """Return sum, rate per second and average over a span that ends at tick ``ticks``, or at
        the last sample before."""
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
    """Totals since the start of the process: stored messages and their bytes, pulls with and
    without messages, delivered messages, and messages that entered and left the timers."""

    put: int = 0
    put_size: int = 0
    found: int = 0
    missed: int = 0
    given: int = 0
    timed: int = 0
    due: int = 0


class MorningTotals(NamedTuple):
    """Numbers of stored and delivered messages, without system topics, at the beginning of
    yesterday and of today."""

    put_yesterday: int = 0
    put_today: int = 0
    get_yesterday: int = 0
    get_today: int = 0


class Statistics:
    """Statistics of one broker, from its ``queues``. ``detail``: count each queue too."""

    def __init__(
        self, queues: Iterable[ConsumeQueue], clock: Clock, cluster: str, *, detail: bool
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._cluster = cluster
        self._detail = detail
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._touched: tuple[set[StatsItem], ...] = tuple(set() for _ in SPANS)
        self._ends: dict[ConsumeQueue, int] = {}
        self._gets: dict[tuple[str, str], list[int]] = {}
        self.missed = 0
        """Pulls that were answered without a message."""
        self.timers: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the numbers of messages that have entered and left the timers."""
        self._ticks = 0
        self._put = self._put_size = self._found = self._given = 0
        self._history: deque[Totals] = deque([Totals()], maxlen=61)
        self._day: date | None = None
        self.mornings = MorningTotals()

    # --- counting

    def got(self, group: str, topic: str, count: int, size: int) -> None:
        """Count a pull that returned ``count`` messages of ``size`` bytes. About 0.2 µs."""
        counted = self._gets.get((group, topic))
        if counted is None:
            counted = self._gets[group, topic] = [0, 0, 0]
        counted[0] += count
        counted[1] += size
        counted[2] += 1

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
        self._gets = {key: counted for key, counted in self._gets.items() if key[1] != topic}
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic != topic}

    # --- asking

    def find(
        self, name: str, key: str
    ) -> tuple[BrokerStatsItem, BrokerStatsItem, BrokerStatsItem] | None:
        """Return a statistic over the last minute, hour and day, as of the last samples; None if it
        was never counted."""
        item = self._items.get(name, {}).get(key)
        return None if item is None else tuple(item.over(span, self._ticks) for span in SPANS)  # type: ignore[return-value]

    def tps(self, name: str, key: str) -> float:
        """Return the rate per second over the last minute."""
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
        """Return the totals as of the last sample."""
        return self._history[-1]

    def rates(self) -> tuple[Totals, tuple[tuple[float, ...], ...]]:
        """Return the totals, and their growth per second over the last 10 s, minute and ten
        minutes, or since the start if that was later."""
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
        """Take a sample, one step for each queue and each statistic. Call this every
        ``SAMPLE_S``."""
        yield from self._count_puts()
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
        self._turn_the_day()

    def _count_puts(self) -> Steps[None]:
        for queue in list(self._queues):
            yield
            index = self._ends.get(queue, queue.opened_at)
            end = queue.max_index
            while index < end:
                raw = queue.units(index, min(end - index, UNITS_AT_ONCE))
                count = len(raw) // UNIT_SIZE
                if not count:  # deleted meanwhile
                    break
                self._count_put(queue, count, bytes_in_units(raw))
                index += count
                self._ends[queue] = index
                yield
            self._ends[queue] = end

    def _count_put(self, queue: ConsumeQueue, count: int, size: int) -> None:
        topic = queue.topic
        self._put += count
        self._put_size += size
        self.add(TOPIC_PUT_NUMS, topic, count, count)
        self.add(TOPIC_PUT_SIZE, topic, size, count)
        self.add(BROKER_PUT_NUMS, self._cluster, count, count)
        if not is_system_topic(topic):
            self.add(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster, count, count)
        if self._detail:
            self.add(QUEUE_PUT_NUMS, f"{topic}@{queue.queue_id}", count, count)
            self.add(QUEUE_PUT_SIZE, f"{topic}@{queue.queue_id}", size, count)

    def _count_gets(self) -> None:
        for (group, topic), counted in self._gets.items():
            count, size, times = counted
            if not times:
                continue
            counted[:] = 0, 0, 0
            self._given += count
            self._found += times
            self.add(GROUP_GET_NUMS, f"{topic}@{group}", count, times)
            self.add(GROUP_GET_SIZE, f"{topic}@{group}", size, times)
            self.add(BROKER_GET_NUMS, self._cluster, count, times)
            if not is_system_topic(topic):
                self.add(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster, count, times)

    def _turn_the_day(self) -> None:
        """Store the totals at the first sample of a day."""
        # RocketMQ: the broker's own zone
        today = datetime.fromtimestamp(self._clock.now_ms() / 1000).date()
        if self._day is not None and today != self._day:
            put = self.total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC)
            got = self.total(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC)
            self.mornings = MorningTotals(
                self.mornings.put_today, put, self.mornings.get_today, got
            )
        self._day = today


def bytes_in_units(units: bytes) -> int:
    """Return the sum of the sizes in units of a queue, without gaps. About 20 ns a unit."""
    words = array("I", units)
    if sys.byteorder == "little":
        words.byteswap()
    sizes = words[2 :: UNIT_SIZE // 4]
    total = sum(sizes)
    if total < NO_MESSAGE_SIZE:
        return total
    return total - NO_MESSAGE_SIZE * sizes.count(NO_MESSAGE_SIZE)


VERSION_TEXT: Final = "V5_3_3"

_NOTHING_OF_THE_KIND: Final = {
    **{
        f"{pool}ThreadPoolQueue{what}": "0"
        for pool in ("pull", "litePull", "query", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    },
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
}


@dataclass(slots=True, eq=False)
class RuntimeInfo:
    """Runtime figures of a broker as a table of texts (28), under Apache's keys, which its tools
    read. A part with more figures adds a source, whose keys replace those here.

    Two keys are ours alone: ``currentTimeMillis``, and ``writeRefusal``, the fault for which the
    store accepts no messages (empty at a healthy slave). Where this broker has no counterpart
    (thread pools except one, a lock of the page cache) the value is 0; docs/reference/statistics.md
    says which. Source: apache/rocketmq ``AdminBrokerProcessor.prepareRuntimeInfo``,
    ``DefaultMessageStore.getRuntimeInfo``, ``StoreStatsService.getRuntimeInfo``.
    """

    config: BrokerConfig
    paths: StorePaths
    store: MessageStore
    statistics: Statistics
    sends: SendQueue
    clock: Clock
    _boot_ms: int = 0
    _began: float = 0.0
    _sources: list[Callable[[], Mapping[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._boot_ms = self.clock.now_ms()
        self._began = self.clock.monotonic()

    def add_source(self, source: Callable[[], Mapping[str, str]]) -> None:
        """Add a function that returns keys and values each time."""
        self._sources.append(source)

    def table(self, earliest_ms: int) -> dict[str, str]:
        """Return the figures by key. ``earliest_ms``: store time of the oldest message, which needs
        a read of the disk."""
        config = self.config
        sends = self.sends
        figures = {
            **_NOTHING_OF_THE_KIND,
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(self._boot_ms),
            "currentTimeMillis": str(self.clock.now_ms()),
            "writeRefusal": self.store.fault or "",
            "runtime": _time_text(int(self.clock.monotonic() - self._began)),
            "earliestMessageTimeStamp": str(earliest_ms),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            "sendThreadPoolQueueSize": str(len(sends.backlog)),
            "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": str(int(sends.backlog.waited_s * 1000)),
            "putMessageFailedTimes": str(sends.refused.total()),
            **self._counts(),
            **self._latencies(),
            **self._positions(),
        }
        for source in self._sources:
            figures.update(source())
        return figures

    def _counts(self) -> dict[str, str]:
        statistics = self.statistics
        totals, rates = statistics.rates()
        mornings = statistics.mornings
        return {
            "putMessageTimesTotal": str(max(totals.put, 1)),  # RocketMQ: 1 where there is none
            "putMessageSizeTotal": str(totals.put_size),
            "putMessageAverageSize": str(totals.put_size / max(totals.put, 1)),
            "putTps": _rates(rate[0] for rate in rates),
            "getFoundTps": _rates(rate[2] for rate in rates),
            "getMissTps": _rates(rate[3] for rate in rates),
            "getTotalTps": _rates(rate[2] + rate[3] for rate in rates),
            "getTransferredTps": _rates(rate[4] for rate in rates),
            "timerEnqueueTps": str(round(rates[1][5], 3)),  # of the last minute
            "timerDequeueTps": str(round(rates[1][6], 3)),
            "msgPutTotalYesterdayMorning": str(mornings.put_yesterday),
            "msgPutTotalTodayMorning": str(mornings.put_today),
            "msgPutTotalTodayNow": str(statistics.total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC)),
            "msgGetTotalYesterdayMorning": str(mornings.get_yesterday),
            "msgGetTotalTodayMorning": str(mornings.get_today),
            "msgGetTotalTodayNow": str(statistics.total(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC)),
        }

    def _latencies(self) -> dict[str, str]:
        latency = self.store.latency
        return {
            "putMessageEntireTimeMax": str(int(latency.longest * 1000)),
            "putMessageDistributeTime": "".join(
                f"{name}:{count} " for name, count in latency.last_minute.items()
            ),
            "putLatency99": f"{_percentile(latency.last_minute, 0.99):.2f}",
            "putLatency999": f"{_percentile(latency.last_minute, 0.999):.2f}",
        }

    def _positions(self) -> dict[str, str]:
        store = self.store
        log = store.log
        positions = {
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.end),
            # an entry is dispatched in the turn in which it is appended
            "dispatchBehindBytes": "0",
            "remainHowManyDataToFlush": _size_text(max(log.end - store.durable.value, 0)),
        }
        figures = store.space.figures
        roots = [(path, figures[path]) for path in self.paths.commit_logs if path in figures]
        for path, space in roots:
            positions[f"commitLogDiskRatio_{path}"] = str(space.used_percent / 100)
        if roots:
            path, space = min(roots, key=lambda root: root[1].used_percent)
            positions["commitLogDiskRatio"] = str(space.used_percent / 100)
            positions["commitLogDirCapacity"] = (
                f"Total : {_size_text(space.total)}, Free : {_size_text(space.free)}."
            )
        queues = figures.get(self.paths.consume_queues)
        if queues is not None:
            positions["consumeQueueDiskRatio"] = str(queues.used_percent / 100)
        return positions


def _rates(rates: Iterable[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _percentile(classes: Mapping[str, int], part: float) -> float:
    """Return the upper bound (ms) of the class that contains this percentile of the last minute's
    appends. Below one millisecond it is 0."""
    left = sum(classes.values()) * part
    for bound, count in zip((0, *BOUNDS_MS[1:], BOUNDS_MS[-1]), classes.values(), strict=True):
        left -= count
        if left <= 0:
            return float(bound)
    return float(BOUNDS_MS[-1])


def _time_text(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size_text(size: float) -> str:
    """Format a number of bytes. Source: apache/rocketmq ``MixAll.humanReadableByteCount``."""
    if size < 1024:
        return f"{size} B"
    for unit in "KMGTPE":
        size /= 1024
        if size < 1024 or unit == "E":
            break
    return f"{size:.1f} {unit}iB"
