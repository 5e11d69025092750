"""The timers' checkpoint: up to where the timer log, the queue of timer messages and the wheel are
dealt with, all of that on the disk.

::

    4096 bytes; 7 longs: lastReadTimeMs  lastTimerLogFlushPos  lastTimerQueueOffset  masterTimerQueueOffset
                         and a data version: stateVersion  timestamp  counter
    at 64, ours: 8 magic "TPTIMERS"   8 units of the slot lastReadTimeMs that are delivered
                 8 offset of the queue before which everything is to be read again   4 CRC-32 of bytes 0–55 and 64–87
    at 92, ours: 8 sum of the wheel's pending slots (``TimerWheel.sum``)   4 CRC-32 of bytes 64–99; left out by earlier releases of ours
    at 104, ours: 8 precision of the wheel in ms, 0: slots are to be given anew   8 position before which the timer log counts no more
                 4 CRC-32 of bytes 0–119; beside Apache's longs, too, while log and wheel of its broker get other slots

Apache's broker writes the longs only: then the CRC does not fit, and what it means by them counts:
its log and wheel were synced after lastTimerLogFlushPos was taken, so the log may be longer.
Source: apache/rocketmq ``TimerCheckpoint``. The file is replaced in one step.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turbopump.store.disk import Disk

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
    """``read_time`` (ms): every slot before it is delivered, and of the slot itself the first
    ``delivered`` units. ``log_end``: position in the timer log. ``queue_offset``: every message
    before it in the queue has its unit. ``redo_before``: not 0, log and wheel are being made anew
    from the queue, up to there. ``ours``: this program wrote it. ``wheel_sum`` of the wheel as it
    was then; None: not known. ``precision_ms`` of log and wheel; None: not known, 0: another than
    any. ``log_begin``: before that position the log counts no more."""

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

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint | None:
        """None for bytes that are none."""
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
        if ours:
            _, delivered, redo_before = _OWN.unpack(own)
            wheel_sum, check = _SUM.unpack_from(data, _SUM_AT)
            known = check == zlib.crc32(data[_OWN_AT : _SUM_AT + 8])
            return cls(
                read_time,
                log_end,
                queue_offset,
                delivered,
                redo_before,
                timestamp,
                counter,
                True,
                wheel_sum if known else None,
                *slots,
            )
        return cls(
            read_time,
            log_end,
            min(queue_offset, master_offset),
            0,
            0,
            timestamp,
            counter,
            False,
            None,
            *slots,
        )


def load_timer_checkpoint(disk: Disk, path: Path) -> TimerCheckpoint | None:
    """The checkpoint, else the one before it; None if there is none that can be read."""
    for name in (path, path.with_name(path.name + ".bak")):
        data = disk.read_file(name)
        checkpoint = TimerCheckpoint.decode(data) if data is not None else None
        if checkpoint is not None:
            return checkpoint
    return None
