"""Messages of timers in the commit log: reading them, checking units of the timer log against them,
and moving them to new slots.

Units that do not match their messages mean a damaged timer log; log and wheel are then rebuilt from
the queue. A damaged message is another case, because the queue points to the message too. A message
that cannot be delivered is replaced by a text with the fault, and delays no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from turbopump.broker.reading import read_pieces
from turbopump.broker.schedule.timer_messages import DueSlot, TimerMessage, timer_message
from turbopump.disk.disk import Piece
from turbopump.errors import StoreDamagedError, StoredMessageError
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.remoting.turns import Turns
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, ConsumeQueue
from turbopump.store.timers.pending_timers import OldSlots, PendingTimers, SlotUnits
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT_SIZE, TimerUnit

READ_ATTEMPTS: Final = 3
"""Attempts to read a message from a failing disk, with a pause between them, before it is
skipped."""
SLICE: Final = 32
"""Maximum messages read and delivered in one turn: about 1 ms."""
SLICE_BYTES: Final = 256 * 1024
"""Maximum bytes of a slice. A single larger message is allowed."""
HELD_MAX: Final = 200_000
"""Maximum messages held in memory, some 80 MB. Further ones are treated as waiting, and may be
delivered twice."""
_LATE_SLOTS: Final = 4
"""Tolerance for units in a later slot than their message's own. Its own slot must have been over
when the unit was written; the timers may be this many slots ahead of the clock."""
_COARSEST_MS: Final = 1000
"""Greatest possible precision."""

log = logging.getLogger(__name__)


def first_slice(positions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first of these (offset, size) pairs, as many as are read in one turn."""
    taken: list[tuple[int, int]] = []
    left = SLICE_BYTES
    for position in positions:
        left -= position[1] if position[1] != NO_MESSAGE_SIZE else 0
        if taken and left < 0:
            break
        taken.append(position)
    return taken


@dataclass(slots=True, eq=False)
class TimerRepair:
    """Reader, checker and repairer of messages for one ``Timers``. ``skip`` is called for a
    message that cannot be delivered, with its queue offset (-1: unknown), its log offset and the
    fault."""

    pending: PendingTimers
    store: MessageStore
    queue: ConsumeQueue
    skip: Callable[[int, int, str], None]
    turns: Turns
    _unread: dict[int, int] = field(default_factory=dict)
    _doubted: set[int] = field(default_factory=set)
    _held: dict[tuple[str, bool], tuple[int, int, DueSlot]] = field(default_factory=dict)
    _position: int = 0
    _left: int = 0
    _last_offset: int = -1

    def __post_init__(self) -> None:
        old = self.pending.old_slots
        if old is not None:
            self._position, self._left = old.start, old.delivered

    async def read_messages(
        self, positions: list[tuple[int, int]]
    ) -> dict[int, TimerMessage | str]:
        """Return the messages at (offset, size) by offset, or the fault of each that cannot be
        delivered. Raises OSError if the disk cannot read one now."""
        found: dict[int, TimerMessage | str] = {}
        pieces: dict[int, Piece] = {}
        for offset, size in positions:
            file = self.store.log.files.at(offset)
            if file is None or offset + size > file.end:
                found[offset] = "it is no longer in the log"
            else:
                pieces[offset] = Piece(file.segment, offset - file.start, size)
        datas = await read_pieces(self.store.cold_reads, list(pieces.values()))
        for offset, data in zip(pieces, datas, strict=True):
            if isinstance(data, OSError):
                attempts = self._unread[offset] = self._unread.get(offset, 0) + 1
                if attempts < READ_ATTEMPTS:
                    raise data
                found[offset] = f"the disk cannot read it: {data.strerror or data}"
            else:
                found[offset] = self._decode_message(offset, data)
            self._unread.pop(offset, None)
        return found

    def _decode_message(self, offset: int, data: bytes) -> TimerMessage | str:
        fault = entry_fault(data, offset, crc_required=self.store.log.requires_crc(offset))
        if fault is not None:
            return fault
        try:
            message = decode_entry(data, check_crc=False, errors="surrogateescape")
            return timer_message(message, self.pending.config.precision_ms)
        except StoredMessageError as error:
            return str(error)

    def put_in_slot(self, offset: int, size: int, slot: DueSlot, now: int) -> int:
        """Put a message into its slot, or into the next one if that slot is delivered. Return the
        slot. Raises OSError, StoreError."""
        pending = self.pending
        due = max(slot.due, pending.read_time)
        until = max(slot.until, pending.read_time)
        pending.put_message(
            due, offset, size, now, slot.topic_hash, recalls=slot.recalls, until=until
        )
        return due

    # --- checks

    def check_units(self, due: SlotUnits, first: int, messages: list[TimerMessage | str]) -> None:
        """Check units of a slot, from number ``first`` on, against their messages. ``messages``:
        the message or the fault at each unit's position.

        Raises StoreDamagedError if a unit cannot have been written for its message. Each message is
        reported only once, because a second rebuild from the queue would give the same log.
        """
        for number, message in enumerate(messages, first):
            offset, size = due.offsets[number], due.sizes[number]
            if not self._unit_fits(due, number, message) and offset not in self._doubted:
                self._doubted.add(offset)
                raise _damaged(due.time, offset, size)

    def _unit_fits(self, due: SlotUnits, number: int, message: TimerMessage | str) -> bool:
        magic = due.magics[number]
        if isinstance(message, str):
            return self._queue_has(due.offsets[number], due.sizes[number])
        if bool(magic & MAGIC_DELETE) != message.recalls:
            return False
        until = message.until
        if magic & MAGIC_ROLL:
            return until > due.time
        late_ms = _LATE_SLOTS * self.pending.config.precision_ms
        late = until < due.time and until <= due.written[number] + late_ms
        return message.due <= due.time <= until or late

    def _check_old(self, unit: TimerUnit, message: TimerMessage | str) -> None:
        """Check a unit of another precision, which may be unknown."""
        if isinstance(message, str):
            fits = self._queue_has(unit.offset, unit.size)
        elif unit.recalls != message.recalls:
            fits = False
        elif unit.rolls:
            fits = message.out + _COARSEST_MS > unit.time
        else:
            late = max(message.out + _COARSEST_MS, unit.written + _LATE_SLOTS * _COARSEST_MS)
            fits = message.out < unit.time + _COARSEST_MS and unit.time <= late
        if not fits:
            raise _damaged(unit.time, unit.offset, unit.size)

    def _queue_has(self, offset: int, size: int) -> bool:
        """Return True if the queue has a message at this place."""
        unit = self.queue.unit(self.queue.first_at(offset))
        return unit is not None and unit[:2] == (offset, size)

    # --- new slots, after a start with another ``timerPrecisionMs``

    async def give_new_slots(self, now: int) -> bool:
        """Move every waiting message to its slot of the new precision, if the precision changed.

        The units of the timer log are read in order, with their messages, and appended again,
        behind the old ones and into a new wheel. Until the end nothing is delivered or saved. After
        a kill the move starts again; after an error the next call continues.

        Delivered and moved messages are known exactly, unlike in a rebuild from the queue. A
        message costs about as much as a new one. Raises StoreDamagedError if the log is damaged,
        OSError, StoreError.
        """
        pending = self.pending
        old = self.pending.old_slots
        if old is None:
            return False
        log.info(
            "waiting timer messages move to slots of another precision "
            f"timerPrecisionMs={pending.config.precision_ms}"
        )
        waiting: list[TimerUnit] = []
        for unit in pending.log.scan(self._position, old.end):
            await self.turns.pause()
            if unit.time >= old.read_time:
                waiting.append(unit)
            if len(waiting) == SLICE:
                await self._move_units(old, waiting, now)
                waiting = []
        if pending.log.scanned_to < old.end:
            raise StoreDamagedError(
                f"the timer log is damaged at position {pending.log.scanned_to}"
            )
        await self._move_units(old, waiting, now)
        pending.finish_old_slots()
        return True

    async def _move_units(self, old: OldSlots, units: list[TimerUnit], now: int) -> None:
        while units:
            positions = first_slice((unit.offset, unit.size) for unit in units)
            found = await self.read_messages(positions)
            for unit in units[: len(positions)]:
                message = found[unit.offset]
                self._check_old(unit, message)
                delivered = unit.time == old.read_time and self._left > 0
                self._left -= delivered
                if isinstance(message, str):
                    if not delivered:
                        self.skip(-1, unit.offset, message)
                # a recall counts for its whole slot, and may have several units in a row
                elif unit.offset != self._last_offset and (unit.recalls or not delivered):
                    self.put_in_slot(unit.offset, unit.size, message.slot, now)
                    self._last_offset = unit.offset
                self._position = unit.position + TIMER_UNIT_SIZE
            units = units[len(positions) :]
            await self.turns.pause()

    # --- timer log and wheel anew, from the queue
    #
    # A message whose own slot is before ``read_time`` was delivered. One that was to roll on the
    # way was replaced by a copy of itself, further on in the queue, if its slot on the way was
    # delivered; exactly when it was put there is not known, so it is held here until the queue is
    # read to its end: if no copy has come, it still waits.

    @property
    def rebuilds(self) -> bool:
        """True during a rebuild; nothing may be delivered or saved until its end."""
        return self.pending.redo_before > 0

    def begin_rebuild(self, why: str) -> None:
        self._held.clear()
        self.pending.begin_anew(self.queue.min_index, why)

    def is_pending(self, index: int, offset: int, size: int, message: TimerMessage) -> bool:
        """Return True if the message at queue offset ``index`` still waits for its time, as far as
        known."""
        pending = self.pending
        key = (message.unique_id, message.recalls)
        self._held.pop(key, None)
        if index >= pending.redo_before:
            return True
        written = pending.config.floor(message.message.store_timestamp)
        time, rolls = pending.slot_for(message.until, written)
        if time >= pending.read_time or not rolls:
            return time >= pending.read_time
        if len(self._held) >= HELD_MAX or not message.unique_id:
            return True
        self._held[key] = (offset, size, message.slot)
        return False

    def finish_rebuild(self, end: int, now: int) -> bool:
        """Finish the rebuild when the queue is read up to ``end``; the held messages still wait.
        Return False if there is more to read."""
        pending = self.pending
        if pending.queue_offset < max(pending.redo_before, end):
            return False
        for offset, size, slot in self._held.values():
            self.put_in_slot(offset, size, slot, now)
        self._held.clear()
        pending.redo_before = 0
        return True


def _damaged(time: int, offset: int, size: int) -> StoreDamagedError:
    return StoreDamagedError(
        f"the timer log is damaged: a unit of the slot {time} points to offset {offset}, "
        f"{size} bytes, but its message is not there"
    )
