"""Metrics of pipelines and streams: their page, and what a listener of streaming queries counts."""

from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark.job_metrics import JobMetrics, MetricsPage
from turbopump.spark.offsets import Offsets, encode_offsets
from turbopump.spark.progress import MetricsListener


def series(metrics: JobMetrics) -> dict[str, str]:
    """Fetch the page. Return the value of each series without those of buckets."""
    with (
        MetricsPage(metrics.metrics, 0) as page,
        urllib.request.urlopen(page.url, timeout=60) as answer,
    ):
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("turbopump_pipeline_"): value for name, value in pairs}


def test_a_job_s_counts_are_on_its_page() -> None:
    metrics = JobMetrics()
    job = metrics.job("archive", "lake")
    assert series(metrics)['rows_total{pipeline="archive",name="lake"}'] == "0"
    job.note_behind({MessageQueue("T", "a", 3): 7, MessageQueue("T", "a", 4): 0})
    job.count_batch(90, 0.5, rejected=8, lost=2)
    found = series(metrics)
    labels = 'pipeline="archive",name="lake"'
    assert found[f"rows_total{{{labels}}}"] == "90"
    assert found[f"rejected_rows_total{{{labels}}}"] == "8"
    assert found[f"lost_messages_total{{{labels}}}"] == "2"
    assert found[f"batch_seconds_count{{{labels}}}"] == "1"
    assert found[f"left_rows{{{labels}}}"] == "7"
    assert found[f'behind_messages{{{labels},topic="T",broker="a",queue_id="3"}}'] == "7"
    assert float(found[f"last_commit_timestamp_seconds{{{labels}}}"]) > 1.7e9


def test_a_port_in_use_is_one_sentence() -> None:
    with MetricsPage(JobMetrics().metrics, 0) as page:
        port = int(page.url.rpartition(":")[2].removesuffix("/metrics"))
        with pytest.raises(ConfigError, match=str(port)):
            MetricsPage(JobMetrics().metrics, port)


def ends(offset: int) -> dict[str, Any]:
    offsets: Offsets = {MessageQueue("T", "a", 0): offset}
    return encode_offsets(offsets)


def test_a_listener_counts_the_batches_of_each_query_and_forgets_the_lag_of_an_ended_one() -> None:
    metrics = JobMetrics()
    listener = MetricsListener(metrics)
    progress = {
        "id": "1",
        "name": "orders",
        "batchId": 4,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 5,
        "durationMs": {"triggerExecution": 2500},
        "sources": [{"endOffset": ends(10), "latestOffset": ends(16)}],
    }
    for _ in range(2):
        event = SimpleNamespace(progress=json.dumps(progress))
        listener.onQueryProgress(cast(QueryProgressEvent, event))
    labels = 'pipeline="stream",name="orders"'
    found = series(metrics)
    assert found[f"rows_total{{{labels}}}"] == "10"
    assert found[f"batch_seconds_sum{{{labels}}}"] == "5.0"
    behind = f'behind_messages{{{labels},topic="T",broker="a",queue_id="0"}}'
    assert found[behind] == "6"
    listener.onQueryTerminated(cast(QueryTerminatedEvent, SimpleNamespace(id="1")))
    found = series(metrics)
    assert behind not in found
    assert found[f"rows_total{{{labels}}}"] == "10"
