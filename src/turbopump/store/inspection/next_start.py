"""Forecast of the next start's work on the queues (``recovery.py``).

It covers the recorded ends, the part of the log to read, and the checks of queues without a record.
It promises nothing that ``Recovery`` does not do. The check of units is unknown here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import TurbopumpError
from turbopump.store.files import StoreFile, StorePaths
from turbopump.store.inspection.index_check import IndexHeader, read_headers
from turbopump.store.inspection.log_walk import LogWalk, entry_facts
from turbopump.store.inspection.queue_check import QueueCheck, QueueUnits
from turbopump.store.inspection.report import Finding, Findings
from turbopump.store.inspection.store_files import (
    ReadTable,
    RunState,
    StoreFiles,
    index_names,
    list_store,
    read_run_state,
)
from turbopump.store.provenance import APACHE_LOCK_MARK
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.queues.queue_ends import NotedQueueEnds, decode_known
from turbopump.store.recovery.checkpoint import (
    CHECKPOINT_SIZE,
    SAFETY_MS,
    CheckpointFields,
    safe_offset_of,
)
from turbopump.store.recovery.recovery import lacks_message


def known_ends(disk: ReadOnlyDisk, paths: StorePaths, *, running: bool) -> NotedQueueEnds:
    """Return Turbopump's record of the queue ends. It is empty if another broker has used the store
    since, or the record is unreadable."""
    # Our own lock file must not be opened: closing it would release the lock.
    if not running and (disk.read_file(paths.lock) or b"").startswith(APACHE_LOCK_MARK):
        return NotedQueueEnds()
    for path in (paths.queue_ends, paths.queue_ends.with_name(paths.queue_ends.name + ".bak")):
        try:
            data = disk.read_file(path)
            if data:
                return decode_known(data)
        except (ValueError, OSError):
            continue
    return NotedQueueEnds()


def replay_begins_at(disk: ReadOnlyDisk, store: StoreFiles) -> int:
    """Return the log offset from which the next start reads, if the last broker was killed."""
    data = disk.read_file(store.paths.checkpoint)
    if data is None or len(data) != CHECKPOINT_SIZE:
        return store.log_start
    fields, safe_offset = CheckpointFields.decode(data), safe_offset_of(data)
    safe_ms = max(min(fields.log_timestamp, fields.queues_timestamp) - SAFETY_MS, 0)
    for segment in reversed(store.segments):
        if safe_offset and segment.start > safe_offset:
            continue
        for offset, entry in LogWalk(disk, [segment]).entries(end=segment.start + 1):
            if offset == segment.start and entry_facts(entry)[4] <= safe_ms:
                return segment.start
    return store.log_start


def files_have_all_written_again(disk: ReadOnlyDisk, store: StoreFiles, *, ours: bool) -> bool:
    """Return True if the next start will certainly rebuild all queues, after a kill and without a
    record of the queues.

    It does so if one of these files is missing:

    - a file between others of a queue,
    - the first file of a queue whose log has its front,
    - an index file of our run (``ours``).

    The settings, which are unknown here, may demand a rebuild too.
    """
    if any(
        one.end != other.start
        for queue in store.queues.values()
        for one, other in pairwise(queue.files)
    ):
        return True
    if store.log_start == 0 and any(
        queue.files[0].start for queue in store.queues.values() if queue.files
    ):
        return True
    names = index_names(disk, store.paths) if ours else None
    return names is not None and not names <= {path.name for path in store.indexes}


def topics_known(disk: ReadOnlyDisk, paths: StorePaths, read_table: ReadTable) -> dict[str, bool]:
    """Return the topics in ``topics.json`` or its backup. The value is True for
    ``queue.type=BatchCQ``."""
    path = paths.table("topics")
    for one in (path, path.with_name(path.name + ".bak")):
        try:
            data = disk.read_file(one)
            content = read_table(data) if data is not None else None
        except (OSError, ValueError, TurbopumpError):
            continue
        if content is not None:
            topics = content.get("topicConfigTable") if isinstance(content, dict) else None
            if not isinstance(topics, dict):
                return {}
            return {str(name): _is_batch_cq(topic) for name, topic in topics.items()}
    return {}


def _is_batch_cq(topic: object) -> bool:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"


def begun_at(queues: Iterable[QueueCheck]) -> dict[str, int]:
    """Return, for each topic, the smallest log offset in its queues."""
    begun: dict[str, int] = {}
    for queue in queues:
        offset = queue.oldest_at()
        if offset is not None:
            begun[queue.topic] = min(begun.get(queue.topic, offset), offset)
    return begun


class MissingUnits:
    """Collection of missing and wrong units. Call ``claim_failed`` for each of them, and
    ``judge_ends`` after the whole log is read.

    After a crash, missing units at the end of a queue are no damage if the next start writes them
    again.

    - ``known``: the last broker's record of its queues.
    - ``topics``: the topics in the tables.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        now: StoreSnapshot,
        known: NotedQueueEnds,
        topics: Collection[str],
        findings: Findings,
    ) -> None:
        self._disk = disk
        self._now = now
        self._known = known
        self._topics = topics
        self._findings = findings
        self._behind: dict[tuple[str, int], Finding] = {}
        self._behind_at: dict[tuple[str, int], int] = {}
        self._behind_from: dict[tuple[str, int], int] = {}
        self._lacking: set[tuple[str, int]] = set()
        self._old_at: dict[str, int] = {}

    def claim_failed(self, topic: str, queue_id: int, index: int, offset: int, fault: str) -> None:
        """Record that the entry at ``offset`` lacks its unit ``index``. ``fault`` describes a wrong
        unit, and is empty for a missing one."""
        key = topic, queue_id
        queue = self._now.queues.get(key)
        if queue is not None and offset < queue.begins_at:
            self._old_at[topic] = offset
        if not fault and self._now.state.crashed and (queue is None or index >= queue.end):
            self._behind_at[key] = offset
            self._behind_from.setdefault(key, offset)
            finding = self._behind.get(key)
            if finding is None:
                self._behind[key] = Finding(
                    "queue_behind", "", topic=topic, queue_id=queue_id, index=index
                )
            else:
                finding.count += 1
            return
        if not fault:
            self._lacking.add(key)
        kind, what = ("unit_wrong", fault) if fault else ("unit_missing", "there is no unit")
        self._findings.add(
            kind, what, offset=offset, topic=topic, queue_id=queue_id, index=index, run=index
        )

    def judge_ends(self, log_end: int) -> None:
        """Report the queues that end too early after a crash, and those that only the record
        knows."""
        now = self._now
        known = self._known.since(now.store.log_start)
        noted = known.newest(log_end)
        all_noticed = noted is not None or not any(queue.end for queue in now.all_queues)
        begin = 0 if all_noticed or not self._behind else replay_begins_at(self._disk, now.store)
        begun = begun_at(now.all_queues) if begin else {}
        unmissed = [key for key in self._behind if not self._is_missed(key, begin, begun, log_end)]
        missed = any(self._behind_from[key] < begin and key not in unmissed for key in self._behind)
        if missed or (
            unmissed and files_have_all_written_again(self._disk, now.store, ours=now.state.ours)
        ):
            unmissed = []  # then all queues are written again
        for key, finding in self._behind.items():
            finding.what = f"behind: {finding.count} units will be rebuilt at the next start"
            if key in unmissed:
                finding.kind = "unit_missing"
                finding.what = (
                    f"there are no units, and the next start writes only those from {begin} on "
                    "again: it takes these messages for those "
                    "of a deleted topic. If they are not, stop the broker and remove the file "
                    "checkpoint, and it will write them"
                )
            self._findings.take(finding)
        judged = now.units_checked and not now.state.running
        ends = known.least_ends(noted) if noted is not None and judged else {}
        found = {(queue.topic, queue.queue_id): queue.end for queue in now.all_queues}
        for key, end in ends.items():
            if found.get(key, 0) < end and key not in self._behind and key not in self._lacking:
                text = (
                    f"it ends at {found.get(key, 0)}, and ended at {end} when the log was at "
                    f"{noted.at if noted else 0}"
                )
                self._findings.add("queue_end", text, topic=key[0], queue_id=key[1])

    def _is_missed(
        self, key: tuple[str, int], begin: int, begun: dict[str, int], log_end: int
    ) -> bool:
        """Return True if the next start, which reads from ``begin`` on, notices missing units at
        the end of a queue."""
        topic, message_at = key[0], self._behind_at[key]
        queue = self._now.queues.get(key)
        last = queue.newest_at(log_end) if queue is not None and message_at < begin else None
        known = topic in self._topics
        return message_at >= begin or lacks_message(
            message_at,
            last,
            topic,
            known=known,
            begun_at=begun.get(topic),
            old_at=self._old_at.get(topic, -1),
        )


# --- Files of a store when its check began. Beside a running broker ``end`` is read before the
# files are listed, so that they contain everything before it.

WINDOWS_SIZE: Final = 64 * 1024 * 1024
"""Memory in bytes for the windows of all queues together."""
_NO_END: Final = 1 << 62


@dataclass(slots=True)
class StoreSnapshot:
    """Files of a store when its check began. ``end``: beside a running broker, the end of the
    newest message in a queue; later messages are not checked."""

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
        """False for queues in RocksDB, which are not read."""
        return not self.store.unit_files_elsewhere

    def segment_at(self, offset: int) -> StoreFile | None:
        return next(
            (segment for segment in self.store.segments if segment.start <= offset < segment.end),
            None,
        )


def take_snapshot(
    disk: ReadOnlyDisk, paths: StorePaths, log_roots: Sequence[Path], findings: Findings
) -> StoreSnapshot:
    """List the files of a store, and report faults of the listing to ``findings``. Raises
    StoreError for a directory that is no store."""
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
    """Return the end of the newest message in any queue. Everything before it has been
    dispatched."""
    newest = store.log_start
    for files in store.queues.values():
        units = QueueUnits(disk, files, 1)
        offset, size = units.target(units.max_index - 1)
        newest = max(newest, offset + size if size != NO_MESSAGE_SIZE else offset)
    return newest
