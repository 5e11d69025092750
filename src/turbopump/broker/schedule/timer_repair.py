"""The messages of timers in the commit log: read beside the loop, checked, and told what they are
to the timers.

One rule: what cannot be delivered is a sentence in its place, and stops no other. It must not know
slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.broker.reading import read_pieces
from turbopump.broker.schedule.timer_messages import TimerMessage, timer_message
from turbopump.errors import StoreDamagedError, StoredMessageError
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.message import ReceivedMessage
from turbopump.store.disk import Piece
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, ConsumeQueue
from turbopump.store.timers.pending_timers import Due, OldSlots, PendingTimers
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL, UNIT_SIZE, TimerUnit

READ_ATTEMPTS: Final = 3
"""How often a message that the disk does not give is asked for, a pause between, before it is
passed over."""


class TimerReading:
    """``precision``: of the slots, ms."""

    def __init__(self, store: MessageStore, precision: int) -> None:
        self._store = store
        self._precision = precision
        self._unread: dict[int, int] = {}

    async def read(self, places: list[tuple[int, int]]) -> dict[int, TimerMessage | str]:
        """The messages at (offset, size), by offset; or why one cannot be delivered. Raises OSError
        if the disk does not give one now."""
        found: dict[int, TimerMessage | str] = {}
        pieces: list[Piece] = []
        wanted: list[int] = []
        for offset, size in places:
            file = self._store.log.files.at(offset)
            if file is None or offset + size > file.end:
                found[offset] = "it is not in the log any more"
            else:
                wanted.append(offset)
                pieces.append(Piece(file.segment, offset - file.start, size))
        datas = await read_pieces(self._store.cold_reads, pieces)
        for offset, data in zip(wanted, datas, strict=True):
            if isinstance(data, OSError):
                attempts = self._unread[offset] = self._unread.get(offset, 0) + 1
                if attempts < READ_ATTEMPTS:
                    raise data
                found[offset] = f"the disk does not give it: {data.strerror or data}"
            else:
                found[offset] = self._decode(offset, data)
            self._unread.pop(offset, None)
        return found

    def _decode(self, offset: int, data: bytes) -> TimerMessage | str:
        fault = entry_fault(data, offset, crc_required=self._store.log.requires_crc(offset))
        if fault is not None:
            return fault
        try:
            message: ReceivedMessage = decode_entry(data, check_crc=False)
            return timer_message(message, self._precision)
        except StoredMessageError as error:
            return str(error)


# --- How much of a slot is read and delivered in one turn of the loop, and a slot that was read before
# its time.

SLICE: Final = 32
"""Messages that are read and delivered in one turn at most: about 1 ms."""
SLICE_BYTES: Final = 256 * 1024
"""And their bytes, or one message."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A slot that was read before its time, and its first messages; good as long as ``newest``
    is."""

    time: int
    newest: int
    due: Due
    found: dict[int, TimerMessage | str]


def slice_of(due: Due, first: int) -> list[tuple[int, int]]:
    """The messages of a slot, from number ``first`` on, that are delivered in one turn."""
    return first_slice(
        zip(due.offsets[first : first + SLICE], due.sizes[first : first + SLICE], strict=True)
    )


def first_slice(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first (offset, size) of those, as many as are read in one turn."""
    taken: list[tuple[int, int]] = []
    left = SLICE_BYTES
    for place in places:
        left -= place[1] if place[1] != NO_MESSAGE_SIZE else 0
        if taken and left < 0:
            break
        taken.append(place)
    return taken


# --- Units of the timer log that do not fit their messages: then the log is damaged, and what it hides
# is found by the queue again.
#
# A message that is damaged itself is another matter: the queue points to it, too.

_LATE_SLOTS = 4
"""A message may be in a later slot than its own if that was over when it came, by the clock or by
at most as many slots."""
_COARSEST_MS = 1000
"""The greatest precision that there is."""


class TimerCheck:
    """Each message is doubted once: a log that was made again from the queue is as good as it
    gets."""

    def __init__(self, queue: ConsumeQueue, precision_ms: int) -> None:
        self._queue = queue
        self._late_ms = _LATE_SLOTS * precision_ms
        self._doubted: set[int] = set()

    def check(self, due: Due, first: int, messages: list[TimerMessage | str]) -> None:
        """Raises StoreDamagedError if a unit of a slot, from number ``first`` on, cannot have been
        written for its message: which is what lies there, or what is wrong with it."""
        for number, message in enumerate(messages, first):
            offset, size = due.offsets[number], due.sizes[number]
            if not self._fits(due, number, message) and offset not in self._doubted:
                self._doubted.add(offset)
                text = (
                    f"a unit of the slot {due.time} points to {offset}, {size} bytes, where "
                    "its message is not"
                )
                raise StoreDamagedError(f"the timer log is damaged: {text}")

    def _fits(self, due: Due, number: int, message: TimerMessage | str) -> bool:
        offset, size, magic = due.offsets[number], due.sizes[number], due.magics[number]
        if isinstance(message, str):
            return self._has(offset, size)
        if bool(magic & MAGIC_DELETE) != (message.recalled is not None):
            return False
        if magic & MAGIC_ROLL:
            return message.until > due.time
        until = message.until
        return message.due <= due.time <= until or (
            until < due.time and until <= due.written[number] + self._late_ms
        )

    def check_old(self, unit: TimerUnit, message: TimerMessage | str) -> None:
        """As ``check``, of a unit that was written with another precision, which need not be
        known."""
        if isinstance(message, str):
            fits = self._has(unit.offset, unit.size)
        elif unit.recalls != (message.recalled is not None):
            fits = False
        elif unit.rolls:
            fits = message.out + _COARSEST_MS > unit.time
        else:
            late = max(message.out + _COARSEST_MS, unit.written + _LATE_SLOTS * _COARSEST_MS)
            fits = message.out < unit.time + _COARSEST_MS and unit.time <= late
        if not fits:
            text = (
                f"a unit of the slot {unit.time} points to {unit.offset}, {unit.size} bytes, "
                "where its message is not"
            )
            raise StoreDamagedError(f"the timer log is damaged: {text}")

    def _has(self, offset: int, size: int) -> bool:
        """Whether the queue has a message there."""
        unit = self._queue.unit(self._queue.first_at(offset))
        return unit is not None and unit[:2] == (offset, size)


# --- After a start with another ``timerPrecisionMs``: every message that waits gets its slot of the
# new one.
#
# The units that the timer log has are read in their order, with their messages, and put again, behind
# them and into a new wheel. Until that is over nothing is delivered or noted: a kill on the way lets
# it begin anew. What was delivered, and what rolled on, is known exactly, other than when everything
# is made anew from the queue. A message costs about as much as one that is taken in.

_PAUSE_EVERY: Final = 500
"""Units that are passed over in one go."""

log = logging.getLogger(__name__)

Read = Callable[[list[tuple[int, int]]], Awaitable[dict[int, TimerMessage | str]]]
PassOver = Callable[[int, int, str], None]


class NewSlots:
    """Goes on, when it is run again, where an error has stopped it."""

    def __init__(
        self, pending: PendingTimers, doubts: TimerCheck, read: Read, pass_over: PassOver
    ) -> None:
        self._pending = pending
        self._doubts = doubts
        self._read = read
        self._pass_over = pass_over
        old = pending.old_slots
        self._position = old.start if old is not None else 0
        self._left = old.delivered if old is not None else 0
        self._last_offset = -1

    async def run(self, now: int) -> bool:
        """Do it, if there is something to do. Raises StoreDamagedError if the log is not as it was
        written, OSError, StoreError."""
        pending, old = self._pending, self._pending.old_slots
        if old is None:
            return False
        log.info(
            "what waits gets new slots, timerPrecisionMs may have changed precision=%d",
            pending.config.precision_ms,
        )
        waiting: list[TimerUnit] = []
        for looked, unit in enumerate(pending.log.scan(self._position, old.end), 1):
            if unit.time >= old.read_time:
                waiting.append(unit)
            if len(waiting) == SLICE:
                await self._put(old, waiting, now)
                waiting = []
            elif looked % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        if pending.log.scanned_to < old.end:
            raise StoreDamagedError(
                f"the timer log is damaged at position {pending.log.scanned_to}"
            )
        await self._put(old, waiting, now)
        pending.old_slots_are_over()
        return True

    async def _put(self, old: OldSlots, units: list[TimerUnit], now: int) -> None:
        pending = self._pending
        while units:
            places = first_slice((unit.offset, unit.size) for unit in units)
            found = await self._read(places)
            for unit in units[: len(places)]:
                message = found[unit.offset]
                self._doubts.check_old(unit, message)
                delivered = unit.time == old.read_time and self._left > 0
                self._left -= delivered
                if isinstance(message, str):
                    if not delivered:
                        self._pass_over(-1, unit.offset, message)
                elif unit.offset != self._last_offset and (unit.recalls or not delivered):
                    # a recall counts for its whole slot
                    due, until = (
                        max(slot, pending.read_time) for slot in (message.due, message.until)
                    )
                    pending.put(
                        due,
                        unit.offset,
                        unit.size,
                        now,
                        message.topic_hash,
                        recalls=unit.recalls,
                        until=until,
                    )
                    # a recall may have several units, one behind the other
                    self._last_offset = unit.offset
                self._position = unit.position + UNIT_SIZE
            units = units[len(places) :]
            await asyncio.sleep(0)


# --- Making timer log and wheel anew from the queue: which of its messages still wait, and which were
# dealt with before the damage.
#
# A message whose own slot is before ``read_time`` was delivered. One that was to roll on the way was
# replaced by a copy of itself, further on in the queue, if its slot on the way was delivered; exactly
# when it was put there is not known, so it is held here until the queue is read to its end: if no
# copy has come, it still waits.

HELD_MAX: Final = 200_000
"""Messages held at most, some 80 MB; more are taken to wait, and may come twice."""


class _Held(NamedTuple):
    due: int
    until: int
    offset: int
    size: int
    topic_hash: int
    recalls: bool


class Redo:
    """``active`` while it goes on; nothing may be delivered or saved until then."""

    def __init__(self, pending: PendingTimers) -> None:
        self._pending = pending
        self._held: dict[tuple[str, bool], _Held] = {}
        self.active = pending.redo_before > 0

    def begin(self) -> None:
        self._held.clear()
        self.active = self._pending.redo_before > 0

    def is_pending(self, index: int, offset: int, size: int, message: TimerMessage) -> bool:
        """Whether the message at queue offset ``index`` waits for its time, as far as is known
        now."""
        pending, recalls = self._pending, message.recalled is not None
        key = (message.unique_id, recalls)
        self._held.pop(key, None)
        if index >= pending.redo_before:
            return True
        written = pending.config.floor(message.message.store_timestamp)
        time, rolls = pending.place(message.until, written)
        if time >= pending.read_time:
            return True
        if rolls and len(self._held) < HELD_MAX and message.unique_id:
            self._held[key] = _Held(
                message.due, message.until, offset, size, message.topic_hash, recalls
            )
        return rolls and (len(self._held) >= HELD_MAX or not message.unique_id)

    def finish(self, end: int, now: int) -> bool:
        """The queue is read up to ``end``: what is held still waits. False if there is more to
        read."""
        pending = self._pending
        if pending.queue_offset < max(pending.redo_before, end):
            return False
        for held in self._held.values():
            due, until = (max(slot, pending.read_time) for slot in (held.due, held.until))
            pending.put(
                due, held.offset, held.size, now, held.topic_hash, recalls=held.recalls, until=until
            )
        self._held.clear()
        pending.redo_before = 0
        self.active = False
        return True
