"""Decisions of a slave in replication between replicas.

The slave compares its epochs with those of its master, and then knows one of three things: up to
where its log must be cut, from where on it copies, or why it must not copy. The slave takes over an
epoch of the master before it stores the first byte of this epoch.

Values in, values out: received bytes and times (monotonic seconds) go in; reports and bytes for the
log come out. Sockets, files and the loop are unknown here. Source: apache/rocketmq
``AutoSwitchHAClient``. RocketMQ's slave without epochs cuts nothing and continues at its end; ours
refuses, because its log may be another one.
"""

from __future__ import annotations

from typing import NamedTuple

from turbopump.errors import ProtocolError
from turbopump.replication.auto_switch import (
    MasterFrames,
    MasterHandshake,
    SlaveHandshake,
    TransferHead,
    encode_report,
)
from turbopump.replication.epochs import NO_COMMON_POINT, EpochList, common_point
from turbopump.replication.slave import MasterSource, SlaveSettings


class OwnLog(NamedTuple):
    """Log of the slave: its ends and its epochs.

    - ``master_epoch``: the epoch of the master that the slave was told to follow.
    """

    start: int
    end: int
    epochs: EpochList
    master_epoch: int


class ReplicaMaster(MasterSource):
    """State of a slave's connection to its master, between replicas.

    - ``confirmed``: offset before which readers see the log, as far as the slave has it.
    - ``cut_to``: offset to which the log must be cut first, or None.
    - ``epochs``: the epochs that the slave must have, durable, before it stores what was received.
    """

    def __init__(
        self, settings: SlaveSettings, handshake: SlaveHandshake, own: OwnLog, now: float
    ) -> None:
        super().__init__(settings, own.end, -1, now)  # the first report requests the log
        self._handshake = handshake
        self._own = own
        self._frames = MasterFrames()
        self._position: int | None = own.end or None
        self._found_master = False
        self.confirmed = -1
        self.cut_to: int | None = None
        self.epochs = own.epochs

    @property
    def accepted(self) -> bool:
        return self._frames.frames > 0

    @property
    def compared(self) -> bool:
        """True once the epochs of both logs are compared, and the log may grow."""
        return self._found_master and self.cut_to is None

    def begin(self) -> bytes:
        """Return the first frame for the master."""
        return self._handshake.encode()

    def received(self, data: bytes, now: float) -> None:
        """Process received bytes.

        Raises ProtocolError if this master cannot be copied, with advice for the operator.
        """
        self.last_read = now
        self.came.begin(now)
        for one in self._frames.feed(data):
            if isinstance(one, memoryview):
                assert self._position is not None
                self._position += len(one)
                self._log.add(one)
                self.came.in_this_second += len(one)
            elif isinstance(one, TransferHead):
                self._begin_transfer(one)
            else:
                self._compare(one)

    def _compare(self, master: MasterHandshake) -> None:
        """Compare the epochs of both logs. Set ``cut_to`` or ``epochs``."""
        own, theirs = self._own, master.epochs
        if theirs.last is None:
            raise ProtocolError(
                "the master has no epochs yet: it was not elected, or it is no replica"
            )
        last = own.epochs.last
        if (
            last is not None
            and theirs.last.epoch < min(own.master_epoch, last.epoch)
            and last.start < own.end
        ):
            raise ProtocolError(
                f"the master is at epoch {theirs.last.epoch}, but epoch {own.master_epoch} was "
                f"announced, and this log has bytes of epoch {last.epoch}: it is an older master"
            )
        self._found_master = True
        if own.end:
            point = common_point(own.epochs, own.end, theirs, master.end)
            if point < own.end:
                self._refuse_cut(point, master)
                self.cut_to = point
                return
        self.epochs = theirs

    def _refuse_cut(self, point: int, master: MasterHandshake) -> None:
        """Raise ProtocolError if the logs have nothing in common."""
        own = self._own
        if point > own.start or point == own.start == 0:
            return
        advice = (
            "Save the messages that only this store has (turbopump store dump), then empty it so "
            "that it is copied again"
        )
        if not own.epochs.epochs:
            raise ProtocolError(
                f"the log here ends at {own.end} and has no epochs (epochFileCheckpoint): it is "
                "unknown if it is the beginning of the master's. The file was lost, or the store "
                f"was written outside controller mode. {advice}"
            )
        if point == NO_COMMON_POINT:
            raise ProtocolError(
                "the log here shares no epoch with the master's: here "
                f"{_epochs_text(own.epochs)}, there {_epochs_text(master.epochs)}. It is the log "
                f"of another group, or too old. {advice}"
            )
        raise ProtocolError(
            f"the log here begins at {own.start}, and agrees with the master's only up to {point}: "
            f"older files were deleted. {advice}"
        )

    def _begin_transfer(self, head: TransferHead) -> None:
        if head.size and head.offset != (self._position or head.offset):
            raise ProtocolError(
                f"the master sent offset {head.offset}, but the slave's log continues at "
                f"{self._position}"
            )
        if head.size and self._position is None:
            self._position = head.offset
            self._log.begin_at(head.offset)
        if head.epoch > self.epochs.last_epoch:
            # RocketMQ: a master that is elected again keeps its connections
            self.epochs = self.epochs.append(head.epoch, head.epoch_start)
        self.confirmed = max(self.confirmed, head.confirmed)

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)


def _epochs_text(epochs: EpochList) -> str:
    """Describe the newest epochs of a list, for an error."""
    newest = ", ".join(f"{one.epoch}-{one.start}" for one in epochs.epochs[-3:])
    return newest or "none"
