"""Topics into a lake: with Spark, against a broker of lists."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.spark.fake_cluster import FakeCluster, FakeQueue
from tests.stand_ins import returns

from turbopump.cli import main
from turbopump.errors import (
    ConfigError,
    OffsetGapError,
    PipelineError,
    RemotingError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command
from turbopump.spark import archive as lakes
from turbopump.spark.job_metrics import JobMetrics
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines import ArchiveReport, archive, archiving, json_bodies
from turbopump.spark.pipelines.row_progress import ProgressLine, RowProgress
from turbopump.spark.pipelines.running import (
    check_master,
    command_session,
    error_inside,
    spark_sentence,
    start_sentence,
)
from turbopump.spark.reading import RangesPartition

Archive = Callable[..., ArchiveReport]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"T": 2, "U": 1}, pull_max=256) as fake:
        yield fake


def archived(
    cluster: FakeCluster, spark: SparkSession, tmp_path: Path, *topics: str, **given: Any
) -> ArchiveReport:
    return archive(tmp_path, topics, name_server=cluster.address, spark=spark, **given)


@pytest.fixture
def run(spark: SparkSession, cluster: FakeCluster, tmp_path: Path) -> Archive:
    """Archive into ``tmp_path``."""

    return partial(archived, cluster, spark, tmp_path)


def offsets_in(lake: Path, table: str = "data") -> list[tuple[str, int, int]]:
    rows = lakes.dataset(lake, table).to_table(columns=["topic", "queueId", "queueOffset"])
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows.to_pylist())


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_a_run_appends_what_came_since_the_last_one(
    spark: SparkSession, cluster: FakeCluster, run: Archive, tmp_path: Path, format_name: str
) -> None:
    cluster.fill("T", 0, 30)
    cluster.fill("T", 1, 20)
    first = run("T", format=format_name, rows_per_batch=25)
    assert (first.messages, first.rows, first.batches, first.agrees) == (50, 50, 2, True)
    nothing = run("T")
    assert (nothing.messages, nothing.batches, nothing.agrees) == (0, 0, True)
    cluster.fill("T", 1, 5)
    cluster.fill("U", 0, 3)
    second = run("T", "U")
    assert (second.messages, second.rows, second.lake_rows) == (8, 8, 58)
    expected = [("T", 0, at) for at in range(30)] + [("T", 1, at) for at in range(25)]
    expected += [("U", 0, at) for at in range(3)]
    assert offsets_in(tmp_path) == expected
    relation = duckdb.from_arrow(lakes.dataset(tmp_path))
    assert relation.aggregate("count(*), count(distinct body)").fetchall() == [(58, 58)]
    rows = lakes.rows(spark, tmp_path)
    assert sorted((r.topic, r.queueId, r.queueOffset) for r in rows.collect()) == expected
    assert lakes.offsets(tmp_path)[MessageQueue("T", "broker-a", 1)] == 25


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_a_run_that_died_at_a_step_is_gone_on_with(
    cluster: FakeCluster, run: Archive, tmp_path: Path, format_name: str
) -> None:
    class DiesError(BaseException):
        pass

    for number, step in enumerate(("planned", "written", "committed", "placed")):
        cluster.fill("T", 0, 10)

        def die(name: str, step: str = step) -> None:
            if name == step:
                raise DiesError

        with pytest.raises(DiesError):
            run("T", format=format_name, at_step=die)
        report = run("T")
        assert report.agrees
        assert report.lake_rows == 10 * (number + 1)
    assert offsets_in(tmp_path) == [("T", 0, at) for at in range(40)]


def test_bodies_become_columns_and_what_does_not_fit_is_kept_with_the_reason(
    spark: SparkSession, cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    bodies = {
        b'{"n": 1, "at": "2026-01-02T03:04:05Z", "who": {"name": "x"}}': None,
        b' \r\n\t{"n": 2, "more": [1], "at": "2026-01-02T03:04:05"}\n': None,
        b'{"n": "one"}': 'wrong_type n: "one" is not int',
        b"{}": "missing n: absent, or null",
        b'{"n": 1, "who": 7}': "wrong_type who: 7 is not struct<name:string>",
        b"[{}]": "not_object: it is [{}]",
        b'{"n": 1': "not_json: Expecting ',' delimiter: line 1 column 8 (char 7)",
        b"\xff": "not_utf8: invalid start byte at byte 0",
        b"": "not_json: Expecting value: line 1 column 1 (char 0)",
    }
    for body in bodies:
        cluster.queues["T", 0].put(body, topic="T", queue_id=0)
    schema = json_bodies("n int not null, at timestamp, who struct<name: string>", kept=False)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:  # a time without a zone is UTC, whatever the session's zone is
        report = run("T", bodies=schema)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (report.rows, report.rejected, report.agrees) == (2, 7, True)
    rows = lakes.dataset(tmp_path).to_table(columns=["n", "at", "who"]).to_pylist()
    assert [(row["n"], row["who"]) for row in rows] == [(1, {"name": "x"}), (2, None)]
    assert {row["at"].isoformat() for row in rows} == {"2026-01-02T03:04:05+00:00"}
    assert "body" not in lakes.dataset(tmp_path).schema.names
    rejected = lakes.dataset(tmp_path, "_rejected").to_table().to_pylist()
    assert {row["body"]: row["reason"] for row in rejected} == {
        body: reason for body, reason in bodies.items() if reason
    }
    cluster.queues["T", 0].put(b'{"n": 3}', topic="T", queue_id=0)
    assert run("T").rows == 1  # the lake knows its schema


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("topic string, keys int, n int", "columns keys, topic, which messages have as well"),
        ("Tags string, Hour int", "columns Hour, Tags, which messages have as well"),
        ("n int, N int", r"column n twice: \['n', 'N'\]"),
        (
            "who struct<name: string not null>",
            r"field who\.name is not null, which only the outermost fields",
        ),
        (
            "who array<struct<a: map<int, struct<b: int not null>>>>",
            r"who\[\]\.a\[\]\.b is not null",
        ),
        ("n variant", "field n has the type variant, which is not supported"),
        ("n array<char(3)>", r"field n\[\] has the type char\(3\)"),
        ("int", "'int' has no fields"),
        ("who struct<a: int, A: int>", r"column who\.A twice|column who\.a twice: \['a', 'A'\]"),
        ("n map<int, int>", "field n is a map of int: the names in JSON objects are texts"),
    ],
)
def test_bodies_that_cannot_be_columns_are_refused_before_there_is_a_lake(
    run: Archive, tmp_path: Path, ddl: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run("T", bodies=json_bodies(ddl))
    assert not list(tmp_path.iterdir())


def test_a_schema_of_bodies_asks_for_the_session_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", returns(None))
    with pytest.raises(ConfigError, match=r"call turbopump\.spark\.rocketmq_session\(\) before"):
        json_bodies("n int")


def test_nothing_is_made_where_there_is_no_topic_or_a_wrong_option(
    run: Archive, tmp_path: Path
) -> None:
    with pytest.raises(RouteNotFoundError, match="know no topic 'none'"):
        run("none", bodies=json_bodies("n int"))
    with pytest.raises(ConfigError, match="remove the options that select messages"):
        run("T", options={"tags": "A"})
    assert not list(tmp_path.iterdir())


def test_one_text_is_one_topic_and_a_batch_of_nothing_is_refused(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="rows_per_batch is 0: expected 1 or more"):
        run("T", rows_per_batch=0)
    cluster.fill("T", 0, 1)
    columns = "topic,brokerName,queueId,queueOffset,storeTimestamp"
    report = archive(tmp_path, "T", name_server=cluster.address, columns=columns)
    assert (report.rows, len(lakes.dataset(tmp_path).schema.names)) == (1, 7)


def test_spark_and_the_command_know_a_queue_that_was_made_again(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest is in test_made_again.py, without Spark."""
    lake = str(tmp_path / "lake")
    arguments = ["pipeline", "archive", "T", lake, "-n", cluster.address]
    for body in (b'{"date": "2026-01-02", "topic": "x"}', b"{}"):
        cluster.queues["T", 0].put(body, topic="T", queue_id=0)
    schema = "date AS day date not null, topic string"
    assert main([*arguments, "--json-schema", schema, "--body-prefix", "body_"]) == 0
    capsys.readouterr()
    cluster.queues["T", 0] = FakeQueue()
    cluster.fill("T", 0, 1)
    assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("turbopump: T@broker-a:0 ends at 1, but the lake has it up to 2")
    assert main([*arguments, "--restart-queue"]) == 1  # its one row is rejected
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "restarted  T@broker-a:0, which was made again"
    assert out[-1] == ("FAILED     more rows were rejected than --max-rejected allows")
    (row,) = lakes.rows(spark, lake).collect()
    assert (str(row["day"]), row["body_topic"], row["queueGeneration"]) == ("2026-01-02", "x", None)
    rejected = lakes.rows(spark, lake, "_rejected").collect()
    assert sorted((row["queueGeneration"] or 0, row["body"]) for row in rejected) == [
        (0, b"{}"),
        (1, b"T-0-0"),
    ]
    assert main(["pipeline", "replay", lake, "T", "U", "-n", cluster.address]) == 1
    assert "has several generations of T@broker-a:0" in capsys.readouterr().err


def test_messages_that_were_deleted_fail_the_run_or_are_counted(
    cluster: FakeCluster, run: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fill("T", 0, 10)
    run("T")
    cluster.fill("T", 0, 10)
    cluster.queues["T", 0].remove_oldest(15)
    arguments = ["pipeline", "archive", "T", str(tmp_path), "-n", cluster.address]
    assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("turbopump: broker-a:0 of T") or "messages 10 to 14" in said
    assert len(offsets_in(tmp_path)) == 10
    assert main([*arguments, "--skip-lost", "--output", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["rows"], report["lost"]) == (10, 5, 5)
    assert (report["lake_rows"], report["lake_messages"], report["agrees"]) == (15, 15, True)
    assert offsets_in(tmp_path) == [("T", 0, at) for at in (*range(10), *range(15, 20))]


def test_a_queue_that_the_lake_does_not_know_begins_where_it_is_told(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    for at in range(10):
        cluster.fill("T", 0, 1, stored_ms=1_700_000_000_000 + at)
    assert run("T", starting=1_700_000_000_007).messages == 3
    cluster.fill("T", 0, 1)
    assert run("T", starting="earliest").messages == 1
    assert offsets_in(tmp_path) == [("T", 0, at) for at in range(7, 11)]
    with pytest.raises(ConfigError, match="earliest, latest or a time in ms"):
        run("T", starting="begin")


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_latest_is_where_the_first_run_saw_the_end(
    cluster: FakeCluster, run: Archive, tmp_path: Path, format_name: str
) -> None:
    cluster.fill("T", 0, 10)
    first = run("T", starting="latest", format=format_name, bodies=json_bodies("n int"))
    assert (first.messages, first.batches, first.agrees) == (0, 0, True)
    assert lakes.offsets(tmp_path)[MessageQueue("T", "broker-a", 0)] == 10
    cluster.fill("T", 0, 3)
    cluster.fill("T", 1, 2)
    metrics = JobMetrics()
    second = run("T", starting="latest", metrics=metrics)
    assert (second.messages, second.rejected, second.agrees) == (5, 5, True)
    job = ("archive", tmp_path.name)
    assert list(metrics.rows.read()) == [(job, 0)]
    assert list(metrics.rejected.read()) == [(job, 5)]
    assert metrics.behind[job] == {
        MessageQueue("T", "broker-a", 0): 0,
        MessageQueue("T", "broker-a", 1): 0,
    }
    cluster.queues["T", 2] = FakeQueue()
    cluster.fill("T", 2, 4)  # a queue more: all of it is new
    assert run("T", starting="latest").messages == 4
    expected = [("T", 0, 10), ("T", 0, 11), ("T", 0, 12), ("T", 1, 0), ("T", 1, 1)]
    assert offsets_in(tmp_path, "_rejected") == expected + [("T", 2, at) for at in range(4)]


def send_more(cluster: FakeCluster, steps: Any, stop: threading.Event, step: str) -> None:
    if step == "placed":
        steps.append(step)
        if len(steps) == 1:
            cluster.fill("T", 0, 5)
        else:
            stop.set()


def test_following_from_latest_takes_what_is_sent_from_its_first_look_on(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    cluster.fill("T", 0, 10)
    stop = threading.Event()
    steps = []

    report = run(
        "T",
        starting="latest",
        follow=True,
        interval=0.01,
        stop=stop,
        at_step=partial(send_more, cluster, steps, stop),
    )
    assert (report.messages, report.batches) == (5, 1)
    assert offsets_in(tmp_path) == [("T", 0, at) for at in range(10, 15)]


def test_a_run_from_latest_that_died_half_way_keeps_where_it_began(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    class DiesError(BaseException):
        pass

    def die(name: str) -> None:
        if name == "rejected committed":
            raise DiesError

    cluster.fill("T", 0, 10)
    given = {"starting": "latest", "format": "delta", "bodies": json_bodies("n int")}
    with pytest.raises(DiesError):
        run("T", **given, at_step=die)
    cluster.fill("T", 0, 3)
    report = run("T", **given)
    assert (report.messages, report.agrees) == (3, True)
    assert offsets_in(tmp_path, "_rejected") == [("T", 0, at) for at in range(10, 13)]


def less(
    real: Callable[..., Any], begins: Offsets, ends: Offsets, *given: Any
) -> list[RangesPartition]:
    return real(begins, {queue: end - 1 for queue, end in ends.items()}, *given)


def twice(real: Callable[..., Any], *given: Any) -> list[RangesPartition]:
    return real(*given) * 2


def test_rows_that_are_not_those_of_the_offsets_are_not_committed(
    cluster: FakeCluster, run: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.fill("T", 0, 10)
    from turbopump.spark import planning

    real = planning.tasks

    for wrong, rows in ((partial(less, real), 9), (partial(twice, real), 20)):
        monkeypatch.setattr(planning, "tasks", wrong)
        with pytest.raises(OffsetGapError, match=f"{rows} rows were written for the offsets 0 to"):
            run("T")
    assert lakes.offsets(tmp_path) == {}


def send_more_when_committed(
    cluster: FakeCluster, committed: Any, stop: threading.Event, step: str
) -> None:
    if step == "placed":
        committed.append(step)
        if len(committed) < 3:
            cluster.fill("T", 1, 5)
        else:
            stop.set()


def test_following_takes_what_comes_until_it_is_stopped(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    cluster.fill("T", 0, 10)
    stop = threading.Event()
    committed = []

    report = run(
        "T",
        follow=True,
        interval=0.01,
        stop=stop,
        at_step=partial(send_more_when_committed, cluster, committed, stop),
    )
    assert (report.messages, report.batches, report.stopped) == (20, 3, False)
    assert len(offsets_in(tmp_path)) == 20


def test_following_goes_on_where_the_broker_was_away(
    cluster: FakeCluster, run: Archive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker has left the route, like one that restarts, or it does not answer."""
    cluster.fill("T", 0, 10)
    stop, steps = threading.Event(), list[str]()
    usual = cluster.answer

    def of_nothing(request: Command) -> Command:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return usual(request)
        steps.append("asked")
        if len(steps) < 4:
            return Command(ResponseCode.TOPIC_NOT_EXIST)
        cluster.answer = usual
        cluster.fill("T", 1, 5)
        return usual(request)

    def away(step: str) -> None:
        if step == "placed":
            if steps:
                stop.set()
            cluster.answer = of_nothing

    report = run("T", follow=True, interval=0.01, stop=stop, at_step=away)
    assert (report.messages, report.agrees, len(steps)) == (15, True, 4)
    said = [record.message for record in caplog.records if "not in the route" in record.message]
    assert len(said) == 1
    cluster.answer = of_nothing
    steps.clear()
    with pytest.raises(RouteNotFoundError):
        run("T")


def go_away(cluster: FakeCluster, of_nothing: Any, step: str) -> None:
    if step == "planned":
        cluster.answer = of_nothing


def test_a_batch_is_planned_anew_where_the_broker_was_away(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    """Its topic has no route for a moment, once for a task and once for who waits."""
    cluster.fill("T", 0, 10)
    usual, asked = cluster.answer, list[Command]()

    def of_nothing(request: Command) -> Command:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked.append(request)
            if len(asked) <= 2:
                return Command(ResponseCode.TOPIC_NOT_EXIST)
        return usual(request)

    report = run("T", bodies=json_bodies("n int"), at_step=partial(go_away, cluster, of_nothing))
    assert (report.messages, report.agrees, len(asked) >= 3) == (10, True, True)


def refused(usual: Callable[..., Any], request: Command) -> Command:
    if request.code == RequestCode.GET_MAX_OFFSET:
        return Command(ResponseCode.NO_PERMISSION, remark="not yours")
    return usual(request)


def test_a_refusal_ends_a_run_that_follows(cluster: FakeCluster, run: Archive) -> None:
    usual = cluster.answer

    cluster.answer = partial(refused, usual)
    with pytest.raises(RemotingError, match="not yours"):
        run("T", follow=True, interval=0.01)


def test_a_run_that_follows_compacts_now_and_then(
    cluster: FakeCluster, run: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "COMPACT_EVERY_S", 0)
    monkeypatch.setattr(archiving, "COMPACT_FROM", 2)
    cluster.fill("T", 0, 10)
    stop, files = threading.Event(), list[int]()

    def more(step: str) -> None:
        if step == "placed":
            files.append(len(lakes.files(tmp_path)))
            cluster.fill("T", 0, 10)
            if len(files) == 3:
                stop.set()

    report = run("T", follow=True, interval=0.01, stop=stop, at_step=more)
    assert (files, report.files_compacted) == ([1, 2, 2], 2)
    assert (report.messages, report.rows, report.lake_rows, report.agrees) == (30, 30, 30, True)
    assert len(offsets_in(tmp_path)) == 30


def test_a_stop_ends_a_run_after_its_batch(
    cluster: FakeCluster, run: Archive, tmp_path: Path
) -> None:
    cluster.fill("T", 0, 30)
    stop = threading.Event()
    progress = RowProgress()
    report = run("T", rows_per_batch=10, stop=stop, progress=progress, at_step=lambda _: stop.set())
    assert (report.rows, report.stopped, report.agrees) == (10, True, True)
    assert (progress.done, progress.lag) == (10, 20)
    assert run("T").rows == 20
    assert len(offsets_in(tmp_path)) == 30


@pytest.mark.parametrize(
    "option", [{"tags": "A"}, {"subscribePattern": "T.*"}, {"columns": "body"}]
)
def test_options_that_leave_messages_out_are_refused(run: Archive, option: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        run("T", options=option)


def test_progress_says_rows_rate_lag_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 20.0, 21.0, 21.0, 21.0, 21.0]).__next__
    monkeypatch.setattr("turbopump.spark.pipelines.row_progress.time.monotonic", clock)
    import sys

    line = ProgressLine("archive", sys.stderr)  # begins at 10
    progress = RowProgress(total=1000, done=100, began=1.0, shown=line)
    progress.add(300)
    assert capsys.readouterr().err == "archive: 400 rows  20/s  lag 600  30 s left\n"


def test_wrong_arguments_are_refused_before_spark_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    for arguments, said in (
        (["T", lake, "--drop-body"], "--drop-body needs --json-schema"),
        (["T", lake, "--body-prefix", "p_"], "--body-prefix needs --json-schema"),
        (["T", lake, "--body-struct", "s"], "--body-struct needs --json-schema"),
        (["T", lake, "--option", "x"], "'--option': 'x': expected NAME=VALUE"),
        (["a b", lake], "a b"),
        ([lake], "Missing argument"),
        (["T", lake, "--from", "then"], "'then' is not a time"),
    ):
        assert main(["pipeline", "archive", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not Path(lake).exists()


def test_sigterm_ends_a_command_as_ctrl_c_does_while_spark_starts(spark: SparkSession) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), command_session("a command", None):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


PYTHON = """
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "a.py", line 1, in write
    file.write(b"x")
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in close
pyarrow.lib.ArrowInvalid: [X] cannot close

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback
Caused by: java.io.IOException: gone
"""
JAVA = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: task 0 failed
\tat org.apache.spark.X.run(X.scala:1)
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
ARGUMENT = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkIllegalArgumentException: [INVALID.MEMORY_2] too little memory.
Please increase it
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PYTHON, "ArrowInvalid: cannot close"),
        (JAVA, "OutOfMemoryError: Java heap space"),
        (ARGUMENT, "too little memory."),
        ("", "PySparkException"),
    ],
)
def test_the_sentence_of_an_error_names_the_innermost_cause(text: str, sentence: str) -> None:
    from pyspark.errors import PySparkException

    assert spark_sentence(PySparkException(text)) == sentence


def test_a_spark_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\necho Picked up _JAVA_OPTIONS: -Xmx1k >&2; echo Too small >&2; exit 1"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    gone = start_sentence(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"))
    assert gone == "Java cannot run: Too small (_JAVA_OPTIONS: -Xmx1k)"


def test_a_master_that_is_none_or_does_not_answer_is_said_so_before_spark_starts() -> None:
    for wrong in ("nonsense", "spark://", "spark://host", "spark://:7077", "http://h:1", "locals"):
        with pytest.raises(ConfigError, match="is not a master of Spark: "):
            check_master(wrong)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        away = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PipelineError, match=f"no master of Spark answers at {away}: .*; mq.."):
            check_master(f"spark://{away},mq..example:7")
        taken.listen()
        check_master(f"spark://mq..example:7,{away}")
    for good in ("local", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "k8s://u"):
        check_master(good)


def test_the_sentence_of_an_error_is_found_in_what_spark_wraps_around_it() -> None:
    from pyspark.errors import PySparkException

    wrapped = "[X] An exception\nturbopump.errors.ConfigError: say so. SQLSTATE\nJVM stacktrace"
    assert spark_sentence(PySparkException(wrapped)) == "say so. SQLSTATE"
    assert error_inside(PySparkException(wrapped)) is ConfigError
    assert spark_sentence(PySparkException("[PARSE] no such thing\nmore")) == "no such thing"
    assert error_inside(PySparkException("[PARSE] no topic 'ConnectError'")) is None
