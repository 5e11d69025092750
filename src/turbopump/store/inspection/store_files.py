"""The files of a store directory as they lie there, with sizes taken from the files and not from
any configuration.

The rule: names and sizes only. What cannot belong to a store is a finding; a directory that is no
store is one clear StoreError. It must not know what is inside the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from turbopump.errors import StoreError
from turbopump.store.batch_consume_queue import BATCH_UNIT_SIZE
from turbopump.store.consume_queue import UNIT_SIZE
from turbopump.store.files import StorePaths, segment_offset
from turbopump.store.inspection.findings import Finding, Findings
from turbopump.store.inspection.origin import noted_roots
from turbopump.store.read_only_disk import ReadOnlyDisk


class StoreFile(NamedTuple):
    """A file of a row: ``start`` is the offset of its first byte in the row."""

    start: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue, in order."""

    topic: str
    queue_id: int
    files: list[StoreFile]


@dataclass(slots=True)
class StoreFiles:
    """Everything found below a store's root. ``batch_queues`` are those of topics with
    ``queue.type=BatchCQ``."""

    paths: StorePaths
    segments: list[StoreFile] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueFiles] = field(default_factory=dict)
    indexes: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    batch_queues: dict[tuple[str, int], QueueFiles] = field(default_factory=dict)
    unit_files_elsewhere: bool = False

    def relative(self, path: Path) -> str:
        """A path as reports name it."""
        return (
            str(path.relative_to(self.paths.root))
            if path.is_relative_to(self.paths.root)
            else str(path)
        )

    @property
    def log_start(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def log_size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)


def list_store(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings, log_roots: Sequence[Path] = ()
) -> StoreFiles:
    """The files below ``paths.root``; ``log_roots`` where segments lie elsewhere
    (``storePathCommitLog``). Raises StoreError for a directory that is no store, OSError for one
    that cannot be read."""
    roots = list(log_roots) or [paths.commit_log]
    _refuse_wrong_directory(disk, paths, roots)
    store = StoreFiles(paths)
    rows = [file for root in roots for file in _row(disk, root, findings, store)]
    store.segments = sorted(rows)
    _judge_segments(store, findings)
    _judge_roots(disk, store, findings)
    store.queues = _queues(disk, paths.consume_queues, UNIT_SIZE, findings, store)
    store.batch_queues = _queues(disk, paths.batch_consume_queues, BATCH_UNIT_SIZE, findings, store)
    index = paths.index
    store.indexes = [
        index / name for name in disk.list_directory(index) if len(name) == 17 and name.isdigit()
    ]
    store.tables = [
        paths.config / name for name in disk.list_directory(paths.config) if name.endswith(".json")
    ]
    store.unit_files_elsewhere = not store.queues and disk.is_directory(
        paths.root / "consumequeue_rocksdb"
    )
    return store


def _queues(
    disk: ReadOnlyDisk, root: Path, unit_size: int, findings: Findings, store: StoreFiles
) -> dict[tuple[str, int], QueueFiles]:
    queues = {}
    for topic in disk.list_directory(root):
        for name in disk.list_directory(root / topic):
            if name.isascii() and name.isdigit():
                files = _row(disk, root / topic / name, findings, store)
                _judge_queue_files(store, topic, int(name), files, unit_size, findings)
                queues[topic, int(name)] = QueueFiles(topic, int(name), files)
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
            f"{root} holds segments but is no store directory: give the directory above it, "
            f"{root.resolve().parent}"
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
        f"{root} is no store directory, it has no {log_roots[0].name} directory: {hint}"
    )


def _row(
    disk: ReadOnlyDisk, directory: Path, findings: Findings, store: StoreFiles
) -> list[StoreFile]:
    """The files of a row, in order; what else lies in its directory is foreign."""
    files = []
    for name in disk.list_directory(directory):
        path = directory / name
        start = segment_offset(name)
        size = disk.file_size(path)
        if start is not None and size is not None:
            files.append(StoreFile(start, size, path))
        elif size is not None and not disk.is_directory(path):
            findings.add(
                Finding(
                    "foreign_file",
                    f"{name!r} is no file of the store ({size} bytes)",
                    store.relative(path),
                )
            )
    return files


def _judge_segments(store: StoreFiles, findings: Findings) -> None:
    segments = store.segments
    usual = Counter(segment.size for segment in segments).most_common(1)
    for number, segment in enumerate(segments):
        if segment.size != usual[0][0]:
            findings.add(
                Finding(
                    "segment_size",
                    f"it has {segment.size} bytes, the other segments {usual[0][0]}",
                    store.relative(segment.path),
                    segment.start,
                )
            )
        if number and segments[number - 1].end > segment.start:
            other = store.relative(segments[number - 1].path)
            findings.add(
                Finding(
                    "segment_size",
                    f"it overlaps {other}",
                    store.relative(segment.path),
                    segment.start,
                )
            )
        if number and segments[number - 1].end < segment.start:
            end = segments[number - 1].end
            findings.add(
                Finding(
                    "log_gap",
                    f"{segment.start - end} bytes of the log are missing",
                    offset=end,
                    end=segment.start,
                )
            )


def _judge_roots(disk: ReadOnlyDisk, store: StoreFiles, findings: Findings) -> None:
    """Whether the log has more, in a directory that was not looked at. (A root may be without the
    noted segment: it is deleted one day.)"""
    looked_at = {segment.path.parent for segment in store.segments}
    starts = {segment.start for segment in store.segments}
    for root, start in noted_roots(disk, store.paths).items():
        if root not in looked_at and start not in starts and start >= store.log_start:
            text = (
                f"segment {start:020d} was in {root}, where nothing was looked for or found: "
                "give it with --commit-log"
            )
            findings.add(Finding("log_root_missing", text, offset=start))


def _judge_queue_files(
    store: StoreFiles,
    topic: str,
    queue_id: int,
    files: list[StoreFile],
    unit_size: int,
    findings: Findings,
) -> None:
    usual = Counter(file.size for file in files).most_common(1)
    for number, file in enumerate(files):
        fault = None
        if file.size != usual[0][0]:
            fault = f"it has {file.size} bytes, the other files of the queue {usual[0][0]}"
        elif file.size == 0 or file.size % unit_size:
            fault = f"its {file.size} bytes are not whole units of {unit_size}"
        elif number and files[number - 1].end != file.start:
            fault = (
                f"it does not follow {files[number - 1].path.name}: a file between them is missing"
            )
        if fault is not None:
            findings.add(
                Finding(
                    "queue_file", fault, store.relative(file.path), topic=topic, queue_id=queue_id
                )
            )
