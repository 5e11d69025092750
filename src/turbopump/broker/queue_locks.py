"""Which client of a group may consume a queue in order: the table of locks.

One rule: a queue of a group has at most one holder at any time, also across a restart; where it is
not known who holds it, nobody gets it until whoever might hold it must have stopped. A lock lives
60 s after it was granted or renewed; a client relies on it for 30 s. Pure: the time comes in, in
seconds of a clock that never goes back. It must not know where the table is kept. Source:
apache/rocketmq ``RebalanceLockManager``, which forgets every lock in a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.message.message_queue import MessageQueue

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
        """Who holds what at ``now``; whose lock has expired is forgotten."""
        self._forget_expired(now)
        return {key: lock.client_id for key, lock in self._locks.items()}

    def _room(self, now: float) -> bool:
        if len(self._locks) >= LOCKS_MAX:
            self._forget_expired(now)
        return len(self._locks) < LOCKS_MAX

    def _forget_expired(self, now: float) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if lock.expires > now}
