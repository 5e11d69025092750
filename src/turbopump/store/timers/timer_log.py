"""Timer log: one unit for each delayed message, in the order of arrival.

::

    unit, 52 bytes:   4 size (52)   8 position of the unit before it in its slot (−1: none)
                      4 magic: 1, + 2 rolls, + 4 recalls another
                      8 written at (ms, floored to the precision)   4 ms from then to its slot
                      8 offset of the message in the commit log   4 its size
                      4 hash of its real topic   8 reserved (0)
    end of a file:    4 bytes that are left   8 zeros   4 CBD43194, if no further unit fits

Units of one slot form a chain, newest first, which starts in the timer wheel. Source:
apache/rocketmq ``TimerLog``, ``TimerMessageStore``. The log is derived data: it can be rebuilt from
the queue of ``rmq_sys_wheel_timer``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.disk import Disk, Piece
from turbopump.errors import StoreError
from turbopump.message.entry import FIXED_SIZE
from turbopump.store.mapped_file import MappedFile, MappedFiles

TIMER_UNIT_SIZE: Final = 52
LOG_FILE_SIZE: Final = 100 * 1024 * 1024
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
"""Magic bit: the slot is not the message's own, but an earlier one."""
MAGIC_DELETE: Final = 4
"""Magic bit: the message recalls another one."""

_UNIT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqI")
_MAGIC_BLANK: Final = 0xCBD43194
_SCAN_STEP: Final = TIMER_UNIT_SIZE * 16_384
_OFFSET_MAX: Final = 1 << 60
"""Upper bound of valid log offsets."""


class TimerUnit(NamedTuple):
    """Unit at ``position``.

    - ``time``: time of its slot (ms).
    - ``written``: time of its entry into the slot (ms).
    - ``offset``, ``size``: its message in the commit log.
    """

    position: int
    previous: int
    magic: int
    written: int
    time: int
    offset: int
    size: int
    topic_hash: int

    @property
    def rolls(self) -> bool:
        return self.magic & MAGIC_ROLL != 0

    @property
    def recalls(self) -> bool:
        return self.magic & MAGIC_DELETE != 0


def read_unit(data: bytes, at: int, position: int) -> TimerUnit | None:
    """Decode the unit at ``at`` of ``data``; return None for bytes that cannot be a unit at
    ``position``."""
    size, previous, magic, written, delay, offset, message_size, topic_hash, _ = _UNIT.unpack_from(
        data, at
    )
    if (
        size != TIMER_UNIT_SIZE
        or not 1 <= magic <= 0xF
        or not -1 <= previous < position
        or message_size < FIXED_SIZE
    ):
        return None
    if not 0 <= offset < _OFFSET_MAX or not 0 <= written < _OFFSET_MAX:
        return None
    return TimerUnit(
        position, previous, magic, written, written + delay, offset, message_size, topic_hash
    )


class TimerLog:
    """Log in ``directory``, created with its first unit. ``end`` is the position of the next unit;
    it is unknown until ``cut_at`` is called after ``files.load``."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        self._disk = disk
        self._directory = directory
        self.files = MappedFiles(disk, (directory,), file_size, ahead=True)
        self.end = 0
        self._current: MappedFile | None = None

    @property
    def start(self) -> int:
        return self.files.start

    @property
    def capacity(self) -> int:
        """End of the last file."""
        return self.files.files[-1].end if self.files else 0

    def file_start(self, position: int) -> int:
        """Return the start of the file that contains ``position``."""
        return position - (position - self.start) % self.files.file_size

    def append(
        self,
        previous: int,
        magic: int,
        written: int,
        time: int,
        offset: int,
        size: int,
        topic_hash: int,
    ) -> int:
        """Append a unit and return its position. Raises OSError if a new file cannot be made; then
        nothing has changed. About 1 µs."""
        current, position = self._current, self.end
        if current is None or current.end - position < TIMER_UNIT_SIZE + _BLANK.size:
            current = self._roll()
            position = self.end
        _UNIT.pack_into(
            current.buffer,
            position - current.start,
            TIMER_UNIT_SIZE,
            previous,
            magic,
            written,
            time - written,
            offset,
            size,
            topic_hash,
            0,
        )
        current.dirty = True
        self.end = position + TIMER_UNIT_SIZE
        return position

    def piece(
        self, position: int, before: int = 0, size: int = TIMER_UNIT_SIZE
    ) -> tuple[Piece, int] | None:
        """Return the piece of a file for the unit at ``position``, and the unit's place in the
        piece. None: the unit no longer exists.

        The piece has ``size`` bytes from the unit on, or fewer at the end of the file, and up to
        ``before`` bytes before the unit.
        """
        file = self.files.at(position)
        there = min(self.end, file.end - _BLANK.size) - position if file is not None else 0
        if file is None or there < TIMER_UNIT_SIZE:
            return None
        begin, end = max(position - before, file.start), position + min(size, there)
        end -= (end - position) % TIMER_UNIT_SIZE
        return Piece(file.segment, begin - file.start, end - begin), position - begin

    def unit(self, position: int) -> TimerUnit | None:
        """Read the unit at ``position``, and block until then; return None if there is none."""
        there = self.piece(position)
        if there is None:
            return None
        segment, at, size = there[0]
        return read_unit(segment.read_cold(at, size), 0, position)

    def next_position(self, position: int) -> int:
        """Return ``position``, or the start of the next file if no unit fits there."""
        file = self.files.at(position)
        if file is None or file.end - position >= TIMER_UNIT_SIZE + _BLANK.size:
            return position
        return file.end

    def scan(self, start: int, end: int | None = None) -> Iterator[TimerUnit]:
        """Yield the units from ``start`` on, up to ``end`` or to the first invalid one.
        ``scanned_to`` is the end of the scan. It reads without the map; about 1 µs a unit."""
        self.scanned_to = start
        limit = self.capacity if end is None else end
        while self.scanned_to < limit:
            file = self.files.at(self.scanned_to)
            if file is None:
                return
            at = self.scanned_to - file.start
            whole = (file.segment.size - at - _BLANK.size) // TIMER_UNIT_SIZE * TIMER_UNIT_SIZE
            size = min(whole, _SCAN_STEP, limit - self.scanned_to)
            if size < TIMER_UNIT_SIZE:
                if file.segment.size - at > _BLANK.size + TIMER_UNIT_SIZE:
                    return
                self.scanned_to = file.end
                continue
            data = file.segment.read_cold(at, size)
            for within in range(0, size - TIMER_UNIT_SIZE + 1, TIMER_UNIT_SIZE):
                unit = read_unit(data, within, self.scanned_to)
                if unit is None:
                    return
                self.scanned_to += TIMER_UNIT_SIZE
                yield unit

    def cut_at(self, end: int) -> None:
        """Cut the log off at ``end`` and continue there."""
        assert self.start <= end <= self.capacity
        self.files.truncate(end)
        self.end = end
        self._current = self.files.at(end)

    def go_on_behind(self, end: int) -> int:
        """Cut the log off like ``cut_at``, but continue in a new file. Return its first
        position."""
        self.cut_at(end)
        if self._current is not None:
            self.end = self._current.end
            self._current = None
        return self.end

    def files_before(self, position: int) -> list[MappedFile]:
        """Return the files at the front that end before ``position``, but never the last file."""
        return [file for file in self.files.files[:-1] if file.end <= position]

    def remove_before(self, position: int) -> None:
        """Delete the files before ``position``, and block until then. Raises OSError."""
        for file in self.files_before(position):
            self._disk.remove(file.segment.path)
            self.files.forget_first()

    def prepare(self) -> None:
        """Start to make the next file in a thread if this one is nearly full. Call it
        periodically."""
        if self._current is not None and self._current.end - self.end < self.files.file_size // 4:
            self.files.prepare_next()

    def drop_before(self, log_start: int) -> list[MappedFile]:
        """Return the files at the front whose messages are no longer in the commit log, which
        begins at ``log_start``. The last file is never returned. The caller deletes each file, and
        then forgets it."""
        found = []
        for file in self.files.files[:-1]:
            last = (
                file.segment.size - _BLANK.size
            ) // TIMER_UNIT_SIZE * TIMER_UNIT_SIZE - TIMER_UNIT_SIZE
            unit = read_unit(file.segment.read(last, TIMER_UNIT_SIZE), 0, file.start + last)
            if unit is None or unit.offset >= log_start:
                break
            found.append(file)
        return found

    def remove(self) -> None:
        """Delete every file and leave an empty log."""
        self.files.remove_all()
        self.files = self.files.emptied()
        self.end = 0
        self._current = None

    def close(self) -> None:
        self.files.close()
        self._current = None

    def _roll(self) -> MappedFile:
        """Close the current file with a blank and start the next one."""
        current = self._current
        start = current.end if current is not None else self.end
        if not self.files:
            self._disk.make_directory(self._directory)
        fresh = self.files.append_file(start)
        if current is not None:
            at = self.end - current.start
            _BLANK.pack_into(current.buffer, at, current.end - self.end, 0, _MAGIC_BLANK)
            current.dirty = True
        self._current = fresh
        self.end = start
        return fresh


# --- The timers' checkpoint: up to where the timer log, the queue of timer messages and the wheel
# are dealt with, all of that on the disk.
#
#     4096 bytes: 7 longs: lastReadTimeMs  lastTimerLogFlushPos  lastTimerQueueOffset
#                 masterTimerQueueOffset, and a data version: stateVersion  timestamp  counter
#     at 64, ours: 8 magic "TPTIMERS"   8 units of the slot lastReadTimeMs that are delivered
#                  8 offset of the queue before which everything is to be read again
#                  4 CRC-32 of bytes 0–55 and 64–87
#     at 92, ours: 8 sum of the wheel's pending slots   4 CRC-32 of bytes 64–99;
#                  left out by earlier releases of ours
#     at 104, ours: 8 precision of the wheel in ms, 0: slots are to be given anew
#                  8 position before which the timer log counts no more   4 CRC-32 of bytes 0–119;
#                  beside Apache's longs, too, while log and wheel of its broker get other slots
#
# Apache's broker writes the longs only, and then the CRC does not fit: its log and wheel were
# synced after lastTimerLogFlushPos was taken, so the log may be longer. RocketMQ:
# ``TimerCheckpoint``.

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
    """Checkpoint of the timers.

    - ``read_time``: every slot before this time (ms) is delivered, and the first
      ``delivered`` units of its own slot.
    - ``log_end``: position in the timer log.
    - ``queue_offset``: every message before it in the queue has a unit.
    - ``redo_before``: queue offset up to which log and wheel are being rebuilt; 0 if they are
      not.
    - ``ours``: written by Turbopump.
    - ``wheel_sum``: sum of the wheel at that time; None if unknown.
    - ``precision_ms``: precision of log and wheel; None: unknown, 0: different from every
      precision.
    - ``log_begin``: position in the log before which units no longer count.
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
        """Encode the checkpoint for the answer to request 60 of a slave: Apache's seven longs."""
        return self.encode()[: _LONGS.size]

    @classmethod
    def of_master(cls, data: bytes) -> TimerCheckpoint:
        """Return the checkpoint of a slave, decoded from its master's answer. Raises StoreError for
        other bytes.

        The slave has no timer log. If it becomes the master, it makes one from the queue, without
        delivered messages.
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
        """Decode a checkpoint; return None for other bytes."""
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
    """Read the checkpoint, or the one before it; return None if neither can be read."""
    for name in (path, path.with_name(path.name + ".bak")):
        data = disk.read_file(name)
        checkpoint = TimerCheckpoint.decode(data) if data is not None else None
        if checkpoint is not None:
            return checkpoint
    return None
