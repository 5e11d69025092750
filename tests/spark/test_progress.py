"""Lag of a query, computed from the progress that Spark reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark import lag
from turbopump.spark.progress import report


def offsets(**queues: int) -> dict[str, Any]:
    """``q0=5``: the next offset of queue 0 is 5."""
    return {
        "v": 1,
        "topics": {"T": {"broker-a": {name[1:]: offset for name, offset in queues.items()}}},
    }


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


def progress(*sources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "a-query",
        "runId": "a-run",
        "name": "flights",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 7,
        "numInputRows": 20,
        "inputRowsPerSecond": 10.0,
        "processedRowsPerSecond": 40.0,
        "sources": list(sources),
        **fields,
    }


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "rocketmq", "endOffset": end, "latestOffset": latest}


def test_the_lag_of_a_queue_is_what_was_there_and_not_read() -> None:
    one = progress(source(offsets(q0=5, q1=9), offsets(q0=12, q1=9)))
    assert lag(one) == {queue(0): 7, queue(1): 0}
    assert lag(json.dumps(one)) == lag(one)


def test_offsets_are_read_where_spark_gives_them_as_text() -> None:
    one = progress(source(json.dumps(offsets(q0=5)), json.dumps(offsets(q0=12))))
    assert lag(one) == {queue(0): 7}


def test_a_queue_just_found_is_behind_with_all_of_it_and_one_that_is_away_is_left_out() -> None:
    one = progress(source(offsets(q0=5), offsets(q1=3)))
    assert lag(one) == {queue(1): 3}


def test_a_queue_that_was_read_beyond_what_was_reported_is_not_behind() -> None:
    assert lag(progress(source(offsets(q0=15), offsets(q0=12)))) == {queue(0): 0}


@pytest.mark.parametrize("other", [None, "17", "log.txt:3", {"0": 17}, '{"partition":3}'])
def test_other_sources_and_missing_reports_have_no_lag(other: Any) -> None:
    assert lag(progress(source(other, other))) == {}


def test_a_query_that_has_just_begun_has_no_lag() -> None:
    assert lag(None) == {}


def test_two_sources_of_one_query_count_together() -> None:
    both = source(offsets(q0=5), offsets(q0=12))
    assert lag(progress(both, both)) == {queue(0): 14}


@pytest.mark.parametrize("wrong", ["no JSON", "[]", {"name": "x"}, "{}"])
def test_what_is_no_progress_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"give query\.lastProgress"):
        lag(wrong)


def test_a_report_says_how_long_the_rest_takes_at_the_present_rate() -> None:
    found = report(progress(source(offsets(q0=0, q1=0), offsets(q0=60, q1=20))))
    assert (found.query_id, found.name, found.batch_id, found.rows) == ("a-query", "flights", 7, 20)
    assert (found.input_rows_per_second, found.processed_rows_per_second) == (10.0, 40.0)
    assert (found.behind_total, found.seconds_left) == (80, 2.0)


@pytest.mark.parametrize("rate", [None, 0.0, float("nan"), "Infinity"])
def test_without_a_rate_nobody_knows_how_long_the_rest_takes(rate: Any) -> None:
    waiting = source(offsets(q0=0), offsets(q0=60))
    assert report(progress(waiting, processedRowsPerSecond=rate)).seconds_left is None
    done = source(offsets(q0=60), offsets(q0=60))
    assert report(progress(done, processedRowsPerSecond=rate)).seconds_left == 0.0
