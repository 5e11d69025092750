"""Checkpoint file: the store times up to which log and queues are known to be on the disk.

::

    4096 bytes; 5 longs: physicMsgTimestamp  logicsMsgTimestamp  indexMsgTimestamp
                         masterFlushedOffset  confirmPhyOffset
    at 4072, 3 longs of our own, which Apache's broker leaves alone: the offset up to which log
    and queues are on the disk (0: unknown),
    and at a clean stop the end of the log and the number of queue units

Times are in ms. Source: apache/rocketmq ``StoreCheckpoint``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

from turbopump.disk.disk import Disk, Segment

CHECKPOINT_SIZE: Final = 4096
SAFETY_MS: Final = 3000
"""Time in ms that recovery subtracts from the times in the checkpoint, for safety."""

_FIELDS: Final = struct.Struct(">qqqqq")
_OWN: Final = struct.Struct(">qqq")
_OWN_AT: Final = CHECKPOINT_SIZE - _OWN.size


class CheckpointFields(NamedTuple):
    """Checkpoint fields that Apache's broker writes too.

    Times are in ms, offsets in bytes of the log.
    """

    log_timestamp: int
    queues_timestamp: int
    index_timestamp: int
    master_flushed_offset: int
    confirmed_offset: int

    @classmethod
    def decode(cls, data: Any) -> CheckpointFields:
        """Decode the fields at the start of a checkpoint file."""
        return cls(*_FIELDS.unpack_from(data))


def safe_offset_of(data: bytes) -> int:
    """Return the log offset up to which everything is on the disk, according to a checkpoint.

    Return 0 if the offset is unknown. ``data`` is the content of the whole file.
    """
    offset: int = _OWN.unpack_from(data, _OWN_AT)[0]
    return offset


class StoreCheckpoint:
    """Checkpoint of a store in its memory-mapped file.

    A file that is missing, or has the wrong size, is created again.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        size = disk.file_size(path)
        if size is not None and size != CHECKPOINT_SIZE:
            disk.remove(path)
            size = None
        self._segment: Segment = (
            disk.create_segment(path, CHECKPOINT_SIZE) if size is None else disk.open_segment(path)
        )
        self.log_timestamp: int
        self.queues_timestamp: int
        (
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirmed_offset,
        ) = CheckpointFields.decode(self._segment.buffer)
        self.safe_offset: int
        self.log_end: int
        self.queue_units: int
        self.safe_offset, self.log_end, self.queue_units = _OWN.unpack_from(
            self._segment.buffer, _OWN_AT
        )

    @property
    def safe_timestamp(self) -> int:
        """Store time in ms. All messages with an earlier store time are on the disk, in the log and
        in the queues."""
        return max(min(self.log_timestamp, self.queues_timestamp) - SAFETY_MS, 0)

    @property
    def segment(self) -> Segment:
        return self._segment

    def write(self) -> None:
        """Write the fields into the memory map, without a sync.

        The flusher syncs the file later.
        """
        _FIELDS.pack_into(
            self._segment.buffer,
            0,
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        _OWN.pack_into(
            self._segment.buffer, _OWN_AT, self.safe_offset, self.log_end, self.queue_units
        )

    def close(self) -> None:
        self._segment.close()
