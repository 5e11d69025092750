"""Runtime figures of a broker (request 28), read as numbers.

A broker reports its figures as texts. A figure that is missing in the report of a broker of
Apache's is None, 0 or empty. Source: apache/rocketmq ``AdminBrokerProcessor.prepareRuntimeInfo``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_RUNTIME: Final = re.compile(r"\[ ([\d,. ]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_SIZE: Final = re.compile(r"([\d.]+) ?([KMGTPE]?)i?B")
_DELAY_LEVEL: Final = "scheduleMessageOffset_"


@dataclass(frozen=True, slots=True)
class Rates:
    """Mean rates per second over the last 10 s, 60 s and 600 s."""

    over_10_s: float
    over_60_s: float
    over_600_s: float


@dataclass(frozen=True, slots=True)
class TimerFigures:
    """Figures of the timer messages of a broker.

    - ``waiting``: number of messages that wait for their time.
    - ``unread``: number of messages in the log that the timer has not read yet.
    - ``behind_s``: seconds by which deliveries are late.
    - ``put_rate``, ``delivery_rate``: messages per second.
    """

    waiting: int
    unread: int
    behind_s: int
    put_rate: float
    delivery_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """Runtime figures of a broker. Times are in ms since 1970, sizes and positions in bytes.

    - ``version``: for example ``5.3.3``; Turbopump reports the version of Apache's broker that it
      follows.
    - ``time_ms``: the time of the broker's clock. Apache's broker reports it to the second.
    - ``sends_accepted_from_ms``: time before which the broker refuses sends.
    - ``refuses_sends_because``: the reason, or None while it accepts sends. Only ours reports it.
    - ``earliest_message_ms``: store time of the oldest message, or None without messages.
    - ``messages_put``, ``messages_got``: numbers since the start, without system topics. Ours
      counts every 10 s.
    - ``messages_put_today``, ``messages_got_today``: the same since midnight.
    - ``put_rate``, ``get_rate``: messages per second. A broker of Apache's that has just started
      reports fewer than three rates, which is None.
    - ``log_start``, ``log_end``: positions of the log.
    - ``dispatch_behind_bytes``: part of the log that consumers cannot see yet.
    - ``unflushed_bytes``: part of the log that is not on the disk yet.
    - ``log_disk_used``, ``queue_disk_used``: used share of the disk, from 0 to 1.
    - ``send_queue_size``, ``send_wait_ms``: number of waiting sends, and the wait of the first.
    - ``delayed``: number of messages that wait at each delay level; levels without are left out.
    - ``transactions_pending``: number of transactions without an end. Only ours reports it.
    - ``texts``: all figures as the broker reports them.
    """

    version: str
    is_active: bool
    started_ms: int | None
    time_ms: int | None
    sends_accepted_from_ms: int
    refuses_sends_because: str | None
    earliest_message_ms: int | None
    messages_put: int
    messages_got: int
    messages_put_today: int
    messages_got_today: int
    put_rate: Rates | None
    get_rate: Rates | None
    put_latency_p99_ms: float | None
    log_start: int | None
    log_end: int | None
    dispatch_behind_bytes: int
    unflushed_bytes: int
    log_disk_used: float | None
    queue_disk_used: float | None
    send_queue_size: int
    send_wait_ms: int
    delayed: Mapping[int, int]
    timers: TimerFigures
    transactions_pending: int | None
    texts: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, table: Mapping[str, str]) -> BrokerFigures:
        """Read the figures of a broker. A text that is not readable counts as absent."""
        texts = FigureTexts(table)
        earliest = texts.whole("earliestMessageTimeStamp")
        put = texts.whole("msgPutTotalTodayNow") or 0
        got = texts.whole("msgGetTotalTodayNow") or 0
        return cls(
            version=table.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".").lower(),
            is_active=table.get("brokerActive") == "true",
            started_ms=texts.whole("bootTimestamp"),
            time_ms=texts.time_ms,
            sends_accepted_from_ms=texts.whole("startAcceptSendRequestTimeStamp") or 0,
            refuses_sends_because=table.get("writeRefusal") or None,
            earliest_message_ms=earliest if earliest is not None and earliest > 0 else None,
            messages_put=put,
            messages_got=got,
            messages_put_today=put - (texts.whole("msgPutTotalTodayMorning") or 0),
            messages_got_today=got - (texts.whole("msgGetTotalTodayMorning") or 0),
            put_rate=texts.rates("putTps"),
            get_rate=texts.rates("getTransferredTps"),
            put_latency_p99_ms=texts.number("putLatency99"),
            log_start=texts.whole("commitLogMinOffset"),
            log_end=texts.whole("commitLogMaxOffset"),
            dispatch_behind_bytes=texts.whole("dispatchBehindBytes") or 0,
            unflushed_bytes=texts.size("remainHowManyDataToFlush"),
            log_disk_used=texts.number("commitLogDiskRatio"),
            queue_disk_used=texts.number("consumeQueueDiskRatio"),
            send_queue_size=texts.whole("sendThreadPoolQueueSize") or 0,
            send_wait_ms=texts.whole("sendThreadPoolQueueHeadWaitTimeMills") or 0,
            delayed=texts.delayed,
            timers=TimerFigures(
                waiting=texts.whole("timerCongestNum") or 0,
                unread=texts.whole("timerOffsetBehind") or 0,
                behind_s=texts.whole("timerReadBehind") or 0,
                put_rate=texts.number("timerEnqueueTps") or 0.0,
                delivery_rate=texts.number("timerDequeueTps") or 0.0,
            ),
            transactions_pending=texts.whole("transactionsPending"),
            texts=dict(sorted(table.items())),
        )


class FigureTexts:
    """Figures as a broker reports them, by name. The texts are read as numbers."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table

    def number(self, name: str) -> float | None:
        return number_of(self._table.get(name, ""))

    def whole(self, name: str) -> int | None:
        try:
            return int(self._table.get(name, ""))
        except ValueError:
            return None

    def rates(self, name: str) -> Rates | None:
        try:
            return Rates(*map(float, self._table.get(name, "").split()))
        except (ValueError, TypeError):
            return None

    def size(self, name: str) -> int:
        return bytes_of(self._table.get(name, ""))

    @property
    def time_ms(self) -> int | None:
        """Time of the broker's clock. Apache's broker reports its start and its uptime instead."""
        now = self.whole("currentTimeMillis")
        boot = self.whole("bootTimestamp")
        uptime = _RUNTIME.search(self._table.get("runtime", ""))
        if now is not None or boot is None or uptime is None:
            return now
        days, hours, minutes, seconds = (int(re.sub(r"\D", "", part)) for part in uptime.groups())
        return boot + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + 500

    @property
    def delayed(self) -> dict[int, int]:
        """Number of messages that wait at each delay level. A text is ``DELIVERED,END``."""
        found = {}
        for name, text in self._table.items():
            delivered, _, end = text.partition(",")
            level = name.removeprefix(_DELAY_LEVEL)
            if name != level and level.isdecimal() and end.isdecimal():
                found[int(level)] = int(end) - int(delivered or 0)
        return {level: count for level, count in sorted(found.items()) if count > 0}


def number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def bytes_of(text: str) -> int:
    """Return a size such as ``1.5 MiB`` in bytes, or 0 if the text is not a size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return 0
    return int(float(found[1]) * 1024 ** "_KMGTPE".index(found[2] or "_"))
