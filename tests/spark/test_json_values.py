"""JSON bodies as columns: what the page says, and that nothing else than a value or a reason comes
of any body."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from tests.fuzzing import examples

from turbopump.spark.pipelines.bodies import body_columns, split_bodies
from turbopump.spark.pipelines.body_names import renamed
from turbopump.spark.pipelines.json_values import UNIT_KEY, JsonReader, Misfit
from turbopump.spark.pipelines.lake import DATA, REJECTED, Bodies

PAGE = (Path(__file__).parents[2] / "docs/guide/pipelines.md").read_text("utf-8")
_, _, SECTION = PAGE.partition("### Why a body does not fit")
CODES = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", SECTION, re.M)
OF_A_FIELD = CODES[CODES.index("missing") :]


def kind_of(text: str) -> DataType:
    """A type of Spark's DDL, without Spark."""
    if inner := re.fullmatch(r"array<(.+)>", text):
        return ArrayType(kind_of(inner[1]))
    if inner := re.fullmatch(r"map<string,(.+)>", text):
        return MapType(StringType(), kind_of(inner[1]))
    if inner := re.fullmatch(r"struct<v:(.+)>", text):
        return StructType([StructField("v", kind_of(inner[1]))])
    names = {"int": "integer", "tinyint": "byte", "smallint": "short", "bigint": "long"}
    field = {"name": "v", "type": names.get(text, text), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["v"].dataType


def bodies_of(kind: DataType, unit: str = "s") -> Bodies:
    schema = StructType([StructField("v", kind, True, {UNIT_KEY: unit})])
    return Bodies(kind="json", schema=schema.json())


def archived(bodies: Bodies, *texts: bytes) -> dict[str, pa.Table]:
    rows = {"body": pa.array(texts, pa.binary()), "bodyFault": pa.nulls(len(texts), pa.string())}
    return split_bodies(pa.table(rows), bodies)


def result(bodies: Bodies, body: str) -> str:
    """Return the result in the words of the page."""
    tables = archived(bodies, body.encode())
    if tables[DATA].num_rows:
        (value,) = tables[DATA]["v"].to_pylist()
        return str(value)
    (reason,) = tables[REJECTED]["reason"].to_pylist()
    code, field = re.fullmatch(r"(\w+)(?: (v[^:]*))?: .+", reason).groups()  # type: ignore[union-attr]
    assert (field is not None) == (code in OF_A_FIELD), reason
    return f"`{code}`"


VALUES = re.findall(r"^\| `(\S+)`(?: in `(\w+)`)? \| `(.+)` \| (.+) \|$", SECTION, re.M)
BODIES = re.findall(r"^\| `([^|]+)` \| ([^|]+) \|$", SECTION.partition("an `int`, has,")[2], re.M)


@pytest.mark.parametrize(("kind", "unit", "value", "said"), VALUES)
def test_a_value_becomes_what_the_page_says(kind: str, unit: str, value: str, said: str) -> None:
    bodies = bodies_of(kind_of(kind), unit or "s")
    assert result(bodies, f'{{"v": {value}}}') == said
    assert result(bodies, '{"v": null}') == "None"


@pytest.mark.parametrize(("body", "said"), BODIES)
def test_a_body_becomes_what_the_page_says(body: str, said: str) -> None:
    assert result(bodies_of(kind_of("int")), body) == said


def test_the_page_has_every_code_and_each_is_met() -> None:
    assert len(VALUES) > 40
    assert len(BODIES) > 10
    met = {said.strip("`") for *_, said in (*VALUES, *BODIES) if said.startswith("`")}
    by_hand = {"body_fault", "not_utf8", "not_avro", "missing"}
    assert sorted(met | by_hand) == sorted(CODES)


@pytest.mark.parametrize(
    "body",
    [
        b'{"v": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"v": ' + b"9" * 5000 + b"}",
        b'{"v": 1e' + b"9" * 5000 + b"}",
        b'{"v": 1e-' + b"9" * 25 + b"}",
        b'{"v": 0e' + b"9" * 25 + b"}",
    ],
    ids=["100,000 deep", "900 deep", "5,000 digits", "exponent", "negative exponent", "zero"],
)
@pytest.mark.parametrize("kind", ["string", "double", "decimal(38,18)", "bigint", "timestamp"])
def test_no_size_of_a_value_ends_more_than_its_row(kind: str, body: bytes) -> None:
    tables = archived(bodies_of(kind_of(kind)), body, b'{"v": null}')
    assert tables[DATA].num_rows + tables[REJECTED].num_rows == 2
    assert tables[DATA]["v"].to_pylist()[-1] is None


LEAVES = ["string", "boolean", "tinyint", "bigint", "float", "double", "decimal(6,2)"]
LEAVES += ["date", "timestamp", "timestamp_ntz", "binary"]
KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.builds(
        str.format, st.sampled_from(["array<{}>", "map<string,{}>", "struct<v:{}>"]), inner
    ),
    max_leaves=3,
)
NUMBERS = ["0", "-0", "1795880000000", "1e400", "-1e-400", "1.005", "9" * 30, "253402300800", "NaN"]
TEXTS = ["\\ud83d", "é", "NaN", "1,5", "9999-12-31T23:59:59.999999-01:00", "2026-02-30", "aGk=", ""]
SCALARS = st.one_of(
    st.sampled_from([*NUMBERS, "null", "true", "false", *(f'"{text}"' for text in TEXTS)]),
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.text(max_size=5).map(json.dumps),
    st.datetimes().map(lambda at: json.dumps(at.isoformat())),
    st.dates().map(lambda at: json.dumps(at.isoformat())),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]"),
        inner.map(lambda found: f'{{"v":{found},"\\udc00":{found}}}'),
        inner.map(lambda found: f'{{"v":{found}}}'),
    ),
    max_leaves=6,
)
ANY_BODY = st.one_of(
    st.binary(max_size=20),
    JSON.map(str.encode),
    JSON.map(lambda found: f'{{"v":{found}}}'.encode()),
    JSON.map(lambda found: f'{{"v":{found}}}{found}'.encode()),
)


@examples(400)
@given(KINDS, st.lists(ANY_BODY, min_size=1, max_size=4), st.sampled_from(["s", "ms", "us"]))
def test_every_body_is_a_row_that_python_shows_or_has_a_reason(
    kind: str, texts: list[bytes], unit: str
) -> None:
    bodies = bodies_of(kind_of(kind), unit)
    tables = archived(bodies, *texts)
    (column,) = body_columns(bodies)
    assert tables[DATA].schema.field("v") == column
    tables[DATA].validate(full=True)
    assert tables[DATA].num_rows + tables[REJECTED].num_rows == len(texts)
    tables[DATA].to_pylist()
    for reason in tables[REJECTED]["reason"].to_pylist():
        code = re.match(r"\w+", reason)
        assert code is not None
        assert code[0] in CODES
    # A row has the value that the whole batch gave it.
    for body in texts:
        try:
            JsonReader(StructType.fromJson(json.loads(bodies.schema))).row(body)
        except Misfit:
            assert body in tables[REJECTED]["body"].to_pylist()
        else:
            assert body in tables[DATA]["body"].to_pylist()


@examples(200)
@given(st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.datetimes())
def test_what_python_and_spark_write_is_read_as_it_was(
    number: float, whole: int, text: str, at: datetime
) -> None:
    names = {"d": "double", "n": "bigint", "s": "string", "t": "timestamp", "l": "timestamp_ntz"}
    schema = StructType([StructField(name, kind_of(kind)) for name, kind in names.items()])
    bodies = Bodies(kind="json", schema=schema.json())
    body = {"d": number, "n": whole, "s": text, "t": f"{at.isoformat()}Z", "l": str(at)}
    good = archived(bodies, json.dumps(body).encode())[DATA]
    (row,) = good.drop_columns(["body", "bodyFault"]).to_pylist()
    assert row["d"] == number or (math.isnan(number) and math.isnan(row["d"]))
    assert (row["n"], row["s"], row["t"], row["l"]) == (whole, text, at.replace(tzinfo=UTC), at)


def test_a_field_may_have_the_name_of_a_column_that_the_lake_has_not() -> None:
    schema = StructType([StructField("bodyFault", StringType())])
    bodies = Bodies(kind="json", schema=schema.json())
    rows = {"body": pa.array([b'{"bodyFault": "mine"}', b"zip"]), "bodyFault": [None, "theirs"]}
    tables = split_bodies(pa.table(rows), bodies)
    tables[DATA] = renamed(tables[DATA], body_columns(bodies), bodies)
    assert tables[DATA]["bodyFault"].to_pylist() == ["mine"]
    assert tables[REJECTED]["reason"].to_pylist() == ["body_fault: theirs"]


def test_a_date_is_a_day_before_1970_too() -> None:
    good = archived(bodies_of(DateType()), b'{"v": "0001-01-01"}', b'{"v": "9999-12-31"}')[DATA]
    assert good["v"].to_pylist() == [date.min, date.max]
