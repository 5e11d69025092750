"""A slave: what it asks its master for, what it takes, and what it acknowledges.

Values in, values out: bytes that came and times (monotonic seconds) go in; reports and bytes for
the log come out. It must not know sockets, files or the loop. Source: apache/rocketmq
``DefaultHAClient``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turbopump.errors import CopyError
from turbopump.replication.stream import REPORT, ByteRate, TransferReader
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX


@dataclass(frozen=True, slots=True)
class SlaveSettings:
    """Times in seconds."""

    heartbeat: float = 5.0
    housekeeping: float = 20.0


_NOT_0: Final = 1
"""What an empty slave asks for that wants the log from 0 on. 0 itself means the file that is being
written. The byte at 0 is not sent then; it is 0, the highest of the first entry's size."""


def first_wanted(start: int, end: int, segment_size: int) -> int:
    """What an empty slave asks for to get all of a master's log, which begins at ``start`` and ends
    at ``end``. RocketMQ: asks for 0, and gets the last file only."""
    if start > 0:
        return start
    return _NOT_0 if end > segment_size else 0


class MasterConnection:
    """A connection to the master, of a slave whose log ends at ``log_end``, from ``now`` on; or of
    one without a log, which wants it from there on (``first_wanted``). ``proved``: the master knows
    where to go on (``comparison.py``), so that the first report is an acknowledgement."""

    def __init__(
        self, settings: SlaveSettings, log_end: int, now: float, *, proved: bool = False
    ) -> None:
        self._settings = settings
        self._reader = TransferReader(log_end or None)
        self._waiting: list[bytes | memoryview] = [b"\0"] if log_end == _NOT_0 else []
        self._size = len(self._waiting)
        self._start = 0 if log_end == _NOT_0 else log_end
        self._wanted = 1
        self.reported = -1 if proved else log_end
        self.last_read = self.last_write = now
        self.came = ByteRate(now)
        self.accepted = False
        """Whether the master serves this slave: it has sent something."""

    def begin(self) -> bytes:
        """What to say first: from where on the log is wanted."""
        return REPORT.pack(self.reported)

    def received(self, data: bytes, now: float) -> None:
        """Take bytes. Raises ProtocolError for what does not go on where the log ends."""
        self.last_read = now
        first = self._reader.position is None
        pieces = self._reader.feed(data)
        found = sum(map(len, pieces))
        self.accepted = self.accepted or self._reader.frames > 0
        if first and self._reader.position is not None:
            self._start = self._reader.position - found
        self._waiting += pieces
        self._size += found
        self.came.begin(now)
        self.came.in_this_second += found

    def to_store(self) -> tuple[int, bytes] | None:
        """What waits to be stored, and its offset; None: more must come first."""
        if self._size < self._wanted:
            return None
        waiting = b"".join(self._waiting)
        self._waiting = [waiting]
        return self._start, waiting

    def stored(self, end: int, wanted: int) -> None:
        """The log ends there now, and it takes so many bytes more to go on. Raises CopyError if
        that cannot be."""
        if wanted > ENTRY_SIZE_MAX:
            raise CopyError(f"the next entry at offset {end} would have {wanted} bytes")
        rest = b"".join(self._waiting)[end - self._start :]
        self._waiting, self._size = [rest], len(rest)
        self._start, self._wanted = end, wanted

    def report(self, end: int, now: float) -> bytes | None:
        """What to say, if the log is kept up to ``end``: more than before, or, after a while, the
        same once more. None: nothing."""
        if end > self.reported or now - self.last_write >= self._settings.heartbeat:
            self.reported = max(self.reported, end)
            self.last_write = now
            return REPORT.pack(self.reported)
        return None

    def is_silent(self, now: float) -> bool:
        """Whether to close it: the master has not said anything for too long."""
        return now - self.last_read > self._settings.housekeeping
