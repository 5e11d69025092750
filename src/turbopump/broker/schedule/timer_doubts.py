"""Units of the timer log that do not fit their messages: then the log is damaged, and what it hides
is found by the queue again.

A message that is damaged itself is another matter: the queue points to it, too.
"""

from __future__ import annotations

from turbopump.broker.schedule.timer_copies import TimerMessage
from turbopump.errors import StoreDamagedError
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import Due
from turbopump.store.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL, TimerUnit

_LATE_SLOTS = 4
"""A message may be in a later slot than its own if that was over when it came, by the clock or by
at most as many slots."""
_COARSEST_MS = 1000
"""The greatest precision that there is."""


class Doubts:
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
