"""Reader of timer messages in the commit log. It also checks and repairs the timer log.

The timer log has one unit for each waiting message. Units that do not match their messages mean a
damaged timer log. Then the timer log and the wheel are rebuilt from the queue. A damaged message is
another case, because the queue points to the message too. A message that cannot be delivered is
replaced by a text with the fault, and delays no other message.
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
"""Attempts to read a message from a failing disk before the message is skipped.

The timers pause between two attempts.
"""
SLICE: Final = 32
"""Maximum number of messages read and delivered before other requests are served: about 1 ms."""
SLICE_BYTES: Final = 256 * 1024
"""Maximum total size of the messages that are read at once, in bytes. A single larger message is
allowed."""
HELD_MAX: Final = 200_000
"""Maximum number of messages that a rebuild keeps in memory, some 80 MB.

Further messages are treated as waiting, and may be delivered twice.
"""
_LATE_SLOTS: Final = 4
"""Maximum number of slots by which the timers may be ahead of the clock.

A unit may be in a later slot than its message's own if that slot was over when the unit was
written.
"""
_COARSEST_MS: Final = 1000
"""Greatest possible length of a slot, in ms."""

log = logging.getLogger(__name__)


def first_slice(positions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first positions, up to the limit for one read of the log.

    - ``positions``: the offset and the size of each message in the log.
    """
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
    """Reader of timer messages. It also checks and repairs the timer log.

    - ``skip``: called for a message that cannot be delivered, with its queue offset (-1 if
      unknown), its log offset and the fault.
    """

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
        """Read messages at these positions of the log. Return each message by its offset.

        - ``positions``: the offset and the size of each message in the log.

        A message that cannot be delivered is replaced by a text with the fault. Raises OSError if
        the disk fails to read a message; after ``READ_ATTEMPTS`` such failures the message counts
        as faulty.
        """
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
        """Put a message into its slot. Return the slot.

        If that slot was delivered, the message goes into the next one. Raises OSError, StoreError.
        """
        pending = self.pending
        due = max(slot.due, pending.read_time)
        until = max(slot.until, pending.read_time)
        pending.put_message(
            due, offset, size, now, slot.topic_hash, recalls=slot.recalls, until=until
        )
        return due

    # --- checks

    def check_units(self, due: SlotUnits, first: int, messages: list[TimerMessage | str]) -> None:
        """Check that each unit of a slot matches the message at its position.

        - ``first``: the number of the first unit to check.
        - ``messages``: for each unit, the message at its position, or the fault.

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
        """Check that a unit matches its message. The precision of the unit may be another one.

        Raises StoreDamagedError if it does not match.
        """
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
        """Return True if the timers' queue has a message of this size at this log offset."""
        unit = self.queue.unit(self.queue.first_at(offset))
        return unit is not None and unit[:2] == (offset, size)

    # --- new slots, after a start with another ``timerPrecisionMs``

    async def give_new_slots(self, now: int) -> bool:
        """Move every waiting message to its slot of the new precision. Return True.

        Return False if the precision is the same as before.

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
            "waiting timer messages move to slots of another precision timerPrecisionMs=%s",
            pending.config.precision_ms,
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
                # a recall applies to its whole slot, and may have several units in a row
                elif unit.offset != self._last_offset and (unit.recalls or not delivered):
                    self.put_in_slot(unit.offset, unit.size, message.slot, now)
                    self._last_offset = unit.offset
                self._position = unit.position + TIMER_UNIT_SIZE
            units = units[len(positions) :]
            await self.turns.pause()

    # --- rebuild of the timer log and the wheel from the queue
    #
    # A message whose own slot is before ``read_time`` was delivered. A message that was to roll
    # first waited in an earlier slot. If that slot was delivered, a copy of the message is further
    # on in the queue. The time at which the message was put there is not known exactly. So the
    # message is kept in ``_held`` until the queue is read to its end: without a copy, it still
    # waits.

    @property
    def rebuilds(self) -> bool:
        """True during a rebuild of the timer log. Until its end nothing may be delivered or
        saved."""
        return self.pending.redo_before > 0

    def begin_rebuild(self, why: str) -> None:
        self._held.clear()
        self.pending.begin_anew(self.queue.min_index, why)

    def is_pending(self, index: int, offset: int, size: int, message: TimerMessage) -> bool:
        """Return True if a message may still wait for its time. A rebuild has read the message.

        - ``index``: the offset of the message in the timers' queue.
        - ``offset``, ``size``: the position of the message in the commit log.

        A message that may have been delivered is kept in memory until a copy is found or the
        rebuild ends.
        """
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
        """Finish a rebuild that has read the timers' queue up to ``end``.

        Messages that the rebuild has kept in memory still wait, so they are put into slots. Return
        False if there is more to read.
        """
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
