"""``format("rocketmq")``: what Spark asks first. Options are checked here, before anything is
planned, and the schema is settled.

The one rule: light to import (Spark looks at it in every session on the machine), so the rest is
imported when it is used. It must not hold anything that lives: Spark pickles it into each process
that needs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

from turbopump.errors import ConfigError
from turbopump.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from turbopump.spark.options import ReadOptions
    from turbopump.spark.reader import BatchReader
    from turbopump.spark.sink import BatchWriter, StreamWriter
    from turbopump.spark.stream import StreamReader
    from turbopump.spark.write_options import Layout, WriteOptions


class RocketMQDataSource(DataSource):
    """RocketMQ topics as rows. Options and columns: docs/guide/spark.md. A wrong option is a
    ConfigError in one sentence."""

    partitions_max_default: ClassVar[int | None] = None
    """What ``maxPartitions`` is when not given; None is one task per queue.
    ``session.rocketmq_session`` sets it."""
    filter_pushdown_default: ClassVar[bool] = False
    """Whether the session pushes filters down. ``session.rocketmq_session`` sets it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @plain_errors
    def schema(self) -> StructType:
        from turbopump.spark.options import read_options

        return _struct(read_options(self.options).columns)

    @plain_errors
    def reader(self, schema: StructType) -> BatchReader:
        from turbopump.spark.reader import BatchReader, PushingBatchReader

        options = self._settled(schema)
        pushes = options.filter_pushdown
        if pushes is None:
            pushes = self.filter_pushdown_default
        return PushingBatchReader(options) if pushes else BatchReader(options)

    @plain_errors
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from turbopump.spark.stream import StreamReader

        return StreamReader(self._settled(schema))

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from turbopump.spark.sink import BatchWriter

        return BatchWriter(*self._write_plan(schema, overwrite))

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from turbopump.spark.sink import StreamWriter

        return StreamWriter(*self._write_plan(schema, overwrite))

    def _write_plan(self, schema: StructType, overwrite: bool) -> tuple[WriteOptions, Layout]:
        """The options of a write, and what its columns mean."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from turbopump.spark.sink import refuse_overwrite
        from turbopump.spark.write_options import layout, write_options

        if overwrite:
            raise refuse_overwrite()
        options = write_options(self.options)
        return options, layout(to_arrow_schema(schema, timezone="UTC"), options)

    def _settled(self, schema: StructType) -> ReadOptions:
        """The options, with the columns that the query wants: those of ``.schema(...)`` where it
        was given."""
        from turbopump.spark.options import column_names, read_options

        options = read_options(self.options)
        columns = column_names(",".join(schema.names))
        for wanted, offered in zip(schema.fields, _struct(columns).fields, strict=True):
            if wanted != offered:  # Spark compares batches with the schema to the letter
                raise ConfigError(
                    f"the given schema says {_said(wanted)}, but there is {_said(offered)}"
                )
        return replace(
            options,
            columns=columns,
            partitions_max=options.partitions_max or self.partitions_max_default,
        )


def _said(field: StructField) -> str:
    return f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"


def _struct(columns: tuple[str, ...]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    from turbopump.spark.options import arrow_schema

    return from_arrow_schema(arrow_schema(columns))
