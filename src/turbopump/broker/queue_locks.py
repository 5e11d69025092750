"""Which client of a group may consume a queue in order: the table of locks.

A queue of a group has at most one holder at any time, also across a restart. Where the holder is
not known, nobody gets the lock until every possible holder must have stopped. A lock lives 60 s
after it was granted or renewed; a client relies on it for 30 s. The time comes in, in seconds of a
clock that never goes back. Source: apache/rocketmq ``RebalanceLockManager``, which forgets every
lock in a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from turbopump.broker.saved_table import SavedTable
from turbopump.clock import Clock
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.store.json_table import JsonTable
from turbopump.store.watermark import Watermark

LIFE_S: Final = 60.0
"""How long a lock holds that is not renewed."""
RELIANCE_S: Final = 30.0
"""How long a client relies on a lock that it can no longer renew
(``ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME``)."""
LOCKS_MAX: Final = 100_000
"""Beyond that many nobody new gets a lock: no client may fill the memory."""

Holders = Mapping[tuple[str, MessageQueue], str]
"""Group and queue to client id."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    expires: float
    change: int
    """The number of the change that made this client the holder."""


class QueueLocks:
    """``holders`` are those of a broker's life before, found at ``now``: each may renew, for 60 s,
    before its lock is free. Nothing is granted before ``closed_until``."""

    def __init__(
        self,
        now: float,
        holders: Holders = {},  # noqa: B006 - not changed
        *,
        closed_until: float = 0.0,
    ) -> None:
        self.changes = 0
        """Grows by one with each holder that comes or goes."""
        self.closed_until = closed_until
        self._locks = {key: _Lock(client_id, now + LIFE_S, 0) for key, client_id in holders.items()}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now: float
    ) -> dict[MessageQueue, int]:
        """The queues that ``client_id`` holds now, each with the number of the change since which
        it does."""
        if now < self.closed_until:
            return {}
        granted: dict[MessageQueue, int] = {}
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None or (lock.expires <= now and lock.client_id != client_id):
                if lock is None and not self._room(now):
                    continue
                self.changes += 1
                lock = self._locks[group, queue] = _Lock(client_id, 0.0, self.changes)
            elif lock.client_id != client_id:
                continue
            lock.expires = now + LIFE_S
            granted[queue] = lock.change
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Free those of the queues that this client holds."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]
                self.changes += 1

    def any_held(self, group: str, now: float) -> bool:
        """Whether somebody of the group holds a queue: it consumes in order."""
        return any(name == group and lock.expires > now for (name, _), lock in self._locks.items())

    def holders(self, now: float) -> dict[tuple[str, MessageQueue], str]:
        """The holders of all queues at ``now``; expired locks are forgotten."""
        self._forget_expired(now)
        return {key: lock.client_id for key, lock in self._locks.items()}

    def _room(self, now: float) -> bool:
        if len(self._locks) >= LOCKS_MAX:
            self._forget_expired(now)
        return len(self._locks) < LOCKS_MAX

    def _forget_expired(self, now: float) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if lock.expires > now}


log = logging.getLogger(__name__)


class HeldLock(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """One line of the file."""

    group: str
    queue: MessageQueue
    client_id: str


class HeldLocks(msgspec.Struct, kw_only=True, rename="camel"):
    """The file."""

    locks: list[HeldLock]


class SavedLocks(SavedTable[HeldLocks]):
    """The holders of locked queues in ``config/queueLocks.json``, a file of ours, so that a restart
    does not give a queue to a second client. ``saved_change``: the number of the last change of
    ``locks`` that is on the disk; ``used``: the store is not new.

    A holder counts once the file names it. The file is written when a holder changes, never for a
    renewal. A store that has been in use and has no such file was Apache's, whose brokers keep no
    locks: nothing is granted until its holders must have stopped."""

    def __init__(self, file: JsonTable, clock: Clock, *, used: bool) -> None:
        super().__init__(file, HeldLocks)
        self._clock = clock
        self._used = used
        self._number = 0  # of the change that is being saved
        self.locks = QueueLocks(0.0)
        self.saved_change = Watermark()

    def load(self) -> None:
        """Read the file; the first one is made at once where the store is new. Raises OSError."""
        now = self._clock.monotonic()
        found = self._file.load(lambda data: fastjson.decode(data, HeldLocks), lambda: None)
        if found is not None and not self._file.damaged:
            self.locks = QueueLocks(
                now, {(lock.group, lock.queue): lock.client_id for lock in found.locks}
            )
        elif self._used:  # a copy from before the damage may name another holder than the last one
            self.locks = QueueLocks(now, closed_until=now + RELIANCE_S)
            log.warning(
                "who holds which queue is not known (no queueLocks.json, or it is damaged): "
                f"no queue is locked for {RELIANCE_S:.0f} s"
            )
        else:
            self.locks = QueueLocks(now)
            self._dirty = True
            super().save()

    def save(self) -> None:
        """Save, beside the loop, what has changed."""
        self._dirty = self._dirty or self._failing or self._number < self.locks.changes
        super().save()

    def save_now(self) -> None:
        # else the next start, too, must not take it for complete
        if self._clock.monotonic() >= self.locks.closed_until:
            super().save_now()

    def _taken(self) -> None:
        self._number = self.locks.changes

    def _kept(self) -> None:
        self.saved_change.advance(self._number)

    def _content(self) -> HeldLocks:
        holders = self.locks.holders(self._clock.monotonic())
        lines = [
            HeldLock(group=group, queue=queue, client_id=client_id)
            for (group, queue), client_id in sorted(holders.items())
        ]
        return HeldLocks(locks=lines)
