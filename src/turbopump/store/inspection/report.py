"""The outcome of checking a store: what was checked and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbopump.store.inspection.findings import Findings


@dataclass(slots=True)
class Verification:
    """What was checked, and what was found. ``log_end``: of the last good message."""

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
    newest_ms: int = 0
    running: bool = False

    @property
    def clean(self) -> bool:
        return not self.findings.damaged

    def as_json(self) -> dict[str, Any]:
        """A report for programs."""
        names = (
            *("log_start", "log_end", "segments", "messages", "message_bytes", "queues", "units"),
            *("index_files", "index_entries", "tables", "running", "clean"),
        )
        return {
            "store": str(self.root),
            **{name: getattr(self, name) for name in names},
            "counts": self.findings.counts,
            "findings": [finding.as_json() for finding in self.findings.kept],
            "not_shown": self.findings.dropped,
        }
