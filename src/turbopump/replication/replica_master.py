"""State of one slave's connection to its master, between replicas.

The master answers the slave's handshake with its epochs. It then sends the log from the slave's
first report on. The bytes of one transfer belong to one epoch. Between transfers the master sends
heartbeats, also when it has confirmed more, because readers at the slave wait for that.

Values in, values out: bytes and times (monotonic seconds) come in; bytes to send and refusals come
out. Sockets, files and the loop are unknown here. Source: apache/rocketmq
``AutoSwitchHAConnection``; differences are noted.
"""

from __future__ import annotations

from turbopump.errors import ProtocolError
from turbopump.replication.auto_switch import (
    MasterHandshake,
    SlaveFrames,
    SlaveHandshake,
    TransferHead,
)
from turbopump.replication.epochs import Epoch, EpochList
from turbopump.replication.master import LogSpan, MasterSettings, SlaveFeed, Transfer


class ReplicaConnection(SlaveFeed):
    """State of one slave's connection to its master, between replicas.

    - ``epochs``: the epochs of the master's log. They do not change while it is the master.
    """

    def __init__(self, settings: MasterSettings, epochs: EpochList, now: float) -> None:
        super().__init__(settings, now)
        self.epochs = epochs
        self.confirmed = 0
        """Offset before which readers see the log. Set it before each transfer."""
        self.confirmed_sent = -1
        """Confirmed offset in the last transfer, or -1 without one."""
        self._frames = SlaveFrames()
        self._answered = False

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
        return said, self._record_reports(offsets, log)

    def _first_offset(self, wanted: int, log: LogSpan) -> int:
        handshake = self.handshake
        assert handshake is not None
        if wanted == 0:
            if handshake.from_last_file:
                return log.last_segment
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

    def _transfer_end(self, offset: int, log: LogSpan) -> int:
        """Return the offset at which a transfer from ``offset`` on must end.

        The bytes of one transfer belong to one segment and to one epoch.
        """
        epoch_end = self.epochs.end_of(self._epoch_at(offset).epoch, log.end)
        return min(super()._transfer_end(offset, log), epoch_end)

    def head_of(self, transfer: Transfer) -> bytes:
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
