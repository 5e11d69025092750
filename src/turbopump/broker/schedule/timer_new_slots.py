"""After a start with another ``timerPrecisionMs``: every message that waits gets its slot of the
new one.

The units that the timer log has are read in their order, with their messages, and put again, behind
them and into a new wheel. Until that is over nothing is delivered or noted: a kill on the way lets
it begin anew. What was delivered, and what rolled on, is known exactly, other than when everything
is made anew from the queue. A message costs about as much as one that is taken in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from turbopump.broker.schedule.timer_copies import TimerMessage
from turbopump.broker.schedule.timer_doubts import Doubts
from turbopump.broker.schedule.timer_slices import SLICE, first_slice
from turbopump.errors import StoreDamagedError
from turbopump.store.timers.pending_timers import OldSlots, PendingTimers
from turbopump.store.timers.timer_log import UNIT_SIZE, TimerUnit

_PAUSE_EVERY: Final = 500
"""Units that are passed over in one go."""

log = logging.getLogger(__name__)

Read = Callable[[list[tuple[int, int]]], Awaitable[dict[int, TimerMessage | str]]]
PassOver = Callable[[int, int, str], None]


class NewSlots:
    """Goes on, when it is run again, where an error has stopped it."""

    def __init__(
        self, pending: PendingTimers, doubts: Doubts, read: Read, pass_over: PassOver
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
