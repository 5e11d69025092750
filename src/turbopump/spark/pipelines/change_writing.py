"""Work of a task of ``cdc``: writing the changes in messages into one staged file.

::

    stream | stream | …    Arrow IPC streams: the changes of one source table in one layout

The metadata of a stream's schema name the table and its key. Messages that have no changes, and
cannot be skipped, go to a staged file of the table ``_rejected``. Staged files do not count until
the driver commits them. Formats are unknown here, except for their names (``FORMATS``).
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from turbopump.errors import PipelineError
from turbopump.message.message import MessageQueue
from turbopump.spark.changes.canal import CanalFormat
from turbopump.spark.changes.change import Change, ChangeFormat, ChangeOptions, Layout, NoChange
from turbopump.spark.changes.column_types import convert
from turbopump.spark.changes.debezium import DebeziumFormat
from turbopump.spark.changes.folding import CHANGE_COLUMNS
from turbopump.spark.changes.maxwell import MaxwellFormat
from turbopump.spark.changes.ticdc import TicdcFormat
from turbopump.spark.options import BODY_FAULT
from turbopump.spark.pipelines.lake import (
    GENERATION,
    REJECTED,
    ChangesDefinition,
    DataFile,
    Definition,
)
from turbopump.spark.pipelines.writing import (
    REPORT_COLUMN,
    OpenFile,
    QueueRows,
    TaskReport,
    count_rows,
    generation_of,
    rejected_schema,
    split_by_hour,
)
from turbopump.spark.plain_errors import hidden_traceback
from turbopump.spark.reading import keep_what_is_loaded

FORMATS: Final[dict[str, type[ChangeFormat]]] = {
    "canal-json": CanalFormat,
    "debezium-json": DebeziumFormat,
    "maxwell": MaxwellFormat,
    "ticdc": TicdcFormat,
}
"""Class of each format of changes, by the name in ``--format``."""

CHANGES: Final = "changes"
"""Name of the table of staged files with changes. They are never moved into a table as files."""
SOURCE_TABLE: Final = b"turbopump"
"""Key in the metadata of a stream's schema; the value is a ``SourceTable`` as JSON."""
_UNFIT: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta does not allow in names of columns."""


class SourceTable(msgspec.Struct, frozen=True):
    """Name and key of a source table."""

    database: str
    table: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class ChangeWriting:
    """Function for ``mapInArrow``: write the changes in messages into a staged file.

    - ``staging``: a path that is the same for executors and driver.
    - ``stem``: first part of the files' names.
    - ``generations``: generations of the lake's restarted queues.
    """

    staging: str
    stem: str
    definition: Definition
    generations: dict[MessageQueue, int] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the changes in record batches of messages. Yield the report of the task as a
        single row."""
        keep_what_is_loaded()
        with hidden_traceback():
            text = msgspec.json.encode(self.write(batches)).decode()
            yield pa.RecordBatch.from_pylist([{REPORT_COLUMN: text}])

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the changes in record batches of messages. Return the report of the task.

        Raises PipelineError if the disk fails.
        """
        try:
            return self._write(batches)
        except OSError as error:
            raise PipelineError(
                f"{self.staging} cannot be written: {error.strerror or error}. Nothing of this "
                "batch was committed; start the command again once it can be"
            ) from None

    def _write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        assert isinstance(self.definition.changes, ChangesDefinition)
        settings = self.definition.changes
        parsed = ParsedMessages(
            FORMATS[settings.format](ChangeOptions(keys=settings.keys, types=settings.types)),
            settings.zone,
            self.generations,
        )
        for batch in batches:
            parsed.add(batch)
        files = []
        streams = parsed.streams()
        if streams:
            files.append(self._write_streams(streams, parsed.topic))
        files += self._write_rejected(parsed.rejected())
        parsed.counts["rejected"] = len(parsed.reasons) - parsed.counts["statements"]
        parsed.counts["changed"] = parsed.messages - len(parsed.reasons) - parsed.counts["skipped"]
        return TaskReport(files, list(parsed.queues.values()), dict(parsed.counts), parsed.notes)

    def _write_streams(self, streams: list[pa.Table], topic: str) -> DataFile:
        path = Path(self.staging) / f"{self.stem}-{uuid.uuid4().hex}.arrows"
        with path.open("xb") as file:
            for table in streams:
                with pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table)
        return DataFile(
            name=path.name,
            table=CHANGES,
            topic=topic,
            date="",
            hour=0,
            rows=sum(table.num_rows for table in streams),
            size=path.stat().st_size,
        )

    def _write_rejected(self, rejected: pa.Table | None) -> Iterator[DataFile]:
        if rejected is None:
            return
        schema = rejected_schema(self.definition, restarted=bool(self.generations))
        for topic, hour, rows in split_by_hour(rejected):
            name = f"{self.stem}-{uuid.uuid4().hex}.parquet"
            file = OpenFile(Path(self.staging) / name, REJECTED, topic, hour, schema)
            if self.generations:
                rows = rows.append_column(GENERATION, generation_of(topic, rows, self.generations))
            try:
                file.write(rows.select(schema.names).cast(schema))
                yield file.close()
            except BaseException:
                with suppress(OSError):
                    file.drop()
                raise


@dataclass
class Segment:
    """Changes of one source table in one layout, as columns."""

    layout: Layout
    values: list[dict[str, Any]] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)
    existed: list[int] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    """For each change, the number of its message in the task."""


class ParsedMessages:
    """Changes in the messages of a task, and the messages without changes.

    ``counts`` has the numbers of changes, statements, skipped messages and zero dates.
    """

    def __init__(
        self,
        change_format: ChangeFormat,
        zone: str = "UTC",
        generations: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        self.topic = ""
        self.queues: dict[tuple[str, str, int], QueueRows] = {}
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.reasons: dict[int, str] = {}
        """For each message that is rejected, its number and the reason."""
        self._format = change_format
        self._zone = zone
        self._generations = generations or {}
        self._segments: dict[int, Segment] = {}
        self._batches: list[pa.RecordBatch] = []
        self.messages = 0
        """Number of messages so far."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Parse a record batch of messages."""
        if not batch.num_rows:
            return
        rows = pa.Table.from_batches([batch])
        self.topic = rows["topic"][0].as_py()
        count_rows(self.queues, self.topic, rows)
        parse = self._format.parse
        columns = [rows[name].to_pylist() for name in ("brokerName", "queueId", "queueOffset")]
        bodies, faults = rows["body"].to_pylist(), rows[BODY_FAULT].to_pylist()
        first = self.messages
        names: dict[tuple[str, int], str] = {}
        for number, (broker, queue_id, offset, body, fault) in enumerate(
            zip(*columns, bodies, faults, strict=True), first
        ):
            if fault is not None:
                self.reasons[number] = f"body_fault: {fault}"
                continue
            found = parse(body or b"")
            if isinstance(found, NoChange):
                self._note(number, found)
                continue
            queue = names.get((broker, queue_id))
            if queue is None:
                queue = names[broker, queue_id] = self._name_of(broker, queue_id)
            self._collect(found, number, queue, offset)
        self.messages += rows.num_rows
        self._batches.append(batch)

    def _name_of(self, broker: str, queue_id: int) -> str:
        """Return the name of a queue. Another generation has another one, as its offsets repeat."""
        generation = self._generations.get(MessageQueue(self.topic, broker, queue_id), 0)
        return f"{broker}:{queue_id}#{generation}" if generation else f"{broker}:{queue_id}"

    def _note(self, number: int, found: NoChange) -> None:
        if found.kind == "skipped":
            self.counts["skipped"] += 1
            return
        self.reasons[number] = found.reason
        if found.kind == "statement":
            self.counts["statements"] += 1
            self.notes.append(found.reason)

    def _collect(self, changes: list[Change], number: int, queue: str, offset: int) -> None:
        for index, (layout, values, deleted, existed, position) in enumerate(changes):
            segment = self._segments.get(id(layout))
            if segment is None:
                segment = self._segments[id(layout)] = Segment(layout)
            segment.values.append(values)
            segment.position.append(position)
            segment.queue.append(queue)
            segment.offset.append(offset)
            segment.index.append(index)
            segment.deleted.append(deleted)
            segment.existed.append(existed)
            segment.message.append(number)

    def streams(self) -> list[pa.Table]:
        """Return the changes of each layout, with converted columns.

        Changes with wrong values are left out, and their messages are rejected.
        """
        found = []
        for segment in self._segments.values():
            table = self._table_of(segment)
            if table is not None and table.num_rows:
                self.counts["changes"] += table.num_rows
                found.append(table)
        return found

    def rejected(self) -> pa.Table | None:
        """Return the rejected messages, with the column ``reason``."""
        if not self.reasons:
            return None
        numbers = sorted(self.reasons)
        rows = pa.Table.from_batches(self._batches).take(pa.array(numbers))
        reasons = pa.array([self.reasons[number] for number in numbers], pa.string())
        return rows.append_column("reason", reasons)

    def _table_of(self, segment: Segment) -> pa.Table | None:
        layout = segment.layout
        fault = _fault_of_names(layout)
        if fault is not None:
            for number in segment.message:
                self.reasons[number] = fault
            return None
        good = [True] * len(segment.values)

        def reject(at: int, reason: str) -> None:
            good[at] = False
            self.reasons[segment.message[at]] = reason

        columns: dict[str, pa.Array] = {}
        for name, kind in layout.columns.items():
            converted = convert([row.get(name) for row in segment.values], kind, self._zone)
            for at, said in converted.faults.items():
                reject(at, f"wrong_type {layout.name}.{name}: {said}")
            self.counts["zero_dates"] += converted.zero_dates
            columns[name] = converted.array
        for name in layout.keys:
            if columns[name].null_count:
                for at in pc.indices_nonzero(pc.is_null(columns[name])).to_pylist():
                    if good[at]:
                        reject(at, f"null_key {layout.name}.{name}: the key has no value")
        facts = [
            segment.position,
            segment.queue,
            segment.offset,
            segment.index,
            segment.deleted,
            segment.existed,
        ]
        for column, values in zip(CHANGE_COLUMNS, facts, strict=True):
            columns[column.name] = pa.array(values, column.type)
        source = SourceTable(layout.database, layout.table, layout.keys)
        table = pa.table(columns).replace_schema_metadata(
            {SOURCE_TABLE: msgspec.json.encode(source)}
        )
        return table if all(good) else table.filter(pa.array(good))


def _fault_of_names(layout: Layout) -> str | None:
    """Return the reason why a table's columns cannot be those of a Delta table, if there is one."""
    spellings: defaultdict[str, list[str]] = defaultdict(list)
    for name in (*layout.columns, *CHANGE_COLUMNS.names):
        spellings[name.lower()].append(name)
    twice = next((names for names in spellings.values() if len(names) > 1), None)
    if twice is not None:
        return f"bad_column {layout.name}: two columns have the name {twice[0]}"
    unfit = next((name for name in layout.columns if _UNFIT & set(name)), None)
    if unfit is not None:
        return f"bad_column {layout.name}: Delta does not allow the name {unfit!r}"
    absent = next((name for name in layout.keys if name not in layout.columns), None)
    if absent is not None:
        return f"no_key {layout.name}: its messages have no column {absent}"
    return None


def read_streams(path: Path) -> Iterator[tuple[SourceTable, pa.Table]]:
    """Yield the tables in a staged file of changes, with the names of their source tables."""
    with pa.memory_map(str(path)) as file:
        while file.tell() < file.size():
            with pa.ipc.open_stream(file) as stream:
                table = stream.read_all()
            source = msgspec.json.decode(table.schema.metadata[SOURCE_TABLE], type=SourceTable)
            yield source, table.replace_schema_metadata(None)
