"""Metrics ``rocketmq_brokeruntime_…``, read from the runtime figures of a master.

The names are those of apache/rocketmq-exporter ``RMQMetricsCollector``, with its inconsistencies.
A figure that the broker does not report has no series. All are gauges there, so they are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from turbopump.admin.broker_figures import FigureTexts, bytes_of, number_of
from turbopump.admin.exporter.broker_answers import BrokerAnswers
from turbopump.metrics.family import Family, Kind

LABELS: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
"""``brokerIP`` is the address of the broker. ``brokerHost`` is empty in rocketmq-exporter; ours has
the broker's name there."""


def _family(name: str, text: str) -> Family:
    return Family(f"rocketmq_brokeruntime_{name}", Kind.GAUGE, text, LABELS)


def _figures(names: Mapping[str, str]) -> dict[Family, str]:
    return {
        _family(name, f"Runtime figure {figure} of the broker."): figure
        for name, figure in names.items()
    }


NUMBERS: Final = _figures(
    {
        "msg_put_total_today_now": "msgPutTotalTodayNow",
        "msg_gettotal_today_now": "msgGetTotalTodayNow",
        "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
        "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
        "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
        "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
        "put_latency_99": "putLatency99",
        "put_latency_999": "putLatency999",
        "put_message_size_total": "putMessageSizeTotal",
        "put_message_average_size": "putMessageAverageSize",
        "putmessage_times_total": "putMessageTimesTotal",
        "putmessage_entire_time_max": "putMessageEntireTimeMax",
        "getmessage_entire_time_max": "getMessageEntireTimeMax",
        "pagecache_lock_time_mills": "pageCacheLockTimeMills",
        "dispatch_behind_bytes": "dispatchBehindBytes",
        "dispatch_maxbuffer": "dispatchMaxBuffer",
        "commitlog_disk_ratio": "commitLogDiskRatio",
        "consumequeue_disk_ratio": "consumeQueueDiskRatio",
        "commitlog_minoffset": "commitLogMinOffset",
        "commitlog_maxoffset": "commitLogMaxOffset",
        "earliest_message_timestamp": "earliestMessageTimeStamp",
        "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
        "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
        "send_threadpool_queue_size": "sendThreadPoolQueueSize",
        "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
        "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
        "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
        "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
        "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
        "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
        "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
        "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    }
)
"""Figures that are numbers already."""

UNFLUSHED: Final = _family(
    "remain_howmanydata_toflush", "Bytes of the log that are not flushed to the disk."
)
DISK_TOTAL: Final = _family("commitlogdir_capacity_total", "Size in bytes of the log's disk.")
DISK_FREE: Final = _family("commitlogdir_capacity_free", "Free bytes of the log's disk.")

SPANS_S: Final = ("10", "60", "600")
RATES: Final = {
    figure: [
        _family(f"{name}_tps{seconds}", f"{text} a second, in the last {seconds} s.")
        for seconds in SPANS_S
    ]
    for name, figure, text in (
        ("put", "putTps", "Stored messages"),
        ("gettotal", "getTotalTps", "Pulls"),
        ("getfound", "getFoundTps", "Pulls with messages"),
        ("getmiss", "getMissTps", "Pulls without a message"),
        ("gettransfered", "getTransferredTps", "Delivered messages"),
    )
}
"""Families of each figure with three rates, in the order of ``SPANS_S``."""
OLD_SPELLING: Final = {"getTransferredTps": "getTransferedTps"}
"""Name of a figure in brokers before 5.0."""

SPREAD: Final = {
    label: _family(f"pmdt_{name}", f"Appends that took {label.strip('<=')}.")
    for name, label in (
        ("0ms", "<=0ms"),
        ("0to10ms", "0~10ms"),
        ("10to50ms", "10~50ms"),
        ("50to100ms", "50~100ms"),
        ("100to200ms", "100~200ms"),
        ("200to500ms", "200~500ms"),
        ("500to1s", "500ms~1s"),
        ("1to2s", "1~2s"),
        ("2to3s", "2~3s"),
        ("3to4s", "3~4s"),
        ("4to5s", "4~5s"),
        ("5to10s", "5~10s"),
        ("10stomore", "10s~"),
    )
}
"""Families of the counts in ``putMessageDistributeTime``, by the label of the count."""

RUNTIME_FAMILIES: Final = (
    *NUMBERS,
    UNFLUSHED,
    DISK_TOTAL,
    DISK_FREE,
    *(family for families in RATES.values() for family in families),
    *SPREAD.values(),
)

_COUNT: Final = re.compile(r"\[([^]]+)\]:(\d+)")
_CAPACITY: Final = re.compile(r"Total : ([^,]+), Free : (.+?)\.?$")


def runtime_samples(answers: BrokerAnswers) -> Iterator[tuple[Family, tuple[str, ...], float]]:
    """Yield family, label values and value of each runtime figure of a broker."""
    texts = answers.figures
    values = (
        answers.name.cluster,
        answers.address,
        answers.name.broker,
        texts.get("brokerVersionDesc", ""),
        texts.get("bootTimestamp", ""),
        texts.get("brokerVersion", ""),
    )
    for family, value in _values(texts):
        yield family, values, value


def _values(texts: Mapping[str, str]) -> Iterator[tuple[Family, float]]:
    figures = FigureTexts(texts)
    for family, figure in NUMBERS.items():
        number = figures.number(figure)
        if number is not None:
            yield family, number
    if "remainHowManyDataToFlush" in texts:
        yield UNFLUSHED, figures.size("remainHowManyDataToFlush")
    capacity = _CAPACITY.search(texts.get("commitLogDirCapacity", ""))
    if capacity is not None:
        yield DISK_TOTAL, bytes_of(capacity[1])
        yield DISK_FREE, bytes_of(capacity[2])
    for figure, families in RATES.items():
        text = texts.get(figure) or texts.get(OLD_SPELLING.get(figure, figure), "")
        rates = text.split()
        if not rates:
            continue
        rates += ["0.0"] * len(families)  # a young broker of Apache's has fewer
        for family, rate in zip(families, rates, strict=False):
            yield family, number_of(rate) or 0.0
    for label, count in _COUNT.findall(texts.get("putMessageDistributeTime", "")):
        if label in SPREAD:
            yield SPREAD[label], int(count)
