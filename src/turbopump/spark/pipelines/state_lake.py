"""Lake with the current state of source tables, as ``cdc`` keeps it.

::

    LAKE/_lake.json       definition: the format of the changes, declared keys, options
    LAKE/shop/orders      state of a source table: a Delta table (``state_table``)
    LAKE/_rejected        messages that are no changes, and the ends of the queues: a Delta table

A batch changes several tables, each in a commit of its own. ``_rejected`` is last, and decides
where the next batch begins. If a table is further, a writer was killed in between: the batch is
repeated up to the very same ends, and the tables that have it are left alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines.change_writing import CHANGES, FORMATS, SourceTable, read_streams
from turbopump.spark.pipelines.delta_lake import DeltaLake, files_of, ranges_in_log
from turbopump.spark.pipelines.lake import (
    DATA,
    GENERATION,
    REJECTED,
    ArchivedRange,
    ArchivedRanges,
    ChangesDefinition,
    Definition,
    LakeBatch,
    Snapshot,
    no_step,
)
from turbopump.spark.pipelines.state_table import Applied, GrowingTable, StateTable
from turbopump.spark.pipelines.writing import PARTITIONS, rejected_schema


class StateLake(DeltaLake):
    """Lake of state tables. ``Lake`` describes the methods.

    ``applied`` has the numbers of changed rows by source table, since the lake was opened.
    """

    has_messages = False

    def __init__(self, root: Path, definition: Definition) -> None:
        super().__init__(root, definition)
        assert isinstance(definition.changes, ChangesDefinition)
        self._settings = definition.changes
        self._tables: dict[tuple[str, str], StateTable] = {}
        self.applied: defaultdict[str, Applied] = defaultdict(Applied)

    def snapshot(self) -> Snapshot:
        if not self._table_exists(REJECTED):
            return Snapshot(version=0, ranges={}, files=())
        control = self._open_table(REJECTED)
        ranges = ranges_in_log(control, self.root / REJECTED)
        unfinished: Offsets = {}
        for each in (*self._ranges_found, *(table.ranges for table in self._tables.values())):
            for queue, archived in each.items():
                there = ranges.get(queue)
                if there is None or (
                    archived.generation == there.generation and archived.end > there.end
                ):
                    unfinished[queue] = archived.end
        return Snapshot(
            version=control.version(),
            ranges=ranges,
            files=tuple(files_of(control, REJECTED)),
            unfinished=unfinished or None,
        )

    def append(
        self, before: Snapshot, batch: LakeBatch, at_step: Callable[[str], None] = no_step
    ) -> Snapshot:
        self.check_follows(before, batch)
        control = self._open_table(REJECTED)
        if control.version() != before.version:
            raise self._other_writer()
        staged = [file for file in batch.files if file.table == CHANGES]
        streams: defaultdict[SourceTable, list[pa.Table]] = defaultdict(list)
        for file in staged:
            for source, table in read_streams(self.staging / file.name):
                streams[source].append(table)
        ranges = _ranges_of(batch, before.generations)
        now = datetime.now(UTC)
        for source in sorted(streams, key=lambda each: (each.database, each.table)):
            applied = self._table(source).apply(streams[source], ranges, now)
            name = f"{source.database}.{source.table}"
            total = self.applied[name]
            self.applied[name] = Applied(
                total.inserted + applied.inserted,
                total.updated + applied.updated,
                total.deleted + applied.deleted,
            )
            at_step("merged")
        rejected = [file for file in batch.files if file.table == REJECTED]
        self.move_staged(rejected)
        at_step("placed")
        self._commit(REJECTED, batch, control, before.generations)
        at_step("committed")
        for file in staged:
            (self.staging / file.name).unlink(missing_ok=True)
        return self.snapshot()

    def restart(self, before: Snapshot, begins: Offsets) -> Snapshot:
        control = self._open_table(REJECTED)
        if control.version() != before.version:
            raise self._other_writer()
        if GENERATION not in pa.schema(control.schema().to_arrow()).names:
            control.alter.add_columns(Field(GENERATION, PrimitiveType("integer")))
        self._commit_ranges(
            self._open_table(REJECTED),
            [],
            {queue: before.ranges[queue].next_generation(begin) for queue, begin in begins.items()},
        )
        return self.snapshot()

    def recover(self) -> None:
        try:
            DeltaTable.create(
                self.root / REJECTED,
                schema=pa.schema([*rejected_schema(self.definition), *PARTITIONS]),
                mode="ignore",
                partition_by=PARTITIONS.names,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:  # another host has just created the table
            self._open_table(REJECTED)
        self.clear_staging()

    def source_tables(self) -> dict[str, Path]:
        """Return the paths of the state tables by the names of their source tables."""
        return {
            f"{_name_of(path.parent.name)}.{_name_of(path.name)}": path
            for path in sorted(self.root.glob("[!_]*/*"))
            if DeltaTable.is_deltatable(str(path))
        }

    def _compact(self, files_min: int, size_target: int) -> int:
        now = datetime.now(UTC)
        gone = sum(table.tidy(now) for table in self._tables.values())
        return gone + self._compact_table(REJECTED, files_min, size_target)

    def paths(self, table: str = DATA) -> list[Path]:
        return [] if table == DATA else super().paths(table)

    @cached_property
    def _ranges_found(self) -> list[ArchivedRanges]:
        """Ranges of all parts of all state tables, when the lake was opened.

        Later on, only this process changes them.
        """
        return [
            GrowingTable(path).ranges
            for pattern in ("[!_]*/*", "_deleted/*/*", "_history/*/*")
            for path in self.root.glob(pattern)
        ]

    def _table(self, source: SourceTable) -> StateTable:
        name = source.database, source.table
        found = self._tables.get(name)
        if found is None or found.keys != source.keys:
            found = self._tables[name] = StateTable(
                self.root,
                f"{_folder(source.database)}/{_folder(source.table)}",
                source,
                tolerance=FORMATS[self._settings.format].tolerance,
                soft_deletes=self._settings.soft_deletes,
                history=self._settings.history,
            )
        return found


def _folder(name: str) -> str:
    """Return the name of a folder for a database or table. It does not begin with ``_`` or ``.``.

    The escape is ``~``, because deltalake decodes a ``%`` in paths.
    """
    found = quote(name, safe="").replace("~", "%7E")
    if found[:1] in ("_", "."):
        found = f"%{ord(found[0]):02X}{found[1:]}"
    return found.replace("%", "~")


def _name_of(folder: str) -> str:
    return unquote(folder.replace("~", "%"))


def _ranges_of(batch: LakeBatch, generations: Mapping[MessageQueue, int]) -> ArchivedRanges:
    return {
        queue: ArchivedRange(
            batch.begins[queue], end, batch.lost.get(queue, 0), generation=generations.get(queue, 0)
        )
        for queue, end in batch.ends.items()
    }
