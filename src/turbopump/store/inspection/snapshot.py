"""What a store consisted of when its check began.

Its one rule: beside a running broker ``end`` is taken before the files are listed, so that the
files have everything before it. It must not judge anything but what listing and opening the files
show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.store.batch_consume_queue import BATCH_UNIT_SIZE
from turbopump.store.consume_queue import NO_MESSAGE_SIZE, UNIT_SIZE
from turbopump.store.files import StorePaths
from turbopump.store.inspection.batch_queue_check import BatchQueueCheck
from turbopump.store.inspection.findings import Findings
from turbopump.store.inspection.index_layout import IndexHeader, read_headers
from turbopump.store.inspection.queue_check import UNIT, QueueCheck, QueueUnits
from turbopump.store.inspection.store_files import StoreFile, StoreFiles, list_store
from turbopump.store.inspection.tables import RunState, read_run_state
from turbopump.store.read_only_disk import ReadOnlyDisk

WINDOWS_SIZE: Final = 64 * 1024 * 1024
"""Bytes for the windows of all queues together."""
_NO_END: Final = 1 << 62


@dataclass(slots=True)
class Snapshot:
    """``end``: beside a running broker, the end of the newest message that a queue has; what lies
    behind it is not judged."""

    state: RunState
    store: StoreFiles
    end: int
    queues: dict[tuple[str, int], QueueCheck] = field(default_factory=dict)
    batch_queues: dict[tuple[str, int], BatchQueueCheck] = field(default_factory=dict)
    headers: list[IndexHeader] = field(default_factory=list)

    @property
    def all_queues(self) -> list[QueueCheck | BatchQueueCheck]:
        return [*self.queues.values(), *self.batch_queues.values()]

    @property
    def units_checked(self) -> bool:
        """False for queues in RocksDB, which are not read."""
        return not self.store.unit_files_elsewhere

    def queue(self, key: tuple[str, int]) -> QueueCheck | BatchQueueCheck | None:
        return self.queues.get(key) or self.batch_queues.get(key)

    def segment_at(self, offset: int) -> StoreFile | None:
        return next(
            (segment for segment in self.store.segments if segment.start <= offset < segment.end),
            None,
        )


def take_snapshot(
    disk: ReadOnlyDisk, paths: StorePaths, log_roots: Sequence[Path], findings: Findings
) -> Snapshot:
    """What is wrong with the listing itself goes to ``findings``. Raises StoreError for a directory
    that is no store."""
    state = read_run_state(disk, paths, findings)
    end = (
        _dispatched(disk, list_store(disk, paths, Findings(), log_roots))
        if state.running
        else _NO_END
    )
    # listed anew: it has all before ``end``
    now = Snapshot(state, list_store(disk, paths, findings, log_roots), end)
    window = min(max(WINDOWS_SIZE // 20 // max(len(now.store.queues), 1), 64), 4096)
    for key, files in now.store.queues.items():
        now.queues[key] = QueueCheck(*key, QueueUnits(disk, files, window))
    for key, files in now.store.batch_queues.items():
        now.batch_queues[key] = BatchQueueCheck(disk, files, window)
    now.headers = read_headers(disk, now.store.indexes)
    return now


def _dispatched(disk: ReadOnlyDisk, store: StoreFiles) -> int:
    """The end of the newest message that any queue has: everything before it has been
    dispatched."""
    newest = store.log_start
    rows = [
        *((files, UNIT_SIZE) for files in store.queues.values()),
        *((files, BATCH_UNIT_SIZE) for files in store.batch_queues.values()),
    ]
    for files, unit_size in rows:
        units = QueueUnits(disk, files, 1, unit_size)
        unit = units.read(units.max_index - 1)
        if unit:
            offset, size, _ = UNIT.unpack_from(unit)
            newest = max(newest, offset + size if size != NO_MESSAGE_SIZE else offset)
    return newest
