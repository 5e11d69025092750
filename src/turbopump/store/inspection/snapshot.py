"""Files of a store when its check began.

Beside a running broker, the end of the check is read before the files are listed, so that they
contain everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.store.files import StoreFile, StorePaths
from turbopump.store.inspection.index_check import IndexHeader, read_headers
from turbopump.store.inspection.queue_check import QueueCheck, QueueUnits
from turbopump.store.inspection.report import Findings
from turbopump.store.inspection.small_files import RunState, read_run_state
from turbopump.store.inspection.store_files import StoreFiles, list_store
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE

WINDOWS_SIZE: Final = 64 * 1024 * 1024
"""Memory in bytes for the windows of all queues together."""
_NO_END: Final = 1 << 62


@dataclass(slots=True)
class StoreSnapshot:
    """Files of a store at the time when its check began.

    Beside a running broker, ``end`` is the end of the newest message in any queue. Later messages
    are not checked.
    """

    state: RunState
    store: StoreFiles
    end: int
    all_queues: list[QueueCheck]
    headers: list[IndexHeader]
    queues: dict[tuple[str, int], QueueCheck] = field(init=False)

    def __post_init__(self) -> None:
        self.queues = {(queue.topic, queue.queue_id): queue for queue in self.all_queues}

    @property
    def units_checked(self) -> bool:
        """False if the queues are in RocksDB, which is not read."""
        return not self.store.unit_files_elsewhere

    def segment_at(self, offset: int) -> StoreFile | None:
        return next(
            (segment for segment in self.store.segments if segment.start <= offset < segment.end),
            None,
        )


def take_snapshot(
    disk: ReadOnlyDisk, paths: StorePaths, log_roots: Sequence[Path], findings: Findings
) -> StoreSnapshot:
    """List the files of a store, and read the headers of its index files.

    Faults are reported to ``findings``. Raises StoreError for a directory that is no store.
    """
    state = read_run_state(disk, paths, findings)
    end = (
        _dispatched(disk, list_store(disk, paths, Findings(), log_roots))
        if state.running
        else _NO_END
    )
    # listed again, so that it contains everything before ``end``
    store = list_store(disk, paths, findings, log_roots)
    window = min(max(WINDOWS_SIZE // 20 // max(len(store.queues), 1), 64), 4096)
    queues = [QueueCheck(disk, files, window) for files in store.queues.values()]
    return StoreSnapshot(state, store, end, queues, read_headers(disk, store.indexes))


def _dispatched(disk: ReadOnlyDisk, store: StoreFiles) -> int:
    """Return the log offset behind the newest message with a queue unit.

    Every message before this log offset has already got its unit.
    """
    newest = store.log_start
    for files in store.queues.values():
        units = QueueUnits(disk, files, 1)
        offset, size = units.target(units.max_index - 1)
        newest = max(newest, offset + size if size != NO_MESSAGE_SIZE else offset)
    return newest
