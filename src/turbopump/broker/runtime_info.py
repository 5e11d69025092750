"""Runtime information of a broker, as a table of texts under Apache's keys (request 28).

Source: apache/rocketmq ``AdminBrokerProcessor.prepareRuntimeInfo``,
``DefaultMessageStore.getRuntimeInfo``, ``StoreStatsService.getRuntimeInfo``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
from turbopump.store.append_latency import BOUNDS_MS
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore

VERSION_TEXT: Final = "V5_3_3"

_WITHOUT_COUNTERPART: Final = {
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
    """Runtime information of a broker, as a table of texts under Apache's keys (request 28).

    A part with more figures adds a source, whose keys replace those here. Two keys are ours alone:
    ``currentTimeMillis``, and ``writeRefusal``, the reason why the store accepts no messages (empty
    at a healthy slave). Figures without a counterpart in this broker (thread pools except one, a
    lock of the page cache) are 0, as listed in docs/reference/statistics.md.
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
        """Add a function that returns more keys and values each time it is called."""
        self._sources.append(source)

    def table(self, earliest_ms: int) -> dict[str, str]:
        """Return the runtime information, by key.

        ``earliest_ms`` is the store time of the oldest message. The caller passes it, because it
        needs a read of the disk.
        """
        config = self.config
        sends = self.sends
        figures = {
            **_WITHOUT_COUNTERPART,
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
        midnight_totals = statistics.midnight_totals
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
            "msgPutTotalYesterdayMorning": str(midnight_totals.put_yesterday),
            "msgPutTotalTodayMorning": str(midnight_totals.put_today),
            "msgPutTotalTodayNow": str(statistics.total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC)),
            "msgGetTotalYesterdayMorning": str(midnight_totals.get_yesterday),
            "msgGetTotalTodayMorning": str(midnight_totals.get_today),
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
    """Return a percentile of the append times of the last minute, in ms.

    The result is the upper bound of the class that contains the percentile, or 0 below one
    millisecond.
    """
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
    """Format a number of bytes with a binary unit.

    Source: apache/rocketmq ``MixAll.humanReadableByteCount``.
    """
    if size < 1024:
        return f"{size} B"
    for unit in "KMGTPE":
        size /= 1024
        if size < 1024 or unit == "E":
            break
    return f"{size:.1f} {unit}iB"
