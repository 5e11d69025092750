"""Content of a store without a full read: files, sizes, ends, counts.

A summary is cheap. Of the log it reads only the first message of each segment, and the part behind
the newest message of any queue. It reports unreadable files only; ``verification.py`` checks the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.message.entry import store_timestamp_of
from turbopump.store.files import StoreFile, StorePaths
from turbopump.store.inspection.index_check import IndexHeader, read_headers
from turbopump.store.inspection.log_walk import LogWalk, bad_finding
from turbopump.store.inspection.queue_check import QueueCheck
from turbopump.store.inspection.report import Findings
from turbopump.store.inspection.small_files import (
    ReadTable,
    RunState,
    TableFile,
    read_checkpoint,
    read_run_state,
    read_tables,
)
from turbopump.store.inspection.store_files import StoreFiles, list_store
from turbopump.store.log.scanner import BadRange
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.recovery.checkpoint import CheckpointFields


class SegmentSummary(NamedTuple):
    """Segment of the log in a summary.

    ``first_stored_ms`` is the time at which its first message was stored, or None without a
    message.
    """

    file: str
    start: int
    size: int
    first_stored_ms: int | None


class QueueSummary(NamedTuple):
    """Consume queue in a summary.

    ``min_index`` and ``max_index`` are the offsets that clients see. Units that point to messages
    before the start of the log are not counted.
    """

    topic: str
    queue_id: int
    min_index: int
    max_index: int
    files: int


@dataclass(slots=True)
class StoreSummary:
    """Summary of a store, as ``inspect_store`` returns it.

    - ``log_end``: end of the last valid message.
    - ``log_size``: number of bytes from the start of the log to ``log_end``.
    """

    root: Path
    segments: list[SegmentSummary]
    log_start: int
    log_end: int
    queues: list[QueueSummary]
    indexes: list[IndexHeader]
    checkpoint: CheckpointFields | None
    state: RunState
    tables: list[TableFile]
    findings: Findings

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a dict for JSON output."""
        checkpoint = self.checkpoint
        return {
            "store": str(self.root),
            "running": self.state.running,
            "lock_pid": self.state.lock.pid,
            "abort": self.state.abort,
            "log": {
                "start": self.log_start,
                "end": self.log_end,
                "segments": [one._asdict() for one in self.segments],
            },
            "queues": [one._asdict() for one in self.queues],
            "indexes": [
                {
                    "file": index.path.name,
                    "slots": index.slots,
                    "slots_used": index.slots_used,
                    "entries": index.count - 1,
                    "entries_max": index.entries - 1 if index.slots else None,
                    "begin_ms": index.begin_ms,
                    "end_ms": index.end_ms,
                    "begin_offset": index.begin_offset,
                    "end_offset": index.end_offset,
                }
                for index in self.indexes
            ],
            "checkpoint": checkpoint._asdict() if checkpoint is not None else None,
            "tables": [
                {"file": table.path.name, "size": table.size, "entries": table.entries}
                for table in self.tables
            ],
            "findings": [finding.as_json() for finding in self.findings.kept],
        }


def inspect_store(
    paths: StorePaths,
    *,
    read_table: ReadTable,
    log_roots: Sequence[Path] = (),
    disk: ReadOnlyDisk | None = None,
) -> StoreSummary:
    """Return a summary of the store at ``paths``, without reading all of its files.

    Raises StoreError for a directory that is no store, OSError for one that cannot be read.
    """
    disk = disk or ReadOnlyDisk()
    findings = Findings()
    state = read_run_state(disk, paths, findings)
    store = list_store(disk, paths, findings, log_roots)
    newest, queues = _queues(disk, store)
    return StoreSummary(
        paths.root,
        [
            SegmentSummary(
                store.relative(one.path), one.start, one.size, _first_stored_ms(disk, one)
            )
            for one in store.segments
        ],
        store.log_start,
        _log_end(disk, store, newest, findings, running=state.running),
        queues,
        read_headers(disk, store.indexes),
        read_checkpoint(disk, paths, findings),
        state,
        read_tables(disk, store, read_table, findings),
        findings,
    )


def _queues(disk: ReadOnlyDisk, store: StoreFiles) -> tuple[int, list[QueueSummary]]:
    """Return the log offset of the newest message with a queue unit, and a summary of each queue.

    The offset comes first. It is −1 if no queue has a message.
    """
    newest, queues = -1, []
    for files in store.queues.values():
        check = QueueCheck(disk, files, window_units=64)
        offset, size = check.units.target(check.units.max_index - 1)
        if 0 < size != NO_MESSAGE_SIZE:
            newest = max(newest, offset)
        first = check.first_index(store.log_start)
        queues.append(QueueSummary(files.topic, files.queue_id, first, check.end, len(files.files)))
    return newest, queues


def _first_stored_ms(disk: ReadOnlyDisk, segment: StoreFile) -> int | None:
    entry = next(LogWalk(disk, [segment]).entries(segment.start, segment.start + 1), None)
    return store_timestamp_of(entry[1]) if entry is not None else None


def _log_end(
    disk: ReadOnlyDisk, store: StoreFiles, newest: int, findings: Findings, *, running: bool
) -> int:
    """Return the end of the last valid message in the log.

    The search starts at the newest message of any queue. If no valid entry is there, it starts at
    the newest segment that begins with one.
    """
    if next(LogWalk(disk, store.segments).entries(newest, newest + 1), None) is None:
        begun = [one for one in store.segments if _first_stored_ms(disk, one) is not None]
        newest = begun[-1].start if begun else store.log_start

    def on_bad(bad: BadRange) -> None:
        if not (bad.tail and running):  # otherwise the broker is still writing the entry
            findings.add_finding(bad_finding(bad, store))

    walk = LogWalk(disk, store.segments, on_bad=on_bad)
    for _ in walk.entries(newest):
        pass
    return walk.end
