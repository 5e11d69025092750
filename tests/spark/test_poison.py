"""One message that cannot be read, or whose body fits no column, stops nothing: neither reads nor
archives, nor any reader of the lake, SQL, or a replay."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType
from tests.spark.lake_batches import COLUMNS, QUEUES, messages
from tests.unit.client.poisoned_messages import BAD_BATCHES, GOOD, POISON, send_poison
from tests.unit.client.stored_batches import serve_batches_in

from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark import archive as lakes
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import read_options
from turbopump.spark.pipelines import archive, json_bodies, query, replay
from turbopump.spark.pipelines.lake import (
    Bodies,
    Definition,
    LakeBatch,
    create_or_open,
    staged_name,
)
from turbopump.spark.pipelines.writing import FileWriting
from turbopump.spark.reading import read_ranges
from turbopump.testing import BrokerThread

BODIES = [body for bad, _ in POISON.values() for body in (bad, GOOD)]
VALUES = {
    '{"ts":1795880000000}': "out_of_range ts",
    '{"ts":1795880000000,"n":"bad"}': "out_of_range ts",
    '{"n":"\\ud83d"}': "wrong_type n",
    '{"s":"\\ud83d"}': "not_text s",
    '{"\\ud83d":1}': None,
    '{"d":1e400}': "out_of_range d",
    '{"p":"1,000.00"}': "wrong_type p",
    '{"list":[253402300800]}': "out_of_range list[]",
    '{"who":{"day":"0000-01-01"}}': "out_of_range who.day",
    '{"n":1}{"n":2}': "extra_data",
    '{"ms":1795880000000,"ts":1795880000}': None,
    '{"http.status":1,".x":3,"x":9,"a`b":4,"sp ace":5,"_c":6,"who":{"o.o":7}}': None,
}
"""Bodies, and the code and field of the reason, or None: it fits."""
DDL = (
    "ts timestamp, ms timestamp, n int, s string, d double, p decimal(10,2), "
    "list array<timestamp>, who struct<day: date, `o.o`: int>, "
    "`http.status` int, `.x` int, x int, `a``b` int, `sp ace` int, _c int"
)
ODD = ["http.status", ".x", "x", "a`b", "sp ace", "_c"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        for topic in ("P", "V"):
            running.create_topic(topic)
        running.run(send_poison(running.broker_address, "P"))
        serve_batches_in(running, *BAD_BATCHES)
        with Producer(running.namesrv) as producer:
            for body in VALUES:
                producer.send("V", body)
        yield running


@pytest.fixture(scope="module", params=["parquet", "delta"])
def lake(
    request: pytest.FixtureRequest,
    broker: BrokerThread,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """All three topics, by the command."""
    root = tmp_path_factory.mktemp("lake")
    arguments = ["pipeline", "archive", "P", "B", "V", str(root), "-n", broker.namesrv]
    arguments += ["--json-schema", DDL, "--timestamp-unit", "ms=ms", "--format", request.param]
    if request.param == "delta":  # as lakes have them that are older than the column bodyFault
        arguments += ["--columns", ",".join(COLUMNS)]
    assert main(arguments) == 0
    return root


def test_what_does_not_fit_is_rejected_with_a_reason_that_groups(lake: Path) -> None:
    table = lakes.dataset(lake, "_rejected").to_table()
    reasons = {
        row["body"].decode(): row["reason"].partition(":")[0]
        for row in table.to_pylist()
        if row["topic"] == "V"
    }
    assert reasons == {body: reason for body, reason in VALUES.items() if reason}
    others = [row for row in table.to_pylist() if row["topic"] != "V"]
    assert {row["reason"].partition(":")[0] for row in others} == {"body_fault", "not_json"}
    faulty = [row["body"] for row in others if row["topic"] == "P"]
    assert sorted(faulty) == sorted(body for body, _ in POISON.values())
    batches = sorted((r["queueOffset"], r["body"]) for r in others if r["topic"] == "B")
    assert [at for at, _ in batches] == list(range(8))
    assert batches[0][1] == BAD_BATCHES[0].body
    assert [body for _, body in batches][6:] == [b"one", b"two"]


def odd_rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ODD) for row in rows if row["x"] is not None]


def test_every_reader_reads_what_was_archived(
    lake: Path, spark: SparkSession, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    good = sum(reason is None for reason in VALUES.values()) + len(POISON)
    wanted = [(1, 3, 9, 4, 5, 6)]
    dataset = lakes.dataset(lake)
    rows = dataset.to_table().to_pylist()
    assert (len(rows), odd_rows(rows)) == (good, wanted)
    (time,) = [(row["ts"], row["ms"]) for row in rows if row["ms"]]
    assert time[0] == time[1]
    assert [row["who"] for row in rows if row["x"]] == [{"day": None, "o.o": 7}]
    named = ", ".join(f'"{name}"' for name in ODD)
    relation = duckdb.from_arrow(dataset)
    assert relation.filter("x is not null").project(named).fetchall() == wanted
    files = duckdb.read_parquet(lakes.files(lake))
    assert files.filter("x is not null").project(named).fetchall() == wanted
    assert len(relation.fetchall()) == good
    found = lakes.rows(spark, lake)
    assert (found.count(), found.columns) == (good, dataset.schema.names)
    assert odd_rows([row.asDict() for row in found.collect()]) == wanted
    ticks = ", ".join(f"`{name.replace('`', '``')}`" for name in ODD)
    text = f"select {ticks} from lake where x is not null"
    arguments = ["sql", "--lake", str(lake), "-n", broker.namesrv, "--output=json"]
    assert main([*arguments, text]) == 0
    assert [tuple(json.loads(capsys.readouterr().out).values())] == wanted
    assert main([*arguments, "select * from lake"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == good
    text = "select split(reason, ':')[0] as why, count(*) as n from lake_rejected group by why"
    assert main([*arguments, text]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    counts = {line["why"]: line["n"] for line in lines}
    assert counts["out_of_range ts"] == 2
    assert counts["body_fault"] == len(POISON) + 6
    if (lake / "data/_delta_log").is_dir():
        delta = DeltaTable(lake / "data").to_pyarrow_table()
        assert odd_rows(delta.to_pylist()) == wanted


def test_polars_reads_what_was_archived(lake: Path) -> None:
    polars = pytest.importorskip("polars")
    for frame in (
        polars.scan_pyarrow_dataset(lakes.dataset(lake)).collect(),
        polars.read_parquet(lakes.files(lake)),
    ):
        assert odd_rows(frame.to_dicts()) == [(1, 3, 9, 4, 5, 6)]


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_names_drawn_at_random_are_read_again(
    spark: SparkSession, tmp_path: Path, format_name: str
) -> None:
    draw = random.Random(format_name)
    names = {"".join(draw.choices(".`'\"$ %=/\\:,;(){}[]*é-0aB_", k=draw.randint(1, 5))): 0}
    while len(names) < 40:
        name = "".join(draw.choices(".`'\"$ %=/\\:,;(){}[]*é-0aB_", k=draw.randint(1, 5)))
        if name.lower() not in {each.lower() for each in names}:
            names[name] = len(names)
    inner = StructType([StructField(name, IntegerType()) for name in names])
    schema = StructType([*inner.fields, StructField("inner", inner)])
    wanted = Definition(
        format=format_name, columns=COLUMNS, bodies=Bodies(kind="json", schema=schema.json())
    )
    rows = messages(QUEUES[0], 0, 1)
    body = pa.array([json.dumps({**names, "inner": names}).encode()])
    rows = rows.set_column(rows.schema.get_field_index("body"), "body", body)
    lake = create_or_open(tmp_path, wanted)
    with lake.writing():
        report = FileWriting(str(lake.staging), staged_name("x"), lake.definition).write([rows])
        batch = LakeBatch(
            begins={QUEUES[0]: 0}, ends={QUEUES[0]: 1}, lost={}, files=tuple(report.files)
        )
        lake.append(lake.snapshot(), batch)
    dataset = lakes.dataset(tmp_path)
    expected = {**names, "inner": names}
    assert dataset.to_table().select(list(expected)).to_pylist() == [expected]
    assert dataset.to_table(columns=list(expected)).to_pylist() == [expected]
    found = [row.asDict(recursive=True) for row in lakes.rows(spark, tmp_path).collect()]
    assert [{name: row[name] for name in expected} for row in found] == [expected]
    (row,) = duckdb.read_parquet(lakes.files(tmp_path)).fetchall()
    assert set(names.values()) <= set(row[5:-1])


def test_reads_have_the_stored_bytes_and_say_why(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    read = spark.read.format("rocketmq").option("nameServer", broker.namesrv)
    rows = read.option("topic", "P").load().orderBy("queueOffset").collect()
    assert [row.body for row in rows] == BODIES
    assert [row.bodyFault is None for row in rows] == [False, True] * len(POISON)
    bodies = read.option("topic", "B").option("columns", "body,queueOffset").load()
    assert sorted(row.queueOffset for row in bodies.collect()) == list(range(8))
    log = spark.read.format("rocketmqCommitlog").option("topic", "P")
    rows = log.load(str(broker.directory / "commitlog")).orderBy("queueOffset").collect()
    assert [row.body for row in rows] == BODIES
    assert [row.status for row in rows] == ["unreadable", "ok"] * len(POISON)
    assert all((row.bodyFault is None) == (row.status == "ok") for row in rows)


def test_a_lake_of_bodies_as_they_are_is_replayed_and_asked(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, given in (("lake", {"rows_per_batch": 15}), ("skip", {"fail_on_data_loss": False})):
        report = archive(
            tmp_path / name, ["P", "B"], name_server=broker.namesrv, spark=spark, **given
        )
        assert (report.rows, report.lost, report.agrees) == (len(BODIES) + 8, 0, True)
    sent = replay(tmp_path / "lake", "P", "copies", name_server=broker.namesrv, spark=spark)
    assert (sent.sent, sent.agrees) == (len(BODIES), True)
    text = "select body, properties['k'] as k, bodyFault from copies"
    rows = query(text, name_server=broker.namesrv, spark=spark).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(BODIES)
    assert {row.bodyFault for row in rows} == {None}
    assert {row.k for row in rows} == {None, "a\x01b"}
    text = "select count(bodyFault) as n, count(*) as rows from P"
    assert main(["sql", text, "--output=json", "-n", broker.namesrv]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"n": len(POISON), "rows": len(BODIES)}


def test_bodies_without_their_faults_are_read_with_a_warning(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"nameServer": broker.namesrv, "topic": "P", "columns": "body"}
    part = OffsetRange(MessageQueue("P", "broker-test", 0), 0, len(BODIES))
    (rows,) = read_ranges([part], read_options(given))
    assert (rows.schema.names, rows.column(0).to_pylist()) == (["body"], BODIES)
    assert "P@broker-test:0: 6 of the bodies of offsets 0 to 11 cannot be read" in caplog.text


def test_a_time_that_python_cannot_show_is_told_with_what_to_do(
    spark: SparkSession, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ([], ["--output=json"], ["--output=csv"]):
        text = "select timestamp_seconds(1795880000000) as t"
        assert main(["sql", text, "-n", broker.namesrv, *form]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "is outside of the years 1 to 9999" in said
        assert "cast(NAME as string)" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timestamp_unit": "ns"}, "unknown timestamp unit 'ns': use one of s, ms, us"),
        ({"timestamp_unit": {"n": "ms"}}, "field 'n', but the schema has no timestamp there$"),
        ({"timestamp_unit": {"tss": "ms"}}, "no timestamp there; did you mean 'ts'"),
    ],
)
def test_a_unit_that_is_none_is_refused(
    spark: SparkSession, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        json_bodies("ts timestamp, n int", **given)


@pytest.mark.parametrize(
    "options",
    [
        ["--timestamp-unit", "ms"],
        ["--json-schema", "t timestamp", "--timestamp-unit", "ms", "--timestamp-unit", "t=s"],
    ],
)
def test_units_that_mean_nothing_are_usage_errors(options: list[str], tmp_path: Path) -> None:
    assert main(["pipeline", "archive", "P", str(tmp_path / "lake"), *options]) == 2


def test_two_topics_that_differ_in_case_are_not_taken_for_one(
    spark: SparkSession, broker: BrokerThread, sql: Callable[[str], Any]
) -> None:
    with Producer(broker.namesrv) as producer:
        for topic in ("Orders", "orders", "orders"):
            producer.send(topic, "x")
    both = "select (select count(*) from {}) as a, (select count(*) from {}) as b"
    for names in (("Orders", "orders"), ("orders", "`Orders`")):
        with pytest.raises(
            ConfigError, match=r"names the tables '(O|o)rders' and '(O|o)rders', but"
        ):
            sql(both.format(*names))
    assert sql("select count(*) from Orders")[0][0] == 1
    text = "select count(*) from orders where tags is null and 'Orders' <> \"Orders.\" -- Orders"
    assert sql(text)[0][0] == 2
    assert sql("select count(p.tags) from P p")[0][0] == 0


@pytest.fixture
def sql(spark: SparkSession, broker: BrokerThread) -> Callable[[str], Any]:
    return lambda text: query(text, name_server=broker.namesrv, spark=spark).collect()
