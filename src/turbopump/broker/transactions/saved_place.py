"""Where the next start goes on: the places in the half and op queues, as offsets of their consumer
group.

The rule: a place is kept once everything that it builds on is on the disk; else a power cut could
take a committed message and leave the place behind its half message.
"""

from __future__ import annotations

from functools import partial

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.transactions.half_messages import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE
from turbopump.broker.transactions.pending import PendingHalves
from turbopump.store.message_store import MessageStore


class SavedPlace:
    """Of one table of pending half messages."""

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, pending: PendingHalves
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._pending = pending
        self._saved = (pending.place, pending.op_place)
        self._waiting = False

    def moved(self) -> None:
        """Keep the places as they are now, soon."""
        place = (self._pending.place, self._pending.op_place)
        if self._waiting or place == self._saved:
            return
        flushed, end = self._store.flushed, self._store.log.end
        if flushed.error is not None:
            return
        if flushed.value >= end:
            self._save(*place)
        else:
            self._waiting = True
            flushed.when(end, partial(self._reached, *place))

    def needed_from(self) -> int | None:
        """The offset in the log of the first half message that the next start would look at; None
        if there is none. It moves on with each check, which stores them again at the end, so that
        none holds its segment for longer than until then."""
        self.moved()  # what had ended before a start is passed over without anything being noted
        queue = self._store.queues.find(HALF_TOPIC, QUEUE)
        unit = queue.unit(max(self._saved[0], queue.min_index)) if queue is not None else None
        return unit[0] if unit is not None else None

    def save_now(self) -> None:
        """Keep them at a clean stop, which brings everything to the disk."""
        if self._store.flushed.error is None:
            self._save(self._pending.place, self._pending.op_place)

    def _reached(self, place: int, op_place: int) -> None:
        self._waiting = False
        if self._store.flushed.error is None:
            self._save(place, op_place)
            self.moved()

    def _save(self, place: int, op_place: int) -> None:
        if self._saved[0] != place:
            self._offsets.commit(GROUP, HALF_TOPIC, QUEUE, place)
        if self._saved[1] != op_place:
            self._offsets.commit(GROUP, OP_TOPIC, QUEUE, op_place)
        self._saved = (place, op_place)
