"""Names of the columns that bodies become, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from tests.spark.lake_batches import AVRO, BATCH_ROWS, COLUMNS, QUEUES, append_next, definition

from turbopump.errors import ConfigError
from turbopump.spark import archive
from turbopump.spark.pipelines.bodies import avro_bodies
from turbopump.spark.pipelines.body_names import without_names
from turbopump.spark.pipelines.lake import (
    DATA,
    Bodies,
    create_or_open,
    definition_at,
    no_step,
    open_lake,
)
from turbopump.spark.pipelines.writing import check_names


@pytest.mark.parametrize(
    ("ddl", "plain", "names"),
    [
        ("n int, carrier string not null", "n int, carrier string not null", {}),
        ("date AS day date, n int", "date date,  n int", {"date": "day"}),
        ("date  as\tday\ndate", "date date", {"date": "day"}),
        ("n int, as string", "n int, as string", {}),
        ("as as was string", "as string", {"as": "was"}),
        (
            "who struct<as: int, b: map<string, int>>, d decimal(6, 2), x AS y array<int>",
            "who struct<as: int, b: map<string, int>>,  d decimal(6, 2), x array<int>",
            {"x": "y"},
        ),
        (
            "`a, b` AS `c ``AS` d` int COMMENT 'x, y AS z string', n int",
            "`a, b` int COMMENT 'x, y AS z string',  n int",
            {"a, b": "c `AS` d"},
        ),
    ],
)
def test_a_schema_says_the_names_of_columns(ddl: str, plain: str, names: dict[str, str]) -> None:
    ddl = ddl.replace("``AS` d`", "``AS`` d`")
    found, said = without_names(ddl)
    assert (" ".join(found.split()), said) == (" ".join(plain.split()), names)


def lake_of(root: Path, format_name: str, bodies: Bodies) -> Path:
    wanted = msgspec.structs.replace(definition(format_name), bodies=bodies)
    lake = create_or_open(root, wanted)
    with lake.writing():
        append_next(lake, lake.snapshot(), no_step)
        lake.compact(files_min=2, size_target=1 << 20)
    return root


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
@pytest.mark.parametrize(
    ("given", "asked"),
    [({"prefix": "body_"}, "body_n"), ({"struct": "Fields"}, '"Fields".n'), ({}, "n")],
)
def test_columns_of_bodies_have_a_prefix_or_are_within_a_struct(
    tmp_path: Path, format_name: str, given: dict[str, str], asked: str
) -> None:
    bodies = avro_bodies(AVRO, **given)
    table = archive.dataset(lake_of(tmp_path / "lake", format_name, bodies))
    found = duckdb.from_arrow(table).aggregate(f"count({asked}), sum({asked} - queueOffset)")
    fitting = sum(1 for at in range(BATCH_ROWS) if at % 7)
    assert found.fetchall() == [(fitting * len(QUEUES), 0)]
    there = definition_at(tmp_path / "lake")
    assert there is not None
    assert (there.bodies, there.v) == (bodies, 2 if given else 1)
    snapshot = open_lake(tmp_path / "lake").snapshot()
    assert snapshot.rows() == snapshot.messages


@pytest.mark.parametrize("given", [{"prefix": "p_"}, {"struct": "fields"}])
@pytest.mark.parametrize("field", [*COLUMNS, "date", "hour", "bodyFault", "queueGeneration"])
def test_a_field_with_the_name_of_a_message_column_leaves_that_column_alone(
    tmp_path: Path, field: str, given: dict[str, str]
) -> None:
    bodies = avro_bodies(AVRO.replace('"n"', f'"{field}"'), **given)
    plain = archive.dataset(lake_of(tmp_path / "plain", "parquet", avro_bodies(AVRO)))
    found = archive.dataset(lake_of(tmp_path / "lake", "parquet", bodies))
    order = [("brokerName", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]
    own = [name for name in COLUMNS if name in found.schema.names]
    wanted = plain.to_table().sort_by(order)
    rows = found.to_table().sort_by(order)
    assert rows.select(own) == wanted.select(own)
    values = rows["fields"].to_pylist() if "struct" in given else rows[f"p_{field}"].to_pylist()
    numbers = [each[field] for each in values] if "struct" in given else values
    assert numbers == wanted["n"].to_pylist()


TAKEN = ("topic", "date", "hour", "Tags", "queueGeneration", "n")


@pytest.mark.parametrize("field", TAKEN)
def test_a_field_with_the_name_of_a_column_needs_another(field: str) -> None:
    schema: dict[str, Any] = {"type": "record", "name": "R"}
    schema["fields"] = [{"name": name, "type": "int"} for name in ("n", field)]
    text = msgspec.json.encode({**schema, "fields": schema["fields"][field == "n" :]}).decode()
    columns = (*definition("parquet").columns, "tags")

    def check(**given: str) -> None:
        bodies = avro_bodies(text, **given)
        check_names(msgspec.structs.replace(definition("parquet"), columns=columns, bodies=bodies))

    if field != "n":
        with pytest.raises(ConfigError, match=f"columns {field}, .*--body-prefix or --body-struct"):
            check()
    check(prefix="p_")
    check(struct="fields")
    with pytest.raises(ConfigError, match="columns date, which messages have"):
        check(struct="date")
    with pytest.raises(ConfigError, match="a prefix and a struct exclude each other"):
        check(prefix="p_", struct="s")


@pytest.mark.parametrize("kind", ["{}", '{{"type":"array","items":{}}}'])
def test_a_field_that_no_file_can_hold_is_refused_before_there_is_a_lake(kind: str) -> None:
    empty = kind.format('{"type":"record","name":"E","fields":[]}')
    bodies = avro_bodies(AVRO.replace('"long"', empty))
    with pytest.raises(ConfigError, match=r"the field n .*cannot be written.* no child field"):
        check_names(msgspec.structs.replace(definition("parquet"), bodies=bodies))


def test_a_lake_without_such_names_is_described_as_before(tmp_path: Path) -> None:
    """Releases before this one read the lake, and refuse a newer one."""
    lake_of(tmp_path / "lake", "parquet", avro_bodies(AVRO))
    text = (tmp_path / "lake/_lake.json").read_bytes()
    assert msgspec.json.decode(text)["v"] == 1
    assert msgspec.json.decode(text)["bodies"].keys() == {"kind", "schema"}
    assert archive.files(tmp_path / "lake", DATA)
