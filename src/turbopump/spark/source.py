"""Entry points of Spark's data sources, ``format("rocketmq")`` and ``format("rocketmqCommitlog")``.

They check the options before Spark plans a query, and set the schema. This module is fast to
import, because Spark imports it in every session on the machine; the rest is imported on use. It
has no connections or threads, because Spark pickles it into each process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from turbopump.errors import ConfigError, TurbopumpError
from turbopump.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

    from turbopump.spark.batch import BatchReader
    from turbopump.spark.commitlog import CommitLogReader
    from turbopump.spark.options import ReadOptions
    from turbopump.spark.sink import BatchWriter, StreamWriter
    from turbopump.spark.write_options import Layout, WriteOptions


_READ_ONLY: Final = (
    'format("rocketmqCommitlog") reads the files of a log, in batches. To write, send to a topic '
    'with format("rocketmq"); to follow a log that grows, read its topics with '
    'readStream.format("rocketmq")'
)


class RocketMQDataSource(DataSource):
    """Spark data source for RocketMQ topics. It reads and writes messages as rows.

    docs/guide/spark.md describes the options and columns. Raises ConfigError for an invalid option.
    """

    partitions_max_default: ClassVar[int | None] = None
    """Default of the option ``maxPartitions``, or None for one task per queue.
    ``session.rocketmq_session`` sets this."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @plain_errors
    def schema(self) -> StructType:
        from turbopump.spark.options import arrow_schema, read_options

        return _struct(arrow_schema(read_options(self.options).columns))

    @plain_errors
    def reader(self, schema: StructType) -> BatchReader:
        from turbopump.spark.batch import BatchReader, PushingBatchReader

        options = self._checked_options(schema)
        return PushingBatchReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from turbopump.spark.stream import RefusedStream, StreamReader

        try:
            return StreamReader(self._checked_options(schema))
        except TurbopumpError as error:
            return RefusedStream(error)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from turbopump.spark.sink import BatchWriter

        return BatchWriter(*self._write_plan(schema, overwrite))

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from turbopump.spark.sink import StreamWriter

        return StreamWriter(*self._write_plan(schema, overwrite))

    def _write_plan(self, schema: StructType, overwrite: bool) -> tuple[WriteOptions, Layout]:
        """Return the options and the column layout of a write."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from turbopump.spark.sink import refuse_overwrite
        from turbopump.spark.write_options import layout, write_options

        if overwrite:
            raise refuse_overwrite()
        options = write_options(self.options)
        return options, layout(to_arrow_schema(schema, timezone="UTC"), options)

    def _checked_options(self, schema: StructType) -> ReadOptions:
        """Return the options of a read. Their columns are those of the given schema.

        If the user has called ``.schema(...)``, these are the user's columns. Raises ConfigError if
        they contradict the option ``columns``.
        """
        from turbopump.spark.options import arrow_schema, column_names, read_options

        options = read_options(self.options)
        columns = column_names(",".join(schema.names))
        _check_schema(schema, arrow_schema(columns))
        if "columns" in self.options and columns != options.columns:
            raise ConfigError(
                f"the given schema has the columns {', '.join(columns)}, but the option "
                f"columns has {', '.join(options.columns)}: remove one of them"
            )
        return replace(
            options,
            columns=columns,
            partitions_max=options.partitions_max or self.partitions_max_default,
        )


class CommitLogDataSource(DataSource):
    """Spark data source for the files of a CommitLog. It reads entries as rows.

    docs/guide/spark-commitlog.md describes the options and columns. Raises ConfigError for an
    invalid option.
    """

    partitions_default: ClassVar[int] = 1
    """Minimum number of tasks for a log of some MiB. ``session.rocketmq_session`` sets this."""

    @classmethod
    def name(cls) -> str:
        return "rocketmqCommitlog"

    @plain_errors
    def schema(self) -> StructType:
        from turbopump.spark.commitlog import log_options, log_schema

        return _struct(log_schema(log_options(self.options).columns))

    @plain_errors
    def reader(self, schema: StructType) -> CommitLogReader:
        from turbopump.spark.commitlog import (
            CommitLogReader,
            log_column_names,
            log_options,
            log_schema,
        )

        options = log_options(self.options)
        wanted = log_schema(log_column_names(",".join(schema.names)))
        _check_schema(schema, wanted)
        return CommitLogReader(options, wanted, self.partitions_default)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError(_READ_ONLY)

    streamWriter = writer  # noqa: N815

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from turbopump.spark.stream import RefusedStream

        return RefusedStream(ConfigError(_READ_ONLY))


_COMPARED: Final = ("name", "dataType", "nullable")


def _check_schema(given: StructType, offered: pa.Schema) -> None:
    """Raise ConfigError if the given schema differs from the schema of the source.

    Spark requires batches to match the given schema exactly.
    """
    for wanted, there in zip(given.fields, _struct(offered).fields, strict=True):
        # metadata, such as a comment, may differ
        if any(getattr(wanted, part) != getattr(there, part) for part in _COMPARED):
            raise ConfigError(
                f"the given schema has {_field_text(wanted)}, but the source has "
                f"{_field_text(there)}"
            )


def _field_text(field: StructField) -> str:
    return f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"


def _struct(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
