"""Making timer log and wheel anew from the queue: which of its messages still wait, and which were
dealt with before the damage.

A message whose own slot is before ``read_time`` was delivered. One that was to roll on the way was
replaced by a copy of itself, further on in the queue, if its slot on the way was delivered; exactly
when it was put there is not known, so it is held here until the queue is read to its end: if no
copy has come, it still waits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.broker.schedule.timer_copies import TimerMessage
from turbopump.store.timers.pending_timers import PendingTimers

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
