"""Units that entries of the log lack or have wrong, and what the next start will do about those at
the ends of the queues.

Its one rule: a queue that is behind after a crash is nothing to worry about only if the next start
writes its units again (``next_start.py``). It must not know how the log is walked.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from turbopump.store.inspection.findings import Finding, Findings
from turbopump.store.inspection.next_start import (
    begun_at,
    files_have_all_written_again,
    first_unit_at,
    last_unit_at,
    reads_from,
)
from turbopump.store.inspection.snapshot import Snapshot
from turbopump.store.queue_comparison import lacks
from turbopump.store.queue_ends import KnownEnds
from turbopump.store.read_only_disk import ReadOnlyDisk


class MissingUnits:
    """What ``claimed`` tells of single units, ``judge`` makes findings of when the whole log has
    been read.

    ``known``: what the last broker noted of its queues. ``topics``: those that the tables have.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        now: Snapshot,
        known: KnownEnds,
        topics: AbstractSet[str],
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
        """The entry at ``offset`` has not its unit ``index``: ``fault`` is what the unit says
        instead, empty if there is none."""
        key = topic, queue_id
        queue = self._now.queue(key)
        if offset < first_unit_at(queue):
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
        finding = Finding(kind, what, offset=offset, topic=topic, queue_id=queue_id, index=index)
        self._findings.add(finding, run=((kind, topic, queue_id), index))

    def judge_ends(self, log_end: int) -> None:
        """Judge the queues that end too early after a crash, and those of whose end only a note
        tells."""
        now = self._now
        known = self._known.since(now.store.log_start)
        place = known.newest(log_end)
        all_noticed = place is not None or not any(queue.end for queue in now.all_queues)
        begin = 0 if all_noticed or not self._behind else reads_from(self._disk, now.store)
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
            self._findings.add(finding)
        judged = now.units_checked and not now.state.running
        ends = known.least_ends(place) if place is not None and judged else {}
        found = {(queue.topic, queue.queue_id): queue.end for queue in now.all_queues}
        for key, end in ends.items():
            if found.get(key, 0) < end and key not in self._behind and key not in self._lacking:
                text = (
                    f"it ends at {found.get(key, 0)}, and ended at {end} when the log was at "
                    f"{place.at if place else 0}"
                )
                self._findings.add(Finding("queue_end", text, topic=key[0], queue_id=key[1]))

    def _is_missed(
        self, key: tuple[str, int], begin: int, begun: dict[str, int], log_end: int
    ) -> bool:
        """Whether the next start, which reads from ``begin`` on, sees that units of a queue are
        missing at its end."""
        topic, message_at = key[0], self._behind_at[key]
        last = last_unit_at(self._now.queue(key), log_end) if message_at < begin else None
        known = topic in self._topics
        return message_at >= begin or lacks(
            message_at,
            last,
            topic,
            known=known,
            begun_at=begun.get(topic),
            old_at=self._old_at.get(topic, -1),
        )
