"""History of a log: with which other logs it is known to agree, and how far. The file
``turbopump.history.json``.

::

    [["0f3c…", 81234], ["77ab…", null]]      32 hex digits: the id of a log; until

An entry says: before offset ``until`` this log has the bytes of the log ``id``. An id is made for
each run of a broker that writes a log of its own, so what is before its end never changes. The last
entry has no end: it holds as far as this log goes. Two logs whose histories have an id in common
have the same bytes before the smaller of its two ends. Apache Kafka's leader epochs do the same.

The rule: the file is on the disk before the first byte is written for which it would be wrong. A
file that cannot be read says nothing; an older one, such as a backup, would say too much, so there
is none. A history proves nothing alone (``comparison.py``).
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
"""Number of entries kept, the newest ones."""


class KnownLog(NamedTuple):
    """Before ``until`` a log has the bytes of the log ``id``."""

    id: bytes
    until: int


def new_id(now_ms: int, source: random.Random) -> bytes:
    """Id of a log that nobody has written yet: the time, so that it is a new one even if a test
    draws the same numbers again, and random bytes."""
    return now_ms.to_bytes(8) + source.randbytes(ID_SIZE - 8)


def common_until(one: Sequence[KnownLog], other: Sequence[KnownLog]) -> int:
    """Up to where two logs are the same by their histories; 0: nothing is known."""
    untils = dict(other)
    return max((min(until, untils.get(name, 0)) for name, until in one), default=0)


class LogHistory:
    """History of the log of one run, in the file at ``path``. ``own``: the id of a log that this
    run writes itself. ``end``: where the log ends that was opened; ``unchanged``: up to where it is
    surely the one that the file was saved for. A power cut may have torn what follows."""

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
            self.save_now()  # the next start need not notice

    def begin_own(self, end: int) -> None:
        """Note that the bytes behind ``end`` are this run's own, or of an unknown log."""
        if not self.known or self.known[-1].id != self._own:
            closed = [KnownLog(one.id, min(one.until, end)) for one in self.known if end]
            self.known = (*closed, KnownLog(self._own, NO_END))[-KNOWN_MAX:]

    def follow(self, known: Sequence[KnownLog]) -> None:
        """This log is the beginning of its master's, and what follows comes from there."""
        self.known = tuple(known[-KNOWN_MAX:])

    def found_different(self, master: Sequence[KnownLog], at: int) -> None:
        """This log has the bytes of its master's before ``at``, and others there."""
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
        """Save it in this thread, or remove the file if there is no room: a missing file says
        nothing wrong. Raises OSError if that fails, too."""
        try:
            self._write(self.known)
        except OSError:
            self._disk.remove(self._path)
        self._saved = self.known

    def save(self, done: Callable[[OSError | None], None]) -> None:
        """Save it beside this thread, if it has changed; one save after the other."""
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
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self.save(one)

        self._saving, self._saved = True, None
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
        except (ValueError, msgspec.MsgspecError):  # cut off, or made by hand
            return None
        return tuple(known) if all(len(one.id) == ID_SIZE for one in known) else None
