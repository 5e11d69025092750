"""Decisions of a slave in replication. They include its reports to the master.

The module also decides which received bytes are accepted. Values in, values out: received bytes and
times (monotonic seconds) go in; reports and bytes for the log come out. Sockets, files and the loop
are unknown here. Source: apache/rocketmq ``DefaultHAClient``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

from turbopump.errors import CopyError
from turbopump.replication.stream import REPORT, ByteRate, TransferReader
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX


@dataclass(frozen=True, slots=True)
class SlaveSettings:
    """Settings of a slave broker for replication. Times are in seconds.

    - ``heartbeat``: the maximum time between two reports to the master.
    - ``housekeeping``: the time without data after which the connection to the master is closed.
    """

    heartbeat: float = 5.0
    housekeeping: float = 20.0


_NOT_0: Final = 1
"""Offset that an empty slave requests to get the log from offset 0 on.

A request of 0 would mean the file that the master is writing. The missing byte at offset 0 is
known: it is 0, the highest byte of the first entry's size.
"""


def first_wanted(start: int, end: int, segment_size: int) -> int:
    """Return the first offset for an empty slave to request. The slave then gets the whole log.

    - ``start``, ``end``: the first and the last offset of the master's log.

    RocketMQ requests 0, and gets the last file only.
    """
    if start > 0:
        return start
    return _NOT_0 if end > segment_size else 0


class ReceivedLog:
    """Bytes of the master's log that were received, and wait to be stored.

    - ``start``: the offset of the first of these bytes.
    """

    def __init__(self, start: int) -> None:
        self._waiting: list[bytes | memoryview] = []
        self._size = 0
        self._start = start
        self._wanted = 1

    def begin_at(self, start: int) -> None:
        """Set the offset of the first byte, before any was received."""
        self._start = start

    def add(self, piece: bytes | memoryview) -> None:
        """Add bytes that continue the received ones."""
        self._waiting.append(piece)
        self._size += len(piece)

    def to_store(self) -> tuple[int, bytes] | None:
        """Return an offset, and the bytes to append to the log there. Return None if more bytes
        must arrive."""
        if self._size < self._wanted:
            return None
        waiting = b"".join(self._waiting)
        self._waiting = [waiting]
        return self._start, waiting

    def record_stored(self, end: int, wanted: int) -> None:
        """Record that received bytes were appended to the log.

        - ``end``: the new end of the log.
        - ``wanted``: the number of bytes needed for the next entry.

        Raises CopyError if the next entry would be impossibly large.
        """
        if wanted > ENTRY_SIZE_MAX:
            raise CopyError(f"the next entry at offset {end} would have {wanted} bytes")
        rest = b"".join(self._waiting)[end - self._start :]
        self._waiting = [rest]
        self._size = len(rest)
        self._start = end
        self._wanted = wanted


class MasterSource:
    """State of a slave's connection to its master: what was received, and what to report.

    A subclass reads the frames of the master.

    - ``start``: the offset of the first byte of the log to receive.
    - ``reported``: the offset in the last report, or -1 so that a report is due.
    - ``now``: the time when the connection was opened.
    """

    def __init__(self, settings: SlaveSettings, start: int, reported: int, now: float) -> None:
        self._settings = settings
        self._log = ReceivedLog(start)
        self.reported = reported
        self.last_read = now
        self.last_write = now
        self.came = ByteRate(now)
        """Received bytes of the log, per second."""

    @property
    @abstractmethod
    def accepted(self) -> bool:
        """True once the master has sent bytes of the log or a heartbeat, which shows that it serves
        this slave."""

    @abstractmethod
    def _encode_report(self, offset: int) -> bytes:
        """Encode the report of a slave that has the log up to ``offset``."""

    def to_store(self) -> tuple[int, bytes] | None:
        """Return an offset, and the bytes to append to the log there. Return None if more bytes
        must arrive."""
        return self._log.to_store()

    def record_stored(self, end: int, wanted: int) -> None:
        """Record that received bytes were appended to the log, as ``ReceivedLog``."""
        self._log.record_stored(end, wanted)

    def next_report(self, end: int, now: float) -> bytes | None:
        """Return the next report to the master. Return None if no report is due.

        - ``end``: the end of the bytes that the slave acknowledges.

        A report is due after growth, and at a fixed interval.
        """
        if end > self.reported or now - self.last_write >= self._settings.heartbeat:
            self.reported = max(self.reported, end)
            self.last_write = now
            return self._encode_report(self.reported)
        return None

    def is_silent(self, now: float) -> bool:
        """Return True if the connection must be closed because the master has sent nothing for too
        long."""
        return now - self.last_read > self._settings.housekeeping


class MasterConnection(MasterSource):
    """State of a plain slave's connection to its master.

    - ``log_end``: the end of the slave's log. For a slave without a log, the first offset that it
      wants (``first_wanted``).
    - ``proved``: True if a comparison has found the next offset, so the master knows it. The first
      report is then an acknowledgement.
    """

    def __init__(
        self, settings: SlaveSettings, log_end: int, now: float, *, proved: bool = False
    ) -> None:
        start = 0 if log_end == _NOT_0 else log_end
        super().__init__(settings, start, -1 if proved else log_end, now)
        if log_end == _NOT_0:
            self._log.add(b"\0")
        self._reader = TransferReader(log_end or None)

    @property
    def accepted(self) -> bool:
        return self._reader.frames > 0

    def begin(self) -> bytes:
        """Return the first report to the master. It requests the log from an offset on."""
        return self._encode_report(self.reported)

    def received(self, data: bytes, now: float) -> None:
        """Accept bytes from the master.

        Raises ProtocolError if the bytes do not continue at the end of the log.
        """
        self.last_read = now
        first = self._reader.position is None
        pieces = self._reader.feed(data)
        found = sum(map(len, pieces))
        if first and self._reader.position is not None:
            self._log.begin_at(self._reader.position - found)
        for piece in pieces:
            self._log.add(piece)
        self.came.begin(now)
        self.came.in_this_second += found

    def _encode_report(self, offset: int) -> bytes:
        return REPORT.pack(offset)
