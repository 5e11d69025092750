"""Lake of Parquet files, with turbopump's own manifest.

::

    LAKE/_manifest/00000000000000000012.json   one file a version, made exclusively
    LAKE/_removed/00000012/…                   files replaced by a compaction, for an hour

    {"v":1, "version":12, "time_ms":…, "stretches":[["T","broker-a",0,{"begin":0,"end":123}],…],
     "add":[{"name":…},…], "remove":["data/…"], "files":null}

The manifest is written first. Then the files of the version are moved from the staging folder into
the table's folder. So a glob of the table never sees uncommitted rows. Each version has all
offsets. Each tenth version also has the whole list of files; a reader begins there, and older
versions may be deleted. The content of the files is unknown here, except for merging them.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from turbopump.errors import LakeError, LakeInUseError
from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import Offsets
from turbopump.spark.pipelines.lake import (
    DATA,
    GENERATION,
    ArchivedRange,
    ArchivedRanges,
    DataFile,
    Lake,
    LakeBatch,
    Snapshot,
    create_exclusively,
    draft_name,
    drop_left,
    is_older,
    no_step,
    staged_name,
    stats_of,
)

MANIFEST: Final = "_manifest"
REMOVED: Final = "_removed"
FULL_EVERY: Final = 10
"""Interval of versions that contain the whole list of files."""
VERSIONS_KEPT: Final = 100
VERSION: Final = 1
VERSION_RESTARTED: Final = 2
"""Version of a manifest file after the restart of a queue. Older releases, which know one
generation only, refuse this version."""
REMOVED_KEPT_S: Final = 3600
"""Seconds for which files replaced by a compaction are kept for readers with an older list."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Version of the lake, as one file of the manifest describes it."""

    v: int = VERSION
    version: int
    time_ms: int
    ranges: list[tuple[str, str, int, ArchivedRange]] = msgspec.field(name="stretches")
    add: list[DataFile] = []
    remove: list[str] = []
    files: list[DataFile] | None = None


class ParquetLake(Lake):
    """Lake of Parquet files, with a manifest that lists them.

    ``Lake`` describes the methods.
    """

    @property
    def manifest(self) -> Path:
        return self.root / MANIFEST

    def snapshot(self) -> Snapshot:
        numbers = self._version_numbers()
        if not numbers:
            return Snapshot(version=0, ranges={}, files=())
        versions = []
        for number in reversed(numbers):
            versions.append(self._read_version(number))
            if versions[-1].files is not None or number == 1:
                break
            if number - 1 not in numbers:
                raise LakeError(
                    f"{self.manifest}: version {number - 1} is missing, so the list of "
                    "files is unknown. Restore it from a backup"
                )
        oldest = versions.pop()
        files = {file.path: file for file in oldest.files or oldest.add}
        for each in reversed(versions):
            files |= {file.path: file for file in each.add}
            for path in each.remove:
                del files[path]
        newest = versions[0] if versions else oldest
        return Snapshot(
            version=newest.version,
            ranges={
                MessageQueue(topic, broker, queue_id): archived
                for topic, broker, queue_id, archived in newest.ranges
            },
            files=tuple(files.values()),
        )

    def append(
        self, before: Snapshot, batch: LakeBatch, at_step: Callable[[str], None] = no_step
    ) -> Snapshot:
        self.check_follows(before, batch)
        ranges = dict(before.ranges)
        for queue, end in batch.ends.items():
            there = ranges.get(queue, ArchivedRange(batch.begins[queue], end))
            ranges[queue] = there.extended_to(end, batch.lost.get(queue, 0))
        after = Snapshot(
            version=before.version + 1, ranges=ranges, files=(*before.files, *batch.files)
        )
        self._commit(after, add=list(batch.files), remove=[])
        at_step("committed")
        self.move_staged(batch.files)
        at_step("placed")
        return after

    def restart(self, before: Snapshot, begins: Offsets) -> Snapshot:
        ranges = dict(before.ranges)
        for queue, begin in begins.items():
            ranges[queue] = ranges[queue].next_generation(begin)
        after = Snapshot(version=before.version + 1, ranges=ranges, files=before.files)
        self._commit(after, add=[], remove=[])
        return after

    def recover(self) -> None:
        """Repeat the file moves of the newest version, because a killed writer may not have
        finished them.

        The new files of the version are moved into the table, and replaced files are moved out.
        """
        self.manifest.mkdir(exist_ok=True)
        drop_left(self.manifest.glob(".*"), draft_name(""))
        # Only the newest version can have files that are not moved yet: a writer moves the files of
        # a version before it commits the next one, and the lock admits one writer. All moves may be
        # repeated: a file at its place stays, and a removed one is gone.
        numbers = self._version_numbers()
        if numbers:
            newest = self._read_version(numbers[-1])
            self._move_removed(newest)
            self.move_staged(newest.add)
        self.clear_staging()

    def _compact(self, files_min: int, size_target: int) -> int:
        before = self.snapshot()
        small: dict[tuple[str, str, str, int], list[DataFile]] = defaultdict(list)
        for file in before.files:
            if file.size < size_target // 2:
                small[file.table, file.topic, file.date, file.hour].append(file)
        gone: list[DataFile] = []
        made: list[DataFile] = []
        for files in small.values():
            if len(files) >= files_min:
                gone += files
                made += [self._merge_files(group) for group in _group_files(files, size_target)]
        if not gone:
            return 0
        gone_paths = {file.path for file in gone}
        kept = [file for file in before.files if file.path not in gone_paths]
        after = Snapshot(version=before.version + 1, ranges=before.ranges, files=(*kept, *made))
        assert after.rows() == before.rows(), (after.rows(), before.rows())
        version = self._commit(after, add=made, remove=sorted(gone_paths))
        self._move_removed(version)
        self.move_staged(made)
        return len(gone) - len(made)

    def paths(self, table: str = DATA) -> list[Path]:
        found = []
        for file in self.snapshot().files:
            if file.table == table:
                placed = self.root / file.path
                staged = self.staging / file.name
                found.append(staged if staged.exists() and not placed.exists() else placed)
        return sorted(found)

    def _commit(self, after: Snapshot, *, add: list[DataFile], remove: list[str]) -> Version:
        version = Version(
            v=VERSION_RESTARTED if after.generations else VERSION,
            version=after.version,
            time_ms=time.time_ns() // 1_000_000,
            ranges=_ranges_listed(after.ranges),
            add=add,
            remove=remove,
            files=None if after.version % FULL_EVERY else list(after.files),
        )
        try:
            create_exclusively(self._version_path(after.version), msgspec.json.encode(version))
        except FileExistsError:
            raise LakeInUseError(
                f"{self.root}: another writer has committed version {after.version}, so this batch "
                "was not committed. Run one archive per lake, and start it again"
            ) from None
        self._drop_old_versions(after.version)
        return version

    def _drop_old_versions(self, newest: int) -> None:
        """Delete old versions from the manifest, if a reader can begin at the version ``newest``.

        A reader can begin there if this version has the whole list of files. The last
        ``VERSIONS_KEPT`` versions stay.
        """
        if newest % FULL_EVERY == 0:
            for number in self._version_numbers():
                if number <= newest - VERSIONS_KEPT:
                    self._version_path(number).unlink(missing_ok=True)

    def _move_removed(self, version: Version) -> None:
        """Move replaced files out of the folder of their table.

        These are the files that ``version`` has replaced. Files that were moved long ago are
        deleted. A writer on another host may do the same at the same moment.
        """
        apart = self.root / REMOVED
        for folder in apart.glob("*"):
            if is_older(folder, REMOVED_KEPT_S):
                shutil.rmtree(folder, ignore_errors=True)  # the rest is removed the next time
        for path in version.remove:
            target = apart / f"{version.version:08d}" / path
            if (self.root / path).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    os.replace(self.root / path, target)

    def _merge_files(self, files: list[DataFile]) -> DataFile:
        """Merge several files of one partition into one staged file."""
        first = files[0]
        name = staged_name(f"compacted-{uuid.uuid4().hex}.parquet")
        target = self.staging / name
        gone = [file.path for file in files if not (self.root / file.path).exists()]
        if gone:
            raise LakeError(
                f"{self.root / gone[0]} is missing, though it was committed: restore it "
                "from a backup"
            )
        schema = max((pq.read_schema(self.root / each.path) for each in files), key=len)
        with target.open("xb") as out:
            with pq.ParquetWriter(out, schema, compression="zstd") as writer:
                for file in files:
                    for batch in _row_groups(self.root / file.path):
                        if GENERATION in schema.names and GENERATION not in batch.column_names:
                            nulls = pa.nulls(batch.num_rows, pa.int32())
                            batch = batch.append_column(GENERATION, nulls)
                        writer.write_table(batch)
            out.flush()
            os.fsync(out.fileno())
        found = pq.read_metadata(target).num_rows
        rows = sum(file.rows for file in files)
        if found != rows:
            raise LakeError(
                f"{self.root}: {len(files)} files of {first.path.rpartition('/')[0]} have "
                f"{found} rows, but the manifest has {rows}: nothing was changed. Was a "
                "file replaced?"
            )
        size = target.stat().st_size
        stats = stats_of([file.offsets() for file in files])
        return msgspec.structs.replace(first, name=name, rows=rows, size=size, stats=stats)

    def _version_numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.manifest.glob("[0-9]*.json"))

    def _version_path(self, number: int) -> Path:
        return self.manifest / f"{number:020d}.json"

    def _read_version(self, number: int) -> Version:
        try:
            found = msgspec.json.decode(self._version_path(number).read_bytes(), type=Version)
        except msgspec.DecodeError as error:
            raise LakeError(
                f"{self._version_path(number)} cannot be read: {error}. Restore it from a backup"
            ) from None
        if found.v not in (VERSION, VERSION_RESTARTED) or found.version != number:
            raise LakeError(
                f"{self._version_path(number)} is not version {number} of this lake: restore it "
                "from a backup"
            )
        return found


def _ranges_listed(ranges: ArchivedRanges) -> list[tuple[str, str, int, ArchivedRange]]:
    return [
        (queue.topic, queue.broker_name, queue.queue_id, ranges[queue]) for queue in sorted(ranges)
    ]


def _group_files(files: list[DataFile], size_target: int) -> Iterator[list[DataFile]]:
    """Group files in the order of their names. A group has at most the target size in bytes."""
    group: list[DataFile] = []
    for file in sorted(files, key=lambda each: each.name):
        if group and sum(each.size for each in group) + file.size > size_target:
            yield group
            group = []
        group.append(file)
    yield group


def _row_groups(path: Path) -> Iterator[Any]:
    """Yield the rows of a file as tables of about 131,000 rows."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=131_072):
            yield pa.Table.from_batches([batch])
