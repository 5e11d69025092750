"""Metrics of pipelines and streaming queries, and their page `/metrics` for Prometheus.

A job counts on its own thread. The page is served by a thread with an event loop of its own, so it
answers while Spark works. How a job reads and writes is unknown here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Final

from turbopump.config.addresses import join_address
from turbopump.config.metrics import MetricsConfig
from turbopump.message.message import MessageQueue
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.metrics.tables import CounterTable, HistogramTable

_JOB: Final = ("pipeline", "name")
ROWS: Final = Family(
    "turbopump_pipeline_rows_total", Kind.COUNTER, "Rows written or sent by this process.", _JOB
)
REJECTED: Final = Family(
    "turbopump_pipeline_rejected_rows_total",
    Kind.COUNTER,
    "Rows whose bodies do not fit the schema; they are in the table _rejected.",
    _JOB,
)
LOST: Final = Family(
    "turbopump_pipeline_lost_messages_total",
    Kind.COUNTER,
    "Messages that the broker had deleted before they were read.",
    _JOB,
)
BATCH_S: Final = Family(
    "turbopump_pipeline_batch_seconds",
    Kind.HISTOGRAM,
    "Time of a batch, from its plan to its commit.",
    _JOB,
    bounds=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
LEFT: Final = Family(
    "turbopump_pipeline_left_rows", Kind.GAUGE, "Rows that were left at the last plan.", _JOB
)
BEHIND: Final = Family(
    "turbopump_pipeline_behind_messages",
    Kind.GAUGE,
    "Messages of a queue that were not read at the last plan.",
    (*_JOB, "topic", "broker", "queue_id"),
)
COMMITTED: Final = Family(
    "turbopump_pipeline_last_commit_timestamp_seconds",
    Kind.GAUGE,
    "Time of the last commit, in seconds since 1970.",
    _JOB,
)


class JobMetrics:
    """Metrics of the jobs of this process. Each job is a pipeline, such as ``archive``, and has a
    name."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.rows = CounterTable(ROWS)
        self.rejected = CounterTable(REJECTED)
        self.lost = CounterTable(LOST)
        self.batch_s = HistogramTable(BATCH_S)
        self.left: dict[tuple[str, str], int] = {}
        self.behind: dict[tuple[str, str], Mapping[MessageQueue, int]] = {}
        self.committed: dict[tuple[str, str], float] = {}
        for table in (self.rows, self.rejected, self.lost, self.batch_s):
            self.metrics.add(table.family, table.read)
        self.metrics.add(LEFT, lambda: list(self.left.items()))
        self.metrics.add(BEHIND, self._queues_behind)
        self.metrics.add(COMMITTED, lambda: list(self.committed.items()))

    def job(self, pipeline: str, name: str) -> JobCounts:
        """Return the counts of one job. Its counters begin at zero."""
        return JobCounts(self, (pipeline, name))

    def _queues_behind(self) -> Iterator[Sample]:
        for job, behind in list(self.behind.items()):
            for queue, count in behind.items():
                yield (*job, queue.topic, queue.broker_name, str(queue.queue_id)), count


class JobCounts:
    """Counts of one job."""

    def __init__(self, metrics: JobMetrics, job: tuple[str, str]) -> None:
        self._metrics = metrics
        self._job = job
        for table in (metrics.rows, metrics.rejected, metrics.lost):
            table.add(job, 0)

    def note_left(self, rows: int) -> None:
        """Note the number of rows that are left."""
        self._metrics.left[self._job] = rows

    def note_behind(self, behind: Mapping[MessageQueue, int]) -> None:
        """Note the number of unread messages of each queue."""
        self._metrics.behind[self._job] = dict(behind)
        self.note_left(sum(behind.values()))

    def count_batch(self, rows: int, seconds: float, *, rejected: int = 0, lost: int = 0) -> None:
        """Count a batch that was committed now.

        - ``rows``: without those that were rejected.
        - ``seconds``: time of the batch.
        """
        metrics = self._metrics
        metrics.rows.add(self._job, rows)
        metrics.rejected.add(self._job, rejected)
        metrics.lost.add(self._job, lost)
        metrics.batch_s.observe(self._job, seconds)
        metrics.committed[self._job] = time.time()

    def forget_lag(self) -> None:
        """Remove what is left and behind. The job has ended; its counters stay."""
        self._metrics.behind.pop(self._job, None)
        self._metrics.left.pop(self._job, None)


class MetricsPage:
    """Page `/metrics` on 127.0.0.1, served by a thread until ``close``.

    - ``port``: 0 picks a free one.

    Raises ConfigError if the port cannot be opened.
    """

    def __init__(self, metrics: Metrics, port: int) -> None:
        from turbopump.remoting.metrics_port import MetricsPort  # it needs Unix

        self._port = MetricsPort(MetricsConfig(), metrics)
        self._over: Future[None] = Future()
        opened: Future[tuple[str, int]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(port, opened)),
            name="turbopump-metrics",
            daemon=True,
        )
        self._thread.start()
        self.url = f"http://{join_address(*opened.result())}/metrics"
        """Address of the page."""

    async def _serve(self, port: int, opened: Future[tuple[str, int]]) -> None:
        try:
            opened.set_result(await self._port.open(port))
        except BaseException as error:
            opened.set_exception(error)
            return
        await asyncio.wrap_future(self._over)
        self._port.close()

    def close(self) -> None:
        """Close the page. The method may be called twice."""
        if not self._over.done():
            self._over.set_result(None)
        self._thread.join()

    def __enter__(self) -> MetricsPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
