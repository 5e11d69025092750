"""Delta table with the current state of one source table, written by ``deltalake``.

::

    LAKE/shop/orders             one row for each row of the source, and three columns at the end:
                                 _position, _queue, _offset of its newest change
    LAKE/_deleted/shop/orders    keys of deleted rows, with the same three columns and _at
    LAKE/_history/shop/orders    each change, in the order of the messages (only with history)

A change is applied only if it is newer than the row, or than the delete of its key. So messages
may come again, or late from another queue. Each of these tables has the ends of the queues in its
log, as archives have. A table that has a batch already is left alone when the batch is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from turbopump.errors import LakeError, LakeInUseError
from turbopump.spark.changes.column_types import widened
from turbopump.spark.changes.folding import CHANGE_COLUMNS, DELETED, PLACE, PRIOR, newest_changes
from turbopump.spark.pipelines.change_writing import SourceTable
from turbopump.spark.pipelines.delta_lake import ranges_in_log, transactions_of
from turbopump.spark.pipelines.lake import ArchivedRanges

AT: Final = "_at"
"""Column of a deleted key: the time at which it was deleted here."""
VERSION: Final = "_version"
"""Column of a deleted key: the version of its table; a key may be deleted several times."""
DELETES_KEPT: Final = timedelta(hours=24)
"""Time for which deleted keys are kept. An older change of such a key may not come later."""
VERSIONS_KEPT_H: Final = 1
"""Hours for which readers may use replaced files. Each batch replaces the files that it changes."""
COMPACT_TARGET: Final = 128 << 20


_PLAIN: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


class Applied(msgspec.Struct, frozen=True):
    """Numbers of rows that a batch has changed in a state table."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class GrowingTable:
    """Delta table that may get more columns, and wider types. It may not exist yet.

    ``ranges`` has the ends of queues that are in the table.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table: DeltaTable | None = None
        self.ranges: ArchivedRanges = {}
        if DeltaTable.is_deltatable(str(path)):
            try:
                self.table = DeltaTable(path)
            except DeltaError as error:
                raise LakeError(f"{path} cannot be read as a Delta table: {error}") from None
            self.ranges = ranges_in_log(self.table, path)

    @property
    def version(self) -> int:
        """Version of the table. A table that does not exist has version -1."""
        return -1 if self.table is None else self.table.version()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table. A table that does not exist has none."""
        if self.table is None:
            return pa.schema([])
        # deltalake says string_view, but datasets and changes have string.
        return pa.schema(
            [
                pa.field(each.name, _PLAIN.get(each.type, each.type))
                for each in pa.schema(self.table.schema().to_arrow())
            ]
        )

    def has(self, ranges: ArchivedRanges) -> bool:
        """Return True if the table has the messages up to these ends."""
        return all(
            (there := self.ranges.get(queue)) is not None
            and (there.generation, there.end) == (wanted.generation, wanted.end)
            for queue, wanted in ranges.items()
        )

    def grow(self, wanted: pa.Schema, description: str = "") -> pa.Schema:
        """Create the table, add columns, or widen types. Return all columns of the table.

        A wider type rewrites the whole table. Each step is a commit without rows.
        """
        if self.table is None:
            self.table = DeltaTable.create(
                self.path,
                schema=wanted,
                mode="ignore",
                description=description or None,
                commit_properties=_commit({}),
            )
            return wanted
        old = self.schema
        there = {each.name: each.type for each in old}
        types = {**there, **{each.name: each.type for each in wanted}}
        if any(types[name] != there[name] for name in there):
            target = pa.schema(list(types.items()))
            self._rewrite(target)
            return target
        added = [each for each in wanted if each.name not in there]
        if added:
            self.table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
            self.table.update_incremental()
        return pa.schema(list(types.items()))

    def append(self, rows: pa.Table, ranges: ArchivedRanges) -> None:
        """Append rows, and commit the ends of queues with them."""
        assert self.table is not None
        write_deltalake(
            self.table, rows.select(self.schema.names), mode="append",
            commit_properties=_commit(ranges),
        )  # fmt: skip
        self.table.update_incremental()
        self.ranges = {**self.ranges, **ranges}

    def tidy(self) -> int:
        """Merge small files, and remove replaced ones. Return the decrease in current files."""
        if self.table is None:
            return 0
        before = len(self.table.file_uris())
        self.table.optimize.compact(target_size=COMPACT_TARGET)
        self.table.vacuum(VERSIONS_KEPT_H, dry_run=False, enforce_retention_duration=False)
        self.table.update_incremental()
        return before - len(self.table.file_uris())

    def rows(self, names: Sequence[str], only: pc.Expression | None = None) -> pa.Table:
        """Read columns of the rows that fulfil a condition."""
        return self._dataset().to_table(list(names), filter=only)

    def _dataset(self) -> ds.Dataset:
        assert self.table is not None
        files = SubTreeFileSystem(str(self.path), LocalFileSystem())
        return self.table.to_pyarrow_dataset(filesystem=files)

    def _rewrite(self, target: pa.Schema) -> None:
        assert self.table is not None
        added = [each for each in target if each.name not in self.schema.names]
        # deltalake pulls the batches in its own threads, where it cannot open a dataset.
        dataset = self._dataset()

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in dataset.to_batches():
                for each in added:
                    batch = batch.append_column(each, pa.nulls(batch.num_rows, each.type))
                yield batch.cast(target)

        write_deltalake(
            self.table,
            pa.RecordBatchReader.from_batches(target, batches()),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=_commit({}),
        )
        self.table.update_incremental()


def _commit(ranges: ArchivedRanges) -> CommitProperties:
    return CommitProperties(app_transactions=transactions_of(ranges), max_commit_retries=0)


class StateTable:
    """State of one source table, with the keys of its deleted rows, and its history.

    With ``soft_deletes`` a deleted row stays, and its column ``_deleted`` is true.
    """

    def __init__(
        self,
        root: Path,
        folder: str,
        source: SourceTable,
        *,
        tolerance: int,
        soft_deletes: bool,
        history: bool,
    ) -> None:
        self.state = GrowingTable(root / folder)
        self.deleted = GrowingTable(root / "_deleted" / folder)
        self.history = GrowingTable(root / "_history" / folder) if history else None
        self.keys = source.keys
        self._tolerance = tolerance
        self._soft = soft_deletes
        self._known_deletes: pa.Table | None = None
        self._check_keys()

    @property
    def ranges(self) -> ArchivedRanges:
        """For each queue, the latest end that one of the tables has."""
        found: ArchivedRanges = {}
        for part in (self.state, self.deleted, *([self.history] if self.history else [])):
            for queue, there in part.ranges.items():
                known = found.get(queue)
                if known is None or (known.generation, known.end) < (there.generation, there.end):
                    found[queue] = there
        return found

    def apply(self, streams: Sequence[pa.Table], ranges: ArchivedRanges, now: datetime) -> Applied:
        """Apply changes, and commit the ends of queues with them.

        A part that has these ends already is left alone. Raises LakeInUseError if another writer
        has committed, and LakeError if a column cannot hold its new values.
        """
        try:
            return self._apply(streams, ranges, now)
        except CommitFailedError:
            raise LakeInUseError(
                f"{self.state.path}: another writer has committed, so this batch was not "
                "committed. Run one pipeline per lake, and start it again"
            ) from None

    def _apply(self, streams: Sequence[pa.Table], ranges: ArchivedRanges, now: datetime) -> Applied:
        keys = self.keys
        columns = self._columns_for(streams)
        changes = pa.concat_tables([_with_columns(each, columns) for each in streams])
        if self.history is not None and not self.history.has(ranges):
            self._append_history(changes, ranges)
        if self.state.has(ranges):
            return Applied()
        newest = newest_changes(changes, keys, self._tolerance, self._known_places(changes))
        if not self._soft and not self.deleted.has(ranges):
            self._append_deletes(newest, ranges, now)
        hidden = [pa.field(name, CHANGE_COLUMNS.field(name).type) for name in PLACE]
        if self._soft:
            hidden.append(CHANGE_COLUMNS.field(DELETED))
        self.state.grow(pa.schema([*columns, *hidden]), json.dumps({"keys": keys}))
        applied = self._merge(newest, ranges)
        self.state.ranges = {**self.state.ranges, **ranges}
        return applied

    def tidy(self, now: datetime) -> int:
        """Merge small files, forget old deletes, and remove replaced files."""
        if self.deleted.table is not None:
            before = (now - DELETES_KEPT).isoformat()
            self.deleted.table.delete(
                f"{AT} < arrow_cast('{before}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            )
            self._known_deletes = None
        parts = [self.state, self.deleted, *([self.history] if self.history else [])]
        return sum(part.tidy() for part in parts)

    def _check_keys(self) -> None:
        """Raise LakeError if the table was made with another key."""
        if self.state.table is None:
            return
        said = json.loads(self.state.table.metadata().description or "{}").get("keys")
        if said is not None and tuple(said) != self.keys:
            raise LakeError(
                f"{self.state.path} has the key {', '.join(said)}, but its messages now have "
                f"{', '.join(self.keys)}: declare the former key (--key), or use another "
                "directory"
            )

    def _columns_for(self, streams: Sequence[pa.Table]) -> pa.Schema:
        """Return the columns that hold the table's rows and new changes.

        Hidden columns are left out. A column without a type, because all its values are null, is
        left out as well.
        """
        hidden = {*CHANGE_COLUMNS.names}
        types = {each.name: each.type for each in self.state.schema if each.name not in hidden}
        lower = {name.lower(): name for name in types}
        for stream in streams:
            for each in stream.schema:
                if each.name in hidden or pa.types.is_null(each.type):
                    continue
                known = lower.setdefault(each.name.lower(), each.name)
                if known != each.name:
                    raise LakeError(
                        f"{self.state.path} has the column {known}, but its messages now call it "
                        f"{each.name}, which Delta takes for the same: use another directory"
                    )
                old = types.get(each.name, each.type)
                types[each.name] = widened(old, each.type) or self._text_for(each, old)
        return pa.schema(list(types.items()))

    def _text_for(self, column: pa.Field, old: pa.DataType) -> pa.DataType:
        """Return the type text, which holds values of types that have nothing else in common."""
        if pa.types.is_binary(old) or pa.types.is_binary(column.type):
            raise LakeError(
                f"{self.state.path}: the column {column.name} is {old}, and its new values are "
                f"{column.type}: use another directory"
            )
        return pa.string()

    def _append_history(self, changes: pa.Table, ranges: ArchivedRanges) -> None:
        assert self.history is not None
        rows = changes.drop_columns([PRIOR])
        self.history.grow(rows.schema)
        absent = [each for each in self.history.schema if each.name not in rows.column_names]
        for each in absent:
            rows = rows.append_column(each, pa.nulls(rows.num_rows, each.type))
        self.history.append(rows, ranges)

    def _known_places(self, changes: pa.Table) -> pa.Table:
        """Return the places of those keys in changes that have a row, or had one.

        The delete of a key counts only while the key has no row.
        """
        keys = list(self.keys)
        wanted = changes.select(keys)
        schema = pa.schema([*wanted.schema, *map(CHANGE_COLUMNS.field, (*PLACE, DELETED))])
        known = self._deletes().cast(schema).join(wanted, keys, join_type="left semi")
        if self.state.table is None or not wanted.num_rows:
            return known
        names = [*keys, *PLACE, *([DELETED] if self._soft else [])]
        first = self.state.schema.field(keys[0]).type
        chosen = None
        # deltalake states the bounds of a file's texts as string_view, which Arrow cannot compare.
        if not pa.types.is_string(first) and not pa.types.is_binary(first):
            chosen = pc.field(keys[0]).isin(pc.unique(wanted[keys[0]]).cast(first))
        rows = self.state.rows(names, chosen)
        if not self._soft:
            rows = rows.append_column(DELETED, pa.repeat(False, rows.num_rows))
        rows = rows.cast(schema).join(wanted, keys, join_type="left semi")
        return pa.concat_tables([rows, known.join(rows, keys, join_type="left anti")])

    def _deletes(self) -> pa.Table:
        """Return the places of deleted keys, as columns of the key, ``PLACE`` and ``_deleted``."""
        if self._known_deletes is None and self.deleted.table is not None:
            names = [*PLACE, DELETED]
            rows = self.deleted.rows([*self.keys, *PLACE, VERSION]).sort_by(VERSION)
            last = rows.append_column(DELETED, pa.repeat(True, rows.num_rows)).group_by(
                list(self.keys), use_threads=False
            )
            found = last.aggregate([(name, "last") for name in names])
            self._known_deletes = found.rename_columns([*self.keys, *names])
        if self._known_deletes is None:
            fields = map(CHANGE_COLUMNS.field, (*PLACE, DELETED))
            return pa.schema([*((key, pa.null()) for key in self.keys), *fields]).empty_table()
        return self._known_deletes

    def _append_deletes(self, newest: pa.Table, ranges: ArchivedRanges, now: datetime) -> None:
        """Keep the keys of deleted rows, so that no older change brings a row back."""
        gone = newest.filter(newest[DELETED]).select([*self.keys, *PLACE, DELETED])
        if not gone.num_rows:
            return
        before = self._deletes()
        stored = gone.drop_columns([DELETED])
        hidden = pa.schema([(VERSION, pa.int64()), (AT, pa.timestamp("us", "UTC"))])
        self.deleted.grow(pa.schema([*stored.schema, *hidden]))
        for each, value in zip(hidden, (self.deleted.version + 1, now), strict=True):
            column = pa.repeat(pa.scalar(value, each.type), gone.num_rows)
            stored = stored.append_column(each, column)
        self.deleted.append(stored, ranges)
        left = before.cast(gone.schema).join(gone, list(self.keys), join_type="left anti")
        self._known_deletes = pa.concat_tables([left, gone])

    def _merge(self, newest: pa.Table, ranges: ArchivedRanges) -> Applied:
        """Merge the newest change of each key into the state table, in one commit."""
        table = self.state.table
        assert table is not None
        names = self.state.schema.names
        absent = [each for each in self.state.schema if each.name not in newest.column_names]
        for each in absent:
            newest = newest.append_column(each, pa.nulls(newest.num_rows, each.type))
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        merger = table.merge(
            newest.select([*names, *([] if self._soft else [DELETED])]),
            " AND ".join(f"s.{_quoted(key)} = t.{_quoted(key)}" for key in self.keys),
            source_alias="s",
            target_alias="t",
            commit_properties=_commit(ranges),
        )
        if self._soft:
            marked = {_quoted(name): f"s.{_quoted(name)}" for name in (*PLACE, DELETED)}
            merger = (
                merger.when_matched_update(marked, f"s.{DELETED}")
                .when_matched_update(values)
                .when_not_matched_insert(values)
            )
        else:
            merger = (
                merger.when_matched_delete(f"s.{DELETED}")
                .when_matched_update(values)
                .when_not_matched_insert(values, f"NOT s.{DELETED}")
            )
        numbers = merger.execute()
        return Applied(
            inserted=numbers["num_target_rows_inserted"],
            updated=numbers["num_target_rows_updated"],
            deleted=numbers["num_target_rows_deleted"],
        )


def _quoted(name: str) -> str:
    """Quote the name of a column for DataFusion, which otherwise takes it apart."""
    return '"' + name.replace('"', '""') + '"'


def _with_columns(stream: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return changes with all these columns, in their types, and ``CHANGE_COLUMNS``."""
    found = []
    for each in (*columns, *CHANGE_COLUMNS):
        at = stream.schema.get_field_index(each.name)
        if at < 0:
            found.append(pa.chunked_array([pa.nulls(stream.num_rows, each.type)]))
        else:
            found.append(pc.cast(stream.column(at), each.type))
    return pa.table(found, schema=pa.schema([*columns, *CHANGE_COLUMNS]))
