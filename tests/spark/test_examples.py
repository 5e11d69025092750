"""Programs of ``examples/`` that need Spark, in the session that is there."""

from __future__ import annotations

import runpy
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from tests.stand_ins import does_nothing
from tests.topic_contents import stored
from tests.unit.guide_page import ROOT

from turbopump.testing import BrokerThread

Run = Callable[[str], list[str]]


@pytest.fixture
def run(
    spark: SparkSession,
    rocketmq: BrokerThread,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Function that runs an example, and returns the lines that it printed."""
    assert spark.getActiveSession() is not None
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq.namesrv)
    monkeypatch.setattr("turbopump.spark.end_session", does_nothing, raising=False)

    def running(name: str) -> list[str]:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return running


def test_views_are_counted_by_minute_and_page(run: Run, rocketmq: BrokerThread) -> None:
    lines = run("spark_window.py")
    assert lines[0] == "sent 180 page views"
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["minute", "page", "views"],
        *(
            [f"2026-01-01 12:0{minute}:00", page, views]
            for minute in range(3)
            for page, views in (("/", "40"), ("/books", "20"))
        ),
    ]
    assert len(stored(rocketmq, "page-views")) == 180


def test_duckdb_adds_up_what_the_archive_has_written(run: Run, rocketmq: BrokerThread) -> None:
    lines = run("lake_duckdb.py")
    assert lines[:2] == ["sent 300 orders", "archived 300 rows, and the counts agree"]
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows][2:] == [
        ["lamp", "150", "12000.00"],
        ["book", "150", "1875.00"],
        ["pen", "150", "187.50"],
    ]
    assert len(stored(rocketmq, "sold")) == 300
