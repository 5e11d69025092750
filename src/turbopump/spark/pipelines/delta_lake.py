r"""Lake of Delta tables. It is written by ``deltalake``, without a JVM.

The offsets are transactions in the table's own log: three per queue, in the commit that adds the
files (five after a restart of the queue)::

    {"txn":{"appId":"turbopump/[\"end\",\"T\",\"broker-a\",0]","version":123}}

Delta keeps the newest transaction of each appId through checkpoints, log clean-up, compaction and
vacuum. The tables ``data`` and ``_rejected`` have a log each. ``_rejected`` is committed first. If
only that half of a batch was committed, the batch is repeated with the same end. The content of the
files is unknown here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from turbopump.errors import LakeError, LakeInUseError
from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines.lake import (
    DATA,
    GENERATION,
    REJECTED,
    TABLES,
    ArchivedRange,
    ArchivedRanges,
    DataFile,
    Lake,
    LakeBatch,
    Snapshot,
    no_step,
    stats_of,
)
from turbopump.spark.pipelines.writing import PARTITIONS, data_schema, rejected_schema

APP: Final = "turbopump/"
_NUMBERS: Final = ("begin", "end", "lost", "generation", "former")
"""Fields of an ``ArchivedRange`` in the log; the last two only after a restart of the queue."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


class DeltaLake(Lake):
    """Lake of Delta tables.

    ``Lake`` describes the methods.
    """

    def snapshot(self) -> Snapshot:
        if not self._table_exists(DATA):
            return Snapshot(version=0, ranges={}, files=())
        data = self._open_table(DATA)
        ranges = ranges_in_log(data, self.root / DATA)
        files = files_of(data, DATA)
        unfinished: Offsets = {}
        if self._table_exists(REJECTED):
            rejected = self._open_table(REJECTED)
            files += files_of(rejected, REJECTED)
            for queue, archived in ranges_in_log(rejected, self.root / REJECTED).items():
                there = ranges.get(queue)
                if there is None or (
                    there.end != archived.end and there.generation == archived.generation
                ):
                    unfinished[queue] = archived.end
        return Snapshot(
            version=data.version(), ranges=ranges, files=tuple(files), unfinished=unfinished or None
        )

    def append(
        self, before: Snapshot, batch: LakeBatch, at_step: Callable[[str], None] = no_step
    ) -> Snapshot:
        self.check_follows(before, batch)
        # ``_rejected`` is committed before ``data``, because ``data`` decides where the next batch
        # begins. A kill between the two leaves ``data`` behind. ``snapshot`` then reports the end
        # in ``_rejected`` as unfinished, and the batch is repeated with this very end. ``half``
        # recognises the repetition: the rejected rows are in their table already.
        unfinished = before.unfinished or {}
        half = any(queue in unfinished for queue in batch.ends)
        files = [file for file in batch.files if not half or file.table == DATA]
        table = self._open_table(DATA)
        if table.version() != before.version:
            raise self._other_writer()
        self.move_staged(files)
        at_step("placed")
        if self.definition.bodies is not None and not half:
            self._commit(REJECTED, batch, self._open_table(REJECTED), before.generations)
            at_step("rejected committed")
        self._commit(DATA, batch, table, before.generations)
        at_step("committed")
        return self.snapshot()

    def restart(self, before: Snapshot, begins: Offsets) -> Snapshot:
        """Begin another generation of these queues, with one atomic commit to the table ``data``.

        ``_rejected`` follows with the next batch of these queues.
        """
        if self._open_table(DATA).version() != before.version:
            raise self._other_writer()
        for name in TABLES:
            if self._table_exists(name):
                table = self._open_table(name)
                if GENERATION not in pa.schema(table.schema().to_arrow()).names:
                    table.alter.add_columns(Field(GENERATION, PrimitiveType("integer")))
        self._commit_ranges(
            self._open_table(DATA),
            [],
            {queue: before.ranges[queue].next_generation(begin) for queue, begin in begins.items()},
        )
        return self.snapshot()

    def recover(self) -> None:
        """Create missing tables. Remove staged files of killed writers."""
        schemas = {DATA: data_schema(self.definition)}
        if self.definition.bodies is not None:
            schemas[REJECTED] = rejected_schema(self.definition)
        for name, schema in schemas.items():
            try:
                DeltaTable.create(
                    self.root / name,
                    schema=pa.schema([*schema, *PARTITIONS]),
                    mode="ignore",
                    partition_by=PARTITIONS.names,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:  # another host has just created the table
                self._open_table(name)
        self.clear_staging()

    def _compact(self, files_min: int, size_target: int) -> int:
        return sum(
            self._compact_table(name, files_min, size_target)
            for name in TABLES
            if self._table_exists(name)
        )

    def _compact_table(self, name: str, files_min: int, size_target: int) -> int:
        table = self._open_table(name)
        before = files_of(table, name)
        small: dict[tuple[str, str, int], int] = defaultdict(int)
        for file in before:
            small[file.topic, file.date, file.hour] += file.size < size_target // 2
        for (topic, date, hour), count in small.items():
            if count >= files_min:
                table.optimize.compact(
                    partition_filters=[
                        ("topic", "=", topic),
                        ("date", "=", date),
                        ("hour", "=", str(hour)),
                    ],
                    target_size=size_target,
                )
        after = files_of(self._open_table(name), name)
        if sum(file.rows for file in after) != sum(file.rows for file in before):
            raise LakeError(
                f"{self.root / name}: a compaction has changed the number of rows; go back to "
                f"version {table.version()} with DeltaTable.restore"
            )
        table.vacuum(dry_run=False)
        return len(before) - len(after)

    def paths(self, table: str = DATA) -> list[Path]:
        if not self._table_exists(table):
            return []
        return sorted(Path(each) for each in self._open_table(table).file_uris())

    def _commit(
        self, name: str, batch: LakeBatch, table: DeltaTable, generations: dict[MessageQueue, int]
    ) -> None:
        there = ranges_in_log(table, self.root / name)
        ranges = {}
        for queue, end in batch.ends.items():
            begin = batch.begins[queue]
            generation = generations.get(queue, 0)
            before = there.get(queue)
            if before is None or before.generation < generation:
                before = ArchivedRange(begin, begin, generation=generation)
            if before.end != begin:
                raise self._other_writer()
            ranges[queue] = before.extended_to(end, batch.lost.get(queue, 0))
        self._commit_ranges(
            table, [_add_action(file) for file in batch.files if file.table == name], ranges
        )

    def _commit_ranges(
        self, table: DeltaTable, files: list[AddAction | RemoveAction], ranges: ArchivedRanges
    ) -> None:
        """Commit data files and new offsets of queues to a table, in one step."""
        try:
            table.create_write_transaction(
                files,
                "append",
                table.schema(),
                PARTITIONS.names,
                commit_properties=CommitProperties(
                    app_transactions=transactions_of(ranges), max_commit_retries=0
                ),
            )
        except CommitFailedError:
            raise self._other_writer() from None

    def _other_writer(self) -> LakeInUseError:
        return LakeInUseError(
            f"{self.root}: another writer has committed, so this batch was not committed. Run one "
            "archive per lake, and start it again"
        )

    def _table_exists(self, name: str) -> bool:
        return DeltaTable.is_deltatable(str(self.root / name))

    def _open_table(self, name: str) -> DeltaTable:
        try:
            return DeltaTable(self.root / name)
        except DeltaError as error:
            raise LakeError(
                f"{self.root / name} cannot be read as a Delta table: {error}"
            ) from None


def ranges_in_log(table: DeltaTable, path: Path) -> ArchivedRanges:
    """Read the offsets of all queues from a Delta table's log, as of the table's version.

    The newest checkpoint has all offsets up to its version. The later commits have the changes.
    """
    found: dict[str, int] = {}
    log = path / "_delta_log"
    checkpoints = sorted(
        (int(name[1]), file)
        for file in log.iterdir()
        if (name := _CHECKPOINT.fullmatch(file.name)) and int(name[1]) <= table.version()
    )
    first = 0
    if checkpoints:
        newest = checkpoints[-1][0]
        first = newest + 1
        for version, file in checkpoints:
            if version == newest and "txn" in pq.read_schema(file).names:
                for each in pq.read_table(file, columns=["txn"])["txn"].to_pylist():
                    if each is not None:
                        found[each["appId"]] = each["version"]
    for version in range(first, table.version() + 1):
        for line in (log / f"{version:020d}.json").read_bytes().splitlines():
            action = json.loads(line).get("txn")
            if action is not None:
                found[action["appId"]] = action["version"]
    parts: dict[MessageQueue, dict[str, int]] = defaultdict(dict)
    for app_id, number in found.items():
        if app_id.startswith(APP):
            what, topic, broker, queue_id = json.loads(app_id.removeprefix(APP))
            parts[MessageQueue(topic, broker, queue_id)][what] = number
    return {queue: ArchivedRange(**each) for queue, each in sorted(parts.items())}


def transactions_of(ranges: ArchivedRanges) -> list[Transaction]:
    """Return the transactions that store ranges of queues in a log."""
    return [
        Transaction(_app_id(what, queue), getattr(archived, what))
        for queue, archived in ranges.items()
        for what in (_NUMBERS if archived.generation else _NUMBERS[:3])
    ]


def _app_id(what: str, queue: MessageQueue) -> str:
    name = [what, queue.topic, queue.broker_name, queue.queue_id]
    return APP + json.dumps(name, separators=(",", ":"))


def _add_action(file: DataFile) -> AddAction:
    return AddAction(
        path=file.path.removeprefix(f"{file.table}/"),
        size=file.size,
        partition_values={"topic": file.topic, "date": file.date, "hour": str(file.hour)},
        modification_time=0,
        data_change=True,
        stats=file.stats,
    )


def _offset_bounds(action: dict[str, Any]) -> tuple[int, int] | None:
    low, high = action.get("min.queueOffset"), action.get("max.queueOffset")
    return None if low is None or high is None else (low, high)


def files_of(table: DeltaTable, name: str) -> list[DataFile]:
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        DataFile(
            name=each["path"].rpartition("/")[2],
            table=name,
            topic=each["partition.topic"],
            date=each["partition.date"].isoformat(),
            hour=each["partition.hour"],
            rows=each["num_records"],
            size=each["size_bytes"],
            stats=stats_of([_offset_bounds(each)]),
        )
        for each in actions
    ]
