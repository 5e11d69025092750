"""Readers of the lakes that `turbopump pipeline archive` writes, with and without Spark.

The list of files comes from the table, never from a listing of its folder. Formats are unknown
here: ``turbopump.spark.pipelines.lake`` opens them.
"""

from __future__ import annotations

from datetime import date
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from turbopump.errors import ConfigError, LakeError
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines.lake import (
    DATA,
    REJECTED,
    STATE,
    TABLES,
    DataFile,
    Lake,
    Snapshot,
    open_lake,
)
from turbopump.spark.pipelines.writing import PARTITIONS, data_schema, rejected_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["dataset", "files", "offsets", "rows", "table_schema"]


def files(lake: str | Path, table: str = DATA) -> list[str]:
    """List the Parquet files of a table in a lake. Return the paths of the newest version.

    ``table`` is ``data`` or ``_rejected``. Compaction replaces files, so call this function again
    for each read. Raises LakeError if there is no lake.
    """
    return [str(path) for path in open_lake(Path(lake)).paths(_checked_table(table))]


def offsets(lake: str | Path) -> Offsets:
    """For each queue, return the offset of the first message that is not in the lake.

    Raises LakeError if there is no lake.
    """
    ranges = open_lake(Path(lake)).snapshot().ranges
    return {queue: archived.end for queue, archived in ranges.items()}


def dataset(lake: str | Path, table: str = DATA) -> ds.Dataset:
    """Open a table of a lake as an Arrow dataset, for pyarrow, pandas, Polars or DuckDB.

    DuckDB reads the dataset with ``duckdb.from_arrow``. The dataset has the columns of the files,
    and ``topic``, ``date`` and ``hour``. Raises LakeError if there is no lake.
    """
    opened = _opened(lake, table)
    snapshot = opened.snapshot()
    found = [each for each in snapshot.files if each.table == _checked_table(table)]
    return ds.FileSystemDataset.from_paths(
        [_path_of(opened, each) for each in found],
        schema=table_schema(opened, table, snapshot),
        format=ds.ParquetFileFormat(),
        filesystem=LocalFileSystem(),
        partitions=[
            (ds.field("topic") == each.topic)
            & (ds.field("date") == pa.scalar(date.fromisoformat(each.date)))
            & (ds.field("hour") == pa.scalar(each.hour, pa.int32()))
            for each in found
        ],
    )


def rows(spark: SparkSession, lake: str | Path, table: str = DATA) -> DataFrame:
    """Open a table of a lake as a Spark DataFrame.

    Raises LakeError if there is no lake.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    opened = _opened(lake, table)
    snapshot = opened.snapshot()
    found = [each for each in snapshot.files if each.table == _checked_table(table)]
    schema = from_arrow_schema(table_schema(opened, table, snapshot))
    inner = StructType([each for each in schema if each.name not in PARTITIONS.names])
    inside = {each: _path_of(opened, each) for each in found}
    placed = [path for each, path in inside.items() if path == str(opened.root / each.path)]
    columns = [quoted(name) for name in schema.names]
    frame = spark.createDataFrame([], schema)
    if placed:
        reader = spark.read.schema(schema).option("basePath", str(opened.root / table))
        frame = reader.parquet(*placed)
    # Files of the last commit may still be in the staging folder, also after a killed writer.
    staged = [
        spark.read.schema(inner)
        .parquet(path)
        .withColumn("topic", lit(each.topic))
        .withColumn("date", lit(each.date).cast("date"))
        .withColumn("hour", lit(each.hour))
        .select(*columns)
        for each, path in inside.items()
        if path not in placed
    ]
    return reduce(lambda one, other: one.union(other), [frame.select(*columns), *staged])


def quoted(name: str) -> str:
    """Quote the name of a column or table. Spark splits an unquoted name at its dots."""
    return f"`{name.replace('`', '``')}`"


def table_schema(lake: Lake, table: str = DATA, snapshot: Snapshot | None = None) -> pa.Schema:
    """Return the columns of a table of a lake.

    ``snapshot`` is the version of the lake; None means the newest version. The columns of the
    partitions are at the end.
    """
    restarted = bool((snapshot or lake.snapshot()).generations)
    make = data_schema if table == DATA else rejected_schema
    return pa.schema([*make(lake.definition, restarted=restarted), *PARTITIONS])


def _opened(lake: str | Path, table: str) -> Lake:
    opened = open_lake(Path(lake))
    if opened.definition.format == STATE and table == DATA:
        raise LakeError(
            f"{lake} has one Delta table for each source table: open it by its path, such as "
            f"DeltaTable('{lake}/DATABASE/TABLE')"
        )
    return opened


def _path_of(lake: Lake, file: DataFile) -> str:
    """Return the path of a committed data file. Until a writer moves the file, it is in the
    staging folder."""
    placed, staged = lake.root / file.path, lake.staging / file.name
    return str(staged if staged.exists() and not placed.exists() else placed)


def _checked_table(table: str) -> str:
    if table not in TABLES:
        raise ConfigError(f"a lake has no table {table!r}: use {DATA} or {REJECTED}")
    return table
