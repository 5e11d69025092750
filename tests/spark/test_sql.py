"""`turbopump sql`: topics and lakes as tables."""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.spark.fake_cluster import FakeCluster
from tests.spark.stored_messages import property_bytes

from turbopump.cli import main
from turbopump.cli.sql import table_lines
from turbopump.spark.options import COLUMN_NAMES
from turbopump.spark.pipelines import archive, json_bodies, query
from turbopump.spark.pipelines.querying import _columns_named

Sql = Callable[..., int]


@pytest.fixture
def cluster(spark: SparkSession) -> Iterator[FakeCluster]:
    before = spark.catalog.listTables()
    with FakeCluster({"flights": 2, "my-topic": 1}) as fake:
        for number in range(6):
            fake.queues["flights", number % 2].put(
                f'{{"n": {number}}}'.encode(),
                topic="flights",
                queue_id=number % 2,
                properties=property_bytes({"TAGS": "AB"[number % 2]}),
            )
        fake.fill("my-topic", 0, 3)
        yield fake
    assert spark.catalog.listTables() == before


@pytest.fixture
def sql(cluster: FakeCluster) -> Sql:
    return lambda *arguments: main(["sql", *arguments, "-n", cluster.address])


def test_topics_are_tables(sql: Sql, capsys: pytest.CaptureFixture[str]) -> None:
    assert sql("select tags, count(*) as n from flights group by tags order by tags") == 0
    assert capsys.readouterr().out.splitlines() == [
        "tags  n",
        "----  -",
        "A     3",
        "B     3",
        "2 rows",
    ]
    text = "select a.n, b.n from (select count(*) n from flights where queueId = 0) a, "
    assert sql(f"{text}(select count(*) n from flights) b", "--output=csv") == 0
    assert capsys.readouterr().out == "n,n\n3,6\n"
    assert sql("select max(m.queueOffset) from `my-topic` m, flights f", "--output=csv") == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["max(queueOffset)"], ["2"]]


def test_answers_come_as_json_lines_and_parquet(
    sql: Sql, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "select queueId, body, properties, storeTimestamp from flights order by queueId limit 1"
    assert sql(text, "--output=json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "queueId": 0,
        "body": '{"n": 0}',
        "properties": {"TAGS": "A"},
        "storeTimestamp": "2023-11-14T22:13:20",
    }
    file = tmp_path / "answer.parquet"
    assert sql("select * from flights", "--parquet", str(file)) == 0
    assert capsys.readouterr().out == f"6 rows in {file}\n"
    assert tuple(pq.read_schema(file).names) == COLUMN_NAMES
    assert [path.name for path in tmp_path.iterdir()] == ["answer.parquet"]


@pytest.mark.parametrize("form", ["--output=json", "--output=csv"])
def test_times_are_of_utc_wherever_the_machine_is(
    sql: Sql, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        text = (
            "select storeTimestamp, array(struct(storeTimestamp as timestamp)) as within, "
            "hour(storeTimestamp) as h, timestamp_ntz '2020-01-02 03:04:05' as plain, "
            "double('nan') as n from flights limit 1"
        )
        assert sql(text, form) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    out = capsys.readouterr().out
    if form == "--output=json":
        assert json.loads(out) == {
            "storeTimestamp": "2023-11-14T22:13:20",
            "within": [{"timestamp": "2023-11-14T22:13:20"}],
            "h": 22,
            "plain": "2020-01-02T03:04:05",
            "n": "NaN",
        }
    else:
        assert out.splitlines()[1].startswith("2023-11-14T22:13:20,")


def test_an_answer_that_could_not_be_read_is_refused(
    sql: Sql, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "select queueId as a, queueOffset as a from flights"
    for form in (["--output=json"], ["--parquet", str(tmp_path / "a.parquet")]):
        assert sql(text, *form) == 2
        assert "two columns 'a'" in capsys.readouterr().err
    assert sql("select 1", "--parquet", str(tmp_path / "none" / "a.parquet")) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_lakes_are_tables_beside_topics(
    spark: SparkSession,
    cluster: FakeCluster,
    sql: Sql,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    cluster.queues["flights", 0].put(b"odd", topic="flights", queue_id=0)
    archive(
        tmp_path, ["flights"], name_server=cluster.address, spark=spark, bodies=json_bodies("n int")
    )
    text = (
        "select (select sum(n) from old), (select count(*) from old_rejected), count(*) "
        "from flights f left anti join old using (queueId, queueOffset)"
    )
    assert sql(text, "--lake", f"old={tmp_path}") == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["15", "1", "1"]


def test_what_is_no_table_is_refused_with_those_that_are(
    cluster: FakeCluster, sql: Sql, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    with pytest.raises(AnalysisException):
        query("select nothing from flights", name_server=cluster.address, spark=spark)
    assert sql("select nothing from flights") == 1
    assert "nothing" in capsys.readouterr().err
    assert sql("selekt 1") == 2
    assert "SELEKT is not a query" in capsys.readouterr().err
    assert sql("select (1") == 1
    assert "Syntax error" in capsys.readouterr().err
    assert sql("select 1", "--output=json", "--parquet", "x") == 2
    assert "one form" in capsys.readouterr().err
    assert sql("select * from lake", "--lake", "/nowhere") == 1
    assert "/nowhere is not a lake" in capsys.readouterr().err


def test_a_session_in_which_was_asked_still_says_what_is_wrong_with_others(
    cluster: FakeCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark takes the logger of this name for one of its own class."""
    monkeypatch.delitem(logging.Logger.manager.loggerDict, "SQLQueryContextLogger", raising=False)
    assert query("select 1", name_server=cluster.address, spark=spark).count() == 1
    with pytest.raises(AnalysisException, match="nothing"):
        spark.range(1).where("nothing = 1")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("select count(*) from t", "queueOffset"),
        ("select tags, max(queueId) from t where KEYS = 'a'", "queueId,keys,tags"),
        ("select * from t", ",".join(COLUMN_NAMES)),
        ("select t.* from t", ",".join(COLUMN_NAMES)),
        ("from t", ",".join(COLUMN_NAMES)),
        ("table t", ",".join(COLUMN_NAMES)),
        ("describe t", ",".join(COLUMN_NAMES)),
        ("select 1 from t natural join u", ",".join(COLUMN_NAMES)),
        ("from t |> limit 1", ",".join(COLUMN_NAMES)),
    ],
)
def test_only_columns_that_a_query_may_use_are_read(text: str, columns: str) -> None:
    assert _columns_named(text) == columns


def test_a_table_for_people_is_cut_and_says_so() -> None:
    rows = iter([(1, b"\xff", "x" * 80), (22, None, "a\nb"), (3, b"", "")])
    assert list(table_lines(["n", "body", "text"], rows, 2)) == [
        " n  body  text",
        f"--  ----  {'-' * 60}",
        f" 1  /w==  {'x' * 59}…",
        "22  null  a b",
        "the first 2 rows; --limit N shows more",
    ]
