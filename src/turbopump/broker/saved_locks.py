"""The holders of locked queues in ``config/queueLocks.json``, a file of ours, so that a restart
does not give a queue to a second client.

One rule: a holder counts once the file names it (``saved``). The file is written when a holder
changes, never for a renewal. A store that has been in use and has no such file was Apache's, whose
brokers keep no locks: nothing is granted until its holders must have stopped.
"""

from __future__ import annotations

import logging

import msgspec

from turbopump.broker.queue_locks import RELIANCE_S, QueueLocks
from turbopump.clock import Clock
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol import fastjson
from turbopump.store.json_table import JsonTable
from turbopump.store.watermark import Watermark

log = logging.getLogger(__name__)


class HeldLock(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """One line of the file."""

    group: str
    queue: MessageQueue
    client_id: str


class HeldLocks(msgspec.Struct, kw_only=True, rename="camel"):
    """The file."""

    locks: list[HeldLock]


class SavedLocks:
    """``locks`` is the table; ``saved`` the number of its last change that is on the disk, ``used``
    whether the store is not new."""

    def __init__(self, table: JsonTable, clock: Clock, *, used: bool) -> None:
        self._table = table
        self._clock = clock
        self._used = used
        self._number = 0  # of the change that is being saved
        self.locks = QueueLocks(0.0)
        self.saved = Watermark()
        table.on_settled = self._settled

    def load(self) -> None:
        """Read the file; the first one is made at once where the store is new. Raises OSError."""
        now = self._clock.monotonic()
        found = self._table.load(lambda data: fastjson.decode(data, HeldLocks), lambda: None)
        if found is not None and not self._table.damaged:
            self.locks = QueueLocks(
                now, {(lock.group, lock.queue): lock.client_id for lock in found.locks}
            )
        elif self._used:  # a copy from before the damage may name another holder than the last one
            self.locks = QueueLocks(now, closed_until=now + RELIANCE_S)
            log.warning(
                "who holds which queue is not known (no queueLocks.json, or it is damaged): no "
                "queue is locked for %d s",
                RELIANCE_S,
            )
        else:
            self.locks = QueueLocks(now)
            self._table.save(self._encode())

    def save(self) -> None:
        """Save, beside the loop, what has changed."""
        if not self._table.saving and self.saved.value < self.locks.changes:
            self._number = self.locks.changes
            self._table.save(self._encode())

    def save_now(self) -> None:
        # else the next start, too, must not take it for complete
        if self._clock.monotonic() >= self.locks.closed_until:
            self._table.save_now(self._encode())

    def _settled(self, good: bool) -> None:
        if good:
            self.saved.advance(self._number)
            self.save()

    def _encode(self) -> bytes:
        holders = self.locks.holders(self._clock.monotonic())
        lines = [
            HeldLock(group=group, queue=queue, client_id=client_id)
            for (group, queue), client_id in sorted(holders.items())
        ]
        return fastjson.encode_indented(HeldLocks(locks=lines))
