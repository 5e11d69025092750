"""Frames on the HA port between replicas (AutoSwitch).

::

    slave to master    4 state 1   2 sync from last file   2 async learner   8 replica id
    master to slave    4 state 1   4 size   8 end of its log   4 epoch   size / 12 × (4 epoch
                       8 start)                           its epochs (epochs.py)
    slave to master    4 state 2   8 offset               first: the end of its log, which was cut
                                                          to the last common point; 0: all of it;
                                                          then: an acknowledgement
    master to slave    4 state 2   4 size   8 offset   4 epoch   8 start of the epoch
                       8 confirmed offset   size bytes of the log as they are
                                                          size 0 is a heartbeat

Numbers are big-endian. The bytes of one frame belong to one epoch. A frame may begin and end
anywhere in an entry. Readers accept frames that arrive in any pieces. RocketMQ's master does not:
it reads a handshake of which only 12 bytes have arrived. So a slave sends its handshake in one
write.

Values in, values out. Sockets, files and the loop are unknown here. Source: apache/rocketmq
``AutoSwitchHAClient``, ``AutoSwitchHAConnection``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from turbopump.errors import ProtocolError
from turbopump.replication.epochs import EPOCHS_MAX, EpochList, list_of
from turbopump.replication.stream import TRANSFER_SIZE_MAX, ReceivedBytes


class State(IntEnum):
    """State of a connection, which is the first field of each frame."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


_STATE: Final = struct.Struct(">i")
_SLAVE_HANDSHAKE: Final = struct.Struct(">ihhq")
_REPORT: Final = struct.Struct(">iq")
_MASTER_HANDSHAKE: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
TRANSFER_HEAD: Final = struct.Struct(">iiqiqq")


class SlaveHandshake(NamedTuple):
    """First frame of a slave.

    - ``from_last_file``: True if a slave without a log wants only the file that is being written.
    - ``async_learner``: True if the slave is never to be in the sync state set.
    - ``replica_id``: the id that the controller gave to the slave.
    """

    from_last_file: bool
    async_learner: bool
    replica_id: int

    def encode(self) -> bytes:
        return _SLAVE_HANDSHAKE.pack(
            State.HANDSHAKE, self.from_last_file, self.async_learner, self.replica_id
        )


class MasterHandshake(NamedTuple):
    """First frame of a master: the end of its log, and its epochs."""

    end: int
    epochs: EpochList

    def encode(self) -> bytes:
        entries = b"".join(_EPOCH.pack(*one) for one in self.epochs.epochs)
        last = self.epochs.last_epoch
        return _MASTER_HANDSHAKE.pack(State.HANDSHAKE, len(entries), self.end, last) + entries


class TransferHead(NamedTuple):
    """Head of a frame with bytes of the log. The bytes follow.

    - ``offset``: offset of the first byte, and of the next one in a frame without bytes.
    - ``size``: number of bytes.
    - ``epoch``, ``epoch_start``: the epoch of the bytes, and the offset at which it begins.
    - ``confirmed``: offset before which readers see the log.
    """

    offset: int
    size: int
    epoch: int
    epoch_start: int
    confirmed: int

    def encode(self) -> bytes:
        return TRANSFER_HEAD.pack(
            State.TRANSFER, self.size, self.offset, self.epoch, self.epoch_start, self.confirmed
        )


def encode_report(offset: int) -> bytes:
    """Encode the report of a slave that has the log up to ``offset``."""
    return _REPORT.pack(State.TRANSFER, offset)


class SlaveFrames:
    """Decoder of the frames of a slave, at its master.

    - ``handshake``: the first frame, or None before it.
    """

    def __init__(self) -> None:
        self._came = ReceivedBytes()
        self.handshake: SlaveHandshake | None = None

    def feed(self, data: bytes) -> list[int]:
        """Decode received bytes. Return the offsets of the reports in them.

        Raises ProtocolError for bytes of another protocol.
        """
        came = self._came
        came.rest += data
        if self.handshake is None and not self._take_handshake():
            return []
        offsets = list[int]()
        while (frame := came.take(_REPORT.size)) is not None:
            state, offset = _REPORT.unpack(frame)
            if state != State.TRANSFER or offset < 0:
                raise ProtocolError(
                    f"the slave sends state {state} with offset {offset} after its handshake"
                )
            offsets.append(offset)
        return offsets

    def _take_handshake(self) -> bool:
        head = self._came.rest[: _STATE.size]
        if len(head) == _STATE.size and _STATE.unpack(head)[0] != State.HANDSHAKE:
            raise ProtocolError(
                "the slave is not in controller mode: set enableControllerMode there, or take it "
                "out of this group"
            )
        frame = self._came.take(_SLAVE_HANDSHAKE.size)
        if frame is None:
            return False
        _, from_last_file, learner, replica_id = _SLAVE_HANDSHAKE.unpack(frame)
        self.handshake = SlaveHandshake(from_last_file == 1, learner == 1, replica_id)
        return True


class MasterFrames:
    """Decoder of the frames of a master, at its slave.

    - ``frames``: the number of decoded heads of transfers.
    """

    def __init__(self) -> None:
        self._came = b""
        self._left = 0
        self._shaken = False
        self.frames = 0

    def feed(self, data: bytes) -> list[MasterHandshake | TransferHead | memoryview]:
        """Decode received bytes. Return frames and bytes of the log, in their order.

        Bytes of the log are returned as they arrive, each after the head of its frame. Raises
        ProtocolError for bytes of another protocol.
        """
        found = list[MasterHandshake | TransferHead | memoryview]()
        view = memoryview(self._came + data)  # without a copy if nothing had come
        at = 0
        while at < len(view):
            if self._left:
                piece = view[at : at + self._left]
                found.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            frame = self._frame_at(view, at)
            if frame is None:
                break
            size, decoded = frame
            found.append(decoded)
            at += size
        self._came = bytes(view[at:])
        return found

    def _frame_at(
        self, view: memoryview, at: int
    ) -> tuple[int, MasterHandshake | TransferHead] | None:
        """Decode a handshake or the head of a transfer. Return its size too, or None while bytes
        are missing."""
        if len(view) - at < _STATE.size:
            return None
        (state,) = _STATE.unpack_from(view, at)
        wanted = State.TRANSFER if self._shaken else State.HANDSHAKE
        if state != wanted:
            raise ProtocolError(
                f"the master sends state {state} instead of {wanted}: it is not in controller mode"
            )
        if not self._shaken:
            return self._handshake_at(view, at)
        if len(view) - at < TRANSFER_HEAD.size:
            return None
        _, size, offset, epoch, epoch_start, confirmed = TRANSFER_HEAD.unpack_from(view, at)
        if not 0 <= size <= TRANSFER_SIZE_MAX:
            raise ProtocolError(f"the master sends {size} bytes at offset {offset}")
        self._left = size
        self.frames += 1
        head = TransferHead(offset, size, epoch, epoch_start, confirmed)
        return TRANSFER_HEAD.size, head

    def _handshake_at(self, view: memoryview, at: int) -> tuple[int, MasterHandshake] | None:
        if len(view) - at < _MASTER_HANDSHAKE.size:
            return None
        _, size, end, _ = _MASTER_HANDSHAKE.unpack_from(view, at)
        if size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size or end < 0:
            raise ProtocolError(f"the master sends {size} bytes of epochs, and {end} as its end")
        begin = at + _MASTER_HANDSHAKE.size
        if len(view) < begin + size:
            return None
        self._shaken = True
        epochs = list_of(_EPOCH.iter_unpack(view[begin : begin + size]))
        return _MASTER_HANDSHAKE.size + size, MasterHandshake(end, epochs)
