"""Work of an executor: writing messages into staged Parquet files.

There is one file for each topic and hour. Staged files do not count until the driver commits them,
so a task may run twice or be killed. Each file has a unique name, and is durable before it is
reported. The lake's state is unknown here, and so is Spark beyond the batches of ``mapInArrow``.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turbopump.errors import ConfigError, PipelineError
from turbopump.message.message import MessageQueue
from turbopump.spark.options import ReadOptions, arrow_schema, column_names
from turbopump.spark.pipelines.bodies import body_columns, split_bodies
from turbopump.spark.pipelines.body_names import named_columns, renamed
from turbopump.spark.pipelines.lake import DATA, GENERATION, REJECTED, Bodies, DataFile, Definition
from turbopump.spark.plain_errors import hidden_traceback
from turbopump.spark.reading import RangesPartition, keep_what_is_loaded, read_partition

NEEDED_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
"""Columns that every table needs, for its partitions and to identify a row."""

PARTITIONS: Final = pa.schema([("topic", pa.string()), ("date", pa.date32()), ("hour", pa.int32())])
"""Columns whose values are in the path of a file, not in the file."""

REPORT_COLUMN: Final = "file"
GROUP_ROWS: Final = 131_072
GROUP_SIZE: Final = 64 << 20
"""Bytes at which a row group is written; ``GROUP_ROWS`` rows is the other limit."""
OPEN_FILES_MAX: Final = 32

_HOUR_US: Final = 3_600_000_000


class QueueRows(msgspec.Struct, frozen=True):
    """Rows of one queue that a task has written: their number, the first and the last offset."""

    topic: str
    broker_name: str
    queue_id: int
    rows: int
    offset_min: int
    offset_max: int


TaskWriting = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function for ``mapInArrow``: write messages, and yield the ``TaskReport`` as JSON."""


class TaskReport(msgspec.Struct, frozen=True):
    """Report of a task: the written files, and the rows of each queue."""

    files: list[DataFile]
    queues: list[QueueRows]
    counts: dict[str, int] = {}
    """Further counts of the pipeline, by name."""
    notes: list[str] = []
    """Events in the messages that a person should know of."""


def checked_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Check the columns for the table of an archive. Return them in the spelling of the source.

    Raises ConfigError if a needed column is missing.
    """
    named = column_names(",".join(columns))
    absent = [name for name in NEEDED_COLUMNS if name not in named]
    if absent:
        raise ConfigError(f"the columns of an archive must have {', '.join(absent)} as well")
    return named


def data_schema(definition: Definition, *, restarted: bool = False) -> pa.Schema:
    """Return the columns of the files of the table ``data``.

    The partition columns ``topic``, ``date`` and ``hour`` are not in the files. ``restarted`` adds
    the column ``queueGeneration``.
    """
    fields = [field for field in arrow_schema(definition.columns) if field.name != "topic"]
    bodies = definition.bodies
    if bodies is not None:
        fields = [field for field in fields if bodies.kept or field.name != "body"]
        fields += named_columns(body_columns(bodies), bodies)
    return pa.schema([*fields, *_GENERATION_FIELDS[:restarted]])


_GENERATION_FIELDS: Final = (pa.field(GENERATION, pa.int32()),)


def check_names(definition: Definition) -> None:
    """Raise ConfigError for a table with two columns of one name, or with an unsupported type.

    The case of names is ignored, as in Spark and Delta. A struct without fields is an example of
    such a type.
    """
    if definition.bodies is None:
        return
    for column in body_columns(definition.bodies):
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])).close()
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"the field {column.name} of the bodies' schema cannot be written: {error}"
            ) from None
    taken = {name.lower() for name in (*PARTITIONS.names, *definition.columns, GENERATION)}
    added = [
        field.name for field in named_columns(body_columns(definition.bodies), definition.bodies)
    ]
    clash = sorted(name for name in added if name.lower() in taken)
    if clash:
        raise ConfigError(
            f"the bodies' schema has the columns {', '.join(clash)}, which messages have as well: "
            "give --body-prefix or --body-struct (prefix, struct), or another name in the schema, "
            f"such as `{clash[0]} AS body_{clash[0]} string`"
        )
    for name in added:
        alike = [each for each in added if each.lower() == name.lower()]
        if len(alike) > 1:
            raise ConfigError(f"the bodies' schema has the column {alike[0]} twice: {alike}")


def rejected_schema(definition: Definition, *, restarted: bool = False) -> pa.Schema:
    """Return the columns of the files of the table ``_rejected``.

    ``restarted`` adds the column ``queueGeneration``.
    """
    fields = [field for field in arrow_schema(definition.columns) if field.name != "topic"]
    return pa.schema([*fields, pa.field("reason", pa.string()), *_GENERATION_FIELDS[:restarted]])


@dataclass(frozen=True)
class FileWriting:
    """Function for ``mapInArrow``: write messages into staged files.

    - ``staging``: a path that is the same for executors and driver.
    - ``stem``: first part of the files' names.
    - ``generations``: generations of the lake's restarted queues.
    """

    staging: str
    stem: str
    definition: Definition
    generations: dict[MessageQueue, int] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write record batches into files. Yield the report of the task as a single row.

        The row is a ``TaskReport`` as JSON.
        """
        keep_what_is_loaded()
        with hidden_traceback():
            report = self.write(batches)
            text = msgspec.json.encode(report).decode()
            yield pa.RecordBatch.from_pylist([{REPORT_COLUMN: text}])

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write record batches into files. Return the report of the task.

        Raises PipelineError if the disk fails.
        """
        try:
            return self._write(batches)
        except OSError as error:
            raise PipelineError(
                f"{self.staging} cannot be written: {error.strerror or error}. Nothing of this "
                "batch was committed; start the command again once it can be"
            ) from None

    def _write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        restarted = bool(self.generations)
        schemas = {DATA: data_schema(self.definition, restarted=restarted)}
        if self.definition.bodies is not None:
            schemas[REJECTED] = rejected_schema(self.definition, restarted=restarted)
        done: list[DataFile] = []
        opened: dict[tuple[str, str, int], OpenFile] = {}
        counted: dict[tuple[str, str, int], QueueRows] = {}
        try:
            for batch in batches:
                for topic, hour, rows in split_by_hour(pa.Table.from_batches([batch])):
                    count_rows(counted, topic, rows)
                    for table, fitting in self._tables(topic, rows, schemas):
                        key = table, topic, hour
                        if key not in opened:
                            if len(opened) >= OPEN_FILES_MAX:
                                oldest = next(iter(opened))
                                done.append(opened[oldest].close())
                                del opened[oldest]
                            opened[key] = self._open(*key, schemas[table])
                        opened[key].write(fitting)
            done += [file.close() for file in opened.values()]
            opened.clear()
        finally:
            for file in opened.values():
                file.drop()
        return TaskReport(done, list(counted.values()))

    def _tables(
        self, topic: str, rows: pa.Table, schemas: dict[str, Any]
    ) -> Iterator[tuple[str, pa.Table]]:
        """For each table of the lake, yield rows of a topic.

        The table ``data`` gets the rows whose body fits the schema. The table ``_rejected`` gets
        the others.
        """
        bodies: Bodies | None = self.definition.bodies
        tables = {DATA: rows}
        if bodies is not None:
            tables = split_bodies(rows, bodies)
            tables[DATA] = renamed(tables[DATA], body_columns(bodies), bodies)
        for table, found in tables.items():
            if found.num_rows:
                if self.generations:
                    column = generation_of(topic, found, self.generations)
                    found = found.append_column(GENERATION, column)
                yield table, found.select(schemas[table].names).cast(schemas[table])

    def _open(self, table: str, topic: str, hour: int, schema: pa.Schema) -> OpenFile:
        name = f"{self.stem}-{uuid.uuid4().hex}.parquet"
        return OpenFile(Path(self.staging) / name, table, topic, hour, schema)


def generation_of(topic: str, rows: pa.Table, generations: Mapping[MessageQueue, int]) -> Any:
    """Return the column ``queueGeneration`` for the rows of a topic."""
    found = pa.nulls(rows.num_rows, pa.int32())
    for queue, generation in generations.items():
        if queue.topic == topic:
            is_of_queue = pc.and_(
                pc.equal(rows["brokerName"], pa.scalar(queue.broker_name)),
                pc.equal(rows["queueId"], queue.queue_id),
            )
            found = pc.if_else(is_of_queue, pa.scalar(generation, pa.int32()), found)
    return found


@dataclass(frozen=True)
class Fetching:
    """Function for ``mapInArrow``: read messages from brokers, and write them into files.

    The messages never become rows of the JVM, which would cost more than everything else.
    """

    tasks: list[RangesPartition]
    options: ReadOptions
    writing: TaskWriting

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks with the numbers in the first column. Yield one report for each task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.writing(read_partition(self.tasks[number], self.options))


@dataclass
class OpenFile:
    """Parquet file that a task is writing.

    ``hour`` counts hours since 1970.
    """

    path: Path
    table: str
    topic: str
    hour: int
    schema: pa.Schema
    _waiting: list[pa.Table] = field(default_factory=list)
    _rows: int = 0
    _bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._file = self.path.open("xb")
        self._writer = pq.ParquetWriter(self._file, self.schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        for name in ("queueOffset", "storeTimestamp"):
            low, high = pc.min_max(rows[name]).as_py().values()
            before = self._bounds.get(name, (low, high))
            self._bounds[name] = (min(low, before[0]), max(high, before[1]))
        if (
            sum(each.num_rows for each in self._waiting) >= GROUP_ROWS
            or sum(each.nbytes for each in self._waiting) >= GROUP_SIZE
        ):
            self._flush()

    def close(self) -> DataFile:
        """Write the rest of the file durably. Return a description of the file."""
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        begin = datetime.fromtimestamp(self.hour * 3600, UTC)
        return DataFile(
            name=self.path.name,
            table=self.table,
            topic=self.topic,
            date=begin.date().isoformat(),
            hour=begin.hour,
            rows=self._rows,
            size=self.path.stat().st_size,
            stats=self._stats(),
        )

    def drop(self) -> None:
        """Close and remove the file after an error."""
        with suppress(Exception):  # the content does not matter any more
            self._writer.close()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), GROUP_ROWS)
            self._waiting.clear()

    def _stats(self) -> str:
        """Return the statistics of the file in Delta's form.

        Delta's times have milliseconds, so the maximum is rounded up.
        """
        low, high = self._bounds["storeTimestamp"]
        (first, last) = self._bounds["queueOffset"]
        stats = {
            "numRecords": self._rows,
            "minValues": {"queueOffset": first, "storeTimestamp": _delta_time(low, 0)},
            "maxValues": {"queueOffset": last, "storeTimestamp": _delta_time(high, 999)},
            "nullCount": {"queueOffset": 0, "storeTimestamp": 0},
        }
        return json.dumps(stats, separators=(",", ":"))


def _delta_time(time: datetime, round_up_us: int) -> str:
    micros = int(time.timestamp()) * 1_000_000 + time.microsecond + round_up_us
    at = datetime.fromtimestamp(micros // 1_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{micros % 1_000_000 // 1000:03d}Z"


def split_by_hour(rows: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """For each topic and hour, yield the rows. Hours are counted since 1970."""
    hours = pc.divide(rows["storeTimestamp"].cast(pa.int64()), _HOUR_US)
    keys = pa.table({"topic": rows["topic"], "hour": hours})
    for key in keys.group_by(["topic", "hour"]).aggregate([]).to_pylist():
        wanted = pc.and_(
            pc.equal(keys["topic"], pa.scalar(key["topic"])), pc.equal(keys["hour"], key["hour"])
        )
        found = rows.filter(wanted)
        yield key["topic"], key["hour"], rows if found.num_rows == rows.num_rows else found


def count_rows(counted: dict[tuple[str, str, int], QueueRows], topic: str, rows: pa.Table) -> None:
    groups = rows.group_by(["brokerName", "queueId"]).aggregate(
        [("queueOffset", "count"), ("queueOffset", "min"), ("queueOffset", "max")]
    )
    for group in groups.to_pylist():
        broker, queue_id = group["brokerName"], group["queueId"]
        count, low, high = (group[f"queueOffset_{what}"] for what in ("count", "min", "max"))
        before = counted.get((topic, broker, queue_id))
        if before is not None:
            count += before.rows
            low, high = min(low, before.offset_min), max(high, before.offset_max)
        counted[topic, broker, queue_id] = QueueRows(topic, broker, queue_id, count, low, high)
