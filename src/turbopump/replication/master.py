"""State of a slave's connection to its master, which decides the next bytes to send.

Values in, values out: offsets, bytes of reports and times (monotonic seconds) come in; bytes to
send and refusals come out. Sockets, files and the loop are unknown here. Source: apache/rocketmq
``DefaultHAConnection``, ``DefaultHAService``, ``FlowMonitor``; differences are noted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.errors import ProtocolError
from turbopump.replication.stream import TRANSFER_HEAD, ByteRate, ReportReader

FAR_BEHIND: Final = 16 * 1024 * 1024
"""Number of bytes by which a slave may be behind before ``SlaveFeed.pause`` slows the sending."""
PAUSE_S: Final = 0.001
BUSY_S: Final = 0.1
"""Seconds after a write to the log for which the master counts as busy."""


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of a master broker for replication. Times are in seconds, and sizes in bytes.

    - ``heartbeat``: the time without data after which the master sends a heartbeat.
    - ``housekeeping``: the time without a report after which the connection of a slave is closed.
    - ``batch``: the maximum size of one transfer.
    - ``rate_max``: the maximum bytes per second for one slave, or 0 for no limit.
    - ``acks``: the number of slaves that must have a message before its send is answered, or 0.
    - ``catch_up``: the time for which a slave that had the whole log still counts as in sync.
    """

    heartbeat: float = 5.0
    housekeeping: float = 20.0
    batch: int = 32 * 1024
    rate_max: int = 0
    acks: int = 0
    catch_up: float = 15.0


class LogSpan(NamedTuple):
    """Offsets of a master's log.

    - ``start``: the first offset.
    - ``end``: the offset before which bytes may be sent to slaves.
    - ``written``: the end of the log.
    """

    start: int
    end: int
    written: int
    segment_size: int

    @property
    def last_segment(self) -> int:
        """Start of the segment that is being written."""
        return max(self.written - self.written % self.segment_size, self.start)


class Transfer(NamedTuple):
    """Part of the log to send to a slave. With a size of 0 it is a heartbeat."""

    offset: int
    size: int


class SlaveFeed:
    """State of one slave's connection to its master, which decides the next bytes to send.

    A subclass reads the frames of the slave, and makes the heads of transfers.

    - ``now``: the time when the connection was opened.
    """

    def __init__(self, settings: MasterSettings, now: float) -> None:
        self.settings = settings
        self.acked = -1
        """Offset before which the slave has the log by its last acknowledgement, or -1 without
        one."""
        self.next: int | None = None
        """Next offset to send, or None before the slave's first report."""
        self.last_read = now
        self.last_write = now - settings.heartbeat  # the first heartbeat is due at once
        self.sent = ByteRate(now)
        self._written = 0
        self._grew = float("-inf")

    @abstractmethod
    def head_of(self, transfer: Transfer) -> bytes:
        """Return the head of the frame for a transfer."""

    @abstractmethod
    def _first_offset(self, wanted: int, log: LogSpan) -> int:
        """Return the first offset to send to a slave. The slave's log ends at ``wanted``.

        Raises ProtocolError if the master's log does not have this offset.
        """

    def _transfer_end(self, offset: int, log: LogSpan) -> int:
        """Return the offset at which a transfer from ``offset`` on must end.

        A transfer is one read of one file, so it must not cross the end of a segment.
        """
        return offset + log.segment_size - (offset - log.start) % log.segment_size

    def _record_reports(self, offsets: list[int], log: LogSpan) -> bool:
        """Record the offsets in reports of the slave. Return True if there is one.

        The first report of a connection requests the log from its offset on. A repeated offset
        counts too, because it keeps an up-to-date slave in sync while nothing is sent.

        Raises ProtocolError if the wanted offset is not in the log, or if the slave acknowledges
        bytes that were not sent. RocketMQ accepts any number.
        """
        if not offsets:
            return False
        if self.next is None:
            self.next = self._first_offset(offsets[0], log)
        if max(offsets) > self.next:
            raise ProtocolError(
                f"the slave acknowledges offset {max(offsets)}, but was sent the log up to "
                f"{self.next}"
            )
        self.acked = max(self.acked, *offsets)
        return True

    def next_transfer(self, log: LogSpan, now: float) -> Transfer | None:
        """Return the next bytes of the log to send to the slave, or None. The returned bytes count
        as sent.

        Raises ProtocolError if the log no longer has the next bytes.
        """
        if self.next is None:
            return None
        if self.next < log.start:
            raise ProtocolError(
                f"the slave needs the log from {self.next} on, but it begins at "
                f"{log.start} now: older files were deleted before they were sent"
            )
        left = log.end - self.next
        if left > 0:
            in_transfer = self._transfer_end(self.next, log) - self.next
            size = self._limit_size(min(left, in_transfer, self.settings.batch), now)
            if size > 0:
                sent = Transfer(self.next, size)
                self.next += size
                self.last_write = now
                return sent
        elif now - self.last_write >= self.settings.heartbeat:
            return self.next_heartbeat(now)
        return None

    def next_heartbeat(self, now: float) -> Transfer | None:
        """Return a transfer without bytes. Return None if the slave has not begun to copy."""
        if self.next is None:
            return None
        self.last_write = now
        return Transfer(self.next, 0)

    def pause(self, written: int, now: float) -> float:
        """Return the seconds to pause before the next bytes are sent to the slave.

        - ``written``: the end of the log.

        A slave that is far behind is served once a millisecond while producers write to the log, so
        that their sends are delayed less.
        """
        if written > self._written:
            self._written = written
            self._grew = now
        is_far = self.next is not None and written - self.next > FAR_BEHIND
        return PAUSE_S if is_far and now - self._grew < BUSY_S else 0.0

    def _limit_size(self, size: int, now: float) -> int:
        """Return the size that the rate of this second allows, and count it as sent."""
        self.sent.begin(now)
        if self.settings.rate_max:
            size = max(min(size, self.settings.rate_max - self.sent.in_this_second), 0)
        self.sent.in_this_second += size
        return size

    def is_silent(self, now: float) -> bool:
        """Return True if the connection must be closed because the slave has sent nothing for too
        long."""
        return now - self.last_read > self.settings.housekeeping


class SlaveConnection(SlaveFeed):
    """State of one plain slave's connection to its master.

    - ``slave``: the name of the slave. Two connections of one slave have the same name.
    """

    def __init__(self, settings: MasterSettings, slave: str, now: float) -> None:
        super().__init__(settings, now)
        self.slave = slave
        self.proved = False
        """True if a comparison has shown that the slave's log is the beginning of this log."""
        self._reports = ReportReader()

    def begin_proved(self, offset: int) -> None:
        """Start to send the log from ``offset`` on. The slave has proved its log up to this offset.

        The proof does not count as an acknowledgement, because the slave's disk may have fewer
        bytes.
        """
        self.next = offset
        self.proved = True

    def receive_reports(self, data: bytes, log: LogSpan, now: float) -> bool:
        """Process received bytes with reports of the slave. Return True if a report was complete.

        Raises ProtocolError if the slave speaks another protocol, if the wanted offset is not in
        the log, or if the slave acknowledges bytes that were not sent.
        """
        self.last_read = now
        return self._record_reports(self._reports.feed(data), log)

    def _first_offset(self, wanted: int, log: LogSpan) -> int:
        if wanted == 0:
            # RocketMQ: send from the start of the file that is being written, nothing older
            return log.last_segment
        if wanted > log.written:
            raise ProtocolError(ahead_refusal(wanted, log.written))
        if wanted < log.start:
            raise ProtocolError(too_old_refusal(wanted, log.start))
        return wanted

    def head_of(self, transfer: Transfer) -> bytes:
        return TRANSFER_HEAD.pack(transfer.offset, transfer.size)


def ahead_refusal(slaves_end: int, end: int) -> str:
    """Return the reason against a slave whose log is longer than the master's.

    - ``slaves_end``: the end of the slave's log.
    - ``end``: the end of the master's log.
    """
    return (
        f"the slave's log ends at {slaves_end}, but this master's at {end}: the master was "
        "restored from an older copy, or lost its tail. Nothing is cut automatically: make the "
        "slave the master, or empty the slave's store so that it is copied again"
    )


def too_old_refusal(slaves_end: int, start: int) -> str:
    """Return the reason against a slave whose log ends before the master's log begins.

    - ``slaves_end``: the end of the slave's log.
    - ``start``: the start of the master's log.
    """
    return (
        f"the slave's log ends at {slaves_end}, but this master's begins at {start}: older files "
        "were deleted; empty the slave's store so that it is copied again"
    )
