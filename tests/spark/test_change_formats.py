"""Messages of each format of changes, as their documentation shows them (tests/golden/changes)."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.spark.canal_messages import canal
from tests.spark.parsed_changes import parsed

from turbopump.spark.changes.canal import CanalFormat
from turbopump.spark.changes.change import ChangeFormat, ChangeOptions, NoChange
from turbopump.spark.changes.column_types import (
    DECIMAL_DIGITS,
    TEXT,
    connect_type,
    convert,
    mysql_type,
    widened,
)
from turbopump.spark.changes.debezium import DebeziumFormat
from turbopump.spark.changes.maxwell import MaxwellFormat
from turbopump.spark.changes.ticdc import TicdcFormat

GOLDEN = Path(__file__).parents[1] / "golden" / "changes"
FORMATS: dict[str, type[ChangeFormat]] = {
    "canal": CanalFormat,
    "dts": CanalFormat,
    "ticdc": TicdcFormat,
    "maxwell": MaxwellFormat,
    "debezium": DebeziumFormat,
}
CASES = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name in FORMATS
    for number, case in enumerate(json.loads((GOLDEN / f"{name}.json").read_text("utf-8")))
]


def plain(value: Any) -> Any:
    """The value as the golden files have it."""
    if isinstance(value, (date, datetime)):
        return str(value)
    return repr(value) if isinstance(value, (Decimal, bytes)) else value


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_message_has_these_changes(name: str, case: dict[str, Any]) -> None:
    keys: dict[str, tuple[str, ...]] = {"*": (case["key"],)} if "key" in case else {}
    form = FORMATS[name](ChangeOptions(keys=keys))
    body = json.dumps(case["body"]).encode()
    if "changes" not in case:
        assert form.parse(body) == NoChange(case["kind"], case.get("reason", ""))
        return
    found = parsed([(0, 0, body)], form)
    changes = []
    for table in found.streams():
        source = json.loads(table.schema.metadata[b"turbopump"])
        for row in table.to_pylist():
            values = {key: plain(value) for key, value in row.items() if key[0] != "_"}
            if row["_deleted"]:  # other columns are not needed
                values = {key: value for key, value in values.items() if value is not None}
            kind = "delete" if row["_deleted"] else "upsert"
            changes.append(
                [f"{source['database']}.{source['table']}", kind, row["_position"], values]
            )
    for expected in case["changes"]:
        if expected[1] == "delete":
            expected[3] = {key: value for key, value in expected[3].items() if value is not None}
    assert changes == case["changes"]
    assert not found.reasons


@pytest.mark.parametrize("form", [CanalFormat, TicdcFormat, MaxwellFormat, DebeziumFormat])
@pytest.mark.parametrize("body", [b"x", b"[]", b"{}", b"\xff", b'{"type": 1}', b'{"type": "x"}'])
def test_other_bodies_are_faults(form: Any, body: bytes) -> None:
    found = form(ChangeOptions()).parse(body)
    assert isinstance(found, NoChange)
    assert (found.kind, found.reason[:10]) == ("fault", "not_change")


def test_wrong_values_and_missing_keys_are_rejected_and_the_others_kept() -> None:
    types = {"id": "int", "n": "int"}
    bodies = [
        canal("INSERT", {"id": "1", "n": "x"}, {"id": "2", "n": "2"}, types=types),
        canal("INSERT", {"id": None, "n": "3"}, types=types),
        canal("INSERT", {"id": "4", "n": "4", "a b": "4"}, types=types),
        canal("INSERT", {"id": "5", "n": "5", "ID": "4"}, types=types),
        canal("INSERT", {"n": "6"}, types={"n": "int"}),
        canal("UPDATE", {"id": "7"}, old=[{}], types=types),
    ]
    found = parsed([(0, offset, body) for offset, body in enumerate(bodies)])
    assert [row["id"] for table in found.streams() for row in table.to_pylist()] == [2]
    assert found.reasons == {
        0: "wrong_type shop.orders.n: 'x' is not int32",
        1: "null_key shop.orders.id: the key has no value",
        2: "bad_column shop.orders: Delta does not allow the name 'a b'",
        3: "bad_column shop.orders: two columns have the name id",
        4: "no_key shop.orders: its messages have no column id",
        5: "partial shop.orders: a row has no column n: set binlog_row_image=FULL",
    }


def test_declared_types_and_keys_override_those_of_messages() -> None:
    options = ChangeOptions(
        keys={"test.t": ("a", "b")}, types={"test.t.c": "decimal(9,2)", "test.t.d": "blob"}
    )
    body = {
        "database": "test", "table": "t", "type": "insert", "ts": 1, "xid": 1,
        "data": {"a": 1, "b": "x", "c": 1.1, "d": "AP8="}, "primary_key_columns": ["a"],
    }  # fmt: skip
    (table,) = parsed([(0, 0, json.dumps(body).encode())], MaxwellFormat(options)).streams()
    row = table.to_pylist()[0]
    assert (row["c"], row["d"]) == (Decimal("1.10"), b"\x00\xff")
    assert json.loads(table.schema.metadata[b"turbopump"])["keys"] == ["a", "b"]


def test_times_without_a_zone_are_in_the_given_one() -> None:
    kind = mysql_type("timestamp")
    texts = ["2026-03-29 01:30:00", "2026-03-29 02:30:00", "0000-00-00 00:00:00"]
    found = convert(texts, kind, "Europe/Berlin")
    assert [str(value) for value in found.array.to_pylist()] == [
        "2026-03-29 00:30:00+00:00",
        "2026-03-29 01:00:00+00:00",
        "None",
    ]
    assert found.zero_dates == 1


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ("int", "bigint", "int64"),
        ("bigint", "tinyint", "int64"),
        ("bigint", "bigint unsigned", "decimal128(20, 0)"),
        ("decimal(10,2)", "int", "decimal128(12, 2)"),
        ("decimal(10,2)", "decimal(8,4)", "decimal128(12, 4)"),
        ("float", "int", "double"),
        ("date", "datetime", "timestamp[us]"),
        ("int", "varchar(9)", "None"),
        ("datetime", "timestamp", "None"),
        (f"decimal({DECIMAL_DIGITS},0)", "decimal(5,5)", "None"),
    ],
)
def test_types_get_wider(old: str, new: str, both: str) -> None:
    assert str(widened(mysql_type(old).arrow, mysql_type(new).arrow)) == both


def named(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": f"io.debezium.{name}"}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (named("int64", "time.MicroTimestamp"), 1, "1970-01-01 00:00:00.000001"),
        (named("int64", "time.NanoTimestamp"), 1999, "1970-01-01 00:00:00.000001"),
        (named("int64", "time.MicroTime"), -3661000001, "-01:01:01.000001"),
        (named("bytes", "data.Bits") | {"parameters": {"length": "12"}}, "AQI=", "513"),
        ({"type": "bytes"}, "AQI=", "b'\\x01\\x02'"),
        ({"type": "boolean"}, True, "True"),
        ({"type": "double"}, Decimal("1.5"), "1.5"),
        (named("string", "data.Json"), '{"a":1}', '{"a":1}'),
        ({"type": "array"}, [1], "[1]"),
    ],
)
def test_types_of_kafka_connect(column: dict[str, Any], value: Any, expected: str) -> None:
    found = convert([value, None], connect_type(column))
    first, second = found.array.to_pylist()
    assert (str(first), second, found.faults) == (expected, None, {})


def test_unknown_types_are_texts() -> None:
    assert mysql_type("uuid") == mysql_type("decimal(65,30)") == mysql_type("(") == TEXT
