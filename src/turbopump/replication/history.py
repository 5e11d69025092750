"""History of a log: a list of other logs, each with the offset up to which both agree.

The history is stored in ``turbopump.history.json``.

::

    [["0f3c…", 81234], ["77ab…", null]]      32 hex digits: the id of a log; until

An entry means: before offset ``until``, this log has the same bytes as the log ``id``. The last
entry has no end: it is valid for all of this log.

A broker makes a new id for each run in which it writes a log of its own, so the bytes of one id
never change. If two histories have a common id, both logs have the same bytes before the smaller of
its two ends. Apache Kafka's leader epochs do the same.

The rule: the file is on the disk before the first byte is written that would make the old file
wrong. An unreadable file counts as no history. There is no backup: an older history could claim too
much. A history alone proves nothing (``comparison.py``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from turbopump.disk.disk import Disk
from turbopump.struct_decoders import decoder_of

ID_SIZE: Final = 16
NO_END: Final = (1 << 63) - 1
KNOWN_MAX: Final = 256
"""Maximum number of entries in a history. The oldest entries are dropped."""


class KnownLog(NamedTuple):
    """Entry of a history. It names another log whose bytes are the same up to an offset.

    - ``id``: the id of the other log.
    - ``until``: the offset before which both logs have the same bytes.
    """

    id: bytes
    until: int


def new_id(now_ms: int, source: random.Random) -> bytes:
    """Return a new id for a log. The id consists of the time and random bytes.

    The time keeps ids different in tests that repeat the same random numbers.
    """
    return now_ms.to_bytes(8) + source.randbytes(ID_SIZE - 8)


def common_until(one: Sequence[KnownLog], other: Sequence[KnownLog]) -> int:
    """Return the offset up to which two logs are equal, according to their histories.

    Return 0 if the histories have no common log.
    """
    untils = dict(other)
    return max((min(until, untils.get(name, 0)) for name, until in one), default=0)


class LogHistory:
    """Record of other logs that begin with the same bytes as this broker's log.

    - ``path``: the file of the history.
    - ``own``: the id for bytes that this run of the broker writes itself.
    - ``end``: the end of the log at the start of the run.
    - ``unchanged``: the offset before which the log is surely the one that the file describes. A
      power cut may have damaged later bytes.
    """

    def __init__(self, disk: Disk, path: Path, own: bytes, end: int, *, unchanged: int) -> None:
        assert len(own) == ID_SIZE
        self._disk = disk
        self._path = path
        self._own = own
        self._saving = False
        self._waiting: list[Callable[[OSError | None], None]] = []
        self._saved = self._read() if unchanged else None
        self.known: tuple[KnownLog, ...] = self._saved or ()
        if self.known and unchanged < end:
            self.begin_own(unchanged)
            self.save_now()  # the next start then finds nothing to change

    def begin_own(self, end: int) -> None:
        """Record that no other known log has the bytes from ``end`` on.

        This run is about to write these bytes, or copies them from a log without a known id.
        """
        # Entries of other logs end at ``end`` at the latest, because they lack the next bytes.
        # An empty log has nothing in common with any other.
        if not self.known or self.known[-1].id != self._own:
            closed = [KnownLog(one.id, min(one.until, end)) for one in self.known if end]
            self.known = (*closed, KnownLog(self._own, NO_END))[-KNOWN_MAX:]

    def follow_master(self, known: Sequence[KnownLog]) -> None:
        """Replace the history by the history of the master.

        This log is then the beginning of the master's log, and continues with bytes of the master.
        """
        self.known = tuple(known[-KNOWN_MAX:])

    def found_different(self, master: Sequence[KnownLog], at: int) -> None:
        """Record a difference at ``at``: before it, this log and the master's log have the same
        bytes."""
        theirs = dict(master)
        known = [
            KnownLog(name, min(until, at) if theirs.get(name, 0) > at else until)
            for name, until in self.known
            if name != master[-1].id
        ]
        if not known or known[-1].until != NO_END:
            known.append(KnownLog(self._own, NO_END))
        if at > 0:
            known.insert(-1, KnownLog(master[-1].id, at))
        self.known = tuple(known[-KNOWN_MAX:])

    def save_now(self) -> None:
        """Save the history in this thread.

        If that fails, the file is removed, because a missing file claims nothing. Raises OSError if
        both fail.
        """
        try:
            self._write(self.known)
        except OSError:
            self._disk.remove(self._path)
        self._saved = self.known

    def save(self, done: Callable[[OSError | None], None]) -> None:
        """Save the history in another thread if it has changed. Call ``done`` with the error or
        None.

        Saves run one after the other.
        """
        if self._saving:
            self._waiting.append(done)
            return
        known = self.known
        if known == self._saved:
            done(None)
            return

        def saved(error: OSError | None) -> None:
            self._saving = False
            if error is None:
                self._saved = known
            done(error)
            waiting = self._waiting
            self._waiting = []
            for one in waiting:
                self.save(one)

        self._saving = True
        self._saved = None
        self._disk.start(lambda: self._write(known), saved)

    def _write(self, known: Sequence[KnownLog]) -> None:
        rows = [[one.id.hex(), None if one.until == NO_END else one.until] for one in known]
        self._disk.replace_file(self._path, json.dumps(rows).encode())

    def _read(self) -> tuple[KnownLog, ...] | None:
        data = self._disk.read_file(self._path)
        if data is None:
            return None
        try:
            rows = decoder_of(list[tuple[str, int | None]]).decode(data)
            known = [
                KnownLog(bytes.fromhex(name), NO_END if until is None else until)
                for name, until in rows
            ]
        except (ValueError, msgspec.MsgspecError):  # the file was cut off or edited
            return None
        return tuple(known) if all(len(one.id) == ID_SIZE for one in known) else None
