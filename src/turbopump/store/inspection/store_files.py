"""Files in a store directory. Their sizes come from the files, not from a configuration.

Only names and sizes are examined; the content of the files is unknown here. A file that cannot
belong to a store is a finding. A directory that is no store raises StoreError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from turbopump.disk.disk import Disk
from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import StoreError
from turbopump.store.files import StoreFile, StorePaths, segment_offset
from turbopump.store.inspection.report import Findings
from turbopump.store.provenance import Provenance
from turbopump.store.queues.consume_queue import UNIT_SIZE


@dataclass(slots=True)
class QueueFiles:
    """Files of one consume queue, in order."""

    topic: str
    queue_id: int
    files: list[StoreFile]


@dataclass(slots=True)
class StoreFiles:
    """Files found below the root directory of a store.

    ``batch_topics`` have Apache's files of batch queues, which are not examined.
    """

    paths: StorePaths
    segments: list[StoreFile] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueFiles] = field(default_factory=dict)
    indexes: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    batch_topics: frozenset[str] = frozenset()
    unit_files_elsewhere: bool = False

    def relative(self, path: Path) -> str:
        """Return a path as reports show it, relative to the store."""
        if path.is_relative_to(self.paths.root):
            path = path.relative_to(self.paths.root)
        return str(path)

    @property
    def log_start(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def log_size(self) -> int:
        """Size of all segments of the log in bytes."""
        return sum(segment.size for segment in self.segments)


def list_store(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings, log_roots: Sequence[Path] = ()
) -> StoreFiles:
    """List the files of a store.

    ``log_roots`` are other directories with segments (``storePathCommitLog``). Faults are reported
    to ``findings``. Raises StoreError for a directory that is no store, OSError for one that cannot
    be read.
    """
    roots = list(log_roots) or [paths.commit_log]
    _refuse_wrong_directory(disk, paths, roots)
    store = StoreFiles(paths)
    rows = [file for root in roots for file in _row(disk, root, findings, store)]
    store.segments = sorted(rows)
    _judge_segments(store, findings)
    _judge_roots(disk, store, findings)
    store.queues = _queues(disk, paths.consume_queues, findings, store)
    store.batch_topics = frozenset(disk.list_directory(paths.batch_consume_queues))
    index = paths.index
    store.indexes = [
        index / name for name in disk.list_directory(index) if len(name) == 17 and name.isdigit()
    ]
    store.tables = [
        paths.config / name for name in disk.list_directory(paths.config) if name.endswith(".json")
    ]
    # RocksDB has a file CURRENT. RocketMQ: 5.3.3 keeps it in consumequeue, other versions apart.
    store.unit_files_elsewhere = not store.queues and (
        "CURRENT" in disk.list_directory(paths.consume_queues)
        or disk.is_directory(paths.root / "consumequeue_rocksdb")
    )
    return store


def _queues(
    disk: ReadOnlyDisk, root: Path, findings: Findings, store: StoreFiles
) -> dict[tuple[str, int], QueueFiles]:
    queues = {}
    for topic in disk.list_directory(root):
        for name in disk.list_directory(root / topic):
            if name.isascii() and name.isdigit():
                files = _row(disk, root / topic / name, findings, store)
                queue = queues[topic, int(name)] = QueueFiles(topic, int(name), files)
                _judge_queue_files(store, queue, findings)
    return queues


def _refuse_wrong_directory(
    disk: ReadOnlyDisk, paths: StorePaths, log_roots: Sequence[Path]
) -> None:
    root = paths.root
    if not disk.is_directory(root):
        raise StoreError(f"{root} is not a directory")
    if any(disk.is_directory(one) for one in log_roots):
        return
    if any(segment_offset(name) is not None for name in disk.list_directory(root)):
        raise StoreError(
            f"{root} holds segments, but is no store directory: give the directory above "
            f"it, {root.resolve().parent}"
        )
    inside = [
        name for name in disk.list_directory(root) if disk.is_directory(root / name / "commitlog")
    ]
    noted = ",".join(map(str, noted_roots(disk, paths)))
    if noted:
        hint = f"its log was in {noted}, give that as --commit-log"
    else:
        hint = (
            f"did you mean {root / inside[0]}?"
            if inside
            else ("give the directory that storePathRootDir names")
        )
    raise StoreError(
        f"{root} is no store directory, because it has no {log_roots[0].name} directory: {hint}"
    )


def _row(
    disk: ReadOnlyDisk, directory: Path, findings: Findings, store: StoreFiles
) -> list[StoreFile]:
    """Return the files of a directory, in order, if their names are offsets.

    Other files in the directory are reported as foreign.
    """
    files = []
    for name in disk.list_directory(directory):
        path = directory / name
        start = segment_offset(name)
        size = disk.file_size(path)
        if start is not None and size is not None:
            files.append(StoreFile(start, size, path))
        elif size is not None and not disk.is_directory(path):
            findings.add(
                "foreign_file",
                f"{name!r} ({size} bytes) does not belong to a store",
                store.relative(path),
            )
    return files


def _judge_segments(store: StoreFiles, findings: Findings) -> None:
    segments = store.segments
    usual = Counter(segment.size for segment in segments).most_common(1)
    for number, segment in enumerate(segments):
        if segment.size != usual[0][0]:
            findings.add(
                "segment_size",
                f"it has {segment.size} bytes, the other segments {usual[0][0]}",
                store.relative(segment.path),
                segment.start,
            )
        if number and segments[number - 1].end > segment.start:
            other = store.relative(segments[number - 1].path)
            findings.add(
                "segment_size", f"it overlaps {other}", store.relative(segment.path), segment.start
            )
        if number and segments[number - 1].end < segment.start:
            end = segments[number - 1].end
            findings.add(
                "log_gap",
                f"{segment.start - end} bytes of the log are missing",
                offset=end,
                end=segment.start,
            )


def _judge_roots(disk: ReadOnlyDisk, store: StoreFiles, findings: Findings) -> None:
    """Report a recorded directory of the log that was not listed.

    A listed directory may lack its recorded segment, because retention deletes each segment one
    day.
    """
    looked_at = {segment.path.parent for segment in store.segments}
    starts = {segment.start for segment in store.segments}
    for root, start in noted_roots(disk, store.paths).items():
        if root not in looked_at and start not in starts and start >= store.log_start:
            text = (
                f"segment {start:020d} was in {root}, which was not searched or has no "
                "segments: give it with --commit-log"
            )
            findings.add("log_root_missing", text, offset=start)


def _judge_queue_files(store: StoreFiles, queue: QueueFiles, findings: Findings) -> None:
    files = queue.files
    usual = Counter(file.size for file in files).most_common(1)
    for number, file in enumerate(files):
        fault = None
        if file.size != usual[0][0]:
            fault = f"it has {file.size} bytes, the other files of the queue {usual[0][0]}"
        elif file.size == 0 or file.size % UNIT_SIZE:
            fault = f"its {file.size} bytes are not whole units of {UNIT_SIZE}"
        elif number and files[number - 1].end != file.start:
            fault = (
                f"it does not follow {files[number - 1].path.name}: a file between them is missing"
            )
        if fault is not None:
            findings.add(
                "queue_file",
                fault,
                store.relative(file.path),
                topic=queue.topic,
                queue_id=queue.queue_id,
            )


def provenance_of(disk: ReadOnlyDisk, paths: StorePaths) -> Provenance:
    """Return Turbopump's own record of who wrote a store. The record is not loaded yet."""
    return Provenance(cast(Disk, disk), paths.provenance)  # only read, never saved


def noted_roots(disk: ReadOnlyDisk, paths: StorePaths) -> dict[Path, int]:
    """Return the directories of the log that Turbopump has recorded.

    Each has the offset of its newest segment at the time of the record.
    """
    roots = provenance_of(disk, paths).read_roots()
    return {Path(root): start for root, start in roots.items()}
