"""Judge missing queue units after a crash. A unit that the next start certainly writes again is no
damage.

The judgement promises nothing that ``Recovery`` does not do. The check of units is unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import TurbopumpError
from turbopump.store.files import StorePaths
from turbopump.store.inspection.entry_facts import entry_facts
from turbopump.store.inspection.log_walk import LogWalk
from turbopump.store.inspection.report import Finding, Findings
from turbopump.store.inspection.small_files import ReadTable
from turbopump.store.inspection.snapshot import StoreSnapshot
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.provenance import APACHE_LOCK_MARK
from turbopump.store.queues.queue_ends import NotedQueueEnds, decode_known
from turbopump.store.recovery.checkpoint import (
    CHECKPOINT_SIZE,
    SAFETY_MS,
    CheckpointFields,
    safe_offset_of,
)


def known_ends(disk: ReadOnlyDisk, paths: StorePaths, *, running: bool) -> NotedQueueEnds:
    """Return Turbopump's record of where each queue ended.

    The record is empty if another broker has used the store since, or if the record is unreadable.
    """
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
    """Return the log offset from which the next start of a broker reads after a crash."""
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


def topics_known(disk: ReadOnlyDisk, paths: StorePaths, read_table: ReadTable) -> dict[str, bool]:
    """Return the topics in ``topics.json`` or in its backup.

    The value is True for a topic with ``queue.type=BatchCQ``.
    """
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


class MissingUnits:
    """Collector of missing and wrong queue units. It decides which of these units are damage.

    Call ``claim_failed`` for each of them, and ``judge_ends`` after the whole log is read. After a
    crash, missing units at the end of a queue are no damage if the next start certainly writes them
    again. ``known`` is the last broker's record of its queues.
    """

    def __init__(
        self, disk: ReadOnlyDisk, now: StoreSnapshot, known: NotedQueueEnds, findings: Findings
    ) -> None:
        self._disk = disk
        self._now = now
        self._known = known
        self._findings = findings
        self._behind: dict[tuple[str, int], Finding] = {}
        """Missing units at the end of each queue, after a crash."""
        self._first_at: dict[tuple[str, int], int] = {}
        """Log offset of the first message without a unit, for each queue in ``_behind``."""
        self._last_at: dict[tuple[str, int], int] = {}
        """Log offset of the last message without a unit, for each queue in ``_behind``."""
        self._lacking: set[tuple[str, int]] = set()

    def claim_failed(self, topic: str, queue_id: int, index: int, offset: int, fault: str) -> None:
        """Record a message in the log whose queue unit is wrong or missing.

        - ``index``: number of the unit in the queue.
        - ``offset``: log offset of the message.
        - ``fault``: description of a wrong unit, or empty for a missing one.
        """
        key = topic, queue_id
        queue = self._now.queues.get(key)
        if not fault and self._now.state.crashed and (queue is None or index >= queue.end):
            self._last_at[key] = offset
            self._first_at.setdefault(key, offset)
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
        kind, what = ("unit_wrong", fault) if fault else ("unit_missing", "the unit is missing")
        self._findings.add(
            kind, what, offset=offset, topic=topic, queue_id=queue_id, index=index, run=index
        )

    def judge_ends(self, log_end: int) -> None:
        """Report the queues that end too early. Call this after the whole log is read.

        Units that are missing at the end of a queue after a crash are reported here. So are queues
        that end before the end in the last broker's record.
        """
        now = self._now
        known = self._known.since(now.store.log_start)
        noted = known.newest(log_end)
        begin = 0
        if self._behind and noted is None and any(queue.end for queue in now.all_queues):
            begin = self._rebuilt_from()
        for key, finding in self._behind.items():
            finding.what = f"behind: {finding.count} units will be rebuilt at the next start"
            if self._last_at[key] < begin:
                finding.kind = "unit_missing"
                finding.what = (
                    "the units are missing, and the next start reads the log from "
                    f"{begin} on. If the topic was not deleted, stop the broker and "
                    "remove the file checkpoint: the next start then writes the units "
                    "again"
                )
            self._findings.add_finding(finding)
        if noted is not None and now.units_checked and not now.state.running:
            self._judge_noted(known.least_ends(noted), noted.at)

    def _rebuilt_from(self) -> int:
        """Return the log offset from which the next start certainly writes missing units again.

        This offset counts only if the store has no record of where the queues ended.
        """
        # A start compares the log before this offset with the queues too, and writes everything
        # again if it misses a unit. But it cannot know a deleted topic from a lost queue in every
        # case, and this check does not repeat its judgement.
        begin = replay_begins_at(self._disk, self._now.store)
        # A queue with a hole across the offset is noticed for certain: all queues are written.
        if any(self._first_at[key] < begin <= self._last_at[key] for key in self._behind):
            return 0
        return begin

    def _judge_noted(self, ends: Mapping[tuple[str, int], int], noted_at: int) -> None:
        """Report each queue that ends before its recorded end, unless the walk over the log has
        found its missing units."""
        found = {(queue.topic, queue.queue_id): queue.end for queue in self._now.all_queues}
        for key, end in ends.items():
            if found.get(key, 0) < end and key not in self._behind and key not in self._lacking:
                text = (
                    f"it ends at {found.get(key, 0)}, and ended at {end} when the log was at "
                    f"{noted_at}"
                )
                self._findings.add("queue_end", text, topic=key[0], queue_id=key[1])
