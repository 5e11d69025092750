"""Timers' checkpoint: the progress of the timer log, the queue of timer messages and the wheel.

All of it was on the disk when the checkpoint was written::

    4096 bytes: 7 longs: lastReadTimeMs  lastTimerLogFlushPos  lastTimerQueueOffset
                masterTimerQueueOffset, and a data version: stateVersion  timestamp  counter
    at 64, ours: 8 magic "TPTIMERS"   8 delivered units of the slot lastReadTimeMs
                 8 offset of the queue before which everything is read again
                 4 CRC-32 of bytes 0–55 and 64–87
    at 92, ours: 8 sum of the wheel's pending slots   4 CRC-32 of bytes 64–99;
                 absent in files of earlier releases of ours
    at 104, ours: 8 precision of the wheel in ms, 0: messages get new slots
                  8 position before which units of the timer log no longer count
                  4 CRC-32 of bytes 0–119;
                  beside Apache's longs, too, while log and wheel of its broker get other slots

Apache's broker writes only the longs, so the first CRC is wrong. It syncs log and wheel after it
has determined lastTimerLogFlushPos, so the log may be longer. RocketMQ: ``TimerCheckpoint``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from turbopump.disk.disk import Disk
from turbopump.errors import StoreError

FILE_SIZE: Final = 4096
_LONGS: Final = struct.Struct(">7q")
_OWN: Final = struct.Struct(">8sqq")
_OWN_AT: Final = 64
_SUM: Final = struct.Struct(">qI")
_SUM_AT: Final = 92
_SLOTS: Final = struct.Struct(">qqI")
_SLOTS_AT: Final = 104
_MAGIC: Final = b"TPTIMERS"


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Positions of the timers. Everything before these positions was on the disk.

    - ``read_time``: time in ms. Every slot before it is delivered, and the first ``delivered``
      units of its own slot.
    - ``log_end``: position in the timer log.
    - ``queue_offset``: offset in the queue of timer messages. Every message before it has a
      unit.
    - ``redo_before``: queue offset up to which log and wheel are being rebuilt; 0 if they are
      not.
    - ``ours``: True if Turbopump wrote the checkpoint.
    - ``wheel_sum``: sum of the wheel at that time; None if unknown.
    - ``precision_ms``: precision of log and wheel. None if unknown, and 0 if different from
      every precision.
    - ``log_begin``: position in the timer log before which units no longer count.
    """

    read_time: int = 0
    log_end: int = 0
    queue_offset: int = 0
    delivered: int = 0
    redo_before: int = 0
    timestamp: int = 0
    counter: int = 0
    ours: bool = True
    wheel_sum: int | None = None
    precision_ms: int | None = None
    log_begin: int = 0

    def encode(self) -> bytes:
        longs = _LONGS.pack(
            self.read_time,
            self.log_end,
            self.queue_offset,
            self.queue_offset,
            0,
            self.timestamp,
            self.counter,
        )
        own = _OWN.pack(_MAGIC, self.delivered, self.redo_before)
        data = bytearray(FILE_SIZE)
        data[: len(longs)] = longs
        if self.ours:
            data[_OWN_AT : _OWN_AT + len(own)] = own
            data[_OWN_AT + len(own) : _OWN_AT + len(own) + 4] = zlib.crc32(longs + own).to_bytes(4)
        if self.ours and self.wheel_sum is not None:
            data[_SUM_AT : _SUM_AT + 8] = self.wheel_sum.to_bytes(8)
            data[_SUM_AT + 8 : _SUM_AT + 12] = zlib.crc32(data[_OWN_AT : _SUM_AT + 8]).to_bytes(4)
        if self.precision_ms is not None:
            _SLOTS.pack_into(data, _SLOTS_AT, self.precision_ms, self.log_begin, 0)
            data[_SLOTS_AT + 16 : _SLOTS_AT + 20] = zlib.crc32(data[: _SLOTS_AT + 16]).to_bytes(4)
        return bytes(data)

    def for_slave(self) -> bytes:
        """Encode the checkpoint as Apache's seven longs, for the answer to a slave (request 60)."""
        return self.encode()[: _LONGS.size]

    @classmethod
    def of_master(cls, data: bytes) -> TimerCheckpoint:
        """Decode the checkpoint that a slave has got from its master.

        Raises StoreError for bytes of another length. The slave has no timer log. If it becomes the
        master, it makes one from the queue, without delivered messages.
        """
        if len(data) != _LONGS.size:
            raise StoreError(f"a checkpoint of timers has {_LONGS.size} bytes, not {len(data)}")
        read_time, _, queue_offset, master_offset, _, timestamp, counter = _LONGS.unpack(data)
        taken_in = min(queue_offset, master_offset)
        return cls(
            read_time, 0, taken_in, redo_before=taken_in, timestamp=timestamp, counter=counter
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint | None:
        """Decode the content of a checkpoint file, or return None for other bytes."""
        if len(data) != FILE_SIZE:
            return None
        longs = data[: _LONGS.size]
        read_time, log_end, queue_offset, master_offset, _, timestamp, counter = _LONGS.unpack(
            longs
        )
        if min(read_time, log_end, queue_offset, master_offset) < 0:
            return None
        own = data[_OWN_AT : _OWN_AT + _OWN.size]
        ours = data[_OWN_AT + _OWN.size : _OWN_AT + _OWN.size + 4] == zlib.crc32(
            longs + own
        ).to_bytes(4)
        precision, log_begin, check = _SLOTS.unpack_from(data, _SLOTS_AT)
        slots = (precision, log_begin) if check == zlib.crc32(data[: _SLOTS_AT + 16]) else (None, 0)
        found = cls(read_time, log_end, queue_offset, 0, 0, timestamp, counter, ours, None, *slots)
        if not ours:
            return replace(found, queue_offset=min(queue_offset, master_offset))
        _, delivered, redo_before = _OWN.unpack(own)
        wheel_sum, check = _SUM.unpack_from(data, _SUM_AT)
        known = wheel_sum if check == zlib.crc32(data[_OWN_AT : _SUM_AT + 8]) else None
        return replace(found, delivered=delivered, redo_before=redo_before, wheel_sum=known)


def load_timer_checkpoint(disk: Disk, path: Path) -> TimerCheckpoint | None:
    """Read the checkpoint of the timers from the file ``path``, or from the backup of that file.

    Return None if neither can be read.
    """
    for name in (path, path.with_name(path.name + ".bak")):
        data = disk.read_file(name)
        checkpoint = TimerCheckpoint.decode(data) if data is not None else None
        if checkpoint is not None:
            return checkpoint
    return None
