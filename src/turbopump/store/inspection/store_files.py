"""Files in a store directory, with sizes read from the files and not from a configuration.

Only names and sizes are examined; the content of the files is unknown here. A file that cannot
belong to a store is a finding. A directory that is no store raises StoreError.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from turbopump.disk.disk import Disk
from turbopump.disk.read_only_disk import LockState, ReadOnlyDisk
from turbopump.errors import StoreError, TurbopumpError
from turbopump.store.files import StoreFile, StorePaths, segment_offset
from turbopump.store.inspection.report import Findings
from turbopump.store.provenance import LOCK_MARK, LastRun, Provenance
from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.recovery.checkpoint import CHECKPOINT_SIZE, CheckpointFields


@dataclass(slots=True)
class QueueFiles:
    """Files of one queue, in order."""

    topic: str
    queue_id: int
    files: list[StoreFile]


@dataclass(slots=True)
class StoreFiles:
    """Files found below a store's root. ``batch_topics`` have Apache's files of batch queues, which
    are not examined."""

    paths: StorePaths
    segments: list[StoreFile] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueFiles] = field(default_factory=dict)
    indexes: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    batch_topics: frozenset[str] = frozenset()
    unit_files_elsewhere: bool = False

    def relative(self, path: Path) -> str:
        """Return a path in the form used in reports."""
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
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)


def list_store(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings, log_roots: Sequence[Path] = ()
) -> StoreFiles:
    """List the files below ``paths.root``. ``log_roots`` are other directories with segments
    (``storePathCommitLog``). Raises StoreError for a directory that is no store, OSError for one
    that cannot be read."""
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
    store.unit_files_elsewhere = not store.queues and disk.is_directory(
        paths.root / "consumequeue_rocksdb"
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
    """Return the files of a row, in order. Other files in its directory are reported as foreign."""
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
                f"{name!r} is no file of the store ({size} bytes)",
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
    """Report a directory of the log that was not listed. (A root may lack its recorded segment,
    which retention deletes one day.)"""
    looked_at = {segment.path.parent for segment in store.segments}
    starts = {segment.start for segment in store.segments}
    for root, start in noted_roots(disk, store.paths).items():
        if root not in looked_at and start not in starts and start >= store.log_start:
            text = (
                f"segment {start:020d} was in {root}, where nothing was looked for or found: "
                "give it with --commit-log"
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


# --- Small files of a store: checkpoint, abort, lock, JSON tables. The caller passes the parser of
# tables, since the store does not know the JSON dialect.

ReadTable = Callable[[bytes], Any]
"""Parses the text of a table into dicts, lists and plain values. Raises ValueError or a
TurbopumpError for invalid text."""

_MAIN_MEMBERS: Final = {
    "topics": "topicConfigTable",
    "subscriptionGroup": "subscriptionGroupTable",
    "consumerOffset": "offsetTable",
    "delayOffset": "offsetTable",
    "queueLocks": "locks",
    "consumerFilter": "filterDataByTopic",
    "topicQueueMapping": "topicQueueMappingDetailMap",
    "consumerOrderInfo": "table",
    "messageRequestMode": "messageRequestModeMap",
    "lmqConsumerOffset": "offsetTable",
}
"""Member of each table whose entries are counted. For other tables, every member that is an object
is counted."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Present user of the store, and end of the last run.

    - ``abort``: there is an abort file.
    - ``unfinished``: the last run did not stop cleanly, by the abort file or Turbopump's own
      record.
    - ``ours``: that run was Turbopump's.
    """

    abort: bool
    ours: bool
    lock: LockState
    unfinished: bool

    @property
    def running(self) -> bool:
        return self.lock.held

    @property
    def crashed(self) -> bool:
        return self.unfinished and not self.lock.held


@dataclass(frozen=True, slots=True)
class TableFile:
    """JSON table and its number of entries, which is None if the table cannot be read."""

    path: Path
    size: int
    entries: int | None
    content: Any = None


def read_run_state(disk: ReadOnlyDisk, paths: StorePaths, findings: Findings) -> RunState:
    """Return the state of the last run: a broker has the store open, or left it without a clean
    stop, or stopped cleanly."""
    abort = disk.read_file(paths.abort)
    our_own = abort is not None and _process_id(abort) == os.getpid()
    # Our own lock is not queried: closing the lock file here would release it.
    lock = LockState(True, os.getpid()) if our_own else disk.lock_state(paths.lock)
    found = LOCK_MARK if our_own else disk.read_file(paths.lock) or b""
    last = LastRun.of(found, abort, _provenance(disk, paths))
    state = RunState(abort is not None, last.crashed_here, lock, not last.clean)
    if state.running:
        by = f"process {lock.pid} holds it" if lock.pid is not None else "its lock is held"
        findings.add("running", f"a broker has the store open, {by}", "lock")
    elif state.crashed:
        file = "abort" if state.abort else paths.provenance.name
        findings.add(
            "unclean_stop",
            "the last broker was killed or lost its power; the next one recovers",
            file,
        )
    return state


def read_checkpoint(
    disk: ReadOnlyDisk, paths: StorePaths, findings: Findings
) -> CheckpointFields | None:
    """Return the fields of the checkpoint; None if it is missing or unreadable."""
    data = disk.read_file(paths.checkpoint)
    if data is None:
        return None
    if len(data) != CHECKPOINT_SIZE:
        findings.add(
            "checkpoint",
            f"it has {len(data)} bytes; a checkpoint has {CHECKPOINT_SIZE}",
            "checkpoint",
        )
    if len(data) < 5 * 8:
        return None
    fields = CheckpointFields.decode(data)
    for name in ("log_timestamp", "queues_timestamp", "index_timestamp"):
        if not 0 <= getattr(fields, name) < 1 << 43:  # the year 2248
            findings.add(
                "checkpoint", f"its {name} {getattr(fields, name)} is no time in ms", "checkpoint"
            )
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) < -1:
            findings.add(
                "checkpoint", f"its {name} {getattr(fields, name)} is no offset", "checkpoint"
            )
    return fields


def judge_checkpoint(
    fields: CheckpointFields, newest_ms: int, log_end: int, findings: Findings
) -> None:
    """Compare the checkpoint with the log's newest message and its end."""
    for name in ("log_timestamp", "queues_timestamp"):
        value = getattr(fields, name)
        if newest_ms < value < 1 << 43:
            text = f"its {name} is {value - newest_ms} ms later than the newest message"
            findings.add("checkpoint_ahead", text, "checkpoint")
    for name in ("master_flushed_offset", "confirmed_offset"):
        if getattr(fields, name) > log_end:
            text = f"its {name} {getattr(fields, name)} is beyond the end of the log, {log_end}"
            findings.add("checkpoint_ahead", text, "checkpoint")


def read_tables(
    disk: ReadOnlyDisk, store: StoreFiles, read: ReadTable, findings: Findings
) -> list[TableFile]:
    """Read every JSON table below ``config``."""
    tables = []
    for path in store.tables:
        data = disk.read_file(path)
        if data is None:
            continue
        try:
            content = read(data) if data.strip() else {}
        except (ValueError, TurbopumpError) as error:
            there = disk.file_size(path.with_name(path.name + ".bak")) is not None
            bak = "; a broker would use its .bak" if there else "; it has no .bak"
            findings.add("table_unreadable", f"{error}{bak}", store.relative(path))
            tables.append(TableFile(path, len(data), None))
            continue
        tables.append(TableFile(path, len(data), _count(path.stem, content), content))
    return tables


def judge_offsets(
    table: TableFile, ends: Mapping[tuple[str, int], int], findings: Findings
) -> None:
    """Compare the offsets of ``consumerOffset`` with the ends of the queues."""
    offsets = table.content.get("offsetTable") if isinstance(table.content, dict) else None
    for name, queues in (offsets or {}).items():
        topic, _, group = str(name).partition("@")
        for queue_id, offset in (queues if isinstance(queues, dict) else {}).items():
            end = ends.get((topic, int(queue_id))) if str(queue_id).isdigit() else None
            if end is not None and isinstance(offset, int) and offset > end:
                text = f"group {group} is at {offset}; the queue ends at {end}"
                findings.add("offset_beyond_queue", text, topic=topic, queue_id=int(queue_id))


def _process_id(abort: bytes) -> int | None:
    first = abort.split()[:1]
    return int(first[0]) if first and first[0].isdigit() else None


def _count(name: str, content: Any) -> int:
    if not isinstance(content, dict):
        return len(content) if isinstance(content, list) else 0
    member = _MAIN_MEMBERS.get(name)
    if member is not None:
        main = content.get(member)
        return len(main) if isinstance(main, dict | list) else 0
    return sum(
        len(value)
        for key, value in content.items()
        if key != "dataVersion" and isinstance(value, dict)
    )


# --- Turbopump's own records of a store (``store/provenance.py``).


def _provenance(disk: ReadOnlyDisk, paths: StorePaths) -> Provenance:
    return Provenance(cast(Disk, disk), paths.provenance)  # only read, never saved


def crc_rule(
    disk: ReadOnlyDisk, paths: StorePaths, state: RunState
) -> Callable[[int], bool] | None:
    """Return a function that tells if the entry at a log offset was written with a CRC, so that its
    absence is damage. None: no part of the log is known to be ours."""
    if disk.file_size(paths.provenance) is None:
        return None
    provenance = _provenance(disk, paths)
    provenance.load(crashed_here=state.ours, clean=not state.unfinished)
    return provenance.requires_crc


def noted_roots(disk: ReadOnlyDisk, paths: StorePaths) -> dict[Path, int]:
    """Return the recorded directories of the log, each with the offset of its newest segment at
    that time."""
    roots = _provenance(disk, paths).read_roots()
    return {Path(root): start for root, start in roots.items()}
