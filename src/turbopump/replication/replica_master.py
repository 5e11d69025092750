"""State of one slave's connection to its master, between replicas.

The master answers the slave's handshake with its epochs. It then sends the log from the slave's
first report on. The bytes of one transfer belong to one epoch. Between transfers the master sends
heartbeats, also when it has confirmed more, because readers at the slave wait for that.

Values in, values out: bytes and times (monotonic seconds) come in; bytes to send and refusals come
out. Sockets, files and the loop are unknown here. Source: apache/rocketmq
``AutoSwitchHAConnection``; differences are noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turbopump.errors import ProtocolError
from turbopump.replication.auto_switch import (
    MasterHandshake,
    SlaveFrames,
    SlaveHandshake,
    TransferHead,
)
from turbopump.replication.epochs import Epoch, EpochList
from turbopump.replication.master import (
    BUSY_S,
    FAR_BEHIND,
    PAUSE_S,
    LogSpan,
    MasterSettings,
    Transfer,
)
from turbopump.replication.stream import ByteRate


@dataclass(slots=True, eq=False)
class ReplicaConnection:
    """State of one slave's connection to its master.

    - ``epochs``: the epochs of the master's log. They do not change while it is the master.
    - ``now``: the time when the connection was opened.
    """

    settings: MasterSettings
    epochs: EpochList
    now: float
    acked: int = -1
    """Offset before which the slave has the log by its last acknowledgement, or -1 without one."""
    next: int | None = None
    """Next offset to send, or None before the slave's first report."""
    confirmed: int = 0
    """Offset before which readers see the log. Set it before each transfer."""
    confirmed_sent: int = -1
    last_read: float = 0.0
    last_write: float = 0.0
    sent: ByteRate = field(init=False)
    _frames: SlaveFrames = field(default_factory=SlaveFrames)
    _answered: bool = False
    _written: int = 0
    _grew: float = float("-inf")

    def __post_init__(self) -> None:
        self.last_read = self.now
        self.sent = ByteRate(self.now)
        self.last_write = self.now - self.settings.heartbeat  # the first heartbeat is due at once

    @property
    def handshake(self) -> SlaveHandshake | None:
        """First frame of the slave, or None before it."""
        return self._frames.handshake

    def receive(self, data: bytes, log: LogSpan, now: float) -> tuple[bytes, bool]:
        """Process received bytes. Return the bytes to send, and True if a report was complete.

        Raises ProtocolError if the slave speaks another protocol, if the wanted offset is not in
        the log, or if it acknowledges bytes that were not sent.
        """
        self.last_read = now
        offsets = self._frames.feed(data)
        said = b""
        if self.handshake is not None and not self._answered:
            self._answered = True
            said = MasterHandshake(log.written, self.epochs).encode()
        if not offsets:
            return said, False
        had = self.next
        if had is None:
            had = self.next = self._first_offset(offsets[0], log)
        if max(offsets) > had:
            raise ProtocolError(
                f"the slave acknowledges offset {max(offsets)}, but was sent the log up to {had}"
            )
        self.acked = max(self.acked, *offsets)
        return said, True

    def _first_offset(self, wanted: int, log: LogSpan) -> int:
        """Return the first offset to send to a slave. The slave's log ends at ``wanted``.

        Raises ProtocolError if the master's log does not have this offset.
        """
        handshake = self.handshake
        assert handshake is not None
        if wanted == 0:
            if handshake.from_last_file:
                return max(log.written - log.written % log.segment_size, log.start)
            return log.start
        if wanted > log.written:
            raise ProtocolError(
                f"the log of replica {handshake.replica_id} ends at {wanted}, but this master's at "
                f"{log.written}: the slave has not cut its log. An Apache broker does so if its "
                "epochFileCheckpoint is lost: empty its store so that it is copied again"
            )
        if wanted < log.start:
            raise ProtocolError(
                f"replica {handshake.replica_id} needs the log from {wanted} on, but this "
                f"master's begins at {log.start}: older files were deleted. Empty the slave's "
                "store so that it is copied again, and set a longer fileReservedTime"
            )
        return wanted

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
            # a transfer is one read of one file, so it must not cross the end of a segment
            here = log.segment_size - (self.next - log.start) % log.segment_size
            in_epoch = self.epochs.end_of(self._epoch_at(self.next).epoch, log.end) - self.next
            size = min(left, here, in_epoch, self.settings.batch)
            size = self._limit_size(size, now)
            if size > 0:
                sent = Transfer(self.next, size)
                self.next += size
                self.last_write = now
                return sent
        elif now - self.last_write >= self.settings.heartbeat:
            return self.next_heartbeat(now)
        return None

    def next_heartbeat(self, now: float) -> Transfer | None:
        """Return a transfer without bytes, which reports the confirmed offset. Return None if the
        slave has not begun to copy."""
        if self.next is None:
            return None
        self.last_write = now
        return Transfer(self.next, 0)

    def head_of(self, transfer: Transfer) -> bytes:
        """Return the head of the frame for a transfer."""
        self.confirmed_sent = self.confirmed
        epoch = self._epoch_at(transfer.offset)
        return TransferHead(
            transfer.offset, transfer.size, epoch.epoch, epoch.start, self.confirmed
        ).encode()

    def _epoch_at(self, offset: int) -> Epoch:
        """Return the epoch of the byte at ``offset``.

        Bytes that were written before the first epoch count as its own. Both replicas have that
        epoch, so they have these bytes too.
        """
        return self.epochs.at(offset) or self.epochs.epochs[0]

    def pause(self, written: int, now: float) -> float:
        """Return the seconds to pause before the next bytes are sent to the slave, as
        ``SlaveConnection.pause``."""
        if written > self._written:
            self._written = written
            self._grew = now
        is_far = self.next is not None and written - self.next > FAR_BEHIND
        return PAUSE_S if is_far and now - self._grew < BUSY_S else 0.0

    def _limit_size(self, size: int, now: float) -> int:
        self.sent.begin(now)
        if self.settings.rate_max:
            size = max(min(size, self.settings.rate_max - self.sent.in_this_second), 0)
        self.sent.in_this_second += size
        return size

    def is_silent(self, now: float) -> bool:
        """Return True if the connection must be closed because the slave has sent nothing for too
        long."""
        return now - self.last_read > self.settings.housekeeping
