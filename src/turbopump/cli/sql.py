"""`turbopump sql "select …"`: a SQL query over topics and lakes. The answer is a table, JSON lines,
YAML, CSV or a Parquet file.

Rows are written as they arrive; only a table for people is cut. The origin of tables is unknown
here.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump.cli.frame import RowStream, name_server_option, output_option
from turbopump.cli.pipeline import master_option, source_option
from turbopump.errors import ConfigError
from turbopump.plural import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CELL_WIDTH_MAX: Final = 60


@click.command(name="sql")
@click.argument("text", metavar="QUERY")
@name_server_option
@click.option(
    "--lake",
    "lakes",
    metavar="[NAME=]DIR",
    multiple=True,
    help="A lake as the table NAME; more than once.  [default: the name lake]",
)
@click.option(
    "--parquet",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the answer into a Parquet file.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=100, help="Rows of a table that are shown."
)
@source_option
@output_option("Form of the answer; json is one row on each line.")
@master_option
def command(
    text: str,
    namesrv: list[str],
    lakes: tuple[str, ...],
    output: str,
    parquet: Path | None,
    limit: int,
    options: dict[str, str],
    master: str | None,
) -> None:
    """Run a query over topics and lakes: "select tags, count(*) from flights group by tags".

    A table is a lake, or a topic, read from its beginning to its current end. Write a name with a
    hyphen in backticks. Times are UTC.
    """
    if output != "table" and parquet is not None:
        raise click.UsageError("the answer has one form: give --output or --parquet")
    if parquet is not None and not parquet.parent.is_dir():
        raise click.UsageError(
            f"--parquet {parquet}: the directory {parquet.parent} does not exist"
        )
    _check_is_query(text)
    named = dict(_named_lake(lake) for lake in lakes)

    from turbopump.spark.pipelines.lake import lake_place

    for place in named.values():
        lake_place(place)

    from turbopump.spark.pipelines import query
    from turbopump.spark.pipelines.running import command_session

    with command_session("turbopump sql", master) as spark:
        rows = query(text, name_server=";".join(namesrv), lakes=named, spark=spark, options=options)
        if parquet is not None or output in ("json", "yaml"):
            _check_names(rows.columns)
        if parquet is not None:
            click.echo(f"{_write_parquet(rows, parquet):,} rows in {parquet}")
            return
        rows = _in_utc(rows)
        try:
            if output != "table":
                _write_rows(rows, output)
                return
            for line in table_lines(rows.columns, map(tuple, rows.take(limit + 1)), limit):
                click.echo(line)
        except (ValueError, OverflowError) as error:
            if not re.search(r"\byear\b|date value out of range", str(error)):
                raise
            raise ConfigError(
                f"a time of the answer is outside of the years 1 to 9999 ({error}): ask for it as "
                "text, by cast(NAME as string)"
            ) from None


_QUERIES: Final = ("select", "with", "from", "values", "table")
_QUOTED: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.S
)
_CHANGES: Final = re.compile(
    r"\b(insert\s+(?:into|overwrite)|merge\s+into|delete\s+from|update\s+\S+\s+set)\b", re.I
)
"""Statements that change tables and may follow WITH and FROM."""


def _check_is_query(text: str) -> None:
    """Raise UsageError if a SQL statement is not a query.

    Spark would execute such a statement.
    """
    plain = _QUOTED.sub(" ", text)
    words = re.findall(r"\w+", plain) or [""]
    change = _CHANGES.search(plain)
    refused = None
    if change is not None:
        refused = change[0]
    elif words[0].lower() not in _QUERIES:
        refused = words[0]
    if refused is not None:
        raise click.UsageError(
            f"{refused.upper() or 'an empty text'} is not a query: a query begins with "
            f"{', '.join(_QUERIES).upper()}, and changes nothing"
        )


def _check_names(names: list[str]) -> None:
    """Raise ConfigError if two columns of an answer have the same name.

    A reader would see only one of them.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"the answer has two columns {twice[0]!r}: rename one with AS")


def _in_utc(rows: DataFrame) -> DataFrame:
    """Return the rows with times in UTC, the time zone of the Spark session.

    Without this, Python would use the time zone of the machine.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.types import StructType

    wanted = StructType.fromJson(
        json.loads(_TIMESTAMP.sub(r'\1"timestamp_ntz"', rows.schema.json()))
    )
    if wanted == rows.schema:
        return rows
    numbered = [f"c{number}" for number in range(len(wanted))]  # two columns may have the same name
    return rows.toDF(*numbered).select(
        [
            col(number).cast(field.dataType).alias(field.name)
            for number, field in zip(numbered, wanted, strict=True)
        ]
    )


_TIMESTAMP: Final = re.compile(r'("(?:type|elementType|keyType|valueType)":)"timestamp"')
"""Pattern of a timestamp type in the JSON of a schema. A quote in a column name is escaped
there."""


def table_lines(names: list[str], rows: Iterator[tuple[Any, ...]], limit: int) -> Iterator[str]:
    """Yield rows as a text table, line by line. The table has at most ``limit`` rows.

    Columns are as wide as necessary, and numbers are aligned right. The last line has the number of
    rows, or says that there are more.
    """
    values = list(islice(rows, limit))
    more = next(rows, None) is not None
    cells = [[_cell(value) for value in row] for row in values]
    widths = [max(map(len, column), default=0) for column in zip(names, *cells, strict=True)]
    right = [
        bool(values) and all(isinstance(row[at], int | float | Decimal | None) for row in values)
        for at in range(len(names))
    ]

    def line(texts: list[str]) -> str:
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(texts, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    yield line(names)
    yield "  ".join("-" * width for width in widths)
    yield from map(line, cells)
    if more:
        yield f"the first {limit} rows; --limit N shows more"
    else:
        yield counted(len(values), "row")


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def json_value(value: Any) -> Any:
    """Convert a value of a Spark row to a JSON value.

    Bytes become text, or base64 if they are not text. Times become ISO 8601. Numbers that JSON
    lacks become text, as in Spark's ``to_json``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE.get(value, "NaN")
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: json_value(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(json_value(name)): json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return value


def _cell(value: Any) -> str:
    found = json_value(value)
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= CELL_WIDTH_MAX else f"{text[: CELL_WIDTH_MAX - 1]}…"


def _write_rows(rows: DataFrame, output: str) -> None:
    if output == "csv":
        _write_csv(rows)
        return
    names = rows.columns
    stream = RowStream(output, ())
    for row in rows.toLocalIterator():
        stream.write(dict(zip(names, map(json_value, tuple(row)), strict=True)))


def _write_csv(rows: DataFrame) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(rows.columns)
    for row in rows.toLocalIterator():
        values = map(json_value, tuple(row))
        out.writerow(
            [json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in values]
        )


def _write_parquet(rows: DataFrame, path: Path) -> int:
    """Write rows to a Parquet file, and return their number.

    After an error, there is no new file.
    """
    import pyarrow.parquet as pq

    found = rows.toArrow()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(found, draft, compression="zstd")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return int(found.num_rows)


def _named_lake(text: str) -> tuple[str, str]:
    """Parse the option ``--lake``. Return the name and the directory of the lake.

    The option is ``NAME=DIR``, or ``DIR`` for a lake with the name ``lake``. Raises UsageError if
    the option is invalid.
    """
    name, equals, directory = text.partition("=")
    if not equals:
        return "lake", text
    if not (name and directory):
        raise click.UsageError(f"--lake {text}: expected NAME=DIR")
    return name, directory
