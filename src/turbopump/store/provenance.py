"""Record of a store's origin: this program's ranges of the log, and the index files that must
exist.

Our entries have a whole-entry CRC, so a missing one is damage; Apache's usually have none. The file
``turbopump.json`` in the root records our ranges (the last has no end until the clean stop).

The abort file and the lock file together show if a crashed run was ours. Apache's 4.9 leaves an
existing abort file unchanged, but every broker of Apache's first writes ``lock`` over the lock
file. If somebody removed the abort file, ``turbopump.json`` still shows that our run has not ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec

from turbopump.disk.disk import Disk
from turbopump.struct_decoders import decoder_of

ABORT_MARK: Final = b" turbopump"
"""Text after the process id in our abort files. Abort files of Apache's 5.x have only the id, those
of 4.9 are empty."""
APACHE_LOCK_MARK: Final = b"lock"
LOCK_MARK: Final = b"turbopump"
"""Content of our lock files. Every other broker's lock file begins with ``lock``."""


class Provenance:
    """Record of the log ranges that this program wrote. The record is stored in ``path``.

    Call ``load`` before recovery, ``begin_run`` after it, and ``end_run`` at a clean stop.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._written: list[list[int | None]] = []
        self._saving = Lock()  # because threads save the record, too
        self.index_names: list[str] | None = None
        """Names of the index files of the last run, or None if they are unknown."""
        self.roots: dict[str, int] = {}
        """Start of one segment in each directory of the log, by directory (``roots.py``)."""
        self.log_start: int | None = None
        """Offset at or before which the log begins, or None if unknown. It is raised before a
        segment is deleted."""
        self.crashed_here = False
        self._running = False
        self.index_incomplete = False
        """True if our last run did not index every message, because of its settings or a
        failure."""

    def unfinished(self) -> bool:
        """Return True if the last run of this program did not record a clean stop.

        Another broker may have run since. The lock file shows that.
        """
        known = self._read()
        written = known.get("written")
        return bool(known.get("running", written and written[-1][1] is None))

    def load(self, *, crashed_here: bool, clean: bool) -> None:
        """Read the record from its file.

        - ``crashed_here``: True if the last run was ours and crashed.
        - ``clean``: True if the last run of any broker stopped cleanly.
        """
        self.crashed_here = crashed_here
        known = self._read()
        self._written = known.get("written", [])
        self.index_names = known.get("indexes")
        self.roots = known.get("roots", {})
        self.log_start = known.get("start")
        self.index_incomplete = "indexes" in known and self.index_names is None
        if self._written and self._written[-1][1] is None and not crashed_here:
            # another program has written since our crash, so the end of our part is unknown
            self._written.pop()
            self.index_names = None
        if not clean and not crashed_here:
            self.index_names = None

    def requires_crc(self, offset: int) -> bool:
        """Return True if the entry at this log offset must have a whole-entry CRC, because this
        program wrote it."""
        for start, end in reversed(self._written):
            if start is not None and start <= offset and (end is None or offset < end):
                return True
        return False

    def begin_run(self, log_end: int, index_names: list[str] | None, *, with_crc: bool) -> None:
        """Record that this program writes the log from ``log_end`` on.

        - ``index_names``: names of the index files; None if messages are not indexed.
        - ``with_crc``: True if the new entries have a whole-entry CRC.

        Raises OSError if the record cannot be saved.
        """
        kept = self._written_before(log_end)
        if not with_crc:
            self._written = kept
        elif kept and kept[-1][1] == log_end:
            self._written = [*kept[:-1], [kept[-1][0], None]]
        else:
            self._written = [*kept, [log_end, None]]
        self._running = True
        self.note_indexes(index_names)

    def note_cut(self, log_end: int, index_names: list[str] | None) -> None:
        """Record that the log of a cleanly closed store was cut at ``log_end``.

        ``index_names`` has the names of the index files that are left; None if messages are not
        indexed. Raises OSError if the record cannot be saved.
        """
        self._written = self._written_before(log_end)
        self._running = False
        self.note_indexes(index_names)

    def _written_before(self, log_end: int) -> list[list[int | None]]:
        """Return our ranges of the log up to ``log_end``. Each of them has an end."""
        return [
            [start, min(end, log_end) if end is not None else log_end]
            for start, end in self._written
            if start is not None and start < log_end
        ]

    def note_without_crc(self, flushed: int) -> None:
        """Record that entries from ``flushed`` on may lack a CRC, until the next start.

        ``flushed`` is an offset that survives a crash. Raises OSError if the record cannot be
        saved, and then nothing has changed.
        """
        before = self._written
        if not before or before[-1][1] is not None:
            return
        self._written = [*before[:-1], [before[-1][0], flushed]]
        try:
            self._save()
        except OSError:
            self._written = before
            raise

    def note_indexes(self, names: list[str] | None) -> None:
        """Record the names of the index files. None records that messages are no longer indexed.

        Raises OSError if the record cannot be saved.
        """
        self.index_names = list(names) if names is not None else None
        self._save()

    def note_roots(self, roots: dict[str, int]) -> None:
        """For each directory of the log, record one segment. Raises OSError if the record cannot be
        saved."""
        self.roots = roots
        self._save()

    def note_start(self, log_start: int) -> None:
        """Record that the log may begin at ``log_start``. Raises OSError if the record cannot be
        saved."""
        self.log_start = log_start
        self._save()

    def read_roots(self) -> dict[str, int]:
        """For each directory of the log, return the last recorded segment. This works before
        ``load``."""
        roots: dict[str, int] = self._read().get("roots", {})
        return roots

    def end_run(self, log_end: int) -> None:
        """Record a clean stop. ``log_end`` is the end of the log.

        Raises OSError if the record cannot be saved.
        """
        if self._written and self._written[-1][1] is None:
            self._written[-1][1] = log_end
        self._running = False
        self._save()

    def _save(self) -> None:
        with self._saving:
            known = {
                "version": 1,
                "written": self._written,
                "indexes": self.index_names,
                "roots": self.roots,
                "start": self.log_start,
                "running": self._running,
            }
            self._disk.replace_file(self.path, json.dumps(known).encode())

    def _read(self) -> dict[str, Any]:
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            data = self._disk.read_file(path)
            try:
                if data:
                    decoder_of(_Known, strict=True).decode(data)
                    known: dict[str, Any] = json.loads(data)
                    return known
            except (msgspec.DecodeError, ValueError):
                continue
        return {}


@dataclass(frozen=True, slots=True)
class LastRun:
    """Owner and outcome of the last run of a broker in the directory.

    - ``ours``: True if it was this broker.
    - ``apache``: True if it was Apache's broker.
    - ``clean``: True if it stopped cleanly.
    - ``crashed_here``: True if it was this broker and was killed.
    """

    ours: bool
    apache: bool
    clean: bool
    crashed_here: bool

    @classmethod
    def of(cls, lock_mark: bytes, abort: bytes | None, provenance: Provenance) -> LastRun:
        """Find out which broker used the directory last, and if that broker stopped cleanly.

        - ``lock_mark``: content of the lock file.
        - ``abort``: content of the abort file; None if there is none.
        """
        ours = lock_mark == LOCK_MARK
        apache = lock_mark.startswith(APACHE_LOCK_MARK)
        clean = abort is None and (apache or not provenance.unfinished())
        return cls(
            ours,
            apache,
            clean,
            not clean and (abort is None or (abort.endswith(ABORT_MARK) and ours)),
        )


class _Known(msgspec.Struct):
    """Schema of ``turbopump.json``."""

    written: list[tuple[int, int | None]]
    indexes: list[str] | None = None
    roots: dict[str, int] = {}
    start: int | None = None
    running: bool = False
