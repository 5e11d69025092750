"""What a broker tells of itself as a table of texts (28), under Apache's keys, which its tools
read.

Where this broker has nothing of the kind (thread pools but one, a lock of the page cache) the value
is 0; docs/statistics.md says which. One rule: everything is asked of those who know it, at the
moment it is asked for. Source: apache/rocketmq ``AdminBrokerProcessor.prepareRuntimeInfo``,
``DefaultMessageStore.getRuntimeInfo``, ``StoreStatsService.getRuntimeInfo``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from turbopump.broker.send_queue import SendQueue
from turbopump.broker.statistics import (
    BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC,
    BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC,
    Statistics,
)
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.codes import CURRENT_VERSION
from turbopump.store.files import StorePaths
from turbopump.store.log.commit_log import BOUNDS_MS
from turbopump.store.message_store import MessageStore

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


class RuntimeInfo:
    """The figures of one broker. Whoever has more adds a source: its keys replace those that are
    here."""

    def __init__(
        self,
        config: BrokerConfig,
        paths: StorePaths,
        store: MessageStore,
        statistics: Statistics,
        sends: SendQueue,
        clock: Clock,
    ) -> None:
        self._config = config
        self._paths = paths
        self._store = store
        self._statistics = statistics
        self._sends = sends
        self._clock = clock
        self._boot_ms = clock.now_ms()
        self._began = clock.monotonic()
        self._sources: list[Callable[[], Mapping[str, str]]] = []

    def add_source(self, source: Callable[[], Mapping[str, str]]) -> None:
        """``source`` is asked each time, at once, for keys and values."""
        self._sources.append(source)

    def table(self, earliest_ms: int) -> dict[str, str]:
        """Key to value. ``earliest_ms``: when the oldest message was stored, which takes a read of
        the disk."""
        config, sends = self._config, self._sends
        figures = {
            **_NOTHING_OF_THE_KIND,
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(self._boot_ms),
            "runtime": _time_text(int(self._clock.monotonic() - self._began)),
            "earliestMessageTimeStamp": str(earliest_ms),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            "sendThreadPoolQueueSize": str(len(sends.backlog)),
            "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": str(int(sends.backlog.waited * 1000)),
            "putMessageFailedTimes": str(sends.refused.total()),
            **self._counts(),
            **self._latencies(),
            **self._places(),
        }
        for source in self._sources:
            figures.update(source())
        return figures

    def _counts(self) -> dict[str, str]:
        statistics = self._statistics
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
        latency = self._store.latency
        return {
            "putMessageEntireTimeMax": str(int(latency.longest * 1000)),
            "putMessageDistributeTime": "".join(
                f"{name}:{count} " for name, count in latency.last_minute.items()
            ),
            "putLatency99": f"{_percentile(latency.last_minute, 0.99):.2f}",
            "putLatency999": f"{_percentile(latency.last_minute, 0.999):.2f}",
        }

    def _places(self) -> dict[str, str]:
        store = self._store
        log = store.log
        places = {
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.end),
            # an entry is dispatched in the turn in which it is appended
            "dispatchBehindBytes": "0",
            "remainHowManyDataToFlush": _size_text(max(log.end - store.flushed.value, 0)),
        }
        figures = store.space.figures
        roots = [(path, figures[path]) for path in self._paths.commit_logs if path in figures]
        for path, space in roots:
            places[f"commitLogDiskRatio_{path}"] = str(space.used_percent / 100)
        if roots:
            path, space = min(roots, key=lambda root: root[1].used_percent)
            places["commitLogDiskRatio"] = str(space.used_percent / 100)
            places["commitLogDirCapacity"] = (
                f"Total : {_size_text(space.total)}, Free : {_size_text(space.free)}."
            )
        queues = figures.get(self._paths.consume_queues)
        if queues is not None:
            places["consumeQueueDiskRatio"] = str(queues.used_percent / 100)
        return places


def _rates(rates: Iterable[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _percentile(classes: Mapping[str, int], part: float) -> float:
    """The upper bound, in ms, of the class in which that part of the appends of the last minute
    ended; under one millisecond is 0."""
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
    """Source: apache/rocketmq ``MixAll.humanReadableByteCount``."""
    if size < 1024:
        return f"{size} B"
    for unit in "KMGTPE":
        size /= 1024
        if size < 1024 or unit == "E":
            break
    return f"{size:.1f} {unit}iB"
