"""Result of checking a store: the checked items and the findings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple


@dataclass(slots=True)
class Verification:
    """Result of checking a store: numbers of checked items, and the findings.

    ``log_end`` is the end of the last valid message.
    """

    root: Path
    findings: Findings
    log_start: int = 0
    log_end: int = 0
    segments: int = 0
    messages: int = 0
    message_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    tables: int = 0
    running: bool = False

    @property
    def clean(self) -> bool:
        return not self.findings.damaged

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON output."""
        return {
            "store": str(self.root),
            **{each.name: getattr(self, each.name) for each in fields(self)[2:]},
            "clean": self.clean,
            "counts": self.findings.counts,
            "findings": [finding.as_json() for finding in self.findings.kept],
            "not_shown": self.findings.dropped,
        }


# --- Findings of an inspection. ``KINDS`` lists every kind of finding once. Adjacent findings (unit
# after unit of a lost queue file) become one, with a count.

FINDINGS_MAX: Final = 1000
"""Largest number of findings kept in full. Further findings are only counted."""


class Kind(NamedTuple):
    """Kind of finding in a report.

    - ``damage``: True if the finding is damage.
    - ``meaning``: explanation for readers of the report.
    """

    damage: bool
    meaning: str


KINDS: Final = {
    # the log
    "log_damaged": Kind(True, "bytes of the log hold no good message, and good messages follow"),
    "log_torn_tail": Kind(
        True,
        "bytes after the last good message are not a message: a torn write, or a damaged "
        "last message",
    ),
    "log_gap": Kind(True, "a segment is missing between two others"),
    "log_root_missing": Kind(
        True,
        "the log also has segments in another directory, according to Turbopump's "
        "records: give that directory as well",
    ),
    "segment_size": Kind(
        True, "a segment has another size than the others, or overlaps one: brokers refuse to start"
    ),
    "foreign_file": Kind(
        True, "a file with a name that does not belong to a store: Apache's broker refuses to start"
    ),
    "unreadable": Kind(True, "the system cannot read these bytes"),
    # queues against the log
    "unit_missing": Kind(
        True, "a message of the log has no unit in its queue: consumers do not see it"
    ),
    "unit_wrong": Kind(True, "a unit does not point to the message that belongs there"),
    "unit_beyond_log": Kind(True, "a unit points beyond the end of the log"),
    "unit_empty": Kind(True, "a hole: an empty unit before the end of its queue"),
    "unit_gap": Kind(False, "a unit marked as a gap: its message was found damaged before"),
    "queue_behind": Kind(
        False,
        "after a crash the last messages of a queue have no units yet: the next start writes them",
    ),
    "queue_ahead": Kind(
        False,
        "after a crash the last units of a queue point beyond the end of the log: the "
        "next start cuts them",
    ),
    "queue_end": Kind(
        True,
        "a queue ends earlier than recorded, and the log has no message of the "
        "difference: after the next start the queue continues at the recorded end",
    ),
    "queue_file": Kind(True, "a queue's file is missing or has another size"),
    # indexes
    "index_missing": Kind(True, "a message cannot be found by a key it has"),
    "index_wrong": Kind(
        True, "an index entry that no message has: it points nowhere, or to another key or time"
    ),
    "index_chain": Kind(True, "an index entry cannot be reached from its slot"),
    "index_header": Kind(True, "an index file's header contradicts its entries"),
    "index_layout": Kind(
        True, "the number of slots of an index file cannot be derived from its size and entries"
    ),
    "no_index": Kind(False, "the store has no index files: searches by key find nothing"),
    # the rest
    "checkpoint": Kind(True, "the checkpoint has impossible values"),
    "checkpoint_ahead": Kind(False, "the checkpoint claims more than the log has"),
    "table_unreadable": Kind(True, "a JSON table cannot be read"),
    "offset_beyond_queue": Kind(False, "a group's offset is beyond the end of its queue"),
    "running": Kind(
        False,
        "a broker has the store open: data written since the start of this check is not checked",
    ),
    "unclean_stop": Kind(False, "the last broker did not stop cleanly: the next start recovers"),
    "not_checked": Kind(False, "this part of the store is not checked"),
}


@dataclass(slots=True)
class Finding:
    """One fault in a store, or several adjacent faults of the same kind.

    - ``file``: path relative to the store.
    - ``offset``, ``end``: bytes of the log, or of the file for files other than segments.
    - ``index``: number of a unit in a queue, or of an entry in an index.
    - ``count``: number of adjacent faults. ``index`` and ``offset`` belong to the first.
    """

    kind: str
    what: str
    file: str | None = None
    offset: int | None = None
    end: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    index: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    @property
    def damage(self) -> bool:
        return KINDS[self.kind].damage

    @property
    def where(self) -> str:
        """Place of the fault in words, as far as it is known.

        The words name topic and queue, file, index and offset.
        """
        parts = []
        if self.topic is not None:
            parts.append(
                f"{self.topic}/{self.queue_id}" if self.queue_id is not None else self.topic
            )
        if self.file is not None:
            parts.append(self.file)
        if self.index is not None:
            last = self.index + self.count - 1
            parts.append(f"index {self.index}" if self.count == 1 else f"index {self.index}–{last}")
        if self.offset is not None:
            parts.append(
                f"offset {self.offset}" if self.end is None else f"offset {self.offset}–{self.end}"
            )
        return " ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON output, without absent fields."""
        names = ("file", "offset", "end", "topic", "queue_id", "index")
        found = {name: getattr(self, name) for name in names}
        known = {name: value for name, value in found.items() if value is not None}
        return {
            "kind": self.kind,
            "damage": self.damage,
            "what": self.what,
            **known,
            "count": self.count,
        }


class Findings:
    """Collection of the findings of one inspection.

    The first ``limit`` findings are kept in full, and all are counted.
    """

    def __init__(self, limit: int = FINDINGS_MAX) -> None:
        self._limit = limit
        self._runs: dict[Hashable, tuple[Finding, int]] = {}
        self.kept: list[Finding] = []
        self.counts: dict[str, int] = {}

    @property
    def damaged(self) -> bool:
        return any(KINDS[kind].damage for kind in self.counts)

    @property
    def dropped(self) -> int:
        """Number of faults that are counted but not kept in full."""
        return sum(self.counts.values()) - sum(finding.count for finding in self.kept)

    def add(
        self,
        kind: str,
        what: str,
        file: str | None = None,
        offset: int | None = None,
        end: int | None = None,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        index: int | None = None,
        run: int | None = None,
    ) -> None:
        """Add a finding with these fields to the collection.

        See ``add_finding`` for ``run``.
        """
        self.add_finding(Finding(kind, what, file, offset, end, topic, queue_id, index), run)

    def add_finding(self, finding: Finding, run: int | None = None) -> None:
        """Add a finding to the collection, or extend an adjacent finding of the same kind.

        ``run`` is a number of the finding. If the last finding of the same kind in this file or
        queue had the number before, that finding is extended. None means that findings are not
        joined.
        """
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + finding.count
        if run is not None:
            queue = None if finding.queue_id is None else (finding.topic, finding.queue_id)
            key = (finding.kind, finding.file, queue)
            before, number = self._runs.get(key, (finding, run))
            if number + 1 == run:
                before.count += 1
                if finding.offset is not None and before.offset is not None:
                    before.end = finding.end if finding.end is not None else finding.offset
                self._runs[key] = (before, run)
                return
            self._runs[key] = (finding, run)
        if len(self.kept) < self._limit:
            self.kept.append(finding)
