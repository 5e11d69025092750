"""Lag of a streaming query behind its topics, computed from Spark's progress reports.

PySpark has no hook for metrics of a Python source. But Spark's progress has the end offsets of a
micro-batch, and the latest offsets that the source reported; the difference is the lag. No request
goes to a broker. Reading is unknown here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark.job_metrics import JobCounts, JobMetrics, MetricsPage
from turbopump.spark.offsets import VERSION, Offsets, decode_offsets

QueryProgress = StreamingQueryProgress | Mapping[str, Any] | str
"""Progress of a streaming query from a listener or ``query.lastProgress``, or the JSON of that."""


def lag(progress: QueryProgress | None) -> dict[MessageQueue, int]:
    """For each queue, return the number of messages that a streaming query still has to read.

    Messages count if they existed when the last micro-batch was planned, but were not read by this
    micro-batch. The result is empty if the query has no RocketMQ source, or no progress yet
    (``lastProgress`` is None). Queues of unreachable brokers are left out. Raises ConfigError for a
    value that is not a progress report.
    """
    behind: dict[MessageQueue, int] = {}
    if progress is None:
        return behind
    for source in _fields(progress)["sources"]:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for queue, offset in latest.items():
            # A new queue is not in the micro-batch's offsets: all its messages may be waiting.
            behind[queue] = behind.get(queue, 0) + max(0, offset - end.get(queue, 0))
    return behind


@dataclass(frozen=True, slots=True)
class LagReport:
    """Lag of a streaming query behind its topics after one micro-batch.

    Spark computes the rates, which are messages per second.
    """

    query_id: str
    name: str | None
    batch_id: int
    timestamp: str
    """Time at which the micro-batch began, as ISO 8601 in UTC."""
    behind: Mapping[MessageQueue, int]
    rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    batch_seconds: float = 0.0
    """Time of the micro-batch, from its plan to its commit."""

    @property
    def behind_total(self) -> int:
        return sum(self.behind.values())

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the lag is zero at the present rate. None if the query processes no
        messages."""
        if not self.behind_total:
            return 0.0
        rate = self.processed_rows_per_second
        return self.behind_total / rate if rate > 0 else None


def report(progress: QueryProgress) -> LagReport:
    """Compute the lag of a streaming query from a progress report of Spark.

    Raises ConfigError for a value that is not a progress report.
    """
    fields = _fields(progress)
    return LagReport(
        query_id=str(fields["id"]),
        name=fields.get("name"),
        batch_id=int(fields["batchId"]),
        timestamp=str(fields["timestamp"]),
        behind=lag(fields),
        rows=int(fields.get("numInputRows") or 0),
        input_rows_per_second=_number(fields.get("inputRowsPerSecond")),
        processed_rows_per_second=_number(fields.get("processedRowsPerSecond")),
        batch_seconds=_number((fields.get("durationMs") or {}).get("triggerExecution")) / 1000,
    )


class LagListener(StreamingQueryListener):
    """Listener for streaming queries on RocketMQ topics. It keeps the latest lag of each running
    query.

    ``on_report`` is called with every report on Spark's listener thread, so it should be fast.

        listener = LagListener(on_report=lambda report: print(report.behind_total))
        spark.streams.addListener(listener)
    """

    def __init__(self, on_report: Callable[[LagReport], None] | None = None) -> None:
        self._on_report = on_report
        self._lock = threading.Lock()
        self._reports: dict[str, LagReport] = {}

    @property
    def reports(self) -> dict[str, LagReport]:
        """Latest report of each running query, by query id."""
        with self._lock:
            return dict(self._reports)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing. A new query has no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        found = report(event.progress)
        if not found.behind:
            return
        with self._lock:
            self._reports[found.query_id] = found
        if self._on_report is not None:
            self._on_report(found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing. The latest report of an idle query is still valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            self._reports.pop(str(event.id), None)


class MetricsListener(LagListener):
    """Listener that counts the rows, lag and batches of streaming queries on RocketMQ topics.

    ``serve_stream_metrics`` adds one to a session.
    """

    def __init__(self, metrics: JobMetrics) -> None:
        super().__init__(self._count)
        self._metrics = metrics
        self._jobs: dict[str, JobCounts] = {}

    def _count(self, found: LagReport) -> None:
        job = self._jobs.get(found.query_id)
        if job is None:
            job = self._metrics.job("stream", found.name or found.query_id)
            self._jobs[found.query_id] = job
        job.count_batch(found.rows, found.batch_seconds)
        job.note_behind(found.behind)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        super().onQueryTerminated(event)
        job = self._jobs.pop(str(event.id), None)
        if job is not None:
            job.forget_lag()


def serve_stream_metrics(spark: SparkSession, port: int) -> MetricsPage:
    """Serve the metrics of this session's streaming queries at `/metrics` on 127.0.0.1.

    The page has the queries with a RocketMQ source that make progress from now on. The label
    ``name`` is the name of the query, or its id. ``close`` ends the page.

    - ``port``: 0 picks a free one; ``url`` of the result tells which.

    Raises ConfigError if the port cannot be opened.
    """
    metrics = JobMetrics()
    page = MetricsPage(metrics.metrics, port)
    spark.streams.addListener(MetricsListener(metrics))
    return page


_NO_PROGRESS: Final = (
    "no progress of a streaming query: give query.lastProgress, event.progress of a listener, or "
    "its JSON"
)


def _fields(progress: QueryProgress) -> Mapping[str, Any]:
    if isinstance(progress, StreamingQueryProgress):
        progress = progress.json
    if isinstance(progress, str):
        try:
            progress = json.loads(progress)
        except ValueError:
            raise ConfigError(_NO_PROGRESS) from None
    if not isinstance(progress, Mapping) or not {"id", "batchId", "sources"} <= progress.keys():
        raise ConfigError(_NO_PROGRESS)
    return progress


def _offsets(text: Any) -> Offsets:
    """Parse the offsets of RocketMQ queues in a progress report.

    The result is empty for another source, and for a source that has no offsets yet.
    """
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except ValueError:
            return {}
    if not isinstance(text, Mapping) or text.get("v") != VERSION or "topics" not in text:
        return {}
    return decode_offsets(text, what="the progress")


def _number(value: Any) -> float:
    """Return a figure of a progress report as a number.

    If Spark reports none, or NaN because it cannot compute it, return 0.
    """
    number = float(value or 0)
    return number if number == number and number not in (float("inf"), float("-inf")) else 0.0
